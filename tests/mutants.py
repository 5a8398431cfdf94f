"""Single edits of refsim's source, each with the tests that must fail on it: `make mutants`, or `python -m tests.mutants`.

The edits are rows of mutants.toml beside this file. Each is a shard of a campaign: it is made in a copy of the tree, and only the
tests that the row names run there. A mutant is killed where one fails that passes without the edit; one that cannot even be
collected shows nothing and counts as broken. A row may say why no test can see it (`survives`): it counts as one that lives, with
that reason beside it. Prints which test failed first; ends with 1 unless all are killed that no row excuses. With --page the
verdicts are kept in a file beside the report, each with a digest of its edit, and the tables of the report are made of it: an
edit that changed since, or is new, counts as not tried.
"""

import hashlib
import json
import platform
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import click

from refsim.campaigns.shards import CampaignPlan, Shard, report
from refsim.cli.campaigns import Division, outcome
from refsim.cli.options import with_options
from refsim.errors import RefsimError
from tests.mutant_trials import KILLED, ROOT, shared_copies, sources_of

ROWS = ROOT / "tests/mutants.toml"
PAGE = ROOT / "conformance/reports/mutants.md"
VERDICTS = ROOT / "conformance/reports/mutants.json"
NOT_TRIED = "not tried"


@dataclass(frozen=True)
class Mutant:
    """One edit: `old`, which stands once in `file`, becomes `new`; some test of `tests` must then fail."""

    name: str
    topic: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    survives: str = ""

    @property
    def area(self) -> str:
        """The folder whose rules the edit breaks: ptx/checks, formats; `refsim` for a file beside them, `refsim_run`."""
        parts = Path(self.file).parts[:-1]
        if parts[0] == "refsim_run":
            return parts[0]
        return "/".join(parts[1:3] if parts[1:2] == ("ptx",) else parts[1:2]) or parts[0]

    @property
    def digest(self) -> str:
        """What a verdict on the edit rests on: the file and both texts."""
        return hashlib.sha256("\0".join((self.file, self.old, self.new)).encode()).hexdigest()[:12]

    def faults(self, tree: Path) -> Iterator[str]:
        """What keeps this row from being tried in a tree."""
        file = tree / self.file
        count = file.read_text("utf-8").count(self.old) if file.is_file() else 0
        if count != 1:
            yield f"{self.name}: {self.old!r} stands {count} times in {self.file}"
        if self.old == self.new:
            yield f"{self.name}: changes nothing"
        if not self.tests:
            yield f"{self.name}: names no test"
        for test in self.tests:
            path, _, function = test.partition("[")[0].partition("::")
            if not (tree / path).is_file() or f"def {function}" not in (tree / path).read_text("utf-8"):
                yield f"{self.name}: there is no {test}"


def mutants() -> tuple[Mutant, ...]:
    """The rows, in the order of the file."""
    topics = tomllib.loads(ROWS.read_text("utf-8"))
    return tuple(
        Mutant(name, topic, row["file"], row["old"], row["new"], tuple(row["tests"]), row.get("survives", ""))
        for topic, rows in topics.items()
        for name, row in rows.items()
    )


def kept(rows: Sequence[Mutant]) -> dict[Mutant, str]:
    """The kept verdict of each row; one on another edit does not count."""
    stored = json.loads(VERDICTS.read_text("utf-8"))
    verdicts = {row: stored.get(row.name, NOT_TRIED).split(" ", 1) for row in rows}
    return {row: each[1] if each[0] == row.digest else NOT_TRIED for row, each in verdicts.items()}


def keep(rows: Sequence[Mutant], verdicts: dict[Mutant, str]) -> None:
    """Keep verdicts, and those of other rows that still stand; write the tables of the report anew."""
    found = kept(rows) | {row: verdict.partition(" by ")[0] for row, verdict in verdicts.items()}
    stored = {row.name: f"{row.digest} {verdict}" for row, verdict in found.items() if verdict != NOT_TRIED}
    VERDICTS.write_text(json.dumps(stored, indent=0, sort_keys=True) + "\n", "utf-8")
    renewed(PAGE, table(kept(rows)))


