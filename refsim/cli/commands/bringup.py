"""refsim bringup: compare a GPU with the model, suite by suite."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from refsim.cli import console
from refsim.cli.campaigns import Division, outcome
from refsim.cli.console import Session
from refsim.cli.delivery import STDOUT, OutputForm, form_of, save, too_long
from refsim.cli.devices import ChosenDevice, need
from refsim.cli.names import Name
from refsim.cli.options import DIRECTORY_PATH, Options, option, with_options
from refsim.cli.progress import reporting
from refsim.errors import RefsimError, counted
from refsim.render import Column, Document, Entry, Part, Record, Table, Wording, rendered
from refsim.sources import MMA_SIM, PTX, XIE

if TYPE_CHECKING:
    from refsim.bringup.report import Case, Report
    from refsim.bringup.state import State
    from refsim.bringup.suites import RunProgress, Suite
    from refsim.device import Device

COLUMNS = (
    Column("status", strong=True, of="shown"),
    Column("suite"),
    Column("case", of="name"),
    Column("words", align="right", drop=2),
    Column("differing", label="differ", align="right"),
    Column("seconds", label="time", unit="s", align="right", drop=3, of=lambda case: f"{case.seconds:.2f}"),
    Column("coverage", text=False),
    Column("note", text=False),
)


class BringupOptions(Options):
    """The options of `refsim bringup`."""

    on: ChosenDevice = ChosenDevice()
    names: tuple[str, ...] = option(
        "conversions, layouts, numerics, special-functions, kernels or discovery (default: all but the last). "
        "May be repeated.",
        "--suite",
        type=Name("suite", "refsim.bringup.suites:SUITES", by="name"),
        metavar="NAME",
    )
    discover: bool = option("Also measure the columns of `numerics list` by probing.")
    exhaustive: str | None = option(
        "all: also compare all 2^32 inputs of each conversion, and digests of every input of the special "
        "functions. fp8: only those of conversions to 8 bits.",
        type=click.Choice(["all", "fp8"]),
        is_flag=False,
        flag_value="all",
    )
    state: Path | None = option("Folder for finished cases.", type=DIRECTORY_PATH, metavar="DIR")
    fresh: bool = option("Ignore the cases of an interrupted run.")
    baseline: Path | None = option("JSON of an earlier run; the report shows what changed.")
    junit: Path | None = option("Also write JUnit XML.")
    division: Division = Division()
    form: str | None = option("text, json, jsonl, csv, md or html.", "--as", metavar="FORM", type=OutputForm())
    output: tuple[str, ...] = option("Write to FILE by its suffix. May be repeated.", "-o", "--output", metavar="FILE")
    citations: bool = option("Cite the sources of the answer.", "--source")


@click.command()
@with_options
@click.pass_obj
def command(session: Session, asked: BringupOptions) -> int:
    """Compare a GPU with the model: conversions, layouts, tensor-core numerics, special functions and kernels.

    For each difference, refsim reports its smallest case and the chip whose arithmetic explains it. Only unexplained
    differences fail. Cases that could not run come first in the report, and the exit code is then 5. An interrupted run
    continues where it stopped. Results of the simulated GPU are labeled simulated. --jobs and --cluster divide the cases
    among GPUs; with --journal, the same command continues an interrupted run.

    \b
      refsim bringup --device cuda -o report.html -o report.json
      refsim bringup --suite numerics --discover
      refsim bringup --suite conversions --exhaustive fp8
      refsim bringup --baseline report.json --junit report.xml
    """
    forms = _planned_outputs(asked)
    need("testing", "hypothesis")
    from refsim.bringup.report import Report, changes_since, read_report
    from refsim.bringup.state import State, facts_of, source_hash
    from refsim.bringup.suites import ALWAYS, suites_of
    from refsim.device.cache import digest

    old = None if asked.baseline is None else read_report(asked.baseline)
    wanted = dict.fromkeys([*(asked.names or ALWAYS), *(["discovery"] if asked.discover else [])])
    suites = suites_of(wanted, asked.exhaustive)
    device = asked.on.opened()
    facts = facts_of(device)
    if asked.division.is_asked_for:
        cases, state = _divided(device, asked, list(wanted), facts), None
    else:
        state = State(asked.state, facts, {suite.name: digest(source_hash(), suite.fingerprint()) for suite in suites})
        if asked.fresh:
            state.clear()
        _tell_kept(state, [suite.name for suite in suites])
        cases = _cases(device, suites, state)
    changes = None if old is None else changes_since(old, cases, facts)
    report = Report(facts, cases, device.is_simulated, changes)
    _deliver(report, forms, asked)
    if state is not None:
        state.clear()
    if report.exit_code:
        console.tell(f"again: {session.command_line}")
    return report.exit_code


# ---- the run ---------------------------------------------------------------------------------------------------------


def _cases(device: "Device", suites: "list[Suite]", state: "State") -> "tuple[Case, ...]":
    """Return every case, kept from an earlier run or run now. An interrupt keeps the finished cases on disk."""
    from refsim.bringup.suites import run_suites

    try:
        with _watched() as watch:
            return tuple(run_suites(device, suites, state, watch))
    except KeyboardInterrupt:
        console.tell(f"interrupted: {len(state)} finished cases are kept in {state.path}; the same command goes on")
        raise


def _divided(device: "Device", asked: BringupOptions, suites: list[str], facts: dict[str, str]) -> "tuple[Case, ...]":
    """Return every case, run by the workers of a division. Finished cases are in its journal, not in a state file."""
    from refsim.campaigns.bringing_up import cases_of, plan_of
    from refsim.campaigns.shards import report

    name = asked.on.name_of(device)
    plan = plan_of(device, name, asked.on.target, suites, asked.exhaustive, facts)
    cases = cases_of(outcome(plan, asked.division, name))
    if asked.division.report is not None:
        save(asked.division.report, report(plan.name, plan.rests_on, [case.to_json() for case in cases]).encode())
    return cases


@contextmanager
def _watched() -> "Iterator[Callable[[RunProgress], None] | None]":
    """Yield a function that shows each step as progress of its suite, or None without a terminal."""
    from refsim.testing.campaign import Progress

    with reporting(sys.stderr) as report:
        if report is None:
            yield None
            return
        yield lambda step: report(Progress("bringup", f"{step.suite} {step.name}", step.done, step.planned, 0, None))


def _tell_kept(state: "State", names: list[str]) -> None:
    kept = sum(len(state.stored.get(name, {})) for name in names)
    if kept:
        console.tell(f"going on: {counted(kept, 'case')} finished already (--fresh forgets them)")
    if state.is_damaged:
        console.tell(f"the finished cases in {state.path} are damaged or were edited; they run again")
    if state.discarded:
        console.tell(f"{state.discarded} finished cases no longer hold: refsim or a probe changed; they run again")


# ---- the answer ------------------------------------------------------------------------------------------------------


def _planned_outputs(asked: BringupOptions) -> list[tuple[str, str | None]]:
    """Return (form, file or None for standard output) of each output. Raises RefsimError before anything runs."""
    planned: list[tuple[str, str | None]] = []
    for name in asked.output or ("-",):
        planned.append((asked.form or form_of(name), None if name in STDOUT else name))
    names = [*(file for _, file in planned if file), *([str(asked.junit)] if asked.junit else [])]
    for name in names:
        if not _can_be_written(Path(name).resolve()):
            raise RefsimError(
                "cannot-write", "no file can be written there", where=name, help="name a file in a folder that exists"
            )
        if sum(Path(each).resolve() == Path(name).resolve() for each in names) > 1:
            raise RefsimError("usage", "two outputs have one name", where=name, help="give each output its own file")
    if any(each == "svg" for each, _ in planned):
        raise RefsimError(
            "form-does-not-fit", "a report is no drawing", where="--as svg", help="--as html has the matrix"
        )
    return planned


def _can_be_written(path: Path) -> bool:
    """Return whether a file can be written under that name, or a pipe or device has it."""
    if os.path.exists(path) and not os.path.isfile(path):
        return not os.path.isdir(path) and os.access(path, os.W_OK)
    return os.path.isdir(path.parent) and os.access(path.parent, os.W_OK) and not too_long(path)


def _deliver(report: "Report", forms: list[tuple[str, str | None]], asked: BringupOptions) -> None:
    """Write the report in each form, and JUnit XML where a file is given."""
    for form, file in forms:
        if file is not None:
            save(Path(file), _body(report, form, None, False, asked.citations)[0].encode())
            continue
        body, hints = _body(report, form, console.width(), console.takes_colour(sys.stdout), asked.citations)
        console.answer(body)
        for hint in hints:
            console.tell(hint)
    if asked.junit is not None:
        from refsim.bringup.html_report import junit

        save(asked.junit, junit(report).encode())
    if all(file is not None for _, file in forms):
        for line in report.missing:
            console.tell(line)
        console.tell(f"{report.title}: {report.verdict}")


def _body(report: "Report", form: str, width: int | None, colour: bool, citations: bool) -> tuple[str, tuple[str, ...]]:
    if form == "html":
        from refsim.bringup.html_report import page

        return page(report), ()
    return rendered(_document(report, form), form, width=width, colour=colour, citations=citations)


def _document(report: "Report", form: str) -> Document:
    """Return the report as a document: one object for JSON, only the matrix for CSV and JSONL."""
    sources = (PTX["cvt, mma, wgmma"], XIE["tables 3 to 8"], MMA_SIM["feature probes"])
    if form == "json":
        return Document((Wording((), report.to_json()),), report.title, sources)
    simulated = (replace(case, suite=f"simulated {case.suite}") if report.simulated else case for case in report.cases)
    matrix = Table.of(COLUMNS, simulated, key="cases")
    if form in ("csv", "jsonl"):
        return Document((matrix,), report.title, sources)
    facts = Record(tuple(Entry(name, value) for name, value in report.facts.items()), key="facts")
    parts: list[Part] = [Wording(report.missing, {}, key="missing")] if report.missing else []
    parts += [Wording((report.title, report.verdict), {}, key="verdict"), facts, matrix]
    parts += [_told(case) for case in report.cases if case.difference or case.status != "pass" or case.parameters]
    if report.changes is not None:
        lines = [f"{change.case}: {change.before} -> {change.now}" for change in report.changes]
        parts.append(Wording(("since the baseline", *(lines or ["nothing changed"])), {}, key="changes"))
    return Document(tuple(parts), report.title, sources)


def _told(case: "Case") -> Wording:
    """Return lines on a case: its difference, why it has no result, or what was discovered."""
    lines = [f"{case.shown}  {case.suite}: {case.name}"]
    if case.parameters:
        lines.append(
            ", ".join(f"{name} {'unseen' if value is None else value}" for name, value in case.parameters.items())
        )
    lines += [case.note] if case.note else []
    lines += case.difference.lines() if case.difference else []
    return Wording(tuple(lines), {}, key=case.key)
