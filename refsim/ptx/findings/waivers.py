"""Waivers: findings that a user allows, each by its check and one line of the source.

`race@kernel.cu:120` allows a race of an access at that line of CUDA, `race@kernel.ptx:33` at that line of PTX. The
comment `// refsim: allow race` allows the race at its own line, also as `/* ... */`, without the colon or in capitals.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from refsim.errors import RefsimError
from refsim.ptx.text.syntax import Statement

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
