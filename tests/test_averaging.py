"""The gap where the data leave several hypotheses open."""

import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
from worlds import drawn_world, exact_world

from sees_torch import MLLS, Auto, SEESem, estimate_shift
from sees_torch.alternatives import MOST_BESIDE
from sees_torch.estimates import CHOSEN_BY_CHANCE, LEAST_HEDGED, PRIOR_LABELS, _hedged
from sees_torch.gap import DRIFT, drift, estimate_gap, own_estimator, row_values, target_posterior
from sees_torch.identifiability import MOSTLY, _doubt_features, _Doubts
from sees_torch.matching.candidate import COVARIATES, FEATURES, MANY
from sees_torch.matching.candidates import HIDDEN, ODDS, UNMOVED
from sees_torch.matching.choice import LEAST_NEW
from sees_torch.matching.hypotheses import Hypotheses
from sees_torch.matching.search import CONTESTED, Search
from sees_torch.matching.selection import LEAST_GAIN, LEAST_SHARE, TEMPER
from sees_torch.report_tables import foremost
from sees_torch.uncertainty import RowErrors, analytic_error, bootstrap


def inputs(seed: int, rows: int = 400):
    return drawn_world(seed, rows, rows, features=4, strength=0.8).inputs()


@pytest.fixture(scope="module")
def contested():
    """The first of a row of small worlds whose choice is contested, and its average hedged."""
    for seed in range(40):
        report = estimate_shift(**inputs(seed), confidence=None)
        choice = report.match.choice
        if len(choice.averaged) > 1 and choice.hedge and not choice.extremes:
            return seed, report
    raise AssertionError("no small world has a contested choice")


@pytest.fixture(scope="module")
def dispersed():
    """A world whose shift no hypothesis on a few features explains."""
    pair = drawn_world(1, 3000, 3000, features=8, shifted=6, strength=1.5)
    return estimate_shift(**pair.inputs(), replicates=60)


@pytest.fixture(scope="module")
def clear():
    """A world that leaves one hypothesis."""
    return estimate_shift(**drawn_world(0, 2000, 2000).inputs(), confidence=None)


@pytest.fixture(scope="module")
def resampled(contested):
    """The contested world with an interval."""
    return estimate_shift(**inputs(contested[0]), replicates=50)


def undecided(choice):
    """The choice before the parts of its hedges are known."""
    return replace(choice, hedges=dict.fromkeys(choice.hedges, 0.0))


def separately(choice, place: int, **inputs) -> float:
    """The gap of one hypothesis, estimated as if there were no others."""
    candidate = choice.candidates[place]
    method = choice.candidate.method if place == choice.chosen else candidate.quick()
    return estimate_shift(**inputs, method=method, confidence=None).gap


def is_case(one, other) -> bool:
    """By what both say: the other allows for all that the one does, and for more."""
    if one.words == "nothing" or other.words == "nothing":
        return one.words != other.words and one.words == "nothing"
    kinds = {
        "labels only": ("labels and features", "labels and many features"),
        "labels and features": ("labels and features", "labels and many features"),
        "features, not labels": ("features, not labels", "covariates only"),
    }
    if other.words not in kinds.get(one.words, ()):
        return False
    if other.words in ("covariates only", "labels and many features"):
        return len(one.features) <= 1
    return set(one.features) < set(other.features)


def masses(choice, score: list[float], rows: float) -> list[float]:
    """Of every hypothesis beyond the best of its special cases, one after the other."""
    less = choice.dispersion + LEAST_GAIN * TEMPER * rows * max(score)
    own = [
        candidate.odds * math.exp(TEMPER * rows * value / less)
        for candidate, value in zip(choice.candidates, score, strict=True)
    ]
    found = []
    for candidate, mass in zip(choice.candidates, own, strict=True):
        cases = [m for c, m in zip(choice.candidates, own, strict=True) if is_case(c, candidate)]
        found.append(max(mass - max(cases, default=0.0), LEAST_NEW * mass))
    return found


