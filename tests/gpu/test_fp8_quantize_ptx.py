"""The PTX of gpu/kernels/fp8_quantize.cu: entries, what it may not contain, its cost, odd addresses and grids."""

import itertools
import re
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from refsim import ptx
from refsim.device.compile import TARGETS, compile_ptx
from refsim.oracles import fp8_quantize as oracle

pytestmark = pytest.mark.usefixtures("committed_ptx")
SOURCE = Path(__file__).resolve().parents[2] / "gpu" / "kernels" / "fp8_quantize.cu"
WIDE = {"bf16": np.uint16, "f16": np.uint16, "f32": np.uint32}
FMTS = ("e4m3", "e5m2")
LATER = pytest.mark.ci("the oldest target, the simulator's own and the newest are compiled for in every run")
NAMES = [pytest.param(row.name, marks=LATER if row.name in ("sm_89", "sm_100a") else ()) for row in TARGETS]


@lru_cache
def text(target: str) -> str:
    return compile_ptx(SOURCE, target).text


@lru_cache
def program(target: str = "sm_90a") -> ptx.Program:
    return ptx.load(text(target))


def instructions(entry: str, target: str = "sm_90a") -> list[str]:
    """Opcodes of an entry, in order."""
    body = text(target).split(f".entry {entry}(", 1)[1].split(".visible .entry", 1)[0]
    return re.findall(r"^\s*\{?\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_]*(?:[.:]+[a-z0-9_]+)*)\s[^;]*;", body, re.MULTILINE)


# ---------------------------------------------------------------------------------------------------------------------
# What the text says


