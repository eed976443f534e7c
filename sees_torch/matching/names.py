"""Methods by name."""

from __future__ import annotations

from sees_torch.errors import SeesError
from sees_torch.matching.auto import Auto
from sees_torch.matching.covariate_shift import DLU, KLIEP
from sees_torch.matching.label_shift import BBSE, MLLS
from sees_torch.matching.match import Method
from sees_torch.matching.reference import CBPE, NoShift
from sees_torch.matching.sees_c import SEESc
from sees_torch.matching.sees_d import SEESd
from sees_torch.matching.sees_em import SEESem

METHODS: dict[str, type[Method]] = {
    "sees-em": SEESem,
    "sees-c": SEESc,
    "sees-d": SEESd,
    "bbse": BBSE,
    "mlls": MLLS,
    "kliep": KLIEP,
    "dlu": DLU,
    "cbpe": CBPE,
    "none": NoShift,
}


def resolve_method(method: str | Method) -> Method:
    """The configured method; names take their defaults."""
    if isinstance(method, str):
        if method == "auto":
            return Auto()
        if method not in METHODS:
            raise SeesError(
                f"unknown method {method!r}: take 'auto' or one of {', '.join(METHODS)}."
            )
        return METHODS[method]()
    if isinstance(method, type) or not isinstance(method, Method):
        raise SeesError(
            f"method must be a name or a configured object like SEESd(sparsity=1), got {method!r}."
        )
    return method
