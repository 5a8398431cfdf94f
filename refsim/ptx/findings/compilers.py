"""Known defects of compilers: findings that are the compiler's fault, and not the kernel author's."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from refsim.errors import RefsimError
from refsim.sources import Source


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
