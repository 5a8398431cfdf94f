"""The simulated GPU as a device: it executes the kernel's PTX lane by lane and checks every access.

A launch of moderate size runs under several schedules (`schedules.py`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim import ptx
from refsim.device import arguments
from refsim.device.compile import compiled
from refsim.device.host_library import host_facts
from refsim.device.kernel_sources import TEXT_NAME, read_source, source_files
from refsim.device.schedules import SCHEDULES, Outcome, SeededPolicy, early, outcomes, schedules_of
from refsim.errors import RefsimError, counted
from refsim.kernel_code import KernelCode, code_of
from refsim.kernels import Buffer, Findings, Struct
from refsim.layouts.tma import MAP_ALIGN, TensorMap
from refsim.ptx.checks.first_nan import NanArray, NanRow, NonFinite
from refsim.ptx.checks.race_reports import CONVERGED
from refsim.ptx.findings.record import LaunchFindings
from refsim.ptx.findings.table import SCHEDULE_DEPENDENT, Waiver, check_name, comments, lines_of
from refsim.ptx.isa.definedness.tracking import OpenBits
from refsim.ptx.machine.launch import PreparedLaunch, changed_variables, run_overlapped
from refsim.ptx.machine.launch_rules import LaunchRequest
from refsim.ptx.machine.placed import SimulationOptions
from refsim.ptx.machine.program import trace_of
from refsim.ptx.memory.snapshot import Snapshot
from refsim.ptx.memory.space import repeated
from refsim.ptx.memory.tensor_map import encoded
from refsim.ptx.text.source_names import entry_named
from refsim.ptx.text.syntax import place
from refsim.render.cards import Card


@dataclass
class KernelWaivers:
    """The checks that are off for a kernel, its waivers, and the text of the finding that each allowed.

    A waiver must allow a finding if a launched entry has code at its line; so a file may hold several kernels. One of
    `demanded` must do so too if no entry has such code, and a device's waiver (`shared`) if it names this file.
    """

    off: tuple[str, ...] = ()
    demanded: frozenset[Waiver] = frozenset()
    commented: tuple[Waiver, ...] = ()
    shared: frozenset[Waiver] = frozenset()
    found: dict[Waiver, str] = field(default_factory=dict)

    @staticmethod
    def of(code: KernelCode, without: Sequence[str]) -> "KernelWaivers":
        """Return the waivers of a kernel on a device that leaves out `without`; RefsimError for a wrong comment."""
        own, name = ptx.Checks(off=code.without), Path(code.file).name if code.is_ptx and code.file else ""
        given = ptx.Checks(off=tuple(without))
        shared = [each for each in given.waivers if not name or not each.is_of_ptx or each.file == name]
        commented = list(_commented(code))
        alone = [waiver for waiver, has_code in commented if not has_code]
        off, written = tuple(dict.fromkeys((*given.off, *own.off))), tuple(waiver for waiver, _ in commented)
        return KernelWaivers(off, frozenset((*own.waivers, *alone)), written, frozenset(shared))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of checks and waivers, as `ptx.Checks` takes them."""
        return (*self.off, *map(str, dict.fromkeys((*self.demanded, *self.commented, *self.shared))))

    def allowed(self, trace: ptx.Trace) -> None:
        """Record what the waivers allowed in one launch."""
        for name, error in trace.waived:
            self.found.setdefault(Waiver.of(name), f"{error.what}, at {error.where}")

    def judged(self, program: ptx.Program, entries: Sequence[str]) -> dict[str, str]:
        """Return the finding that each waiver allowed, by waiver: "" for one that must allow a finding and did not."""
        asked = dict.fromkeys((*self.demanded, *self.commented, *self.shared))
        if not asked or not entries:
            return {}
        ran = {line for entry in entries for step in program.code(entry).steps for line in lines_of(step.statement)}
        known = {
            line
            for function in program.module.functions.values()
            for each in function.statements
            for line in lines_of(each)
        }
        files = {file for file, _ in known}
        must = {
            each
            for each in asked
            if each.is_at(ran)
            or (
                not each.is_at(known)
                and (each in self.demanded or (each in self.shared and (each.file in files or each.is_of_ptx)))
            )
        }
        return {str(each): self.found.get(each, "") for each in asked if each in self.found or each in must}


