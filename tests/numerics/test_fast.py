"""When the fast paths are taken, what they do without numba, how much memory they use, and the cases they hand back."""

import subprocess
import sys
import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from refsim.conversions import encode
from refsim.formats import BF16, E4M3
from refsim.numerics import mma, profile
from refsim.numerics.dot import chains
from refsim.numerics.dot.chains import Operands
from refsim.numerics.dot.definition import GROUP
from refsim.numerics.fast import compiled, product
from refsim.numerics.fast.operands import ZERO
from refsim.numerics.fast.product import Plan, plan_for
from refsim.numerics.fast.reals import LOWEST_PRODUCT
from refsim.numerics.multiply import call_asked_for

FP8 = profile("sm_90", "wgmma", "e4m3", "e4m3", "f32")
FP4 = profile("sm_100", "tcgen05.mxf4nvf4", "e2m1", "e2m1", "f32")
MODULE = "refsim.numerics.fast.kernels"


def kernels(*signatures: str) -> Any:
    """A stand-in for the compiled module, of which some kernels are compiled."""
    return SimpleNamespace(
        **{name: SimpleNamespace(signatures=[()] * (name in signatures)) for name in ("narrow", "wide", "grouped")}
    )


def e4m3(shape: tuple[int, ...], seed: int = 1) -> np.ndarray:
    return encode(np.random.default_rng(seed).standard_normal(shape), "e4m3")


def bf16(*values: float) -> np.ndarray:
    """A row of bf16 codes, padded to two steps of 16."""
    row = np.zeros((1, 32), np.float32)
    row[0, : len(values)] = values
    return encode(row, "bf16", overflow="inf")


def test_small_problems_stay_in_numpy_until_the_loops_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setattr(compiled.left_to_numpy, "products", 0)
    assert not compiled.wins((1, 64, 128), 128, FP8)
    monkeypatch.setitem(sys.modules, MODULE, kernels("narrow"))
    assert compiled.wins((1, 64, 128), 128, FP8)
    assert not compiled.wins((1, 64, 128), 128, FP4)
    assert not compiled.wins((1, 16, 32), 32, FP8), "too few products"
    assert not compiled.wins((64, 8, 16), 1024, FP8), "too few rows and columns to fill a tile"


def test_a_module_that_another_thread_is_loading_is_not_used_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in sys.modules before its kernels are defined."""
    monkeypatch.setattr(compiled.left_to_numpy, "products", 0)
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace())
    assert not compiled.wins((1, 64, 128), 128, FP8)
    assert not compiled.wins((1, 64, 128), 128, FP4)


def test_small_problems_that_took_as_long_together_are_worth_compiling_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setattr(compiled, "kernels", kernels)
    monkeypatch.setattr(compiled.left_to_numpy, "products", 0)
    asked = [compiled.wins((16, 64, 128), 128, FP8) for _ in range(40)]
    assert asked == [False] * 32 + [True] * 8  # 32 times 2^24 products


def test_a_small_call_does_not_load_numba() -> None:
    code = (
        "import sys, numpy as np; from refsim.numerics import mma;"
        "mma(np.zeros((64, 128), np.uint8), np.zeros((128, 128), np.uint8), None);"
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_large_problem_is_worth_compiling_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "kernels", kernels)
    assert compiled.wins((1, 1024, 1024), 1024, FP8)
    monkeypatch.setattr(compiled, "kernels", lambda: None)
    assert not compiled.wins((1, 1024, 1024), 1024, FP8)


def test_without_numba_the_answer_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, None)
    compiled.kernels.cache_clear()
    try:
        assert compiled.kernels() is None
        monkeypatch.setattr(compiled, "COMPILED_FROM", 1)
        a, b = e4m3((40, 64)), e4m3((48, 64), 2)
        plan = plan_for((1, 40, 48), 64, FP8, 32)
        assert not plan.compiled
        problem = call_asked_for(a, b)
        want = chains.matrix_product(problem.operands, problem.c, FP8, 32)
        assert (mma(a, b, None).view(np.uint32) == want[0]).all()
    finally:
        compiled.kernels.cache_clear()


@pytest.mark.skipif(compiled.kernels() is None, reason="numba is not installed: pip install 'refsim[fast]'")
def test_the_constants_of_the_kernels_are_those_of_numpy() -> None:
    """They stand twice: numba's cache on disk does not see a change in another file."""
    module = compiled.kernels()
    assert module is not None
    assert module.WIDTH == compiled.WIDTH
    assert (module._GROUP, module._FLOOR, module._ABSENT) == (GROUP, LOWEST_PRODUCT, ZERO)


