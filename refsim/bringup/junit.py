"""A bring-up as JUnit XML, the format that build servers read."""

from refsim.bringup.report import DIFFERS, LEFT_OUT, Case, Report
from refsim.render.junit import document, element, numbers, properties, suite, text
from refsim.testing.verdicts import UNSUPPORTED


def junit(report: Report) -> str:
    """Return the XML text: a suite of tests for each suite, a failure for each unexplained difference.

    An explained difference passes with its explanation as output. Unsupported cases and cases that were not run are
    skipped. A case that a bug of refsim prevented from running is an error.
    """
    suites, everything = [], []
    for name in report.suites:
        label, cases = f"simulated {name}" if report.simulated else name, report.of(name)
        written = [_case(case, label) for case in cases]
        suites.append(suite(label, written, properties(report.facts), time=_seconds(cases)))
        everything += written
    return document(*suites, name=report.title, **numbers(everything), time=_seconds(report.cases))


def _seconds(cases: tuple[Case, ...]) -> str:
    return f"{sum(case.seconds for case in cases):.3f}"


def _case(case: Case, label: str) -> str:
    """Return the XML element of one case."""
    lines = "\n".join(case.difference.lines() if case.difference else ([case.note] if case.note else []))
    inner = ""
    if case.unexplained:
        inner = element("failure", text(lines), message=f"{case.differing} of {case.words} words differ")
    elif case.bug:
        inner = element("error", message=case.note)
    elif case.status in (UNSUPPORTED, LEFT_OUT):
        inner = element("skipped", message=f"{case.status}: {case.note}")
    elif case.status == DIFFERS or lines:
        inner = element("system-out", text(lines))
    return element("testcase", inner, classname=label, name=case.name, time=_seconds((case,)))
