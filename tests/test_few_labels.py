"""A few labelled target rows: how they are read, what they correct, which to ask for."""

import numpy as np
import pandas as pd
import pytest
import torch
from worlds import drawn_world, exact_world, samples

from experiments.verdict import library, twin_labels
from sees_torch import (
    KnownWeights,
    SchemaError,
    SEESem,
    SeesError,
    ShapeError,
    Source,
    Target,
    estimate_shift,
)
from sees_torch.contributions import mean_variance
from sees_torch.efficient import efficient_values, label_values, variance
from sees_torch.few_labels import LabelledError, LabelMix, suspicion
from sees_torch.gap import gap_parts, row_values, target_posterior
from sees_torch.labelling import FEWEST, STRATA, Labelling, cut, strata
from sees_torch.suggestions import Story, label_rates, suggest, telling
from sees_torch.weight_cells import cells_of
from sees_torch.weights import ConstantWeights

PAIR = drawn_world(0, 800, 700, features=4)
KNOWN = SEESem(features=("x0",), shrinkage=10.0)


def go(pair=PAIR, **options):
    return estimate_shift(**{**pair.inputs(), "method": KNOWN, "replicates": 0, **options})


def some(labels, known, missing=None):
    """Labels as objects, those that are not known missing."""
    return np.where(known, np.asarray(labels, dtype=object), missing)


def realised(pair):
    return float((pair.target_proba.argmax(axis=1) == pair.target_labels).mean())


@pytest.fixture(scope="module")
def plain():
    return go()


@pytest.fixture(scope="module")
def known():
    """Every tenth row."""
    return np.arange(700) % 10 == 0


@pytest.fixture(scope="module")
def told(known):
    return go(target_labels=some(PAIR.target_labels, known))


FORMS = {
    "list": lambda y, known: some(y, known).tolist(),
    "nan": lambda y, known: np.where(known, y.astype(float), np.nan),
    "nan in objects": lambda y, known: some(y, known, np.nan),
    "NA in objects": lambda y, known: some(y, known, pd.NA),
    "NA in a list": lambda y, known: some(y, known, pd.NA).tolist(),
    "series": lambda y, known: pd.Series(np.where(known, y.astype(float), np.nan)),
    "Int64": lambda y, known: pd.Series(y, dtype="Int64").where(known),
    "category": lambda y, known: pd.Series(pd.Categorical(y)).where(known),
    "index": lambda y, known: pd.Series(some(y, known), index=np.arange(len(y))[::-1]),
    "column": lambda y, known: np.where(known, y.astype(float), np.nan)[:, None],
    "tensor": lambda y, known: torch.tensor(np.where(known, y.astype(float), np.nan)),
    "bools": lambda y, known: some(y.astype(bool), known),
}


class TestReading:
    @pytest.mark.parametrize("form", FORMS)
    def test_every_form_of_missing_entries(self, told, known, form):
        report = go(target_labels=FORMS[form](PAIR.target_labels, known))
        assert report.gap == told.gap
        assert torch.equal(report.target.labels, told.target.labels)
        assert int((report.target.labels >= 0).sum()) == 70

    @pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT])
    def test_text_labels(self, told, known, missing):
        names = np.array(["no", "yes"])
        report = go(
            labels=names[PAIR.labels],
            classes=["no", "yes"],
            target_labels=some(names[PAIR.target_labels], known, missing),
        )
        assert report.gap == pytest.approx(told.gap, abs=1e-12)

    def test_no_label_at_all_is_no_labels(self, plain):
        for nothing in ([None] * 700, np.full(700, np.nan), pd.Series([pd.NA] * 700)):
            report = go(target_labels=nothing)
            assert report.gap == plain.gap
            assert report.standard_errors == plain.standard_errors

    @pytest.mark.parametrize("rows", [699, 701, 0])
    def test_wrong_length(self, rows):
        message = f"target_labels has {rows} entries, target has 700 rows"
        with pytest.raises(ShapeError, match=message):
            go(target_labels=[None] * rows)

    @pytest.mark.parametrize("stranger", [2, -1, 0.5, "yes"])
    def test_unknown_classes(self, stranger):
        labels = [None] * 699 + [stranger]
        message = rf"target_labels holds {stranger!r}, not among the classes \[0, 1\]"
        with pytest.raises(SchemaError, match=message):
            go(target_labels=labels)

    def test_one_hot_labels(self):
        with pytest.raises(ShapeError, match="target_labels must be one class per row"):
            go(target_labels=np.eye(2)[PAIR.target_labels])

    @pytest.mark.parametrize("method", ["sees-c", "sees-d", "bbse", "mlls", "kliep", "none"])
    def test_methods_that_cannot_use_them(self, method):
        with pytest.raises(SeesError, match=f"{method} cannot use target_labels: take .*'auto'"):
            go(method=method, target_labels=PAIR.target_labels)

    @pytest.mark.parametrize("method", ["auto", "sees-em", KNOWN], ids=["auto", "sees-em", "known"])
    def test_methods_that_can(self, known, method):
        pair = drawn_world(0, 300, 300, features=4)
        labels = some(pair.target_labels, known[:300])
        assert np.isfinite(go(pair, method=method, target_labels=labels).gap)


