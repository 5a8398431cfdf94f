"""Loading PTX and launching its entries: the public face of the simulator."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import UNREADABLE, RefsimError, unknown
from refsim.ptx.async_ops.queue import POLICIES
from refsim.ptx.execution.geometry import Geometry
from refsim.ptx.findings.faults import place
from refsim.ptx.findings.record import BankUse, Findings
from refsim.ptx.findings.table import Checks
from refsim.ptx.isa.forms import supports
from refsim.ptx.isa.products import ARITHMETICS
from refsim.ptx.lowering.blocks import Code, lower
from refsim.ptx.lowering.contraction import Contraction
from refsim.ptx.machine.scheduler import Machine
from refsim.ptx.memory.global_memory import GlobalMemory
from refsim.ptx.memory.space import POISON, SHARED_BASE, Region, Space, per_owner
from refsim.ptx.text.inline import inline
from refsim.ptx.text.parser import parse
from refsim.ptx.text.syntax import Function, Module, Variable

DEFAULT_TARGET = "sm_90a"
WAVE_LANES = 1 << 14
WAVE_BYTES = 32 << 20  # shared and local memory of the CTAs that run at once; the rest of a large grid runs after them
MAX_SHARED = 227 << 10
MAX_LOCAL = 512 << 10
MAX_PARAMETERS = 32764
MAX_THREADS = 1024


@dataclass(frozen=True)
class Trace:
    """What one launch did: thread-instructions run, inexact instructions met, findings that checks recorded (the first
    of each code and source line), products that ptxas may contract, the use of shared-memory banks where it was counted,
    and matrix products that were summed exactly where the chip does not."""

    entry: str
    instructions: int
    inexact: tuple[str, ...]
    findings: tuple[RefsimError, ...]
    contractions: tuple[Contraction, ...]
    banks: tuple[BankUse, ...] = ()
    idealised: tuple[str, ...] = ()

    @property
    def uninitialised(self) -> tuple[RefsimError, ...]:
        """The recorded reads of memory that nobody had written."""
        return tuple(error for error in self.findings if error.code == "uninitialised")

    @property
    def is_exact(self) -> bool:
        """Whether every result is what silicon must return too: no `.approx`, no order-dependent sum, no contraction, no
        matrix product by another arithmetic than the chip's."""
        return not (self.inexact or self.contractions or self.idealised)