def _commented(code: KernelCode) -> list[tuple[Waiver, bool]]:
    """Return the waivers of comments, and whether each stands beside code."""
    texts = [(file.name, read_source(file)) for file in source_files(code)]
    texts += [(TEXT_NAME, code.source)] if code.source is not None else []
    texts += [("source.ptx", code.ptx)] if code.ptx is not None else []
    found = [each for name, text in texts for each in comments(name, text)]
    for waiver, _ in found:
        try:
            check_name(str(waiver))
        except RefsimError as error:
            error.where = f"the comment at {waiver.file}:{waiver.line}"
            raise
    return found


SCHEDULED_LANES = 4096
WATCHED_BYTES = 8 << 20
LAUNCH_SECONDS = 600.0
UNCHECKED = ptx.Checks(races="off", copies="off", seconds=LAUNCH_SECONDS)


@dataclass(frozen=True)
class Earlier:
    """A launch that lets the next launch begin early, prepared to run again, and the memory it began with."""

    before: Snapshot
    launch: PreparedLaunch

    def overlapped(self, launch: PreparedLaunch) -> LaunchFindings:
        """Run the launch again, overlapped with `launch`, and return the findings of `launch`."""
        launch.memory.restore(self.before)
        return run_overlapped(self.launch, launch, self.before)