class TestCorrection:
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_all_labels_known_leave_little_to_estimate(self, seed):
        """Sampling noise of the target is all that separates the value from the realised one."""
        pair = drawn_world(seed, 1000, 1000, features=5)
        report = go(pair, target_labels=pair.target_labels)
        truth = realised(pair)
        noise = (truth * (1 - truth) / 1000) ** 0.5
        assert abs(report.target_value - truth) < 3 * noise

    def test_all_labels_known_overrule_the_wrong_features(self):
        """Two features moved, a third is named: labels say so, and there are enough of them."""
        pair = drawn_world(0, 1000, 1000, features=5, quality=0.2, shifted=2, strength=2.0)
        wrong = SEESem(features=("x4",))
        truth = realised(pair)
        noise = (truth * (1 - truth) / 1000) ** 0.5
        assert abs(go(pair, method=wrong).target_value - truth) > 5 * noise
        told = go(pair, method=wrong, target_labels=pair.target_labels)
        assert abs(told.target_value - truth) < 3 * noise

    def test_labels_lower_the_error(self, plain, told):
        everything = go(target_labels=PAIR.target_labels)
        assert everything.standard_errors[0] < told.standard_errors[0] < plain.standard_errors[0]

    def test_the_interval_is_resampled_with_them(self, known):
        labels = some(PAIR.target_labels, known)
        report = go(target_labels=labels, replicates=100)
        assert report.interval_source == "bootstrap"
        assert report.interval[0] <= report.gap <= report.interval[1]
        assert report.standard_errors[0] == pytest.approx(report.analytic_errors[0], rel=0.5)

    def test_fewer_than_ten_do_not_correct_the_gap(self):
        """They only enter the likelihood of the shares."""
        few = some(PAIR.target_labels, np.arange(700) < FEWEST - 1)
        report = go(target_labels=few)
        source, target = report.source, report.target
        cells = cells_of(report.weight_function, source, target)
        found = efficient_values(source, target, cells, row_values(source, target, "accuracy"))
        assert report.gap == pytest.approx(float(found.gap[0]), abs=1e-12)
        enough = go(target_labels=some(PAIR.target_labels, np.arange(700) < 60))
        assert not few_told(report)
        assert few_told(enough)

    def test_labels_count_as_often_as_their_rows(self, known):
        count = np.random.default_rng(0).integers(1, 4, 700)
        rows = np.repeat(np.arange(700), count)
        labels = some(PAIR.target_labels, known)
        fixed = SEESem(features=("x0",), shrinkage=5.0)
        counted = go(method=fixed, target_labels=labels, target_weight=count.astype(float))
        copied = go(
            method=fixed,
            target=PAIR.target.iloc[rows],
            target_proba=PAIR.target_proba[rows],
            target_labels=labels[rows],
        )
        assert counted.gap == pytest.approx(copied.gap, abs=1e-6)
        assert counted.standard_errors[0] == pytest.approx(copied.standard_errors[0], rel=1e-4)


def mix_of(source, target, found, values, posterior):
    labelled = LabelledError.of(target, posterior, values, Labelling.of(source, target))
    value = found.target_value[0]
    own = mean_variance(found.source_part[0] - values.own, source.count)
    stated = float(own + mean_variance(found.target_part[0], target.count)) ** 0.5
    return LabelMix.of(source, target, value, stated, found, values, labelled)


def few_told(report) -> bool:
    """Whether labels enter the efficient gap."""
    source, target = report.source, report.target
    cells = cells_of(report.weight_function, source, target)
    found = efficient_values(source, target, cells, row_values(source, target, "accuracy"))
    return bool(found.told_part.any())


