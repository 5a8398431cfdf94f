"""Names that a package has not: the error says where they are, without importing anything."""

import copy
import pickle
from importlib import import_module

import pytest

import refsim
from refsim import numerics, testing
from refsim.errors import Kind, RefsimError
from refsim.lazy import _ELSEWHERE


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mma", "it is refsim.numerics.mma"),
        ("layout", "refsim.layouts is meant"),
        ("quantise", "refsim.quantize is meant"),
        ("dequantise", "it is refsim.scaling.dequantize"),
        ("Kernel", "it is refsim.testing.Kernel"),
        ("decod", "nearest: refsim.decode"),
    ],
)
def test_a_missing_name_says_where_it_is(name, said):
    with pytest.raises(AttributeError) as caught:
        getattr(refsim, name)
    assert f"module 'refsim' has no attribute '{name}': {said}" in str(caught.value)
    assert caught.value.name == name
    assert not hasattr(refsim, name)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("from refsim import Kernel", "cannot import name 'Kernel' from 'refsim': it is refsim.testing.Kernel"),
        ("from refsim.testing import Kernl", "nearest: refsim.testing.Kernel"),
    ],
)
def test_an_import_of_a_missing_name_says_where_it_is(statement, said):
    with pytest.raises(ImportError, match=said):
        exec(statement)
    exec("from refsim import errors, lazy, numerics")


@pytest.mark.parametrize(
    ("package", "name", "near"),
    [
        (numerics, "mmaa", "mma"),
        (numerics, "mmas", "refsim.numerics.mma is meant"),
        (testing, "kernel", "refsim.testing.Kernel"),
    ],
)
def test_a_package_names_its_own_nearest(package, name, near):
    with pytest.raises(AttributeError, match=near):
        getattr(package, name)


def test_an_error_of_another_process_arrives():
    """A worker's error that does not unpickle ends its whole pool."""
    with pytest.raises(AttributeError) as caught:
        getattr(refsim, "mma")  # noqa: B009
    error = RefsimError("bad-tile", what="n is 3", help="give 4", kind=Kind.UNREADABLE, place=("k.cu", 8))
    for each in (caught.value, error):
        for found in (pickle.loads(pickle.dumps(each)), copy.copy(each)):
            assert (type(found), str(found), vars(found)) == (type(each), str(each), vars(each))
    assert pickle.loads(pickle.dumps(caught.value)).missing == "mma"


def test_every_name_that_is_elsewhere_is_there():
    for module, names in _ELSEWHERE.items():
        assert all(hasattr(import_module(module), name) for name in names.split()), module


@pytest.mark.parametrize("package", ["refsim", "refsim.layouts", "refsim.testing", "refsim.causes"])
def test_a_star_takes_every_public_name_and_no_other(package):
    taken: dict[str, object] = {}
    exec(f"from {package} import *", taken)
    assert sorted(taken.keys() - {"__builtins__"}) == import_module(package).__all__ == dir(import_module(package))
