"""A bring-up as JUnit XML, the format that build servers read."""

import re
from xml.sax.saxutils import escape, quoteattr

from refsim.bringup.report import DIFFERS, LEFT_OUT, Case, Report
from refsim.testing.verdicts import UNSUPPORTED

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report) -> str:
    """Return the XML text: a suite of tests for each suite, a failure for each unexplained difference.

    An explained difference passes with its explanation as output. Unsupported cases and cases that were not run are
    skipped. A case that a bug of refsim prevented from running is an error.
    """
    suites = "".join(_suite(report, name) for name in report.suites)
    counts = _totals(report.cases)
    head = '<?xml version="1.0" encoding="utf-8"?>'
    return f"{head}\n<testsuites name={_attribute(report.title)} {counts}>\n{suites}</testsuites>\n"


def _suite(report: Report, name: str) -> str:
    cases = report.of(name)
    label = f"simulated {name}" if report.simulated else name
    facts = "".join(
        f"    <property name={_attribute(key)} value={_attribute(value)}/>\n" for key, value in report.facts.items()
    )
    body = "".join(_case(case, label) for case in cases)
    return (
        f"  <testsuite name={_attribute(label)} {_totals(cases)}>\n   <properties>\n{facts}   </properties>\n{body}"
        "  </testsuite>\n"
    )


def _totals(cases: tuple[Case, ...]) -> str:
    failures = sum(case.unexplained for case in cases)
    errors = sum(case.bug for case in cases)
    skipped = sum(case.status in (UNSUPPORTED, LEFT_OUT) for case in cases) - errors
    seconds = sum(case.seconds for case in cases)
    return f'tests="{len(cases)}" failures="{failures}" errors="{errors}" skipped="{skipped}" time="{seconds:.3f}"'


def _case(case: Case, label: str) -> str:
    """Return the XML element of one case."""
    head = f'   <testcase classname={_attribute(label)} name={_attribute(case.name)} time="{case.seconds:.3f}"'
    lines = "\n".join(case.difference.lines() if case.difference else ([case.note] if case.note else []))
    if case.unexplained:
        message = f"{case.differing} of {case.words} words differ"
        return f"{head}>\n    <failure message={_attribute(message)}>{_text(lines)}</failure>\n   </testcase>\n"
    if case.bug:
        return f"{head}>\n    <error message={_attribute(case.note)}/>\n   </testcase>\n"
    if case.status in (UNSUPPORTED, LEFT_OUT):
        return f"{head}>\n    <skipped message={_attribute(f'{case.status}: {case.note}')}/>\n   </testcase>\n"
    if case.status == DIFFERS or lines:
        return f"{head}>\n    <system-out>{_text(lines)}</system-out>\n   </testcase>\n"
    return f"{head}/>\n"


def _text(content: str) -> str:
    """Return escaped text, with ? for characters that XML 1.0 cannot hold."""
    return escape(_FORBIDDEN.sub("?", content))


def _attribute(content: str) -> str:
    return quoteattr(_FORBIDDEN.sub("?", content).replace("\n", " "))
