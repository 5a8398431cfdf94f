"""Speed of the FP8 quantisers by groups on one NVIDIA GPU, against PyTorch's and a device copy in the same run.

    PYTHONPATH=. python benchmarks/gpu_fp8_group_quantize.py [--json PATH] [--sweep]

Needs torch with CUDA and cuda-bindings. The bits of every entry are compared with the oracle first. Times are medians
of CUDA events around launches that are queued behind a pause, through more buffers than the L2 cache holds; the data are
normal, none of them zero. The peers are the same cast as a torch expression, eager and by torch.compile bound to the size.
The bytes counted are those that must move: x is read and q written once, and a scale a group (3.03 B an element for bf16).
"""

import argparse
import ctypes
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver

from gpu.group_quantize_bindings import FP8_BLOCK_QUANTIZE, FP8_GROUP_QUANTIZE, SCALE_KINDS, SOURCE, launch_of
from refsim import scaling
from refsim.device.compile import assemble, compile_ptx
from refsim.layouts import scale_layout

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
SHAPES = ((4096, 7168), (8192, 8192), (65536, 7168))
GROUP, POISON = 128, 0xA5
CHECKED = ((1, 128), (33, 1032), (128, 128), (301, 700), (2048, 7168))

Operation = Callable[[], Any]


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


def checked(answer: tuple[Any, ...]) -> Any:
    """The result behind a status of the driver."""
    status, *results = answer
    if int(status) != 0:
        raise RuntimeError(f"CUDA driver: {status!r}")
    return results[0] if results else None


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
        arguments: list[tuple[Any, Any]] = [
            (o.x.data_ptr(), ctypes.c_void_p),
            (columns, ctypes.c_uint64),
            (o.q.data_ptr(), ctypes.c_void_p),
            (columns, ctypes.c_uint64),
            (rows, ctypes.c_uint32),
            (columns, ctypes.c_uint32),
            (o.scales.data_ptr(), ctypes.c_void_p),
            (SCALE_KINDS.index(scale), ctypes.c_uint32),
            *([(int(mn_major), ctypes.c_uint32)] if o.group_rows == 1 else []),
            (1e-4, ctypes.c_float),
        ]
        grid = min(blocks, self.resident) if self.resident else blocks
        packed = tuple(zip(*arguments, strict=True))
        stream = torch.cuda.current_stream().cuda_stream
        checked(driver.cuLaunchKernel(self.functions[name], grid, 1, 1, threads, 1, 1, 0, stream, packed, 0))


def load_entries(image: bytes) -> dict[str, Any]:
    torch.empty(1, device="cuda")  # makes the primary context current
    module = checked(driver.cuModuleLoadData(image))
    names = (*FP8_GROUP_QUANTIZE.entries, *FP8_BLOCK_QUANTIZE.entries)
    return {name: checked(driver.cuModuleGetFunction(module, name.encode())) for name in names}


# ---------------------------------------------------------------------------------------------------------------------
# Bits


def check_bits(quantizer: Quantizer) -> int:
    """Every entry, kind and place of scales against the oracle; the number of launches compared."""
    cases = 0
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
    codes = o.x.view(torch.int16 if o.x.element_size() == 2 else torch.int32).cpu().numpy()
    codes = codes.view(f"u{codes.itemsize}")
    group = (o.group_rows, GROUP)
    quotient: scaling.Quotient = "divide" if divides else "reciprocal"
    made = scaling.quantize(codes, o.format, group=group, scale=scale, quotient=quotient)
    want = made.scales
    if mn_major:
        want = scale_layout("deepgemm_mn_ue8m0" if want.dtype == np.uint8 else "deepgemm_mn_f32").shuffle(want)
    stored = o.scales.cpu().numpy().view(np.uint8)
    where = f"{tuple(o.x.shape)} {o.format} {group} {scale} mn_major={mn_major} divides={divides}"
    same(o.q.cpu().numpy(), made.codes, f"q {where}")
    same(stored[: want.nbytes], np.ascontiguousarray(want).reshape(-1).view(np.uint8), f"scales {where}")
    rest = np.full(o.scales.shape, POISON, np.int32).view(np.uint8)[want.nbytes :]
    same(stored[want.nbytes :], rest, f"after the scales {where}")


def same(got: np.ndarray, want: np.ndarray, where: str) -> None:
    if (count := np.count_nonzero(got != want)) or got.shape != want.shape:
        raise SystemExit(f"{where}: {count} of {want.size} differ")


# ---------------------------------------------------------------------------------------------------------------------
# Times


@dataclass(frozen=True)
class Row:
    """One line of the table: microseconds an operation, and terabytes a second of the bytes that must move."""

    operation: str
    shape: tuple[int, int]
    who: str
    microseconds: float
    terabytes_per_second: float