class TestMixing:
    def parts(self, known):
        source, _ = samples(PAIR)
        target = Target(
            PAIR.target, PAIR.target_proba, source, labels=some(PAIR.target_labels, known)
        )
        match = KNOWN.match(source, target)
        values = row_values(source, target, "log_loss")
        table = match.weight_function.table(target.rows)
        return source, target, match, values, target_posterior(table, target.posterior)

    def test_strata_are_equal_parts_by_uncertainty(self, known):
        source, target, *_ = self.parts(known)
        here, stratum = strata(source, target)
        p = target.posterior.numpy()
        by_hand = 1 - (p**2).sum(axis=1)
        assert set(stratum.tolist()) <= set(range(STRATA))
        order = np.argsort(by_hand, kind="stable")
        assert (np.diff(stratum.numpy()[order]) >= 0).all()
        for equal in np.unique(p[:, 0]):
            alike = source.posterior.numpy()[:, 0] == equal
            found = {*stratum[p[:, 0] == equal].tolist(), *here[alike].tolist()}
            assert len(found) == 1

    def test_the_last_bits_of_equal_rows_decide_nothing(self):
        """Few distinct rows: the labelled copies of each must be in the stratum of the others."""
        pair = drawn_world(32, 4000, 4000, features=3, quality=0.6)
        taken = np.random.default_rng(32).choice(4000, 150, replace=False)
        known = np.full(4000, np.nan)
        known[taken] = pair.target_labels[taken]
        report = estimate_shift(
            **pair.inputs(), method=SEESem(features=pair.features), target_labels=known
        )
        place = cut(report.target.asked, report.target.asked, report.target)
        of_row = pd.DataFrame({"stratum": place.numpy()}).groupby(
            [*pair.target.to_numpy().T, *pair.target_proba.T]
        )
        assert (of_row["stratum"].nunique() == 1).all()
        assert abs(report.gap - pair.population_gap) < 0.03

    def test_the_labelled_value_is_a_stratified_mean(self, known):
        source, target, _, values, posterior = self.parts(known)
        error = LabelledError.of(target, posterior, values, Labelling.of(source, target))
        rng = np.random.default_rng(0)
        counts = rng.poisson(1.0, (3, 700)).astype(float)
        stratum = strata(source, target)[1].numpy()
        expected = (posterior * values.target).sum(dim=1).numpy()
        own = values.target.numpy()[np.arange(700), PAIR.target_labels]
        for b, count in enumerate(counts):
            by_hand = np.average(expected, weights=count)
            labelled = known * count
            pooled = np.average(own - expected, weights=labelled)
            for g in range(STRATA):
                here = (stratum == g) * labelled
                mean = np.average(own - expected, weights=here) if here.sum() else pooled
                by_hand += count[stratum == g].sum() / count.sum() * mean
            assert float(error.value(torch.tensor(counts))[b]) == pytest.approx(by_hand, abs=1e-9)

    def test_the_mix_is_never_worse_than_no_labels(self, known):
        for rows in (known, np.ones(700, dtype=bool), np.arange(700) < 12):
            source, target, match, values, posterior = self.parts(rows)
            found = gap_parts(source, target, match.weight_function, values, "dr")
            mix = mix_of(source, target, found, values, posterior)
            alone = mean_variance(found.target_part[0], target.count)
            alone = alone + mean_variance(found.source_part[0] - values.own, source.count)
            assert mix.variance <= float(alone) + 1e-15
            assert 0 <= mix.share <= 1

    @pytest.mark.parametrize("k", [12, 100])
    def test_the_labelled_value_varies_as_it_states(self, k):
        """200 targets, k labels at random in each; few labels per stratum must not look exact."""
        rng = np.random.default_rng(2)
        squares, stated = [], []
        for _ in range(200):
            source, target, values, labels = uneven(rng)
            label(target, torch.tensor(rng.permutation(1000)[:k]), labels)
            error = stratified(source, target, values)
            truth = float(values.target.gather(1, labels[:, None]).mean())
            squares.append((float(error.value(target.count[None])[0]) - truth) ** 2)
            stated.append(float(error.variance(target.count)))
        # Of the target's own rows a share of k / 1000 is known; 3 standard errors of 10 %.
        ratio = np.mean(squares) / (1 - k / 1000) / np.mean(stated)
        assert 0.7 < ratio < 1.3

    def test_the_mix_is_linear_in_its_parts(self, known):
        source, target, match, values, posterior = self.parts(known)
        found = gap_parts(source, target, match.weight_function, values, "dr")
        mix = mix_of(source, target, found, values, posterior)
        count = target.count[None]
        labelled = float(mix.error.value(count)[0])
        both = float(mix.mixed(found.target_value, count)[0])
        by_hand = (1 - mix.share) * float(found.target_value[0]) + mix.share * labelled
        assert both == pytest.approx(by_hand, abs=1e-12)


