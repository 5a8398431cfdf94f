"""The FP8 GEMMs on a GPU for benchmarks/gpu_fp8_gemm.py: operands, launches, the peers' calls, what D must hold, and times."""

import ctypes
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pynvml
import torch
from cuda.bindings import driver
from torch.nn import functional

from refsim import oracles
from refsim.device.compile import assemble, compile_ptx
from refsim.device.driver import encoded_map
from refsim.testing.kernel_files import load_kernel_file

GPU = Path(__file__).resolve().parent.parent / "gpu"


def files_of(gpu: Path) -> list[Any]:
    """The declarations of whole tiles, of few rows and of experts in a folder."""
    return [load_kernel_file(gpu / f"gemm_1d2d{name}.py") for name in ("", "_splits", "_experts")]


bindings, splits, experts = files_of(GPU)
SAMPLED, ROUNDS, IN_CACHE = 512, 5, 150_000_000
WARM = TIMED = 60  # milliseconds of each kind of call in every round
Entry, Shape = Any, tuple[int, int, int]


@dataclass(frozen=True)
class Operands:
    """A [m, k] and B [n, k] E4M3, scales of A MN-major [k / 128, m up to 4] and of B [n / 128, k / 128], D [m, n] bf16.

    `matrices` of A and D, and `experts` of B, lie one after another, each with its scales.
    """

    a: torch.Tensor
    b: torch.Tensor
    sfa: torch.Tensor
    sfb: torch.Tensor
    d: torch.Tensor
    matrices: int = 1
    experts: int = 1

    @property
    def shape(self) -> Shape:
        return len(self.a) // self.matrices, len(self.b) // self.experts, self.a.shape[1]


