"""One simulated GPU for a whole process: modules, launches, and a record of everything that was done on it.

Stand-ins share it (`current()`), so that kernels of one package can use memory of another package.
"""

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np

from refsim.device.attributes import ATTRIBUTES, BY_NUMBER, Attribute
from refsim.device.compile import compiled
from refsim.errors import Kind, RefsimError, counted
from refsim.kernel_code import KernelCode
from refsim.ptx import Checks, Program, SchedulePolicy, is_fault, load
from refsim.ptx.checks.first_nan import NonFinite
from refsim.ptx.findings.record import LaunchFindings
from refsim.ptx.findings.table import CompilerDefect
from refsim.ptx.machine.arguments import MISFIT, check_count, misfit, raw_bytes
from refsim.ptx.machine.assemblers import registers_used
from refsim.ptx.machine.launch import PreparedLaunch, place_variables
from refsim.ptx.machine.launch_rules import LaunchRequest, Limits, limits_of
from refsim.ptx.machine.placed import SimulationOptions, VariablePlacement
from refsim.ptx.machine.program import trace_of
from refsim.ptx.memory.space import MAX_BYTES
from refsim.ptx.text.source_names import UNKNOWN, declared_types, demangled
from refsim.targets import target_named
from refsim_run.memory import DeviceMemory, caller
from refsim_run.records import KernelRecord, RunRecord, Said, TestRecord, add

MEMORY_BYTES = MAX_BYTES
DRIVER_VERSION = 13000
"""The result of cuDriverGetVersion: the CUDA release whose PTX and headers the simulator follows."""
TEST_VARIABLE = "PYTEST_CURRENT_TEST"
ONE_BUFFER = "pycuda"
"""The package that passes all arguments as one buffer. Others pass addresses: the driver takes a parameter's bytes."""
_BINARIES = {b"\x7fELF": "a cubin", b"\x50\xed\x55\xba": "a fat binary"}


class UnsupportedError(RefsimError, AttributeError, NotImplementedError):
    """A function of a package that the simulated GPU does not support; `what` holds its name."""

    __hash__ = Exception.__hash__


@dataclass(frozen=True)
class Settings:
    """The options of a run: target, schedule and its seed, time limits of a launch and of a test in seconds, checks
    that are off (`without`), `arithmetic` as `Program.launch` takes it, and `first_nan`: whether a kernel's launches run
    twice until the report says where NaN comes from."""

    target: str = "sm_90a"
    policy: SchedulePolicy = "eager"
    seed: int = 0
    launch_seconds: float = 600.0
    test_seconds: float = 0.0
    without: tuple[str, ...] = ()
    arithmetic: Any = "silicon"
    first_nan: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, found: dict[str, Any]) -> "Settings":
        return cls(**{**found, "without": tuple(found["without"])})