class TestAverage:
    def test_is_the_mean_of_the_hypotheses_by_their_shares(self, contested):
        seed, report = contested
        choice = report.match.choice
        mass = masses(choice, choice.evidence.score().tolist(), 400 * 400 / 800)
        total = sum(mass[place] for place in choice.averaged)
        share = {p: (1 - choice.hedge) * mass[p] / total for p in choice.averaged}
        for place, part in choice.hedges.items():
            share[place] = share.get(place, 0.0) + part
        gaps = {place: separately(choice, place, **inputs(seed)) for place in share}
        # Hedges are fitted together, to the tolerance of a comparison.
        mean = sum(share[p] * gaps[p] for p in share)
        assert report.gap == pytest.approx(choice.belief * mean, abs=1e-5)

    def test_only_hypotheses_that_count_are_in_it(self, contested):
        choice = contested[1].match.choice
        shares = choice.shares(choice.evidence.score())
        assert float(shares.sum()) == pytest.approx(1)
        assert float(replace(choice, hedges={}).shares(choice.evidence.score()).max()) < 1
        assert float(shares[list(choice.averaged)].min()) >= (1 - choice.hedge) * LEAST_SHARE
        assert tuple(shares.nonzero().squeeze(1).tolist()) == choice.parts

    def test_the_shares_are_shown(self, contested):
        report = contested[1]
        shown = report.hypotheses()["share"]
        choice = report.match.choice
        wanted = choice.shares(choice.evidence.score())
        for alternative, share in zip(report.alternatives, shown, strict=True):
            says = choice.candidates[alternative.place].says
            same = [place for place, each in enumerate(choice.candidates) if each.says == says]
            assert share == pytest.approx(float(wanted[same].sum()))

    def test_what_is_shown_adds_up_to_the_gap(self, contested):
        """Also where it is averaged under several penalties, of which one is listed."""
        table, belief = contested[1].hypotheses(), contested[1].diagnostics["belief"]
        assert contested[1].match.choice.hedge
        assert table["share"].sum() == pytest.approx(1)
        listed = (table["share"] * table["gap"]).sum()
        assert belief * listed == pytest.approx(contested[1].gap, abs=1e-9)

    def test_the_report_says_so(self, contested):
        choice = contested[1].match.choice
        stories = {choice.candidates[place].says for place in choice.parts}
        assert f"averages {len(stories)} hypotheses" in str(contested[1])

    def test_an_estimator_asked_for_belongs_to_the_chosen_weights(self, contested):
        seed, _ = contested
        report = estimate_shift(**inputs(seed), estimator="ipw", confidence=None)
        assert "averages" not in str(report)
        right = (report.source.predictions == report.source.labels).double()
        assert report.gap == pytest.approx(float((report.weights - 1).mul(right).mean()))

    def test_the_interval_allows_for_it(self, contested):
        seed, _ = contested
        report = estimate_shift(**inputs(seed))
        alone = estimate_shift(**inputs(seed), method=report.match.choice.candidate.method)
        low, high = report.interval
        assert low <= report.gap <= high
        assert high - low > 0.5 * (alone.interval[1] - alone.interval[0])

    def test_the_analytic_error_holds_the_spread_between_hypotheses(self, contested):
        report = contested[1]
        choice = report.match.choice
        shares = choice.shares(choice.evidence.score())
        gaps = {a.place: a.gap for a in report.alternatives}
        spread = sum(
            float(shares[place]) * (gaps[place] - report.gap) ** 2
            for place in choice.parts
            if place in gaps
        )
        assert report.analytic_errors[0] ** 2 >= spread - 1e-12

    def test_other_metrics_are_averaged_too(self, contested):
        seed, report = contested
        several = estimate_shift(**inputs(seed), metric=["accuracy", "auroc"], confidence=None)
        assert several.gap == pytest.approx(report.gap, abs=1e-12)
        members = several.match.choice.parts
        own = [
            estimate_shift(
                **inputs(seed),
                method=several.match.choice.candidates[place].quick(),
                metric="auroc",
                confidence=None,
            ).gap
            for place in members
        ]
        found = float(several.gaps[1].gap)
        assert min(own) - 1e-9 <= found <= max(own) + 1e-9


