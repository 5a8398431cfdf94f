"""What a launch checks, and what it saw."""

from dataclasses import dataclass, field

from refsim.errors import RefsimError
from refsim.ptx.checks.bank_conflicts import BankUse
from refsim.ptx.text.syntax import Statement

LEVELS = ("error", "record", "off")


@dataclass(frozen=True)
class Checks:
    """What a launch checks beyond bounds and alignment, which are always checked.

    "error" stops at the first finding, "record" notes it and goes on, "off" does not look. initialised: reads of bytes
    that nobody wrote (they read poison). copies: shared bytes read while a cp.async still writes them. races: accesses of
    two warps to shared bytes, one of them a write, that no barrier and no atomic or volatile access to shared memory orders
    (a flag in global memory orders nothing here). divergence: an aligned barrier of the CTA that the threads of a warp
    reach at different instructions; without the check it gathers them, as chips do since sm_70. banks: whether bank
    conflicts are counted. seconds: wall-clock limit of a launch.
    """

    initialised: str = "error"
    copies: str = "error"
    races: str = "error"
    divergence: str = "error"
    banks: bool = False
    seconds: float = 600.0

    def __post_init__(self) -> None:
        for name in ("initialised", "copies", "races", "divergence"):
            level = getattr(self, name)
            if level not in LEVELS:
                raise RefsimError("unknown-check", f"{name}={level!r}", help="error, record or off")

    def level(self, code: str) -> str:
        """What to do about a finding: "uninitialised" is governed by `initialised`."""
        return {"uninitialised": self.initialised, "read-before-wait": self.copies, "race": self.races}.get(
            code, "error"
        )

    @property
    def watches_shared(self) -> bool:
        """Whether anything is to be known about who wrote shared memory."""
        return (self.initialised, self.copies, self.races) != ("off", "off", "off")


@dataclass
class Findings:
    """What a launch saw besides its results: `recorded` holds the first finding of each code and source line."""

    instructions: int = 0
    inexact: dict[int, Statement] = field(default_factory=dict)
    idealised: dict[int, Statement] = field(default_factory=dict)
    recorded: dict[tuple[str, str], RefsimError] = field(default_factory=dict)
    banks: dict[int, BankUse] = field(default_factory=dict)

    def is_known(self, code: str, statement: Statement) -> bool:
        """Whether a finding of this code at this source line was recorded before."""
        return (code, _line(statement)) in self.recorded

    def record(self, error: RefsimError, statement: Statement) -> None:
        self.recorded.setdefault((error.code, _line(statement)), error)

    def summary(self) -> str:
        """The first finding that was recorded, which often is why a launch fails later; empty if there is none."""
        if not self.recorded:
            return ""
        first, *others = self.recorded.values()
        more = f", and {len(others)} more findings" if others else ""
        return f"recorded before: [{first.code}] {first.what}, at {first.where}{more}"


def _line(statement: Statement) -> str:
    return str(statement.location or statement.line)