def rates(report):
    given = report.source, report.target, report.match, report.alternatives
    return label_rates(*given, "accuracy")[1]


class TestSuggestions:
    def test_are_distinct_and_unlabelled(self, told, known):
        for k in (1, 5, 100, 630):
            rows = told.suggest_labels(k)
            assert rows.shape == (k,)
            assert len(set(rows.tolist())) == k
            assert not known[rows].any()
            assert rows.min() >= 0
            assert rows.max() < 700

    def test_more_extend_fewer(self, plain):
        assert plain.suggest_labels(40).tolist() == plain.suggest_labels(90)[:40].tolist()

    def test_end_when_every_row_is_labelled(self, told):
        assert sorted(told.suggest_labels(700)) == sorted(np.flatnonzero(np.arange(700) % 10))

    def test_fall_into_the_strata_that_they_were_suggested_from(self, plain):
        """At random in each: else the rows of a stratum would not stand for each other."""
        rate = rates(plain)
        expected = cut(rate, rate, plain.target)
        known = np.isin(np.arange(700), plain.suggest_labels(100))
        report = go(target_labels=some(PAIR.target_labels, known))
        found = cut(report.target.asked, report.target.asked, report.target)
        assert found.tolist() == expected.tolist()
        assert report.target.asked.mean().item() == pytest.approx(1)

    def test_further_ones_count_those_that_are_known(self, plain):
        """Two rounds of 50 ask about as often in every stratum as one of 100."""
        first = np.isin(np.arange(700), plain.suggest_labels(50))
        second = go(target_labels=some(PAIR.target_labels, first)).suggest_labels(50)
        stratum = cut(rates(plain), rates(plain), plain.target).numpy()
        both = np.bincount(stratum[np.r_[np.flatnonzero(first), second]], minlength=STRATA)
        once = np.bincount(stratum[plain.suggest_labels(100)], minlength=STRATA)
        assert np.abs(both - once).max() <= 5

    def test_rows_that_count_nothing_are_left_out(self):
        weight = np.where(np.arange(700) < 350, 2.0, 0.0)
        assert go(target_weight=weight).suggest_labels(100).max() < 350

    def test_follow_their_rows(self):
        """Any order of the target's rows asks for the same contents."""
        order = np.random.default_rng(0).permutation(700)
        moved = go(target=PAIR.target.iloc[order], target_proba=PAIR.target_proba[order])
        asked = [
            frame.to_numpy()[report.suggest_labels(60)].tolist()
            for frame, report in ((PAIR.target, go()), (PAIR.target.iloc[order], moved))
        ]
        assert sorted(asked[0]) == sorted(asked[1])

    @pytest.mark.parametrize("k", [0, -3, 701, 2.5, "many"])
    def test_refusals(self, plain, k):
        with pytest.raises(SeesError, match="k must be"):
            plain.suggest_labels(k)

    def test_are_mostly_rows_that_the_model_is_unsure_of(self):
        source, target, values, _ = uneven(np.random.default_rng(0))
        spread = (target.posterior[:, 0] * target.posterior[:, 1]).sqrt()
        rows = suggest(target, telling(target, [unshifted(source, target, values)])[1], 60)
        assert float(spread[rows].mean()) > 1.5 * float(spread.mean())

    def test_beat_random_rows(self):
        """Mean squared error of the stratified mean, 200 targets, 60 labels each."""
        rng = np.random.default_rng(1)
        squares = []
        for _ in range(200):
            source, target, values, labels = uneven(rng)
            truth = float(values.target.gather(1, labels[:, None]).mean())
            here, there = telling(target, [unshifted(source, target, values)])
            source, target = source.asking(here), target.asking(there)
            errors = []
            for rows in (suggest(target, there, 60), torch.tensor(rng.permutation(1000)[:60])):
                label(target, rows, labels)
                error = stratified(source, target, values)
                errors.append(float(error.value(target.count[None])[0]) - truth)
            squares.append(np.square(errors))
        apart = np.subtract(*np.transpose(squares))
        # Paired: suggested minus random, clearly below zero.
        assert apart.mean() < -1.5 * apart.std() / 200**0.5


