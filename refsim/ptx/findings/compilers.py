"""What a compiler is known to do wrong: findings that are its own, and not those of whoever wrote the kernel."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from refsim.errors import RefsimError
from refsim.sources import Source


@dataclass(frozen=True)
class CompilerDefect:
    """One defect of a compiler's versions before `mended` (None: of all up to now): findings of `code` at an instruction that
    matches `at`, of which `told` is said. `says` is what its reader should know, `source` where the compiler's authors say it;
    `is_open` where bits of results depend on it.
    """

    name: str
    mended: tuple[int, ...] | None
    code: str
    at: str
    told: str
    says: str
    source: Source
    is_open: bool = False

    def is_of(self, version: tuple[int, ...]) -> bool:
        """Whether a version has it: (3, 6, 0)."""
        return self.mended is None or version < self.mended

    def explains(self, error: RefsimError, opcode: str) -> bool:
        """Whether a finding at an instruction is this defect."""
        return (
            error.code == self.code
            and re.match(self.at, opcode) is not None
            and re.search(self.told, error.what) is not None
        )

    def named(self, error: RefsimError) -> RefsimError:
        """A finding with this defect as its help."""
        return replace(error, help=f"{self.says} ({self.source})")


def defect_of(error: RefsimError, opcode: str, defects: Sequence[CompilerDefect]) -> CompilerDefect | None:
    """Which of the defects a finding at an instruction is, if any."""
    return next((each for each in defects if each.explains(error, opcode)), None)
