"""One launch: the places of variables and parameters, the CTAs that run at once, and the machine of each wave.

Addresses: `mov.u64 r, s` gives the place of a shared variable within its window. `ld.u32 r, [s]` names no state space,
and ptxas makes it an access to that window. A variable therefore has two addresses; the generic one is kept under
`generic(s)`.

CTAs that run at once: as many as a chip holds if CTAs may wait for one another, else few. A grid runs in waves, and
each wave ends before the next starts. A kernel whose CTAs wait for one another is right only if they are all resident.
Its wave is the number that the target holds at once. An elementwise kernel cannot see the difference, so its waves have
the size that runs fastest: registers of 16,384 lanes stay in the cache.

Two launches that run at once: programmatic serialization starts the second before the first has ended.

The second launch starts as soon as every block of the first has executed griddepcontrol.launch_dependents or exited.
Its code after griddepcontrol.wait runs when the first launch is complete."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from time import monotonic

import numpy as np

from refsim.errors import Kind, RefsimError
from refsim.ptx.execution.geometry import Geometry
from refsim.ptx.execution.register_file import UnwrittenReadError
from refsim.ptx.findings.record import LaunchFindings, fault
from refsim.ptx.isa.definedness.tracking import TornRows, Tracking
from refsim.ptx.lowering.blocks import TAKES_OVER, Code
from refsim.ptx.machine.assemblers import registers_used
from refsim.ptx.machine.launch_rules import (
    LaunchShape,
    check_memory,
    check_registers,
    ctas_per_sm,
    limits_of,
    round_up,
    total_shared,
)
from refsim.ptx.machine.placed import Attempt, PendingClusters, PlacedLaunch, VariablePlacement
from refsim.ptx.machine.scheduler import Machine
from refsim.ptx.memory.global_memory import GlobalMemory, Lot
from refsim.ptx.memory.heap import Heap, HeapBlock
from refsim.ptx.memory.snapshot import Snapshot, Undo
from refsim.ptx.memory.space import FUNCTION_BASE, POISON, SHARED_BASE, WINDOWS, Region, per_owner
from refsim.ptx.text.inline import HEAP_CALLS
from refsim.ptx.text.source_names import demangled
from refsim.ptx.text.syntax import Function, Label, Module, Statement, Variable

WORKSPACE = "workspace of grid.sync()"
FUNCTION_STEP = 16
WAVE_LANES = 1 << 14
WAVE_BYTES = 32 << 20  # shared and local memory of the CTAs that run at once
RESIDENT_BYTES = 2 << 30  # shared and local memory and registers of CTAs that may wait for one another
_POLLING = frozenset({"volatile", "acquire", "relaxed", "mmio", "cv", "cg"})


@dataclass(frozen=True)
class PreparedLaunch(PlacedLaunch):
    """A launch that can run."""

    @cached_property
    def registers(self) -> int | None:
        """Return the registers of a thread, or None without a ptxas; asked only when something depends on them."""
        return registers_used(self.text, self.code.function.name, self.target)

    @cached_property
    def resident(self) -> int:
        """Return how many CTAs the target's chip holds at once."""
        return co_resident(self.target, self.shape, self.variables.shared_bytes, self.registers)

    @cached_property
    def wave(self) -> int:
        """Return how many CTAs run at once."""
        shape, owned = self.shape, (self.variables.shared_bytes, self.variables.local_bytes)
        few = few_ctas(shape, *owned)
        if self.request.cooperative:
            return shape.ctas
        if few >= shape.ctas or not may_wait_for_others(self.code.function):
            return few
        return max(few, min(self.resident, affordable_ctas(shape, *owned, self.code)))

    def run(self) -> LaunchFindings:
        """Run all CTAs within the time limit and return the findings; a fault of the kernel is RefsimError."""
        self.check_resources()
        heap = self.memory.heap
        first = heap.numbers + 1 if heap is not None else 0
        checks = self.options.checks
        findings = self.run_tracked(monotonic() + checks.seconds)
        if heap is not None and checks.level("leak") != "off":
            note_leaks(heap, first, findings)
        return findings

    def run_tracked(self, deadline: float) -> LaunchFindings:
        """Run all CTAs; after a read of uninitialized memory, restore it and run again with undefined bits tracked. Run
        again too if operands of products changed after the products began."""
        options, checks = self.options, self.options.checks
        if options.following is not None:
            options.following.begin(self.memory, self.code.function.opcodes)
            return self.attempt(LaunchFindings(checks.waivers), deadline, options.following)
        if checks.initialised == "off":
            return self.attempt(LaunchFindings(checks.waivers), deadline)
        with Undo(self.memory.space) as undo:
            try:
                return self.attempt(LaunchFindings(checks.waivers), deadline)
            except UnwrittenReadError:
                undo.restore()
        torn = TornRows()
        while True:
            for watcher in (options.observer, options.watching, options.events):
                if watcher is not None:
                    watcher.restart()
            torn.grew = False
            tracking = Tracking(checks.initialised, LaunchFindings(checks.waivers), torn=torn)
            with Undo(self.memory.space) as undo:
                try:
                    findings = self.attempt(tracking.findings, deadline, tracking)
                except RefsimError as error:
                    raise tracking.cause(error) from None
                if not torn.grew:
                    break
                undo.restore()
        tracking.conclude()
        return findings

    def attempt(self, findings: LaunchFindings, deadline: float, tracking: Tracking | None = None) -> LaunchFindings:
        """Run all CTAs, one wave after another, and return the findings."""
        attempt = Attempt(findings, deadline, tracking, self.pending())
        for machine in self.waves(attempt):
            try:
                machine.run()
            except RefsimError as error:
                waits = error.code == "timeout" or (error.code in ("deadlock", "divergent-sync") and machine.resting)
                if waits and self.wave < self.shape.ctas:
                    error = self.inconclusive(error)
                error.help = error.help or findings.summary()
                error.printed = findings.printed_lines()
                raise error from None
        findings.contended = attempt.history.strong.contended()
        self.memory.touched = attempt.history.left_behind(self.earlier)
        self.memory.space.maps |= findings.maps
        return findings

    def pending(self) -> PendingClusters | None:
        """Return the clusters of the launch if its blocks may take over the work of others; else None."""
        takes = any(opcode.startswith(TAKES_OVER) for opcode in self.code.function.opcodes)
        return self._clusters() if takes else None

    def _clusters(self) -> PendingClusters:
        shape, options = self.shape, self.options
        return PendingClusters(0, shape.ctas, shape.cluster_ctas, options.policy, options.seed)

    def waves(self, attempt: Attempt) -> Iterator[Machine]:
        """Yield the machine of each wave; a machine must have run before the next one is requested. Blocks may take over
        the work of pending clusters, which leave the later waves."""
        shape, pending = self.shape, attempt.pending
        waiting = pending or self._clusters()
        holds = pending is not None and not (self.request.cooperative or may_wait_for_others(self.code.function))
        while waiting.first < waiting.end:
            first, count = waiting.start(self.wave, leaves_some=holds)
            geometry = Geometry(shape.grid, shape.block, first, count, shape.cluster, shape.is_explicit_cluster)
            machine = self.machine(geometry, attempt)
            try:
                yield machine
            finally:
                machine.__dict__.clear()  # its parts refer to it: its memory would stay until a cycle collection

    def check_resources(self) -> None:
        """Raise RefsimError for a CTA with too many registers, or a cooperative grid that is not resident at once. A
        block within `.maxntid` or `.reqntid` got registers that fit, and 256 threads always fit."""
        function, threads = self.code.function, self.shape.threads
        if threads > 256 and function.directives.keys().isdisjoint(("maxntid", "reqntid")) and self.registers:
            check_registers(function.name, threads, self.registers)
        if self.request.cooperative and self.shape.ctas > self.resident:
            chip = limits_of(self.target)
            known = "unknown registers (no ptxas here)" if self.registers is None else f"{self.registers} registers"
            raise RefsimError(
                "launch-limit",
                f"a cooperative grid of {self.shape.ctas:,} blocks: {chip.chip} holds {self.resident:,} at once",
                f"launch of {function.name}",
                f"{chip.sms} SMs; a block has {threads} threads of {known} and {self.variables.shared_bytes} B of shared "
                "memory",
                "launch fewer blocks, and let each do more",
            )

    def inconclusive(self, error: RefsimError) -> RefsimError:
        """Return the error of a grid in waves that polls for ever: it may have waited for a later wave."""
        return RefsimError(
            "timeout",
            error.what,
            error.where,
            f"the {self.shape.ctas:,} blocks ran {self.wave:,} at a time: a block that waits for a later block never ends, "
            "as on a GPU that does not hold all of them at once",
            "launch no more blocks than are resident at once, or raise the time limit",
            Kind.INCONCLUSIVE,
        )

    def machine(self, geometry: Geometry, attempt: Attempt) -> Machine:
        """Return the machine for some of the CTAs, with shared and local memory of their own."""
        shared_bytes, local_bytes = self.variables.shared_bytes, self.variables.local_bytes
        poison = (POISON + self.options.seed) & 0xFF
        shared = per_owner(
            "shared",
            geometry.count,
            SHARED_BASE + shared_bytes,
            [Region("shared memory", SHARED_BASE, SHARED_BASE + shared_bytes)],
            poison,
        )
        local = per_owner("local", geometry.lanes, local_bytes, [Region("local memory", 0, local_bytes)], poison)
        return Machine(self, attempt, geometry, shared, local)


