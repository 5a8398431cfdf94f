"""Speed of the quantisers of block scaling on one NVIDIA GPU, beside a device copy in the same run.

    PYTHONPATH=. python benchmarks/gpu_block_scale_quantize.py [--json PATH] [--sweep]

Needs torch with CUDA and cuda-bindings. The bits of every entry and recipe are compared with the oracle first. Times are
medians of CUDA events around launches that are queued behind a pause, through more buffers than the L2 cache holds; the data
are normal. The bytes counted are those that must move: x is read, codes and a byte a block are written (3.03 B an element
from bf16 to MXFP8).
"""

import argparse
import ctypes
import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver

import refsim
from benchmarks.gpu_fp8_group_quantize import (
    POISON,
    TYPES,
    Row,
    checked,
    measure_copy,
    median_microseconds,
    same,
    table,
)
from gpu.block_scale import FORMATS, KERNELS, LAYOUT, SOURCE, launch_of, order_of, recipes_of
from refsim.conversions import pack
from refsim.device.compile import assemble, compile_ptx
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
        arguments: list[tuple[Any, Any]] = [
            (o.x.data_ptr(), ctypes.c_void_p),
            (columns, ctypes.c_uint64),
            (o.q.data_ptr(), ctypes.c_void_p),
            (o.q.shape[1], ctypes.c_uint64),
            (rows, ctypes.c_uint32),
            (columns, ctypes.c_uint32),
            (o.scales.data_ptr(), ctypes.c_void_p),
            (order_of(o.format).index(recipe), ctypes.c_uint32),
        ]
        if block_format(o.format).two_levels:
            arguments.append((o.tensor_scale.data_ptr(), ctypes.c_void_p))
        grid = min(blocks, self.resident) if self.resident else blocks
        packed = tuple(zip(*arguments, strict=True))
        stream = torch.cuda.current_stream().cuda_stream
        function = self.functions[f"{o.format}_quantize_{o.wide}"]
        checked(driver.cuLaunchKernel(function, grid, 1, 1, threads, 1, 1, 0, stream, packed, 0))


def load_entries(image: bytes) -> dict[str, Any]:
    torch.empty(1, device="cuda")  # makes the primary context current
    module = checked(driver.cuModuleLoadData(image))
    names = [name for kernel in KERNELS for name in kernel.entries]
    return {name: checked(driver.cuModuleGetFunction(module, name.encode())) for name in names}


def check_bits(quantizer: Quantizer) -> int:
    """Every entry and recipe against the oracle; the number of launches compared."""
    cases = 0
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
    held = o.x.view(torch.int16 if o.x.element_size() == 2 else torch.int32).cpu().numpy()
    kept = 512.0 if block_format(o.format).two_levels else None
    codes = held.view(f"u{held.itemsize}")
    made = refsim.quantize(codes, o.format, recipe=recipe, tensor_scale=kept, input_format=o.wide)
    where = f"{tuple(o.x.shape)} {o.wide} {o.format} {recipe}"
    same(o.q.cpu().numpy(), pack(made.codes, made.format.element), f"q {where}")
    same(o.scales.cpu().numpy(), LAYOUT.shuffle(made.scales), f"scales {where}")


def sets(shape: tuple[int, int], wide: str, format: str) -> list[Operands]:
    """At least three sets of operands and 400 MB of input, so that no set is in the cache when its turn comes."""
    count = max(3, -(-400_000_000 // (shape[0] * shape[1] * TYPES[wide].itemsize)))
    return [operands(*shape, wide, format) for _ in range(count)]


def measure_one(quantizer: Quantizer, shape: tuple[int, int], wide: str, format: str, recipe: str) -> Row:
    mine, block = sets(shape, wide, format), block_format(format)
    microseconds = median_microseconds([partial(quantizer, o, recipe) for o in mine])
    moved = shape[0] * shape[1] * (TYPES[wide].itemsize + block.element.bits / 8 + 1 / block.width)
    return Row(f"{format} {wide} {recipe}", shape, "refsim", microseconds, moved / microseconds / 1e6)


def measure(quantizer: Quantizer) -> list[Row]:
    """Copy; bf16 to every format at three shapes by its first recipes; then other recipes and types."""
    rows = [measure_copy()]
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
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    mine = sets((8192, 8192), "bf16", "mxfp8")
    results = []
    for threads in (64, 128, 256, 512, 1024):
        for each in (0, 1, 2, 4, 8, 16):
            quantizer = Quantizer(functions, threads, each * multiprocessors)
            time = median_microseconds([partial(quantizer, o, "rceil") for o in mine], 8)
            results.append({"threads": threads, "per_multiprocessor": each, "microseconds": time})
    return sorted(results, key=lambda result: result["microseconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the rows and the hashes of the code here")
    parser.add_argument("--sweep", action="store_true", help="also time other blocks and grids")
    arguments = parser.parse_args()
    ptx = compile_ptx(SOURCE, "sm_90a")
    cubin = assemble(ptx)
    functions = load_entries(cubin.image)
    quantizer = Quantizer(functions)
    device = torch.cuda.get_device_name(0)
    print(f"{device}, torch {torch.__version__}, {ptx.compiler} ({ptx.origin}), {cubin.assembler}")
    print(f"{check_bits(quantizer)} launches agree with the oracle bit for bit")
    rows = measure(quantizer)
    print(table(rows))
    record: dict[str, Any] = {
        "device": device,
        "torch": torch.__version__,
        "ptx_sha256": ptx.sha256,
        "cubin_sha256": cubin.sha256,
        "rows": [asdict(each) for each in rows],
    }
    if arguments.sweep:
        record["sweep"] = sweep(functions)
        for each in record["sweep"][:12]:
            print("  ".join(f"{name} {value:.5g}" for name, value in each.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
