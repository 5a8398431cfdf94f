"""What the benchmarks of the quantisers share: entries of a cubin on PyTorch's stream, times of launches, table and record."""

import argparse
import ctypes
import itertools
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver

from refsim.device.compile import assemble, compile_ptx

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
POISON = 0xA5
RESIDENT = (0, 1, 2, 4, 8, 16)  # blocks of a multiprocessor that a sweep tries; 0: one block a tile
KINDS = {"pointer": ctypes.c_void_p, "u64": ctypes.c_uint64, "u32": ctypes.c_uint32, "f32": ctypes.c_float}

Operation = Callable[[], Any]
Argument = tuple[str, Any]  # a key of KINDS, and the value


# ---------------------------------------------------------------------------------------------------------------------
# Launching


def checked(answer: tuple[Any, ...]) -> Any:
    """The result behind a status of the driver."""
    status, *results = answer
    if int(status) != 0:
        raise RuntimeError(f"CUDA driver: {status!r}")
    return results[0] if results else None


def load_entries(image: bytes, names: Iterable[str]) -> dict[str, Any]:
    """The functions of a cubin, by name."""
    torch.empty(1, device="cuda")  # makes the primary context current
    module = checked(driver.cuModuleLoadData(image))
    return {name: checked(driver.cuModuleGetFunction(module, name.encode())) for name in names}


def launch(function: Any, blocks: int, threads: int, arguments: Sequence[Argument], resident: int = 0) -> None:
    """One-dimensional, on PyTorch's stream; at most `resident` blocks (0: as many as `blocks`)."""
    grid = min(blocks, resident) if resident else blocks
    packed = tuple(value for _, value in arguments), tuple(KINDS[kind] for kind, _ in arguments)
    stream = torch.cuda.current_stream().cuda_stream
    checked(driver.cuLaunchKernel(function, grid, 1, 1, threads, 1, 1, 0, stream, packed, 0))


def pointer(tensor: torch.Tensor, begin: int = 0) -> Argument:
    return "pointer", tensor.data_ptr() + begin


def codes_of(tensor: torch.Tensor) -> np.ndarray:
    """The codes of a tensor of 16 or 32 bits, unsigned."""
    held = tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32).cpu().numpy()
    return held.view(f"u{held.itemsize}")


def same(got: np.ndarray, want: np.ndarray, where: str) -> None:
    if got.shape != want.shape:
        raise SystemExit(f"{where}: the shape is {got.shape}, not {want.shape}")
    different = np.argwhere(got != want)
    if len(different):
        at = tuple(different[0])
        raise SystemExit(f"{where}: {len(different)} differ, first at {at}, got {got[at]:#x} want {want[at]:#x}")


# ---------------------------------------------------------------------------------------------------------------------
# Times


@dataclass(frozen=True)
class Row:
    """One line of the table: microseconds an operation, and terabytes a second of the bytes that must move."""

    operation: str
    shape: tuple[int, ...]
    who: str
    microseconds: float
    terabytes_per_second: float


def row(operation: str, shape: tuple[int, ...], who: str, element_bytes: float, microseconds: float) -> Row:
    """`element_bytes` must move for each element of `shape`."""
    return Row(operation, shape, who, microseconds, float(np.prod(shape)) * element_bytes / microseconds / 1e6)


def median_microseconds(operations: Sequence[Operation], repeats: int = 30) -> float:
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


def sets_of(make: Callable[[], Any], input_bytes: int) -> list[Any]:
    """At least three sets of operands and 400 MB of input, so that no set is in the cache when its turn comes."""
    return [make() for _ in range(max(3, -(-400_000_000 // input_bytes)))]


def measure_copy() -> Row:
    source = torch.empty(1 << 15, 1 << 15, dtype=torch.uint8, device="cuda").random_(1, 255)
    target = torch.empty_like(source)
    return row("copy", (1 << 15, 1 << 15), "torch", 2, median_microseconds([lambda: target.copy_(source)] * 3))


def swept(threads: Sequence[int], timed: Callable[[int, int], dict[str, float]]) -> list[dict[str, float]]:
    """What `timed` says of threads and resident blocks of the whole device, sorted by its first time."""
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    results = []
    for count, each in itertools.product(threads, RESIDENT):
        results.append({"threads": count, "per_multiprocessor": each, **timed(count, each * multiprocessors)})
    return sorted(results, key=lambda result: list(result.values())[2])


# ---------------------------------------------------------------------------------------------------------------------
# The table


def table(rows: Sequence[Row]) -> str:
    """The last columns are the speed over torch.compile's and over the device copy's, which is the first row, in this run."""
    rates = {(each.operation, each.shape, each.who): each.terabytes_per_second for each in rows}
    lines = [f"{'operation':<24}{'shape':>14}  {'who':<14}{'us':>9}{'TB/s':>8}{'x torch':>9}{'x copy':>8}"]
    for each in rows:
        peer = rates.get((each.operation, each.shape, "torch.compile"))
        over_peer = f"{each.terabytes_per_second / peer:9.2f}" if peer else " " * 9
        lines.append(
            f"{each.operation:<24}{' x '.join(map(str, each.shape)):>14}  {each.who:<14}{each.microseconds:9.1f}"
            f"{each.terabytes_per_second:8.2f}{over_peer}{each.terabytes_per_second / rows[0].terabytes_per_second:8.2f}"
        )
    return "\n".join(lines)


@dataclass(frozen=True)
class Benchmark:
    """A quantiser's: its file and entries, and what is done with the functions of its cubin.

    `check` compares bits and returns how many launches it compared; `sweep` times other blocks and grids.
    """

    source: Path
    entries: Sequence[str]
    check: Callable[[dict[str, Any]], int]
    measure: Callable[[dict[str, Any]], list[Row]]
    sweep: Callable[[dict[str, Any]], list[dict[str, float]]]

    def main(self, description: str | None) -> None:
        """Compare, time, print; with --json also write the rows and the hashes of the code."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--json", type=Path, help="also write the rows and the hashes of the code here")
        parser.add_argument("--sweep", action="store_true", help="also time other blocks and grids")
        arguments = parser.parse_args()
        ptx = compile_ptx(self.source, "sm_90a")
        cubin = assemble(ptx)
        functions = load_entries(cubin.image, self.entries)
        device = torch.cuda.get_device_name(0)
        print(f"{device}, torch {torch.__version__}, {ptx.compiler} ({ptx.origin}), {cubin.assembler}")
        print(f"{self.check(functions)} launches agree with the oracle bit for bit")
        rows = self.measure(functions)
        print(table(rows))
        record: dict[str, Any] = {
            "device": device,
            "torch": torch.__version__,
            "ptx_sha256": ptx.sha256,
            "cubin_sha256": cubin.sha256,
            "rows": [asdict(each) for each in rows],
        }
        if arguments.sweep:
            record["sweep"] = self.sweep(functions)
            for result in record["sweep"][:12]:
                print("  ".join(f"{name} {value:.5g}" for name, value in result.items()))
        if arguments.json:
            arguments.json.write_text(json.dumps(record, indent=1))
