"""The answer of `refsim blame`: the verdict, an entry for each build, and the smallest PTX that shows a difference."""

from typing import TYPE_CHECKING, Any

from refsim.render import Cell, Column, Table, Wording

if TYPE_CHECKING:
    from refsim.blame import Blame, Shrunk
    from refsim.blame.examining import BuildRow

BUILDS = (
    Column("build"),
    Column("level", "-O", align="right"),
    Column("state", "words", strong=True),
    Column("problems", align="right", drop=2),
    Column("registers", align="right", drop=3),
    Column("from", "from", drop=5),
    Column("cubin_sha256", text=False),
    Column("first", "first difference or refusal", drop=1),
)


def said(found: "Blame", older: tuple[str, ...] = ()) -> Wording:
    """Return the verdict and its reasons; `older` holds lines about ptxas releases that cannot read the text."""
    from refsim.blame.examining import ASSEMBLED, BLAME_MEANING, NOT_BUILT

    subject, made = found.subject, [row for row in found.rows if row.state in (ASSEMBLED, NOT_BUILT)]
    lines = [f"{subject.name}: {found.verdict}: {BLAME_MEANING[found.verdict]}"]
    if found.verdict == "ptxas":
        lines += [f"  blamed: {', '.join(_named(row) for row in found.culprits)}"]
    if found.verdict in ("not-run", "simulated"):
        lines += [f"  {sum(row.cubin is not None for row in made)} of {len(made)} builds assembled"]
    elif found.rows:
        lines += [f"  {len(subject.problems)} test case{'s' if len(subject.problems) > 1 else ''} of one PTX"]
    if found.never_launched:
        lines += [f"  of its {len(subject.entries)} entries no test case launched {', '.join(found.never_launched)}"]
    lines += [f"  {line}" for line in older]
    lines += [f"  {line}" for text in found.because for line in text.splitlines()]
    return Wording(tuple(lines), facts(found))


def facts(found: "Blame") -> dict[str, Any]:
    """Return the facts of a verdict for JSON."""
    return {
        "subject": found.subject.name,
        "verdict": found.verdict,
        "blamed": [_named(row) for row in found.culprits],
        "because": list(found.because),
        "launched": sorted(found.launched),
        "never_launched": list(found.never_launched),
        "problems": [found.subject.spelled(problem) for problem in found.subject.problems],
        **found.facts,
    }


def table(found: "Blame") -> Table:
    """Return a table with an entry for each ptxas and optimization level."""
    total = len(found.subject.problems)
    rows: list[tuple[Cell, ...]] = []
    for row in found.rows:
        agreeing = f"{total - len(row.differing)} of {total}" if row.has_run else ""
        registers = "" if row.cubin is None or row.cubin.registers is None else row.cubin.registers
        sha256, brought = ("", "") if row.cubin is None else (row.cubin.sha256, row.cubin.assembler_from)
        level = "" if row.build.level is None else row.build.level
        label = f"{row.build.label}, edited" if row.build.is_edited and row.build.takes_any_text else row.build.label
        rows.append((label, level, row.state, agreeing, registers, brought, sha256, row.first))
    return Table(BUILDS, tuple(rows), key="builds")


def smallest(case: "Shrunk | None", seconds: float) -> Wording:
    """Return the smallest test case and PTX that still show the difference, ready to send to its maintainers."""
    if case is None:
        text = "not shrunk: the difference did not show again, or not without a finding of the simulator"
        return Wording((text,), {"shrunk": False}, is_beside=True)
    level = "" if case.build.level is None else f" -O{case.build.level}"
    lines = [
        f"smallest that shows it: {case.problem}, {case.candidate.instructions} instructions, {case.build.label}{level}",
        f"  {case.first}",
    ]
    if not case.build.takes_any_text:
        lines += ["  the machine code was given: only the launch could be shrunk"]
    elif not case.is_smallest:
        lines += [f"  the time ended first: --seconds {seconds:g} was the limit"]
    if case.build.is_edited and case.edited:
        lines += ["  edited to:", *(f"    {line.strip()}" for line in case.edited.splitlines())]
    lines += ["", *case.text.splitlines()]
    record = {
        "shrunk": True,
        "problem": case.problem,
        "instructions": case.candidate.instructions,
        "build": case.build.label,
        "level": case.build.level,
        "first": case.first,
        "is_smallest": case.is_smallest,
        "edited": case.edited,
        "ptx": case.text,
        "cubin_sha256": case.cubin.sha256,
    }
    return Wording(tuple(lines), record, key="smallest", is_beside=True)


def _named(row: "BuildRow") -> str:
    return row.build.label if row.build.level is None else f"{row.build.label} -O{row.build.level}"