@dataclass(repr=False)
class SimLauncher(Card):
    """One kernel file loaded on a simulated GPU with empty memory.

    A launch runs under the first `schedules` of its `orders`, or under one `policy` alone; `arithmetic` is the argument
    of `Program.launch`. `traces` holds the trace of each launch under its first schedule, with `count_banks` also its
    use of the banks. An entry of `any_order` runs under one schedule, number `alone` of at most `most` so far. If
    `following` is a `NonFinite`, `nan_rows` are its reports on all launches; `formats` names those of buffers of codes.
    """

    program: ptx.Program
    schedules: int
    policy: ptx.SchedulePolicy | None = None
    arithmetic: ptx.Arithmetic = "silicon"
    memory: ptx.GlobalMemory = field(default_factory=ptx.GlobalMemory)
    inexact: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    traces: list[ptx.Trace] = field(default_factory=list)
    count_banks: bool = False
    waivers: KernelWaivers = field(default_factory=KernelWaivers)
    following: OpenBits | None = None
    has_followed: bool = False
    is_unfollowed: bool = False
    buffers: list[Buffer] = field(default_factory=list)
    seconds: float = LAUNCH_SECONDS
    earlier: Earlier | None = None
    assumed: list[str] = field(default_factory=list)
    unordered: dict[str, str] = field(default_factory=dict)
    any_order: tuple[str, ...] = ()
    alone: int = 0
    most: int = 1
    formats: Mapping[str, str] = field(default_factory=dict)
    nan_rows: list[NanRow] = field(default_factory=list)

    def _repr_summary(self) -> str:
        return f"{self.target}, {counted(len(self.buffers), 'buffer')}, launches: {len(self.traces)}"

    @property
    def target(self) -> str:
        return self.program.target

    def upload(self, array: NDArray[Any], *, name: str, misalign_bytes: int = 0, writable: bool = False) -> Buffer:
        """Copy an array into a new buffer and return it; writing it is a fault unless it is `writable`.

        A large view that repeats elements (`numpy.broadcast_to`) costs the memory that the kernel touches.
        """
        given: Any = repeated(array)
        given = arguments.flat_of(name, array) if given is None else given
        arguments.check_buffer(name, given.size, given.dtype, misalign_bytes)
        address = self.memory.allocate(
            given.nbytes, self._fresh(name), initial=given, offset=misalign_bytes, writable=writable
        )
        return self._kept(Buffer(name, address, given.size, given.dtype))

    def output(self, count: int, dtype: Any, *, name: str, misalign_bytes: int = 0) -> Buffer:
        """Return a buffer of poison; reading an element before it is written is a fault."""
        element = arguments.dtype_of(name, dtype)
        arguments.check_buffer(name, count, element, misalign_bytes)
        address = self.memory.allocate(count * element.itemsize, self._fresh(name), offset=misalign_bytes)
        return self._kept(Buffer(name, address, int(count), element))

    def _kept(self, buffer: Buffer) -> Buffer:
        self.buffers.append(buffer)
        return buffer

    def _owns(self, buffer: Buffer) -> bool:
        return any(each is buffer for each in self.buffers)

    def _fresh(self, name: str) -> str:
        if any(region.name == name for region in self.memory.space.regions):
            raise RefsimError("name-taken", f"a buffer named {name!r} exists in this launcher")
        return name

    def read(self, buffer: Buffer) -> NDArray[Any]:
        """Return the buffer's current elements, shape (count,)."""
        arguments.check_owned(buffer, self._owns)
        return self.memory.read(buffer.address, buffer.count * buffer.dtype.itemsize).view(buffer.dtype)

    def owner_of(self, buffer: Buffer, index: int) -> dict[str, object]:
        """Return the thread that last wrote an element (block, thread; x first), its statement, and the address."""
        address = buffer.address + index * buffer.dtype.itemsize
        thread = self.memory.writer(address)
        if thread < 0:
            return {"address": address, "written": "never"}
        block, thread = divmod(thread, self._shape.threads)
        owner: dict[str, object] = {"block": self._shape.block_number(block), "thread": thread}
        line = self.memory.writing_line(address)
        functions = self.program.module.functions.values()
        by = next((place(each) for function in functions for each in function.statements if each.line == line), "")
        return {**owner, "address": address, **({"by": by} if by else {})}

    def launch(
        self,
        entry: str,
        grid: ptx.Extents,
        block: ptx.Extents,
        args: Sequence[Any],
        shared_bytes: int = 0,
        *,
        cluster: ptx.Extents | None = None,
        cooperative: bool = False,
        programmatic: bool = False,
        warp_synchronous: bool = False,
    ) -> None:
        """Run an entry under one or more schedules; faults are RefsimError.

        A programmatic launch runs after the previous launch. If that launch lets it begin early, it runs overlapped as
        well.
        """
        asked = LaunchRequest(entry, grid, block, args, shared_bytes, cluster, cooperative, programmatic)
        request, orders = arguments.with_values(asked, self._owns, self.encode), self.orders(entry)
        self._shape = self.program.shape(request)
        small = getattr(self.following, "watches", False) or self._shape.ctas * self._shape.threads <= SCHEDULED_LANES
        arguments.check_flags(request, warp_synchronous=warp_synchronous)
        self._begin(request)
        before, touched, beside = self.memory.snapshot() if small else None, self.memory.touched, self.earlier

        def executed(order: SeededPolicy, checks: ptx.Checks, following: OpenBits | None = None) -> ptx.Trace:
            if order != orders[0] or following is not None:
                assert before is not None
                self.memory.restore(before)
            self.memory.touched, left = touched, self.memory.touched
            made = self._prepared(request, order, checks, following)
            if not order.begins_early or beside is None:
                return trace_of(made, made.run())
            self.memory.touched = left
            return trace_of(made, beside.overlapped(made))

        def run(order: SeededPolicy) -> tuple[ptx.Trace, ptx.GlobalMemory]:
            banks = self.count_banks and order == orders[0]
            return executed(order, ptx.Checks(banks=banks, seconds=self.seconds, off=self.waivers.names)), self.memory

        tried = (*orders, *(early(orders) if programmatic and beside is not None else ())) if small else orders[:1]
        self._judge(entry, outcomes(run, entry, self._chosen(entry, tried)), warp_synchronous)
        self.earlier = None
        if before is not None and self.program.code(entry).lets_others_begin:
            checks = replace(UNCHECKED, off=self.waivers.names)
            self.earlier = Earlier(before, self._prepared(replace(request, programmatic=False), orders[0], checks))
        self._follow(lambda following: executed(orders[0], UNCHECKED, following), can_follow=small)

    def _prepared(
        self, request: LaunchRequest, order: SeededPolicy, checks: ptx.Checks, following: OpenBits | None = None
    ) -> PreparedLaunch:
        options = SimulationOptions(order.policy, self.arithmetic, checks, order.seed, following=following)
        return self.program.prepared(request, self.memory, options)[0]

    def _begin(self, request: LaunchRequest) -> None:
        """Allocate the module's variables before any schedule, and track writers of small memories."""
        self.program.prepare(request.entry, self.memory, cooperative=request.cooperative)
        if self.memory.end <= WATCHED_BYTES and self.memory.space.writer is None:
            self.memory.track_writers()

    def _follow(self, again: Callable[[OpenBits], object], *, can_follow: bool) -> None:
        """Run a launch once more to follow inexact bits of this and earlier launches; memory is restored afterwards."""
        if self.following is None:
            return
        self.following.lines |= self.traces[-1].open_lines if not self.following.watches else frozenset()
        self.is_unfollowed |= bool(self.following.lines) and not can_follow
        if not (self.following.lines or self.following.watches) or not can_follow:
            return
        after, touched = self.memory.snapshot(), self.memory.touched
        if isinstance(self.following, NonFinite):
            self.following.launch = f", launch {len(self.traces)} ({self.traces[-1].entry})"
            self.following.known = {
                one.name: NanArray.of(one.dtype, self.formats.get(one.name, "")) for one in self.buffers
            }
        again(self.following)
        if isinstance(self.following, NonFinite):
            self.nan_rows += self.following.rows()
        self.memory.restore(after)
        self.memory.touched = touched
        self.has_followed = True

    def open_bits(self, buffer: Buffer) -> NDArray[np.uint8] | None:
        """Return a byte of mask for each byte of a buffer: a set bit is unspecified because of inexact arithmetic.

        None if this is unknown: unspecified bits decided a branch, a guard or an address, a launch was too large to be
        followed, or `follow_open` was not requested.
        """
        arguments.check_owned(buffer, self._owns)
        if self.following is None or self.is_unfollowed or self.following.reaches:
            return None
        return self.following.open_in(self.memory, buffer.address, buffer.count * buffer.dtype.itemsize)

    def encode(self, tensor_map: TensorMap) -> Struct:
        """Return the bytes that the simulated copy engine reads."""
        arguments.check_mapped(tensor_map, self.buffers)
        return Struct(encoded(tensor_map), MAP_ALIGN)

    def call(self, *args: Any) -> None:
        """Raise RefsimError: the simulator runs no Python functions."""
        raise arguments.no_call()

    def _judge(self, entry: str, tried: Iterator[Outcome], warp_synchronous: bool) -> None:
        """Record the trace of the first schedule, whose bytes stay; raise the error of any later schedule."""
        trace = next(tried).trace
        assert trace is not None
        self.traces.append(trace)
        self._seen(entry, trace, warp_synchronous)
        self.inexact += [
            f"{entry}: {line}" for line in (*trace.inexact, *trace.idealised, *map(str, trace.contractions))
        ]
        self.assumed += [f"{entry}: {line}" for line in trace.assumed]
        self.notes += [f"{entry}: warning [{it.code}] {it.what}, at {it.where} ({it.rule})" for it in trace.warnings]
        self.notes += [f"{entry}: {note.what}, at {note.where}" for note in trace.notes]
        after = self.memory.snapshot() if trace.inexact else None
        for outcome in tried:
            if outcome.error is not None:
                hidden = [
                    each for each in (*self.waivers.off, *map(str, self.waivers.found)) if each.startswith("race")
                ]
                if hidden and outcome.error.code == SCHEDULE_DEPENDENT:
                    outcome.error.help = (
                        f"a race that {', '.join(hidden)} leaves out may be the cause; {outcome.error.help}"
                    )
                raise outcome.error
            assert outcome.trace is not None
            self._seen(entry, outcome.trace, warp_synchronous)
        if after is not None:
            self.memory.restore(after)

    def _seen(self, entry: str, trace: ptx.Trace, warp_synchronous: bool) -> None:
        """Record what waivers allowed under one schedule, and the accesses that only convergence orders."""
        self.waivers.allowed(trace)
        for each in () if warp_synchronous else trace.warnings:
            if each.code == CONVERGED and each.where not in self.unordered:
                self.unordered[each.where] = (
                    f"[{each.code}] {entry}: {each.what}\n  at: {each.where}\n  rule: {each.rule}"
                )

    def findings(self) -> Findings:
        """Return the findings of all launches; conflicts are instructions with more wavefronts than needed."""
        uses = [use for trace in self.traces for use in trace.banks if use.wavefronts > use.ideal]
        conflicts = tuple(f"{place(use.statement)}: {use.ways:.3g} wavefronts for each one needed" for use in uses)
        reached = tuple(self.following.reaches.values()) if self.following and self.has_followed else None
        left = changed_variables(self.program.module, self.program.key, self.memory)
        open_, notes, assumed = (tuple(dict.fromkeys(texts)) for texts in (self.inexact, self.notes, self.assumed))
        ran = frozenset[str]().union(*(trace.opcodes for trace in self.traces))
        waived = self.waivers.judged(self.program, [trace.entry for trace in self.traces])
        unordered = tuple(self.unordered.values())
        printed = tuple(line for trace in self.traces for line in trace.printed)
        return Findings(open_, notes, conflicts, self.owner_of, reached, left, assumed, ran, waived, unordered, printed)

    def _chosen(self, entry: str, orders: Sequence[SeededPolicy]) -> Sequence[SeededPolicy]:
        """Return the schedules of a launch: all, or number `alone` for an entry whose atomics come in any order."""
        named = [entry_named(each, self.program.entries, self.program.text) for each in self.any_order if each != "*"]
        if "*" not in self.any_order and entry_named(entry, self.program.entries, self.program.text) not in named:
            return orders
        self.most = max(self.most, len(orders))
        return orders[min(self.alone, len(orders) - 1) :][:1]

    def orders(self, entry: str) -> tuple[SeededPolicy, ...]:
        """Return the schedules that a launch of an entry is tried under."""
        if self.policy is not None:
            return (SeededPolicy(self.policy, 1 if self.policy == "random" else 0),)
        return schedules_of(self.program, entry, self.schedules)


