"""Speed of the FP8 GEMM with block scales on one Hopper GPU, against torch's scaled_mm with the same scales in the same run.

    PYTHONPATH=. python benchmarks/gpu_fp8_gemm.py [--json PATH] [--entries]

Needs torch with CUDA and cuda-bindings. Times are medians of rounds in which peer and kernel take turns, each a CUDA graph
over more operands than the L2 cache holds; operands are normal, every scale another number. The clock of a GPU under this
load is set by its power, so that only the ratio within a round is a figure, and the rates beside it are what it was made of.
First the bits: all of D against cuBLASLt's, and 512 x 512 sampled outputs against the oracle.
"""

import argparse
import ctypes
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver
from torch.nn import functional

from refsim import oracles
from refsim.device.compile import assemble, compile_ptx
from refsim.device.libcuda import encoded_map
from refsim.testing.kernel_files import load_kernel_file

bindings = load_kernel_file(Path(__file__).resolve().parent.parent / "gpu" / "gemm_1d2d.py")
SHAPES = (
    (64, 7168, 16384),
    (128, 7168, 16384),
    (4096, 2112, 7168),
    (4096, 24576, 1536),
    (4096, 32768, 512),
    (4096, 7168, 16384),
    (4096, 4096, 7168),
    (4096, 7168, 2048),
)
SAMPLED, ROUNDS, IN_CACHE = 512, 9, 150_000_000
Entry, Shape = Any, tuple[int, int, int]


@dataclass(frozen=True)
class Operands:
    """A [m, k] and B [n, k] E4M3, scales of A MN-major [k / 128, m up to 4] and of B [n / 128, k / 128], D [m, n] bf16."""

    a: torch.Tensor
    b: torch.Tensor
    sfa: torch.Tensor
    sfb: torch.Tensor
    d: torch.Tensor

    @property
    def shape(self) -> Shape:
        return len(self.a), len(self.b), self.a.shape[1]