def median_microseconds(operations: list[Operation], repeats: int = 30) -> float:
    """Microseconds an operation: the median over `repeats` of all of them, launched while the device pauses."""
    for operation in operations:
        operation()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(500_000 + 300_000 * len(operations))  # cycles: longer than the host needs to launch
        begin.record()
        for operation in operations:
            operation()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(operations))
    return statistics.median(times)


def sets(shape: tuple[int, int], format: str, group_rows: int) -> list[Operands]:
    """At least three sets of operands and 400 MB of input, so that no set is in the cache when its turn comes."""
    count = max(3, -(-400_000_000 // (shape[0] * shape[1] * TYPES[format].itemsize)))
    return [operands(*shape, format, group_rows) for _ in range(count)]


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


def row(operation: str, o: Operands, who: str, microseconds: float) -> Row:
    rows, columns = o.x.shape
    moved = rows * columns * (o.x.element_size() + 1 + 4 / (GROUP * o.group_rows))
    return Row(operation, (rows, columns), who, microseconds, moved / microseconds / 1e6)


def measure_copy() -> Row:
    source = torch.empty(1 << 15, 1 << 15, dtype=torch.uint8, device="cuda").random_(1, 255)
    target = torch.empty_like(source)
    time = median_microseconds([lambda: target.copy_(source)] * 3)
    return Row("copy", (1 << 15, 1 << 15), "torch", time, 2 * source.numel() / time / 1e6)


def measure(quantizer: Quantizer) -> list[Row]:
    """Copy; groups and blocks of bf16 at three shapes, ours and torch's; then other scales, quotients and types."""
    rows = [measure_copy()]
    for group_rows, peer in ((1, torch_groups), (GROUP, torch_blocks)):
        name = f"{group_rows}x{GROUP} bf16"
        for shape in SHAPES:
            mine = sets(shape, "bf16", group_rows)
            rows.append(row(name, mine[0], "refsim", median_microseconds([partial(quantizer, o) for o in mine])))
            compiled = torch.compile(peer, dynamic=False)
            for who, function in (("torch.compile", compiled), ("torch eager", peer)):
                time = median_microseconds([partial(function, o.x) for o in mine], 10)
                rows.append(row(name, mine[0], who, time))
            del mine
            torch.cuda.empty_cache()
    mine = sets((8192, 8192), "bf16", 1)
    for scale, mn_major, divides in (("e8m0", True, False), ("f32_power", True, False), ("f32", False, False)):
        label = f"1x{GROUP} bf16 {scale}{' MN' if mn_major else ' K'}"
        time = median_microseconds([partial(quantizer, o, scale, mn_major, divides) for o in mine])
        rows.append(row(label, mine[0], "refsim", time))
    time = median_microseconds([partial(quantizer, o, divides=True) for o in mine])
    rows.append(row(f"1x{GROUP} bf16 x / s", mine[0], "refsim", time))
    for format in ("f16", "f32"):
        mine = sets((8192, 8192), format, 1)
        rows.append(
            row(f"1x{GROUP} {format}", mine[0], "refsim", median_microseconds([partial(quantizer, o) for o in mine]))
        )
    return rows


def sweep(functions: dict[str, Any]) -> list[dict[str, float]]:
    """Microseconds at 8192 x 8192 bf16 over threads and resident blocks a multiprocessor (0: one block a tile)."""
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    mine = sets((8192, 8192), "bf16", 1)
    results = []
    for threads in (64, 128, 256, 512, 1024):
        for each in (0, 1, 2, 4, 8, 16):
            quantizer = Quantizer(functions, threads, each * multiprocessors)
            time = median_microseconds([partial(quantizer, o) for o in mine], 8)
            results.append({"threads": threads, "per_multiprocessor": each, "microseconds": time})
    return sorted(results, key=lambda result: result["microseconds"])


def table(rows: list[Row]) -> str:
    """The last columns are the speed over torch.compile's and over the device copy's, in this run."""
    rates = {(each.operation, each.shape, each.who): each.terabytes_per_second for each in rows}
    lines = [f"{'operation':<24}{'shape':>14}  {'who':<14}{'us':>9}{'TB/s':>8}{'x torch':>9}{'x copy':>8}"]
    for each in rows:
        peer = rates.get((each.operation, each.shape, "torch.compile"))
        over_peer = f"{each.terabytes_per_second / peer:9.2f}" if peer else " " * 9
        lines.append(
            f"{each.operation:<24}{each.shape[0]:>7} x{each.shape[1]:>5}  {each.who:<14}{each.microseconds:9.1f}"
            f"{each.terabytes_per_second:8.2f}{over_peer}{each.terabytes_per_second / rows[0].terabytes_per_second:8.2f}"
        )
    return "\n".join(lines)


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
