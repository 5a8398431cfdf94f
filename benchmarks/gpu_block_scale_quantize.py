"""Speed of the quantisers of block scaling on one NVIDIA GPU, beside a device copy in the same run.

    PYTHONPATH=. python benchmarks/gpu_block_scale_quantize.py [--json PATH] [--sweep]

Needs torch with CUDA and cuda-bindings. The bits of every entry and recipe are compared with the oracle first. Times are
medians of CUDA events around launches that are queued behind a pause, through more buffers than the L2 cache holds; the data
are normal. The bytes counted are those that must move: x is read, codes and a byte a block are written (3.03 B an element
from bf16 to MXFP8).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import refsim
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
from gpu.block_scale import FORMATS, KERNELS, LAYOUT, SOURCE, launch_of, order_of, recipes_of
from refsim.conversions import pack
from refsim.scaling import block_format

SHAPES = ((4096, 7168), (8192, 8192), (65536, 7168))
CHECKED = ((1, 32), (33, 1056), (128, 128), (301, 736), (512, 7168))


@dataclass(frozen=True)
class Operands:
    """One quantisation: X, and where codes and scales go; `tensor_scale` is the S of NVFP4."""

    x: torch.Tensor
    q: torch.Tensor
    scales: torch.Tensor
    tensor_scale: torch.Tensor
    wide: str
    format: str


def operands(rows: int, columns: int, wide: str, format: str) -> Operands:
    block = block_format(format)
    x = torch.randn(rows, columns, dtype=TYPES[wide], device="cuda")
    q = torch.full((rows, columns * block.element.bits // 8), POISON, dtype=torch.uint8, device="cuda")
    size = LAYOUT.size_bytes((rows, -(-columns // block.width)))
    scales = torch.full((size,), POISON, dtype=torch.uint8, device="cuda")
    return Operands(x, q, scales, torch.full((1,), 512.0, device="cuda"), wide, format)


@dataclass(frozen=True)
class Quantizer:
    """The entries of one cubin, launched on PyTorch's stream; at most `resident` blocks (0: one block a tile)."""

    functions: dict[str, Any]
    threads: int = 256
    resident: int = 0

    def __call__(self, o: Operands, recipe: str) -> None:
        rows, columns = o.x.shape
        blocks, threads = launch_of(rows, columns, o.wide, o.format, self.threads)
        arguments: list[Argument] = [pointer(o.x), ("u64", columns), pointer(o.q), ("u64", o.q.shape[1])]
        arguments += [("u32", rows), ("u32", columns), pointer(o.scales), ("u32", order_of(o.format).index(recipe))]
        if block_format(o.format).two_levels:
            arguments.append(pointer(o.tensor_scale))
        launch(self.functions[f"{o.format}_quantize_{o.wide}"], blocks, threads, arguments, self.resident)


def check_bits(functions: dict[str, Any]) -> int:
    """Every entry and recipe against the oracle; the number of launches compared."""
    quantizer, cases = Quantizer(functions), 0
    for wide in TYPES:
        for format in FORMATS:
            for recipe in recipes_of(format):
                for rows, columns in CHECKED:
                    o = operands(rows, columns, wide, format)
                    o.x[: rows // 2, :32] = 0
                    o.x[0, 3], o.x[-1, -1] = float("nan"), float("inf")
                    check(quantizer, o, recipe)
                    cases += 1
    return cases


def check(quantizer: Quantizer, o: Operands, recipe: str) -> None:
    quantizer(o, recipe)
    kept = 512.0 if block_format(o.format).two_levels else None
    made = refsim.quantize(codes_of(o.x), o.format, recipe=recipe, tensor_scale=kept, input_format=o.wide)
    where = f"{tuple(o.x.shape)} {o.wide} {o.format} {recipe}"
    same(o.q.cpu().numpy(), pack(made.codes, made.format.element), f"q {where}")
    same(o.scales.cpu().numpy(), LAYOUT.shuffle(made.scales), f"scales {where}")


def sets(shape: tuple[int, int], wide: str, format: str) -> list[Operands]:
    return sets_of(partial(operands, *shape, wide, format), shape[0] * shape[1] * TYPES[wide].itemsize)


def measure_one(quantizer: Quantizer, shape: tuple[int, int], wide: str, format: str, recipe: str) -> Row:
    mine, block = sets(shape, wide, format), block_format(format)
    microseconds = median_microseconds([partial(quantizer, o, recipe) for o in mine])
    moved = TYPES[wide].itemsize + block.element.bits / 8 + 1 / block.width
    return row(f"{format} {wide} {recipe}", shape, "refsim", moved, microseconds)


def measure(functions: dict[str, Any]) -> list[Row]:
    """Copy; bf16 to every format at three shapes by its first recipes; then other recipes and types."""
    quantizer, rows = Quantizer(functions), [measure_copy()]
    for format in FORMATS:
        usual = "te" if block_format(format).two_levels else "rceil"
        for shape in SHAPES:
            rows.append(measure_one(quantizer, shape, "bf16", format, usual))
            torch.cuda.empty_cache()
        for recipe in recipes_of(format):
            if recipe != usual:
                rows.append(measure_one(quantizer, (8192, 8192), "bf16", format, recipe))
        for wide in ("f16", "f32"):
            rows.append(measure_one(quantizer, (8192, 8192), wide, format, usual))
    return rows


def sweep(functions: dict[str, Any]) -> list[dict[str, float]]:
    """Microseconds at 8192 x 8192, bf16 to MXFP8, over threads and resident blocks a multiprocessor (0: one a tile)."""
    mine = sets((8192, 8192), "bf16", "mxfp8")

    def of_grid(threads: int, resident: int) -> dict[str, float]:
        quantizer = Quantizer(functions, threads, resident)
        return {"microseconds": median_microseconds([partial(quantizer, o, "rceil") for o in mine], 8)}

    return swept((64, 128, 256, 512, 1024), of_grid)


if __name__ == "__main__":
    names = tuple(name for kernel in KERNELS for name in kernel.entries)
    Benchmark(SOURCE, names, check_bits, measure, sweep).main(__doc__)
