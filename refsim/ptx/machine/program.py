"""Loading PTX and launching its entries: the public interface of the simulator.

From an address or the name of a variable to the bytes that it means."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from threading import Lock
from typing import Any

import numpy as np

from refsim.errors import RefsimError, UnfitTargetError, check_named, counted, unknown
from refsim.integers import is_whole
from refsim.ptx.async_ops.queue import HELD_POLICY, POLICIES, SchedulePolicy
from refsim.ptx.findings.record import BankUse, LaunchFindings, open_bits
from refsim.ptx.findings.table import Checks
from refsim.ptx.isa.definedness.tracking import OpenBits
from refsim.ptx.isa.products import ARITHMETICS, KNOWN, Arithmetic
from refsim.ptx.lowering.blocks import Code, lower, single_stepped
from refsim.ptx.lowering.liveness import Contraction
from refsim.ptx.machine.arguments import pack_parameters
from refsim.ptx.machine.launch import PreparedLaunch, place_variables, place_workspace
from refsim.ptx.machine.launch_rules import (
    Extents,
    LaunchRequest,
    LaunchShape,
    check_parameters,
    check_programmatic,
    launch_shape,
)
from refsim.ptx.machine.placed import SimulationOptions
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.global_memory import GlobalMemory
from refsim.ptx.memory.space import GLOBAL_BASE, WINDOW_SIZE, WINDOWS
from refsim.ptx.observers.log import EventLog, RecordedEvent
from refsim.ptx.observers.steps import AddressWatch, StepObserver, Stretch
from refsim.ptx.text.inline import inline
from refsim.ptx.text.lexer import read_ptx
from refsim.ptx.text.parser import parse
from refsim.ptx.text.source_names import entry_named
from refsim.ptx.text.syntax import Module, Variable, place
from refsim.render.cards import Card, Facts
from refsim.targets import runs, target_named

DEFAULT_TARGET = "sm_90a"
LONGEST_NAME = 60  # at a prompt: mangled names may have hundreds of letters
MOST_KEPT, MOST_PROGRAMS = 2 << 20, 256  # characters of texts whose programs are kept, some 100 MB of statements


@dataclass(frozen=True, repr=False)
class Trace(Card):
    """The result of one launch.

    `instructions` counts thread-instructions. `findings` are the recorded findings, the first of each code and source
    line. `warnings` are no failure but should be read. `notes` are facts that make no kernel wrong, such as
    uninitialized memory that was read but does not matter.

    Some results are not what hardware must return. `inexact` names instructions with unspecified bits, and `assumed`
    those whose bits are unverified on this target (recorded on another chip, or sums without a published order).
    `contractions` are products that ptxas may contract. `idealised` names matrix products that were summed exactly
    unlike the chip. `open_lines` are the PTX lines of all of these.

    `banks` is the use of shared-memory banks, if counted. `off` names the checks that were not made. `printed` holds
    the lines that threads printed, in order. `opcodes` are the opcodes of the executed blocks. `waived` holds each
    waiver that allowed a finding, with the finding. `contended`: strong accesses to places of other threads, as (number,
    place, whether it reads only); loops that poll are left out. `events` are those of the launch's EventLog, in order, and
    `events_left_out` counts the events after its limit.
    """

    entry: str
    instructions: int
    inexact: tuple[str, ...]
    findings: tuple[RefsimError, ...]
    contractions: tuple[Contraction, ...]
    banks: tuple[BankUse, ...] = ()
    idealised: tuple[str, ...] = ()
    warnings: tuple[RefsimError, ...] = ()
    notes: tuple[RefsimError, ...] = ()
    off: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()
    open_lines: frozenset[int] = frozenset()
    assumed: tuple[str, ...] = ()
    opcodes: frozenset[str] = frozenset()
    waived: tuple[tuple[str, RefsimError], ...] = ()
    contended: tuple[tuple[int, str, bool], ...] = ()
    events: tuple[RecordedEvent, ...] = ()
    events_left_out: int = 0

    @property
    def uninitialised(self) -> tuple[RefsimError, ...]:
        """Return the recorded reads of uninitialized bits that reached an output, an address or a decision."""
        return tuple(error for error in self.findings if error.code == "uninitialised")

    @property
    def is_exact(self) -> bool:
        """Return whether every result is what hardware must return too: no `.approx` with unspecified or unverified
        bits, no sum that depends on an order, no contraction, and every matrix product in the chip's arithmetic."""
        return not (self.inexact or self.assumed or self.contractions or self.idealised)

    def _repr_summary(self) -> str:
        return f"{_shortened(self.entry)}: {counted(self.instructions, 'instruction')}, {counted(len(self.findings), 'finding')}"

    def _facts(self) -> Facts:
        for label, said in (("finding", self.findings), ("warning", self.warnings), ("note", self.notes)):
            yield from ((label, f"[{error.code}] {error.what} ({error.where})") for error in said)
        yield from (("inexact", text) for text in self.inexact)
        yield from (("assumed", text) for text in self.assumed)
        yield from (("printed", text) for text in self.printed)