@dataclass
class GpuSession:
    """The simulated GPU of a process and what was done on it; stand-ins keep their own objects in `own`, by name."""

    settings: Settings = field(default_factory=Settings)
    memory: DeviceMemory = field(default_factory=DeviceMemory)
    kernels: dict[tuple[str, str], KernelRecord] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    tests: dict[str, TestRecord] = field(default_factory=dict)
    programs: dict[str, Program] = field(default_factory=dict)
    by_host: dict[str, int] = field(default_factory=dict)
    found: list[Said] = field(default_factory=list)
    warned: list[Said] = field(default_factory=list)
    own: dict[str, Any] = field(default_factory=dict)
    loads: int = 0
    instructions: int = 0
    born: NonFinite = field(default_factory=NonFinite)

    def __post_init__(self) -> None:
        self.memory.tell = self.tell

    @property
    def target(self) -> str:
        return self.settings.target

    @property
    def capability(self) -> tuple[int, int]:
        """Return the compute capability as (major, minor): (9, 0) for sm_90a."""
        major, minor = divmod(target_named(self.target).number, 10)
        return major, minor

    @property
    def limits(self) -> Limits:
        return limits_of(self.target)

    @property
    def device_name(self) -> str:
        """Return the name of the simulated GPU: refsim simulated sm_90a."""
        return f"refsim simulated {self.target}"

    @property
    def free_and_total(self) -> tuple[int, int]:
        """Return the free and the total bytes of device memory."""
        return MEMORY_BYTES - self.memory.live_bytes, MEMORY_BYTES

    def value_of(self, row: Attribute) -> int:
        """Return an attribute's value; raise UnsupportedError where the target's is not known."""
        value = row.value(self.target)
        if value < 0:
            raise self.unsupported(f"CU_DEVICE_ATTRIBUTE_{row.name} of {self.target}")
        return value

    def attribute(self, number: int, asker: str) -> int:
        """Return a device attribute by its number; raise UnsupportedError for a number without a value here."""
        row = BY_NUMBER.get(int(number))
        if row is None:
            raise self.unsupported(f"{asker} of attribute {int(number)}")
        return self.value_of(row)

    def attribute_named(self, name: str, asker: str) -> int:
        """Return a device attribute by its name in any case (multiprocessor_count); UnsupportedError for others."""
        row = next((each for each in ATTRIBUTES if each.name == name.upper()), None)
        if row is None:
            raise self.unsupported(f"{asker}.{name}")
        return self.value_of(row)

    def compiled(self, source: str, options: Sequence[str] = (), target: str = "", **more: Any) -> str:
        """Return NVRTC's PTX of CUDA C++ for the run's target or `target`; RefsimError `compile-error` has the log."""
        return compiled(KernelCode(source=source, options=tuple(options), **more), target or self.target).text

    def load(self, image: bytes | str, package: str, source: str = "") -> "SimulatedModule":
        """Load PTX (made of CUDA C++ `source`) as a module with its own variables; RefsimError `bad-file` for others."""
        self.memory.begun()
        text = ptx_text(image)
        if text not in self.programs:
            self.programs[text] = load(text, self.target)
        self.loads += 1
        kept = self.programs[text]
        # The number gives each load its own variables, as a second cuModuleLoadData does.
        program = Program(kept.module, kept.target, f"{self.loads:06x}{kept.sha256}", kept.text, kept._codes)
        return SimulatedModule(self, program, package, source)

    def unsupported(self, name: str, why: str = "", help: str = "") -> UnsupportedError:
        """Return the error for a function that is not simulated, by its name, and count it in the report."""
        self.refused[name] = self.refused.get(name, 0) + 1
        self._of_test("refused", name)
        return UnsupportedError(
            "unsupported-feature", f"{name} is not simulated" + (f": {why}" if why else ""), "", "", help, Kind.MISSING
        )

    def answered_by_host(self, name: str) -> None:
        """Count a function that the host computed: its bits need not be the bits of the package's kernels."""
        self.by_host[name] = self.by_host.get(name, 0) + 1

    def record(self) -> RunRecord:
        """Return the record of everything done up to now."""
        gc.collect()  # objects in reference cycles free their memory too
        memory = self.memory
        kernels = list(self.kernels.values())
        return RunRecord(
            self.target,
            kernels,
            self.refused,
            self.tests,
            memory.count - memory.forgotten,
            memory.total_bytes,
            memory.peak_bytes,
            memory.held(),
            self.by_host,
            self.found,
            self.warned,
        )

    def tell(self, error: RefsimError, *, is_wrong: bool = True) -> None:
        """Record a mistake of the program outside kernels as a finding, or as a warning (`is_wrong=False`)."""
        if error.code in self.settings.without:
            return
        add(self.found if is_wrong else self.warned, [Said.of(error)])
        if is_wrong:
            self._of_test("findings", f"[{error.code}] {error.what}, at {error.where}")

    def forget(self) -> None:
        """Clear the record, as a child by fork does; memory stays, which the parent reports."""
        for known in (self.kernels, self.refused, self.tests, self.by_host, self.found, self.warned):
            known.clear()
        self.memory.forget()

    def test(self) -> TestRecord | None:
        """Return the record of the test that pytest runs now; None outside a test."""
        name = os.environ.get(TEST_VARIABLE, "").rpartition(" (")[0]
        return self.tests.setdefault(name, TestRecord()) if name else None

    def _ended(self, record: KernelRecord, error: RefsimError) -> None:
        """Record in the running test that a launch ended with an error."""
        if (test := self.test()) is not None:
            test.launches += 1
            if _is_finding(error):
                add(test.findings, [_line(record, error)])
            else:
                add(test.refused, [error.code])

    def _of_test(self, name: str, said: str) -> None:
        if (test := self.test()) is not None:
            add(getattr(test, name), [said])


