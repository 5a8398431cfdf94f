"""cupy.testing on the simulated GPU: comparisons of arrays by NumPy's functions of equal names."""

from collections.abc import Callable
from typing import Any

import numpy as np

from refsim.ptx.text.words import words_in
from refsim_run.cupy.creation import asnumpy
from refsim_run.seams import refuse

ASSERTIONS = words_in("""
    assert_allclose assert_array_almost_equal assert_array_almost_equal_nulp assert_array_equal assert_array_less
    assert_array_max_ulp
""")


def _assertion(name: str) -> Callable[..., None]:
    """Return NumPy's assertion for arrays of the device; `strides_check` compares strides too."""
    inner = getattr(np.testing, name)

    def compare(first: Any, second: Any, *args: Any, **kwargs: Any) -> None:
        is_strided = kwargs.pop("strides_check", False)
        if is_strided and first.strides != second.strides:
            raise AssertionError(f"strides differ: {first.strides} and {second.strides}")
        inner(asnumpy(first), asnumpy(second), *args, **kwargs)

    compare.__name__ = name
    return compare


def assert_array_list_equal(xlist: Any, ylist: Any, err_msg: str = "", verbose: bool = True) -> None:
    """Raise AssertionError unless the arrays of two lists are equal, one by one."""
    if len(xlist) != len(ylist):
        raise AssertionError(f"{len(xlist)} arrays and {len(ylist)} {err_msg}")
    for first, second in zip(xlist, ylist, strict=True):
        _assertion("assert_array_equal")(first, second, err_msg=err_msg, verbose=verbose)


def __getattr__(name: str) -> Any:
    if name in ASSERTIONS:
        return _assertion(name)
    raise refuse("cupy.testing", name)