@pytest.mark.parametrize("target", NAMES)
def test_entries_and_their_parameters(target: str) -> None:
    pointer, count, number = 8, 8, 4
    want = {f"fp8_amax_{wide}": [pointer, count, pointer] for wide in WIDE}
    for wide, fmt in itertools.product(WIDE, FMTS):
        want[f"fp8_quantize_{wide}_{fmt}"] = [pointer, count, pointer, pointer, pointer, number]
        want[f"fp8_dequantize_{fmt}_{wide}"] = [pointer, count, pointer, pointer]
    found = {
        name: [int(bits) // 8 for bits in re.findall(r"\.param \.[a-z](\d+)", parameters)]
        for name, parameters in re.findall(r"\.visible \.entry (\w+)\(([^)]*)\)", text(target))
    }
    assert found == want
    assert set(program(target).entries) == set(want)


@pytest.mark.parametrize("target", NAMES)
def test_no_approximation_no_flush_no_stack_no_call(target: str) -> None:
    for word in (".approx", ".ftz", ".local", "call", "fma."):
        assert not re.search(rf"^\s[^/\n]*{re.escape(word)}", text(target), re.MULTILINE), word


@pytest.mark.parametrize("target", NAMES)
def test_products_are_rounded_and_division_is_exact(target: str) -> None:
    for wide, fmt in itertools.product(WIDE, FMTS):
        cast, back = (
            instructions(f"fp8_quantize_{wide}_{fmt}", target),
            instructions(f"fp8_dequantize_{fmt}_{wide}", target),
        )
        assert cast.count("div.rn.f32") == 1
        assert cast.count("rcp.rn.f32") == 1
        assert "mul.rn.f32" in cast
        assert "mul.rn.f32" in back
        assert not {"mul.f32", "add.f32"} & {*cast, *back}


@pytest.mark.parametrize("target", [pytest.param("sm_89", marks=LATER), "sm_90a", pytest.param("sm_100a", marks=LATER)])
def test_hardware_conversions_and_wide_accesses(target: str) -> None:
    for wide, fmt in itertools.product(WIDE, FMTS):
        narrow = "ld.global.cs.v2.u32" if wide != "f32" else "ld.global.cs.u32"
        cast, back = (
            instructions(f"fp8_quantize_{wide}_{fmt}", target),
            instructions(f"fp8_dequantize_{fmt}_{wide}", target),
        )
        assert f"cvt.rn.satfinite.{fmt}x2.f32" in cast
        assert f"cvt.rn.f16x2.{fmt}x2" in back
        assert wide_loads(cast) == wide_loads(instructions(f"fp8_amax_{wide}", target)) == 5  # four a tile, one a rest
        assert narrow in back
        assert "st.global.cs.v4.u32" in back


def wide_loads(opcodes: list[str]) -> int:
    return sum(opcode in ("ld.global.v4.u32", "ld.global.nc.v4.u32", "ld.global.v4.f32") for opcode in opcodes)


def test_lines_lead_back_to_the_source() -> None:
    lines = {int(line) for line in re.findall(r"^\s*\.loc\s+1\s+(\d+)", text("sm_90a"), re.MULTILINE)}
    source = SOURCE.read_text().splitlines()
    division = next(number for number, line in enumerate(source, 1) if "__fdiv_rn" in line)
    assert division in lines
    assert max(lines) <= len(source)


# ---------------------------------------------------------------------------------------------------------------------
# What it does


def normal(wide: str, n: int) -> NDArray[np.unsignedinteger]:
    values = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    if wide == "f16":
        return values.astype(np.float16).view(np.uint16)
    return (values.view(np.uint32) >> 16).astype(np.uint16) if wide == "bf16" else values.view(np.uint32)


def blocks(n: int, wide: str, unroll: int) -> int:
    return max(1, -(-n * np.dtype(WIDE[wide]).itemsize // (256 * 16 * unroll)))


@pytest.mark.parametrize(
    ("wide", "bounds"), [("bf16", (4.2, 6.8, 9.0)), ("f16", (4.2, 6.8, 9.0)), ("f32", (8, 7.5, 13.5))]
)
def test_instructions_an_element(wide: str, bounds: tuple[float, float, float]) -> None:
    """The price of a million elements in the simulator: amax, cast, inverse."""
    n = 1_000_003
    codes = normal(wide, n)
    amax, scale = np.zeros(1, np.uint32), np.zeros(1, np.float32)
    q, y = np.zeros(n, np.uint8), np.zeros_like(codes)
    count, eps = np.uint64(n), np.float32(oracle.EPS)
    grid, back = (blocks(n, wide, 4),), (blocks(n, wide, 2),)
    traces = [
        program().launch(f"fp8_amax_{wide}", grid, (256,), [codes, count, amax]),
        program().launch(f"fp8_quantize_{wide}_e4m3", grid, (256,), [codes, count, amax, q, scale, eps]),
        program().launch(f"fp8_dequantize_e4m3_{wide}", back, (256,), [q, count, scale, y]),
    ]
    assert all(trace.is_exact for trace in traces)
    assert all(trace.instructions / n <= bound for trace, bound in zip(traces, bounds, strict=True))
    want_q, want_scale = oracle.quantize(codes, wide, "e4m3")
    assert amax[0] == oracle.amax(codes, wide)
    assert scale.view(np.uint32)[0] == want_scale.view(np.uint32)
    assert np.array_equal(q, want_q)
    assert np.array_equal(y, oracle.dequantize(want_q, want_scale, "e4m3", wide))


@pytest.mark.parametrize("target", NAMES)
def test_no_element_is_visited_twice(target: str) -> None:
    """Sixteen blocks do sixteen blocks' work and no more, also where a thread moves one vector at a time."""
    codes, amax = normal("bf16", 1 << 16), np.zeros(1, np.uint32)
    trace = program(target).launch("fp8_amax_bf16", (16,), (128,), [codes, np.uint64(codes.size), amax])
    assert trace.instructions / codes.size < 8


OTHERS = pytest.mark.ci("each type and each way of making FP8 is tried in every run")


@pytest.mark.parametrize(
    ("target", "wide", "fmt"),
    [
        ("sm_90a", "bf16", "e4m3"),
        ("sm_90a", "f16", "e5m2"),
        pytest.param("sm_90a", "f32", "e4m3", marks=OTHERS),
        pytest.param("sm_100a", "bf16", "e5m2", marks=OTHERS),
        pytest.param("sm_89", "f32", "e5m2", marks=OTHERS),
        pytest.param("sm_80", "bf16", "e4m3", marks=OTHERS),
        ("sm_80", "f32", "e5m2"),
    ],
)
def test_any_address_any_grid_any_count(target: str, wide: str, fmt: str) -> None:
    """Every misalignment of x with every width that the codes can be moved in; grids from one block up."""
    size = np.dtype(WIDE[wide]).itemsize
    shapes = itertools.cycle([(1, 32), (1, 256), (3, 64), (2, 1024)])
    counts = itertools.cycle([0, 1, 16 // size, 100, 2 * 64 * 4 * 16 // size + 21])
    for x_shift, q_shift in itertools.product(range(0, 16, size), (0, 1, 2, 4)):
        run_once(target, (wide, fmt), next(counts), (x_shift, q_shift), next(shapes))


def run_once(target: str, formats: tuple[str, str], n: int, shifts: tuple[int, int], shape: tuple[int, int]) -> None:
    wide, fmt = formats
    codes = normal(wide, n)
    memory = ptx.GlobalMemory()
    x = memory.allocate(codes.nbytes, "x", initial=codes, offset=shifts[0], writable=False)
    amax = memory.allocate(4, "amax", initial=np.zeros(1, np.uint32))
    q = memory.allocate(n, "q", offset=shifts[1])
    scale = memory.allocate(4, "scale")
    y = memory.allocate(codes.nbytes, "y", offset=shifts[0])
    grid, block = (shape[0],), (shape[1],)
    count, eps = np.uint64(n), np.float32(oracle.EPS)
    for entry, args in (
        (f"fp8_amax_{wide}", [np.uint64(x), count, np.uint64(amax)]),
        (f"fp8_quantize_{wide}_{fmt}", [np.uint64(x), count, *map(np.uint64, (amax, q, scale)), eps]),
        (f"fp8_dequantize_{fmt}_{wide}", [np.uint64(q), count, *map(np.uint64, (scale, y))]),
    ):
        program(target).launch(entry, grid, block, args, memory=memory)
    want_q, want_scale = oracle.quantize(codes, wide, fmt)
    where = (n, shifts, shape)
    assert memory.read(amax, 4).view(np.uint32)[0] == oracle.amax(codes, wide), where
    assert memory.read(scale, 4).view(np.uint32)[0] == want_scale.view(np.uint32), where
    assert np.array_equal(memory.read(q, n), want_q), where
    assert np.array_equal(
        memory.read(y, codes.nbytes).view(codes.dtype), oracle.dequantize(want_q, want_scale, fmt, wide)
    )
    assert memory.written(q, n).all()