class TestHedge:
    """Where the data hardly decide the weights, shifts of many features share the gap."""

    @staticmethod
    def by_hand(report, choice):
        """Parts of the hedges, and of each whether its pull is read off the distance."""
        both = report.source, report.target
        values = row_values(*both, "accuracy")
        shares = choice.shares(choice.evidence.score()).tolist()
        behind = Hypotheses(*both, report.match, Auto())

        def known(place):
            method, fitted = behind.fit(place)
            gap = estimate_gap(*both, fitted.weight_function, "accuracy", own_estimator(fitted))
            rows = RowErrors.of(*both, method, fitted, gap, values)
            error = rows.error(*both)
            if choice.candidates[place].words == "nothing":  # As uncertain as labels only.
                alone = replace(gap, estimator="eff")
                error = analytic_error(*both, *behind.uncertain(place), alone, values)
            return float(gap.gap), error, rows

        found = [(shares[place], *known(place)) for place in choice.averaged]
        mean = sum(share * gap for share, gap, *_ in found)
        square = sum(s * ((gap - mean) ** 2 + error**2) for s, gap, error, _ in found)
        mixed = RowErrors.mixed([(share, rows) for share, *_, rows in found])
        right = (report.source.predictions == report.source.labels).double()
        mean_right = (report.weights * right).sum() / report.weights.sum()
        spread = float(mean_right * (1 - mean_right))
        score, errors = choice.evidence.score(), choice.evidence.standard_errors
        best = int(score.argmax())
        worth, far = {}, []
        for place in choice.hedges:
            gap, error, rows = known(place)
            shared = rows.covariance(mixed, *both)
            pull = spread * choice.candidates[place].method.eta
            own = CHOSEN_BY_CHANCE * (square - shared)
            apart = (gap - mean) ** 2 - own
            far.append(apart > error**2 - shared + pull)
            behind_best = (score[best] - score[place]) / errors[best, place] if place != best else 0
            lag = max(float(behind_best) - 1.5, 0.0)
            expected = max(error**2 - shared + pull, apart)
            worth[place] = own / expected * math.exp(-(lag**2) / 2)
        return {place: w / (1 + sum(worth.values())) for place, w in worth.items()}, far

    @pytest.mark.parametrize("apart", [False, True])
    def test_each_goes_by_its_expected_error_beside_the_average(
        self, contested, clear, monkeypatch, apart
    ):
        """Where they are far apart, the distance says how far a penalty pulls."""
        monkeypatch.setattr("sees_torch.estimates.LEAST_HEDGED", 0.0)
        report = clear if apart else contested[1]
        both, choice = (report.source, report.target), undecided(report.match.choice)
        if apart:  # Of a clear shift, as if nothing had moved.
            assert choice.candidates[0].words == "nothing"
            choice = replace(choice, averaged=(0,)).completed()
        found = _hedged(*both, report.match, choice, Auto(), "accuracy")
        wanted, far = self.by_hand(report, choice)
        assert found.hedges == pytest.approx(wanted, rel=1e-6)
        assert found.hedge == pytest.approx(sum(wanted.values()))
        assert all(far) == apart == any(far)

    def test_those_behind_have_less(self, contested, monkeypatch):
        monkeypatch.setattr("sees_torch.estimates.LEAST_HEDGED", 0.0)
        _, report = contested
        both, choice = (report.source, report.target), undecided(report.match.choice)
        parts = []
        for errors_behind in (0.0, 1.5, 2.5, 5.0):
            score, errors = choice.evidence.score(), choice.evidence.standard_errors
            best, cost = int(score.argmax()), choice.evidence.cost.clone()
            for place in choice.hedges:
                cost[place] += score[place] - score[best] + errors_behind * errors[best, place]
            later = replace(choice, evidence=replace(choice.evidence, cost=cost))
            found = _hedged(*both, report.match, later, Auto(), "accuracy")
            assert found.hedges == pytest.approx(self.by_hand(report, later)[0], rel=1e-6)
            parts.append(found.hedge)
        assert parts[0] == pytest.approx(parts[1])  # As near as what would be chosen.
        assert parts[1] > parts[2] > parts[3]
        assert parts[3] < 0.01

    def test_a_small_part_is_left_out(self, contested, monkeypatch):
        _, report = contested
        both, choice = (report.source, report.target), undecided(report.match.choice)
        part = report.match.choice.hedge
        assert part >= LEAST_HEDGED
        monkeypatch.setattr("sees_torch.estimates.LEAST_HEDGED", part + 1e-6)
        assert _hedged(*both, report.match, choice, Auto(), "accuracy").hedges == {}

    def test_is_taken_from_all(self, contested):
        choice = contested[1].match.choice
        score = choice.evidence.score()
        plain = replace(choice, hedges={}).shares(score)
        shares = choice.shares(score.expand(3, -1))
        wanted = plain * (1 - choice.hedge)
        for place, part in choice.hedges.items():
            assert choice.candidates[place].rank == MANY
            wanted[place] += part
        torch.testing.assert_close(shares, wanted.repeat(3, 1))
        assert shares.sum(dim=1).tolist() == pytest.approx([1, 1, 1])

    def test_a_clear_answer_whose_weights_are_known_well_has_none(self, clear):
        assert clear.match.choice.hedge == 0

    def test_nothing_is_one_where_they_were_not_fitted(self, contested):
        choice = contested[1].match.choice
        few = [p for p, each in enumerate(choice.candidates) if each.rank < COVARIATES]
        without = replace(
            choice,
            candidates=tuple(choice.candidates[p] for p in few),
            evidence=replace(
                choice.evidence,
                on_source=choice.evidence.on_source[few],
                on_target=choice.evidence.on_target[few],
                cost=choice.evidence.cost[few],
            ),
            hedges={},
        )
        assert without.completed() is without
        assert replace(choice, hedges={}).completed().hedges == undecided(choice).hedges

    def test_does_not_change_whose_name_the_average_bears(self, contested):
        choice = contested[1].match.choice
        for candidate in choice.candidates:
            named = choice.share_naming(candidate.features)
            assert named == replace(choice, hedges={}).share_naming(candidate.features)

    def test_one_has_all_of_a_resample_or_none(self, contested):
        choice = contested[1].match.choice
        one, other, _ = choice.hedges
        choice = replace(choice, hedges={one: 0.3, other: 0.2})
        score = choice.evidence.score()
        luck = torch.tensor([[0.0, 0.5], [0.29, 0.5], [0.3, 0.5], [0.49, 0.5], [0.5, 0.5]])
        first, again, second, also, plain = choice.resampled_shares(score.repeat(5, 1), luck)
        assert first[one] == again[one] == second[other] == also[other] == 1
        torch.testing.assert_close(plain, replace(choice, hedges={}).shares(score))
        torch.testing.assert_close(0.3 * first + 0.2 * second + 0.5 * plain, choice.shares(score))

    def test_of_a_metric_that_is_no_mean_goes_by_accuracy(self, contested):
        seed, report = contested
        other = estimate_shift(**inputs(seed), metric="auroc", confidence=None)
        assert other.match.choice.hedge == report.match.choice.hedge