@dataclass(repr=False)
class Program(Card):
    """A PTX module ready to launch."""

    module: Module
    target: str
    sha256: str
    text: str = field(repr=False)
    _codes: dict[str, Code] = field(default_factory=dict)

    @cached_property
    def entries(self) -> dict[str, tuple[Variable, ...]]:
        """Return the entry names with their parameters, in file order."""
        return {name: function.parameters for name, function in self.module.functions.items() if function.is_entry}

    @property
    def key(self) -> str:
        """Return the name that keeps this module's variables apart from other modules' variables in one memory."""
        return self.sha256[:12]

    def code(self, entry: str) -> Code:
        """Return an entry by its name in C++ or in PTX, lowered once; RefsimError for unknown entries and
        instructions."""
        entry = entry_named(entry, self.entries, self.text)
        if entry not in self._codes:
            self._codes[entry] = lower(inline(self.module, self.module.functions[entry]), self.target)
        return self._codes[entry]

    def stepped(self, entry: str) -> Code:
        """Return an entry in blocks of one statement, as an observer sees it."""
        return single_stepped(self.code(entry))

    def shape(self, request: LaunchRequest) -> LaunchShape:
        """Return the shape of a launch; RefsimError if the target or the entry's directives refuse it."""
        return launch_shape(self.code(request.entry).function, self.target, request)

    def prepare(self, entry: str, memory: GlobalMemory, *, cooperative: bool = False) -> None:
        """Place the module's variables in a memory, and the workspace of a `cooperative` launch, before a launch."""
        place_variables(self.module, self.code(entry).function, self.key, self.target, memory)
        if cooperative:
            place_workspace(memory)

    def launch(
        self,
        entry: str,
        grid: Extents,
        block: Extents,
        args: Sequence[Any],
        *,
        shared_bytes: int = 0,
        memory: GlobalMemory | None = None,
        policy: SchedulePolicy = "eager",
        arithmetic: Arithmetic = "silicon",
        checks: Checks | None = None,
        seed: int = 0,
        cluster: Extents | None = None,
        cooperative: bool = False,
        programmatic: bool = False,
        observer: StepObserver | None = None,
        watching: AddressWatch | None = None,
        following: OpenBits | None = None,
        events: EventLog | None = None,
    ) -> Trace:
        """Run one entry over a grid of blocks and return what happened.

        grid, block, cluster: a number or up to three extents, x first; without `cluster` the entry's directive holds.
        args: one per parameter. A numpy array is copied in and copied back, a numpy scalar must have the parameter's
        size (a pointer into `memory` is np.uint64), a struct is bytes, a structured scalar or an object that bytes()
        takes.
        policy: "eager" runs the lowest program counter first and moves asynchronous copies at issue, "lazy" moves them
        at the wait, "random" picks schedule and moments by the seed.
        arithmetic: "silicon" multiplies matrices as the target does, "exact" sums exactly and rounds once, "known" is
        "silicon" and refuses bits that are unspecified, unverified on this target or a model's.
        cooperative: all blocks are resident at once and may meet at a grid barrier.
        programmatic: the previous launch in this memory may let this one start early
        (griddepcontrol.launch_dependents); accesses are checked for that, and this launch runs after the previous one.
        observer sees every statement, watching every access to some bytes, following where unspecified bits go. events
        records what lanes do, as Trace.events.
        Raises RefsimError: a kernel's fault (exit 1), a wrong launch (exit 2), a timeout of a grid in waves (exit 5).
        """
        request = LaunchRequest(entry, grid, block, args, shared_bytes, cluster, cooperative, programmatic)
        checks = Checks() if checks is None else checks
        options = SimulationOptions(policy, arithmetic, checks, seed, observer, watching, following, events)
        made, arrays = self.prepared(request, GlobalMemory() if memory is None else memory, options)
        if events is not None:
            events.restart()
        findings = made.run()
        _copy_back(arrays, made.memory)
        return trace_of(made, findings)

    def prepared(
        self, request: LaunchRequest, memory: GlobalMemory, options: SimulationOptions
    ) -> tuple[PreparedLaunch, list[tuple[Array, int]]]:
        """Return a checked and placed launch that has not run, and its array arguments with their addresses."""
        code = (self.code if options.observer is None else self.stepped)(request.entry)
        code = code.held if isinstance(options.policy, str) and options.policy == HELD_POLICY else code
        _check_words(options)
        if options.arithmetic == KNOWN and code.contractions:
            raise open_bits(str(code.contractions[0]), self.target)
        _check_numbers(code, shared_bytes=request.shared_bytes, seed=options.seed)
        _check_flags(code, cooperative=request.cooperative, programmatic=request.programmatic)
        _check_helpers(code, memory, options)
        shape = self.shape(request)
        check_parameters(code.function, self.module.version, self.target)
        if request.programmatic:
            check_programmatic(code.function.name, self.target)
        dynamic = int(request.shared_bytes)
        variables = place_variables(self.module, code.function, self.key, self.target, memory, dynamic)
        parameters, arrays = pack_parameters(code.function, request.args, memory)
        variables.symbols.update(_workspace(memory) if request.cooperative else {})
        earlier = memory.touched if request.programmatic else None
        options = replace(options, seed=int(options.seed))
        return PreparedLaunch(
            request, options, code, shape, memory, parameters, variables, self.target, self.text, earlier
        ), arrays

    def _repr_summary(self) -> str:
        names = list(self.entries)
        return f"{self.target}: {_shortened(names[0]) if len(names) == 1 else f'{len(names)} entries'}"

    def _facts(self) -> Facts:
        for name, parameters in self.entries.items():
            yield (
                name,
                f"parameters of {', '.join(f'{each.size}' for each in parameters)} B"
                if parameters
                else "no parameters",
            )
        yield "sha256", self.sha256


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."