def place_variables(
    module: Module, function: Function, key: str, target: str, device: GlobalMemory, dynamic: int = 0
) -> VariablePlacement:
    """Place all variables that an entry may name; `key` identifies the module whose variables they are. Shared and
    local variables of the module take room only if the entry names them. All external shared arrays begin at one
    address, after the variables with a size. A memory remembers the variables that were placed in it."""
    if not function.opcodes.isdisjoint(HEAP_CALLS):
        device.begin_heap()
    variables = [*module.variables.values(), *function.variables]
    known, new = _placed_globals(module, function, variables, key, device)
    symbols, sizes = dict(known), {"shared": 0, "local": 0}
    externals, named = [], function.named
    own = [each for each in variables if each.space in sizes and each.name in named]
    for variable in own:
        if variable.size == 0:
            externals.append(variable)
            continue
        start = round_up(sizes[variable.space], variable.align)
        symbols[variable.name] = start + (SHARED_BASE if variable.space == "shared" else 0)
        sizes[variable.space] = start + variable.size
    static = sizes["shared"]
    start = round_up(static, max([16, *(variable.align for variable in externals)]))
    symbols.update({variable.name: SHARED_BASE + start for variable in externals})
    shared = (start if externals else static) + dynamic
    check_memory(function.name, target, static, shared - static, sizes["local"])
    offset = 0
    for parameter in function.parameters:
        offset = round_up(offset, parameter.align)
        symbols[parameter.name] = offset
        offset += parameter.size
    symbols |= generic_addresses(symbols, [*own, *function.parameters])
    for variable in new:
        write_references(variable, symbols, device)
    symbols["%dynamic_smem_size"], symbols["%total_smem_size"] = dynamic, total_shared(shared)
    in_shared = {variable.name for variable in variables if variable.space == "shared"}
    in_shared |= {f"generic({name})" for name in in_shared}
    return VariablePlacement(symbols, shared, sizes["local"], frozenset(in_shared))


