"""The bugs of the field that stand in `bugs/`: what each is, the kernel that shows it, what is typed, and what must be said."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
Naming = Literal["cause", "declared", "place", "bits", "refused", "right"]
NAMINGS: dict[Naming, str] = {
    "cause": "names the mistake",
    "declared": "names the mistake, which the kernel declares as a candidate cause",
    "place": "reports the fault with its line and the missing order, wait or bytes",
    "bits": "reports which bits differ, where they lie and the line that wrote them, without a cause",
    "refused": "refuses it before it runs",
    "right": "reports no fault: the public report is a false alarm",
}
"""How much a report says of a bug, the most useful first."""


@dataclass(frozen=True)
class FieldBug:
    """One class of bugs: `field` is what goes wrong in the words of this project, `reports` where it was reported.

    `command` shows it and `twin` is the same on the right kernel, both typed at the root of the repository; `made` is Python
    that writes the files they take. Every text of `finds` must stand in the report. `kernel` is a CUDA file in which RIGHT
    chooses the right lines, or, with `edits`, one whose old texts give way to new ones. `said` is what else a reader should know.
    """

    id: str
    title: str
    field: str
    reports: tuple[str, ...]
    named: Naming
    command: str
    finds: tuple[str, ...]
    twin: str = ""
    kernel: str = ""
    edits: tuple[tuple[str, str], ...] = ()
    made: str = ""
    said: str = ""

    def changed(self) -> list[str]:
        """The lines that tell the wrong kernel from the right one, "-" before wrong and "+" before right ones."""
        if self.edits:
            return [
                f"{sign} {line}"
                for edit in self.edits
                for sign, text in zip("-+", edit, strict=True)
                for line in text.splitlines()
                if line.strip()
            ]
        return list(_chosen((ROOT / self.kernel).read_text("utf-8"))) if self.kernel.endswith(".cu") else []


def _chosen(text: str) -> list[str]:
    """The lines between #ifdef RIGHT (#ifndef RIGHT) and #endif of a CUDA file."""
    lines, sign = [], ""
    for line in text.splitlines():
        if re.match(r"#ifn?def RIGHT\b", line):
            sign = "+" if line.startswith("#ifdef") else "-"
        elif sign and line.startswith("#else"):
            sign = "-+"[sign == "-"]
        elif sign and line.startswith("#endif"):
            sign = ""
        elif sign:
            lines.append(f"{sign} {line.strip()}")
    return lines


def right_text(bug: FieldBug) -> str:
    """The kernel of `edits` without its mistake. ValueError unless each old text stands there once."""
    text = (ROOT / bug.kernel).read_text("utf-8")
    for old, new in bug.edits:
        if text.count(old) != 1:
            raise ValueError(f"{bug.id}: {old!r} stands {text.count(old)} times in {bug.kernel}")
        text = text.replace(old, new)
    return text


def read_bugs() -> tuple[FieldBug, ...]:
    """All bugs, chapter by chapter."""
    return tuple(bug for _, bugs in read_chapters() for bug in bugs)


def read_chapters() -> list[tuple[str, tuple[FieldBug, ...]]]:
    """The title of each chapter with its bugs, in the order of the files."""
    chapters = []
    for path in sorted((FOLDER / "bugs").glob("*.toml")):
        held = tomllib.loads(path.read_text("utf-8"))
        chapters.append((held["chapter"], tuple(_bug(record) for record in held["bug"])))
    return chapters


def read_absent() -> list[dict[str, str]]:
    """Classes without an item: `what`, and `why` or where instead."""
    return list(tomllib.loads((FOLDER / "absent.toml").read_text("utf-8"))["absent"])


def _bug(record: dict[str, object]) -> FieldBug:
    for name in ("reports", "finds", "edits"):
        entries = record.get(name, [])
        assert isinstance(entries, list)
        record[name] = tuple(tuple(each) if isinstance(each, list) else each for each in entries)
    return FieldBug(**record)  # type: ignore[arg-type]
