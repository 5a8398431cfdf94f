"""Findings of a launch in addition to its results: errors, warnings, notes, bank use, printed text.

Errors for faults of a simulated kernel, with PTX line, CUDA line, thread, block and address."""

from dataclasses import dataclass, field

from refsim.errors import Kind, RefsimError
from refsim.ptx.findings.table import CHECKS, NOTE, SCHEDULE_DEPENDENT, STOPS, Waiver, lines_of
from refsim.ptx.text.syntax import Statement, place

# The faults that a single launch can find; differing schedules are found by comparing launches.
FAULT_CODES = frozenset(
    row.name for row in (*STOPS, *CHECKS) if row.severity != NOTE and row.name != SCHEDULE_DEPENDENT
)


class DoubtError(Exception):
    """Raised on trial, if `finding` would be reported for one of several accesses that are shown together."""

    def __init__(self, finding: RefsimError) -> None:
        super().__init__(finding)
        self.finding = finding


def fault(code: str, what: str, statement: Statement, who: str = "", rule: str = "", help: str = "") -> RefsimError:
    """Return the error for a fault of the kernel; `who` is the thread and block in words."""
    assert code in FAULT_CODES
    where = place(statement) + (f", {who}" if who else "")
    return RefsimError(code, what, where=where, rule=rule, help=help, kind=Kind.FAULT)


def open_bits(where: str, target: str, recorded: str = "", model: str = "") -> RefsimError:
    """Return the refusal of a statement whose bits are unverified on a target. `recorded`: the target whose recorded
    bits it returns. `model`: the basis of a tensor core's entry that was not compared with results of any chip."""
    found = f"are assumed: those of {recorded}, unverified on {target}" if recorded else "are left open"
    found = f"are those of a model alone on {target} ({model})" if model else found
    return RefsimError(
        "open-bits",
        f"the bits of its result {found}",
        where,
        rule="arithmetic 'known' takes no result whose bits the chip may choose otherwise",
        help=f"a target whose chip was recorded, such as {recorded}; or arithmetic 'silicon'"
        if recorded
        else "arithmetic 'silicon'",
        kind=Kind.INCONCLUSIVE,
    )


def is_fault(error: RefsimError) -> bool:
    """Return whether an error says that the kernel is wrong, rather than the request.

    is_fault(RefsimError("race", "a race", kind=Kind.FAULT)) is True, is_fault(RefsimError("unknown-entry", "k")) is False.
    Raises nothing. Source: the table `CHECKS` and `STOPS`.
    """
    return error.code in FAULT_CODES and error.kind is Kind.FAULT


@dataclass(frozen=True)
class Crowd:
    """The lanes of one access that meet in one bank: `lanes[i]` access the 32-bit word at byte `words[i]` of shared
    memory. Each 32-bit word is a wavefront of its own. `warp` is counted over the launch, block after block."""

    warp: int
    bank: int
    words: tuple[int, ...]
    lanes: tuple[tuple[int, ...], ...]


@dataclass
class BankUse:
    """The use of the banks by one instruction: `accesses` of a warp took `wavefronts`, `ideal` without conflicts.
    `worst` is the first of the fullest banks that one access met, if any lanes collided."""

    statement: Statement
    accesses: int = 0
    wavefronts: int = 0
    ideal: int = 0
    worst: Crowd | None = None

    @property
    def ways(self) -> float:
        """Return wavefronts per needed wavefront: 1 without conflicts, 8 if eight rows of a matrix share a bank."""
        return self.wavefronts / self.ideal if self.ideal else 1.0


@dataclass
class LaunchFindings:
    """The findings of a launch.

    `recorded` holds the first finding of each code and source line, `notes` the remarks that make no kernel wrong.
    `assumed`: the statements, by PTX line, whose bits come from elsewhere, and from where. `printed`: (thread, text) of
    printf. `maps`: the addresses in global memory at which it made tensor maps. `blocks`: the first statements of the
    basic blocks that some lane ran. `waived`: for each waiver, the first finding that it allowed.
    `contended`: the identities of statements between which a schedule may come.
    """

    waivers: tuple[Waiver, ...] = ()
    waived: dict[Waiver, RefsimError] = field(default_factory=dict)
    contended: set[int] = field(default_factory=set)
    instructions: int = 0
    blocks: set[int] = field(default_factory=set)
    inexact: dict[int, Statement] = field(default_factory=dict)
    assumed: dict[int, tuple[Statement, str]] = field(default_factory=dict)
    idealised: dict[int, Statement] = field(default_factory=dict)
    recorded: dict[tuple[str, str], RefsimError] = field(default_factory=dict)
    warnings: dict[tuple[str, str], RefsimError] = field(default_factory=dict)
    notes: dict[tuple[str, str], RefsimError] = field(default_factory=dict)
    banks: dict[int, BankUse] = field(default_factory=dict)
    printed: list[tuple[str, str]] = field(default_factory=list)
    maps: set[int] = field(default_factory=set)

    def ran(self, block: int, instructions: int) -> None:
        """Count that some lanes ran a basic block of so many instructions."""
        self.blocks.add(block)
        self.instructions += instructions

    def is_waived(self, error: RefsimError) -> bool:
        """Return whether a waiver allows a finding, and record that it did."""
        waiver = next((each for each in self.waivers if each.allows(error)), None)
        if waiver is not None:
            self.waived.setdefault(waiver, error)
        return waiver is not None

    def has_waived(self, code: str, statement: Statement) -> bool:
        """Return whether a waiver of this line has allowed a finding of this code."""
        return bool(self.waived) and any(each.check == code and each.is_at(lines_of(statement)) for each in self.waived)

    def warn(self, error: RefsimError, statement: Statement) -> None:
        """Record a warning, the first of its code and source line."""
        if not self.is_waived(error):
            self.warnings.setdefault((error.code, _line(statement)), error)

    def has_warned(self, code: str, statement: Statement) -> bool:
        """Return whether a warning of this code was recorded for this source line."""
        return bool(self.warnings) and (code, _line(statement)) in self.warnings

    def is_known(self, code: str, statement: Statement) -> bool:
        """Return whether a finding of this code was recorded for this source line."""
        return (code, _line(statement)) in self.recorded

    def record(self, error: RefsimError, statement: Statement) -> None:
        """Record a finding, the first of its code and source line."""
        if not self.is_waived(error):
            self.recorded.setdefault((error.code, _line(statement)), error)

    def note(self, remark: RefsimError, statement: Statement) -> None:
        """Record a note, the first of its code and source line."""
        if not self.is_waived(remark):
            self.notes.setdefault((remark.code, _line(statement)), remark)

    def has_noted(self, code: str, statement: Statement) -> bool:
        """Return whether a note of this code was recorded for this source line."""
        return (code, _line(statement)) in self.notes

    def printed_lines(self) -> tuple[str, ...]:
        """Return the printed lines in the order of printing: `block (0, 0, 0) thread (5, 0, 0): text`."""
        return tuple(f"{who}: {line}" for who, text in self.printed for line in text.removesuffix("\n").split("\n"))

    def summary(self) -> str:
        """Return the first recorded finding, often the reason why a launch fails later; "" if there is none."""
        if not self.recorded:
            return ""
        first, *others = self.recorded.values()
        more = f", and {len(others)} more findings" if others else ""
        return f"recorded before: [{first.code}] {first.what}, at {first.where}{more}"


def _line(statement: Statement) -> str:
    return str(statement.location or statement.line)