class TestUnexplained:
    """What no hypothesis on a few features explains is the mean of the simplest stories."""

    def test_has_the_part_that_the_dispersion_leaves(self, dispersed):
        choice = dispersed.match.choice
        assert choice.unexplained == pytest.approx(1 - 1 / choice.dispersion)
        assert 0.1 < choice.unexplained < 1
        plain = replace(choice, extremes=()).shares(choice.evidence.score())
        extra = choice.shares(choice.evidence.score()) - plain / choice.dispersion
        for story in choice.extremes:
            each = choice.unexplained / 3 / len(story)
            assert extra[list(story)].tolist() == pytest.approx([each] * len(story))
        assert float(extra.sum()) == pytest.approx(choice.unexplained)
        words = [{choice.candidates[p].words for p in story} for story in choice.extremes]
        assert words == [{"labels only"}, {"covariates only"}, {"labels and many features"}]
        assert choice.candidates[choice.extremes[0][0]].rank == FEATURES

    def test_moves_the_gap_and_is_listed(self, dispersed):
        """All but what is allowed for drift, which has a line of its own."""
        table, allowed = dispersed.hypotheses(), dispersed.diagnostics["drift"]
        assert table["share"].sum() == pytest.approx(1)
        listed = (table["share"] * table["gap"]).sum()
        belief = dispersed.diagnostics["belief"]
        assert belief * (listed + allowed) == pytest.approx(dispersed.gap, abs=1e-9)
        assert f"labels that drift given the features: {100 * allowed:+.1f}" in str(dispersed)

    def test_is_doubted_and_said(self, dispersed, tmp_path):
        said = f"{dispersed.match.choice.unexplained:.0%} of the gap is the mean of the simplest"
        assert any(said in reason for reason in dispersed.reasons)
        assert dispersed.status != "identified"
        dispersed.save_html(tmp_path / "page.html")
        assert "is the mean of the simplest stories" in (tmp_path / "page.html").read_text()

    def test_is_one_story_in_each_resample(self, dispersed):
        choice = dispersed.match.choice
        score = choice.evidence.score().repeat(3, 1)
        luck = torch.tensor([[0.99, 0.0], [0.99, 0.5], [0.99, 0.99]], dtype=score.dtype)
        shares = choice.resampled_shares(score, luck)
        torch.testing.assert_close(shares.mean(dim=0), choice.shares(choice.evidence.score()))
        for place, story in enumerate(choice.extremes):
            alone = shares[place] - shares.amin(dim=0)
            assert float(alone[list(story)].sum()) == pytest.approx(choice.unexplained)

    def test_of_two_resamples_one_story_at_least_has_none(self):
        pair = drawn_world(1, 3000, 3000, features=8, shifted=6, strength=1.5)
        report = estimate_shift(**pair.inputs(), replicates=2)
        assert len(report.match.choice.extremes) == 3
        assert report.interval[0] <= report.gap <= report.interval[1]

    def test_the_interval_holds_what_the_stories_differ_by(self, dispersed):
        choice = dispersed.match.choice
        behind = Hypotheses(dispersed.source, dispersed.target, dispersed.match, Auto())
        gaps = []
        for story in choice.extremes:
            fits = [behind.fit(place)[1] for place in story]
            both = dispersed.source, dispersed.target
            found = [
                float(estimate_gap(*both, f.weight_function, "accuracy", own_estimator(f)).gap)
                for f in fits
            ]
            gaps.append(sum(found) / len(found))
        spread = torch.tensor(gaps).std(correction=0)
        assert dispersed.standard_errors[0] > 0.8 * choice.unexplained * float(spread)

    def test_a_sparse_shift_leaves_nothing(self, contested):
        choice = contested[1].match.choice
        assert choice.dispersion == 1
        assert choice.unexplained == 0


