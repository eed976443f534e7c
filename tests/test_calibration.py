"""Calibration: better on held-out labels, harmless when not needed, blind to order and merging."""

import numpy as np
import pytest
import torch

from sees_torch import Source, Target
from sees_torch.calibration import MANY, Calibration, _Folds, _minimum, fold_shares


def calibrate(source, target):
    found = Calibration.fit(source)
    return found.source(source), found.target(target)


def softmax(scores: np.ndarray) -> np.ndarray:
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def draw(rng: np.random.Generator, rows: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """True probabilities, and labels drawn from them."""
    truth = softmax(1.5 * rng.normal(size=(rows, classes)))
    labels = (rng.random((rows, 1)) > truth.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return truth, labels


def distort(truth: np.ndarray, temperature: float, offset: float = 0.0) -> np.ndarray:
    scores = np.log(truth) * temperature
    scores[:, 0] += offset
    return softmax(scores)


def samples(
    proba, labels, target_proba=None, *, classes=None, weight=None
) -> tuple[Source, Target]:
    classes = classes or list(range(proba.shape[1]))
    target_proba = proba if target_proba is None else target_proba
    source = Source(np.zeros((len(proba), 1)), labels, proba, classes=classes, weight=weight)
    return source, Target(np.zeros((len(target_proba), 1)), target_proba, source)


def losses(posterior: torch.Tensor, labels: np.ndarray) -> np.ndarray:
    return -np.log(posterior.numpy()[np.arange(len(labels)), labels])


@pytest.mark.parametrize("classes", [2, 4, MANY + 2])
@pytest.mark.parametrize("temperature", [0.4, 2.5])
def test_a_miscalibrated_model_becomes_calibrated(classes, temperature):
    """Held-out log loss falls by many standard errors, to within four of the truth's."""
    rng = np.random.default_rng(classes)
    truth, labels = draw(rng, 3000, classes)
    fresh, fresh_labels = draw(rng, 3000, classes)
    # One common temperature cannot undo an offset.
    offset = 0.0 if classes > MANY else 1.0
    raw, raw_fresh = (distort(p, temperature, offset) for p in (truth, fresh))
    source, target = calibrate(*samples(raw, labels, raw_fresh))
    for sample, before, best, seen in (
        (target, raw_fresh, fresh, fresh_labels),
        (source, raw, truth, labels),
    ):
        after = losses(sample.posterior, seen)
        gain = losses(torch.tensor(before), seen) - after
        assert gain.mean() > 5 * gain.std() / len(seen) ** 0.5
        regret = after - losses(torch.tensor(best), seen)
        assert regret.mean() < 4 * regret.std() / len(seen) ** 0.5 + 1e-3
        assert torch.equal(sample.proba, torch.tensor(before) / torch.tensor(before).sum(1, True))


@pytest.mark.parametrize("classes", [2, 5, MANY + 1])
def test_a_calibrated_model_stays_nearly_unchanged(classes):
    rng = np.random.default_rng(0)
    truth, labels = draw(rng, 4000, classes)
    fresh, _ = draw(rng, 2000, classes)
    _, target = calibrate(*samples(truth, labels, fresh))
    change = (target.posterior.numpy() - fresh) ** 2
    # Squared error of a maximum-likelihood fit: parameters / n times p(1 - p), twofold for luck.
    parameters = 1 if classes > MANY else 2 * classes
    assert change.sum() / len(fresh) < 2 * parameters / 4000 * (fresh * (1 - fresh)).sum(1).mean()


def test_rows_are_calibrated_by_models_that_have_not_seen_them():
    """With coin-flip labels an in-sample fit would gain log loss; a cross-fitted one must not."""
    rng = np.random.default_rng(1)
    gains = []
    for _ in range(30):
        truth, labels = draw(rng, 100, 3)
        source, _ = calibrate(*samples(truth, labels))
        gains.append(
            (losses(torch.tensor(truth), labels) - losses(source.posterior, labels)).mean()
        )
    assert np.mean(gains) < 2 * np.std(gains) / 30**0.5


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(2)
    truth, labels = draw(rng, 400, 3)
    fresh = distort(draw(rng, 100, 3)[0], 2.0, 0.7)
    return distort(truth, 2.0, 0.7), labels, fresh


@pytest.fixture(scope="module")
def rounded(case):
    """Probabilities in tenths: many rows agree, or agree up to the order of classes."""
    raw = np.round(case[0], 1) + 1e-3
    return raw / raw.sum(axis=1, keepdims=True), *case[1:]


def posteriors(*given, **options) -> tuple[np.ndarray, np.ndarray]:
    return tuple(sample.posterior.numpy() for sample in calibrate(*samples(*given, **options)))


@pytest.mark.parametrize(
    "name",
    [
        "case",
        pytest.param(
            "rounded",
        ),
    ],
)
def test_row_order_changes_nothing(name, request):
    proba, labels, fresh = request.getfixturevalue(name)
    own, other = posteriors(proba, labels, fresh)
    shuffle = np.random.default_rng(3).permutation(len(proba))
    turned = np.random.default_rng(4).permutation(len(fresh))
    again, once_more = posteriors(proba[shuffle], labels[shuffle], fresh[turned])
    np.testing.assert_allclose(again, own[shuffle], rtol=0, atol=1e-10)
    np.testing.assert_allclose(once_more, other[turned], rtol=0, atol=1e-10)


def test_multiplicities_equal_repeated_rows(case):
    proba, labels, fresh = case
    times = np.random.default_rng(5).integers(0, 4, len(proba))
    merged, other = posteriors(*case, weight=times)
    repeated, again = posteriors(proba.repeat(times, 0), labels.repeat(times), fresh)
    np.testing.assert_allclose(merged.repeat(times, 0), repeated, rtol=0, atol=1e-10)
    np.testing.assert_allclose(other, again, rtol=0, atol=1e-10)


def test_equal_rows_get_equal_posteriors(rounded):
    proba, labels, _ = rounded
    own, _ = posteriors(*rounded)
    keys = np.c_[proba, labels]
    for key in np.unique(keys, axis=0):
        rows = (keys == key).all(axis=1)
        assert np.ptp(own[rows], axis=0).max() == 0.0


@pytest.mark.parametrize(
    ("classes", "digits"),
    [
        (3, 15),
        (MANY + 2, 15),
        (3, 1),
    ],
)
def test_class_order_changes_nothing(classes, digits):
    rng = np.random.default_rng(6)
    truth, labels = draw(rng, 500, classes)
    fresh = distort(draw(rng, 50, classes)[0], 2.0, 0.5)
    proba = np.round(distort(truth, 2.0, 0.5), digits) + 1e-3
    proba /= proba.sum(axis=1, keepdims=True)
    own, other = posteriors(proba, labels, fresh)
    order = rng.permutation(classes)
    again = posteriors(proba[:, order], labels, fresh[:, order], classes=order.tolist())
    np.testing.assert_allclose(again[0], own[:, order], rtol=0, atol=1e-9)
    np.testing.assert_allclose(again[1], other[:, order], rtol=0, atol=1e-9)


@pytest.mark.parametrize("classes", [MANY, MANY + 1])
def test_many_classes_share_one_temperature(classes):
    """Below fifty rows all folds agree, so log-odds are one number times the model's log-odds."""
    rng = np.random.default_rng(7)
    truth, labels = draw(rng, 49, classes)
    proba = distort(truth, 1.7, 1.0)
    own, _ = posteriors(proba, labels)
    ratio = np.diff(np.log(own), axis=1) / np.diff(np.log(proba), axis=1)
    if classes > MANY:
        assert np.ptp(ratio) < 1e-8
        assert 0.3 < ratio.mean() < 0.9
    else:
        assert np.ptp(ratio) > 0.01


def test_more_evidence_moves_further():
    """Parameters are pulled to the identity, so the same rows forty times over weigh more."""
    rng = np.random.default_rng(8)
    proba, labels = draw(rng, 6, 2)[0], np.arange(6) % 2
    once, often = (posteriors(proba, labels, weight=np.full(6, w))[0] for w in (1.0, 40.0))
    assert np.abs(once - proba).max() < np.abs(often - proba).max()
    nearly_none, _ = posteriors(proba, labels, weight=np.full(6, 1e-6))
    np.testing.assert_allclose(nearly_none, proba, atol=1e-5)


def test_few_rows_barely_move():
    """Five rows of a calibrated model must change it less than fifty do, on average."""

    def change(rows: int) -> float:
        rng = np.random.default_rng(rows)
        moves = []
        for _ in range(40):
            proba, labels = draw(rng, rows, 2)
            if len(set(labels)) == 2:
                moves.append(np.abs(posteriors(proba, labels)[0] - proba).mean())
        return float(np.mean(moves))

    assert change(5) < min(0.05, change(49))


@pytest.mark.parametrize("rows", [40, 400])
@pytest.mark.parametrize("classes", [2, MANY + 2])
@pytest.mark.parametrize("mistakes", [0.0, 0.2])
def test_probabilities_of_zero_and_one_stay_finite(rows, classes, mistakes):
    rng = np.random.default_rng(9)
    labels = np.arange(rows) % classes
    says = np.where(rng.random(rows) < mistakes, (labels + 1) % classes, labels)
    source, target = calibrate(*samples(np.eye(classes)[says], labels))
    for sample in (source, target):
        assert sample.posterior.isfinite().all()
        torch.testing.assert_close(sample.posterior.sum(1), torch.ones(rows).double())
    if mistakes and rows > 100:
        # The model is sure but wrong in a fifth of the rows: calibrated, it must say so.
        sure = target.posterior.numpy()[np.arange(rows), says].mean()
        right = (says == labels).mean()
        assert abs(sure - right) < 4 * (right * (1 - right) / rows) ** 0.5


@pytest.mark.parametrize("classes", [2, 3, MANY + 2])
def test_a_model_that_is_always_certain_gets_its_rates(classes):
    """A full-grown tree says 0 or 1: a row's calibrated probability is how often that is right."""
    rng = np.random.default_rng(6)
    said = rng.integers(0, classes, 6000)
    right = rng.random(6000) < 0.74
    labels = np.where(right, said, (said + rng.integers(1, classes, 6000)) % classes)
    source, target = samples(np.eye(classes)[said], labels)
    for sample in calibrate(source, target):
        own = sample.posterior.numpy()[np.arange(6000), said]
        if classes <= MANY:
            rates = [(labels == said)[said == c].mean() for c in range(classes)]
            np.testing.assert_allclose(own, np.array(rates)[said], atol=0.01)
        else:
            np.testing.assert_allclose(own, right.mean(), atol=0.01)


@pytest.mark.parametrize("wrong", [0.01, 0.1])
def test_a_few_rows_that_are_certain_and_wrong_are_no_obstacle(wrong):
    """The fit is where its slope ends, on these rows and on the others."""
    rng = np.random.default_rng(7)
    truth, labels = draw(rng, 4000, 2)
    proba = truth.copy()
    certain = rng.random(4000) < wrong
    proba[certain] = np.eye(2)[1 - labels[certain]]
    source, _ = samples(proba, labels)
    folds = _Folds.of(source, fold_shares(source), tied=False)
    step = _minimum(folds)
    slope = folds.slope(step, folds.fitted(step))
    assert float(slope.abs().max()) < 1e-6
    assert bool((folds.loss(step) < folds.loss(torch.zeros_like(step))).all())


def test_a_class_that_never_occurs_keeps_little_mass():
    rng = np.random.default_rng(10)
    truth, labels = draw(rng, 500, 2)
    proba = np.c_[truth * 0.9, np.full(500, 0.1)]
    own, _ = posteriors(proba, labels, classes=[0, 1, 2])
    assert np.isfinite(own).all()
    assert own[:, 2].mean() < 0.02


def test_folds_are_balanced_and_complete(case):
    proba, labels, _ = case
    weight = np.random.default_rng(11).integers(0, 3, len(labels))
    source, _ = samples(proba, labels, weight=weight)
    share = fold_shares(source)
    held = (share * source.count[:, None]).sum(dim=0)
    assert (held.max() - held.min()) <= 1 + 1e-9
    torch.testing.assert_close(held.sum(), source.total)
    assert (share >= 0).all()


def test_huge_multiplicities_are_no_obstacle():
    rng = np.random.default_rng(2)
    truth, labels = draw(rng, 400, 2)
    proba = distort(truth, 2.0, 0.7)
    small, large = (posteriors(proba, labels, weight=np.full(400, w))[0] for w in (1e6, 1e16))
    np.testing.assert_allclose(large, small, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 4, MANY + 2])
def test_influence_is_what_fitting_to_a_little_more_of_a_row_does(classes):
    rng = np.random.default_rng(classes)
    truth, labels = draw(rng, 300, classes)
    source, _ = samples(distort(truth, 2.0, 0.5), labels)
    tied = classes > MANY
    share = fold_shares(source)

    def models(count):
        found = _Folds.of(source.select(torch.arange(300), count), share, tied)
        return found.models(_minimum(found))

    fitted = Calibration(models(source.count), share)
    slope = torch.tensor(rng.normal(size=fitted.models.shape))
    found = fitted.influence(source, [slope])
    for row in (0, 7, 120):
        more = torch.zeros_like(source.count)
        more[row] = 1e-4
        change = models(source.count + more) - models(source.count - more)
        by_hand = float((change * slope).sum()) / 2e-4
        assert float(found[row]) == pytest.approx(by_hand, rel=1e-5, abs=1e-8)
