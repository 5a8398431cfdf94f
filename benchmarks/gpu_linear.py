"""Speed of the linear layers on one NVIDIA GPU, against torch's in the same run.

    PYTHONPATH=. python benchmarks/gpu_linear.py [--json PATH]

Needs torch with CUDA and cuda-bindings. A time is that of a CUDA graph of 16 layers with 16 different weights (537 MB in
bf16, more than any cache), divided by 16: the median over replays, kernel and peer alike, random data. Each of our
layers is timed twice: launched as usual, and with programmatic stream serialisation ("overlapped"), where it asks for its
weights while the layer before is still running. The bytes counted are those that must move: W, its scales, X, R and Y.
The bits are compared with the oracle first, on the first and the last columns of every layer.
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

from refsim import oracles
from refsim.device.compile import assemble, compile_ptx
from refsim.layouts import scale_layout
from refsim.testing.kernel_files import load_kernel_file

GPU = Path(__file__).resolve().parent.parent / "gpu"
BATCHES = (1, 4, 16)
OUTPUT = REDUCTION = 4096
GROUP = 128
LAYERS = 16
CHECKED = 128  # columns at either end
E4M3_NAN = 0x7F

Operation = Callable[[], Any]
bindings = load_kernel_file(GPU / "linear_bindings.py")


# ---------------------------------------------------------------------------------------------------------------------
# Launching


def checked(answer: tuple[Any, ...]) -> Any:
    """The result behind a status of the driver."""
    status, *results = answer
    if int(status) != 0:
        raise RuntimeError(f"CUDA driver: {status!r}")
    return results[0] if results else None


@dataclass(frozen=True)
class Layer:
    """The entry of a cubin for one batch, launched on PyTorch's stream."""

    row: Any
    function: Any

    @property
    def tile(self) -> str:
        row = self.row
        return f"{row.output_tile} x {row.reduction_tile}, {row.warps_n} x {row.warps_k} warps, {row.stages} stages"

    def launch(self, pointers: list[int], overlapped: bool = False) -> None:
        row = self.row
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = OUTPUT // row.output_tile, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = row.threads, 1, 1
        config.sharedMemBytes = row.shared_bytes
        config.hStream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
        if overlapped:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            value = driver.CUlaunchAttributeValue()
            value.programmaticStreamSerializationAllowed = 1
            attribute.value = value
            config.attrs, config.numAttrs = [attribute], 1
        arguments = (tuple(pointers), (ctypes.c_void_p,) * len(pointers))
        checked(driver.cuLaunchKernelEx(config, self.function, arguments, 0))


def load_layers(kernel: str, image: bytes) -> dict[int, Layer]:
    """The entries of one shape, by batch."""
    torch.empty(1, device="cuda")  # makes the primary context current
    module = checked(driver.cuModuleLoadData(image))
    limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    layers = {}
    for row in bindings.entries_of(GPU / "kernels" / f"{kernel}.cu").values():
        if row.shape and row.shape[1:] == (OUTPUT, REDUCTION):
            function = checked(driver.cuModuleGetFunction(module, row.name.encode()))
            checked(driver.cuFuncSetAttribute(function, limit, row.shared_bytes))
            layers[row.shape[0]] = Layer(row, function)
    return layers


# ---------------------------------------------------------------------------------------------------------------------
# Operands


@dataclass(frozen=True)
class Weights:
    """W in bf16, and the same layer in shuffled E4M3 codes with scales of groups of 128 x 128."""

    plain: torch.Tensor
    codes: torch.Tensor
    scales: torch.Tensor


def random_weights(generator: torch.Generator) -> Weights:
    plain = torch.randn(OUTPUT, REDUCTION, dtype=torch.bfloat16, device="cuda", generator=generator)
    codes = torch.randint(0, 256, (OUTPUT, REDUCTION), dtype=torch.uint8, device="cuda", generator=generator)
    codes[(codes & 0x7F) == E4M3_NAN] = 0
    scales = torch.rand(OUTPUT // GROUP, REDUCTION // GROUP, device="cuda", generator=generator).bfloat16()
    return Weights(plain, codes, scales)


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    """bf16 as its codes."""
    return tensor.cpu().view(torch.int16).numpy().view(np.uint16)


def pointers_of(kernel: str, x: torch.Tensor, w: Weights, r: torch.Tensor | None, y: torch.Tensor) -> list[int]:
    operands = [w.plain] if kernel == "linear" else [w.codes, w.scales]
    return [x.data_ptr(), *(each.data_ptr() for each in operands), 0 if r is None else r.data_ptr(), y.data_ptr()]


def check_bits(kernel: str, layers: dict[int, Layer], w: Weights) -> int:
    """Every layer with and without a residual, launched both ways, against the oracle; the number of launches."""
    launches = 0
    ends = np.r_[:CHECKED, OUTPUT - CHECKED : OUTPUT]
    for (batch, layer), residual in itertools.product(layers.items(), (False, True)):
        x, r = (torch.randn(batch, n, dtype=torch.bfloat16, device="cuda") for n in (REDUCTION, OUTPUT))
        row = layer.row.reduction()
        addend = bits_of(r)[:, ends] if residual else None
        if kernel == "linear":
            want = oracles.linear(bits_of(x), bits_of(w.plain)[ends], addend, reduction=row)
        else:
            codes = np.asarray(scale_layout("mirage_fp8_16x16").unshuffle(w.codes.cpu().numpy(), (OUTPUT, REDUCTION)))
            scales = bits_of(w.scales)[[0, -1]]
            want = oracles.linear_fp8_weight(bits_of(x), codes[ends], scales, addend, reduction=row)
        for overlapped in (False, True):
            y = torch.full((batch, OUTPUT), float("nan"), dtype=torch.bfloat16, device="cuda")
            layer.launch(pointers_of(kernel, x, w, r if residual else None, y), overlapped)
            torch.cuda.synchronize()
            got = bits_of(y)
            if not np.array_equal(got[:, ends], want) or (got & 0x7FFF > 0x7F80).any():
                raise SystemExit(f"{layer.row.name}: {(got[:, ends] != want).sum()} of {want.size} differ")
            launches += 1
    return launches


# ---------------------------------------------------------------------------------------------------------------------
# Times


@dataclass(frozen=True)
class Row:
    """One line of the table: microseconds a layer, and terabytes a second of the bytes that must move."""

    operation: str
    batch: int
    who: str
    microseconds: float
    terabytes_per_second: float


def graph_microseconds(operations: list[Operation], repeats: int = 40, replays: int = 20) -> float:
    """Microseconds an operation inside a graph of all of them: the median over `repeats` of so many replays."""
    for operation in operations:
        operation()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for operation in operations:
            operation()
    for _ in range(5):
        graph.replay()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(300_000)  # cycles: the host is ahead when the first replay begins
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / replays / len(operations))
    return statistics.median(times)


