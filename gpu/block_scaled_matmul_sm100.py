"""The products of kernels/block_scaled_matmul_sm100.cu, declared: operands by tensor maps, scales in bulk, D in tensor memory."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from refsim.formats import format_named
from refsim.kernels import Buffer, Launcher, Outputs, Struct
from refsim.layouts.tma import TensorMap, tensor_map
from refsim.testing.kernel_files import load_kernel_file

matmul = load_kernel_file(Path(__file__).with_name("block_scaled_matmul.py"))
NAME = "block_scaled_matmul_sm100"
ENTRIES = matmul.entries_of(NAME)
TILE = 128  # rows, and columns, of D of a block
BOX = 128  # bytes of a row in shared memory, and elements of a padded one
SHARED_BYTES = 73728
PADDED = {6: "16u6_align16b", 4: "16u4_align16b"}  # by bits of an element


@dataclass(frozen=True, repr=False)
class BlockScaledSm100(matmul.BlockScaled):
    """A problem of block_scaled_matmul_sm100.cu."""

    entries: ClassVar = ENTRIES


def map_of(launcher: Launcher, problem: BlockScaledSm100, which: int) -> TensorMap:
    """A or B: bytes, two FP4 codes in each where both operands have them, else a byte a code in shared memory. K of a map
    that pads is a multiple of 128: what follows K there is poison."""
    row, codes, gap = problem.row, problem.operands[which], (problem.gaps.a, problem.gaps.b)[which]
    type = (row.a, row.b)[which]
    bits = format_named(type).bits
    is_padded = bits < 8 and format_named(row.a).bits + format_named(row.b).bits > 8
    packed, pitch = matmul.in_rows(codes, type, gap)
    extent = problem.k * bits // 8
    if is_padded:
        extent = -(-problem.k // BOX) * BOX
        wider = -(-max(pitch, extent * bits // 8) // 32) * 32
        packed, pitch = np.pad(packed, ((0, 0), (0, wider - pitch)), constant_values=matmul.POISON), wider
    held = launcher.upload(packed.reshape(-1), name="ab"[which])
    return tensor_map(
        PADDED[bits] if is_padded else "uint8",
        (extent, len(codes)),
        (BOX, TILE),
        strides=(pitch,),
        address=held.address,
        swizzle="128B",
    )


def run(launcher: Launcher, problem: BlockScaledSm100) -> Outputs:
    """A block for 128 x 128 of D."""
    maps = [map_of(launcher, problem, which) for which in (0, 1)]
    scales = [
        launcher.upload(matmul.SHUFFLED.shuffle(codes, fill=matmul.POISON).reshape(-1).astype(np.uint8), name=name)
        for codes, name in zip(problem.operands[2:], ("sfa", "sfb"), strict=True)
    ]

    def launch(d: Buffer, shape: Struct) -> None:
        grid = -(-problem.n // TILE), -(-problem.m // TILE)
        arguments = [*maps, *scales, d, np.float32(problem.factor), shape]
        launcher.launch(problem.entry, grid, (matmul.THREADS,), arguments, SHARED_BYTES)

    outputs: Outputs = matmul.with_result(launcher, problem, launch)
    return outputs


BLOCK_SCALED_SM100 = matmul.declared(
    BlockScaledSm100, NAME, "D = (A scaled) (B scaled)^T by tcgen05.mma with scales by block, into float32", run
)

KERNELS = (BLOCK_SCALED_SM100,)
