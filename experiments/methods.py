"""The methods of an experiment: configurations of the library's, and the floor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from sees_torch import Auto, SeesError

PARAMETERS = ("eta", "sparsity")
"""Set at the top of the configuration, they reach every chosen method that has them."""


def calibration_for(method: Any) -> bool | str:
    """How p(y|x) is made: the paper's methods know no more of it than the probabilities tell."""
    return True if isinstance(method, Auto) else "vector"


@dataclass(frozen=True)
class TrueWeights:
    """The floor: the shift is known and only the gap is estimated. Left out where it is not."""


def filled_in(config: DictConfig) -> DictConfig:
    """The configuration with the parameters moved into the methods that have them.

    Raises:
        SeesError: a parameter is set that none of them has.
    """
    chosen: Any = OmegaConf.to_container(config.method, resolve=True)
    for parameter in PARAMETERS:
        value = config[parameter]
        takers = [name for name, options in chosen.items() if parameter in options]
        if value is not None and not takers:
            raise SeesError(
                f"{', '.join(chosen)} has no {parameter}: leave out {parameter}={value}, or "
                "choose a method whose file in conf/method names it."
            )
        for name in takers:
            chosen[name][parameter] = chosen[name][parameter] if value is None else value
    return with_methods(config, chosen)


def with_methods(config: DictConfig, methods: dict[str, Any]) -> DictConfig:
    """The configuration with these methods alone, their parameters in their own options."""
    changed: Any = OmegaConf.to_container(config, resolve=True)
    changed |= {"method": methods} | dict.fromkeys(PARAMETERS)
    return OmegaConf.create(changed)


def apart(config: DictConfig) -> dict[str, DictConfig]:
    """A configuration a method, by the method's name: what a saved run is of."""
    config = filled_in(config)
    return {name: with_methods(config, {name: options}) for name, options in config.method.items()}


def methods_of(config: DictConfig) -> dict[str, Any]:
    """The chosen methods by name."""
    return {name: instantiate(options) for name, options in filled_in(config).method.items()}
