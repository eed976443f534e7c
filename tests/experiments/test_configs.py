"""Every configuration composes and instantiates."""

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import get_class, get_method, instantiate
from omegaconf import OmegaConf

from experiments import records
from experiments.methods import TrueWeights, apart, methods_of
from experiments.run import CONF
from experiments.shifts import Laws, Rates
from sees_torch import SeesError


def choices(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def composed(*overrides, hydra=False):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", list(overrides), return_hydra_config=hydra)


@pytest.mark.parametrize("name", choices("data"))
def test_data_instantiates_and_has_its_shift(name):
    mine = ("data.path=a.csv", "data.label=y", "shift.features=[a]") if name == "own" else ()
    config = composed(f"data={name}", "data.folder=somewhere", *mine)
    table = instantiate(config.data)
    assert table.name
    assert table.label
    assert hasattr(instantiate(config.shift), "draws")


@pytest.mark.parametrize("name", choices("shift"))
def test_laws_are_laws(name):
    config = OmegaConf.load(CONF / "shift" / f"{name}.yaml")
    if OmegaConf.is_missing(config, "features"):
        config.features = ["a"]
    shift = instantiate(config)
    several = isinstance(shift, Rates)
    cases = [replace(shift, count=k).laws() for k in range(4)] if several else [shift]
    for law in cases:
        if isinstance(law, Laws):
            for side in (law.source_law, law.target_law):
                assert several or total(side) == pytest.approx(1, abs=0.01)
            assert set(law.shifted or law.features) <= set(law.features)


def total(law):
    return sum(total(part) for part in law.values()) if isinstance(law, dict) else law


@pytest.mark.parametrize("name", choices("classifier"))
def test_classifiers_instantiate(name):
    assert hasattr(instantiate(composed(f"classifier={name}").classifier), "fit")


@pytest.mark.parametrize("name", choices("method"))
def test_methods_instantiate(name):
    for method in methods_of(composed(f"method={name}")).values():
        assert isinstance(method, TrueWeights) or method.name


def test_a_parameter_reaches_the_methods_that_have_it():
    methods = methods_of(composed("method=[sees_c,bbse]", "eta=0.1", "sparsity=2"))
    assert methods["SEES-c"].eta == 0.1
    assert methods["SEES-c"].sparsity == 2


@pytest.mark.parametrize("override", ["eta=0.1", "sparsity=1"])
def test_a_parameter_that_no_method_has_is_refused(override):
    with pytest.raises(SeesError, match=f"BBSE has no {override.split('=')[0]}"):
        methods_of(composed("method=bbse", override))


@pytest.mark.parametrize("size", [pytest.param("small", marks=pytest.mark.slow), "full"])
@pytest.mark.parametrize("name", choices("experiment"))
def test_experiments_compose_for_every_point_of_their_sweep(name, size):
    config = composed(f"experiment={name}", f"size={size}", hydra=True)
    head = (CONF / "experiment" / f"{name}.yaml").read_text().splitlines()[1]
    assert head.startswith(f"# python -m experiments.run experiment={name} ")
    assert config.hydra.mode.name == "MULTIRUN"
    swept = OmegaConf.to_container(config.hydra.sweeper.params, resolve=True)
    assert re.fullmatch(r"range\(\d+\)", swept.pop("seed", "range(1)"))
    for group in ("data", "shift", "classifier"):
        assert set(swept.get(group, "simulated").split(",")) <= {*choices(group), "simulated"}
    get_method(config.report.figure["_target_"])
    if "override /shift" in (CONF / "experiment" / f"{name}.yaml").read_text():
        assert {f"{data}_sparsity" for data in swept["data"].split(",")} <= set(choices("shift"))
    first = [f"{key}={str(values).split(',')[0]}" for key, values in swept.items()]
    point = composed(f"experiment={name}", f"size={size}", *first)
    get_method(point.task)
    assert methods_of(point)
    assert instantiate(point.shift)


def test_the_key_follows_what_decides_the_result():
    plain = composed()
    assert records.key(plain) == records.key(composed("data.folder=elsewhere", "out=there"))
    others = [composed("seed=1"), composed("rows=99"), composed("method=bbse"), composed("eta=1")]
    assert len({records.key(config) for config in (plain, *others)}) == 5


def test_a_parameter_is_part_of_the_methods_that_have_it_only():
    """So a sweep over sparsity measures BBSE once, and experiments find each other's runs."""
    plain, told = (apart(composed("method=[sees_d,bbse]", *more)) for more in ((), ("sparsity=2",)))
    assert records.key(plain["BBSE"]) == records.key(told["BBSE"])
    assert records.key(plain["SEES-d"]) != records.key(told["SEES-d"])
    same = apart(composed("method=sees_d", "sparsity=1"))
    assert records.key(plain["SEES-d"]) == records.key(same["SEES-d"])


def test_any_module_is_a_classifier():
    config = composed("classifier=network", "classifier.module._target_=torch.nn.Linear")
    assert instantiate(config.classifier).module(3, 2).weight.shape == (2, 3)
    assert get_class("torch.nn.Linear")


def test_ones_own_table_is_a_file_of_five_lines(tmp_path):
    """In a folder of one's own, given by --config-dir or hydra.searchpath."""
    pd.DataFrame({"city": ["a", "b"] * 50, "churn": [0, 0, 1, 1] * 25}).to_csv(tmp_path / "m.csv")
    (tmp_path / "data").mkdir()
    lines = [
        "_target_: experiments.tables.CsvTable",
        "name: MINE",
        "path: m.csv",
        "label: churn",
        f"folder: {tmp_path}",
    ]
    (tmp_path / "data" / "mine.yaml").write_text("\n".join(lines))
    own = ("data=mine", "shift=tilted", "shift.features=[city]")
    config = composed(f"hydra.searchpath=[file://{tmp_path}]", *own)
    assert len(instantiate(config.data).load()) == 100
    assert config.shift.features == ["city"]


def test_files_name_no_machine():
    for path in Path(CONF).rglob("*.yaml"):
        assert not re.search(r"folder: */|/home/|/tmp/", path.read_text()), path
