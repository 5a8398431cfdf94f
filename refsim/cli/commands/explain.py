"""refsim explain: what the code of an error, a finding or a status means, with a recorded message."""

import click

from refsim.cli.delivery import answers
from refsim.cli.names import Name
from refsim.errors import check_named
from refsim.render import Column, Document, Entry, Part, Record, Table, Wording

COLUMNS = (Column("code", strong=True), Column("check"), Column("says"))


@click.command()
@click.argument("code", required=False, type=Name("code", "refsim.cli.answers.codes:codes"))
@answers
def command(code: str | None) -> Document:
    """Explain CODE: what it means and a recorded message with its rule and help. Without CODE: list all codes.

    For a finding of a launch the page also shows whether it fails a kernel, how to leave it out, and how to fix it. The
    smallest example follows: a line with // wrong makes the mistake, a line with // right replaces it. The page of a
    verdict's status shows its exit code. --source adds the modules of refsim that raise CODE.

    \b
      refsim explain race
      refsim explain unknown-format
      refsim explain assumed
    """
    from refsim.cli.answers.codes import checks, codes, meaning, places, renamed, sample
    from refsim.testing.verdicts import MEANING

    if code is None:
        rows = tuple((each, checks()[each].severity if each in checks() else None, meaning(each)) for each in codes())
        return Document((Table(COLUMNS, rows, key="codes"),), "codes")
    was = code.strip("[] ")
    code = renamed(was) or was.lower()
    check_named("code", code, [*codes(), *MEANING])
    parts: list[Part] = [_status(code)] if code in MEANING else []
    if was.lower() != code:
        parts.append(Wording((f"{was} is now {code}",), {"was": was}))
    if code in codes():
        parts += [_record(code), *_example(code)]
        if said := sample(code):
            parts.append(Wording(tuple(said.splitlines()), {"sample": said}))
        if click.get_current_context().params["citations"]:
            raised = [*places(code)]
            parts.append(Wording((f"raised in: {', '.join(raised)}",), {"places": raised}))
    return Document(tuple(parts), f"code {code}")


def _status(code: str) -> Record:
    """Return what a verdict with this status means, and its exit code."""
    from refsim.testing.verdicts import KIND_OF, MEANING

    kind = KIND_OF[code]
    entries = (
        Entry("status", code),
        Entry("means", MEANING[code]),
        Entry("exit_code", 0 if kind is None else kind.value, "exit code"),
    )
    return Record(entries, key="status")


def _record(code: str) -> Record:
    """Return the code and its meaning; for a finding also its severity and how to leave it out."""
    from refsim.cli.answers.codes import checks, meaning
    from refsim.ptx.findings.table import STOP

    row = checks().get(code)
    if row is None:
        return Record((Entry("code", code), Entry("means", meaning(code))))
    left_out = f'without=("{code}",)' if row.severity != STOP else "never: it ends the launch"
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
