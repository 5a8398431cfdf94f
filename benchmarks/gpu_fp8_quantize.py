"""Speed of the FP8 quantiser on one NVIDIA GPU, against torch.compile and a device copy in the same run.

    PYTHONPATH=. python benchmarks/gpu_fp8_quantize.py [--json PATH] [--sweep]

Needs torch with CUDA and cuda-bindings. The bits of every entry are compared with the oracle first. Times are medians
of CUDA events around launches that are queued behind a pause, through more buffers than the L2 cache holds; the data
are random. torch.compile is timed twice: as it comes, after it has seen another size, and bound to one size.
The bytes counted are those that must move: quantise reads x twice and writes q (5 B an element for bf16).
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver

from benchmarks.gpu_quantizers import (
    POISON,
    TYPES,
    Argument,
    Benchmark,
    Operation,
    Row,
    checked,
    launch,
    measure_copy,
    median_microseconds,
    pointer,
    row,
    same,
    sets_of,
    swept,
)
from gpu.geometry import FP8_BLOCK, fp8_dequantize_grid, fp8_quantize_grid
from refsim.oracles import fp8_quantize as oracle

SOURCE = Path(__file__).resolve().parent.parent / "gpu" / "kernels" / "fp8_quantize.cu"
CODE_TYPES = {"bf16": np.uint16, "f16": np.uint16, "f32": np.uint32}
INFINITY = {"bf16": 0x7F80, "f16": 0x7C00, "f32": 0x7F800000}
SMALLEST_NORMAL = {"bf16": 0x0080, "f16": 0x0400, "f32": 0x00800000}
SIZES = (1 << 24, 100_000_000, 1 << 28)
GUARD = 256


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


@dataclass(frozen=True)
class Quantizer:
    """The entries of one cubin, launched on PyTorch's stream; at most `resident` blocks (0: one block a tile)."""

    functions: dict[str, Any]
    block: int = FP8_BLOCK
    resident: int = 0

    def launch(self, entry: str, tiles: int, arguments: list[Argument]) -> None:
        launch(self.functions[entry], tiles, self.block, arguments, self.resident)

    def amax(self, o: Operands) -> None:
        checked(driver.cuMemsetD32Async(o.words.data_ptr(), 0, 1, torch.cuda.current_stream().cuda_stream))
        tiles = fp8_quantize_grid(o.n, wide_bytes(o), self.block)
        self.launch(f"fp8_amax_{o.wide}", tiles, [pointer(o.x, o.wide_begin), ("u64", o.n), pointer(o.words)])

    def quantize(self, o: Operands) -> None:
        """All that a caller has to pay for: the maximum, zeroed and found, and the cast."""
        self.amax(o)
        x, q = pointer(o.x, o.wide_begin), pointer(o.q, o.code_begin)
        arguments = [x, ("u64", o.n), pointer(o.words), q, pointer(o.words, 4), ("f32", oracle.EPS)]
        self.launch(f"fp8_quantize_{o.wide}_{o.fmt}", fp8_quantize_grid(o.n, wide_bytes(o), self.block), arguments)

    def dequantize(self, o: Operands) -> None:
        q, y = pointer(o.q, o.code_begin), pointer(o.y, o.wide_begin)
        tiles = fp8_dequantize_grid(o.n, wide_bytes(o), self.block)
        self.launch(f"fp8_dequantize_{o.fmt}_{o.wide}", tiles, [q, ("u64", o.n), pointer(o.words, 4), y])


def entries() -> list[str]:
    names = [f"fp8_amax_{wide}" for wide in CODE_TYPES]
    for wide, fmt in itertools.product(CODE_TYPES, ("e4m3", "e5m2")):
        names += [f"fp8_quantize_{wide}_{fmt}", f"fp8_dequantize_{fmt}_{wide}"]
    return names


def wide_bytes(o: Operands) -> int:
    return np.dtype(CODE_TYPES[o.wide]).itemsize


# ---------------------------------------------------------------------------------------------------------------------
# Bits


