"""The table of all checks of a launch with their severities, and the choice of checks for a launch.

Waivers: findings that a user allows, each by its check and one line of the source.

`race@kernel.cu:120` allows a race of an access at that line of CUDA, `race@kernel.ptx:33` at that line of PTX. The
comment `// refsim: allow race` allows the race at its own line, also as `/* ... */`, without the colon or in capitals.

Known defects of compilers: findings that are the compiler's fault, and not the kernel author's."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real

from refsim.errors import RefsimError, named, unknown
from refsim.ptx.text.syntax import Statement
from refsim.sources import Source

WAIVER_RULE = (
    "a waiver is CHECK@FILE:LINE, such as race@kernel.cu:120, for a check that has lines and does not stop a launch, or "
    "barrier-misuse at a second mbarrier.init"
)
_FORM = re.compile(r"([^@]*)@(?:.*[/\\])?([^@:/\\]+):([1-9][0-9]{0,8})")
_CODE = r"""(?:'\\?"'|"(?:\\.|[^"\\])*"|(?!'\\?"')[^"])*?"""  # a // within a string begins no comment
_ALLOWED = r"(?://|/\*).*?\brefsim(?::[ \t]*|[ \t]+)allow\b[ \t]*(.*?)(?:\*/(.*))?$"
_COMMENT = re.compile(rf"^({_CODE}){_ALLOWED}", re.IGNORECASE)
Line = tuple[str, int]


@dataclass(frozen=True)
class Waiver:
    """An allowed finding: the name of its check, the name of a file without its folder, and a line from 1 on."""

    check: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.check}@{self.file}:{self.line}"

    @staticmethod
    def of(text: str) -> "Waiver":
        """Return the waiver of a text; the name of its check is not looked up. Raises RefsimError unknown-check."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise RefsimError("unknown-check", f"{text!r:.80} is no waiver", rule=WAIVER_RULE)
        return Waiver(found[1], found[2], int(found[3]))

    @property
    def is_of_ptx(self) -> bool:
        return self.file.endswith(".ptx")

    def is_at(self, lines: Iterable[Line]) -> bool:
        """Return whether one of these lines is the waiver's."""
        return any(line == self.line and name in (self.file, "" if self.is_of_ptx else None) for name, line in lines)

    def allows(self, error: RefsimError) -> bool:
        """Return whether a finding is of this check, and one of its accesses at this line."""
        if error.code != self.check:
            return False
        said = f"{error.where} {error.what.partition(', with no ')[0]}"
        at = f"PTX line {self.line}" if self.is_of_ptx else rf"(?<![\w.-]){re.escape(self.file)}:{self.line}"
        return re.search(rf"{at}(?!\d)", said) is not None


def lines_of(statement: Statement) -> Iterator[Line]:
    """Yield the lines of a statement: of CUDA with all calls around it, and of PTX, whose file is ""."""
    yield "", statement.line
    for at in statement.location.places() if statement.location else ():
        yield at.file, at.line


def comments(file: str, text: str) -> Iterator[tuple[Waiver, bool]]:
    """Yield (waiver, whether there is code beside the comment) for each check that a comment of a source allows."""
    for number, line in enumerate(text.splitlines(), 1):
        if "refsim" in line.lower() and (found := _COMMENT.match(line)):
            for name in found[2].replace(",", " ").split() or [""]:
                yield Waiver(name, file, number), bool(found[1].strip() or (found[3] or "").strip())


@dataclass(frozen=True)
class CompilerDefect:
    """One defect of the versions of a compiler before `fixed_in` (None: of all versions so far). It covers findings of
    `code` at an instruction that matches `at`, whose text matches `text`. `says` informs the reader, `source` is where
    the compiler's authors state it. `is_open`: bits of results depend on it."""

    name: str
    fixed_in: tuple[int, ...] | None
    code: str
    at: str
    text: str
    says: str
    source: Source
    is_open: bool = False

    def is_of(self, version: tuple[int, ...]) -> bool:
        """Return whether a version such as (3, 6, 0) has the defect."""
        return self.fixed_in is None or version < self.fixed_in

    def explains(self, error: RefsimError, opcode: str) -> bool:
        """Return whether a finding at an instruction is this defect."""
        return (
            error.code == self.code
            and re.match(self.at, opcode) is not None
            and re.search(self.text, error.what) is not None
        )

    def named(self, error: RefsimError) -> RefsimError:
        """Return a finding with this defect as its help."""
        return replace(error, help=f"{self.says} ({self.source})")


def defect_of(error: RefsimError, opcode: str, defects: Sequence[CompilerDefect]) -> CompilerDefect | None:
    """Return the first of the defects that a finding at an instruction is; None if it is none."""
    return next((each for each in defects if each.explains(error, opcode)), None)


LEVELS = ("error", "record", "off")
STOP, FAILURE, WARNING, NOTE = "stop", "failure", "warning", "note"
OPEN_BITS = "open"
"""The level of a warning on which bits depend: a defect of the compiler."""
SCHEDULE_DEPENDENT, BARRIER_MISUSE = "schedule-dependent", "barrier-misuse"


