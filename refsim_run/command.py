"""refsim run: a user's program or test suite on the simulated GPU, and a report on it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refsim.cli.delivery import AGREED, FAILED, INTERRUPTED, Answer, answering, require_writable, save
from refsim.cli.devices import arithmetic_field, without_field
from refsim.cli.extents import Positive, Whole
from refsim.cli.names import SM
from refsim.cli.options import Options, argument, option
from refsim.errors import Kind, RefsimError, unknown_code
from refsim.render import Column, Document, Entry, Part, Record, Table, Wording
from refsim.render.junit import document as xml_document
from refsim.render.junit import element, properties, suite, text

if TYPE_CHECKING:
    from refsim.ptx import Arithmetic
    from refsim_run.programs import ProgramRun
    from refsim_run.records import KernelRecord, RunRecord, TestRecord

KERNELS = (
    Column("status", strong=True),
    Column("kernel", of="name"),
    Column("package", drop=2),
    Column("launches", align="right"),
    Column("threads", align="right", drop=1),
    Column(
        "shapes",
        label="grid of block",
        drop=3,
        of=lambda kernel: ", ".join(kernel.shapes[:2]) + (", ..." if len(kernel.shapes) > 2 else ""),
    ),
    Column("target", text=False),
)
SAID = (Column("kind", label=""), Column("code"), Column("kernel", drop=1), Column("where", label="at"), Column("what"))
OPEN = (Column("kernel"), Column("kind", label="bits"), Column("where", label="statement"))
HELD = (
    Column("bytes", align="right"),
    Column("count", label="allocations", align="right"),
    Column("package", drop=1),
    Column("place", label="allocated at"),
)
REFUSED = (Column("name", label="asked for, and not simulated"), Column("times", align="right"))
BY_HOST = (
    Column("name", label="computed by the host or in another order, to other bits perhaps"),
    Column("times", align="right"),
)
TESTS = (Column("test"), Column("bytes", label="bytes left", align="right"), Column("said", label="found, and refused"))
HOST = "(host)"
"""Shown in the place of a kernel for a call of the program itself."""


def document(run: "ProgramRun", *, first_nan: bool = False) -> Document:
    """Return the report of a program; with `first_nan` it also says that there was no NaN."""
    record = run.record
    nothing = (
        f"the program used no GPU: nothing was launched or allocated before it ended with exit code {run.exit_code}"
    )
    known = {entry.key: entry.value for entry in _summary(run)}
    parts: list[Part] = [Wording((nothing,), known) if _did_nothing(run) else Record(_summary(run))]
    if record.kernels:
        parts.append(Table.of(KERNELS, record.kernels, "kernels"))
    said = [row for kernel in record.kernels for row in _said(kernel)] + _of_host(record)
    if first_nan and not any(kernel.nans for kernel in record.kernels):
        said.append(("NaN", "none", "", "", "no launch stored NaN or an infinity"))
    if said:
        parts.append(Table(SAID, tuple(said), "findings"))
    opened = [
        (kernel.name, kind, line)
        for kernel in record.kernels
        for kind, lines in (("open", kernel.inexact), ("assumed", kernel.assumed))
        for line in lines
    ]
    if opened:
        parts.append(Table(OPEN, tuple(opened), "open_bits"))
    if record.refused:
        parts.append(Table(REFUSED, tuple(sorted(record.refused.items())), "refused"))
    if record.by_host:
        parts.append(Table(BY_HOST, tuple(sorted(record.by_host.items())), "by_host"))
    if record.held:
        parts.append(Table.of(HELD, record.held, "held"))
    if record.tests:
        facts = {name: vars(test) for name, test in record.tests.items()}
        parts.append(Wording((_of_tests(record),), facts, key="tests", is_beside=True))
        if more := _tests(record):
            parts.append(Table(TESTS, more, "tests_with_more"))
    return Document(tuple(parts), f"on the simulated GPU: {' '.join(run.command)}")


def _did_nothing(run: "ProgramRun") -> bool:
    """Return whether no process of the program used the simulated GPU or left a record."""
    record = run.record
    said = record.kernels, record.refused, record.by_host, record.held, record.tests, record.found, record.warned
    return not (any(map(bool, said)) or record.allocations or run.silent or run.is_interrupted)


def has_findings(record: "RunRecord") -> bool:
    """Return whether a launch or a call of the program has a finding."""
    return bool(record.found) or any(kernel.findings for kernel in record.kernels)


def rests_on_open_bits(record: "RunRecord") -> bool:
    """Return whether a result may differ from hardware: unspecified bits, results of the host, refused calls."""
    kernels = any(kernel.inexact or kernel.assumed or kernel.refused for kernel in record.kernels)
    return kernels or bool(record.refused or record.by_host)


def _summary(run: "ProgramRun") -> tuple[Entry, ...]:
    record = run.record
    counts = ((word, record.count(word)) for word in ("exact", "assumed", "inexact", "refused", "finding"))
    return (
        Entry("exit_code", run.exit_code, label="program's exit code"),
        Entry("target", record.target),
        Entry("launches", sum(kernel.launches for kernel in record.kernels)),
        *(Entry(f"kernels_{word}", count, label=f"kernels {word}") for word, count in counts),
        Entry("allocations", record.allocations),
        Entry("peak", record.peak_bytes, label="most bytes at once", unit="bytes"),
        Entry("held", sum(each.bytes for each in record.held), label="bytes held at the end", unit="bytes"),
        *((Entry("silent_processes", run.silent, label="processes that left no record"),) if run.silent else ()),
    )


def _said(kernel: "KernelRecord") -> "list[tuple[str, ...]]":
    kinds = {"finding": kernel.findings, "refused": kernel.refused, "warning": kernel.warnings, "NaN": kernel.nans}
    return [(kind, each.code, kernel.name, each.where, each.what) for kind, rows in kinds.items() for each in rows]


def _of_host(record: "RunRecord") -> list[tuple[str, ...]]:
    kinds = {"finding": record.found, "warning": record.warned}
    return [(kind, each.code, HOST, each.where, each.what) for kind, rows in kinds.items() for each in rows]


def _of_tests(record: "RunRecord") -> str:
    found = record.tests.values()
    held = sum(test.held_bytes > 0 for test in found)
    launching = sum(test.launches > 0 for test in found)
    asked = sum(test.asked for test in found)
    return f"{asked} tests asked for the GPU: {launching} launched kernels, {held} left memory allocated"


def _tests(record: "RunRecord") -> tuple[tuple[str, int, str], ...]:
    """Return the tests with findings, refusals or allocated memory."""
    return tuple(
        (name, test.held_bytes, "; ".join((*test.findings, *test.refused)))
        for name, test in record.tests.items()
        if test.findings or test.refused or test.held_bytes
    )


def junit(run: "ProgramRun") -> str:
    """Return a test case for each kernel, each test and the program. A finding is a failure, a refusal an error."""
    cases = [_case("program", " ".join(run.command), "failure" if run.exit_code else "", f"exit code {run.exit_code}")]
    for kernel in run.record.kernels:
        said = [*kernel.findings, *kernel.refused]
        kind = "failure" if kernel.findings else "error" if kernel.refused else ""
        cases.append(_case(kernel.package, kernel.name, kind, "\n".join(each.line for each in said), kernel.status))
    if run.record.found:
        cases.append(_case("program", HOST, "failure", "\n".join(each.line for each in run.record.found)))
    for name, test in run.record.tests.items():
        cases.append(_of_test(name, test))
    return xml_document(suite("refsim run", cases))


def _of_test(name: str, test: "TestRecord") -> str:
    """Return the test case of a test: a failure where the GPU or pytest found something, an error for a refused call."""
    if test.outcome == "skipped" and not test.asked:
        return element("testcase", element("skipped"), classname="test", name=name)
    failed = test.outcome == "failed"
    kind = "failure" if test.findings else "error" if test.refused else "failure" if failed else ""
    said = [*test.findings, *test.refused, *([test.said or "failed"] if failed else [])]
    return _case("test", name, kind, "\n".join(said))


def _case(group: str, name: str, kind: str, words: str, status: str = "") -> str:
    said = element(kind, text(words), message=words.splitlines()[0]) if kind else ""
    return element("testcase", properties({"fidelity": status}) + said, classname=group, name=name)


class RunOptions(Options):
    """The options of `refsim run`."""

    command: tuple[str, ...] = argument("-- COMMAND...", type=click.UNPROCESSED)
    target: str = option("Architecture of the simulated GPU.", type=SM, default="sm_90a")
    policy: str = option("Schedule: eager, lazy or random.", metavar="POLICY", default="eager")
    seed: int = option("Seed of a random schedule.", default=0, type=Whole(0))
    arithmetic: "Arithmetic" = arithmetic_field()
    without: tuple[str, ...] = without_field()
    seconds: float = option("Time limit of a launch.", default=600.0, type=Positive())
    test_seconds: float | None = option("Time limit of each pytest test (default: none).", type=Positive())
    first_nan: bool = option("Run each launch twice, and report where NaN and infinities come from.")
    strict: bool = option("Exit with 5 if a result is unverified or was refused.")
    junit: Path | None = option("Also write JUnit XML.")


@answering(context_settings={"ignore_unknown_options": False})
def command(asked: RunOptions) -> Answer:
    """Run a GPU program without a GPU, and report how much its results can be trusted.

    Python imports of GPU packages load refsim's versions instead, and their kernels run on the simulated GPU with every
    memory access checked. A feature that is not simulated fails with its name. The report says for each kernel if its bits
    are those of a chip. It lists findings, memory that was never freed, and calls that were refused.

    The exit code is 1 if the program failed or a kernel was found wrong.

    \b
      refsim run -- python vector_add.py
      refsim run --target sm_80 --test-seconds 60 -- pytest tests
      refsim run --junit kernels.xml -o report.json -- python -m package.main
    """
    from refsim.ptx import ARITHMETICS, POLICIES
    from refsim.targets import target_named
    from refsim_run.programs import run_program
    from refsim_run.records import Said
    from refsim_run.session import Settings

    if not asked.command:
        raise RefsimError("missing-argument", "there is no command to run", help="refsim run -- python program.py")
    for name, known in (("policy", POLICIES), ("arithmetic", ARITHMETICS)):
        if (value := getattr(asked, name)) not in known:
            raise RefsimError(unknown_code(name), f"no {name} is called {value!r}", help=", ".join(known))
    if asked.junit is not None:
        require_writable(asked.junit)
    target, limit, without = target_named(asked.target).name, asked.test_seconds or 0.0, asked.without
    policy: Any = asked.policy
    settings = Settings(target, policy, asked.seed, asked.seconds, limit, without, asked.arithmetic, asked.first_nan)
    done = run_program(asked.command, settings)
    allowed = " ".join(each.what for kernel in done.record.kernels for each in kernel.warnings)
    unused = [name for name in without if "@" in name and f"waived by {name}:" not in allowed]
    if unused and done.record.kernels:
        done.record.found.append(Said("unused-waiver", f"{', '.join(unused)} allowed no finding", "--without"))
    if asked.junit is not None:
        save(asked.junit, junit(done).encode())
    failed = done.exit_code or has_findings(done.record)
    is_open = rests_on_open_bits(done.record) or done.silent
    inexact = Kind.INCONCLUSIVE.value if asked.strict and is_open else AGREED
    said = document(done, first_nan=asked.first_nan)
    return Answer(said, INTERRUPTED if done.is_interrupted else FAILED if failed else inexact)