class TestDrift:
    """Where nothing explains the target, labels given the features drifted as well."""

    def posterior(self, report, place: int):
        function = report.match.choice.fitted[place].weight_function
        return target_posterior(function.table(report.target.rows), report.target.posterior)

    def test_is_the_mean_over_a_random_change_of_log_odds(self, dispersed):
        """Against a simulation: log-odds of variance 0.4 added to every row's."""
        place = dispersed.match.choice.extremes[0][0]
        function = dispersed.match.choice.fitted[place].weight_function
        q = self.posterior(dispersed, place)
        right = torch.nn.functional.one_hot(dispersed.target.predictions, q.shape[1])
        generator = torch.Generator().manual_seed(0)
        changes = []
        for _ in range(200):
            noise = torch.randn(q.shape, generator=generator, dtype=q.dtype) * (DRIFT / 2) ** 0.5
            moved = (q.log() + noise).softmax(dim=1)
            changes.append(float(dispersed.target.mean(((moved - q) * right).sum(dim=1))))
        simulated = torch.tensor(changes)
        error = float(simulated.std() / len(changes) ** 0.5)
        found = float(drift(dispersed.source, dispersed.target, function, "accuracy"))
        assert found < 0
        # To second order in the change; the third and fourth are a tenth of it.
        assert found == pytest.approx(float(simulated.mean()), abs=4 * error + 0.1 * abs(found))

    def test_is_allowed_for_by_the_simplest_stories_alone(self, dispersed):
        choice, both = dispersed.match.choice, (dispersed.source, dispersed.target)
        assert sum(choice.story_shares.values()) == pytest.approx(choice.unexplained)
        wanted = sum(
            share * float(drift(*both, choice.fitted[place].weight_function, "accuracy"))
            for place, share in choice.story_shares.items()
        )
        assert dispersed.diagnostics["drift"] == pytest.approx(wanted, rel=1e-9)

    def test_of_a_metric_that_is_no_mean_moves_the_weights(self, dispersed):
        """Recall, for each class a ratio of two means over weighted rows, by hand."""
        place = dispersed.match.choice.extremes[0][0]
        function = dispersed.match.choice.fitted[place].weight_function
        source, target = dispersed.source, dispersed.target
        q = target_posterior(function.table(source.rows), source.posterior)
        own = q[torch.arange(len(q)), source.labels]
        weight = source.count * function.of_rows(source.rows, source.labels)
        moved = weight * (1 + DRIFT / 2 * (q.square().sum(dim=1) - own))
        change = 0.0
        for label in range(2):
            of_class = source.labels == label
            hit = of_class & (source.predictions == label)
            before, after = (w[hit].sum() / w[of_class].sum() for w in (weight, moved))
            change += float(after - before) / 2
        assert change != 0
        found = drift(source, target, function, "recall")
        assert float(found) == pytest.approx(change, rel=1e-9)

    def test_widens_the_interval(self, dispersed):
        pair = drawn_world(1, 3000, 3000, features=8, shifted=6, strength=1.5)
        analytic = estimate_shift(**pair.inputs(), replicates=0)
        choice = dispersed.match.choice
        shares = choice.shares(choice.evidence.score()).tolist()
        behind = Hypotheses(dispersed.source, dispersed.target, dispersed.match, Auto())
        both, mean, square = (dispersed.source, dispersed.target), 0.0, 0.0
        for place in choice.parts:
            method, fit = behind.fit(place)
            gap = estimate_gap(*both, fit.weight_function, "accuracy", own_estimator(fit))
            error = analytic_error(*both, method, fit, gap, row_values(*both, "accuracy"))
            mean += shares[place] * float(gap.gap)
            square += shares[place] * (float(gap.gap) ** 2 + error**2)
        allowed = analytic.diagnostics["drift"]
        belief = analytic.match.choice.belief
        assert analytic.gap == pytest.approx(belief * (mean + allowed), abs=1e-9)
        wanted = square - mean**2 + allowed**2
        assert analytic.analytic_errors[0] ** 2 == pytest.approx(wanted, rel=1e-6)

    def test_resamples_have_it_once_on_average(self):
        pair = drawn_world(0, 300, 300)
        report = estimate_shift(**pair.inputs(), method="mlls", confidence=None)
        both = report.source, report.target
        behind = Hypotheses(*both, report.match, MLLS())
        given = behind, [row_values(*both, "accuracy")], report.gaps, [None]
        plain, drifted = (
            bootstrap(*both, *given, replicates=2000, memory=2**40, drifts=drifts).gaps[:, 0]
            for drifts in ([0.0], [-0.05])
        )
        added = drifted - plain
        assert float(added.max()) < 0
        assert float(added.mean()) == pytest.approx(-0.05, abs=4 * 0.05 / 2000**0.5)
        assert float(added.std()) == pytest.approx(0.05, rel=0.15)

    def test_labelled_rows_take_its_place(self):
        """The more, the less is left to what is allowed for."""
        pair = drawn_world(1, 3000, 3000, features=8, shifted=6, strength=1.5)
        left = []
        for labels in (0, 300, 3000):
            known = pair.target_labels.astype(object).copy()
            known[labels:] = None
            report = estimate_shift(**pair.inputs(), target_labels=known, confidence=None)
            assert report.match.choice.extremes
            left.append(abs(report.diagnostics.get("drift", 0.0)))
        assert left[0] > left[1] > left[2]
        assert left[2] < left[0] / 2

    def test_an_explained_target_has_none(self, contested):
        assert "drift" not in contested[1].diagnostics
        assert "drift" not in str(contested[1])

    def test_slices_have_their_own(self, dispersed, monkeypatch):
        """Those of a feature add up to the whole's, by their rows."""
        found = dispersed.by("x0")
        monkeypatch.setattr("sees_torch.slices.drift", lambda *_: 0.0)
        plain = dispersed.by("x0")
        rows = found["target_rows"] / found["target_rows"].sum()
        added = rows * (found["target"] - plain["target"])
        believed = dispersed.match.choice.belief * dispersed.diagnostics["drift"]
        assert added.sum() == pytest.approx(believed, rel=1e-6)
        assert (added < 0).all()
        assert (found["high"] - found["low"] > plain["high"] - plain["low"]).all()