def table(verdicts: dict[Mutant, str]) -> str:
    """Killed and tried of each area, what was not tried, then what lives, as Markdown."""
    areas: dict[str, list[Mutant]] = {}
    for mutant in verdicts:
        areas.setdefault(mutant.area, []).append(mutant)
    areas = dict(sorted(areas.items())) | {"all": list(verdicts)}
    lines = [
        "| area | killed | of | share | change nothing | share of the others | not tried |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for area, members in areas.items():
        rows = [row for row in members if verdicts[row] != NOT_TRIED]
        killed = sum(verdicts[row].startswith(KILLED.split()[0]) for row in rows)
        alike = sum(bool(row.survives) and not verdicts[row].startswith(KILLED.split()[0]) for row in rows)
        share = f"{100 * killed / len(rows):.1f} %" if rows else ""
        of_others = f"{100 * killed / (len(rows) - alike):.1f} %" if len(rows) > alike else ""
        untried = len(members) - len(rows) or ""
        lines.append(f"| {area} | {killed} | {len(rows)} | {share} | {alike or ''} | {of_others} | {untried} |")
    alive = {row: each for row, each in verdicts.items() if not each.startswith((KILLED.split()[0], NOT_TRIED))}
    if alive:
        lines += ["", "| what lives | file | edit | why |", "|---|---|---|---|"]
    for mutant, verdict in alive.items():
        edit = f"`{mutant.old}` becomes `{mutant.new}`".replace("|", "\\|")
        lines.append(f"| {mutant.name} | `{mutant.file}` | {edit} | {mutant.survives or verdict} |")
    return "\n".join(lines)


def renewed(page: Path, text: str) -> None:
    """A report whose tables, between its two marks, are these."""
    begin, end = "<!-- tables -->\n", "<!-- end of tables -->"
    before, _, rest = page.read_text("utf-8").partition(begin)
    page.write_text(f"{before}{begin}{text}\n{end}{rest.partition(end)[2]}", "utf-8")


def plan_of(rows: Sequence[Mutant], tree: Path) -> CampaignPlan:
    """A shard for each edit, in the order of the file; what it rests on is every file of the tree."""
    sources = sources_of(tree)
    shards = [
        Shard(
            row.name,
            0,
            "tests.mutant_trials:trial",
            json.dumps(
                {
                    "tree": str(tree),
                    "sources": sources,
                    "file": row.file,
                    "old": row.old,
                    "new": row.new,
                    "tests": "\n".join(row.tests),
                }
            ),
        )
        for row in rows
    ]
    facts = {name: version(name) for name in ("hypothesis", "ml_dtypes", "numpy", "pytest")}
    facts |= {"python": platform.python_version(), "sources": sources}
    return CampaignPlan("mutants", tuple(shards), facts)


@click.command(help=__doc__.partition("\n")[0])
@click.argument("names", nargs=-1)
@click.option("--page", is_flag=True, help=f"Keep the verdicts and write the tables of {PAGE.relative_to(ROOT)}.")
@click.option("--new", is_flag=True, help="Only edits without a kept verdict.")
@click.option("--tables", is_flag=True, help="Try nothing: write the tables of the kept verdicts.")
@with_options
def command(names: tuple[str, ...], page: bool, new: bool, tables: bool, division: Division) -> None:
    """NAMES are edits, areas or topics; all if none is named."""
    rows = mutants()
    if tables:
        return keep(rows, {})
    chosen = [row for row in rows if not names or {row.name, row.area, row.topic} & {*names}]
    if new:
        chosen = [row for row, verdict in kept(chosen).items() if verdict == NOT_TRIED]
    faults = [fault for mutant in chosen for fault in mutant.faults(ROOT)]
    if faults or not chosen:
        raise click.UsageError("\n".join(faults) or f"no mutant, area or topic is called {' or '.join(names)}")
    plan = plan_of(chosen, ROOT)
    with shared_copies(ROOT):
        found = outcome(plan, division, "sim")
    records = [{"mutant": row.name, **found[row.name][0]} for row in chosen]
    verdicts = {row: record["verdict"] for row, record in zip(chosen, records, strict=True)}
    if division.report:
        division.report.write_text(report(plan.name, plan.rests_on, records), "utf-8")
    for row, verdict in verdicts.items():
        click.echo(f"| {row.area} | {row.name} | `{row.file}` | {verdict} |")
    text = table(verdicts)
    click.echo(f"\n{text}")
    if page:
        keep(rows, verdicts)
    sys.exit(any(not verdict.startswith(KILLED) and not row.survives for row, verdict in verdicts.items()))


def main() -> None:
    try:
        command()
    except RefsimError as error:
        click.echo(error, err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
