"""How to estimate, checked once, and a source made ready for any number of targets."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sees_torch.assessment import report_match
from sees_torch.calibration import Calibration
from sees_torch.data import Source, Target
from sees_torch.data.class_order import doubt_about_order
from sees_torch.errors import SeesError, SeesWarning
from sees_torch.gap import ESTIMATORS, Metric, metric_name
from sees_torch.labelling import FEWEST
from sees_torch.matching import Auto, KnownWeights, Match, Method, SEESd, SEESem
from sees_torch.matching.many import match_many
from sees_torch.matching.match import WarmStarted, whole_number
from sees_torch.matching.names import resolve_method
from sees_torch.report import ShiftReport
from sees_torch.shortage import in_smaller_parts
from sees_torch.statistics.products import MEMORY
from sees_torch.suggestions import label_rates

REFINED = (
    "the features say more about the label than the model's probabilities do: refined by them, "
    "p(y|x) has {:.0%} less log loss on source rows that were held out"
)


@contextmanager
def _outside_inference_mode() -> Iterator[None]:
    """Tensors made in inference mode know no gradient, and intervals need one."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


@dataclass(frozen=True)
class PreparedSource:
    """A source whose equal rows are merged and whose probabilities are calibrated.

    Attributes:
        given: as the user gave it, calibrated.
        merged: its distinct rows.
        calibration: for targets; None leaves the probabilities as they are.
    """

    given: Source
    merged: Source
    calibration: Calibration | None


