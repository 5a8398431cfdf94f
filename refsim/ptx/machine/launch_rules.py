"""The rules of a launch: its shape, the directives of the entry, and the limits of the target, one entry per target;
checked before it runs."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from operator import index
from typing import Any, SupportsIndex

import numpy as np

from refsim.errors import RefsimError, UnfitTargetError
from refsim.ptx.execution.geometry import Shape, grid_number
from refsim.ptx.text.syntax import Function
from refsim.sources import CUDA_DRIVER, CUDA_GUIDE, CUDA_HEADERS, CUDA_PRODUCTS, PTX, Source
from refsim.targets import target_named

MAX_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65_535, 65_535)
REGISTERS = 65_536  # of an SM, and all that a CTA may take
PARTITIONS = 4
REGISTER_UNIT = 256  # registers of a warp come in such pieces: steps of 8 a thread
SHARED_UNIT = 128
SHARED_RESERVED = 1024
MAX_STATIC_SHARED = 48 << 10
MAX_LOCAL = 512 << 10
PORTABLE_CLUSTER = 8
THREAD_SOURCE = CUDA_GUIDE["technical specifications per compute capability"]
SHARED_SOURCE = CUDA_GUIDE["shared memory per thread block: 48 KB, more by cudaFuncSetAttribute"]
CLUSTER_SOURCE = PTX["cluster dimension directives"]
PARAMETER_SOURCE = PTX["kernel function parameters: 4352 B, 32764 B from PTX 8.1 on sm_70 and newer"]


@dataclass(frozen=True)
class Limits:
    """The limits of one target.

    An SM has `warps`, `ctas` and `shared` bytes; `opt_in` is the most shared memory of one CTA. A cluster has at most
    `cluster` CTAs (0: the target has no clusters). `sms` is the number of SMs of the `chip` named.
    """

    target: str
    warps: int
    ctas: int
    shared: int
    opt_in: int
    cluster: int
    sms: int
    chip: str
    source: Source

    @property
    def number(self) -> int:
        """Return 90 for sm_90."""
        return _number(self.target)

    @property
    def reserved(self) -> int:
        """Return the bytes of shared memory that the system keeps of every CTA, since sm_80."""
        return SHARED_RESERVED if self.number >= 80 else 0


def _number(target: str) -> int:
    return target_named(target).number


def _row(target: str, warps: int, ctas: int, shared_kib: int, cluster: int, sms: int, chip: str) -> Limits:
    source = CUDA_GUIDE["technical specifications"] if target not in _BY_HEADER else CUDA_HEADERS["cuda_occupancy.h"]
    opt_in = (shared_kib << 10) - (SHARED_RESERVED if _number(target) >= 80 else 0)
    return Limits(target, warps, ctas, shared_kib << 10, opt_in, cluster, sms, chip, source)


# The guide has no column for these: CTAs and shared memory are from the header, warps from the previous target.
_BY_HEADER = ("sm_103", "sm_121")

LIMITS = (
    _row("sm_75", 32, 16, 64, 0, 40, "T4"),
    _row("sm_80", 64, 32, 164, 0, 108, "A100"),
    _row("sm_86", 48, 16, 100, 0, 84, "RTX A6000"),
    _row("sm_87", 48, 16, 164, 0, 16, "Jetson AGX Orin"),
    _row("sm_89", 48, 24, 100, 0, 142, "L40S"),
    _row("sm_90", 64, 32, 228, 16, 132, "H100 SXM, H200"),
    _row("sm_100", 64, 32, 228, 16, 148, "B200"),
    _row("sm_103", 64, 32, 228, 16, 148, "B300"),
    _row("sm_110", 48, 24, 228, 16, 20, "Jetson T5000"),
    _row("sm_120", 48, 24, 100, 8, 170, "RTX 5090"),
    _row("sm_121", 48, 24, 100, 8, 48, "GB10"),
)
CHIP_SOURCE = CUDA_PRODUCTS["number of multiprocessors"]


@lru_cache(maxsize=64)
def limits_of(target: str) -> Limits:
    """Return the limits of a target such as sm_90a; an unlisted target has those of the newest one before it. The
    oldest entry is sm_75."""
    number = _number(target)
    return [row for row in LIMITS if row.number <= max(number, LIMITS[0].number)][-1]


def parameter_limit(version: str, target: str) -> int:
    """Return how many bytes of parameters an entry may take: 32,764 since PTX 8.1 on sm_70 and newer, else 4,352."""
    major, _, minor = version.partition(".")
    is_new = major.isdigit() and minor.isdigit() and (int(major), int(minor)) >= (8, 1)
    return 32_764 if is_new and _number(target) >= 70 else 4_352


def round_up(number: int, step: int) -> int:
    """Return the least multiple of `step` that is not smaller: round_up(33, 32) = 64."""
    return -(-number // step) * step


def warp_registers(registers: int) -> int:
    """Return how many registers a warp occupies if each thread uses `registers`: 33 a thread take 40 x 32 = 1,280."""
    return round_up(32 * registers, REGISTER_UNIT)


def ctas_per_sm(limits: Limits, threads: int, shared_bytes: int, registers: int) -> int:
    """Return how many CTAs one SM holds at once, as warps, slots, registers and shared memory allow. Example: CTAs of
    1,024 threads with 32 registers: 2 an SM of sm_90. Source: cuda_occupancy.h."""
    warps = -(-threads // 32)
    per_partition = REGISTERS // PARTITIONS // warp_registers(max(registers, 1))
    return min(
        limits.warps // warps,
        limits.ctas,
        per_partition * PARTITIONS // warps,
        limits.shared // max(round_up(shared_bytes + limits.reserved, SHARED_UNIT), SHARED_UNIT),
    )


def total_shared(shared_bytes: int) -> int:
    """Return `%total_smem_size`: static and dynamic shared memory in units of 128 B, without the reserved part."""
    return round_up(shared_bytes, SHARED_UNIT)


Extents = SupportsIndex | Sequence[SupportsIndex]
_PERFORMANCE = PTX["performance-tuning directives"]


@dataclass(frozen=True)
class LaunchRequest:
    """One launch as requested: an entry, its grid of blocks, its arguments, and the attributes of the launch."""

    entry: str
    grid: Extents
    block: Extents
    args: Sequence[Any] = ()
    shared_bytes: int = 0
    cluster: Extents | None = None
    cooperative: bool = False
    programmatic: bool = False


@dataclass(frozen=True)
class LaunchShape:
    """Grid, block and cluster of a launch, in CTAs and threads. `is_explicit_cluster` is true if the launch or the
    entry names a cluster."""

    grid: Shape
    block: Shape
    cluster: Shape
    is_explicit_cluster: bool

    @property
    def threads(self) -> int:
        """Return the number of threads of one CTA."""
        return prod(self.block)

    @property
    def ctas(self) -> int:
        """Return the number of CTAs of the grid."""
        return prod(self.grid)

    @property
    def cluster_ctas(self) -> int:
        """Return the number of CTAs of one cluster."""
        return prod(self.cluster)

    def block_number(self, order: int) -> int:
        """Return the number in the grid, x fastest, of the CTA that runs as number `order`."""
        return int(grid_number(np.array([order]), self.grid, self.cluster)[0])


def extents(what: str, shape: Extents) -> Shape:
    """Return one to three positive launch extents as three, filled with ones; a single number is the first."""
    try:
        if isinstance(shape, bytes | bytearray | Set | Mapping):
            raise TypeError
        numbers = [index(shape)] if isinstance(shape, SupportsIndex) else [index(extent) for extent in shape]
    except (TypeError, ValueError):
        numbers = []
    if not 1 <= len(numbers) <= 3 or any(not 1 <= extent < 2**31 for extent in numbers):
        rule = "one to three whole extents, each from 1 to 2^31 - 1"
        raise RefsimError("bad-launch", f"{what}={shape} is not allowed", rule=rule)
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def launch_shape(function: Function, target: str, request: LaunchRequest) -> LaunchShape:
    """Return the shape of a launch that keeps all rules of `target` and of the entry's directives. A launch without a
    cluster takes the cluster of `.reqnctapercluster`. With `.blocksareclusters` the grid counts clusters."""
    where = f"launch of {function.name}"
    required = _directive(function, "reqnctapercluster")
    explicit = request.cluster is not None or required is not None
    cluster3 = extents("cluster", request.cluster) if request.cluster is not None else required or (1, 1, 1)
    grid3, block3 = extents("grid", request.grid), extents("block", request.block)
    if "blocksareclusters" in function.directives:
        grid3 = (grid3[0] * cluster3[0], grid3[1] * cluster3[1], grid3[2] * cluster3[2])
    shape = LaunchShape(grid3, block3, cluster3, explicit)
    _check_grid(shape, where)
    _check_block(function, shape, where)
    if explicit:
        _check_cluster(target, shape, where)
        _check_cluster_directives(function, shape, where)
    elif "explicitcluster" in function.directives:
        what = f"{function.name} has to be launched with a cluster, and none was given"
        raise RefsimError("bad-launch", what, where, str(CLUSTER_SOURCE) + ": .explicitcluster", "give cluster=")
    return shape


def _directive(function: Function, name: str) -> Shape | None:
    """Return the extents of a directive, filled with ones, or None if the entry has no such directive."""
    if name not in function.directives:
        return None
    x, y, z = (*function.directives[name], 1, 1, 1)[:3]
    return x, y, z


def _check_grid(shape: LaunchShape, where: str) -> None:
    """Raise RefsimError for a grid beyond the largest extents."""
    for axis, extent, most in zip("xyz", shape.grid, MAX_GRID, strict=True):
        if extent > most:
            what = f"a grid of {extent:,} blocks along {axis}: the limit is {most:,}"
            help = "put the long axis first: x goes to 2^31 - 1"
            raise RefsimError("launch-limit", what, where, str(THREAD_SOURCE), help)


def _check_block(function: Function, shape: LaunchShape, where: str) -> None:
    """Raise RefsimError for a block beyond the target's limits or the entry's `.reqntid` and `.maxntid`."""
    for axis, extent, most in zip("xyz", shape.block, MAX_BLOCK, strict=True):
        if extent > most:
            what = f"a block of {extent} threads along {axis}: the limit is {most}"
            raise RefsimError("launch-limit", what, where, str(THREAD_SOURCE))
    if shape.threads > MAX_THREADS:
        what = f"a block of {shape.threads} threads: the limit is {MAX_THREADS}"
        raise RefsimError("launch-limit", what, where, str(THREAD_SOURCE))
    required, largest = _directive(function, "reqntid"), _directive(function, "maxntid")
    if required is not None and shape.block != required:
        what = f"a block of {_text(shape.block)} threads: the entry requires {_text(required)}"
        raise RefsimError("bad-launch", what, where, f"{_PERFORMANCE}: .reqntid", f"launch with block={required}")
    if largest is not None and shape.threads > prod(largest):
        what = f"a block of {shape.threads} threads: the entry was compiled for at most {prod(largest)}"
        raise RefsimError("launch-limit", what, where, f"{_PERFORMANCE}: .maxntid {_text(largest)} (__launch_bounds__)")


def _check_cluster(target: str, shape: LaunchShape, where: str) -> None:
    """Raise RefsimError for a cluster that the target does not allow, or that does not divide the grid."""
    most = limits_of(target).cluster
    if most == 0:
        what = f"a cluster of {_text(shape.cluster)} on {target}, which has no clusters"
        raise UnfitTargetError("bad-launch", what, where, f"{CLUSTER_SOURCE}: sm_90 and newer")
    if shape.cluster_ctas > most:
        raise _beyond(
            f"a cluster of {shape.cluster_ctas} blocks: {target} takes {most}",
            where,
            f"{CLUSTER_SOURCE}; up to 8 are portable, 16 where the chip allows it",
            [row for row in LIMITS if row.cluster >= shape.cluster_ctas],
        )
    if any(blocks % part for blocks, part in zip(shape.grid, shape.cluster, strict=True)):
        what = f"a grid of {_text(shape.grid)} blocks in clusters of {_text(shape.cluster)}"
        raise RefsimError("bad-launch", what, where, f"{CLUSTER_SOURCE}: a grid is whole clusters along each axis")


def _check_cluster_directives(function: Function, shape: LaunchShape, where: str) -> None:
    """Raise RefsimError for a cluster that the entry's directives do not allow."""
    required = _directive(function, "reqnctapercluster")
    if required is not None and shape.cluster != required:
        what = f"a cluster of {_text(shape.cluster)} blocks: the entry requires {_text(required)}"
        rule = f"{CLUSTER_SOURCE}: .reqnctapercluster"
        raise RefsimError("bad-launch", what, where, rule, f"launch with cluster={required}, or without one")
    largest = function.directives.get("maxclusterrank")
    if largest and shape.cluster_ctas > largest[0]:
        what = f"a cluster of {shape.cluster_ctas} blocks: the entry takes at most {largest[0]}"
        raise RefsimError("launch-limit", what, where, f"{CLUSTER_SOURCE}: .maxclusterrank")


