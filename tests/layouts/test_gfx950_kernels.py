"""Triton's assembly for gfx950, executed from global load to store: scales as `cdna4_16` and `cdna4_32` shuffle them, the maps of
MFMA and the placeholder of its arithmetic fit together, and wrong maps do not.

The arithmetic itself is nobody's: `mfma.scale` of refsim.numerics is unverified.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from refsim import layouts, oracles, pack
from refsim.numerics import UnverifiedProfileWarning
from refsim.testing import assert_bits_equal
from refsim.testing.kernel_files import load_kernel_file
from tests import triton_versions
from tests.layouts import gfx950
from tests.layouts.gfx950_waves import Held, KernelFault, Maps

pytestmark = pytest.mark.ci(
    "compiles with Triton and runs an interpreter; test_cdna4.py shows the same of registers alone"
)
POINTERS = {"e2m1": "*u8", "e4m3": "*fp8e4nv", "e5m2": "*fp8e5"}
TILE = (128, 128, 256)  # smaller ones Triton 3.9 multiplies in bf16


@dataclass(frozen=True)
class Case:
    """`mn`: rows and columns of one MFMA; `shuffled` scales, or logical ones."""

    format: str
    mn: int
    shuffled: bool = True
    shape: tuple[int, int, int] = TILE

    def __str__(self) -> str:
        lie = "shuffled" if self.shuffled else "logical"
        return f"{self.format}-{self.mn}-{lie}-{'x'.join(map(str, self.shape))}"


CASES = (
    *(Case(format, mn) for format in ("e2m1", "e4m3") for mn in (16, 32)),
    *(Case(format, mn, shuffled=False) for format in ("e2m1", "e4m3") for mn in (16, 32)),
    Case("e4m3", 32, shape=(256, 128, 512)),
    Case("e5m2", 32),
)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("triton", reason="triton is not installed: pip install 'refsim[triton]'")
    triton_versions.since(triton_versions.GFX950)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield load_kernel_file(Path(__file__).with_name("triton_gfx950.py")).product


@cache
def assembly(kernel: Any, format: str, mn: int, shuffled: bool) -> str:
    """What Triton writes for four waves."""
    from triton import compiler
    from triton.backends.compiler import GPUTarget

    types = (
        dict.fromkeys(("a", "b"), POINTERS[format])
        | {"sa": "*u8", "sb": "*u8", "c": "*fp32"}
        | dict.fromkeys("MNK", "i32")
    )
    constants = {"format": format, "in_byte": 2 if format == "e2m1" else 1, "shuffled": mn if shuffled else 0}
    constants |= dict(zip(("BM", "BN", "BK"), TILE, strict=True))
    source = compiler.ASTSource(
        kernel,
        signature={name: types.get(name, "constexpr") for name in kernel.arg_names},
        constexprs=constants,
        attrs={(place,): [["tt.divisibility", 16]] for place in range(8)},
    )
    options = {"matrix_instr_nonkdim": mn, "num_warps": 4, "num_stages": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text: str = compiler.compile(source, target=GPUTarget("hip", "gfx950", 64), options=options).asm["amdgcn"]
    return text


def operands(case: Case) -> list[NDArray[np.uint8]]:
    """Codes of every number, scales that are all another within a row's blocks."""
    generator = np.random.default_rng([*case.shape, case.mn])
    m, n, k = case.shape
    top = {"e2m1": 16, "e4m3": 0x7F, "e5m2": 0x7C}[case.format]
    codes = [generator.integers(0, top, (rows, k)).astype(np.uint8) for rows in (m, n)]
    scales = [generator.integers(100, 150, (rows, k // 32)).astype(np.uint8) for rows in (m, n)]
    return codes + scales


def wanted(case: Case, given: list[NDArray[np.uint8]]) -> NDArray[np.float32]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnverifiedProfileWarning)
        return oracles.block_scaled_matmul(*given, a_format=case.format, b_format=case.format, target="gfx950")


def computed(
    kernel: Any, case: Case, given: list[NDArray[np.uint8]], layout: str = "", **how: Any
) -> NDArray[np.float32]:
    """D as the kernel stores it; what it does not store is NaN."""
    m, n, k = case.shape
    codes = [pack(x, case.format) if case.format == "e2m1" else x for x in given[:2]]
    row = layouts.scale_layout(layout or f"cdna4_{case.mn}")
    scales = [row.shuffle(x) for x in given[2:]] if case.shuffled else given[2:]
    d = np.full((m, n), np.nan, np.float32)
    text = assembly(kernel, case.format, case.mn, case.shuffled)
    gfx950.launch(text, "product", (m // TILE[0], n // TILE[1]), [*codes, *scales, d, m, n, k], **how)
    return d


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kernel_of_triton_stores_what_the_oracle_says(kernel: Any, case: Case) -> None:
    given = operands(case)
    shape = {16: "16x16x128", 32: "32x32x64"}[case.mn]
    assert f"v_mfma_scale_f32_{shape}_f8f6f4" in assembly(kernel, case.format, case.mn, case.shuffled)
    assert_bits_equal(computed(kernel, case, given, backwards=not case.shuffled), wanted(case, given), "f32")


def chunks_of_32(name: str) -> Any:
    """FP8 as if a lane held 32 consecutive k, as it does of FP4."""
    return layouts.fragment(name if name.endswith(".fp4") else f"{name}.fp4")


def rows_by_groups(name: str) -> Held:
    """A lane's row is its number divided by the groups, not its remainder."""
    right = layouts.fragment(name)
    mn = min(right.shape)
    groups = 64 // mn
    return Held(lambda lane, value: right.coord(lane // groups + mn * (lane % groups), value), right.values)


def other_blocks(name: str) -> Held:
    """The scale of the next block of K."""
    right = layouts.fragment(name)
    mn = max(right.shape)
    return Held(lambda lane, value: right.coord((lane + mn) % 64, value * 0), 1)


def transposed(name: str) -> Held:
    right = layouts.fragment(name)
    return Held(lambda lane, value: right.coord(lane, value)[::-1], right.values)


RIGHT = Maps()
WRONG: dict[str, Maps] = {
    "FP8 in stretches of 32 k": replace(RIGHT, operand=chunks_of_32),
    "rows of an operand by lane groups": replace(RIGHT, operand=rows_by_groups),
    "scales of the next block": replace(RIGHT, scale=other_blocks),
    "OPSEL ignored": replace(RIGHT, byte=lambda low, high: 0),
    "bits of OPSEL exchanged": replace(RIGHT, byte=lambda low, high: high + 2 * low),
    "D transposed": replace(RIGHT, result=transposed),
    "the upper nibble first": replace(RIGHT, low_first=False),
}
OF_FP4, OF_FP8 = "the upper nibble first", "FP8 in stretches of 32 k"


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("case", [Case("e4m3", 16), Case("e2m1", 32)], ids=str)
def test_a_wrong_map_is_refused(kernel: Any, case: Case, wrong: str) -> None:
    given = operands(case)
    d = computed(kernel, case, given, maps=WRONG[wrong])
    differing = (d.view(np.uint32) != wanted(case, given).view(np.uint32)).mean()
    unseen = wrong == (OF_FP8 if case.format == "e2m1" else OF_FP4)  # the format has no such choice
    assert (
        differing == 0
    ) == unseen  # nibbles that are exchanged in both operands exchange k: the order of the sum shows it


@pytest.mark.parametrize(("mn", "other"), [(16, "cdna4_32"), (32, "cdna4_16")])
def test_scales_for_the_other_instruction_are_refused(kernel: Any, mn: int, other: str) -> None:
    case = Case("e2m1", mn)
    given = operands(case)
    d = computed(kernel, case, given, layout=other)
    assert (d.view(np.uint32) != wanted(case, given).view(np.uint32)).mean() > 0.5


def edited(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("s_waitcnt vmcnt(0)", "s_nop 0", "has not arrived"),
        ("ds_read_b128", "ds_read_b127", "no ds_read_b127 here"),
        ("\tds_write_b128", "\ts_nop 0 ;", "nobody wrote"),
        ("s_load_dwordx8 s[4:11], s[0:1], 0x8", "s_load_dwordx8 s[4:11], s[0:1], 0x10", "KernelFault: "),
    ],
)
def test_the_interpreter_sees_what_a_kernel_must_not_do(
    kernel: Any, monkeypatch: pytest.MonkeyPatch, old: str, new: str, said: str
) -> None:
    case = Case("e4m3", 16)
    text = edited(assembly(kernel, case.format, case.mn, case.shuffled), old, new)
    monkeypatch.setattr(f"{__name__}.assembly", lambda *_: text)
    with pytest.raises((KernelFault, ValueError)) as stopped:
        computed(kernel, case, operands(case))
    assert said in f"{type(stopped.value).__name__}: {stopped.value}"