def _placed_globals(
    module: Module, function: Function, variables: list[Variable], key: str, device: GlobalMemory
) -> tuple[dict[str, int], list[Variable]]:
    """Return the addresses of functions and of variables in device memory, and the variables placed by this call."""
    lasting = [each for each in variables if each.space in ("global", "const")]
    known = device.placed.get((key, function.name))
    if known is not None and (not lasting or device.named(f"{lasting[-1].name}@{key}") is not None):
        return known, []
    symbols, new = function_addresses(module), dict[str, Variable]()
    for variable in lasting:
        region = device.named(f"{variable.name}@{key}")
        if region is None:
            new.setdefault(variable.name, variable)
        else:
            symbols[variable.name] = region.start + device.space.base
    if new:
        lot = _lot(tuple(new.values()), key, device.end)
        device.add(lot)
        starts = (region.start + device.space.base for region in lot.regions)
        symbols.update(zip(new, starts, strict=True))
    symbols |= generic_addresses(symbols, lasting)
    device.placed[key, function.name] = symbols
    return symbols, [*new.values()]


@lru_cache(maxsize=64)
def _lot(variables: tuple[Variable, ...], key: str, end: int) -> Lot:
    """Return a layout of a module's variables after byte `end` of a device memory. The result is cached: a module may
    have hundreds of variables from headers, and a test thousands of memories."""
    wanted = ((f"{each.name}@{key}", each.size, each.initial or b"", each.space != "const") for each in variables)
    return Lot.behind(end, wanted)


def changed_variables(module: Module, key: str, device: GlobalMemory) -> tuple[str, ...]:
    """Return the names in C++ of a module's variables that launches changed. A variable that holds addresses counts as
    changed if it was stored to."""
    found = []
    inner = (variable for function in module.functions.values() for variable in function.variables)
    for variable in (*module.variables.values(), *inner):
        region = device.named(f"{variable.name}@{key}")
        if region is None or region.name not in device.space.stored:
            continue
        now = device.read(region.start + device.space.base, variable.size).tobytes()
        if variable.references or now != (variable.initial or b"").ljust(variable.size, b"\0"):
            found.append(demangled(variable.name))
    return tuple(found)


