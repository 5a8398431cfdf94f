"""Write, as an npz file, the rows and columns that Triton's linear layouts have; the questions come as JSON on stdin.

A program of its own, since Triton's bindings leak objects and report that on stderr when the process ends. A question is
a name and a kind with its arguments; its answer is an array (2, threads, values), -1 where a place has no element.
"""

import json
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray
from triton._C.libtriton import gluon_ir, ir
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import AMDMFMALayout
from triton.experimental.gluon.language.nvidia.blackwell import TensorMemoryLayout, TensorMemoryScalesLayout

Places = tuple[NDArray[np.int64], NDArray[np.int64]]

context = ir.context()  # the builder does not keep it alive
ir.load_dialects(context)
builder = gluon_ir.GluonOpBuilder(context)


def places(layout: Any, shape: list[int]) -> Places:
    """Rows and columns of every (thread, value) of a layout over a tensor of that shape."""
    linear = builder.to_linear_layout(layout._to_ir(builder), shape)
    if hasattr(linear, "rows"):
        return spread(linear.rows, linear.cols)
    return spread(linear.lane_bases + linear.warp_bases, linear.reg_bases)


def spread(threads: list[list[int]], values: list[list[int]]) -> Places:
    """The bases are the coordinates of the bits of warp and lane, and of register; they combine by XOR."""

    def combined(bases: list[list[int]], axis: int) -> NDArray[np.int64]:
        total = np.zeros(1 << len(bases), dtype=np.int64)
        for bit, basis in enumerate(bases):
            total ^= np.where(np.arange(len(total)) >> bit & 1, basis[axis], 0)
        return total

    row, col = (combined(threads, axis)[:, None] ^ combined(values, axis)[None, :] for axis in (0, 1))
    return row, col


def nvidia(version: int, warps: int, shape: list[int], operand: int | None, width: int, extent: list[int]) -> Places:
    layout: Any = gl.NVMMADistributedLayout([version, 0], [warps, 1], shape)
    if operand is not None:
        layout = gl.DotOperandLayout(operand, layout, width)
    return places(layout, extent)


def tensor_memory(m: int, n: int, ctas: int) -> Places:
    layout = TensorMemoryLayout((m // ctas, n), 1, two_ctas=ctas == 2, cga_layout=[[1, 0]] if ctas == 2 else [])
    return places(layout, [m, n])


def tensor_memory_scales(extent: int, operand: str) -> Places:
    row, col = places(TensorMemoryScalesLayout(), [extent, 4])
    return (row, col) if operand == "sfa" else (col, row)


def amd(version: int, mn: int, k: int, operand: int | None, width: int, bitwidth: int = 32, packed: int = 1) -> Places:
    """`packed` elements share what Triton counts as one: fp4 pairs share a byte."""
    layout: Any = AMDMFMALayout(version, [mn, mn, k], False, [1, 1], element_bitwidth=bitwidth)
    if operand is None:
        return places(layout, [mn, mn])
    along = k // packed
    row, col = places(gl.DotOperandLayout(operand, layout, width), [mn, along] if operand == 0 else [along, mn])
    return unpacked(row, packed if operand == 1 else 1, packed), unpacked(col, packed if operand == 0 else 1, packed)


def unpacked(axis: NDArray[np.int64], stretch: int, packed: int) -> NDArray[np.int64]:
    """The coordinate of each of `packed` elements, which run along the axis that is stretched."""
    parts = np.arange(packed) if stretch > 1 else np.zeros(packed, dtype=np.int64)
    return (axis[..., None] * stretch + parts).reshape(len(axis), -1)


def amd_scales(mn: int, blocks: int, operand: int) -> Places:
    linear = gluon_ir.get_amd_mfma_scale_layout(operand, [mn, blocks], mn, [1, 1], [1, 1])
    row, col = spread(linear.lane_bases, linear.reg_bases)
    byte = np.arange(4)[None, :] == 0
    row, col = np.where(byte, row, -1), np.where(byte, col, -1)
    return (row, col) if operand == 0 else (col, row)


KINDS = {
    "nvidia": nvidia,
    "tensor memory": tensor_memory,
    "scales": tensor_memory_scales,
    "amd": amd,
    "amd scales": amd_scales,
}
answers = {name: np.stack(KINDS[kind](*arguments)) for name, (kind, *arguments) in json.load(sys.stdin).items()}
np.savez(sys.argv[1], **answers)