def operands(shape: Shape, seed: int, matrices: int = 1, of_b: int = 1) -> Operands:
    m, n, k = shape
    generator = torch.Generator("cuda").manual_seed(seed)
    heights = matrices * m, of_b * n
    normal = [torch.randn(rows, k, device="cuda", generator=generator).to(torch.float8_e4m3fn) for rows in heights]
    steps = -(-k // 128)
    sfa = torch.rand(matrices * steps, -(-m // 4) * 4, device="cuda", generator=generator) / 128 + 2.0**-10
    sfb = torch.rand(of_b * -(-n // 128), steps, device="cuda", generator=generator) / 128 + 2.0**-10
    d = torch.full((matrices * m, n), -7.0, device="cuda", dtype=torch.bfloat16)
    return Operands(*normal, sfa, sfb, d, matrices, of_b)


def sets_of(shape: Shape, matrices: int = 1, of_b: int = 1) -> list[Operands]:
    """More operands than the L2 cache holds."""
    m, n, k = shape
    each = matrices * m * (k + 2 * n) + of_b * n * k
    return [operands(shape, seed, matrices, of_b) for seed in range(max(2, min(6, -(-IN_CACHE // each))))]


# ---------------------------------------------------------------------------------------------------------------------
# Launching


def checked(answer: tuple[Any, ...]) -> Any:
    """The result behind a status of the driver."""
    status, *results = answer
    if int(status) != 0:
        raise RuntimeError(f"CUDA driver: {status!r}")
    return results[0] if results else None


def config_of(grid: Sequence[int], block: Sequence[int], cluster: Sequence[int], shared_bytes: int) -> Any:
    """What a launch asks for."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes = shared_bytes
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster
    config.attrs, config.numAttrs = [attribute], 1
    return config


class Gemm:
    """One entry of the kernels of `file`, launched on PyTorch's stream."""

    def __init__(self, file: Any, module: Any, entry: Entry) -> None:
        self.file, self.entry = file, entry
        self.function = checked(driver.cuModuleGetFunction(module, entry.name.encode()))
        room = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(driver.cuFuncSetAttribute(self.function, room, entry.shared_bytes))

    def prepared(self, o: Operands, parts: int = 1, more: bytes = b"", held: Any = None) -> Callable[[], None]:
        """A launch over these operands, its arguments packed once; `more`: the kernel's last, `held`: what it points to."""
        entry, (m, n, k) = self.entry, o.shape
        addresses = o.a.data_ptr(), o.b.data_ptr(), o.sfa.data_ptr(), o.d.data_ptr()
        maps = self.file.maps(entry, o.shape, addresses, (k, k, 2 * n), (o.matrices, o.experts))
        structs = [encoded_map(each).raw for each in maps]
        shape = self.file.shape_of(entry, m, n, k, max(1, 2048 // entry.rows // entry.down))
        arguments: list[Any] = [(ctypes.c_char * 128).from_buffer_copy(each) for each in structs]
        arguments.append(ctypes.c_void_p(o.sfb.data_ptr()))
        arguments += [(ctypes.c_char * len(each)).from_buffer_copy(each) for each in (bytes(shape), more) if each]
        packed = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        config = self.config(entry.units(o.matrices * m, n) * parts)
        kept = arguments, held, o

        def launch(kept: Any = kept) -> None:
            config.hStream = torch.cuda.current_stream().cuda_stream
            checked(driver.cuLaunchKernelEx(config, self.function, ctypes.addressof(packed), 0))

        return launch

    def config(self, units: int) -> Any:
        """As many clusters as are resident at once and have something to do."""
        entry = self.entry
        config = config_of((entry.blocks, 1, 1), (entry.threads, 1, 1), (entry.blocks, 1, 1), entry.shared_bytes)
        clusters = checked(driver.cuOccupancyMaxActiveClusters(self.function, config))
        config.gridDimX = min(clusters, units) * entry.blocks
        return config


def in_parts(gemm: Gemm, o: Operands, count: int = 1) -> Callable[[], None]:
    """A launch of an entry of whole tiles, or of one of few rows, K in `count` parts."""
    if "_splits_" not in gemm.entry.name:
        return gemm.prepared(o)
    m, n, k = o.shape
    parts, _ = splits.parts_of(k, count)
    floats, counters = splits.workspace(gemm.entry, m, n, parts)
    partials = torch.empty(floats if parts > 1 else 4, device="cuda", dtype=torch.float32)
    arrivals = torch.zeros(counters, device="cuda", dtype=torch.int32)
    struct = splits.splits_struct(partials.data_ptr(), arrivals.data_ptr(), k, count)
    return gemm.prepared(o, parts, bytes(struct), (partials, arrivals))


def of_experts(gemm: Gemm, o: Operands, groups: torch.Tensor) -> Callable[[], None]:
    """A launch of an entry of experts, of the layout of the entry."""
    struct = experts.experts_struct(groups.data_ptr(), o.d.data_ptr(), o.d.shape[1], o.experts)
    return gemm.prepared(o, 1, bytes(struct), groups)


class DeepGemm:
    """DeepGEMM's compiled kernels in a folder: configs.json, and the cubins that it names.

    configs.json: {"configs": [...]}, an object for each shape with m, n, k; kind, Normal unless MGroupedContiguous or
    MGroupedMasked, and groups, 1 unless there are experts; cubin, the name of a file; entry; grid, block and cluster of three
    numbers; dynamic_smem in bytes; tensor_maps, objects a, b, d and sfa with dtype (UINT8, BFLOAT16, FLOAT32), dims,
    strides_bytes, box, elementStrides, swizzle (NONE, 32B, 64B, 128B) and l2promotion (L2_128B, L2_256B).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        configs = json.loads((folder / "configs.json").read_text("utf-8"))["configs"]
        self.configs = {
            (each.get("kind", "Normal"), each.get("groups", 1), each["m"], each["n"], each["k"]): each
            for each in configs
        }

    def has(self, *key: Any) -> bool:
        """Whether there is a kernel of this kind and so many experts for M, N and K."""
        return key in self.configs

    def prepared(self, o: Operands, kind: str = "Normal", groups: torch.Tensor | None = None) -> Callable[[], None]:
        """A launch over these operands; the parameters are sfb, groups, M, N, K and the four maps."""
        config = self.configs[kind, o.experts, *o.shape]
        module = checked(driver.cuModuleLoadData((self.folder / config["cubin"]).read_bytes()))
        function = checked(driver.cuModuleGetFunction(module, config["entry"].encode()))
        room = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(driver.cuFuncSetAttribute(function, room, config["dynamic_smem"]))
        maps = [self.map(config["tensor_maps"][name], getattr(o, name)) for name in ("a", "b", "d", "sfa")]
        of_rows = ctypes.c_void_p(0 if groups is None else groups.data_ptr())
        held: list[Any] = [ctypes.c_void_p(o.sfb.data_ptr()), of_rows, *map(ctypes.c_uint32, o.shape)]
        raw = [(ctypes.c_char * 192)() for _ in maps]
        places = [-(-ctypes.addressof(each) // 64) * 64 for each in raw]
        for place, each in zip(places, maps, strict=True):
            ctypes.memmove(place, each.getPtr(), 128)
        packed = (ctypes.c_void_p * 9)(*map(ctypes.addressof, held), *places)
        launched = config_of(config["grid"], config["block"], config["cluster"], config["dynamic_smem"])
        kept = module, held, raw, o, groups

        def launch(kept: Any = kept) -> None:
            launched.hStream = torch.cuda.current_stream().cuda_stream
            checked(driver.cuLaunchKernelEx(launched, function, ctypes.addressof(packed), 0))

        return launch

    @staticmethod
    def map(row: dict[str, Any], tensor: torch.Tensor) -> Any:
        """A tensor map of two dimensions."""
        kinds, swizzles, promotions = (
            driver.CUtensorMapDataType,
            driver.CUtensorMapSwizzle,
            driver.CUtensorMapL2promotion,
        )
        wide, narrow = driver.cuuint64_t, driver.cuuint32_t
        return checked(
            driver.cuTensorMapEncodeTiled(
                getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{row['dtype']}"),
                2,
                tensor.data_ptr(),
                [*map(wide, row["dims"])],
                [*map(wide, row["strides_bytes"])],
                [*map(narrow, row["box"])],
                [*map(narrow, row["elementStrides"])],
                driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                getattr(swizzles, f"CU_TENSOR_MAP_SWIZZLE_{row['swizzle']}"),
                getattr(promotions, f"CU_TENSOR_MAP_L2_PROMOTION_{row['l2promotion']}"),
                driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        )


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
    check_samples(o, seed)


def count_differing(o: Operands, launch: Callable[[], None], other: Callable[[], Any]) -> int:
    """Words of D that two launches over the same operands do not write alike."""
    o.d.fill_(-7.0)
    launch()
    first = o.d.clone()
    o.d.fill_(-5.0)
    other()
    return int((o.d.view(torch.int16) != first.view(torch.int16)).sum())


def check_samples(o: Operands, seed: int, **oracle: Any) -> None:
    """What D holds; `oracle`: its arguments besides operands and samples."""
    m, n, k = o.shape
    generator = np.random.default_rng(seed)
    rows = np.sort(generator.choice(m, min(m, SAMPLED), replace=False))
    cols = np.sort(generator.choice(n, min(n, SAMPLED**2 // len(rows)), replace=False))
    a, b = (each.view(torch.uint8).cpu().numpy() for each in (o.a, o.b))
    scale_a = o.sfa.view(o.matrices, -1, o.sfa.shape[1])[:, :, :m].transpose(1, 2).contiguous().cpu().numpy()
    scale_b = o.sfb.view(o.experts, -1, o.sfb.shape[1]).cpu().numpy()
    if o.experts > 1:
        b = b.reshape(o.experts, n, k)
    a, scale_a = (a, scale_a[0]) if o.matrices == 1 else (a.reshape(o.matrices, m, k), scale_a)
    want = oracles.fp8_gemm_1d2d(
        a, b, scale_a, scale_b if o.experts > 1 else scale_b[0], rows=rows, cols=cols, **oracle
    )
    words = o.d.view(torch.int16).cpu().numpy().view(np.uint16).reshape(o.matrices, m, n)
    got = words[:, rows][:, :, cols].reshape(want.shape)
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


@dataclass(frozen=True)
class Times:
    """Of one kind of call, for each round: microseconds, and at its end the clock of multiprocessors (MHz) and the power (W)."""

    microseconds: list[float]
    megahertz: list[int]
    watts: list[float]


class Sensors:
    """What NVML reads off the GPU that torch uses."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
        self.driver = pynvml.nvmlSystemGetDriverVersion()
        self.limit = pynvml.nvmlDeviceGetEnforcedPowerLimit(self.handle) / 1e3

    def read(self) -> tuple[int, float]:
        """The clock of multiprocessors (MHz) and the power of this moment (W)."""
        power = pynvml.nvmlDeviceGetFieldValues(self.handle, [pynvml.NVML_FI_DEV_POWER_INSTANT])[0]
        return pynvml.nvmlDeviceGetClockInfo(self.handle, pynvml.NVML_CLOCK_SM), power.value.uiVal / 1e3


def replayed(graph: torch.cuda.CUDAGraph, times: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Events before and after so many replays, which are submitted."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        graph.replay()
    end.record()
    return begin, end


def steady(graph: torch.cuda.CUDAGraph, sensors: Sensors) -> tuple[float, int, float]:
    """Microseconds of a replay, the clock and the power, all of a GPU that did nothing else for WARM milliseconds."""
    begin, end = replayed(graph, 2)
    end.synchronize()
    each = begin.elapsed_time(end) / 2
    replayed(graph, max(1, round(WARM / each)))
    times = max(1, round(TIMED / each))
    begin, end = replayed(graph, times)
    begin.synchronize()
    time.sleep(0.8e-3 * times * each)
    sensed = sensors.read()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / times, *sensed


def in_turns(calls: dict[str, list[Callable[[], Any]]], work: float) -> dict[str, Times]:
    """The times of each kind of call, in another order in every round; `work`: TFLOP x 1e6 of one.

    A kind begins with the clock and the temperature that the one before it left; so each is warmed before it is timed.
    """
    count = max(map(len, calls.values()))
    count = -(-max(count, min(24, int(5.4e6 / work))) // count) * count
    graphs = {name: graph_of(some, count) for name, some in calls.items()}
    sensors, order, found = Sensors(), random.Random(0), {name: Times([], [], []) for name in calls}
    for _ in range(ROUNDS):
        for name in order.sample(list(graphs), len(graphs)):
            microseconds, megahertz, watts = steady(graphs[name], sensors)
            found[name].microseconds.append(microseconds / count)
            found[name].megahertz.append(megahertz)
            found[name].watts.append(watts)
    return found


def ratio_of(before: Times, after: Times) -> float:
    """How many times as fast as before, the median of the rounds."""
    return statistics.median(one / other for one, other in zip(before.microseconds, after.microseconds, strict=True))


def entries_for(m: int) -> list[Entry]:
    """The entries of both files that fit so many rows."""
    found: list[Entry] = bindings.fitting([*bindings.ENTRIES.values(), *splits.ENTRIES.values()], m)
    return found


class Kernels:
    """The modules of the kernel files of a folder, compiled."""

    def __init__(self, gpu: Path = GPU) -> None:
        self.built, self.modules, self.gemms = {}, {}, {}  # type: ignore[var-annotated]
        self.whole, self.splits, self.experts = files_of(gpu)
        for each in (self.whole, self.splits, self.experts):
            ptx = compile_ptx(each.SOURCE, "sm_90a")
            cubin = assemble(ptx)
            self.built[each.SOURCE.stem] = ptx, cubin
            module = checked(driver.cuModuleLoadData(cubin.image))
            self.modules |= dict.fromkeys(each.ENTRIES, module)

    def gemm(self, entry: Entry) -> Gemm:
        if entry.name not in self.gemms:
            self.gemms[entry.name] = Gemm(self.whole, self.modules[entry.name], entry)
        found: Gemm = self.gemms[entry.name]
        return found

    def launches(self, entry: Entry, sets: list[Operands]) -> list[Callable[[], None]]:
        """Launches of an entry for one B, K in one part."""
        return [in_parts(self.gemm(entry), o) for o in sets]

    def record(self) -> dict[str, Any]:
        return {
            stem: {
                "compiler": ptx.compiler,
                "assembler": cubin.assembler,
                "ptx_sha256": ptx.sha256,
                "cubin_sha256": cubin.sha256,
            }
            for stem, (ptx, cubin) in self.built.items()
        }
