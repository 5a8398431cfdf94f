"""The suites of a bring-up, and the run through them: one case after another, each stored on disk before the next."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from refsim.bringup import conversions, layouts, numerics, special_functions
from refsim.bringup.report import DIFFERS, LEFT_OUT, Case, Difference, Task, broken, hashed, outcome, refused
from refsim.bringup.state import State
from refsim.device import Device
from refsim.errors import RefsimError, named
from refsim.kernels import Kernel
from refsim.testing import find_kernels, run_campaign, verdicts
from refsim.testing.kernel_files import bundled_kernels
from refsim.testing.verdicts import PASS, UNSUPPORTED

PROFILE = "quick"
_STATUS = {verdicts.PASS: PASS, verdicts.FAIL: DIFFERS, verdicts.UNSUPPORTED: UNSUPPORTED}


def kernels_fingerprint() -> str:
    """Return the hash of the files that decide the suite's results."""
    folder = bundled_kernels().parent
    return hashed([*folder.glob("*.py"), *folder.glob("kernels/*.cu*")])


def kernel_tasks(device: Device) -> Sequence[Task]:
    """Return a case for each kernel that is part of refsim."""
    files = sorted(bundled_kernels().parent.glob("*bindings.py"))
    return [Task(kernel.name, partial(_run_kernel, kernel, device)) for kernel in find_kernels(files)]


def _run_kernel(kernel: Kernel, device: Device) -> Case:
    """Return the verdict of a kernel's campaign as a case."""
    verdict = run_campaign(kernel, device, profile=PROFILE)
    status = _STATUS.get(verdict.status, LEFT_OUT)
    difference = None
    if status == DIFFERS:
        lines = (f"test case {verdict.problem_text}", *verdict.finding.splitlines())
        difference = Difference(lines, "see above", "what the oracle says")
    inconclusive = verdict.status not in _STATUS
    coverage = f"{verdict.cases} test cases, profile {PROFILE}; promise: {verdict.promise}"
    note = f"{verdict.status}: {verdict.finding}" if inconclusive else verdict.finding if status == UNSUPPORTED else ""
    return outcome(
        status, words=verdict.elements, differing=verdict.differing, coverage=coverage, difference=difference, note=note
    )


@dataclass(frozen=True)
class Suite:
    """A suite: its cases on a device, and the hash of the files (in addition to refsim) that decide its results."""

    name: str
    summary: str
    tasks: Callable[[Device], Sequence[Task]]
    fingerprint: Callable[[], str]


SUITES = (
    Suite("conversions", "every cvt, over all its inputs", conversions.tasks, conversions.fingerprint),
    Suite("layouts", "the thread and register of each element", layouts.tasks, layouts.fingerprint),
    Suite("numerics", "what tensor cores return", numerics.tasks, numerics.fingerprint),
    Suite("special-functions", "what .approx returns", special_functions.tasks, special_functions.fingerprint),
    Suite("kernels", "compiled kernels against their oracles", kernel_tasks, kernels_fingerprint),
    Suite("discovery", "how tensor cores add, found by probing", numerics.discovery_tasks, numerics.fingerprint),
)
ALWAYS = ("conversions", "layouts", "numerics", "special-functions", "kernels")


def suite_named(name: str) -> Suite:
    """Return the suite of that name; raise with the nearest name for an unknown one."""
    return named("suite", name, {suite.name: suite for suite in SUITES})


def suites_of(names: Iterable[str], extent: str | None) -> list[Suite]:
    """Return the suites of some names, over whole input spaces where `extent` asks for them. Raises RefsimError for an
    unknown name, and for an extent that none of the suites has, as fp8 for layouts."""
    plain = [suite_named(name) for name in names]
    found = [exhaustively(suite, extent) for suite in plain]
    if extent is not None and all(one is other for one, other in zip(found, plain, strict=True)):
        what = f"--exhaustive {extent} asks nothing more of {', '.join(suite.name for suite in plain)}"
        rule = "conversions have whole input spaces (fp8, all), and special-functions (all)"
        raise RefsimError("usage", what, rule=rule)
    return found


def exhaustively(suite: Suite, extent: str | None) -> Suite:
    """Return the suite over whole input spaces: conversions by the model ("all", "fp8"), special functions by digests
    ("all").

    Other suites, and every suite for None, are returned unchanged. Finished cases count only for their extent.
    """
    exhaustible: tuple[Callable[..., Sequence[Task]], ...] = (conversions.tasks, special_functions.tasks)
    found = next((each for each in exhaustible[: 1 if extent == "fp8" else 2] if each is suite.tasks), None)
    if extent is None or found is None:
        return suite
    tasks = partial(found, exhaustive=extent)
    return replace(suite, tasks=tasks, fingerprint=lambda: f"{suite.fingerprint()} {extent}")


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run: this case, its number `done` of `planned`, and whether its result was kept from before."""

    suite: str
    name: str
    done: int
    planned: int
    kept: bool


def run_suites(
    device: Device, suites: Sequence[Suite], state: State, on_step: Callable[[RunProgress], None] | None = None
) -> Iterator[Case]:
    """Run the cases that `state` does not hold yet; yield all cases in order, each stored before the next begins."""
    planned = [(suite, task) for suite in suites for task in tasks_of(suite, device)]
    for number, (suite, task) in enumerate(planned):
        known = state.find(suite.name, task.name)
        if on_step is not None:
            on_step(RunProgress(suite.name, task.name, number, len(planned), known is not None))
        if known is None:
            known = timed(suite, task)
            state.keep(known)
        yield known


def tasks_of(suite: Suite, device: Device) -> Sequence[Task]:
    """Return the cases of a suite; a suite that cannot list them is one case with the reason."""
    try:
        return suite.tasks(device)
    except RefsimError as error:
        found = refused(error)

        def run() -> Case:
            return replace(found, suite=suite.name, name="all")

        return [Task("all", run)]


def timed(suite: Suite, task: Task) -> Case:
    """Run one case and return it with its time; an error becomes a case too."""
    began = time.perf_counter()
    try:
        case = task.run()
    except RefsimError as error:
        case = refused(error)
    except Exception as error:  # a long run goes on to the next case; the report ends with the exit code of a bug
        case = broken(error)
    return replace(case, suite=suite.name, name=task.name, seconds=round(time.perf_counter() - began, 3))
