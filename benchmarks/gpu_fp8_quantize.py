"""Speed of the FP8 quantiser on one NVIDIA GPU, against torch.compile and a device copy in the same run.

    PYTHONPATH=. python benchmarks/gpu_fp8_quantize.py [--json PATH] [--sweep]

Needs torch with CUDA and cuda-bindings. The bits of every entry are compared with the oracle first. Times are medians
of CUDA events around launches that are queued behind a pause, through more buffers than the L2 cache holds; the data
are random. torch.compile is timed twice: as it comes, after it has seen another size, and bound to one size.
The bytes counted are those that must move: quantise reads x twice and writes q (5 B an element for bf16).
"""

import argparse
import ctypes
import itertools
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver

from gpu.geometry import FP8_BLOCK, fp8_dequantize_grid, fp8_quantize_grid
from refsim.device.compile import assemble, compile_ptx
from refsim.oracles import fp8_quantize as oracle

SOURCE = Path(__file__).resolve().parent.parent / "gpu" / "kernels" / "fp8_quantize.cu"
TORCH_TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
CODE_TYPES = {"bf16": np.uint16, "f16": np.uint16, "f32": np.uint32}
INFINITY = {"bf16": 0x7F80, "f16": 0x7C00, "f32": 0x7F800000}
SMALLEST_NORMAL = {"bf16": 0x0080, "f16": 0x0400, "f32": 0x00800000}
SIZES = (1 << 24, 100_000_000, 1 << 28)
POISON = 0xA5
GUARD = 256

Operation = Callable[[], Any]


@dataclass(frozen=True)
class Operands:
    """Tensors of bytes and where in them the operands begin; `words` holds the maximum's bits and the scale."""

    wide: str
    fmt: str
    n: int
    x: torch.Tensor
    q: torch.Tensor
    y: torch.Tensor
    words: torch.Tensor
    wide_begin: int = 0
    code_begin: int = 0


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
    """The entries of one cubin, launched on PyTorch's stream; at most `resident` blocks (0: one block a tile)."""

    functions: dict[str, Any]
    block: int = FP8_BLOCK
    resident: int = 0

    def launch(self, entry: str, tiles: int, arguments: list[tuple[Any, Any]]) -> None:
        blocks = min(tiles, self.resident) if self.resident else tiles
        values, kinds = zip(*arguments, strict=True)
        stream = torch.cuda.current_stream().cuda_stream
        function = self.functions[entry]
        checked(driver.cuLaunchKernel(function, blocks, 1, 1, self.block, 1, 1, 0, stream, (values, kinds), 0))

    def amax(self, o: Operands) -> None:
        checked(driver.cuMemsetD32Async(o.words.data_ptr(), 0, 1, torch.cuda.current_stream().cuda_stream))
        tiles = fp8_quantize_grid(o.n, wide_bytes(o), self.block)
        self.launch(f"fp8_amax_{o.wide}", tiles, [_pointer(o.x, o.wide_begin), _count(o.n), _pointer(o.words)])

    def quantize(self, o: Operands) -> None:
        """All that a caller has to pay for: the maximum, zeroed and found, and the cast."""
        self.amax(o)
        x, q = _pointer(o.x, o.wide_begin), _pointer(o.q, o.code_begin)
        arguments = [x, _count(o.n), _pointer(o.words), q, _pointer(o.words, 4), (oracle.EPS, ctypes.c_float)]
        self.launch(f"fp8_quantize_{o.wide}_{o.fmt}", fp8_quantize_grid(o.n, wide_bytes(o), self.block), arguments)

    def dequantize(self, o: Operands) -> None:
        q, y = _pointer(o.q, o.code_begin), _pointer(o.y, o.wide_begin)
        tiles = fp8_dequantize_grid(o.n, wide_bytes(o), self.block)
        self.launch(f"fp8_dequantize_{o.fmt}_{o.wide}", tiles, [q, _count(o.n), _pointer(o.words, 4), y])


def load_entries(image: bytes) -> dict[str, Any]:
    torch.empty(1, device="cuda")  # makes the primary context current
    module = checked(driver.cuModuleLoadData(image))
    names = [f"fp8_amax_{wide}" for wide in CODE_TYPES]
    for wide, fmt in itertools.product(CODE_TYPES, ("e4m3", "e5m2")):
        names += [f"fp8_quantize_{wide}_{fmt}", f"fp8_dequantize_{fmt}_{wide}"]
    return {name: checked(driver.cuModuleGetFunction(module, name.encode())) for name in names}


def wide_bytes(o: Operands) -> int:
    return np.dtype(CODE_TYPES[o.wide]).itemsize


def _pointer(tensor: torch.Tensor, begin: int = 0) -> tuple[int, Any]:
    return tensor.data_ptr() + begin, ctypes.c_void_p


def _count(n: int) -> tuple[int, Any]:
    return n, ctypes.c_uint64


# ---------------------------------------------------------------------------------------------------------------------
# Bits


