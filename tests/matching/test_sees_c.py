"""SEES-c against cvxpy on raw rows, its path, its selection and its basis."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from worlds import (
    drawn_world,
    exact_world,
    mixed_frame,
    penalised_loss,
    penalised_optimum,
    row_weights,
    samples,
)

from sees_torch import (
    MLLS,
    Basis,
    FeatureBasis,
    SEESc,
    SeesError,
    ShapeError,
    Source,
    SupportError,
    SupportWarning,
    Target,
)
from sees_torch.matching.sees_c import ETAS
from sees_torch.matching.selection import Folds
from sees_torch.solvers.solution import SINGLE

PAIR = drawn_world(2, 500, 400, features=3, levels=[3, 2, 4], classes=2)


def stacked(frame, proba, sizes=(3, 2, 4)):
    """(n, K L) p(y|x) phi_k(x) with indicators written by hand, and the feature of each column."""
    phi = [(frame[f"x{j}"] == v) for j, size in enumerate(sizes) for v in range(size)]
    phi = np.stack(phi, axis=1).astype(float)
    z = (phi[:, :, None] * proba[:, None, :]).reshape(len(frame), -1)
    return z, np.repeat(np.arange(len(sizes)), sizes).repeat(proba.shape[1])


@pytest.mark.parametrize("eta", [0.0, 1e-3, 1e-2, 1.0])
@pytest.mark.parametrize("intercept", [False, True])
def test_reaches_cvxpys_objective_on_raw_rows(intercept, eta):
    source, target = samples(PAIR)
    match = SEESc(eta=eta, intercept=intercept).match(source, target)
    z, group = stacked(PAIR.target, PAIR.target_proba)
    c = stacked(PAIR.source, PAIR.source_proba)[0].mean(axis=0)
    if intercept:
        z = np.concatenate([z, PAIR.target_proba], axis=1)
        c = np.concatenate([c, PAIR.source_proba.mean(axis=0)])
        group = np.concatenate([group, [-1, -1]])
    mass = np.full(len(z), 1 / len(z))
    function = match.weight_function
    a = np.concatenate([function.coefficient.flatten(), function.intercept[: 2 * intercept]])
    assert match.residual < 1e-8
    assert a.min() >= 0
    assert abs(c @ a - 1) < 1e-10
    best = penalised_optimum(z, mass, c, group, eta)
    found, least = (penalised_loss(z, mass, group, eta, v) for v in (a, best))
    # The certificate is below 1e-8; cvxpy's point may be worse by its own tolerance.
    assert found - least < 1e-7
    assert abs(found - least) < 1e-6


class TestPath:
    def test_nothing_is_selected_from_eta_max_on(self):
        for seed in range(2):
            pair = drawn_world(seed, 300, 200, features=4, classes=3)
            source, target = samples(pair)
            method = SEESc(intercept=True, tolerance=1e-12)
            limit = method.eta_max(source, target)
            at, below, beyond = method.path(source, target, [limit, 0.95 * limit, 3 * limit])
            for match in (at, beyond):
                assert match.features == ()
                # At the limit itself an entry costs the objective its square only.
                assert float(match.importance.max()) < 1e-5
                assert float(match.weight_function.coefficient.max()) < 1e-5
            assert float(below.importance.max()) > 1e-4
            assert len(method.path(source, target, [0.5 * limit])[0].features) >= 1

    def test_eta_max_is_sharp_by_cvxpy(self):
        source, target = samples(PAIR)
        limit = SEESc(intercept=True).eta_max(source, target)
        z, group = stacked(PAIR.target, PAIR.target_proba)
        c = stacked(PAIR.source, PAIR.source_proba)[0].mean(axis=0)
        z = np.concatenate([z, PAIR.target_proba], axis=1)
        c = np.concatenate([c, PAIR.source_proba.mean(axis=0)])
        group = np.concatenate([group, [-1, -1]])
        mass = np.full(len(z), 1 / len(z))
        above = penalised_optimum(z, mass, c, group, 1.02 * limit)[:-2]
        below = penalised_optimum(z, mass, c, group, 0.9 * limit)[:-2]
        assert above.max() < 1e-4 < 1e-3 < below.max()

    @pytest.mark.parametrize(("intercept", "refit"), [(False, False), (True, False), (False, True)])
    def test_path_equals_single_solves(self, intercept, refit):
        source, target = samples(PAIR)
        etas = [1e-3, 2e-2]
        path = SEESc(intercept=intercept, refit=refit).path(source, target, etas)
        for eta, match in zip(etas, path, strict=True):
            alone = SEESc(eta=eta, intercept=intercept, refit=refit).match(source, target)
            assert alone.features == match.features
            # Both certified to 1e-9 of the objective, so to its square root of the weights.
            np.testing.assert_allclose(
                row_weights(match, source), row_weights(alone, source), atol=1e-4
            )

    def test_a_large_eta_tends_to_label_shift_with_an_intercept(self):
        source, target = samples(PAIR)
        large = SEESc(eta=1e3, intercept=True).match(source, target)
        label = MLLS().match(source, target)
        torch.testing.assert_close(
            large.weight_function.table(source.rows),
            label.weight_function.table(source.rows),
            rtol=0,
            atol=1e-4,
        )


class TestRows:
    @pytest.mark.parametrize("method", [SEESc(), SEESc(eta=1e-2, intercept=True)], ids=str)
    def test_merged_rows_equal_repeated_rows(self, method):
        rng = np.random.default_rng(0)
        repeat = rng.integers(0, 4, 500), rng.integers(0, 4, 400)
        source, target = samples(PAIR)
        here, there = (torch.tensor(r, dtype=torch.float64) for r in repeat)
        counted = method.match(source.with_count(here), target.with_count(there))
        at, to = (np.repeat(np.arange(len(r)), r) for r in repeat)
        longer = Source(
            PAIR.source.iloc[at], PAIR.labels[at], PAIR.source_proba[at], schema=source.schema
        )
        repeated = method.match(longer, Target(PAIR.target.iloc[to], PAIR.target_proba[to], longer))
        torch.testing.assert_close(
            repeated.weight_function.table(source.rows),
            counted.weight_function.table(source.rows),
            rtol=0,
            atol=1e-9,
        )

    def test_pieces_do_not_change_the_answer(self, monkeypatch):
        source, target = samples(PAIR)
        whole = SEESc().match(source, target)
        monkeypatch.setattr("sees_torch.statistics.basis.PIECE", 64)
        monkeypatch.setattr("sees_torch.solvers.design.CHUNK", 1)
        parts = SEESc().match(source, target)
        np.testing.assert_allclose(
            row_weights(parts, source), row_weights(whole, source), atol=1e-9
        )

    @pytest.mark.parametrize("method", [SEESc(), SEESc(eta=1e-2, refit=True)], ids=str)
    def test_float32_probabilities(self, method):
        """Certified to 1e-4 of the objective, so the weights to its square root at worst."""
        source, target = samples(PAIR)
        single = [s.with_posterior(s.posterior.float()) for s in (source, target)]
        match, double = method.match(*single), method.match(source, target)
        assert match.weight_function.coefficient.dtype == torch.float32
        assert match.residual < SINGLE
        assert match.features == double.features
        np.testing.assert_allclose(
            row_weights(match, source), row_weights(double, source), atol=1e-2
        )


class TestSelection:
    def test_refit_solves_without_penalty_on_the_selected_features(self):
        source, target = samples(PAIR)
        match = SEESc(eta=2e-2, intercept=True, refit=True).match(source, target)
        assert match.features == SEESc(eta=2e-2, intercept=True).match(source, target).features
        assert match.features == (0, 2)
        function = match.weight_function
        kept = np.isin(function.basis.owners, match.features)
        assert float(function.coefficient[~kept].abs().max()) == 0
        z, group = stacked(PAIR.target, PAIR.target_proba)
        c, _ = stacked(PAIR.source, PAIR.source_proba)
        z = np.concatenate([z[:, group != 1], PAIR.target_proba], axis=1)
        c = np.concatenate([c[:, group != 1], PAIR.source_proba], axis=1).mean(axis=0)
        a = np.concatenate([function.coefficient[kept].flatten(), function.intercept])
        free = np.full(len(c), -1)
        mass = np.full(len(z), 1 / len(z))
        best = penalised_optimum(z, mass, c, free, 0.0)
        found, least = (penalised_loss(z, mass, free, 0.0, v) for v in (a, best))
        assert found - least < 1e-7

    @pytest.mark.parametrize("sparsity", [0, 1, 2, None])
    def test_sparsity_limits_the_selection_to_the_most_important(self, sparsity):
        source, target = samples(drawn_world(0, 600, 600, features=5, shifted=3, strength=1.5))
        match = SEESc(eta=1e-3, sparsity=sparsity).match(source, target)
        everything = SEESc(eta=1e-3).match(source, target)
        order = everything.importance.argsort(descending=True).tolist()
        assert len(everything.features) >= 3
        kept = len(everything.features) if sparsity is None else sparsity
        assert set(match.features) == set(order[:kept])
        np.testing.assert_array_equal(row_weights(match, source), row_weights(everything, source))

    def test_sparsity_and_refit_leave_only_those_features(self):
        source, target = samples(drawn_world(0, 600, 600, features=5, shifted=3, strength=1.5))
        match = SEESc(sparsity=1, refit=True).match(source, target)
        owner = np.array(match.weight_function.basis.owners)
        (kept,) = match.features
        assert float(match.weight_function.coefficient[owner != kept].abs().max()) == 0

    def test_a_constant_group_is_not_selected_without_an_intercept(self):
        """Label shift: some group carries the constant, none is named."""
        pair = exact_world(1, features=3, shifted=0, strength=1.5)
        source, target = samples(pair)
        match = SEESc(eta=1e-8).match(source, target)
        assert match.features == ()
        np.testing.assert_allclose(row_weights(match, source), pair.weights, atol=1e-2)

    def test_a_population_of_sparse_joint_shift_is_found(self):
        """w is in the span of x0's indicators and the posterior is exact: KL has its zero there."""
        for seed in range(2):
            pair = exact_world(seed, features=4, classes=2, shifted=[2])
            source, target = samples(pair)
            match = SEESc(eta=1e-3, intercept=True, refit=True).match(source, target)
            assert match.features == (2,)
            # Certified to 1e-9 of the objective; the curvature of w in it is about 1e-3.
            np.testing.assert_allclose(row_weights(match, source), pair.weights, atol=1e-3)


