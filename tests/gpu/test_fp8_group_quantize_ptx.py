"""The PTX of gpu/kernels/fp8_group_quantize.cu: entries, what it may not contain, its cost; nothing where there is nothing."""

import re
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from refsim import ptx, scaling
from refsim.device.compile import TARGETS, compile_ptx

pytestmark = pytest.mark.usefixtures("committed_ptx")
SOURCE = Path(__file__).resolve().parents[2] / "gpu" / "kernels" / "fp8_group_quantize.cu"
WIDE = {"bf16": np.uint16, "f16": np.uint16, "f32": np.uint32}
SUFFIXES = ("", "_divide")
LATER = pytest.mark.ci("the simulator's own target is compiled for in every run")
OTHERS = pytest.mark.ci("instructions are counted for bf16 in every run")
NAMES = [pytest.param(row.name, marks=() if row.name == "sm_90a" else LATER) for row in TARGETS]


@lru_cache
def text(target: str) -> str:
    return compile_ptx(SOURCE, target).text


@lru_cache
def program(target: str = "sm_90a") -> ptx.Program:
    return ptx.load(text(target))


def opcodes(entry: str, target: str = "sm_90a") -> list[str]:
    """Opcodes of an entry, in order."""
    body = text(target).split(f".entry {entry}(", 1)[1].split(".visible .entry", 1)[0]
    return re.findall(r"^\s*\{?\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_]*(?:[.:]+[a-z0-9_]+)*)\s[^;]*;", body, re.MULTILINE)


@pytest.mark.parametrize("target", NAMES)
def test_entries_and_their_parameters(target: str) -> None:
    pointer, count, number = 8, 8, 4
    rows = [pointer, count, pointer, count, number, number, pointer, number]
    want = {f"fp8_group_quantize_{wide}{suffix}": [*rows, number, number] for wide in WIDE for suffix in SUFFIXES}
    want |= {f"fp8_block_quantize_{wide}{suffix}": [*rows, number] for wide in WIDE for suffix in SUFFIXES}
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
def test_only_the_quotient_divides_elements(target: str) -> None:
    for family in ("group", "block"):
        for wide in WIDE:
            product, quotient = (opcodes(f"fp8_{family}_quantize_{wide}{suffix}", target) for suffix in SUFFIXES)
            assert (product.count("div.rn.f32"), product.count("rcp.rn.f32")) == (1, 1)
            assert (quotient.count("rcp.rn.f32"), quotient.count("mul.rn.f32")) == (0, 0)
            assert quotient.count("div.rn.f32") > 16
            assert not {"mul.f32", "add.f32"} & {*product, *quotient}


def test_four_wide_loads_are_in_flight_and_codes_leave_together() -> None:
    for family in ("group", "block"):
        for wide in WIDE:
            found = opcodes(f"fp8_{family}_quantize_{wide}")
            loads = [at for at, opcode in enumerate(found) if re.fullmatch(r"ld\.global(\.nc)?\.v4\.\w+", opcode)]
            assert len(loads) == 4
            between = found[loads[0] : loads[-1]]
            assert not any(opcode.startswith(("shfl", "bar", "max", "st.")) for opcode in between)
            assert found.count("st.global.v2.u32" if wide != "f32" else "st.global.u32") >= 4
            assert "cvt.rn.satfinite.e4m3x2.f32" in found


@pytest.mark.parametrize(
    ("wide", "most"), [("bf16", 10.5), pytest.param("f16", 11, marks=OTHERS), pytest.param("f32", 14.5, marks=OTHERS)]
)
def test_instructions_an_element(wide: str, most: float) -> None:
    rows, columns = 256, 4096
    values = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    x = {"bf16": (values.view(np.uint32) >> 16).astype(np.uint16), "f16": values.astype(np.float16), "f32": values}[
        wide
    ]
    codes = np.ascontiguousarray(x).view(WIDE[wide])
    for family, group in (("group", (1, 128)), ("block", (128, 128))):
        q = np.zeros((rows, columns), np.uint8)
        want = scaling.quantize(codes, wide, group=group)
        scales = np.zeros(want.scales.shape, np.float32)
        kind_and_place = [np.uint32(0)] * (2 if family == "group" else 1)
        pitch, m, k = np.uint64(columns), np.uint32(rows), np.uint32(columns)
        arguments = [codes, pitch, q, pitch, m, k, scales, *kind_and_place, np.float32(1e-4)]
        threads = 256 if family == "group" else 1024 if wide == "f32" else 512
        trace = program().launch(f"fp8_{family}_quantize_{wide}", (8,), (threads,), arguments)
        assert trace.is_exact
        assert trace.instructions / codes.size <= most
        np.testing.assert_array_equal(q, want.codes)
        np.testing.assert_array_equal(scales, want.scales)


@pytest.mark.parametrize("shape", [(0, 256), (3, 0), (0, 0)])
def test_nothing_is_written_where_there_is_nothing(shape: tuple[int, int]) -> None:
    """Neither a code nor a scale, also where rows are padded."""
    for family, places in (("group", [np.uint32(2), np.uint32(1)]), ("block", [np.uint32(0)])):
        x, q, scales = np.zeros(4, np.uint16), np.full(4, 7, np.uint8), np.full(4, 7, np.uint32)
        m, k = (np.uint32(extent) for extent in shape)
        arguments = [x, np.uint64(256), q, np.uint64(256), m, k, scales, *places, np.float32(1e-4)]
        program().launch(f"fp8_{family}_quantize_bf16", (2,), (512,), arguments)
        assert set(q) == set(scales) == {7}
