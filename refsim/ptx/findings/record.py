"""What a launch saw besides its results."""

from dataclasses import dataclass, field

from refsim.errors import RefsimError
from refsim.ptx.text.syntax import Statement


@dataclass(frozen=True)
class Crowd:
    """The lanes of one access that meet in one bank: `lanes[i]` ask for the word at byte `words[i]` of shared memory.

    Each word is a wavefront of its own. `warp` is counted over the launch, block after block.
    """

    warp: int
    bank: int
    words: tuple[int, ...]
    lanes: tuple[tuple[int, ...], ...]


@dataclass
class BankUse:
    """What one instruction asked of the banks: `accesses` of a warp took `wavefronts`, `ideal` without conflicts.

    `worst` is the first of the fullest banks that one access met, if any lanes collided.
    """

    statement: Statement
    accesses: int = 0
    wavefronts: int = 0
    ideal: int = 0
    worst: Crowd | None = None

    @property
    def ways(self) -> float:
        """Wavefronts for each one that is needed: 1 without conflicts, 8 where eight rows share a bank."""
        return self.wavefronts / self.ideal if self.ideal else 1.0


@dataclass
class LaunchFindings:
    """What a launch saw besides its results: `recorded` holds the first finding of each code and source line, `notes` what
    makes no kernel wrong, `assumed` the statements, by PTX line, whose bits were taken from elsewhere, and from where,
    `printed` who printed which text, `maps` where in global memory it made tensor maps, `blocks` the first statements of the
    blocks that some lane ran."""

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
        """Some lanes ran a block, and so many instructions with it."""
        self.blocks.add(block)
        self.instructions += instructions

    def warn(self, error: RefsimError, statement: Statement) -> None:
        """Note what is no failure but should be read."""
        self.warnings.setdefault((error.code, _line(statement)), error)

    def has_warned(self, code: str, statement: Statement) -> bool:
        """Whether a warning of this code at this source line was noted before."""
        return (code, _line(statement)) in self.warnings

    def is_known(self, code: str, statement: Statement) -> bool:
        """Whether a finding of this code at this source line was recorded before."""
        return (code, _line(statement)) in self.recorded

    def record(self, error: RefsimError, statement: Statement) -> None:
        self.recorded.setdefault((error.code, _line(statement)), error)

    def note(self, remark: RefsimError, statement: Statement) -> None:
        """Something worth knowing that makes no kernel wrong."""
        self.notes.setdefault((remark.code, _line(statement)), remark)

    def has_noted(self, code: str, statement: Statement) -> bool:
        """Whether something of this code was noted of this source line before."""
        return (code, _line(statement)) in self.notes

    def printed_lines(self) -> tuple[str, ...]:
        """What threads printed, a line each, in the order in which they came: `block (0, 0, 0) thread (5, 0, 0): text`."""
        return tuple(f"{who}: {line}" for who, text in self.printed for line in text.removesuffix("\n").split("\n"))

    def summary(self) -> str:
        """The first finding that was recorded, which often is why a launch fails later; empty if there is none."""
        if not self.recorded:
            return ""
        first, *others = self.recorded.values()
        more = f", and {len(others)} more findings" if others else ""
        return f"recorded before: [{first.code}] {first.what}, at {first.where}{more}"


def _line(statement: Statement) -> str:
    return str(statement.location or statement.line)