def _check_words(options: SimulationOptions) -> None:
    """Raise RefsimError for an unknown policy or arithmetic."""
    if not isinstance(options.policy, str) or options.policy not in (*POLICIES, HELD_POLICY):
        raise unknown("policy", options.policy, list(POLICIES))
    check_named("arithmetic", options.arithmetic, ARITHMETICS)


def _check_numbers(code: Code, **given: object) -> None:
    for name, value in given.items():
        if not is_whole(value):
            what = f"{name}={value!r:.40} is not allowed"
            raise RefsimError("bad-launch", what, _launch_of(code), "a whole number from 0")


def _check_flags(code: Code, **given: object) -> None:
    for name, value in given.items():
        if not isinstance(value, bool):
            raise RefsimError("bad-launch", f"{name}={value!r:.40} is not allowed", _launch_of(code), "True or False")


def _check_helpers(code: Code, memory: GlobalMemory, options: SimulationOptions) -> None:
    """Raise RefsimError for a launch option that is no object of its own kind."""
    observer, watching, following = options.observer, options.watching, options.following
    for name, value, fits in (
        ("memory", memory, isinstance(memory, GlobalMemory)),
        ("checks", options.checks, isinstance(options.checks, Checks)),
        ("watching", watching, isinstance(watching, AddressWatch | None)),
        ("following", following, isinstance(following, OpenBits | None)),
        ("events", options.events, isinstance(options.events, EventLog | None)),
        ("observer", observer, observer is None or callable(getattr(observer, "before", None))),
    ):
        if not fits:
            what = f"{name}={value!r:.40} is not allowed"
            raise RefsimError("bad-launch", what, _launch_of(code), "an object of its own kind, or None")