def check_bits(quantizer: Quantizer) -> int:
    """Every entry against the oracle, over sizes, misalignments and special values; the number of launches compared."""
    generator = np.random.default_rng(0)
    cases = 0
    for wide, fmt in itertools.product(CODE_TYPES, ("e4m3", "e5m2")):
        size = np.dtype(CODE_TYPES[wide]).itemsize
        for n in (0, 1, 7, 8, 33, 1000, 8192 + 13, 65536, 300_001):
            for shifts in ((0, 0), (size, 0), (16 - size, 1), (3 * size, 2), (0, 4), (0, 3)):
                check_launches(quantizer, wide, fmt, sample(generator, wide, n, kind=cases % 5), *shifts)
                cases += 1
    check_launches(quantizer, "bf16", "e4m3", sample(generator, "bf16", SIZES[1] + 5, kind=0), 0, 0)
    return 3 * (cases + 1)


def sample(generator: np.random.Generator, wide: str, n: int, kind: int) -> np.ndarray:
    """Random codes: normal values; any finite pattern; subnormals and zeros; NaN among them; an infinity among them."""
    dtype = CODE_TYPES[wide]
    infinity = INFINITY[wide]
    sign = generator.integers(0, 2, n, dtype=np.uint8).astype(dtype) << dtype(8 * np.dtype(dtype).itemsize - 1)
    if kind == 0:
        values = generator.standard_normal(n, dtype=np.float32)
        if wide == "bf16":
            return (values.view(np.uint32) >> 16).astype(dtype)
        return values.astype(np.float16).view(dtype) if wide == "f16" else values.view(dtype)
    codes = generator.integers(0, SMALLEST_NORMAL[wide] if kind == 2 else infinity, n, dtype=dtype)
    if kind == 3:
        codes[generator.random(n) < 0.1] = infinity + 1
    if kind == 4 and n:
        codes[generator.integers(0, n)] = infinity
    return codes | sign


def check_launches(quantizer: Quantizer, wide: str, fmt: str, codes: np.ndarray, *shifts: int) -> None:
    """One amax, quantise and dequantise of `codes` at shifted addresses (wide, codes), between guard bytes."""
    wide_begin, code_begin = (GUARD + shift for shift in shifts)
    blank = np.full(codes.nbytes, POISON, np.uint8)
    operands = Operands(
        wide,
        fmt,
        codes.size,
        x=guarded(codes.view(np.uint8), wide_begin),
        q=guarded(blank[: codes.size], code_begin),
        y=guarded(blank, wide_begin),
        words=torch.full((2,), POISON, dtype=torch.int32, device="cuda"),
        wide_begin=wide_begin,
        code_begin=code_begin,
    )
    quantizer.quantize(operands)
    quantizer.dequantize(operands)
    torch.cuda.synchronize()
    want_q, want_scale = oracle.quantize(codes, wide, fmt)
    want_words = np.array([oracle.amax(codes, wide), want_scale.view(np.uint32)], np.uint32)
    want_y = oracle.dequantize(want_q, want_scale, fmt, wide)
    where = f"{wide} {fmt} n={codes.size} shifts={shifts}"
    same(operands.words.cpu().numpy().view(np.uint32), want_words, f"amax, scale {where}")
    same(operands.q.cpu().numpy(), guarded_bytes(want_q, code_begin), f"q {where}")
    same(operands.y.cpu().numpy(), guarded_bytes(want_y.view(np.uint8), wide_begin), f"y {where}")


def guarded_bytes(content: np.ndarray, begin: int) -> np.ndarray:
    """The bytes from `begin` on, poison before and after."""
    padded = np.full(content.size + 2 * GUARD, POISON, np.uint8)
    padded[begin : begin + content.size] = content
    return padded


def guarded(content: np.ndarray, begin: int) -> torch.Tensor:
    return torch.from_numpy(guarded_bytes(content, begin)).cuda()


def same(got: np.ndarray, want: np.ndarray, where: str) -> None:
    different = np.flatnonzero(got != want)
    if different.size:
        at = different[0]
        raise SystemExit(f"{where}: {different.size} differ, first at [{at}], got {got[at]:#x} want {want[at]:#x}")


# ---------------------------------------------------------------------------------------------------------------------
# Times


@dataclass(frozen=True)
class Row:
    """One line of the table: microseconds an operation, and terabytes a second of the bytes that must move."""

    operation: str
    n: int
    who: str
    microseconds: float
    terabytes_per_second: float


def median_microseconds(operations: list[Operation], repeats: int = 20) -> float:
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


