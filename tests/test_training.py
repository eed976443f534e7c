import copy
import io
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from test_device import cuda, mode, on_cuda  # noqa: F401  (fixtures)
from torch import nn
from worlds import drawn_world, exact_world, mixed_frame, samples

from experiments.training import digits, source_network, summary, verdicts
from sees_torch import (
    KnownWeights,
    Schema,
    SchemaError,
    SEESc,
    SEESd,
    SEESem,
    SeesError,
    SeesWarning,
    ShapeError,
    ShiftReport,
    SupportError,
    estimate_shift,
)
from sees_torch.correction import CorrectedClassifier
from sees_torch.target_loss import TargetLoss
from sees_torch.training import importance_weights
from sees_torch.weights import ConstantWeights

PAIR = drawn_world(1, 2000, 2000, features=4, strength=1.5, classes=3)


def report_on(pair, method=None, **options) -> ShiftReport:
    method = method or SEESem(features=pair.features)
    return estimate_shift(**pair.inputs(), method=method, replicates=0, **options)


REPORT = report_on(PAIR)
ROWS = torch.tensor(PAIR.source.to_numpy())
LABELS = torch.tensor(PAIR.labels)


def network(features: int = 4, classes: int = 3) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(features, 8), nn.ReLU(), nn.Linear(8, classes))


# Importance weights


def test_weights_have_mean_one_and_follow_the_report():
    found = importance_weights(REPORT, PAIR.source, PAIR.labels)
    assert float(found.weights.mean()) == pytest.approx(1)
    torch.testing.assert_close(found.weights, REPORT.weights / REPORT.weights.mean())
    w = REPORT.weights
    assert found.effective_rows == pytest.approx(float(w.sum() ** 2 / (w**2).sum()))
    assert found.clipped_rows == found.clipped_weight == 0


def test_rows_that_the_report_never_saw_and_a_bare_weight_function():
    found = importance_weights(REPORT.weight_function, ROWS[:50], LABELS[:50])
    torch.testing.assert_close(found.weights, REPORT.weights[:50] / REPORT.weights[:50].mean())


@pytest.mark.parametrize("clip", [1.2, 1.5, 0.5, 0.7])
def test_clipping_says_how_much_it_cut(clip):
    plain = importance_weights(REPORT, PAIR.source, PAIR.labels).weights
    found = importance_weights(REPORT, PAIR.source, PAIR.labels, clip=clip)
    cap = clip if clip > 1 else float(np.quantile(plain, clip, method="inverted_cdf"))
    cut = plain.clamp_max(cap)
    torch.testing.assert_close(found.weights, cut / cut.mean())
    assert found.clipped_rows == pytest.approx(float((plain > cap).double().mean()))
    assert found.clipped_weight == pytest.approx(float((plain - cut).sum() / plain.sum()))
    assert found.clipped_weight > 0
    assert found.effective_rows > importance_weights(REPORT, ROWS, LABELS).effective_rows


@pytest.mark.parametrize("clip", [0, 1, -2.0, float("nan")])
def test_a_clip_that_is_neither_cap_nor_quantile_is_refused(clip):
    with pytest.raises(SeesError, match="quantile"):
        importance_weights(REPORT, ROWS, LABELS, clip=clip)


def test_few_effective_rows_warn_unless_clipped_or_allowed():
    # One row in a hundred carries nearly everything.
    source = samples(PAIR)[0]
    steep = ConstantWeights(source.schema, source.classes, torch.tensor([100.0, 0.01, 0.01]))
    labels = torch.ones(100, dtype=torch.int64)
    labels[0] = 0
    with pytest.warns(SeesWarning, match=r"100 weighted rows are worth 1, fewer than 10%"):
        importance_weights(steep, ROWS[:100], labels)
    importance_weights(steep, ROWS[:100], labels, min_effective=0.005)
    assert importance_weights(steep, ROWS[:100], labels, clip=0.9).effective_rows > 99


def test_weights_that_are_all_zero_are_refused():
    source = samples(PAIR)[0]
    gone = ConstantWeights(source.schema, source.classes, torch.tensor([0.0, 1.0, 1.0]))
    with pytest.raises(SupportError, match="every row weighs 0"):
        importance_weights(gone, ROWS[:5], torch.zeros(5, dtype=torch.int64))
    with pytest.raises(SupportError, match="quantile of the weights is 0"):
        importance_weights(gone, ROWS[:5], torch.tensor([0, 0, 0, 0, 1]), clip=0.5)


