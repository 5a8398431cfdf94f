"""Speed of the FP8 quantisers by groups on one NVIDIA GPU, against PyTorch's and a device copy in the same run.

    PYTHONPATH=. python benchmarks/gpu_fp8_group_quantize.py [--json PATH] [--sweep]

Needs torch with CUDA and cuda-bindings. The bits of every entry are compared with the oracle first. Times are medians
of CUDA events around launches that are queued behind a pause, through more buffers than the L2 cache holds; the data are
normal, none of them zero. The peers are the same cast as a torch expression, eager and by torch.compile bound to the size.
The bytes counted are those that must move: x is read and q written once, and a scale a group (3.03 B an element for bf16).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_quantizers import (
    POISON,
    TYPES,
    Argument,
    Benchmark,
    Row,
    codes_of,
    launch,
    measure_copy,
    median_microseconds,
    pointer,
    row,
    same,
    sets_of,
    swept,
)
from gpu.group_quantize_bindings import FP8_BLOCK_QUANTIZE, FP8_GROUP_QUANTIZE, SCALE_KINDS, SOURCE, launch_of
from refsim import scaling
from refsim.layouts import scale_layout

SHAPES = ((4096, 7168), (8192, 8192), (65536, 7168))
GROUP = 128
CHECKED = ((1, 128), (33, 1032), (128, 128), (301, 700), (2048, 7168))


@dataclass(frozen=True)
class Operands:
    """One quantisation: X, and where codes and scales go. `scales` has room for either kind and place."""

    x: torch.Tensor
    q: torch.Tensor
    scales: torch.Tensor
    format: str
    group_rows: int


def operands(rows: int, columns: int, format: str, group_rows: int) -> Operands:
    x = torch.randn(rows, columns, dtype=TYPES[format], device="cuda")
    q = torch.full((rows, columns), POISON, dtype=torch.uint8, device="cuda")
    padded = (rows + 3) * -(-columns // (4 * GROUP)) * 4
    return Operands(x, q, torch.full((padded,), POISON, dtype=torch.int32, device="cuda"), format, group_rows)


# ---------------------------------------------------------------------------------------------------------------------
# Launching


@dataclass(frozen=True)
class Quantizer:
    """The entries of one cubin, launched on PyTorch's stream; `threads` of groups of 1 x 128, at most `resident` blocks
    (0: one block a tile)."""

    functions: dict[str, Any]
    threads: int = 256
    resident: int = 0

    def __call__(self, o: Operands, scale: str = "f32", mn_major: bool = True, divides: bool = False) -> None:
        rows, columns = o.x.shape
        blocks, threads = launch_of(rows, columns, o.format, o.group_rows, self.threads)
        name = f"fp8_{'group' if o.group_rows == 1 else 'block'}_quantize_{o.format}{'_divide' if divides else ''}"
        arguments: list[Argument] = [pointer(o.x), ("u64", columns), pointer(o.q), ("u64", columns)]
        arguments += [("u32", rows), ("u32", columns), pointer(o.scales), ("u32", SCALE_KINDS.index(scale))]
        arguments += [("u32", int(mn_major))] if o.group_rows == 1 else []
        launch(self.functions[name], blocks, threads, [*arguments, ("f32", 1e-4)], self.resident)


# ---------------------------------------------------------------------------------------------------------------------
# Bits


def check_bits(functions: dict[str, Any]) -> int:
    """Every entry, kind and place of scales against the oracle; the number of launches compared."""
    quantizer, cases = Quantizer(functions), 0
    for format in TYPES:
        for group_rows in (1, GROUP):
            for rows, columns in CHECKED:
                for at, scale in enumerate(SCALE_KINDS):
                    for divides in (False, True):
                        o = operands(rows, columns, format, group_rows)
                        o.x[: rows // 2, :GROUP] = 0
                        o.x[0, at], o.x[-1, -1] = float("nan"), float("inf")
                        check(quantizer, o, scale, group_rows == 1 and (at + divides) % 2 == 0, divides)
                        cases += 1
    return cases


def check(quantizer: Quantizer, o: Operands, scale: str, mn_major: bool, divides: bool) -> None:
    quantizer(o, scale, mn_major, divides)
    group = (o.group_rows, GROUP)
    quotient: scaling.Quotient = "divide" if divides else "reciprocal"
    made = scaling.quantize(codes_of(o.x), o.format, group=group, scale=scale, quotient=quotient)
    want = made.scales
    if mn_major:
        want = scale_layout("deepgemm_mn_ue8m0" if want.dtype == np.uint8 else "deepgemm_mn_f32").shuffle(want)
    stored = o.scales.cpu().numpy().view(np.uint8)
    where = f"{tuple(o.x.shape)} {o.format} {group} {scale} mn_major={mn_major} divides={divides}"
    same(o.q.cpu().numpy(), made.codes, f"q {where}")
    same(stored[: want.nbytes], np.ascontiguousarray(want).reshape(-1).view(np.uint8), f"scales {where}")
    rest = np.full(o.scales.shape, POISON, np.int32).view(np.uint8)[want.nbytes :]
    same(stored[want.nbytes :], rest, f"after the scales {where}")


# ---------------------------------------------------------------------------------------------------------------------
# Times


def sets(shape: tuple[int, int], format: str, group_rows: int) -> list[Operands]:
    return sets_of(partial(operands, *shape, format, group_rows), shape[0] * shape[1] * TYPES[format].itemsize)


def torch_groups(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The cast as DeepGEMM writes it in torch, scales MN-major."""
    groups = x.float().view(x.shape[0], -1, GROUP)
    scale = groups.abs().amax(2, keepdim=True).clamp(1e-4) / 448.0
    q = (groups * (1.0 / scale)).to(torch.float8_e4m3fn).view(x.shape)
    return q, scale.squeeze(2).t().contiguous()