class TestBelief:
    """An average that is worth a few labelled rows is mostly taken for chance."""

    def test_is_that_of_a_mean_with_a_dozen_rows_more_without_change(self, contested):
        """The posterior mean of a rate's change, known from so many rows and twelve without."""
        report = contested[1]
        worth = report.diagnostics["label_equivalent"]
        assert report.match.choice.belief == pytest.approx(worth / (worth + PRIOR_LABELS))
        assert report.diagnostics["belief"] == report.match.choice.belief

    @pytest.mark.parametrize(("prior", "said"), [(0.0, False), (1e3, True)])
    def test_leaves_errors_and_intervals_and_is_said(
        self, contested, resampled, monkeypatch, tmp_path, prior, said
    ):
        seed, found = contested[0], resampled
        monkeypatch.setattr("sees_torch.estimates.PRIOR_LABELS", prior)
        other = estimate_shift(**inputs(seed), replicates=50)
        part = other.match.choice.belief / found.match.choice.belief
        assert (part < 0.5) == said
        assert other.gap == pytest.approx(part * found.gap, rel=1e-9)
        assert other.analytic_errors == found.analytic_errors
        ends = found.interval[0] if found.gap < 0 else found.interval[1]
        assert ends in other.interval
        assert other.interval[0] <= other.gap <= other.interval[1]
        other.save_html(tmp_path / "page.html")
        for text in (str(other), (tmp_path / "page.html").read_text()):
            assert ("is taken for a change" in text) == said

    def test_is_the_same_for_all_metrics(self, contested):
        seed, report = contested
        for metrics in (["accuracy", "f1"], ["f1", "accuracy"]):
            other = estimate_shift(**inputs(seed), metric=metrics, confidence=None)
            assert other.match.choice.belief == pytest.approx(report.match.choice.belief)
            assert other.gaps[metrics.index("accuracy")].gap.item() == pytest.approx(report.gap)

    def test_a_clear_answer_is_believed(self, clear):
        assert not clear.match.choice.parts
        assert clear.match.choice.belief == 1
        assert "belief" not in clear.diagnostics

    def test_an_estimator_asked_for_is_not_held_back(self, contested):
        seed, _ = contested
        report = estimate_shift(**inputs(seed), estimator="ipw", confidence=None)
        assert report.match.choice.belief == 1


class TestVerdict:
    """An average that rests on other hypotheses than the one that is named is doubted."""

    @pytest.mark.parametrize(
        "seed", [23, 30, 0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (66, 1, 2))]
    )
    def test_names_that_the_average_does_not_rest_on_are_doubted(self, seed):
        pair = drawn_world(seed, 400, 400, features=5, strength=0.6, shifted=2)
        report = estimate_shift(**pair.inputs(), confidence=None)
        choice, table = report.match.choice, report.hypotheses()
        doubted = [reason for reason in report.reasons if "name these features" in reason]
        assert bool(doubted) == (choice.share_naming(report.match.features) < MOSTLY)
        assert not doubted or report.status != "identified"
        if doubted:
            chosen = set(report.shifted_features)
            naming = [
                share
                for names, share in zip(table["features"], table["share"], strict=True)
                if chosen <= set(names)
            ]
            assert sum(naming) < MOSTLY

    def test_a_gap_that_rests_on_what_the_data_rule_out_is_not_identified(self):
        """The best hypothesis cannot tell labels apart, and nothing that can is nearly as good."""
        pair = drawn_world(0, 2000, 2000, strength=2.0)
        report = estimate_shift(**pair.inputs(), confidence=None)
        choice = report.match.choice
        nothing = next(i for i, c in enumerate(choice.candidates) if c.words == "nothing")
        assert choice.behind_silent == 0
        other = replace(choice, chosen=nothing, averaged=(), hedges={}, silent=(choice.chosen,))
        score, errors = choice.evidence.score(), choice.evidence.standard_errors
        ahead = (score[choice.chosen] - score[nothing]) / errors[choice.chosen, nothing]
        assert other.behind_silent == pytest.approx(float(ahead))
        assert replace(other, chosen=choice.chosen, silent=(nothing,)).behind_silent == 0
        # A lead that is too small a part of the score to be chosen for does not count.
        gain = score[choice.chosen] - score
        near = next(i for i in gain.argsort().tolist() if gain[i] > 1e-9)
        counts = bool(gain[near] > LEAST_GAIN * score[choice.chosen])
        assert (replace(other, chosen=near).behind_silent > 0) == counts
        assert not counts
        doubts = _Doubts()
        match = replace(report.match, choice=other, features=())
        _doubt_features(doubts, match, "accuracy", report.alternatives, report.diagnostics)
        assert any("than all that the gap rests on cannot tell labels" in r for r in doubts.broken)

    def test_what_the_average_leaves_out_is_remembered(self, monkeypatch):
        monkeypatch.setattr(Search, "_hopeless", lambda _, m: bool(m.features) and not m.estimator)
        pair = drawn_world(0, 2000, 2000, strength=2.0)
        report = estimate_shift(**pair.inputs(), confidence=None)
        choice = report.match.choice
        assert choice.silent
        assert not set(choice.silent) & set(choice.averaged)
        assert report.status == "not_identified"

    def test_some_are(self):
        pair = drawn_world(28, 400, 400, features=5, strength=0.6, shifted=2)
        said = " ".join(estimate_shift(**pair.inputs(), confidence=None).reasons)
        assert "of the averaged gap is of hypotheses that name these features" in said