@dataclass(repr=False)
class SimDevice(Card):
    """A simulated GPU of a target; `schedules` is the number of schedules for a launch of moderate size.

    policy: "eager", "lazy" or "random" to use one policy only; arithmetic: "silicon", "exact" or "known", as for a
    launch; without: names of checks to leave out, and waivers.
    """

    target: str = ptx.DEFAULT_TARGET
    schedules: int = SCHEDULES
    name: str = "sim"
    policy: ptx.SchedulePolicy | None = None
    arithmetic: ptx.Arithmetic = "silicon"
    without: tuple[str, ...] = ()
    _programs: dict[str, ptx.Program] = field(default_factory=dict)
    _built: dict[str, str] = field(default_factory=dict)
    _off: tuple[str, ...] = ()
    _launchers: list[KernelWaivers] = field(default_factory=list)

    def describe(self) -> dict[str, str]:
        """Return the facts of a verdict: the simulator and, after a launcher, the PTX with hash, flags and compiler."""
        off = {"without": ", ".join(off)} if (off := self._off or ptx.Checks(off=self.without).off) else {}
        other = {} if self.arithmetic == "silicon" else {"arithmetic": self.arithmetic}
        return {"device": f"simulated GPU ({self.target})", "target": self.target, **other, **off, **self._built}

    def program(self, code: KernelCode | Path | None) -> ptx.Program:
        """Return a kernel's code as a program, loaded once per content; RefsimError needs-a-gpu for a function."""
        given = code_of(code).required()
        made = compiled(given, self.target)
        self._built = made.facts(given.label) | host_facts(given)
        if made.sha256 not in self._programs:
            self._programs[made.sha256] = ptx.load(made.text, self.target)
        program = self._programs[made.sha256]
        for label, entry in given.named_entries:
            entry_named(entry, program.entries, program.text, f"{label} of {given.label}")
        return program

    @property
    def is_simulated(self) -> bool:
        return True

    def hardware(self) -> dict[str, str]:
        return {}

    @property
    def unused_waivers(self) -> tuple[str, ...]:
        """Return the waivers of `without` that allowed no finding in any launch so far; () before the first."""
        used = {waiver for each in self._launchers for waiver in each.found}
        return tuple(str(each) for each in ptx.Checks(off=self.without).waivers if self._launchers and each not in used)

    @contextmanager
    def launcher(
        self, code: KernelCode | Path | None, *, count_banks: bool = False, follow_open: bool = False
    ) -> Iterator[SimLauncher]:
        """Yield a launcher with empty memory; the program is kept for the next launcher."""
        waivers = KernelWaivers.of(code_of(code), self.without)
        self._off = waivers.off
        self._launchers += [waivers] if waivers.shared else []
        launcher = self._launcher(self.program(code), waivers, count_banks, follow_open)
        launcher.any_order = code_of(code).any_order
        yield launcher

    @contextmanager
    def loaded(self, text: str, source: str, *, follow_open: bool = False) -> Iterator[SimLauncher]:
        """Yield a launcher for a PTX text."""
        waivers = KernelWaivers.of(KernelCode(), self.without)
        yield self._launcher(ptx.load(text, self.target), waivers, follow_open=follow_open)

    def _launcher(
        self, program: ptx.Program, waivers: KernelWaivers, count_banks: bool = False, follow_open: bool = False
    ) -> SimLauncher:
        own, following = (self.schedules, self.policy, self.arithmetic), OpenBits() if follow_open else None
        return SimLauncher(program, *own, count_banks=count_banks, waivers=waivers, following=following)

    def probing(self) -> "SimDevice":
        return replace(self, schedules=1)

    def _repr_summary(self) -> str:
        return f"{self.name}: {self.target}"