@pytest.mark.skipif(compiled.kernels() is None, reason="numba is not installed: pip install 'refsim[fast]'")
def test_wide_operands_of_a_small_problem_do_not_wait_for_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for them may be missing where those for narrow ones are there: that tile is computed in NumPy."""
    module = compiled.kernels()
    assert module is not None
    monkeypatch.setattr(module, "wide", kernels().wide)
    a, b = bf16(2.0**-100, 1.0, 2.0**100), bf16(2.0**100, 2.0**-60, 2.0**20)
    problem = call_asked_for(a, b, a_format=BF16, b_format=BF16)
    plan = Plan(problem.row, 16, 1, compiled=True, may_compile=False)
    want = chains.matrix_product(problem.operands, problem.c, problem.row, 16)
    assert (product.fast_product(problem.operands, problem.c, plan) == want).all()


def test_numpy_alone_takes_eight_threads_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "cores", lambda: 64)
    assert [product.threads_for(1 << 30, compiled=each) for each in (False, True)] == [8, 64]
    monkeypatch.setattr(product, "cores", lambda: 2)
    assert product.threads_for(1 << 30, compiled=False) == 2


def test_threads_and_kernels_only_where_they_pay() -> None:
    small, large = plan_for((1, 16, 8), 32, FP8, 32), plan_for((1, 1024, 1024), 1024, FP8, 32)
    assert (small.threads, small.compiled, small.may_compile) == (1, False, False)
    assert large.threads >= 1
    assert large.may_compile


@pytest.mark.ci("a large product under tracemalloc; that tiles never matter is tried in every run")
def test_memory_is_bounded_by_tiles_not_by_k() -> None:
    a, b = e4m3((192, 8192)), e4m3((192, 8192), 2)
    tracemalloc.start()
    try:
        mma(a, b, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 80 << 20, f"{peak / 2**20:.0f} MiB"


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        ([2.0**127] * 8 + [0.0] * 8 + [-np.inf], [2.0] * 8 + [0.0] * 8 + [1.0], 0x7FFFFFFF),
        ([-np.inf] + [0.0] * 15 + [2.0**127] * 8, [1.0] + [0.0] * 15 + [2.0] * 8, 0xFF800000),
        ([2.0**127] * 8 + [0.0] * 8 + [np.inf], [2.0] * 8 + [0.0] * 8 + [1.0], 0x7F800000),
        ([np.inf, 1.0], [0.0, 1.0], 0x7FFFFFFF),
        ([np.inf, 1.0], [-1.0, 1.0], 0xFF800000),
    ],
    ids=["overflow-then-opposite", "infinity-then-overflow", "overflow-then-same", "infinity-times-zero", "infinity"],
)
def test_infinities_meet_sums_that_overflow_in_their_order(a: list[float], b: list[float], want: int) -> None:
    got = mma(bf16(*a), bf16(*b), None, unit="wgmma", a_format="bf16", b_format="bf16")
    assert int(got.view(np.uint32)[0, 0]) == want


def test_only_the_outputs_whose_order_counts_go_to_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    defined: list[int] = []

    def recorded(operands: Any, *rest: Any) -> Any:
        defined.append(len(operands.a))
        return matrix_product(operands, *rest)

    matrix_product = chains.matrix_product
    monkeypatch.setattr(chains, "matrix_product", recorded)
    a = np.concatenate([bf16(*[2.0**127] * 8, *[0.0] * 8, -np.inf), bf16(1.0)])
    b = np.concatenate([bf16(*[2.0] * 8, *[0.0] * 8, 1.0), bf16(1.0)])
    got = mma(a, b, None, unit="wgmma", a_format="bf16", b_format="bf16").view(np.uint32)
    assert defined == [1]
    assert got.tolist() == [[0x7FFFFFFF, 0x7FFFFFFF], [0x40000000, 0x3F800000]]


def test_a_caller_who_lets_numpy_raise_is_not_disturbed() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 1 << 16, (40, 64)).astype(np.uint16) for _ in range(2))
    c = rng.integers(0, 1 << 32, (40, 40), np.uint32).view(np.float32)
    kinds = {"unit": "wgmma", "a_format": "bf16", "b_format": "bf16"}
    want = mma(a, b, c, **kinds).view(np.uint32)
    with np.errstate(all="raise"):
        got = mma(a, b, c, **kinds).view(np.uint32)
    assert (got == want).all()


@pytest.mark.parametrize("batch", [5, 17, 700])
def test_batches_are_computed_together_and_come_out_apart(batch: int) -> None:
    """Loops run over the columns, over the batch, and over parts of the batch."""
    a, b = e4m3((batch, 16, 64)), e4m3((batch, 8, 64), 2)
    c = np.random.default_rng(4).standard_normal((batch, 16, 8)).astype(np.float32)
    together = mma(a, b, c).view(np.uint32)
    assert together.flags.c_contiguous
    apart = [mma(x, y, z).view(np.uint32) for x, y, z in zip(a, b, c, strict=True)]
    assert (together == np.stack(apart)).all()


@pytest.mark.parametrize(
    ("shape", "computed", "path"),
    [
        ((1, 16, 8), (1, 8, 16), "NumPy"),
        ((700, 16, 8), (700, 16, 8), "NumPy"),  # over the batch
        ((16, 2048, 8), (16, 8, 2048), "NumPy"),  # four of the batch at a time
        ((16, 2048, 8), (16, 8, 2048), "compiled"),
    ],
)
def test_loops_run_over_what_is_longest(
    shape: tuple[int, int, int], computed: tuple[int, ...], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr(product, "_chained", lambda operands, c, plan: seen.append(c.shape) or c)
    batch, m, n = shape
    problem = call_asked_for(e4m3((batch, m, 32)), e4m3((batch, n, 32)))
    plan = Plan(FP8, 32, 1, compiled=path == "compiled", may_compile=True)
    assert product.fast_product(problem.operands, problem.c, plan).shape == shape
    assert seen == [computed]


def test_empty_products_are_empty() -> None:
    assert mma(e4m3((0, 32)), e4m3((8, 32)), None).shape == (0, 8)
    assert mma(e4m3((8, 32)), e4m3((0, 32)), None).shape == (8, 0)
    assert mma(e4m3((0, 8, 32)), e4m3((0, 8, 32)), None).shape == (0, 8, 8)


def test_rows_without_a_fast_step_are_those_of_the_definition() -> None:
    a, b = encode(np.ones((2, 4)), "f16"), encode(np.full((3, 4), 2.0), "f16")
    got = mma(a, b, None, unit="mfma", a_format="f16", b_format="f16", target="gfx908", k=4)
    assert (got == 8).all()


def test_a_step_of_the_largest_products_stays_within_its_integers() -> None:
    """31 products of 448 x 448 in units of the last kept bit pass 2^31; one tiny factor keeps them from being exact."""
    row = profile("sm_120", "mma.sync", "e4m3", "e4m3", "f32")
    codes = np.full((1, 2, 32), 0x7E, np.uint8)
    codes[..., 0] = 0x01
    operands, c = Operands(codes, codes, E4M3, E4M3), np.zeros((1, 2, 2), np.uint32)
    assert (product.matrix_product(operands, c.copy(), row, 32) == chains.matrix_product(operands, c, row, 32)).all()


@pytest.mark.parametrize(
    ("threads", "shape", "rows"),
    [(4, (1, 100, 8), 25), (1, (1, 100, 8), 100), (1, (1, 100, 1 << 12), 16), (1, (1 << 17, 100, 1), 1)],
)
def test_tiles_of_rows_are_shared_out_to_threads_and_stay_in_the_cache(threads, shape, rows):
    """2^16 outputs at most, and a part of the rows for each thread."""
    plan = Plan(FP8, 32, threads, compiled=False, may_compile=False)
    tiles = plan.row_tiles(shape, 32)
    assert tiles == [slice(first, first + rows) for first in range(0, 100, rows)]