class TestAuto:
    def test_eta_is_the_best_of_its_path_on_rows_left_out(self):
        """The score written out: mean_t log r - log mean_s r, every row by the fit without it."""
        source, target = samples(PAIR)
        folds = Folds.deal(source, target)
        scores = []
        for eta in ETAS:
            method = SEESc(eta=eta)
            here, there = method.refits(
                source, target, method.match(source, target), *folds.training(source, target)
            )
            on_source = torch.einsum("fnl,nl,nf->n", here, source.posterior, folds.source)
            on_target = torch.einsum("fml,ml,mf->m", there, target.posterior, folds.target)
            scores.append(float(on_target.log().mean() - on_source.mean().log()))
        best = ETAS[int(np.argmax(scores))]
        assert len(set(np.round(scores, 6))) == len(ETAS)
        match = SEESc(eta="auto").match(source, target)
        expected = SEESc(eta=best).match(source, target)
        assert match.features == expected.features
        # Both certified to 1e-9 of the objective, so to its square root of the weights.
        np.testing.assert_allclose(
            row_weights(match, source), row_weights(expected, source), atol=1e-4
        )

    def test_a_fit_without_a_fold_is_the_fit_of_its_rows(self):
        source, target = samples(PAIR)
        method = SEESc(eta=1e-3)
        folds = Folds.deal(source, target)
        counts = folds.training(source, target)
        here, there = method.refits(source, target, method.match(source, target), *counts)
        assert here.shape == (15, 500, 2)
        assert there.shape == (15, 400, 2)
        for f in range(2):
            alone = method.match(source.with_count(counts[0][f]), target.with_count(counts[1][f]))
            table = alone.weight_function.table(source.rows)
            torch.testing.assert_close(here[f], table, rtol=0, atol=1e-3)

    @pytest.mark.parametrize("intercept", [False, True])
    @pytest.mark.parametrize("at_once", [1, 10**6], ids=["an eta at a time", "one batch"])
    def test_refits_of_a_path_are_those_of_its_etas(self, monkeypatch, intercept, at_once):
        monkeypatch.setattr("sees_torch.matching.basis_resamples.AT_ONCE", at_once)
        source, target = samples(PAIR)
        counts = Folds.deal(source, target).training(source, target)
        method = SEESc(intercept=intercept, tolerance=1e-12)
        matches = method.path(source, target, ETAS)
        found = method.path_refits(source, target, ETAS, matches, *counts)
        for eta, match, tables in zip(ETAS, matches, found, strict=True):
            alone = replace(method, eta=eta).refits(source, target, match, *counts)
            for table, expected in zip(tables, alone, strict=True):
                torch.testing.assert_close(table, expected, rtol=0, atol=1e-5)

    def test_sparsity_auto_keeps_every_feature_that_matters(self):
        source, target = samples(PAIR)
        assert SEESc(sparsity="auto") == SEESc()
        assert SEESc(sparsity="auto").match(source, target).features == (0, 1, 2)


