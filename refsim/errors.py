"""One error type: every message says what is wrong, where, which rule it breaks, and how to fix it."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

Row = TypeVar("Row")
MOST_PRINTED = 8  # lines of a kernel's printf in the text of an error


class Kind(Enum):
    """The kind of an error; the value is the exit code of the command line.

    USAGE: the request; FAULT: the kernel, or a comparison that failed; UNREADABLE: an input; MISSING: something
    required is not installed; INCONCLUSIVE: no result either way; BUG: refsim itself.
    """

    FAULT = 1
    USAGE = 2
    UNREADABLE = 3
    MISSING = 4
    INCONCLUSIVE = 5
    BUG = 70


@dataclass(eq=False)
class RefsimError(Exception):
    """An error that the user can fix.

    `code` is a stable kebab-case name, `what` one sentence that contains the offending value, `where` its place, `rule`
    the sentence it breaks (with its source), `help` the way out. `kind` is the kind of error and decides `exit_code`, 2
    for Kind.USAGE. `place` is the file and line to open, if they are known; annotations point there. `printed` holds what
    threads printed before a kernel's fault.
    """

    code: str
    what: str
    where: str = ""
    rule: str = ""
    help: str = ""
    kind: Kind = Kind.USAGE
    place: tuple[str, int] | None = None
    printed: tuple[str, ...] = ()

    def __post_init__(self) -> None:  # a process passes an error to another by these
        self.args = (self.code, self.what, self.where, self.rule, self.help, self.kind, self.place, self.printed)

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command line."""
        return self.kind.value

    @property
    def was(self) -> tuple[str, ...]:
        """Return the codes of refsim 0.1 that `code` replaces, for one release: `"operand-shape" in error.was`."""
        return tuple(code_table().get(self.code, {}).get("was", "").split())

    def __str__(self) -> str:
        lines = [f"[{self.code}] {_short(self.what, 120)}"]
        lines += [f"  {label}: {_short(text, 400)}" for label, text in self.details() if text]
        return "\n".join(lines)

    def details(self) -> list[tuple[str, str]]:
        """Return label and text of the optional parts, in the order in which they are printed."""
        return [("at", self.where), ("rule", self.rule), ("help", self.help), *printed_details(self.printed)]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values; `from_json` returns an equal error."""
        place = list(self.place) if self.place else None
        return asdict(self) | {"kind": self.kind.name.lower(), "place": place, "printed": list(self.printed)}

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> "RefsimError":
        """Return the error that `to_json` wrote."""
        place = tuple(record["place"]) if record["place"] else None
        printed = tuple(record.get("printed", ()))
        return RefsimError(**{**record, "kind": Kind[record["kind"].upper()], "place": place, "printed": printed})


def printed_details(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return the last lines that threads printed, for the text of an error, and how many there were before them."""
    left = len(lines) - MOST_PRINTED
    return [("printed", f"{left} earlier lines")] * (left > 0) + [("printed", line) for line in lines[-MOST_PRINTED:]]


class UnfitTargetError(RefsimError):
    """The target lacks what a kernel needs, and another target has it: the verdict is `unsupported`, not an error.

    `entry` is the entry whose launch was refused; other entries of the kernel may run.
    """

    entry = ""


def missing_extra(what: str, help: str) -> RefsimError:
    """Return the error (exit 4) for a package that is not installed; `help` installs it."""
    return RefsimError("missing-extra", what, help=help, kind=Kind.MISSING)


def internal_error(problem: BaseException, again: str) -> RefsimError:
    """Return the error for an exception that refsim did not expect; the command `again` shows its traceback."""
    import traceback

    frames = traceback.extract_tb(problem.__traceback__)
    what = f"refsim raised {type(problem).__name__}: {problem}".rstrip(": ")
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    rule = "this is a bug of refsim, not of your input"
    help = f"{again} shows the traceback to report"
    return RefsimError("internal-error", what, where=where, rule=rule, help=help, kind=Kind.BUG)


@cache
def code_table() -> dict[str, dict[str, str]]:
    """Return a table for each error code: `means`, a sentence, and `was`, its former codes separated by spaces."""
    import tomllib
    from importlib.resources import files

    return tomllib.loads(files("refsim").joinpath("error_codes.toml").read_text("utf-8"))


def _short(text: str, most: int) -> str:
    """Return `text` without the middle of words longer than `most` and of lines longer than 2,000 characters.

    Errors repeat what a user typed; the two ends identify a name of 5,000 letters.
    """
    if len(text) <= most:
        return text
    text = re.sub(rf"\S{{{most + 1},}}", lambda word: _ends(word.group(), most), text)
    return "\n".join(_ends(line, 2000) for line in text.split("\n"))


def _ends(text: str, most: int) -> str:
    kept = (most - 5) // 2
    return text if len(text) <= most else f"{text[:kept]} ... {text[-kept:]}"


def nearest(name: str, known: list[str], count: int = 3) -> list[str]:
    """Return the `count` known names that are closest in spelling to `name`, best first."""
    import difflib

    name = name[:200]
    close = difflib.get_close_matches(name, known, n=count, cutoff=0.6)  # most names are passed over soon
    return close if len(close) == count else difflib.get_close_matches(name, known, n=count, cutoff=0.0)


def counted(count: int, noun: str, *, digits: str = "") -> str:
    """Return a number and its noun: "1 element", "2 elements"; `digits` is the format of the number."""
    plural = f"{noun[:-1] + 'ie' if noun.endswith('ry') else noun}s"
    return f"{count:{digits}} {noun if count == 1 else plural}"


def unknown_code(kind: str) -> str:
    """Return `unknown-` with the last word of a kind that has such a code ("target format": unknown-format)."""
    codes = (f"unknown-{word}" for word in reversed(kind.split()))
    return next((code for code in codes if code in code_table()), "unknown-name")


def unknown(kind: str, name: object, known: list[str], *, where: str = "") -> RefsimError:
    """Return the error for an unknown name: it lists the three nearest names, or all of 2 to 5 names."""
    name = str(name)
    way = f"one of {', '.join(known)}" if 2 <= len(known) <= 5 else f"nearest: {', '.join(nearest(name, known))}"
    what = f"no {kind} is called {_ends(name, 100)!r}"
    return RefsimError(code=unknown_code(kind), what=what, where=where, help=way if known else "")


def check_named(kind: str, name: object, known: Collection[Any], *, where: str = "") -> str:
    """Return a known name as text; raise the error for an unknown name."""
    text = name if isinstance(name, str) else str(name)
    if text not in known:
        raise unknown(kind, name, list(known), where=where)
    return text


def named(kind: str, name: object, rows: Mapping[Any, Row], *, where: str = "") -> Row:
    """Return the entry of a name; raise the error for an unknown name."""
    return rows[check_named(kind, name, rows, where=where)]