@dataclass
class SimulatedModule:
    """A module loaded on the simulated GPU: its entries can be launched, its variables have addresses."""

    session: GpuSession
    program: Program
    package: str
    source: str = ""

    def entry(self, name: str) -> str:
        """Return the PTX entry with a PTX or C++ name; RefsimError `unknown-entry` lists the nearest names."""
        return self.program.code(name).function.name

    def variable(self, name: str) -> tuple[int, int]:
        """Return address and bytes of a global or constant variable by its PTX name; RefsimError `unknown-symbol`."""
        for function in self.program.module.functions.values():
            if function.is_entry:
                symbols = self.placed(function.name).symbols
                found = self.program.module.variables.get(name)
                if found is not None and name in symbols and found.space in ("global", "const"):
                    return symbols[name], found.size
        raise RefsimError("unknown-symbol", f"the module has no variable {name!r}", help="its name as the PTX has it")

    def placed(self, entry: str) -> VariablePlacement:
        """Return the places of an entry's variables, and the bytes of its shared and local memory."""
        program, memory = self.program, self.session.memory.memory
        return place_variables(program.module, program.code(entry).function, program.key, program.target, memory)

    def registers(self, entry: str) -> int | None:
        """Return the registers per thread that ptxas allocates for an entry; None without ptxas."""
        return registers_used(self.program.text, entry, self.program.target)

    def launch(self, request: LaunchRequest, known: Sequence[CompilerDefect] = ()) -> list[str]:
        """Run an entry and return what its threads printed.

        Its arguments are bytes, PointerTo, numbers, host arrays by value. `known` are the defects of the compiler that
        made the entry; their findings become warnings. Findings that do not stop a kernel are recorded. A fault and a
        refusal are recorded and raised, as RefsimError.
        """
        session, settings = self.session, self.session.settings
        record, began = self._record(request.entry), perf_counter()
        shape, threads = _shape(request)
        checks = Checks(*("record",) * 4, seconds=settings.launch_seconds, off=settings.without, known=tuple(known))
        options = SimulationOptions(settings.policy, settings.arithmetic, checks, settings.seed)
        try:
            with session.memory.alone():
                fitted = replace(request, args=self._fitted(record, request))
                made, findings = self._ran(record, fitted, options)
        except RefsimError as error:
            add(record.findings if _is_finding(error) else record.refused, [Said.of(error)])
            record.took(shape, threads, perf_counter() - began)
            sys.stdout.write("".join(f"{line.partition(': ')[2]}\n" for line in error.printed))
            session._ended(record, error)
            raise
        trace = trace_of(made, findings)
        record.took(shape, threads, perf_counter() - began)
        session.instructions += trace.instructions
        add(record.inexact, (*trace.inexact, *trace.idealised, *map(str, trace.contractions)))
        add(record.assumed, trace.assumed)
        add(record.findings, map(Said.of, trace.findings))
        add(record.warnings, map(Said.of, trace.warnings))
        add(record.warnings, (Said(it.code, f"waived by {name}: {it.what}", it.where) for name, it in trace.waived))
        if (test := session.test()) is not None:
            test.launches += 1
            test.inexact += not trace.is_exact
            add(test.findings, [_line(record, each) for each in trace.findings])
        return [text for _, text in findings.printed]

    def _fitted(self, record: KernelRecord, request: LaunchRequest) -> list[Any]:
        """Return a launch's arguments as the kernel gets them, and record how they disagree with the parameters."""
        entry, args = request.entry, request.args
        function, fitted, place, is_cut = self.program.code(entry).function, [], caller(), self.package != ONE_BUFFER
        count, types = len(function.parameters), declared_types(entry, self.source)
        if not is_cut or len(args) < count:
            check_count(function, args, place)
        if len(args) > count:
            what = f"{record.name} takes {counted(count, 'argument')}, given: {len(args)}"
            self._told(record, RefsimError(MISFIT, what, place, "each argument has a parameter"))
        types = types if len(types) == count else (UNKNOWN,) * count
        for number, (parameter, argument, declared) in enumerate(zip(function.parameters, args, types, strict=False)):
            size, name = len(raw := raw_bytes(argument)), f"argument {number} of {record.name}"
            if (found := misfit(name, parameter, argument, declared, is_cut=is_cut)) is not None:
                found.where = f"{place}, argument {number}"
                if size < parameter.size or (size > parameter.size and not is_cut):
                    raise found
                self._told(record, found)
            fitted.append(argument if hasattr(argument, "align") else raw[: parameter.size])
        return fitted

    def _told(self, record: KernelRecord, error: RefsimError) -> None:
        add(record.findings if _is_finding(error) else record.warnings, [Said.of(error)])
        if _is_finding(error):
            self.session._of_test("findings", _line(record, error))

    def _ran(
        self, record: KernelRecord, request: LaunchRequest, options: SimulationOptions
    ) -> tuple[PreparedLaunch, LaunchFindings]:
        """Run a launch, and return it with its findings. With --first-nan run it again from the memory before it, and
        record where NaN and infinities come from, until a launch of the kernel has some."""
        memory, born = self.session.memory.memory, self.session.born
        made, _ = self.program.prepared(request, memory, options)
        if not self.session.settings.first_nan or record.nans:
            return made, made.run()
        before = memory.snapshot()
        findings, number = made.run(), sum(each.launches for each in self.session.kernels.values()) + 1
        after, touched = memory.snapshot(), memory.touched
        memory.restore(before)
        born.launch = f", launch {number} ({record.name})"
        with suppress(RefsimError):  # the first run ended well
            self.program.prepared(request, memory, replace(options, following=born))[0].run()
        record.nans += [Said(row.role, row.what, row.where) for row in born.rows()]
        memory.restore(after)
        memory.touched = touched
        return made, findings

    def _record(self, entry: str) -> KernelRecord:
        session = self.session
        key = (self.package, entry)
        if key not in session.kernels:
            session.kernels[key] = KernelRecord(demangled(entry), self.package, session.target)
        return session.kernels[key]