def test_what_is_no_shift_is_refused():
    with pytest.raises(SeesError, match="SEESem: methods are fitted by estimate_shift"):
        importance_weights(SEESem(), ROWS, LABELS)
    with pytest.raises(SeesError, match="got int"):
        TargetLoss(3)


def test_the_sampler_draws_in_proportion():
    found = importance_weights(REPORT, PAIR.source, PAIR.labels)
    draws = 200_000
    sampler = found.sampler(draws, torch.Generator().manual_seed(0))
    share = torch.bincount(LABELS[list(sampler)], minlength=3) / draws
    expected = torch.bincount(LABELS, found.weights, minlength=3) / len(LABELS)
    error = (expected * (1 - expected) / draws).sqrt()
    assert bool(((share - expected).abs() < 4 * error).all())
    assert len(found.sampler()) == len(LABELS)


def test_the_sampler_works_in_a_loader():
    data = torch.utils.data.TensorDataset(ROWS, LABELS)
    sampler = importance_weights(REPORT, ROWS, LABELS).sampler(64)
    loader = torch.utils.data.DataLoader(data, batch_size=32, sampler=sampler)
    assert [len(labels) for _, labels in loader] == [32, 32]


# TargetLoss


@pytest.mark.parametrize("estimator", ["ipw", "self-normalised"])
@pytest.mark.parametrize("metric", ["log_loss", "brier"])
def test_the_loss_of_the_source_is_the_reports_value_on_the_target(metric, estimator):
    report = report_on(PAIR, metric=metric, estimator=estimator)
    proba = torch.tensor(PAIR.source_proba)
    loss = TargetLoss(report, metric, estimator=estimator)
    assert float(loss(proba, PAIR.labels, PAIR.source)) == pytest.approx(report.target_value)
    on_logits = TargetLoss(report, metric, estimator=estimator, logits=True)
    assert float(on_logits(proba.log(), LABELS, ROWS)) == pytest.approx(report.target_value)


def test_ipw_over_equal_batches_averages_to_the_whole():
    scores, loss = network()(ROWS.float()), TargetLoss(REPORT, logits=True)
    parts = [
        loss(*batch)
        for batch in zip(scores.split(500), LABELS.split(500), ROWS.split(500), strict=True)
    ]
    torch.testing.assert_close(torch.stack(parts).mean(), loss(scores, LABELS, ROWS))


@pytest.mark.parametrize("method", [SEESem(features=("x0",)), SEESc(), "none"])
def test_rows_coded_once_weigh_the_same(method):
    scores, loss = network()(ROWS.float()), TargetLoss(report_on(PAIR, method), logits=True)
    rows, some = loss.encode(PAIR.source), torch.arange(0, 2000, 7)
    expected = loss(scores[some], LABELS[some], ROWS[some])
    torch.testing.assert_close(loss(scores[some], LABELS[some], rows[some]), expected)
    with pytest.raises(ShapeError, match="2000 rows, labels 5"):
        loss(scores[:5], LABELS[:5], rows)


def test_no_shift_gives_the_plain_loss():
    scores = network()(ROWS.float())
    loss = TargetLoss(report_on(PAIR, "none"), logits=True)
    plain = nn.functional.cross_entropy(scores, LABELS)
    torch.testing.assert_close(loss(scores, LABELS, ROWS), plain)


@pytest.mark.parametrize(
    "loss",
    [
        lambda scores, labels: nn.functional.cross_entropy(scores, labels, reduction="none"),
        nn.CrossEntropyLoss(reduction="none"),
    ],
)
def test_a_loss_of_ones_own(loss):
    scores = network()(ROWS.float())
    expected = TargetLoss(REPORT, logits=True)(scores, LABELS, ROWS)
    torch.testing.assert_close(TargetLoss(REPORT, loss)(scores, LABELS, ROWS), expected)


