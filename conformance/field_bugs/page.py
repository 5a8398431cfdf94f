"""conformance/reports/field_bugs.md: every bug with the command that shows it and the report that the command prints."""

import contextlib
import io
import os
import re
import runpy
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conformance.field_bugs.catalogue import NAMINGS, ROOT, FieldBug, read_absent, read_chapters
from refsim.cli import main as refsim

PAGE = ROOT / "conformance" / "reports" / "field_bugs.md"
HEAD = """# Field bugs

    python -m conformance.field_bugs

The command above writes this report. It lists bugs of low-precision kernels that were reported in public. Each bug is shown
by a small kernel or test case that was written for this project; no line is copied from the reported kernels. Below each bug
stand the command that shows it and the output of that command.

- Run the commands at the root of the repository. They use the simulated GPU; with a GPU in the machine, add `--device sim`.
- Lines with `-` belong to the wrong kernel. Lines with `+` belong to its correct twin, which passes under the second command.
- The report leaves out what changes from run to run: seconds, hashes, and the recorded hardware results of a verdict.

See also: [mistakes that the tolerances of other projects accept](tolerance.md), [forty mistakes in the kernels of a
newcomer](newcomer.md), and [how to read a finding](../../docs/when-it-fails.md).
"""


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    text: str
    code: int


def said(command: str) -> Said:
    """What `refsim ...` prints, run in this process and in the working directory."""
    words = shlex.split(command)
    if words[0] != "refsim":
        raise ValueError(f"{command!r} is no command of refsim")
    out, errors = io.StringIO(), io.StringIO()
    width = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "132"
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = refsim(on_the_simulator(words[1:]))
    finally:
        os.environ.pop("COLUMNS")
        if width is not None:
            os.environ["COLUMNS"] = width
    return Said(out.getvalue() if out.getvalue().strip() else errors.getvalue(), code)


def on_the_simulator(words: list[str]) -> list[str]:
    """Where there is a GPU, `verify` would take it, and a race or a load out of bounds may go well there."""
    return [*words, "--device", "sim"] if words[0] == "verify" else words


@contextlib.contextmanager
def workplace(bug: FieldBug) -> Iterator[Path]:
    """A folder that looks like the root of the repository, with the files that `made` writes."""
    with tempfile.TemporaryDirectory(prefix="refsim-field-bugs-") as name, contextlib.chdir(name):
        for folder in ("conformance", "gpu"):
            Path(folder).symlink_to(ROOT / folder)
        if bug.made:
            Path("make_files.py").write_text(bug.made, "utf-8")
            runpy.run_path("make_files.py")
        yield Path(name)


def report(text: str) -> list[str]:
    """The part of an answer that is of the bug: of a verdict what stands from its first line to the problem."""
    lines = [line.rstrip() for line in text.splitlines()]
    begins = [at for at, line in enumerate(lines) if re.match(r"(fail|pass|error)\s+\S+ on ", line)]
    if begins:
        ends = [at for at, line in enumerate(lines) if line.startswith(("repeat ", "over all cases "))]
        lines = lines[begins[0] : min([at for at in ends if at > begins[0]], default=len(lines))]
        lines = lines[: lines.index("")] if "" in lines else lines
    if starts := [at for at, line in enumerate(lines) if line.startswith("findings ")]:
        lines = [line for line in lines[starts[0] :] if not line.startswith("argument ")]
    if drawn := [at for at, line in enumerate(lines) if line.startswith("element [")]:
        lines = lines[: drawn[0]]  # the sums of one element, part by part
    while lines and not lines[-1]:
        lines.pop()
    of_time = re.compile(r"^note  no likely cause yet.*\n?(?: +\S.*\n?)*", re.MULTILINE)
    text = of_time.sub("", "\n".join(lines))
    return [re.sub(r", \d+\.\d s,", ",", line) for line in text.splitlines()]


def first_words(text: str) -> str:
    """The line of an answer that says whether all is right."""
    lines = report(text)
    for line in lines:
        if passed := re.match(r"pass +\S+ +(\d+) +", line):
            return f"pass: {passed[1]} cases, every bit equal, no finding"
        if re.match(r"findings +0$|(equal|explained)\b", line):
            return " ".join(line.split())
    return " ".join(lines[0].split()) if lines else ""


def section(bug: FieldBug) -> str:
    """The part of the page that is one bug's."""
    with workplace(bug):
        wrong = said(bug.command)
        right = said(bug.twin) if bug.twin else None
    if (wrong.code == 0) != (bug.named == "right") or (right and right.code != 0):
        raise ValueError(f"{bug.id}: {wrong.text}\n{right.text if right else ''}")
    parts = [f"### {bug.title}", "", f"<!-- {bug.id} -->", " ".join(bug.field.split()), ""]
    parts += [f"Reported: {'; '.join(bug.reports)}. refsim {NAMINGS[bug.named]}.", ""]
    if bug.kernel:
        parts += [f"[`{bug.kernel}`](../../{bug.kernel})", ""]
        parts += [*indented(bug.changed()), ""] if bug.changed() else []
    if bug.made:
        parts += [*indented(bug.made.strip().splitlines()), ""]
    parts += [*indented([f"$ {bug.command}", *report(wrong.text)]), ""]
    if right:
        parts += [*indented([f"$ {bug.twin}", first_words(right.text)]), ""]
    if bug.said:
        parts += [" ".join(bug.said.split()), ""]
    return "\n".join(parts)


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}".rstrip() for line in lines]


def sections_of(page: str) -> dict[str, str]:
    """The sections that a page has, by the bugs they are of."""
    parts = re.split(r"^(?=##)", page, flags=re.MULTILINE)
    return {
        found[1]: part.rstrip("\n") + "\n"
        for part in parts
        if (found := re.search(r"^<!-- (\S+) -->$", part, re.MULTILINE))
    }


def page(sections: dict[str, str]) -> str:
    """The page of these sections, chapter by chapter, with a table in front."""
    chapters = read_chapters()
    bugs = [bug for _, each in chapters for bug in each]
    counts = Counter(bug.named for bug in bugs)
    parts = [HEAD, f"| result | refsim, for {len(bugs)} bugs | bugs |", "|---|---|---:|"]
    parts += [f"| {named} | {what} | {counts[named]} |" for named, what in NAMINGS.items()]
    parts += ["", "| bug | reported | result |", "|---|---|---|"]
    parts += [f"| {bug.title} | {'; '.join(bug.reports)} | {bug.named} |" for bug in bugs]
    parts += [
        "",
        "Classes of bugs that are not listed here:",
        "",
        "| bug | where it is, or why it is not |",
        "|---|---|",
    ]
    parts += [f"| {row['what']} | {row['why']} |" for row in read_absent()]
    for chapter, each in chapters:
        parts += ["", f"## {chapter}", ""]
        parts.append("\n".join(sections[bug.id] for bug in each).rstrip("\n"))
    return "\n".join(parts).rstrip("\n") + "\n"
