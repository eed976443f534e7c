"""Methods as scikit-learn handles estimators: parameters can be read, replaced and cloned."""

import os
import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone

from sees_torch import Auto, KnownWeights, SEESc, SEESd, SEESem, SeesError
from sees_torch.matching.names import METHODS

CONFIGURED = [
    *(kind() for kind in METHODS.values()),
    Auto(memory_budget=10**6),
    SEESc(eta="auto", sparsity=2),
    SEESd(sparsity=2, soft=True),
    SEESem(features=("a", "b")),
    SEESem(features=["a", "b"]),
    KnownWeights({("a", 0): 1.0}, ("x",)),
]


@pytest.mark.parametrize("method", CONFIGURED, ids=repr)
def test_clones_are_equal_and_their_parameters_rebuild_them(method):
    assert clone(method) == method
    assert clone(method) is not method
    assert type(method)(**method.get_params()) == method
    assert method.get_params(deep=False) == method.get_params()


def test_arrays_are_copied():
    weight = np.ones(3)
    copy = clone(KnownWeights(weight))
    assert copy.weight is not weight
    np.testing.assert_array_equal(copy.weight, weight)


def test_set_params_gives_another_configuration():
    method = SEESc()
    assert method.set_params(eta=0.5, refit=True) == SEESc(eta=0.5, refit=True)
    assert method == SEESc()
    with pytest.raises(SeesError, match=r"SEESc has no parameters \['sparse'\]; it has \['eta'"):
        method.set_params(sparse=1)
    with pytest.raises(SeesError, match="eta must be"):
        method.set_params(eta=-1)


def test_scikit_learn_is_not_imported_for_it():
    code = "import sys, sees_torch as s; s.SEESc().get_params(); print('sklearn' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == "False\n"