def place_workspace(device: GlobalMemory) -> int:
    """Return the address of the workspace {size, barrier} of a cooperative launch, with barrier 0. The kernel finds the
    address through %envreg1 and %envreg2."""
    words = np.array([8, 0], np.uint32)
    region = device.named(WORKSPACE)
    if region is None:
        return device.allocate(words.nbytes, WORKSPACE, initial=words)
    device.write(region.start + device.space.base, words)
    return region.start + device.space.base


def function_addresses(module: Module) -> dict[str, int]:
    """Return a number for each function of a module, for `mov` and for tables of functions."""
    found = {name: FUNCTION_BASE + FUNCTION_STEP * place for place, name in enumerate(module.functions)}
    return found | {alias: found[name] for alias, name in module.aliases.items() if name in found}


def generic_addresses(symbols: Mapping[str, int], variables: Iterable[Variable]) -> dict[str, int]:
    """Return the addresses of variables for accesses that name no state space, as `generic(name)`."""
    return {
        f"generic({variable.name})": symbols[variable.name] + WINDOWS.get(variable.space, 0)
        for variable in variables
        if variable.name in symbols
    }


def write_references(variable: Variable, symbols: Mapping[str, int], device: GlobalMemory) -> None:
    """Write the addresses that a variable is initialized with; every name must have been placed."""
    for reference in variable.references:
        name = reference.symbol.name
        if name not in symbols:
            what = f"{variable.name} begins with the address of {name!r}, which is nowhere"
            raise RefsimError("unknown-symbol", what)
        address = (symbols[name] + reference.symbol.offset) % (1 << 64) >> reference.shift
        content = np.frombuffer(address.to_bytes(8, "little")[: reference.width], np.uint8)
        device.write(symbols[variable.name] + reference.offset, content)