def _beyond(what: str, where: str, rule: str, fitting: Sequence[Limits]) -> RefsimError:
    """Return the error of a launch beyond a limit of its target; `fitting` are the targets whose limit is higher."""
    if not fitting:
        return RefsimError("launch-limit", what, where, rule)
    names = ", ".join(row.target for row in fitting)
    return UnfitTargetError("launch-limit", what, where, rule, f"it fits on {names}")


def check_memory(entry: str, target: str, static: int, dynamic: int, local: int) -> None:
    """Raise RefsimError for too much shared memory of a CTA or local memory of a thread, in bytes. `static` is declared
    by the entry, `dynamic` requested by the launch."""
    where, most = f"launch of {entry}", limits_of(target).opt_in
    if static > MAX_STATIC_SHARED:
        what = f"{static} B of static shared memory: the limit is {MAX_STATIC_SHARED} B"
        rule = f"{SHARED_SOURCE}, on every target"
        raise RefsimError("launch-limit", what, where, rule, "declare it `extern __shared__` and give shared_bytes=")
    if static + dynamic > most:
        raise _beyond(
            f"{static + dynamic} B of shared memory ({static} static, {dynamic} dynamic): {target} has {most} B for a block",
            where,
            str(SHARED_SOURCE),
            [row for row in LIMITS if row.opt_in >= static + dynamic],
        )
    if local > MAX_LOCAL:
        what = f"{local} B of local memory a thread: the limit is {MAX_LOCAL} B"
        raise RefsimError("launch-limit", what, where, str(THREAD_SOURCE))