def operand_sets(n: int, wide: str, fmt: str = "e4m3") -> list[Operands]:
    """At least three sets of operands and 400 MB of input, so that no set is in the cache when its turn comes."""
    dtype = TORCH_TYPES[wide]
    sets = []
    for _ in range(max(3, -(-400_000_000 // (n * dtype.itemsize)))):
        x = torch.randn(n, dtype=dtype, device="cuda")
        q, words = torch.empty(n, dtype=torch.uint8, device="cuda"), torch.zeros(2, dtype=torch.int32, device="cuda")
        sets.append(Operands(wide, fmt, n, x, q, torch.empty_like(x), words))
    return sets


def over(sets: list[Operands], operation: Callable[[Operands], Any]) -> list[Operation]:
    return [lambda operands=operands: operation(operands) for operands in sets]


def torch_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = 448.0 / x.abs().max().float().clamp(min=1e-12)
    return (x.float() * scale).clamp(-448, 448).to(torch.float8_e4m3fn), 1.0 / scale


def torch_dequantize(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (q.float() * scale).to(torch.bfloat16)


def row(operation: str, n: int, who: str, bytes_each: int, microseconds: float) -> Row:
    return Row(operation, n, who, microseconds, n * bytes_each / microseconds / 1e6)


def measure_copy() -> Row:
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_(0, 255)
    target = torch.empty_like(source)
    return row("copy", 1 << 30, "torch", 2, median_microseconds([lambda: target.copy_(source)] * 3))


def measure(quantizer: Quantizer) -> list[Row]:
    """Copy, then quantise and dequantise bf16 at three sizes, ours and torch.compile's, then the other types."""
    rows = [measure_copy()]
    peers = {
        "torch.compile": (torch.compile(torch_quantize), torch.compile(torch_dequantize)),
        "  bound to n": (torch.compile(torch_quantize, dynamic=False), torch.compile(torch_dequantize, dynamic=False)),
    }
    for peer_quantize, peer_dequantize in peers.values():
        peer_dequantize(*peer_quantize(torch.randn(1 << 20, dtype=torch.bfloat16, device="cuda")))
    for n in SIZES:
        sets = operand_sets(n, "bf16")
        time = median_microseconds(over(sets, quantizer.quantize))
        rows.append(row("quantise bf16 e4m3", n, "refsim", 5, time))
        for who, (peer, _) in peers.items():
            rows.append(row("quantise bf16 e4m3", n, who, 5, median_microseconds(over(sets, lambda o, f=peer: f(o.x)))))
        time = median_microseconds(over(sets, quantizer.dequantize))
        rows.append(row("dequantise e4m3 bf16", n, "refsim", 3, time))
        for who, (_, peer) in peers.items():
            time = median_microseconds(over(sets, lambda o, f=peer: f(*quantized(o))))
            rows.append(row("dequantise e4m3 bf16", n, who, 3, time))
    for wide, size in (("f16", 2), ("f32", 4)):
        sets = operand_sets(SIZES[1], wide)
        time = median_microseconds(over(sets, quantizer.quantize))
        rows.append(row(f"quantise {wide} e4m3", SIZES[1], "refsim", 2 * size + 1, time))
        time = median_microseconds(over(sets, quantizer.dequantize))
        rows.append(row(f"dequantise e4m3 {wide}", SIZES[1], "refsim", size + 1, time))
    return rows


def quantized(o: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    return o.q.view(torch.float8_e4m3fn), o.words.view(torch.float32)[1]


def sweep(functions: dict[str, Any]) -> list[dict[str, float]]:
    """Microseconds at 10^8 bf16 over block sizes and resident blocks a multiprocessor (0: one block a tile)."""
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    sets = operand_sets(SIZES[1], "bf16")
    results = []
    for block, each in itertools.product((128, 256, 512, 1024), (1, 2, 4, 8, 16, 0)):
        quantizer = Quantizer(functions, block, each * multiprocessors)
        results.append(
            {
                "block": block,
                "per_multiprocessor": each,
                "amax_us": median_microseconds(over(sets, quantizer.amax), 8),
                "quantise_us": median_microseconds(over(sets, quantizer.quantize), 8),
                "dequantise_us": median_microseconds(over(sets, quantizer.dequantize), 8),
            }
        )
    return results


def table(rows: list[Row]) -> str:
    """The last columns are the speed over torch.compile's and over the device copy's, in this run."""
    rates = {(each.operation, each.n, each.who): each.terabytes_per_second for each in rows}
    copy = rows[0].terabytes_per_second
    lines = [f"{'operation':<22}{'n':>12}  {'who':<14}{'us':>9}{'TB/s':>8}{'x torch':>9}{'x copy':>8}"]
    for each in rows:
        peer = rates.get((each.operation, each.n, "torch.compile"))
        over_peer = f"{each.terabytes_per_second / peer:9.2f}" if peer else " " * 9
        lines.append(
            f"{each.operation:<22}{each.n:>12}  {each.who:<14}{each.microseconds:9.1f}{each.terabytes_per_second:8.2f}"
            f"{over_peer}{each.terabytes_per_second / copy:8.2f}"
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
        for each in sorted(record["sweep"], key=lambda result: result["quantise_us"]):
            print("  ".join(f"{name} {value:.5g}" for name, value in each.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