@dataclass(frozen=True)
class Estimation:
    """The settings of `estimate_shift` that do not depend on the data."""

    method: Method
    metrics: tuple[Metric, ...]
    estimator: str
    confidence: float | None
    calibrate: Any
    replicates: int
    memory_budget: int | None

    @classmethod
    def checked(
        cls,
        method: str | Method,
        metric: Metric | Sequence[Metric],
        estimator: str,
        confidence: float | None,
        calibrate: Any,
        replicates: int,
        memory_budget: int | None,
    ) -> Estimation:
        """The settings, refused if they make no sense."""
        chosen = resolve_method(method)
        if memory_budget is not None and isinstance(chosen, (SEESd, SEESem, Auto)):
            chosen = replace(chosen, memory_budget=chosen.memory_budget or memory_budget)
        if whole_number(replicates, "replicates") == 1:
            raise SeesError(
                "replicates must be 0 (analytic interval) or at least 2; 200 are usual."
            )
        if confidence is not None and not 0 < confidence < 1:
            raise SeesError(f"confidence must lie between 0 and 1, or be None; got {confidence!r}.")
        if calibrate not in (True, False, "vector", "temperature"):
            raise SeesError(
                f"calibrate takes True, False, 'vector' or 'temperature', got {calibrate!r}."
            )
        metrics = [metric] if isinstance(metric, str) or callable(metric) else metric
        if not isinstance(metrics, (list, tuple)) or not metrics:
            raise SeesError(f"metric must be a name, a function or a list of them, got {metric!r}.")
        if estimator not in ("auto", *ESTIMATORS):
            raise SeesError(
                f"unknown estimator {estimator!r}: take 'auto' or one of {', '.join(ESTIMATORS)}."
            )
        return cls(
            chosen, tuple(metrics), estimator, confidence, calibrate, replicates, memory_budget
        )

    @_outside_inference_mode()
    def prepare(self, source: Source) -> PreparedSource:
        """What of the work on the source serves every target."""
        merged, of_row = self._merged(source)
        doubt = doubt_about_order(merged)
        if doubt:
            warnings.warn(doubt, SeesWarning, stacklevel=3)
            merged = copy.copy(merged)
            merged.notes += (doubt,)
        calibration = None
        if self.calibrate:
            form = None if self.calibrate is True else self.calibrate
            calibration = Calibration.fit(merged, form)
            merged = calibration.source(merged)
            if calibration.refinement is not None:
                merged.notes += (REFINED.format(calibration.refinement.gain),)
        return PreparedSource(_spread(source, merged, of_row, calibration), merged, calibration)

    @_outside_inference_mode()
    def report(
        self,
        source: PreparedSource,
        target: Target,
        generator: torch.Generator | None = None,
        start: Tensor | None = None,
    ) -> ShiftReport:
        """The report on one target, solved from a start if there is one."""
        if start is None or not isinstance(self.method, WarmStarted):
            return self.reports(source, [target], generator)[0]
        source, merged, of_row = self._prepared(source, target)
        match = self.method.match_from(source.merged, merged, start)
        return self._report(source, target, merged, of_row, match, generator)

    def solution(self, report: ShiftReport) -> Tensor | None:
        """What the next report can start from; None if the method does not."""
        return self.method.solution(report.match) if isinstance(self.method, WarmStarted) else None

    @_outside_inference_mode()
    def reports(
        self,
        source: PreparedSource,
        targets: Sequence[Target],
        generator: torch.Generator | None = None,
    ) -> list[ShiftReport]:
        """The reports on many targets, matched in one solve where the method can.

        Where memory is short, they are made again in smaller parts; of another number of resamples
        at a time the interval is that of other draws.
        """
        state = None if generator is None else generator.get_state()

        def made(budget: int) -> list[ShiftReport]:
            if generator is not None and state is not None:
                generator.set_state(state)
            return self._within(budget)._reports(source, targets, generator)

        found = in_smaller_parts(made, self.memory_budget or MEMORY)
        return [replace(report, settings=self.described()) for report in found]

    def _within(self, budget: int) -> Estimation:
        """The same with this many bytes."""
        method = self.method
        if isinstance(method, (SEESd, SEESem, Auto)):
            method = replace(method, memory_budget=min(method.memory_budget or budget, budget))
        return replace(self, method=method, memory_budget=budget)

    def _reports(
        self,
        source: PreparedSource,
        targets: Sequence[Target],
        generator: torch.Generator | None,
    ) -> list[ShiftReport]:
        prepared = [self._prepared(source, target) for target in targets]
        if any(target.labelled for target in targets):
            matches = [self.method.match(own.merged, merged) for own, merged, _ in prepared]
        else:
            matches = match_many(self.method, source.merged, [merged for _, merged, _ in prepared])
        return [
            self._report(own, target, merged, of_row, match, generator)
            for target, (own, merged, of_row), match in zip(targets, prepared, matches, strict=True)
        ]

    def _report(
        self,
        source: PreparedSource,
        target: Target,
        merged: Target,
        of_row: Tensor | None,
        match: Match,
        generator: torch.Generator | None,
    ) -> ShiftReport:
        report = report_match(
            source.merged,
            merged,
            match,
            self.method,
            self.metrics,
            self.estimator,
            confidence=self.confidence,
            replicates=self.replicates,
            calibration=source.calibration,
            memory=self.memory_budget,
            generator=generator,
        )
        given = source.given
        return replace(
            report,
            weights=match.weight_function.of_rows(given.rows, given.labels),
            source=given,
            target=_spread(target, merged, of_row, source.calibration),
            calibration=source.calibration,
        )

    def match(self, source: PreparedSource, target: Target) -> Match:
        """Only what the method finds: weights without a verdict on them."""
        own, merged, _ = self._prepared(source, target)
        return self.method.match(own.merged, merged)

    def _prepared(
        self, source: PreparedSource, target: Target
    ) -> tuple[PreparedSource, Target, Tensor | None]:
        """Both samples as they are compared, and which distinct row every target row became."""
        if target.labelled and not isinstance(self.method, (SEESem, Auto)):
            raise SeesError(
                f"{self.method.name} cannot use target_labels: take method 'auto' or 'sees-em'."
            )
        merged, of_row = self._calibrated(source, target)
        if target.labelled < FEWEST or of_row is None:
            return source, merged, of_row
        here, there = self._asked(source, target)
        asked = there.new_zeros(len(merged) + 1)
        asked[of_row] = there
        own = replace(source, merged=source.merged.asking(here))
        return own, merged.asking(asked[:-1]), of_row

    def _calibrated(self, source: PreparedSource, target: Target) -> tuple[Target, Tensor | None]:
        """The target as its source is, and which of its distinct rows every row became."""
        merged, of_row = self._merged(target)
        if source.calibration is not None:
            merged = source.calibration.target(merged)
        return merged, of_row

    @torch.no_grad()
    def _asked(self, source: PreparedSource, target: Target) -> tuple[Tensor, Tensor]:
        """What a label would tell, (n,) of distinct source rows and (m,) of target rows.

        As a report without any label says, so that rows that it suggested fall into the strata that
        they were suggested from.
        """
        merged, of_row = self._calibrated(source, target.without_labels())
        assert of_row is not None
        both = source.merged, merged
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # What there is to warn of is said of the labelled one.
            match = self.method.match(*both)
            report = report_match(*both, match, self.method, self.metrics[:1], self.estimator)
        here, there = label_rates(*both, report.match, report.alternatives, self.metrics[0])
        return here, there[of_row.clamp_max(len(merged) - 1)]

    def described(self) -> dict[str, Any]:
        """The settings in words that the call can be repeated from."""
        return {
            "method": repr(self.method),
            "metric": [metric_name(metric) for metric in self.metrics],
            "estimator": self.estimator,
            "confidence": self.confidence,
            "calibrate": self.calibrate,
            "replicates": self.replicates,
        }

    def _merged(self, sample: Any) -> tuple[Any, Tensor | None]:
        """Distinct rows; weights known per row need the rows as they are."""
        if isinstance(self.method, KnownWeights):
            return sample, None
        return sample.merged()


def _spread(
    sample: Any, merged: Any, of_row: Tensor | None, calibration: Calibration | None
) -> Any:
    """The sample as it was given, with the posterior of its merged rows."""
    if of_row is None:
        return merged
    place = of_row.clamp_max(len(merged) - 1)
    if merged.asked is not None:
        sample = sample.asking(merged.asked[place])
    if not merged.posterior.requires_grad:
        return sample.with_posterior(merged.posterior[place])
    if calibration is None:  # Every row has a gradient of its own.
        return sample
    if isinstance(sample, Target):
        return calibration.target(sample)
    return replace(calibration, share=calibration.share[place]).source(sample)
