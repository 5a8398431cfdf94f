"""Problems of the bundled kernels of this tier with fields that are none: refused by name when they are made."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

gemm = load_kernel_file(bundled_kernels("gemm_1d2d.py"))
splits = load_kernel_file(bundled_kernels("gemm_1d2d_splits.py"))
experts = load_kernel_file(bundled_kernels("gemm_1d2d_experts.py"))
quantize = load_kernel_file(bundled_kernels("group_quantize_bindings.py"))

GOOD = {
    "dense": gemm.Gemm1D2D(8, 8, 8),
    "experts": experts.ExpertsGemm1D2D((3, 0), 256, 8, 8),
    "quantize": quantize.GroupQuantize(4, 8),
    "in parts": splits.KERNELS[0].corpus[0],
    "values": gemm.Values(),
}
NUMBERS = (1.5, "1", True, [1], (1, 2), {}, np.int64(3), np.array([1, 2]), -1, 10**30)
WRONG = {
    **dict.fromkeys(
        ("m", "n", "k", "together", "clusters", "rows", "columns", "threads", "blocks", "group_rows"), NUMBERS
    ),
    **dict.fromkeys(("splits", "seed"), NUMBERS),
    **dict.fromkeys(
        ("entry", "format", "scale", "quotient", "fill"), (5, None, "none such", ["e4m3"], np.array(["a", "b"]))
    ),
    **dict.fromkeys(("a", "b", "scale_a", "scale_b", "gaps", "x", "place"), (None, 5, "ones", [1], np.zeros(3))),
    "counts": (5, None, "12", [1, 2], (1.5,), (-1,), (), (257,), np.array([1, 2])),
    "patches": (5, None, "12", [(1, 2)], (1,), ((1,),), ((1, 2, 3),), ((1, -1),), ((1.5, 2),)),
    "mn_major": (1, None, "yes", np.array([True, False])),
    "eps": ("1", None, [1.0], 1),
}


def cases() -> list[Any]:
    return [
        pytest.param(partial_of(name, field, wrong), id=f"{name}-{field}-{wrong!r:.20}")
        for name, good in GOOD.items()
        for field, wrongs in WRONG.items()
        if field in good.__dataclass_fields__
        for wrong in wrongs
        if not (field == "clusters" and wrong is None)
    ]


def partial_of(name: str, field: str, wrong: Any) -> Callable[[], object]:
    return lambda: replace(GOOD[name], **{field: wrong})


@pytest.mark.parametrize("call", cases())
def test_a_field_that_is_none_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(RefsimError) as caught:
        call()
    assert caught.value.what


def test_no_clusters_are_none_and_not_all() -> None:
    with pytest.raises(RefsimError, match="clusters"):
        gemm.Gemm1D2D(8, 8, 8, clusters=0)
