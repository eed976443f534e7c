"""A few labelled target rows: how they are read, what they correct, which to ask for."""

import numpy as np
import pandas as pd
import pytest
import torch
from worlds import drawn_world, samples

from sees_torch import SchemaError, SEESem, SeesError, ShapeError, Source, Target, estimate_shift
from sees_torch.efficient import cells_of, efficient_values, mean_variance
from sees_torch.few_labels import FEWEST, STRATA, LabelledError, LabelMix, strata, suggest
from sees_torch.gap import row_values, target_posterior

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
        cells = cells_of(enough.weight_function, enough.source, enough.target)
        values = row_values(enough.source, enough.target, "accuracy")
        found = efficient_values(enough.source, enough.target, cells, values)
        assert enough.gap != pytest.approx(float(found.gap[0]), abs=1e-6)

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
        _, target, _, values, _ = self.parts(known)
        stratum = strata(target, values)
        p, loss = target.posterior.numpy(), values.target.numpy()
        mean = (p * loss).sum(axis=1)
        by_hand = np.sqrt((p * (loss - mean[:, None]) ** 2).sum(axis=1))
        assert set(stratum.tolist()) <= set(range(STRATA))
        order = np.argsort(by_hand, kind="stable")
        assert (np.diff(stratum.numpy()[order]) >= 0).all()
        for equal in np.unique(p[:, 0]):
            assert len(set(stratum.numpy()[p[:, 0] == equal].tolist())) == 1

    def test_the_last_bits_of_equal_rows_decide_nothing(self):
        """Few distinct rows: the labelled copies of each must be in the stratum of the others."""
        pair = drawn_world(32, 4000, 4000, features=3, quality=0.6)
        taken = np.random.default_rng(32).choice(4000, 150, replace=False)
        known = np.full(4000, np.nan)
        known[taken] = pair.target_labels[taken]
        report = estimate_shift(
            **pair.inputs(), method=SEESem(features=pair.features), target_labels=known
        )
        place = strata(report.target, row_values(report.source, report.target, "accuracy"))
        of_row = pd.DataFrame({"stratum": place.numpy()}).groupby(
            [*pair.target.to_numpy().T, *pair.target_proba.T]
        )
        assert (of_row["stratum"].nunique() == 1).all()
        assert abs(report.gap - pair.population_gap) < 0.03

    def test_the_labelled_value_is_a_stratified_mean(self, known):
        _, target, _, values, posterior = self.parts(known)
        error = LabelledError.of(target, posterior, values)
        rng = np.random.default_rng(0)
        counts = rng.poisson(1.0, (3, 700)).astype(float)
        stratum = strata(target, values).numpy()
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
            cells = cells_of(match.weight_function, source, target)
            found = efficient_values(source, target, cells, values)
            mix = LabelMix.of(source, target, found, values, posterior)
            alone = mean_variance(found.target_part[0], target.count)
            alone = alone + mean_variance(found.source_part[0] - values.own, source.count)
            assert mix.variance <= float(alone) + mix.bias + 1e-15
            assert 0 <= mix.share <= 1

    @pytest.mark.parametrize("k", [12, 100])
    def test_the_labelled_value_varies_as_it_states(self, k):
        """200 targets, k labels at random in each; few labels per stratum must not look exact."""
        rng = np.random.default_rng(2)
        squares, stated = [], []
        for _ in range(200):
            target, values, labels = uneven(rng)
            rows = torch.tensor(rng.permutation(1000)[:k])
            target.labels[rows] = labels[rows]
            error = LabelledError.of(target, target.posterior, values)
            truth = float(values.target.gather(1, labels[:, None]).mean())
            squares.append((float(error.value(target.count[None])[0]) - truth) ** 2)
            stated.append(float(error.variance(target.count)))
        # Of the target's own rows a share of k / 1000 is known; 3 standard errors of 10 %.
        ratio = np.mean(squares) / (1 - k / 1000) / np.mean(stated)
        assert 0.7 < ratio < 1.3

    def test_the_mix_is_linear_in_its_parts(self, known):
        source, target, match, values, posterior = self.parts(known)
        cells = cells_of(match.weight_function, source, target)
        found = efficient_values(source, target, cells, values)
        mix = LabelMix.of(source, target, found, values, posterior)
        count = target.count[None]
        labelled = float(mix.error.value(count)[0])
        both = float(mix.mixed(found.target_value, count)[0])
        by_hand = (1 - mix.share) * float(found.target_value[0]) + mix.share * labelled
        assert both == pytest.approx(by_hand, abs=1e-12)


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
        target, values, _ = uneven(np.random.default_rng(0))
        spread = LabelledError.of(target, target.posterior, values).doubt.sqrt()
        rows = suggest(target, values, target.posterior, 60)
        assert float(spread[rows].mean()) > 1.5 * float(spread.mean())

    def test_beat_random_rows(self):
        """Mean squared error of the stratified mean, 200 targets, 60 labels each."""
        rng = np.random.default_rng(1)
        squares = []
        for _ in range(200):
            target, values, labels = uneven(rng)
            truth = float(values.target.gather(1, labels[:, None]).mean())
            errors = []
            for rows in (
                suggest(target, values, target.posterior, 60),
                torch.tensor(rng.permutation(1000)[:60]),
            ):
                target.labels = torch.full((1000,), -1)
                target.labels[rows] = labels[rows]
                error = LabelledError.of(target, target.posterior, values)
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
    return target, row_values(source, target, "accuracy"), torch.tensor(labels)