def uneven(rng):
    """A target that the model is sure of for seven rows in ten, and too sure of for the others."""
    unsure = rng.random(1000) < 0.3
    says = np.where(unsure, rng.uniform(0.5, 0.75, 1000), rng.uniform(0.985, 0.999, 1000))
    labels = (rng.random(1000) < np.where(unsure, says - 0.15, says)).astype(int)
    x = rng.normal(size=(1000, 2))
    source = Source(x, rng.integers(0, 2, 1000), says)
    target = Target(x, says, source)
    return source, target, row_values(source, target, "accuracy"), torch.tensor(labels)


def label(target, rows, labels):
    """Make these the labelled rows."""
    target.labels = torch.full_like(labels, -1)
    target.labels[rows] = labels[rows]
    target.labelled = float(len(rows))


def stratified(source, target, values):
    return LabelledError.of(target, target.posterior, values, Labelling.of(source, target))


def unshifted(source, target, values):
    """The story that nothing shifted."""
    function = ConstantWeights(source.schema, source.classes, torch.ones(2, dtype=torch.float64))
    return Story.of(source, target, function, values, 1.0)


class TestLabelsInTables:
    """Labels enter the efficient gap of weights that are a table."""

    def population(self, seed, chance, labels=True, **options):
        """An exact world of which so large a part of the target is labelled."""
        pair = exact_world(seed, **options)
        source, _ = samples(pair)
        twice = pd.concat([pair.target, pair.target], ignore_index=True)
        weight = np.r_[chance * pair.target_weight, (1 - chance) * pair.target_weight]
        known = np.r_[pair.target_labels.astype(float), np.full(len(pair.target), np.nan)]
        proba = np.r_[pair.target_proba, pair.target_proba]
        target = Target(twice, proba, source, weight=weight, labels=known)
        target.labelled = 100.0  # Multiplicities are probabilities here.
        return pair, source, target

    @pytest.mark.parametrize("chance", [0.02, 0.3, 1 - 1e-9])
    @pytest.mark.parametrize("posterior", ["right", "blunt", "flat"])
    def test_any_weights_and_any_posterior_give_the_gap(self, chance, posterior):
        """Even where features tell nothing of the label."""
        power = {"right": 1.0, "blunt": 0.4, "flat": 0.0}[posterior]
        for seed in range(3):
            pair, source, target = self.population(seed, chance, features=4, classes=3)
            source, target = (
                sample.with_posterior((power * sample.posterior.log()).softmax(dim=1))
                for sample in (source, target)
            )
            rng = np.random.default_rng(seed)
            table = {key: float(rng.lognormal()) for key in pair.weight_table}
            function = KnownWeights(table, pair.features).match(source, target).weight_function
            for metric in ("accuracy", "log_loss"):
                values = row_values(source, target, metric)
                truth = (pair.target_weight - pair.source_weight) @ values.own.numpy()
                found = efficient_values(source, target, cells_of(function, source, target), values)
                assert float(found.gap[0]) == pytest.approx(truth, abs=1e-6)
                assert float(found.unresolved.abs().max()) < 1e-6

    def test_the_mean_of_h_is_m(self):
        """Under p_t(y|x), at the true weights: a label adds what could not be known without."""
        pair, source, target = self.population(0, 0.2, features=4)
        function = KnownWeights(pair.weight_table, pair.features).match(source, target)
        cells = cells_of(function.weight_function, source, target)
        values = row_values(source, target, "accuracy")
        _, h = label_values(source, target, cells, values)
        posterior = target_posterior(function.weight_function.table(target.rows), target.posterior)
        found = efficient_values(source, target, cells, values)
        smooth = (found.target_part - found.told_part)[0]
        torch.testing.assert_close((posterior * h).sum(dim=1), smooth)
        own = h.gather(1, target.labels.clamp_min(0)[:, None]).squeeze(1)
        told = torch.where(target.labels >= 0, own - smooth, 0.0)
        torch.testing.assert_close(found.told_part[0], told)

    def test_it_varies_as_stated(self):
        """120 worlds whose features say little; a root mean square has an error of 6 %."""
        errors = []
        for seed in range(120):
            pair = drawn_world(seed, 600, 600, features=4, quality=0.7)
            known = KnownWeights(pair.weight_table, pair.features)
            taken = np.random.default_rng(seed).random(600) < 0.2
            report = go(pair, method=known, target_labels=None)
            source, target = samples(pair)
            target = Target(
                pair.target, pair.target_proba, source, labels=some(pair.target_labels, taken)
            )
            cells = cells_of(report.weight_function, source, target)
            values = row_values(source, target, "accuracy")
            missed = float(efficient_values(source, target, cells, values).gap[0])
            errors.append(
                (missed - pair.population_gap) / variance(source, target, cells, values) ** 0.5
            )
        assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(1, abs=0.2)

    def test_a_resample_of_the_sample_is_the_sample(self, known):
        source, _ = samples(PAIR)
        target = Target(
            PAIR.target, PAIR.target_proba, source, labels=some(PAIR.target_labels, known)
        )
        cells = cells_of(KNOWN.match(source, target).weight_function, source, target)
        values = row_values(source, target, "brier")
        found = efficient_values(source, target, cells, values)
        told = Labelling.of(source, target).mean(found.told_part, target.count[None])
        assert float(told[0]) == pytest.approx(float(found.told_part.mean()), abs=1e-12)

    @pytest.mark.parametrize("seed", [500, 501, 502])
    def test_labels_decide_what_features_cannot(self, seed):
        """Two labels alike given the shifted feature: without labels nobody can tell."""
        pair = twin_labels(6)(seed, 3000)
        settings = {"method": "auto", "confidence": 0.95, "replicates": 50}
        plain = estimate_shift(**pair.inputs(), **settings)
        assert plain.status == "not_identified"
        known = np.full(3000, np.nan)
        places = plain.suggest_labels(400)
        known[places] = pair.target_labels[places]
        told = estimate_shift(**pair.inputs(), **settings, target_labels=known)
        assert told.status != "not_identified"
        assert told.shifted_features == pair.features
        assert abs(told.gap - pair.population_gap) < 3 * told.standard_errors[0]