def co_resident(target: str, shape: LaunchShape, shared_bytes: int, registers: int | None) -> int:
    """Return how many CTAs of a launch the target's chip holds at once, in whole clusters. One CTA an SM is assumed if
    registers are not known. 1,024 threads of 32 registers on sm_90: 2 an SM, 264 in all."""
    limits = limits_of(target)
    per_sm = 1 if registers is None else ctas_per_sm(limits, shape.threads, shared_bytes, registers)
    return max(limits.sms * max(per_sm, 1) // shape.cluster_ctas, 1) * shape.cluster_ctas


def few_ctas(shape: LaunchShape, shared_bytes: int, local_bytes: int) -> int:
    """Return how many CTAs a wave has if no CTA waits for another: whole clusters whose registers stay in the cache."""
    owned = SHARED_BASE + shared_bytes + shape.threads * local_bytes
    return _whole_clusters(shape, min(WAVE_LANES // shape.threads, WAVE_BYTES // owned))


def affordable_ctas(shape: LaunchShape, shared_bytes: int, local_bytes: int, code: Code) -> int:
    """Return how many CTAs have state that fits in RESIDENT_BYTES, in whole clusters."""
    of_a_thread = local_bytes + sum(max(bits // 8, 1) for bits in code.slot_bits)
    return _whole_clusters(shape, RESIDENT_BYTES // (SHARED_BASE + shared_bytes + shape.threads * of_a_thread))


def _whole_clusters(shape: LaunchShape, ctas: int) -> int:
    return max(ctas // shape.cluster_ctas, 1) * shape.cluster_ctas


def may_wait_for_others(function: Function) -> bool:
    """Return whether a loop of the entry polls memory that another CTA can write. A poll is an atomic that returns a
    value, or a load that is not weak. A `red`, or an atomic outside every loop, does not wait."""
    end = -1
    for first, last in sorted(_loops(function)):
        if any(_is_poll(function.statements[pc].opcode) for pc in range(max(first, end + 1), last + 1)):
            return True
        end = max(end, last)
    return False


def _loops(function: Function) -> Iterator[tuple[int, int]]:
    """Yield the statements between each branch back and its target; every loop is within the union of these ranges."""
    for pc, statement in enumerate(function.statements):
        for operand in statement.operands:
            if isinstance(operand, Label):
                for label in function.branch_tables.get(operand.name, (operand.name,)):
                    if function.labels.get(label, pc + 1) <= pc:
                        yield function.labels[label], pc


def _is_poll(opcode: str) -> bool:
    mnemonic, *words = opcode.split(".")
    named = frozenset(words)
    if any(word.split("::")[0] in ("shared", "local", "param", "const") for word in words):
        return False
    return mnemonic == "atom" or (mnemonic == "ld" and not named.isdisjoint(_POLLING))


LEAK_RULE = (
    "the heap keeps its blocks from launch to launch: free each one, or leave a pointer to it for a later kernel"
)


def note_leaks(heap: Heap, first: int, findings: LaunchFindings) -> None:
    """Warn about each malloc whose blocks, from number `first` on, are unreachable."""
    found: dict[int, tuple[Statement, list[HeapBlock]]] = {}
    for block in heap.lost(first):
        found.setdefault(id(block.statement), (block.statement, []))[1].append(block)
    for statement, blocks in found.values():
        count = "1 block" if len(blocks) == 1 else f"{len(blocks)} blocks"
        what = (
            f"{count} of {sum(block.size for block in blocks)} B in all {'is' if len(blocks) == 1 else 'are'} never "
            "freed, and no pointer leads there"
        )
        findings.warn(fault("leak", what, statement, blocks[0].who, LEAK_RULE), statement)


HEAD_START = 512  # turns that the second launch has, under a schedule that is not random, before the first goes on
LONGEST_RUN = 16  # turns of one launch until it is the other's, under a random schedule


class _Running:
    """A launch as the machines of its waves, one after another, a few turns at a time."""

    def __init__(self, launch: PreparedLaunch, tracking: Tracking | None, *, waits: bool) -> None:
        self.tracking, self.waits = tracking, waits
        checks = launch.options.checks
        self.findings = LaunchFindings(checks.waivers) if tracking is None else tracking.findings
        self.waves = launch.waves(Attempt(self.findings, monotonic() + checks.seconds, tracking))
        self.machine, self.left = next(self.waves), -(-launch.shape.ctas // launch.wave) - 1
        self.machine.launches.is_open = not waits

    def advance(self, turns: int | None = None) -> bool:
        """Run up to `turns` turns, or as far as the launch can; return whether it can go on after that."""
        if self.machine.advance(turns):
            return True
        if self.machine.launches.waiting or self.is_complete:
            return False
        self.machine.finish()
        if not self.left:
            self._conclude()
            return False
        self.machine, self.left = next(self.waves), self.left - 1
        self.machine.launches.is_open = not self.waits
        return True

    def _conclude(self) -> None:
        self.left = -1
        if self.tracking is not None:
            self.tracking.conclude()

    @property
    def is_complete(self) -> bool:
        """Return whether all waves have run."""
        return self.left < 0

    @property
    def lets_others_begin(self) -> bool:
        """Return whether the next launch may start."""
        return self.is_complete or (self.left == 0 and self.machine.launches.lets_others_begin)

    def open(self) -> None:
        """Let the launch pass griddepcontrol.wait, as the launch before is complete."""
        self.waits = False
        self.machine.launches.open()


def run_overlapped(first: PreparedLaunch, second: PreparedLaunch, before: Snapshot) -> LaunchFindings:
    """Run both launches from the memory `before` and return the findings of the second; a fault of either is raised.
    Under "eager" and "lazy" the second runs as far as it can as soon as it may start. Under "random" the two
    alternate for random numbers of turns. Launches that read uninitialized memory run again with tracking."""
    try:
        return _run(first, second, None, None)
    except UnwrittenReadError:
        first.memory.restore(before)
    both = (first.options.checks, second.options.checks)
    return _run(first, second, *(Tracking(each.initialised, LaunchFindings(each.waivers)) for each in both))


def _run(
    first: PreparedLaunch, second: PreparedLaunch, followed: Tracking | None, tracking: Tracking | None
) -> LaunchFindings:
    """Run both launches once, with the trackings given, and return the findings of the second."""
    one = _Running(first, followed, waits=False)
    while not one.lets_others_begin:
        one.advance(1)
    two = _Running(second, tracking, waits=True)
    options = second.options
    choice = np.random.Generator(np.random.Philox(options.seed)) if options.policy == "random" else None

    def turns() -> int:
        return LONGEST_RUN if choice is None else int(choice.integers(1, LONGEST_RUN + 1))

    if choice is None:
        two.advance(HEAD_START)
    while not one.is_complete:
        one.advance(turns())
        if not one.is_complete:
            two.advance(turns())
    two.open()
    while two.advance():
        pass
    return two.findings