def test_a_single_logit_is_that_of_the_second_class():
    pair = drawn_world(0, 500, 500, features=3)
    report, score = report_on(pair), torch.randn(500, generator=torch.Generator().manual_seed(0))
    both = torch.stack([torch.zeros(500), score], dim=1)
    for name in ("log_loss", "brier"):
        loss = TargetLoss(report, name, logits=True)
        expected = loss(both, pair.labels, pair.source)
        torch.testing.assert_close(loss(score, pair.labels, pair.source), expected)
        torch.testing.assert_close(loss(score[:, None], pair.labels, pair.source), expected)
        proba = TargetLoss(report, name)(score.sigmoid(), pair.labels, pair.source)
        torch.testing.assert_close(proba.float(), expected)


@pytest.mark.parametrize("detach", [True, False])
def test_gradient_reaches_the_network_and_the_weights_only_if_asked(detach):
    weight = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64, requires_grad=True)
    source = samples(PAIR)[0]
    function = ConstantWeights(source.schema, source.classes, weight)
    net = network().double()
    loss = TargetLoss(function, logits=True, detach_weights=detach)
    loss(net(ROWS.double()), LABELS, ROWS).backward()
    rows = weight.detach()[LABELS] * nn.functional.cross_entropy(
        net(ROWS.double()), LABELS, reduction="none"
    )
    expected = torch.autograd.grad(rows.mean(), net[0].weight)[0]
    torch.testing.assert_close(net[0].weight.grad, expected)
    assert float(expected.abs().sum()) > 0
    assert (weight.grad is None) == detach
    if not detach:
        by_label = torch.bincount(LABELS, rows.detach() / weight.detach()[LABELS]) / len(LABELS)
        torch.testing.assert_close(weight.grad, by_label)


def test_training_lowers_the_loss():
    net, loss = network(), TargetLoss(REPORT, logits=True)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.05)
    values = []
    for _ in range(20):
        optimiser.zero_grad()
        value = loss(net(ROWS.float()), LABELS, ROWS)
        value.backward()
        optimiser.step()
        values.append(float(value.detach()))
    assert values[-1] < 0.9 * values[0]


def test_the_largest_weight_is_clipped():
    scores = network()(ROWS.float())
    value = TargetLoss(REPORT, logits=True, clip=0.7)(scores, LABELS, ROWS)
    own = nn.functional.cross_entropy(scores, LABELS, reduction="none")
    torch.testing.assert_close(value, (REPORT.weights.clamp_max(0.7).float() * own).mean())


def test_a_batch_without_weight_costs_nothing_instead_of_nan():
    source = samples(PAIR)[0]
    gone = ConstantWeights(source.schema, source.classes, torch.zeros(3))
    for estimator in ("ipw", "self-normalised"):
        loss = TargetLoss(gone, logits=True, estimator=estimator)
        assert float(loss(torch.zeros(5, 3), LABELS[:5], ROWS[:5])) == 0


def test_newer_weights():
    loss = TargetLoss(report_on(PAIR, "none"), logits=True)
    scores = network()(ROWS.float())
    loss.update(REPORT)
    torch.testing.assert_close(
        loss(scores, LABELS, ROWS), TargetLoss(REPORT, logits=True)(scores, LABELS, ROWS)
    )
    with pytest.raises(SchemaError, match="classes"):
        loss.update(report_on(drawn_world(0, 200, 200, features=4)))


def test_refusals_of_the_loss():
    with pytest.raises(SeesError, match="log_loss, brier"):
        TargetLoss(REPORT, "accuracy")
    with pytest.raises(SeesError, match="self-normalised"):
        TargetLoss(REPORT, estimator="dr")
    with pytest.raises(SeesError, match="clip"):
        TargetLoss(REPORT, clip=0)
    loss = TargetLoss(REPORT, logits=True)
    with pytest.raises(ShapeError, match=r"\(2000, 3\)"):
        loss(torch.zeros(2000, 2), LABELS, ROWS)
    with pytest.raises(ShapeError, match="5 entries"):
        loss(torch.zeros(5, 3), LABELS[:5], ROWS)
    with pytest.raises(SeesError, match="logits=True"):
        TargetLoss(REPORT)(5 * torch.ones(2000, 3), LABELS, ROWS)
    with pytest.raises(ShapeError, match="reduction='none'"):
        TargetLoss(REPORT, nn.CrossEntropyLoss())(torch.zeros(2000, 3), LABELS, ROWS)


