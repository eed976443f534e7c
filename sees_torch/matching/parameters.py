"""Configurations that can be read, copied and searched over as scikit-learn's estimators are."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

from sees_torch.errors import SeesError

Configured = TypeVar("Configured", bound="Parameters")


class Parameters:
    """A frozen dataclass whose fields are its parameters; `sklearn.base.clone` copies it."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """{name: value}; none of the values has parameters of its own, so `deep` adds nothing."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def set_params(self: Configured, **params: Any) -> Configured:
        """A configuration with other values, this one cannot change: use what is returned."""
        unknown = sorted(set(params) - set(self.get_params()))
        if unknown:
            raise SeesError(
                f"{type(self).__name__} has no parameters {unknown}; it has "
                f"{list(self.get_params())}."
            )
        return replace(self, **params)  # type: ignore[type-var]
