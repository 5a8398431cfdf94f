"""The PTX of gpu/kernels/block_scale_quantize.cu: entries, what it may not contain, its cost; nothing where there is nothing."""

import re
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

import refsim
from refsim import ptx
from refsim.device.compile import TARGETS, compile_ptx
from refsim.layouts import scale_layout

pytestmark = pytest.mark.usefixtures("committed_ptx")
SOURCE = Path(__file__).resolve().parents[2] / "gpu" / "kernels" / "block_scale_quantize.cu"
WIDE, FORMATS = ("bf16", "f16", "f32"), ("mxfp8", "mxfp8_e5m2", "mxfp4", "nvfp4")
LATER = pytest.mark.ci("the simulator's own target is compiled for in every run")
NAMES = [pytest.param(row.name, marks=() if row.name == "sm_90a" else LATER) for row in TARGETS]


@lru_cache
def text(target: str) -> str:
    return compile_ptx(SOURCE, target).text


@lru_cache
def program() -> ptx.Program:
    return ptx.load(text("sm_90a"))


@pytest.mark.parametrize("target", NAMES)
def test_entries_and_their_parameters(target: str) -> None:
    pointer, count, number = 8, 8, 4
    rows = [pointer, count, pointer, count, number, number, pointer, number]
    want = {f"{name}_quantize_{wide}": rows + [pointer] * (name == "nvfp4") for name in FORMATS for wide in WIDE}
    found = {
        name: [int(bits) // 8 for bits in re.findall(r"\.param \.[a-z](\d+)", parameters)]
        for name, parameters in re.findall(r"\.visible \.entry (\w+)\(([^)]*)\)", text(target))
    }
    assert found == want


@pytest.mark.parametrize("target", NAMES)
def test_no_approximation_no_flush_no_stack_no_call_no_barrier(target: str) -> None:
    for word in (".approx", ".ftz", ".local", "call", "fma.", "bar."):
        assert not re.search(rf"^\s[^/\n]*{re.escape(word)}", text(target), re.MULTILINE), word


def test_four_wide_loads_are_in_flight() -> None:
    for name in FORMATS:
        for wide in WIDE:
            body = text("sm_90a").split(f".entry {name}_quantize_{wide}(", 1)[1].split(".visible .entry", 1)[0]
            found = re.findall(r"^\s*\{?\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_.:]*)\s[^;]*;", body, re.MULTILINE)
            loads = [at for at, opcode in enumerate(found) if re.fullmatch(r"ld\.global(\.nc)?\.v4\.\w+", opcode)]
            assert len(loads) == 4
            assert not any(opcode.startswith(("shfl", "st.")) for opcode in found[loads[0] : loads[-1]])


@pytest.mark.parametrize(("format", "most"), [("mxfp8", 14.5), ("mxfp4", 28)])
def test_instructions_an_element_of_bf16(format: str, most: float) -> None:
    rows, columns = 128, 256
    values = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    codes = (values.view(np.uint32) >> 16).astype(np.uint16)
    want = refsim.quantize(codes, format, input_format="bf16")
    q, scales = np.zeros_like(want.packed), np.full(rows * columns // 32, 7, np.uint8)
    extents = [np.uint64(columns), q, np.uint64(q.shape[1]), np.uint32(rows), np.uint32(columns)]
    trace = program().launch(f"{format}_quantize_bf16", (4,), (256,), [codes, *extents, scales, np.uint32(3)])
    assert trace.is_exact
    assert trace.instructions / codes.size <= most
    np.testing.assert_array_equal(q, want.packed)
    np.testing.assert_array_equal(scales, scale_layout("nvidia_128x4").shuffle(want.scales))


@pytest.mark.parametrize("shape", [(0, 256), (3, 0), (0, 0)])
def test_nothing_is_written_where_there_is_nothing(shape: tuple[int, int]) -> None:
    x, q, scales = np.zeros(4, np.uint16), np.full(4, 7, np.uint8), np.full(4, 7, np.uint8)
    m, k = (np.uint32(extent) for extent in shape)
    program().launch(
        "mxfp8_quantize_bf16", (2,), (256,), [x, np.uint64(256), q, np.uint64(256), m, k, scales, np.uint32(0)]
    )
    assert set(q) == set(scales) == {7}