def torch_blocks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = x.float().view(x.shape[0] // GROUP, GROUP, x.shape[1] // GROUP, GROUP)
    scale = blocks.abs().amax((1, 3), keepdim=True).clamp(1e-4) / 448.0
    return (blocks * (1.0 / scale)).to(torch.float8_e4m3fn).view(x.shape), scale.view(scale.shape[0], -1)


def timed(operation: str, o: Operands, who: str, microseconds: float) -> Row:
    moved = o.x.element_size() + 1 + 4 / (GROUP * o.group_rows)
    return row(operation, tuple(o.x.shape), who, moved, microseconds)


def measure(functions: dict[str, Any]) -> list[Row]:
    """Copy; groups and blocks of bf16 at three shapes, ours and torch's; then other scales, quotients and types."""
    quantizer, rows = Quantizer(functions), [measure_copy()]
    for group_rows, peer in ((1, torch_groups), (GROUP, torch_blocks)):
        name = f"{group_rows}x{GROUP} bf16"
        for shape in SHAPES:
            mine = sets(shape, "bf16", group_rows)
            rows.append(timed(name, mine[0], "refsim", median_microseconds([partial(quantizer, o) for o in mine])))
            compiled = torch.compile(peer, dynamic=False)
            for who, function in (("torch.compile", compiled), ("torch eager", peer)):
                time = median_microseconds([partial(function, o.x) for o in mine], 10)
                rows.append(timed(name, mine[0], who, time))
            del mine
            torch.cuda.empty_cache()
    mine = sets((8192, 8192), "bf16", 1)
    for scale, mn_major, divides in (("e8m0", True, False), ("f32_power", True, False), ("f32", False, False)):
        label = f"1x{GROUP} bf16 {scale}{' MN' if mn_major else ' K'}"
        time = median_microseconds([partial(quantizer, o, scale, mn_major, divides) for o in mine])
        rows.append(timed(label, mine[0], "refsim", time))
    time = median_microseconds([partial(quantizer, o, divides=True) for o in mine])
    rows.append(timed(f"1x{GROUP} bf16 x / s", mine[0], "refsim", time))
    for format in ("f16", "f32"):
        mine = sets((8192, 8192), format, 1)
        rows.append(
            timed(f"1x{GROUP} {format}", mine[0], "refsim", median_microseconds([partial(quantizer, o) for o in mine]))
        )
    return rows


def sweep(functions: dict[str, Any]) -> list[dict[str, float]]:
    """Microseconds at 8192 x 8192 bf16 over threads and resident blocks a multiprocessor (0: one block a tile)."""
    mine = sets((8192, 8192), "bf16", 1)

    def of_grid(threads: int, resident: int) -> dict[str, float]:
        quantizer = Quantizer(functions, threads, resident)
        return {"microseconds": median_microseconds([partial(quantizer, o) for o in mine], 8)}

    return swept((64, 128, 256, 512, 1024), of_grid)


if __name__ == "__main__":
    names = (*FP8_GROUP_QUANTIZE.entries, *FP8_BLOCK_QUANTIZE.entries)
    Benchmark(SOURCE, names, check_bits, measure, sweep).main(__doc__)