def operands(shape: Shape, seed: int) -> Operands:
    m, n, k = shape
    generator = torch.Generator("cuda").manual_seed(seed)
    normal = [torch.randn(rows, k, device="cuda", generator=generator).to(torch.float8_e4m3fn) for rows in (m, n)]
    steps = -(-k // 128)
    sfa = torch.rand(steps, -(-m // 4) * 4, device="cuda", generator=generator) / 128 + 2.0**-10
    sfb = torch.rand(-(-n // 128), steps, device="cuda", generator=generator) / 128 + 2.0**-10
    return Operands(*normal, sfa, sfb, torch.full((m, n), -7.0, device="cuda", dtype=torch.bfloat16))


# ---------------------------------------------------------------------------------------------------------------------
# Launching


def checked(answer: tuple[Any, ...]) -> Any:
    """The result behind a status of the driver."""
    status, *results = answer
    if int(status) != 0:
        raise RuntimeError(f"CUDA driver: {status!r}")
    return results[0] if results else None


class Gemm:
    """One entry, launched on PyTorch's stream."""

    def __init__(self, module: Any, entry: Entry) -> None:
        self.entry = entry
        self.function = checked(driver.cuModuleGetFunction(module, entry.name.encode()))
        room = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(driver.cuFuncSetAttribute(self.function, room, entry.shared_bytes))

    def prepared(self, o: Operands) -> Callable[[], None]:
        """A launch over these operands, its arguments packed once."""
        entry, (m, n, k) = self.entry, o.shape
        addresses = o.a.data_ptr(), o.b.data_ptr(), o.sfa.data_ptr(), o.d.data_ptr()
        maps = bindings.maps(entry, o.shape, addresses, (k, k, 2 * n))
        held: list[Any] = [(ctypes.c_char * 128).from_buffer_copy(encoded_map(each).raw) for each in maps]
        held += [
            ctypes.c_void_p(o.sfb.data_ptr()),
            (ctypes.c_uint32 * 4)(m, n, k, max(1, 2048 // entry.block_m // entry.down)),
        ]
        packed = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
        config = driver.CUlaunchConfig()
        config.blockDimX, config.blockDimY, config.blockDimZ = entry.threads, 1, 1
        config.gridDimX, config.gridDimY, config.gridDimZ = entry.blocks, 1, 1
        config.sharedMemBytes = entry.shared_bytes
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = entry.blocks, 1, 1
        config.attrs, config.numAttrs = [attribute], 1
        clusters = checked(driver.cuOccupancyMaxActiveClusters(self.function, config))
        config.gridDimX = min(clusters, entry.units(m, n)) * entry.blocks

        def launch(held: Any = held) -> None:
            config.hStream = torch.cuda.current_stream().cuda_stream
            checked(driver.cuLaunchKernelEx(config, self.function, ctypes.addressof(packed), 0))

        return launch


def block_scaled(o: Operands) -> Callable[[], torch.Tensor]:
    """torch's own, the same operands and scales."""
    by_row, by_block = functional.ScalingType.BlockWise1x128, functional.ScalingType.BlockWise128x128
    padded = functional.pad(o.sfb, (0, -o.sfb.shape[1] % 4))
    of_rows = o.sfa[:, : len(o.a)].t()

    def call() -> torch.Tensor:
        return functional.scaled_mm(o.a, o.b.t(), of_rows, by_row, padded.t(), by_block, output_dtype=torch.bfloat16)

    return call


def tensor_scaled(o: Operands) -> Callable[[], torch.Tensor]:
    """One scale for all of A and of B: no promotion, another sum; how fast the tensor cores are fed."""
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(o.a, o.b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


# ---------------------------------------------------------------------------------------------------------------------
# Bits and times


def check_bits(o: Operands, launch: Callable[[], None], seed: int) -> None:
    """All of D against cuBLASLt's, SAMPLED x SAMPLED outputs against the oracle."""
    o.d.fill_(-7.0)
    launch()
    theirs = block_scaled(o)()
    if count := int((o.d.view(torch.int16) != theirs.view(torch.int16)).sum()):
        raise SystemExit(f"{o.shape}: {count} words differ from cuBLASLt's")
    m, n, _ = o.shape
    generator = np.random.default_rng(seed)
    rows = np.sort(generator.choice(m, min(m, SAMPLED), replace=False))
    cols = np.sort(generator.choice(n, min(n, SAMPLED**2 // len(rows)), replace=False))
    a, b = (each.view(torch.uint8).cpu().numpy() for each in (o.a, o.b))
    scales = o.sfa[:, :m].t().contiguous().cpu().numpy(), o.sfb.cpu().numpy()
    want = oracles.fp8_gemm_1d2d(a, b, *scales, rows=rows, cols=cols)
    got = o.d.view(torch.int16).cpu().numpy().view(np.uint16)[np.ix_(rows, cols)]
    if count := np.count_nonzero(got != want):
        raise SystemExit(f"{o.shape}: {count} of {want.size} words differ from the oracle's")


def graph_of(calls: list[Callable[[], Any]], count: int) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for number in range(count):
            calls[number % len(calls)]()
    return graph


def microseconds(graph: torch.cuda.CUDAGraph, count: int) -> float:
    times = []
    for _ in range(3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / count)
    return statistics.median(times)


@dataclass(frozen=True)
class Row:
    """One shape: TFLOPS of the kernel and of its peer with the same scales, medians, and the median of their ratios."""

    shape: Shape
    entry: str
    tflops: float
    peer_tflops: float
    ratio: float
    tensor_scaled_tflops: float


def measure(module: Any, shape: Shape, entry: Entry, *, bits: bool) -> Row:
    m, n, k = shape
    each = m * k + n * k + 2 * m * n
    sets = [operands(shape, seed) for seed in range(max(2, min(6, -(-IN_CACHE // each))))]
    gemm = Gemm(module, entry)
    launches = [gemm.prepared(o) for o in sets]
    if bits:
        check_bits(sets[0], launches[0], k)
    work = 2e-6 * m * n * k  # TFLOP x 1e6 / us
    count = -(-max(len(sets), min(24, int(5.4e6 / work))) // len(sets)) * len(sets)
    ours = graph_of(launches, count)
    peer = graph_of([block_scaled(o) for o in sets], count)
    other = graph_of([tensor_scaled(o) for o in sets], count)
    rounds = [(microseconds(peer, count), microseconds(ours, count), microseconds(other, count)) for _ in range(ROUNDS)]
    theirs, mine, plain = (statistics.median(times) for times in zip(*rounds, strict=True))
    ratio = statistics.median(before / after for before, after, _ in rounds)
    return Row(shape, entry.name, work / mine, work / theirs, ratio, work / plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the rows and the hashes of the code here")
    parser.add_argument("--entries", action="store_true", help="also time every other entry at every shape")
    arguments = parser.parse_args()
    ptx = compile_ptx(bindings.SOURCE, "sm_90a")
    cubin = assemble(ptx)
    torch.empty(1, device="cuda")  # makes the primary context current
    module = checked(driver.cuModuleLoadData(cubin.image))
    device = torch.cuda.get_device_name(0)
    print(f"{device}, torch {torch.__version__}, {ptx.compiler} ({ptx.origin}), {cubin.assembler}")
    rows = [measure(module, shape, bindings.chosen(*shape), bits=True) for shape in SHAPES]
    print(f"{'M x N x K':>20}  {'entry':<26}{'TFLOPS':>8}{'scaled_mm':>11}{'ratio':>7}{'one scale':>11}")
    for row in rows:
        m, n, k = row.shape
        print(
            f"{m:>6} x{n:>6} x{k:>6}  {row.entry:<26}{row.tflops:8.0f}{row.peer_tflops:11.0f}{row.ratio:7.2f}"
            f"{row.tensor_scaled_tflops:11.0f}"
        )
    print(f"geometric mean of the ratios {statistics.geometric_mean(row.ratio for row in rows):.3f}")
    others = []
    if arguments.entries:
        for shape in SHAPES:
            for entry in bindings.ENTRIES.values():
                others.append(measure(module, shape, entry, bits=False))
    if arguments.json:
        record = {
            "device": device,
            "torch": torch.__version__,
            "compiler": ptx.compiler,
            "assembler": cubin.assembler,
            "ptx_sha256": ptx.sha256,
            "cubin_sha256": cubin.sha256,
            "sampled_outputs": SAMPLED**2,
            "rows": [asdict(row) for row in rows],
            "every_entry": [asdict(row) for row in others],
        }
        arguments.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