class Squares(Basis):
    """A user's basis: the square of the second column and its complement."""

    def __init__(self, owners=(3, 3), shift=0.0, columns=2):
        super().__init__()
        self.owners = owners
        self.shift = shift
        self.columns = columns

    def forward(self, rows):
        x = rows.values[:, 3].square()
        return torch.stack([x, 1 - x, x, x][: self.columns], dim=1) - self.shift


class Network(torch.nn.Module):
    """A module that is no Basis: two bumps of a column, made by a layer with parameters."""

    def __init__(self, owners=(2, 2), column=2):
        super().__init__()
        self.owners, self.column = owners, column
        self.layer = torch.nn.Linear(1, 2).double()
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[4.0], [-4.0]]))
            self.layer.bias.copy_(torch.tensor([-2.0, 2.0]))

    def forward(self, rows):
        return self.layer(rows.values[:, self.column : self.column + 1]).sigmoid()


class TestBasis:
    @pytest.fixture
    def sampled(self):
        rng = np.random.default_rng(0)
        frame, later = mixed_frame(rng, 300), mixed_frame(rng, 250)
        later["age"] += 8

        def proba(table):
            return 1 / (1 + np.exp(1.5 - table["size"].to_numpy()))

        labels = (rng.random(300) < proba(frame)).astype(int)

        source = Source(frame, labels, proba(frame))
        return source, Target(later, proba(later), source), frame, later

    @pytest.mark.parametrize("form", ["linear", "paired", "quadratic", "auto"])
    def test_forms_reach_cvxpys_objective(self, sampled, form):
        source, target, frame, later = sampled
        # `linear` has no function for the constant along a continuous column: the towns carry it.
        match = SEESc(eta=1e-2, basis=form).match(source, target)
        curves = {
            "linear": lambda x: [x],
            "quadratic": lambda x: [x**2, 2 * x * (1 - x), (1 - x) ** 2],
        }.get(form, lambda x: [x, 1 - x])

        def design(table, proba):
            columns, owner = [], []
            for j, name in enumerate(frame):
                if j < 2:
                    here = [table[name] == level for level in np.unique(frame[name])]
                else:
                    low, high = frame[name].min(), frame[name].max()
                    here = curves(((table[name] - low) / (high - low)).clip(0, 1))
                columns += [np.asarray(column, dtype=float) for column in here]
                owner += [j] * len(here)
            phi = np.stack(columns, axis=1)
            z = (phi[:, :, None] * proba[:, None, :]).reshape(len(table), -1)
            return z, np.repeat(owner, 2)

        z, group = design(later, target.proba.numpy())
        c = design(frame, source.proba.numpy())[0].mean(axis=0)
        mass = np.full(len(z), 1 / len(z))
        a = match.weight_function.coefficient.flatten().numpy()
        assert match.residual < 1e-8
        best = penalised_optimum(z, mass, c, group, 1e-2)
        found, least = (penalised_loss(z, mass, group, 1e-2, v) for v in (a, best))
        assert abs(found - least) < 1e-6

    def test_the_moved_column_is_found(self, sampled):
        source, target, *_ = sampled
        for form in ("paired", "linear", "quadratic"):
            match = SEESc(eta=2e-2, sparsity=1, intercept=True, basis=form).match(source, target)
            assert match.features == (2,)

    def test_any_module_may_be_the_basis(self, sampled):
        source, target, *_ = sampled
        net = Network()
        match = SEESc(eta=1e-3, basis=net, intercept=True).match(source, target)
        phi = net(source.rows).detach()
        function = match.weight_function
        by_hand = phi @ function.coefficient + function.intercept
        table = function.table(source.rows)
        torch.testing.assert_close(table, by_hand)
        assert not table.requires_grad
        assert match.features == (2,)

    @pytest.mark.parametrize(
        ("net", "message"),
        [
            (Network(owners=(3, 3)), "Network has functions of feature 3 that change with other"),
            (Network(owners=(2, 2, 2)), "Network declares 3 owners"),
            (Network(owners=(2, 9)), "owners of Network must be feature positions"),
            (torch.nn.Linear(1, 2), "declares `owners`, got Linear"),
        ],
    )
    def test_modules_that_are_no_basis_are_refused(self, sampled, net, message):
        with pytest.raises(SeesError, match=message):
            SEESc(basis=net).match(*sampled[:2])

    def test_a_users_basis_is_used(self, sampled):
        source, target, *_ = sampled
        match = SEESc(eta=1e-3, basis=Squares()).match(source, target)
        x = source.rows.values[:, 3].square()
        a = match.weight_function.coefficient
        by_hand = x[:, None] * a[0] + (1 - x)[:, None] * a[1]
        torch.testing.assert_close(match.weight_function.table(source.rows), by_hand)
        assert set(match.features) <= {3}
        free = SEESc(eta=1e3, basis=Squares(owners=(-1, -1))).match(source, target)
        assert free.features == ()
        assert free.residual < 1e-8

    @pytest.mark.parametrize(
        ("basis", "error", "message"),
        [
            (Squares(owners=(3, 4)), SeesError, "owners of Squares must be feature positions"),
            (Squares(owners=(3, -2)), SeesError, "or -1"),
            (Squares(owners=(3, (1, 2))), SeesError, "function of two features"),
            (Squares(shift=0.5), SeesError, "negative or infinite"),
            (Squares(columns=4), ShapeError, r"declares 2 owners but returned shape \(300, 4\)"),
            (torch.nn.Linear(2, 2), SeesError, "declares `owners`"),
            ("cubic", SeesError, "linear, paired, quadratic"),
        ],
    )
    def test_refused_bases(self, sampled, basis, error, message):
        with pytest.raises(error, match=message):
            SEESc(basis=basis).match(*sampled[:2])

    def test_target_rows_that_nothing_explains(self):
        """`linear` is zero at the source minimum: those rows need another function."""
        frame = pd.DataFrame({"x": np.linspace(0, 1, 60)})
        source = Source(frame, np.arange(60) % 2, np.full(60, 0.4))
        target = Target(pd.DataFrame({"x": np.zeros(10)}), np.full(10, 0.4), source)
        with pytest.raises(SupportError, match=r"100\.0% of the target .* intercept=True"):
            SEESc(basis="linear").match(source, target)
        assert SEESc(basis="linear", intercept=True).match(source, target).residual < 1e-8

    def test_levels_absent_from_the_source_buy_no_weight(self):
        """Unseen target levels get the source mean, and carry no coefficient of their own."""
        source, _ = samples(PAIR)
        strange = PAIR.target.assign(x0=np.where(np.arange(400) < 40, 9, PAIR.target["x0"]))
        target = Target(strange, PAIR.target_proba, source)
        with pytest.warns(SupportWarning, match=r"10\.0% of the target"):
            match = SEESc().match(source, target)
        assert abs(match.unseen_mass - 0.1) < 1e-12
        assert len(match.weight_function.coefficient) == len(FeatureBasis(source).owners) == 9
        assert match.residual < 1e-8
        assert bool(match.weight_function.table(target.rows).isfinite().all())


def test_the_same_posterior_stands_on_both_sides():
    """E_s[sum_y p(y|x) w(x, y)] = 1 exactly, with p and not with the labels."""
    source, target = samples(PAIR)
    for method in (SEESc(), SEESc(intercept=True), SEESc(refit=True)):
        table = method.match(source, target).weight_function.table(source.rows)
        assert abs(float(source.mean((source.posterior * table).sum(1))) - 1) < 1e-10


@pytest.mark.parametrize(
    ("name", "value"), [("eta", -1.0), ("eta", "small"), ("sparsity", -1), ("sparsity", 1.5)]
)
def test_refused_settings(name, value):
    with pytest.raises(SeesError, match=f"{name} must be"):
        SEESc(**{name: value})
