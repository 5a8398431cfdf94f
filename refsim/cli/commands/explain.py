"""refsim explain: what the code of an error or finding means, from where it is raised."""

from typing import TYPE_CHECKING

import click

from refsim.cli.delivery import answers
from refsim.cli.names import Name
from refsim.errors import unknown
from refsim.render import Column, Document, Entry, Part, Record, Table, Wording

if TYPE_CHECKING:
    from refsim.cli.answers.codes import Saying

COLUMNS = (Column("code", strong=True), Column("check"), Column("says"))


@click.command()
@click.argument("code", required=False, type=Name("code", "refsim.cli.answers.codes:sayings"))
@answers
def command(code: str | None) -> Document:
    """What CODE means, where it is raised, what it says, by which rule and the fix; all codes without one.

    A name in angle brackets stands where a message has a value. A finding of a launch also says whether it fails a kernel
    and how it is left out, and shows the smallest lines that it is found in: those that end in // wrong make the mistake,
    those in // right replace them. The status of a verdict is explained too.

    \b
      refsim explain race
      refsim explain unknown-format
      refsim explain assumed
    """
    from refsim.cli.answers.codes import checks, renamed, sayings
    from refsim.testing.verdicts import MEANING

    if code is None:
        rows = tuple(
            (each, checks()[each].severity if each in checks() else None, _says(each, found))
            for each, found in sayings().items()
        )
        return Document((Table(COLUMNS, rows, key="codes"),), "codes")
    code = code.strip("[]")
    code, was = renamed(code) or code, code
    known = sayings(code)
    if code not in known and code not in MEANING:
        raise unknown("code", code, [*sayings(), *MEANING])
    parts: list[Part] = [_status(code)] if code in MEANING else []
    if was != code:
        parts.append(Wording((f"{was} is now {code}",), {"was": was}))
    if code in known:
        parts += [_record(code), *_example(code), _places(known[code])]
    return Document(tuple(parts), f"code {code}")


def _status(code: str) -> Record:
    """What a verdict with this status says, and the exit code that it gives."""
    from refsim.testing.verdicts import KIND_OF, MEANING

    kind = KIND_OF[code]
    entries = (
        Entry("status", code),
        Entry("means", MEANING[code]),
        Entry("exit_code", 0 if kind is None else kind.value, "exit code"),
    )
    return Record(entries, key="status")


def _record(code: str) -> Record:
    """The code; of a finding also how severe it is, and whether it can be left out."""
    from refsim.cli.answers.codes import checks
    from refsim.ptx.findings.table import STOP

    row = checks().get(code)
    if row is None:
        return Record((Entry("code", code),))
    left_out = f"Checks(off=({code!r},))" if row.severity != STOP else "never: it ends the launch"
    entries = (
        Entry("code", code),
        Entry("check", row.severity),
        Entry("finds", row.finds),
        Entry("left_out", left_out, "left out by"),
    )
    return Record(entries)


def _example(code: str) -> tuple[Wording, ...]:
    """Return the smallest kernel that has a finding, and the fix; nothing for other codes."""
    from refsim.ptx.findings.examples import EXAMPLES

    row = EXAMPLES.get(code)
    if row is None:
        return ()
    lines = row.lines.rstrip().splitlines()
    return (Wording((f"fix: {row.fix}", "", *lines), {"mends": row.fix, "example": lines}, key="example"),)


def _places(found: "tuple[Saying, ...]") -> Wording:
    """What each place says; the same sentences of several places once."""
    together: dict[tuple[str, str, str], list[str]] = {}
    for each in found:
        together.setdefault((each.what, each.rule, each.help), []).append(f"{each.module}.{each.function}".rstrip("."))
    lines: list[str] = []
    facts = []
    for (what, rule, help), places in together.items():
        lines += ["", what]
        lines += [f"  {label}: {text}" for label, text in (("rule", rule), ("help", help)) if text]
        lines += [f"  reported by: {', '.join(places)}"]
        facts.append({"what": what, "rule": rule, "help": help, "said_by": places})
    return Wording(tuple(lines[1:]), {"sayings": facts})


def _says(code: str, found: "tuple[Saying, ...]") -> str:
    from refsim.cli.answers.codes import checks

    return checks()[code].finds if code in checks() else next((each.what for each in found if each.what), "")