def bytes_moved(kernel: str, batch: int, residual: bool) -> int:
    weights = OUTPUT * REDUCTION * 2 if kernel == "linear" else OUTPUT * REDUCTION + 2 * (OUTPUT // GROUP) ** 2
    return weights + 2 * batch * (REDUCTION + OUTPUT * (2 if residual else 1))


def measure(kernel: str, layers: dict[int, Layer], weights: list[Weights]) -> list[Row]:
    """Ours at every batch, launched both ways, without and with a residual; beside the bf16 layer torch's."""
    rows = []
    for batch, residual in itertools.product(BATCHES, (False, True)):
        name = {"linear": "bf16", "linear_fp8_weight": "fp8"}[kernel] + (" + residual" if residual else "")
        moved = bytes_moved(kernel, batch, residual)
        x, r = (torch.randn(batch, n, dtype=torch.bfloat16, device="cuda") for n in (REDUCTION, OUTPUT))
        y = torch.empty_like(r)
        added = r if residual else None

        def timed(who: str, operations: list[Operation], row: tuple[str, int, int] = (name, batch, moved)) -> None:
            time = graph_microseconds(operations)
            rows.append(Row(row[0], row[1], who, time, row[2] / time / 1e6))

        for who, overlapped in (("refsim", False), ("overlapped", True)):
            pointers = [pointers_of(kernel, x, w, added, y) for w in weights]
            timed(who, [lambda p=p, o=overlapped, b=batch: layers[b].launch(p, o) for p in pointers])
        if kernel == "linear" and residual:
            timed("torch", [lambda x=x, w=w, r=r: torch.addmm(r, x, w.plain.t()) for w in weights])
        elif kernel == "linear":
            timed("torch", [lambda x=x, w=w: torch.nn.functional.linear(x, w.plain) for w in weights])
    return rows


def table(rows: list[Row]) -> str:
    """The last column is the speed over torch's bf16 layer of that batch, in this run."""
    torch_times = {(each.operation, each.batch): each.microseconds for each in rows if each.who == "torch"}
    lines = [f"{'operation':<17}{'batch':>6}  {'who':<11}{'us':>8}{'TB/s':>7}{'x torch bf16':>14}"]
    for each in rows:
        peer = torch_times.get((each.operation.replace("fp8", "bf16"), each.batch))
        over = f"{peer / each.microseconds:14.2f}" if peer else ""
        lines.append(
            f"{each.operation:<17}{each.batch:>6}  {each.who:<11}{each.microseconds:8.2f}{each.terabytes_per_second:7.2f}{over}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the rows and the hashes of the code here")
    arguments = parser.parse_args()
    device = torch.cuda.get_device_name(0)
    version = checked(driver.cuDriverGetVersion())
    record: dict[str, Any] = {
        "device": device,
        "driver": f"CUDA {version // 1000}.{version % 1000 // 10}",
        "torch": torch.__version__,
        "layers": LAYERS,
        "code": {},
    }
    print(
        f"{device}, {record['driver']}, torch {torch.__version__}, {LAYERS} layers of {OUTPUT} x {REDUCTION} in a graph"
    )
    generator = torch.Generator("cuda").manual_seed(0)
    weights = [random_weights(generator) for _ in range(LAYERS)]
    rows: list[Row] = []
    for kernel in ("linear", "linear_fp8_weight"):
        ptx = compile_ptx(GPU / "kernels" / f"{kernel}.cu", "sm_90a")
        cubin = assemble(ptx)
        layers = load_layers(kernel, cubin.image)
        record["code"][kernel] = {
            "ptx_sha256": ptx.sha256,
            "cubin_sha256": cubin.sha256,
            "compiler": ptx.compiler,
            "assembler": cubin.assembler,
            "tiles": {layer.row.name: layer.tile for layer in layers.values()},
        }
        print(f"{kernel}.cu, {ptx.compiler} ({ptx.origin}), {cubin.assembler}: ", end="")
        print(f"{check_bits(kernel, layers, weights[0])} launches agree with the oracle bit for bit")
        rows += measure(kernel, layers, weights)
    print(table(rows))
    record["rows"] = [asdict(each) for each in rows]
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
