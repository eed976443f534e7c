"""A classifier of the source made right for the target, without training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sees_torch.calibration import Calibration
from sees_torch.data.probabilities import (
    by_class,
    check_width,
    model_classes,
    of_second_class,
    predict,
    read_proba,
    two_columns,
)
from sees_torch.gap import target_posterior
from sees_torch.refinement import Refinement
from sees_torch.report import ShiftReport
from sees_torch.weights import copied


class CorrectedClassifier(nn.Module):
    """p_t(y|x), proportional to p(y|x) w(x, y): a source classifier made right for the target.

    Nothing is trained. The model must be the source's: one that was fine-tuned to the target
    would be corrected twice.

    Args:
        model: what the report was made with: an nn.Module, a classifier with predict_proba or a
            callable. A module that is given tensors runs as it stands, with its gradient and in
            its mode; given tables it runs as in `estimate_shift`.
        report: on the shift.
        logits: the model returns logits.
        calibrate: calibrate p(y|x) as the report did.

    >>> from sees_torch import estimate_shift, make_sparse_joint_shift
    >>> pair = make_sparse_joint_shift(n=4000, m=4000, strength=2.0)
    >>> report = estimate_shift(**pair.inputs(), replicates=0)
    >>> corrected = CorrectedClassifier(lambda table: pair.target_proba, report)(pair.target)
    >>> hit = (corrected.argmax(dim=1).numpy() == pair.target_labels).mean()
    >>> bool(hit > (pair.target_proba.argmax(axis=1) == pair.target_labels).mean())
    True
    """

    calibration: Tensor | None
    table: Tensor | None
    column: Tensor
    start: Tensor

    def __init__(
        self, model: Any, report: ShiftReport, *, logits: bool = False, calibrate: bool = True
    ) -> None:
        super().__init__()
        self.model, self.logits = model, logits
        self.weight_function = copied(report.weight_function)
        fitted = report.calibration if calibrate else None
        refined = None if fitted is None else fitted.refinement
        self._hold("calibration", None if fitted is None else fitted.models)
        for name in ("table", "column", "start"):
            self._hold(name, None if refined is None else getattr(refined, name))

    def _hold(self, name: str, value: Tensor | None) -> None:
        self.register_buffer(name, None if value is None else value.detach().clone())

    @property
    def classes(self) -> tuple[Any, ...]:
        """The order of the columns that come back."""
        return self.weight_function.classes

    def forward(self, inputs: Any, features: Any = None) -> Tensor:
        """(n, L) probabilities under the target's law.

        Args:
            inputs: what the model takes.
            features: (n, d) rows with the report's columns, where the model takes something else
                (images, say); by default the inputs.
        """
        function = self.weight_function
        rows = function.schema.encode(inputs if features is None else features, "features")
        table = function.schema.align(inputs) if features is None else inputs
        given = self._probabilities(table, len(rows))
        held = next(function.buffers(), given).device
        proba = given.to(held, torch.float64)
        rows = rows.to(held)
        if self.calibration is not None:
            proba = self._fitted(self.calibration.to(proba.dtype)).posterior(proba, rows)
        return target_posterior(function.table(rows), proba).to(given.dtype)

    def _fitted(self, models: Tensor) -> Calibration:
        """The report's calibration; of the rows that it was fitted to nothing is kept."""
        refined = None
        if self.table is not None:
            refined = Refinement(self.table.to(models.dtype), self.column, self.start)
        return Calibration(models, models.new_zeros(0, len(models)), refined)

    def _probabilities(self, inputs: Any, rows: int) -> Tensor:
        """(n, L) the model's probabilities, columns in the order of the classes."""
        if isinstance(self.model, nn.Module) and isinstance(inputs, Tensor):
            output = self.model(inputs)
            if self.logits:
                output = two_columns(output).softmax(dim=-1)
        else:
            output = predict(self.model, inputs, "inputs", logits=self.logits)
        matrix, names = by_class(output, self.classes, None)
        soft = self.logits and isinstance(matrix, Tensor) and matrix.ndim == 2
        if not soft:  # What softmax gave needs no check.
            device = matrix.device if isinstance(matrix, Tensor) else torch.device("cpu")
            proba = read_proba(matrix, rows, "the model's output", device)
            matrix = of_second_class(output, proba, self.classes)
        matrix = check_width(matrix, rows, len(self.classes))
        order = model_classes(self.model)
        if names is None and order is not None and set(order) == set(self.classes):
            matrix = matrix[:, [order.index(name) for name in self.classes]]
        return matrix.to(output.dtype) if isinstance(output, Tensor) else matrix