@dataclass
class Program:
    """A PTX module ready to launch."""

    module: Module
    target: str
    sha256: str
    _codes: dict[str, Code] = field(default_factory=dict)

    @cached_property
    def entries(self) -> dict[str, tuple[Variable, ...]]:
        """Entry names with their parameters, in file order."""
        return {name: function.parameters for name, function in self.module.functions.items() if function.is_entry}

    def code(self, entry: str) -> Code:
        """An entry, lowered (once); unknown entries and instructions are RefsimError."""
        if entry not in self.entries:
            raise unknown("entry", entry, list(self.entries))
        if entry not in self._codes:
            self._codes[entry] = lower(inline(self.module, self.module.functions[entry]), self.target)
        return self._codes[entry]

    def launch(
        self, entry: str, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], *, shared_bytes: int = 0,
        memory: GlobalMemory | None = None, policy: str = "eager", arithmetic: str = "silicon",
        checks: Checks | None = None, seed: int = 0,
    ) -> Trace:  # fmt: skip
        """Run one entry over a grid of blocks and return what happened.

        grid, block: up to three extents, x first. args: one per parameter; a numpy array is copied in and copied back,
        a numpy scalar must have the parameter's size (a pointer into `memory` is np.uint64). policy: "eager" runs the
        lowest program counter first and moves asynchronous copies at issue, "lazy" moves them at the wait, "random"
        picks schedule and moments by the seed. arithmetic: "silicon" multiplies matrices as the target does, "exact"
        sums exactly and rounds once. Raises RefsimError: a fault of the kernel (exit 1), a wrong argument (exit 2).
        """
        code = self.code(entry)
        if policy not in POLICIES:
            raise unknown("policy", policy, list(POLICIES))
        if arithmetic not in ARITHMETICS:
            raise unknown("arithmetic", arithmetic, list(ARITHMETICS))
        grid3, block3 = extents("grid", grid), extents("block", block)
        if (threads := block3[0] * block3[1] * block3[2]) > MAX_THREADS:
            raise RefsimError("block-too-large", f"a block of {threads} threads: the limit is {MAX_THREADS}")
        device = memory or GlobalMemory()
        parameters, arrays = pack_parameters(code.function, args, device)
        symbols, shared_size, local_size = self.place_variables(code.function, device, shared_bytes)
        findings, poison = Findings(), (POISON + seed) & 0xFF
        owned = SHARED_BASE + shared_size + threads * local_size
        per_wave = max(1, min(WAVE_LANES // threads, WAVE_BYTES // owned))
        total = grid3[0] * grid3[1] * grid3[2]
        for first in range(0, total, per_wave):
            geometry = Geometry(grid3, block3, first, min(per_wave, total - first))
            owners = (geometry.count, geometry.lanes)
            shared = per_owner("shared", owners[0], SHARED_BASE + shared_size,
                               [Region("shared memory", SHARED_BASE, SHARED_BASE + shared_size)], poison,
                               has_shadow=False)  # fmt: skip
            local = per_owner("local", owners[1], local_size, [Region("local memory", 0, local_size)], poison)
            machine = Machine(
                code, geometry, device, shared, local, parameters, symbols, checks=checks or Checks(),
                findings=findings, policy=policy, seed=seed + first, target=self.target, arithmetic=arithmetic,
            )  # fmt: skip
            try:
                machine.run()
            except RefsimError as error:
                error.help = error.help or findings.summary()
                raise
        for array, address in arrays:
            if device.was_stored_to(address):
                array.reshape(-1).view(np.uint8)[:] = device.read(address, array.nbytes)
        return Trace(
            entry, findings.instructions, tuple(place(statement) for statement in findings.inexact.values()),
            tuple(findings.recorded.values()), code.contractions,
            tuple(findings.banks[line] for line in sorted(findings.banks)),
            tuple(f"{place(statement)}: exact sums" for statement in findings.idealised.values()),
        )  # fmt: skip

    def place_variables(
        self, function: Function, device: GlobalMemory, dynamic: int
    ) -> tuple[dict[str, int], int, int]:
        """Addresses of all variables; the bytes of shared memory a CTA and of local memory a lane take."""
        symbols, sizes = {}, {"shared": 0, "local": 0}
        externals = []
        for variable in [*self.module.variables.values(), *function.variables]:
            if variable.space in ("global", "const"):
                symbols[variable.name] = self.place_global(variable, device)
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
            raise RefsimError(
                "out-of-shared-memory", f"{static + dynamic} B of shared memory: the limit is {MAX_SHARED} B"
            )
        if sizes["local"] > MAX_LOCAL:
            raise RefsimError("out-of-local-memory", f"{sizes['local']} B of local memory: the limit is {MAX_LOCAL} B")
        offset = 0
        for parameter in function.parameters:
            offset = _align(offset, parameter.align)
            symbols[parameter.name] = offset
            offset += parameter.size
        symbols["%dynamic_smem_size"], symbols["%total_smem_size"] = dynamic, static + dynamic
        return symbols, static + dynamic, sizes["local"]

    def place_global(self, variable: Variable, device: GlobalMemory) -> int:
        """A module variable lives in device memory for as long as that memory does."""
        name = f"{variable.name}@{self.sha256[:12]}"
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


def load(text_or_path: "str | PathLike[str]", target: str | None = None) -> Program:
    """Read PTX from a text (it contains a newline) or a file; `target` defaults to the module's own, else sm_90a.

    Raises RefsimError: `malformed-ptx` or an unreadable file (exit 3), a target older than the module's (exit 2).
    """
    text = str(text_or_path)
    if "\n" not in text:
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise RefsimError(
                "unreadable-file", f"cannot read {str(text_or_path)!r} as PTX: {error}", exit_code=UNREADABLE
            ) from None
    module = parse(text)
    if module.address_bits != 64:
        raise RefsimError(
            "unsupported-address-size", f"addresses of {module.address_bits} bits", rule="addresses have 64 bits"
        )
    chosen = target or module.target or DEFAULT_TARGET
    if module.target and not supports(chosen, module.target):
        raise RefsimError("wrong-target", f"the module is for {module.target}, the target asked for is {chosen}")
    return Program(module, chosen, hashlib.sha256(text.encode()).hexdigest())