def test_weights_known_for_the_source_rows_only_refuse_other_rows():
    loss = TargetLoss(report_on(PAIR, KnownWeights(PAIR.weights)), logits=True)
    with pytest.raises(SupportError, match="2000 source rows only"):
        loss(torch.zeros(5, 3), LABELS[:5], ROWS[:5])


# CorrectedClassifier


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("shifted", [0, 1, 2])
def test_true_weights_and_the_true_posterior_give_the_targets_posterior_exactly(classes, shifted):
    pair = exact_world(3, features=3, classes=classes, shifted=shifted, strength=2.0)
    known = KnownWeights(pair.weight_table, pair.features)
    report = report_on(pair, known, estimator="ipw", calibrate=False)
    found = CorrectedClassifier(lambda table: pair.source_proba, report)(pair.source)
    joint = pair.target_weight.reshape(-1, classes)  # Rows come label by label.
    truth = (joint / joint.sum(axis=1, keepdims=True)).repeat(classes, axis=0)
    np.testing.assert_allclose(found.numpy(), truth, atol=1e-12)


def test_weights_of_one_change_nothing():
    net = network()
    report = estimate_shift(
        ROWS, LABELS, ROWS[:100], net, logits=True, method="none", calibrate=False, replicates=0
    )
    torch.testing.assert_close(
        CorrectedClassifier(nn.Sequential(net, nn.Softmax(dim=1)), report)(ROWS.float()),
        net(ROWS.float()).softmax(dim=1),
    )


def test_it_calibrates_as_the_report_did():
    report = report_on(PAIR)
    model = CorrectedClassifier(lambda table: PAIR.target_proba, report)
    table = report.weight_function.table(report.target.rows)
    joint = report.target.posterior * table
    expected = joint / joint.sum(dim=1, keepdim=True)
    torch.testing.assert_close(model(PAIR.target), expected)
    plain = CorrectedClassifier(lambda table: PAIR.target_proba, report, calibrate=False)
    assert float((plain(PAIR.target) - expected).abs().max()) > 1e-3


def test_a_report_that_did_not_calibrate():
    report = report_on(PAIR, calibrate=False)
    assert CorrectedClassifier(lambda table: PAIR.target_proba, report).calibration is None


@pytest.mark.parametrize("method", [SEESem(features=(0,)), SEESc(), "auto"])
def test_a_network_under_a_strong_shift_gets_better(method):
    pair = drawn_world(4, 3000, 3000, features=4, strength=2.0)
    rows, labels = torch.tensor(pair.source.to_numpy()).float(), torch.tensor(pair.labels)
    net = network(4, 2)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(rows[:1500]), labels[:1500]).backward()
        optimiser.step()
    target = torch.tensor(pair.target.to_numpy()).float()
    report = estimate_shift(
        rows[1500:], labels[1500:], target, net, logits=True, method=method, replicates=0
    )
    corrected = CorrectedClassifier(net, report, logits=True)
    truth = torch.tensor(pair.target_labels)

    def hits(scores):
        return float((scores.argmax(dim=1) == truth).double().mean())

    assert hits(corrected(target)) > hits(net(target))