class TestShown:
    def test_what_the_average_rests_on_is_listed(self, contested):
        report = contested[1]
        choice = report.match.choice
        shares = choice.shares(choice.evidence.score())
        largest = sorted(choice.parts, key=lambda place: -float(shares[place]))[:MOST_BESIDE]
        listed = {choice.candidates[found.place].says for found in report.alternatives}
        assert {choice.candidates[place].says for place in largest} <= listed
        table = report.hypotheses()
        assert not table[["hypothesis", "features"]].duplicated().any()
        assert table["score"].is_monotonic_decreasing
        text = str(report)
        assert f"the gap averages {choice.stories} hypotheses" in text
        assert "% of the average" in text

    def test_what_the_search_fitted_is_not_fitted_again(self, contested):
        report = contested[1]
        choice = report.match.choice
        assert set(choice.parts) - {choice.chosen} <= set(choice.fitted)
        behind = Hypotheses(report.source, report.target, report.match, Auto())
        for place in set(choice.fitted) - {choice.chosen}:
            assert behind.fit(place)[1] is choice.fitted[place]
            again = choice.candidates[place].quick().match(report.source, report.target)
            torch.testing.assert_close(
                behind.fit(place)[1].weight_function.of_rows(
                    report.source.rows, report.source.labels
                ),
                again.weight_function.of_rows(report.source.rows, report.source.labels),
                rtol=0,
                atol=1e-3,
            )

    def test_the_page_says_what_is_hedged(self, contested, tmp_path):
        report = contested[1]
        plain = replace(report.match.choice, hedges={})
        for choice, said in ((report.match.choice, True), (plain, False)):
            path = tmp_path / f"{said}.html"
            replace(report, match=replace(report.match, choice=choice)).save_html(path)
            assert ("is that of penalised shifts of many features" in path.read_text()) == said

    def test_penalties_of_one_hypothesis_are_no_others(self, contested):
        choice = contested[1].match.choice
        many = tuple(p for p, each in enumerate(choice.candidates) if each.rank == MANY)
        assert len(many) > 1
        plain = replace(choice, hedges={})
        assert replace(plain, averaged=many).stories == 1
        assert replace(choice, averaged=many, chosen=many[0]).stories == 0
        assert replace(plain, averaged=()).stories == 0
        assert replace(choice, averaged=()).stories == 2

    def test_the_gap_of_one_other_hypothesis_is_no_average_in_words(self, contested, tmp_path):
        report = contested[1]
        choice = report.match.choice
        other = next(place for place in choice.averaged if place != choice.chosen)
        alone = replace(
            report,
            match=replace(report.match, choice=replace(choice, averaged=(other,), hedges={})),
            alternatives=tuple(
                replace(each, share=float(each.place == other)) for each in report.alternatives
            ),
        )
        text = str(alone)
        assert "; the gap is that of another hypothesis, the likeliest that can tell it" in text
        assert text.count("behind the best, the gap above") == 1
        assert "of the average" not in text
        alone.save_html(tmp_path / "page.html")
        assert "that of another hypothesis" in (tmp_path / "page.html").read_text()


class TestForemost:
    """What the gap rests on is said first, but does not crowd out rivals."""

    found = pd.DataFrame(
        {
            "behind": [0.0, 0.3, 0.5, 0.9, 1.2, 1.4, 1.9],
            "rival": [False, True, True, True, False, False, False],
            "share": [0.1, 0.0, 0.0, 0.0, 0.2, 0.5, 0.2],
        }
    )

    def test_the_largest_shares_then_rivals(self):
        assert list(foremost(self.found, 4).index) == [5, 4, 1, 2]

    def test_the_rest_by_share_and_then_the_nearest(self):
        alone = self.found.assign(rival=False)
        assert list(foremost(alone, 5).index) == [5, 4, 6, 0, 1]
        assert list(foremost(alone.assign(share=0.0), 3).index) == [0, 1, 2]

    def test_all_if_there_are_no_more(self):
        assert sorted(foremost(self.found, 9).index) == list(self.found.index)
        assert foremost(self.found[:0], 4).empty

    def test_text_and_picture_tell_who_shares_the_gap(self, contested):
        report = contested[1]
        found = report.hypotheses()
        largest = found[~found["chosen"]].nlargest(1, "share").squeeze()
        told = f"{largest['share']:.0%}"
        assert f"{told} of the average" in str(report)
        titled = {axes.get_title(): axes for axes in report.plot().axes}
        (axes,) = (axes for title, axes in titled.items() if "share in the gap" in title)
        assert any(text.get_text().endswith(f", {told}") for text in axes.texts)