@dataclass(frozen=True)
class Check:
    """One check: the code of its findings, which also turns it off, and a description of what it finds. A stop ends the
    launch, which cannot go on, and cannot be turned off. A failure makes the exit code 1; a warning and a note do not.
    `level` is the field of `Checks` that governs the check, `part_of` the check that it needs."""

    name: str
    severity: str
    finds: str
    level: str = ""
    part_of: str = ""


# fmt: off
CHECKS = (
    Check("race", FAILURE, "two threads access the same bytes of shared or global memory, or words of tensor memory; one of them "
          "writes, and nothing orders the two", "races"),
    Check("ordered-by-convergence", WARNING, "only a shfl, vote, match, redux or wgmma stands between two accesses: the threads "
          "meet there, but memory is not ordered", part_of="race"),
    Check("equal-stores", NOTE, "two copies that nothing orders write equal bytes to one place of global memory",
          part_of="race"),
    Check("shared-barrier", FAILURE, "warps come to a named barrier that other warps of the block used before, and nothing "
          "orders the two uses: either may complete the phase of the other", part_of="race"),
    Check("stale-read", FAILURE, "ld.global.nc or ldu reads bytes that the same launch wrote; its cache may not show the write",
          part_of="race"),
    Check("missing-proxy-fence", FAILURE, "a copy engine or a tensor core reads or overwrites what threads wrote (also a tensor "
          "map), with no proxy fence between", part_of="race"),
    Check("unfenced-refill", NOTE, "a copy engine overwrites what threads read, ordered by an mbarrier but by no proxy fence",
          part_of="race"),
    Check("map-beyond-rank", NOTE, "a copy uses a tensor map in which tensormap.replace set a dimension beyond its rank"),
    Check("missing-grid-wait", FAILURE, "a launch by programmatic serialization accesses memory that the previous launch "
          "touched, before griddepcontrol.wait", part_of="race"),
    Check("read-before-wait", FAILURE, "shared bytes are read or written while a copy writes them, or written while a copy reads "
          "them, or a tensor map changes while a copy reads it", "copies"),
    Check("register-in-flight", FAILURE, "a register is read or written while a wgmma uses it, or written while a tcgen05.ld "
          "loads it", part_of="read-before-wait"),
    Check("unfenced-register", FAILURE, "a wgmma uses a register that other code accessed, without a wgmma.fence between",
          part_of="read-before-wait"),
    Check("tensor-memory-in-flight", FAILURE, "tensor memory is accessed while a tcgen05.mma or cp in flight uses it, or a load "
          "or store that no thread waited for", part_of="read-before-wait"),
    Check("tensor-memory-leak", FAILURE, "a block exits without deallocating its tensor memory", part_of="read-before-wait"),
    Check("unfinished-copy", FAILURE, "a block exits while a copy engine may still write to its shared memory",
          part_of="read-before-wait"),
    Check("unfinished-store", FAILURE, "a block exits while a copy engine may still read its shared memory",
          part_of="read-before-wait"),
    Check("uninitialised", FAILURE, "uninitialized bits reach an output, an address, a branch or a decision",
          "initialised"),
    Check("uninitialised-unused", NOTE, "uninitialized bits are read, but reach no output, address, branch or decision",
          part_of="uninitialised"),
    Check("divergent-sync", FAILURE, "not all threads of a warp reach an aligned barrier or an instruction of the warp together",
          "divergence"),
    Check(SCHEDULE_DEPENDENT, FAILURE, "a launch writes different bytes under another schedule"),
    Check("phase-waited-twice", WARNING, "a thread waits by parity for a phase of an mbarrier that it has seen complete, while "
          "the next phase is under way: the wait passes at once"),
    Check("setmaxnreg-ignored", WARNING, "setmaxnreg in a kernel without a bound on its registers: it may have no effect"),
    Check("leak", WARNING, "memory from device malloc is never freed, and no pointer to it is in memory at the end"),
    Check("bank-conflicts", NOTE, "lanes of a warp access several words of one bank of shared memory", "banks"),
)
# fmt: on
STOPS = (
    Check("out-of-bounds", STOP, "an access outside every buffer, variable and parameter"),
    Check("use-after-free", STOP, "an access to memory that device free has released"),
    Check("invalid-free", STOP, "device free of memory that is freed already, or that malloc did not return"),
    Check("misaligned", STOP, "an address that is not a multiple of the bytes of the access"),
    Check("read-only", STOP, "a write to an input, a constant or a parameter"),
    Check("invalid-operand", STOP, "an operand that the instruction does not accept"),
    Check(
        "invalid-call", STOP, "a call of an address where no matching function begins, or of a function that is running"
    ),
    Check(
        BARRIER_MISUSE, STOP, "a barrier with an invalid number or thread count, or invalid use of an mbarrier object"
    ),
    Check("tensor-memory-misuse", STOP, "tensor memory allocated, freed or addressed against its rules"),
    Check("deadlock", STOP, "threads wait, and no thread is left that could let them continue"),
    Check("trap", STOP, "the kernel executed trap or brkpt, or failed an assertion"),
    Check("timeout", STOP, "the launch exceeded its time limit"),
)
_BY_NAME = {row.name: row for row in CHECKS}


