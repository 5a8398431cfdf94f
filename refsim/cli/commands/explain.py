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
    """Explain CODE: what it means and a recorded message with its rule and help. Without CODE: list all codes.

    For a finding of a launch the page also shows whether it fails a kernel, how to leave it out, how to fix it, and the
    smallest example: a line with // wrong makes the mistake, a line with // right replaces it. The page of a verdict's
    status shows its exit code. --source adds the places in refsim that raise CODE; a name in angle brackets is a value.

    \b
      refsim explain race
      refsim explain unknown-format
      refsim explain assumed
    """
    from refsim.cli.answers.codes import checks, meaning, renamed, sample, sayings
    from refsim.testing.verdicts import MEANING

    if code is None:
        rows = tuple((each, checks()[each].severity if each in checks() else None, meaning(each)) for each in sayings())
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
        parts += [_record(code), *_example(code)]
        if said := sample(code):
            parts.append(Wording(tuple(said.splitlines()), {"sample": said}))
        if click.get_current_context().params["citations"]:
            parts.append(_places(known[code]))
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
    from refsim.cli.answers.codes import checks, meaning
    from refsim.ptx.findings.table import STOP

    row = checks().get(code)
    if row is None:
        return Record((Entry("code", code), Entry("means", meaning(code))))
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