def _launch_of(code: Code) -> str:
    return f"launch of {code.function.name}"


def _workspace(device: GlobalMemory) -> dict[str, int]:
    """Return the special registers through which a cooperative launch finds the workspace of grid.sync()."""
    high, low = divmod(place_workspace(device), 1 << 32)
    return {"%envreg1": high, "%envreg2": low}


def _copy_back(arrays: list[tuple[Array, int]], device: GlobalMemory) -> None:
    """Copy device memory back to the arrays that the kernel may have written."""
    for array, address in arrays:
        if device.was_stored_to(address):
            array.reshape(-1).view(np.uint8)[:] = device.read(address, array.nbytes)


def trace_of(launch: PreparedLaunch, findings: LaunchFindings) -> Trace:
    """Return the result of a launch as its user reads it."""
    code, checks = launch.code, launch.options.checks
    return Trace(
        launch.request.entry,
        findings.instructions,
        tuple(place(statement) for statement in findings.inexact.values()),
        tuple(findings.recorded.values()),
        code.contractions,
        tuple(findings.banks[line] for line in sorted(findings.banks)),
        tuple(f"{place(statement)}: exact sums" for statement in findings.idealised.values()),
        tuple(findings.warnings.values()),
        tuple(note for note in findings.notes.values() if checks.level(note.code) != "off"),
        checks.off,
        findings.printed_lines(),
        frozenset((*findings.inexact, *findings.assumed, *findings.idealised))
        | {each.total.line for each in code.contractions},
        tuple(f"{place(statement)}: {why}" for statement, why in findings.assumed.values()),
        frozenset().union(*(code.blocks[pc].opcodes for pc in findings.blocks)),
        tuple((str(waiver), error) for waiver, error in findings.waived.items()),
        tuple(
            (pc, place(step.statement), step.bound.clause.mnemonic == "ld")
            for pc, step in ((pc, code.steps[pc]) for pc in code.strong if pc not in code.waiting)
            if id(step.statement) in findings.contended
        ),
        () if launch.options.events is None else tuple(launch.options.events.events),
        0 if launch.options.events is None else launch.options.events.left_out,
    )


_kept: dict[tuple[str, str | None], Program] = {}
_keeping = Lock()


def load(text_or_path: "str | PathLike[str]", target: str | None = None) -> Program:
    """Read PTX from a text (it contains a newline) or a file; `target` defaults to the module's own, else sm_90a.

    Raises RefsimError: `malformed-ptx` or an unreadable file (exit 3), a target older than the module's (exit 2). A
    module of `.target sm_80` makes a program for "sm_80". Recently read texts are cached. Source: PTX ISA.
    """
    text = str(text_or_path)
    if "\n" not in text:
        text = read_ptx(text_or_path)
    if len(text) > MOST_KEPT or not isinstance(target, str | None):
        return _read(text, target)
    with _keeping:
        known = _kept.pop((text, target), None)
    program = known or _read(text, target)
    with _keeping:
        _kept[text, target] = program  # the newest last
        while len(_kept) > MOST_PROGRAMS or sum(len(each) for each, _ in _kept) > MOST_KEPT:
            del _kept[next(iter(_kept))]
    return program


def forget() -> None:
    """Clear the cache of programs; a program depends on limits and instructions that a test may change."""
    with _keeping:
        _kept.clear()


def _read(text: str, target: str | None) -> Program:
    """Return the program of a PTX text, without the cache."""
    module = parse(text)
    if module.address_bits != 64:
        what = f"addresses of {module.address_bits} bits"
        raise RefsimError("unsupported-feature", what, rule="addresses have 64 bits")
    chosen = module.target or DEFAULT_TARGET if target is None else target_named(target).name
    if module.target and not runs(module.target, chosen):
        help = f"give {module.target} or a target that runs its code, or no target"
        raise UnfitTargetError("wrong-target", f"the module is for {module.target}, not {chosen}", help=help)
    return Program(module, chosen, hashlib.sha256(text.encode()).hexdigest(), text)