def test_images_with_features_beside_them():
    images = torch.rand(20, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    corrected = CorrectedClassifier(net, report_on(PAIR, calibrate=False), logits=True)
    found = corrected(images, PAIR.target[:20])
    assert found.shape == (20, 3)
    assert found.dtype == torch.float32
    found.prod(dim=1).sum().backward()
    assert float(net[0].weight.grad.abs().sum()) > 0
    with pytest.raises(ShapeError, match=r"\(19, 3\)"):
        corrected(images, PAIR.target[:19])


def test_a_scikit_learn_classifier_its_classes_and_columns_in_any_order():
    rng = np.random.default_rng(0)
    frame, later = mixed_frame(rng, 400), mixed_frame(rng, 300)
    names = np.where(frame["age"] + rng.normal(0, 5, 400) > 40, "yes", "no")
    numeric = ["size", "age", "income"]
    fitted = LogisticRegression(max_iter=1000).fit(frame[numeric], names)
    report = estimate_shift(
        frame[numeric],
        names,
        later[numeric],
        source_proba=fitted.predict_proba(frame[numeric])[:, ::-1],
        target_proba=fitted.predict_proba(later[numeric])[:, ::-1],
        classes=["yes", "no"],
        method="none",
        calibrate=False,
        replicates=0,
    )
    corrected = CorrectedClassifier(fitted, report)
    assert corrected.classes == ("yes", "no")
    proba = fitted.predict_proba(later[numeric])
    np.testing.assert_allclose(corrected(later[numeric[::-1]]).numpy(), proba[:, ::-1])
    named = CorrectedClassifier(lambda t: pd.DataFrame(proba, columns=["no", "yes"]), report)
    np.testing.assert_allclose(named(later[numeric]).numpy(), proba[:, ::-1])


@pytest.mark.parametrize("as_table", [True, False])
@pytest.mark.parametrize("logits", [True, False])
def test_a_single_output_is_that_of_the_second_class(logits, as_table):
    pair = drawn_world(0, 300, 300, features=3)
    net = nn.Sequential(nn.Linear(3, 1), nn.Identity() if logits else nn.Sigmoid())
    rows = torch.tensor(pair.target.to_numpy()).float()
    two = nn.Sequential(net[0], nn.Sigmoid())(rows).detach().double()
    report = report_on(pair)
    expected = CorrectedClassifier(lambda t: torch.cat([1 - two, two], dim=1), report)(pair.target)
    corrected = CorrectedClassifier(net, report, logits=logits)
    found = corrected(pair.target if as_table else rows).double()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_corrected_classifier_is_a_model_of_estimate_shift():
    rows = ROWS.float()
    corrected = CorrectedClassifier(network(), REPORT, logits=True)
    report = estimate_shift(
        rows, LABELS, torch.tensor(PAIR.target.to_numpy()).float(), corrected, replicates=0
    )
    assert 0 < report.source_value < 1


def test_what_the_model_must_not_return():
    report = report_on(PAIR)
    with pytest.raises(ShapeError, match=r"\(2000, 3\)"):
        CorrectedClassifier(network(4, 2), report, logits=True)(ROWS.float())
    with pytest.raises(SeesError, match="logits=True"):
        CorrectedClassifier(network(), report)(10 * ROWS.float())
    by_row = report_on(PAIR, KnownWeights(PAIR.weights))
    with pytest.raises(SupportError, match="per row"):
        CorrectedClassifier(network(), by_row, logits=True)(ROWS.float())


# As modules


def modules():
    return {
        "loss": TargetLoss(REPORT, logits=True),
        "loss on a basis": TargetLoss(report_on(PAIR, SEESc()), logits=True),
        "classifier": CorrectedClassifier(network(), REPORT, logits=True),
    }


def outcome(module):
    if isinstance(module, TargetLoss):
        return module(network()(ROWS.float()), LABELS, ROWS)
    return module(ROWS.float())


@pytest.mark.parametrize("name", list(modules()))
def test_state_survives_a_file(name):
    module, other = modules()[name], modules()[name]
    held = io.BytesIO()
    torch.save(module.state_dict(), held)
    held.seek(0)
    before = REPORT.weights.clone()
    for buffer in other.buffers():
        if buffer.is_floating_point():
            buffer.zero_()
    assert not torch.equal(outcome(other), outcome(module))
    other.load_state_dict(torch.load(held, weights_only=True))
    assert torch.equal(outcome(other), outcome(module))
    assert torch.equal(REPORT.weight_function(PAIR.source, PAIR.labels), before)


@pytest.mark.parametrize("method", [SEESem(features=("x0",)), SEESc()])
def test_moving_a_module_leaves_the_report_where_it_is(method):
    report = report_on(PAIR, method)
    for module in (TargetLoss(report), CorrectedClassifier(network(), report)):
        module.to("meta")
        assert all(part.device.type == "meta" for part in module.buffers())
        assert all(part.device.type == "cpu" for part in report.weight_function.buffers())
        assert len(report.suggest_labels(3)) == 3


def test_newer_weights_follow_the_loss():
    loss = TargetLoss(REPORT).to("meta")
    loss.update(REPORT)
    assert all(part.device.type == "meta" for part in loss.buffers())


def test_single_precision():
    whole = {name: outcome(module) for name, module in modules().items()}
    for name, module in modules().items():
        torch.testing.assert_close(outcome(module.float()), whole[name], rtol=1e-4, atol=1e-5)


def test_everything_runs_where_the_modules_are():
    """The meta device is another device that every build of torch has."""
    scores, labels = torch.empty(2000, 3, device="meta"), PAIR.labels
    for estimator in ("ipw", "self-normalised"):
        loss = TargetLoss(REPORT, logits=True, estimator=estimator).to("meta")
        assert loss(scores, labels, PAIR.source).device.type == "meta"
    classifier = CorrectedClassifier(nn.Identity(), REPORT, logits=True).to("meta")
    assert classifier(scores, PAIR.source).device.type == "meta"


CLASSIFIER = CorrectedClassifier(nn.Identity(), REPORT, logits=True)
REPORTS = {"table": REPORT, "basis": report_on(PAIR, SEESc())}
ENCODED = TargetLoss(REPORT).encode(PAIR.source.iloc[:20])
LOSSES = {
    (report, *kind): TargetLoss(REPORTS[report], *kind[:1], logits=True, estimator=kind[1], clip=2)
    for report in REPORTS
    for kind in product(("log_loss", "brier"), ("ipw", "self-normalised"))
}


def test_the_classifier_on_cuda(cuda):  # noqa: F811
    scores = torch.empty(20, 3, device="cuda")
    rows = torch.empty(20, 4, dtype=torch.float64, device="cuda")
    assert on_cuda(cuda(CLASSIFIER)(scores, rows))


@pytest.mark.parametrize(("report", "name", "estimator"), LOSSES)
def test_the_loss_on_cuda(cuda, report, name, estimator):  # noqa: F811
    loss, rows = cuda(LOSSES[report, name, estimator]), cuda(ENCODED)
    scores = torch.empty(20, 3, device="cuda")
    labels = torch.empty(20, dtype=torch.int64, device="cuda")
    weight, value = loss.weight_function.of_rows(rows, labels), loss._row_losses(scores, labels)
    assert on_cuda(weight, value, loss.mean(weight, value))


@pytest.mark.parametrize("clip", [None, 4.0])
@pytest.mark.parametrize("report", REPORTS)
def test_training_weights_on_cuda(cuda, monkeypatch, report, clip):  # noqa: F811
    """But for the reading of labels, which asks for their values."""
    function, rows = cuda(REPORTS[report].weight_function), cuda(ENCODED)
    labels = torch.empty(20, dtype=torch.int64, device="cuda")
    monkeypatch.setattr(function, "forward", lambda *_: function.of_rows(rows, labels))
    assert on_cuda(importance_weights(function, None, None, clip=clip, min_effective=0).weights)


# The experiment


def test_the_report_on_digits_names_the_site_from_metadata_alone():
    task = digits(0, rows=900)
    report = task.report(source_network(task, 0))
    assert report.shifted_features == ("site",)


def test_the_experiment_tabulates_and_judges():
    rows = [
        {"setting": "s", "seed": seed, "method": method, "accuracy": 80 + gain + wobble * seed}
        for method, gain, wobble in [
            ("source model", 0, 1),
            ("unweighted", 1, 1),
            ("importance weights", -2, 1),
            ("CorrectedClassifier", 5, 1.1),
            ("CorrectedClassifier, true", -1.4, 2),
        ]
        for seed in range(4)
    ]
    results = pd.DataFrame(rows).assign(found=True, identified=False, effective=0.5)
    table = summary(results)
    assert table.loc[("s", "CorrectedClassifier"), "- source model"] == pytest.approx(5.15)
    lines = verdicts(results)
    assert lines[0].startswith("s: 4 seeds, shifted features found in 100%, identified 0%")
    assert ["hurts" in lines[1], "helps" in lines[2], "no clear" in lines[3]] == [True] * 3


# A method instead of a report


def scores_of(net, pair):
    return [net(torch.tensor(table.to_numpy()).float()) for table in (pair.source, pair.target)]


@pytest.mark.parametrize("estimator", ["ipw", "self-normalised"])
@pytest.mark.parametrize("method", ["sees-em", SEESc(), SEESd(1, soft=True), "none"])
def test_a_method_gives_what_the_front_door_gives(method, estimator):
    pair, net = drawn_world(2, 400, 300, features=3, classes=3), network(3)
    here, there = (score.double() for score in scores_of(net, pair))
    loss = TargetLoss(method, logits=True, estimator=estimator)
    value = loss(here, pair.labels, pair.source, there, pair.target)
    report = estimate_shift(
        pair.source,
        pair.labels,
        pair.target,
        source_proba=here.detach().softmax(dim=1),
        target_proba=there.detach().softmax(dim=1),
        method=method,
        metric="log_loss",
        estimator=estimator,
        confidence=None,
    )
    assert float(value.detach()) == pytest.approx(report.target_value, abs=1e-12)
    fixed = TargetLoss(report, logits=True, estimator=estimator)
    plain = fixed(here, pair.labels, pair.source)
    own, expected = (
        torch.autograd.grad(v, net[0].weight, retain_graph=True)[0] for v in (value, plain)
    )
    torch.testing.assert_close(own, expected)


@pytest.mark.parametrize("method", [SEESc(), SEESem(features=("x0",)), SEESd(1, soft=True)])
def test_weights_that_are_not_detached_carry_their_gradient(method):
    pair = drawn_world(2, 48, 40, features=3)
    rows = [torch.tensor(t.to_numpy()).double() for t in (pair.source, pair.target)]
    weight = network(3, 2)[0].weight.detach()[:2].double().requires_grad_()

    def value(weight, detach):
        here, there = (row @ weight.T for row in rows)
        loss = TargetLoss(method, logits=True, detach_weights=detach)
        return loss(here, pair.labels, pair.source, there, pair.target)

    assert torch.autograd.gradcheck(
        lambda w: value(w, False), weight, eps=1e-5, atol=1e-5, fast_mode=True
    )
    whole, direct = (torch.autograd.grad(value(weight, d), weight)[0] for d in (False, True))
    assert float((whole - direct).abs().max()) > 1e-4


def test_a_report_with_a_graph_hands_it_on_once():
    pair = drawn_world(2, 48, 40, features=3)
    proba = torch.tensor(pair.source_proba, requires_grad=True)
    inputs = pair.inputs() | {"source_proba": proba}
    report = estimate_shift(**inputs, method=SEESc(), replicates=0)
    kept = TargetLoss(report)
    assert not any(buffer.requires_grad for buffer in kept.buffers())
    copy.deepcopy(kept)
    fixed = torch.tensor(pair.source_proba)
    value = TargetLoss(report, detach_weights=False)(fixed, pair.labels, pair.source)
    value.backward()
    assert float(proba.grad.abs().sum()) > 0
    model = CorrectedClassifier(lambda table: fixed, report)
    assert not model(pair.source).requires_grad


def test_a_method_trains_a_network_with_a_schema_of_its_own():
    pair, net = drawn_world(4, 600, 600, features=3), network(3, 2)
    loss = TargetLoss(
        "mlls", logits=True, schema=Schema.learn(pair.source), classes=pair.classes, calibrate=False
    )
    optimiser = torch.optim.Adam(net.parameters(), lr=0.05)
    values = []
    for _ in range(10):
        optimiser.zero_grad()
        here, there = scores_of(net, pair)
        value = loss(here, pair.labels, pair.source, there, pair.target)
        value.backward()
        optimiser.step()
        values.append(float(value.detach()))
    assert values[-1] < values[0]
    assert "mlls" in repr(loss)


def test_refusals_of_a_loss_with_a_method():
    proba = torch.full((3, 2), 0.5)
    loss = TargetLoss("mlls")
    with pytest.raises(SeesError, match="mlls is fitted to every batch"):
        loss(proba, LABELS[:3], ROWS[:3])
    with pytest.raises(SeesError, match="need no target rows"):
        TargetLoss(REPORT)(proba, LABELS[:3], ROWS[:3], proba, ROWS[:3])
    with pytest.raises(SeesError, match="no weights to keep"):
        loss.update(REPORT)
    with pytest.raises(SeesError, match="unknown method"):
        TargetLoss("magic")
    rows = TargetLoss(REPORT).encode(PAIR.source)
    with pytest.raises(SeesError, match="coded rows belong to a report"):
        loss(torch.full((2000, 3), 1 / 3), LABELS, rows, proba, ROWS[:3])