def _is_finding(error: RefsimError) -> bool:
    return is_fault(error) or error.code == MISFIT


def _line(record: KernelRecord, error: RefsimError) -> str:
    return f"[{error.code}] {record.name}: {error.where or error.what}"


def _shape(request: LaunchRequest) -> tuple[str, int]:
    """Return grid and block as text, and the number of threads: 0 for extents that the launch will refuse."""
    try:
        sizes = [np.atleast_1d(np.asarray(each, np.int64)) for each in (request.grid, request.block)]
    except (TypeError, ValueError, OverflowError):
        return f"{request.grid!r:.40} of {request.block!r:.40}", 0
    words = ["x".join(str(int(number)) for number in each) for each in sizes]
    return " of ".join(words), int(np.prod(sizes[0]) * np.prod(sizes[1]))


def ptx_text(image: bytes | str) -> str:
    """Return the PTX text of an image as a driver takes it, without zero bytes at its end; RefsimError `bad-file`."""
    raw = image.encode() if isinstance(image, str) else bytes(image)
    what = next((word for magic, word in _BINARIES.items() if raw.startswith(magic)), "")
    if what or b".version" not in raw:
        raise RefsimError(
            "bad-file",
            f"{what or 'an image without PTX'} of {len(raw)} B",
            rule="the simulated GPU executes PTX, not machine code",
            help="load the PTX that it was made from: nvcc -ptx, or a SourceModule",
            kind=Kind.MISSING,
        )
    return raw.rstrip(b"\0").decode(errors="replace")


_CURRENT: list[GpuSession] = []


def current() -> GpuSession:
    """Return the session of this process; it begins with default settings where none was begun."""
    if not _CURRENT:
        _CURRENT.append(GpuSession())
    return _CURRENT[0]


def begin(settings: Settings) -> GpuSession:
    """Begin a new session of this process with the given settings, in place of any other, and return it."""
    _CURRENT[:] = [GpuSession(settings)]
    return _CURRENT[0]