STRETCH_RULE = (
    "ADDRESS (global, generic, or of shared memory), a variable, a parameter or argN for the array that it points to; "
    "+BYTES from there, :BYTES how many"
)
WORD = 4
_SPELLED = re.compile(
    r"(?P<base>[^+:]+?)(?:\+(?P<offset>0x[0-9a-fA-F]{1,16}|[0-9]{1,20}))?(?::(?P<count>[0-9]{1,20}))?"
)


def stretch_named(program: Program, entry: str, text: str, shared_bytes: int = 0) -> Stretch:
    """Return the bytes that a text names in one state space: `0x4000000280`, `0x480`, `tile`, `tile+64:16`, `arg1+256`.

    They are four bytes at an address or after an offset, else a whole variable. `tile` is also found under a mangled
    name (_ZZ3addE4tile). Raises RefsimError `bad-address`, or `unknown-symbol` with the nearest names. Source: PTX ISA,
    state spaces; the windows of generic addresses are this simulator's.
    """
    match = _SPELLED.fullmatch(text.strip())
    if match is None:
        raise RefsimError("bad-address", f"{text!r} names no bytes", rule=STRETCH_RULE)
    offset = int(match["offset"] or "0", 0)
    count = int(match["count"]) if match["count"] else None
    if count == 0:
        raise RefsimError("bad-address", f"{text!r} names no bytes", rule=STRETCH_RULE)
    if re.fullmatch(r"0x[0-9a-fA-F]{1,16}|[0-9]{1,20}", match["base"]):
        return _address(int(match["base"], 0) + offset, count or WORD)
    space, start, size, region = _named(program, entry, match["base"], shared_bytes)
    whole = size if not match["offset"] else WORD
    return Stretch(space, start + offset, start + offset + (count or whole), region)


def _address(address: int, count: int) -> Stretch:
    """Return the bytes at an address; addresses below 2^32 are shared memory, as findings print them."""
    if address >= GLOBAL_BASE:
        return Stretch("global", address - GLOBAL_BASE, address - GLOBAL_BASE + count)
    for space, start in WINDOWS.items():
        if start <= address < start + WINDOW_SIZE:
            return Stretch(space, address - start, address - start + count)
    if address >= WINDOW_SIZE:
        raise RefsimError("bad-address", f"{address:#x} lies in no state space", rule=STRETCH_RULE)
    return Stretch("shared", address, address + count)


def _named(program: Program, entry: str, name: str, shared_bytes: int) -> tuple[str, int, int, str]:
    """Return state space, first byte, size and region of a variable, or of the array that a parameter points to."""
    function = program.code(entry).function
    parameters = [variable.name for variable in function.parameters]
    names = [f"arg{position}" for position in range(len(parameters))]
    if name in (*parameters, *names):
        position = (parameters if name in parameters else names).index(name)
        return "global", 0, 1 << 62, f"argument {position}"
    placed = place_variables(program.module, function, program.key, program.target, GlobalMemory(), shared_bytes)
    variables = {each.name: each for each in (*program.module.variables.values(), *function.variables)}
    found = [each for each in variables if each in placed.symbols and _is_called(each, name)]
    if len(found) != 1:
        known = [*(each.partition("@")[0] for each in variables if each in placed.symbols), *parameters, *names]
        raise unknown("symbol", name, known)
    variable = variables[found[0]]
    if variable.space in ("global", "const"):
        return "global", 0, variable.size, f"{variable.name}@{program.key}"
    return variable.space, placed.symbols[variable.name], _size(variable, shared_bytes), ""


def _is_called(mangled: str, name: str) -> bool:
    """Return whether a name means a variable: _ZZ3addE4tile, _ZN2ns4tileE and tile@add@0 of a scope are `tile`."""
    own = mangled.partition("@")[0]
    return name in (mangled, own) or re.search(rf"(?<!\d){len(name)}{re.escape(name)}(E|_\d+)?$", own) is not None


def _size(variable: Variable, shared_bytes: int) -> int:
    """Return the size of a variable; an array without a size has the dynamic shared memory of the launch."""
    return variable.size or max(shared_bytes, 1)