class TestSuspicion:
    def test_grows_with_what_labels_contradict(self):
        found = [suspicion(apart, 0.03**2, 1.0) for apart in (0.0, 0.03, 0.06, 0.09, 0.2)]
        assert found[0] == found[1] == 0
        assert 0 < found[2] < found[3] < found[4]
        assert found[4] < 0.2**2

    def test_certain_labels_are_believed(self):
        assert suspicion(0.1, 0.0, 1.0) == pytest.approx(0.01, rel=0.05)
        assert suspicion(0.0, 0.0, 1.0) == 0

    def test_labels_that_are_all_as_expected_do_not_look_exact(self):
        """Twelve of twelve right where seven in ten were expected: 1 % luck, not a proof."""
        rng = np.random.default_rng(3)
        x = rng.normal(size=(600, 2))
        says = np.full(600, 0.7)
        source = Source(x, (rng.random(600) < 0.7).astype(int), says)
        labels = np.full(600, np.nan)
        labels[:12] = 1
        target = Target(x, says, source, labels=labels)
        values = row_values(source, target, "accuracy")
        error = stratified(source, target, values)
        assert float(error.variance(target.count)) < 1e-9
        assert float(error.variance(target.count, floor=1.0)) == pytest.approx(0.21 / 12, rel=0.5)


class TestContradiction:
    def test_labels_that_overrule_the_features_are_said_to(self, tmp_path):
        """Three of five features shifted: what is named explains the features, not the labels."""
        pair = library(features=5, shifted=3)(508, 3000)
        plain = estimate_shift(**pair.inputs(), replicates=0)
        known = np.full(3000, np.nan)
        places = plain.suggest_labels(200)
        known[places] = pair.target_labels[places]
        report = estimate_shift(**pair.inputs(), replicates=0, target_labels=known)
        assert abs(plain.gap - pair.population_gap) > 0.06
        assert abs(report.gap - pair.population_gap) < 0.04
        assert report.interval[0] < pair.population_gap < report.interval[1]
        assert report.diagnostics["labelled_rows"] == 200
        assert report.diagnostics["told"] > 0.5
        assert report.status == "weak"
        assert any("labelled target rows contradict" in reason for reason in report.reasons)
        assert "200 of them labelled" in str(report)
        assert "of the gap is that of the labelled target rows alone" in str(report)
        report.save_html(tmp_path / "told.html")
        page = (tmp_path / "told.html").read_text()
        assert "estimated with a few target labels" in page
        assert "The label of 200 target rows was given" in page
