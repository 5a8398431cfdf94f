"""The rules of a launch: its shape, the directives of the entry, and the limits of the target; checked before it runs.

Each rule is one function that raises one RefsimError. The assembler accepts most violations (`.maxntid 2048`,
`.reqnctapercluster 32`); the driver refuses the launch, and these rules do too.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod
from operator import index
from typing import SupportsIndex

import numpy as np

from refsim.errors import RefsimError, UnfitTargetError
from refsim.ptx.execution.geometry import Shape, grid_number
from refsim.ptx.machine.limits import (
    CLUSTER_SOURCE,
    LIMITS,
    MAX_BLOCK,
    MAX_GRID,
    MAX_LOCAL,
    MAX_STATIC_SHARED,
    MAX_THREADS,
    PARAMETER_SOURCE,
    REGISTERS,
    SHARED_SOURCE,
    THREAD_SOURCE,
    Limits,
    limits_of,
    parameter_limit,
    round_up,
    warp_registers,
)
from refsim.ptx.text.syntax import Function
from refsim.sources import CUDA_DRIVER, PTX

Extents = SupportsIndex | Sequence[SupportsIndex]
_PERFORMANCE = PTX["performance-tuning directives"]


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


def launch_shape(
    function: Function, target: str, grid: Extents, block: Extents, cluster: Extents | None
) -> LaunchShape:
    """Return the shape of a launch that keeps all rules of `target` and of the entry's directives. A launch without a
    cluster takes the cluster of `.reqnctapercluster`. With `.blocksareclusters` the grid counts clusters."""
    where = f"launch of {function.name}"
    required = _directive(function, "reqnctapercluster")
    explicit = cluster is not None or required is not None
    cluster3 = extents("cluster", cluster) if cluster is not None else required or (1, 1, 1)
    grid3, block3 = extents("grid", grid), extents("block", block)
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