class TestOdds:
    def test_each_feature_after_the_first_costs_the_same(self, contested):
        for candidate in contested[1].match.choice.candidates:
            more = 3 if candidate.is_dense else max(len(candidate.features) - 1, 0)
            without_labels = candidate.words in ("features, not labels", "covariates only")
            if candidate.words == "nothing":
                assert candidate.odds in (HIDDEN, UNMOVED)
            else:
                assert candidate.odds == pytest.approx(ODDS ** (more + without_labels))

    @pytest.mark.parametrize("dispersion", [1.0, 4.0])
    def test_evidence_counts_less_where_no_hypothesis_explains_the_data(
        self, contested, dispersion
    ):
        choice = replace(contested[1].match.choice, dispersion=dispersion, hedges={})
        score = choice.evidence.score()
        mass = torch.tensor(masses(choice, score.tolist(), 400 * 400 / 800), dtype=torch.float64)
        members = list(choice.averaged)
        torch.testing.assert_close(
            choice.shares(score)[members], mass[members] / mass[members].sum()
        )

    def test_a_feature_that_adds_nothing_leaves_the_average_as_it_was(self, contested):
        choice = contested[1].match.choice
        score = choice.evidence.score()
        everything = replace(choice, averaged=tuple(range(len(choice.candidates))), hedges={})
        idle = [
            place
            for place, candidate in enumerate(choice.candidates)
            if any(
                is_case(other, candidate) and other.odds * 0.99 >= candidate.odds
                for other in choice.candidates
            )
        ]
        assert idle
        without = score.clone()
        for place in idle:  # As good as the best of what it allows for, and no better.
            cases = [
                k for k, c in enumerate(choice.candidates) if is_case(c, choice.candidates[place])
            ]
            without[place] = min(float(without[place]), *(float(without[k]) for k in cases))
        shares = everything.shares(without)
        assert float(shares[idle].sum()) < len(idle) * LEAST_NEW

    def test_shares_come_in_batches(self, contested):
        choice = contested[1].match.choice
        score = choice.evidence.score()
        many = torch.stack([score, score.flip(0), torch.zeros_like(score)])
        together = choice.shares(many)
        for row, one in zip(together, many, strict=True):
            torch.testing.assert_close(row, choice.shares(one))
        assert bool(together.isfinite().all())
        torch.testing.assert_close(together.sum(dim=1), torch.ones(3, dtype=torch.float64))

    def test_a_shift_of_many_features_disperses(self, dispersed):
        assert dispersed.match.choice.dispersion > 1


class TestResamples:
    def test_of_a_clear_answer_average_what_is_open_in_them(self):
        """One hypothesis has nearly all of the odds, but resamples may see it otherwise."""
        for seed in range(20):
            pair = drawn_world(seed, 600, 600, features=5)
            report = estimate_shift(**pair.inputs(), replicates=50)
            choice = report.match.choice
            if len(choice.resampled) > 1:
                break
        assert not choice.averaged
        assert choice.chosen in choice.resampled
        score = choice.evidence.score()[None]
        shares = choice.resampled_shares(score, torch.ones(1, 2, dtype=score.dtype))[0]
        others = [place for place in choice.resampled if place != choice.chosen]
        assert float(shares[others].max()) < LEAST_SHARE
        low, high = report.interval
        assert low < report.gap < high
        asked = estimate_shift(**pair.inputs(), estimator="eff", replicates=50)
        assert not asked.match.choice.resampled


class TestNoAverage:
    def test_nothing_shifted_speaks_for_itself(self):
        pair = drawn_world(0, 2000, 2000, shifted=0, strength=0.0)
        report = estimate_shift(**pair.inputs(), confidence=None)
        choice = report.match.choice
        assert report.hypothesis == "nothing"
        assert float(choice.behind[choice.chosen]) <= CONTESTED
        assert not choice.averaged
        assert report.gap == 0

    def test_an_average_of_one_is_no_average(self):
        pair = drawn_world(0, 20_000, 20_000, strength=2.0)
        report = estimate_shift(**pair.inputs(), confidence=None)
        choice = report.match.choice
        assert choice.candidate.features
        assert choice.averaged == () or len(choice.averaged) > 1

    def test_a_population_leaves_nothing_open(self):
        report = estimate_shift(**exact_world(3, features=4).inputs(), confidence=None)
        assert not report.match.choice.parts

    def test_sees_em_takes_what_it_chose(self, contested):
        seed, _ = contested
        report = estimate_shift(**inputs(seed), method=SEESem(), confidence=None)
        assert not report.match.choice.averaged