def check_bits(functions: dict[str, Any]) -> int:
    """Every entry against the oracle, over sizes, misalignments and special values; the number of launches compared."""
    quantizer, generator = Quantizer(functions), np.random.default_rng(0)
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


# ---------------------------------------------------------------------------------------------------------------------
# Times


def operand_sets(n: int, wide: str, fmt: str = "e4m3") -> list[Operands]:
    def made() -> Operands:
        x = torch.randn(n, dtype=TYPES[wide], device="cuda")
        q, words = torch.empty(n, dtype=torch.uint8, device="cuda"), torch.zeros(2, dtype=torch.int32, device="cuda")
        return Operands(wide, fmt, n, x, q, torch.empty_like(x), words)

    return sets_of(made, n * TYPES[wide].itemsize)


def over(sets: list[Operands], operation: Callable[[Operands], Any]) -> list[Operation]:
    return [lambda operands=operands: operation(operands) for operands in sets]


def torch_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = 448.0 / x.abs().max().float().clamp(min=1e-12)
    return (x.float() * scale).clamp(-448, 448).to(torch.float8_e4m3fn), 1.0 / scale


def torch_dequantize(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (q.float() * scale).to(torch.bfloat16)


def measure(functions: dict[str, Any]) -> list[Row]:
    """Copy, then quantise and dequantise bf16 at three sizes, ours and torch.compile's, then the other types."""
    quantizer, rows = Quantizer(functions), [measure_copy()]
    peers = {
        "torch.compile": (torch.compile(torch_quantize), torch.compile(torch_dequantize)),
        "  bound to n": (torch.compile(torch_quantize, dynamic=False), torch.compile(torch_dequantize, dynamic=False)),
    }
    for peer_quantize, peer_dequantize in peers.values():
        peer_dequantize(*peer_quantize(torch.randn(1 << 20, dtype=torch.bfloat16, device="cuda")))
    for n in SIZES:
        sets = operand_sets(n, "bf16")
        time = median_microseconds(over(sets, quantizer.quantize))
        rows.append(row("quantise bf16 e4m3", (n,), "refsim", 5, time))
        for who, (peer, _) in peers.items():
            rows.append(
                row("quantise bf16 e4m3", (n,), who, 5, median_microseconds(over(sets, lambda o, f=peer: f(o.x))))
            )
        time = median_microseconds(over(sets, quantizer.dequantize))
        rows.append(row("dequantise e4m3 bf16", (n,), "refsim", 3, time))
        for who, (_, peer) in peers.items():
            time = median_microseconds(over(sets, lambda o, f=peer: f(*quantized(o))))
            rows.append(row("dequantise e4m3 bf16", (n,), who, 3, time))
    for wide, size in (("f16", 2), ("f32", 4)):
        sets = operand_sets(SIZES[1], wide)
        time = median_microseconds(over(sets, quantizer.quantize))
        rows.append(row(f"quantise {wide} e4m3", (SIZES[1],), "refsim", 2 * size + 1, time))
        time = median_microseconds(over(sets, quantizer.dequantize))
        rows.append(row(f"dequantise e4m3 {wide}", (SIZES[1],), "refsim", size + 1, time))
    return rows


def quantized(o: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    return o.q.view(torch.float8_e4m3fn), o.words.view(torch.float32)[1]


def sweep(functions: dict[str, Any]) -> list[dict[str, float]]:
    """Microseconds at 10^8 bf16 over block sizes and resident blocks a multiprocessor (0: one block a tile)."""
    sets = operand_sets(SIZES[1], "bf16")

    def of_grid(block: int, resident: int) -> dict[str, float]:
        quantizer = Quantizer(functions, block, resident)
        operations = {"quantise": quantizer.quantize, "amax": quantizer.amax, "dequantise": quantizer.dequantize}
        return {f"{name}_us": median_microseconds(over(sets, each), 8) for name, each in operations.items()}

    return swept((128, 256, 512, 1024), of_grid)


if __name__ == "__main__":
    Benchmark(SOURCE, entries(), check_bits, measure, sweep).main(__doc__)