def check_parameters(function: Function, version: str, target: str) -> None:
    """Raise RefsimError if the parameters, each at its alignment, take too many bytes."""
    most, size = parameter_limit(version, target), 0
    for parameter in function.parameters:
        size = round_up(size, parameter.align) + parameter.size
    if size > most:
        what = f"{size} B of parameters: the limit is {most} B for PTX {version} on {target}"
        where = f"launch of {function.name}"
        raise RefsimError("launch-limit", what, where, str(PARAMETER_SOURCE), "pass a pointer to a buffer")


def check_programmatic(entry: str, target: str) -> None:
    """Raise RefsimError for a target that cannot start a launch before the previous one has ended."""
    if limits_of(target).cluster == 0:
        raise UnfitTargetError(
            "bad-launch",
            f"a launch by programmatic serialization on {target}, which has none",
            f"launch of {entry}",
            f"{CUDA_DRIVER['cuLaunchKernelEx']}: programmatic stream serialization, compute capability 9.0 and newer",
            "leave out programmatic=, or compile for sm_90a",
        )


def check_registers(entry: str, threads: int, registers: int) -> None:
    """Raise RefsimError for a CTA with too many registers. The registers of whole groups of four warps count, as each
    of the four partitions of an SM takes a warp of a group."""
    needed = warp_registers(registers) * round_up(-(-threads // 32), 4)
    if needed > REGISTERS:
        raise RefsimError(
            "launch-limit",
            f"{threads} threads of {registers} registers take {needed:,}: an SM has {REGISTERS:,}",
            f"launch of {entry}",
            "cuda_occupancy.h: registers of a warp x warps rounded up to 4",
            "compile with __launch_bounds__ or --maxrregcount, or launch fewer threads",
        )


def _text(shape: Shape) -> str:
    return " x ".join(map(str, shape))
