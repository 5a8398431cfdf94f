"""One launch: where variables and parameters lie, which CTAs run at once, and their machines one after another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.ptx.checks.history import History
from refsim.ptx.execution.geometry import Geometry
from refsim.ptx.findings.record import Findings
from refsim.ptx.findings.table import Checks
from refsim.ptx.lowering.blocks import Code
from refsim.ptx.machine.scheduler import Machine
from refsim.ptx.memory.global_memory import GlobalMemory
from refsim.ptx.memory.space import POISON, SHARED_BASE, Region, Space, per_owner
from refsim.ptx.observers.steps import StepObserver
from refsim.ptx.text.syntax import Function, Module, Variable

WAVE_LANES = 1 << 14
WAVE_BYTES = 32 << 20  # shared and local memory of the CTAs that run at once; the rest of a large grid runs after them
MAX_SHARED = 227 << 10
MAX_LOCAL = 512 << 10
MAX_PARAMETERS = 32764
MAX_THREADS = 1024


@dataclass(frozen=True)
class Launch:
    """A launch whose arguments are checked and placed: what every CTA of it has in common."""

    code: Code
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    memory: GlobalMemory
    parameters: Space
    variables: "Placement"
    checks: Checks
    policy: str
    arithmetic: str
    seed: int
    target: str
    observer: StepObserver | None = None

    @property
    def threads(self) -> int:
        """Threads of one CTA."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def ctas(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def wave(self) -> int:
        """How many CTAs run at once."""
        owned = SHARED_BASE + self.variables.shared_bytes + self.threads * self.variables.local_bytes
        return max(1, min(WAVE_LANES // self.threads, WAVE_BYTES // owned))

    def run(self) -> Findings:
        """Run all CTAs, a wave after another; a fault of the kernel is RefsimError."""
        findings, history = Findings(), History()
        for first in range(0, self.ctas, self.wave):
            geometry = Geometry(self.grid, self.block, first, min(self.wave, self.ctas - first))
            machine = self.machine(geometry, findings, history)
            try:
                machine.run()
            except RefsimError as error:
                error.help = error.help or findings.summary()
                raise
        return findings

    def machine(self, geometry: Geometry, findings: Findings, history: History) -> Machine:
        """The machine for some of the CTAs, with shared and local memory of their own."""
        shared_bytes, local_bytes = self.variables.shared_bytes, self.variables.local_bytes
        poison = (POISON + self.seed) & 0xFF
        shared = per_owner("shared", geometry.count, SHARED_BASE + shared_bytes,
                           [Region("shared memory", SHARED_BASE, SHARED_BASE + shared_bytes)], poison)  # fmt: skip
        local = per_owner("local", geometry.lanes, local_bytes, [Region("local memory", 0, local_bytes)], poison)
        return Machine(
            self.code, geometry, self.memory, shared, local, self.parameters, self.variables.symbols,
            checks=self.checks, findings=findings, policy=self.policy, seed=self.seed + geometry.first,
            target=self.target, arithmetic=self.arithmetic, observer=self.observer, history=history,
        )  # fmt: skip


@dataclass(frozen=True)
class Placement:
    """Addresses of all names of an entry; the bytes of shared memory that a CTA takes, and of local memory a lane."""

    symbols: dict[str, int]
    shared_bytes: int
    local_bytes: int


def place_variables(module: Module, function: Function, key: str, device: GlobalMemory, dynamic: int = 0) -> Placement:
    """Place all variables that an entry may name; `key` tells the variables of one module from those of another."""
    symbols, sizes = {}, {"shared": 0, "local": 0}
    externals = []
    for variable in [*module.variables.values(), *function.variables]:
        if variable.space in ("global", "const"):
            symbols[variable.name] = place_global(variable, key, device)
        elif variable.space in sizes:
            if variable.size == 0:
                externals.append(variable)
                continue
            start = _align(sizes[variable.space], variable.align)
            symbols[variable.name] = start + (SHARED_BASE if variable.space == "shared" else 0)
            sizes[variable.space] = start + variable.size
    for variable in externals:
        symbols[variable.name] = SHARED_BASE + _align(sizes["shared"], max(variable.align, 16))
    static = _align(sizes["shared"], 16) if externals else sizes["shared"]
    if static + dynamic > MAX_SHARED:
        raise RefsimError("out-of-shared-memory", f"{static + dynamic} B of shared memory: the limit is {MAX_SHARED} B")
    if sizes["local"] > MAX_LOCAL:
        raise RefsimError("out-of-local-memory", f"{sizes['local']} B of local memory: the limit is {MAX_LOCAL} B")
    offset = 0
    for parameter in function.parameters:
        offset = _align(offset, parameter.align)
        symbols[parameter.name] = offset
        offset += parameter.size
    symbols["%dynamic_smem_size"], symbols["%total_smem_size"] = dynamic, static + dynamic
    return Placement(symbols, static + dynamic, sizes["local"])


def place_global(variable: Variable, key: str, device: GlobalMemory) -> int:
    """A module variable lives in device memory for as long as that memory does."""
    name = f"{variable.name}@{key}"
    for region in device.space.regions:
        if region.name == name:
            return region.start + device.space.base
    initial = (variable.initial or b"").ljust(variable.size, b"\0")
    return device.allocate(variable.size, name, initial=initial, writable=variable.space != "const")


def extents(what: str, shape: Sequence[int]) -> tuple[int, int, int]:
    """Up to three positive launch extents, filled with ones."""
    numbers = [int(extent) for extent in shape]
    if (
        not 1 <= len(numbers) <= 3
        or any(extent < 1 for extent in numbers)
        or any(extent >= 2**31 for extent in numbers)
    ):
        raise RefsimError("bad-launch", f"{what}={tuple(shape)}", rule="one to three extents, each from 1 to 2^31 - 1")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def pack_parameters(
    function: Function, args: Sequence[Any], device: GlobalMemory
) -> tuple[Space, list[tuple[NDArray[Any], int]]]:
    """The parameter bytes of a launch, and the arrays that must be copied back with their addresses."""
    if len(args) != len(function.parameters):
        raise RefsimError(
            "argument-count", f"{function.name} takes {len(function.parameters)} arguments, {len(args)} were given",
            rule=", ".join(f"{parameter.name}: {parameter.size} B" for parameter in function.parameters),
        )  # fmt: skip
    if (size := sum(parameter.size for parameter in function.parameters)) > MAX_PARAMETERS:
        raise RefsimError("too-many-parameters", f"{size} B of parameters: the limit is {MAX_PARAMETERS} B")
    packed, arrays = bytearray(), []
    device.reserve(device.end + sum(array.nbytes + 1024 for array in args if isinstance(array, np.ndarray)))
    for position, (parameter, argument) in enumerate(zip(function.parameters, args, strict=True)):
        if isinstance(argument, np.ndarray) and argument.ndim > 0 and parameter.size == 8:
            if not argument.flags.c_contiguous or not argument.flags.writeable:
                raise RefsimError("bad-argument", f"argument {position} must be a contiguous, writable array")
            address = device.allocate(
                argument.nbytes, f"argument {position}", initial=argument.reshape(-1).view(np.uint8)
            )
            arrays.append((argument, address))
            raw = address.to_bytes(8, "little")
        elif isinstance(argument, np.generic | np.ndarray):
            raw = argument.tobytes()
        else:
            raise RefsimError(
                "bad-argument", f"argument {position} of {function.name} is a {type(argument).__name__}",
                rule="arguments are numpy arrays or numpy scalars of the parameter's size",
            )  # fmt: skip
        if len(raw) != parameter.size:
            raise RefsimError(
                "argument-size", f"argument {position} of {function.name} has {len(raw)} B, {parameter.name} takes "
                f"{parameter.size} B", help="give a numpy scalar of that size, such as np.uint64(n)",
            )  # fmt: skip
        packed += bytes(_align(len(packed), parameter.align) - len(packed)) + raw
    space = Space("param", 0)
    space.bytes = np.frombuffer(bytes(packed).ljust(-(-len(packed) // 16) * 16 + 16, b"\0"), np.uint8).copy()
    space.shadow = np.ones_like(space.bytes)
    space.add(Region("parameters", 0, len(packed), writable=False))
    return space, arrays


def _align(offset: int, align: int) -> int:
    return -(-offset // align) * align