@dataclass(frozen=True)
class Checks:
    """The checks of a launch in addition to those that stop it; the table of all checks is `CHECKS`.

    "error" stops at the first finding, "record" notes it and goes on, "off" does not look. initialised: uninitialized bits
    that reach an output, an address or a decision (a read without effect is a note). copies: shared bytes read
    while a cp.async still writes them, registers touched while a wgmma uses them. races: accesses that nothing orders.
    divergence: an aligned barrier that the threads of a warp reach at different instructions, or a member mask that leaves
    out its own lane; without the check the barrier gathers the threads, and the lane exchanges with those that execute
    with it, as on chips since sm_70. banks: whether bank conflicts are counted. seconds: wall-clock limit of a launch. off:
    checks that are not made, by name, and waivers of single findings (`race@kernel.cu:120`); after construction it holds
    all checks that are off, and `waivers` the waivers. known: defects of the compiler that made the PTX; a finding that
    is one of them is a warning that names the compiler, and the launch goes on.
    """

    initialised: str = "error"
    copies: str = "error"
    races: str = "error"
    divergence: str = "error"
    banks: bool = False
    seconds: float = 600.0
    off: tuple[str, ...] = ()
    known: tuple[CompilerDefect, ...] = ()
    waivers: tuple[Waiver, ...] = ()

    def __post_init__(self) -> None:
        """Validate the levels, and add all checks that they turn off to `off`. Raises RefsimError for a wrong value."""
        for name in ("initialised", "copies", "races", "divergence"):
            level = getattr(self, name)
            if not isinstance(level, str) or level not in LEVELS:
                raise RefsimError("unknown-check", f"{name}={level!r:.40}", help="error, record or off")
        if not isinstance(self.banks, bool):
            raise RefsimError("unknown-check", f"banks={self.banks!r:.40}", help="True or False")
        if not isinstance(self.seconds, Real) or isinstance(self.seconds, bool) or not self.seconds >= 0:
            raise RefsimError("out-of-range", f"seconds={self.seconds!r:.40}", rule="a number of seconds, from 0")
        if isinstance(self.off, str) or not isinstance(self.off, Sequence):
            raise RefsimError("unknown-check", f"off={self.off!r:.40}", help='a list of names: ("race",)')
        named = tuple(map(check_name, self.off))
        waivers = dict.fromkeys((*self.waivers, *(Waiver.of(name) for name in named if "@" in name)))
        object.__setattr__(self, "waivers", tuple(waivers))
        off: list[str] = []
        for row in CHECKS:
            if row.name in named and row.level:
                object.__setattr__(self, row.level, False if row.level == "banks" else "off")
            if row.name in named or row.part_of in off or (row.level and getattr(self, row.level) == "off"):
                off.append(row.name)
        object.__setattr__(self, "off", tuple(off))

    def level(self, code: str) -> str:
        """Return the level of a finding by its code: "error", "record", "off", or the severity of a warning or note.
        "uninitialised" is governed by `initialised`."""
        row = _BY_NAME.get(code)
        if row is None:
            return "error"
        if row.name in self.off:
            return "off"
        if row.severity in (WARNING, NOTE):
            return row.severity
        if row.level:
            return str(getattr(self, row.level))
        return self.level(row.part_of) if row.part_of else "error"

    def said_of(self, error: RefsimError, opcode: str) -> tuple[str, RefsimError]:
        """Return the level of a finding at an instruction, and the finding as it is reported. A known defect of the
        compiler is a warning, or OPEN_BITS if bits depend on it."""
        level = self.level(error.code)
        known = None if level == "off" else defect_of(error, opcode, self.known)
        return (level, error) if known is None else (OPEN_BITS if known.is_open else WARNING, known.named(error))


def check_name(name: str) -> str:
    """Return the name of a check that can be turned off, or the text of a waiver. Raises RefsimError `unknown-check`
    for anything else."""
    if not isinstance(name, str) or "@" not in name:
        return _named(name).name
    waiver = Waiver.of(name)
    if waiver.check == SCHEDULE_DEPENDENT:
        what = f"{waiver.check} names bytes of memory, not a line: {name!r:.80}"
        raise RefsimError("unknown-check", what, rule=WAIVER_RULE)
    if waiver.check != BARRIER_MISUSE:  # a launch can go on after a second mbarrier.init
        _named(waiver.check)
    return str(waiver)


def _named(name: str) -> Check:
    """Return the check of a name. Raises `unknown-check` for an unknown name, and for a check that stops a launch."""
    if not isinstance(name, str):
        raise unknown("check", name, list(_BY_NAME))
    if name in {row.name for row in STOPS}:
        what = f"{name} stops a launch: it cannot be turned off"
        raise RefsimError("unknown-check", what, help=f"one of {', '.join(_BY_NAME)}")
    return named("check", name, _BY_NAME)
