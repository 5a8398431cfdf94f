"""Verdicts as JUnit XML, which CI systems read: a test case for each kernel, with its hashes, flags and seed."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from refsim.errors import RefsimError

if TYPE_CHECKING:
    from refsim.cli.answers.judged import Judged

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENT = {"fail": "failure", "not-run": "skipped"}  # other statuses are errors: CI must not show them as green


def junit(all_judged: "Sequence[Judged]", ended: tuple[str, RefsimError] | None = None) -> str:
    """Return one test suite. `ended` is a command and the error that ended it before a kernel ran.

    The status `fail` is a failure. `inexact`, `assumed`, `unsupported` and `timeout` are errors of that type, `error`
    one of the type of its code. A kernel that `--fail-fast` left out is skipped. The text is the output of `verify`.
    """
    cases = [_case(each) for each in all_judged]
    if ended is not None:
        name, error = ended
        where = f" file={attribute(error.place[0])} line={attribute(str(error.place[1]))}" if error.place else ""
        cases.append(
            f"<testcase classname={attribute('refsim')} name={attribute(name)}{where}>"
            f"{_properties({'was': ' '.join(error.was)})}{_said('error', error.code, error.what, str(error))}</testcase>"
        )
    return suite("refsim verify", cases, f' time="{sum(each.verdict.seconds for each in all_judged):.3f}"')


def suite(name: str, cases: Sequence[str], more: str = "") -> str:
    """Return the document of one test suite with the numbers of its cases; `more` holds further attributes."""
    failures, errors, skipped = (sum(f"<{word}" in case for case in cases) for word in ("failure", "error", "skipped"))
    head = (
        f'<testsuite name="{name}" tests="{len(cases)}" failures="{failures}" errors="{errors}" '
        f'skipped="{skipped}"{more}>'
    )
    body = "\n".join(cases)
    return f'<?xml version="1.0" encoding="utf-8"?>\n<testsuites>\n{head}\n{body}\n</testsuite>\n</testsuites>\n'


def _case(each: "Judged") -> str:
    """Return the test case of a verdict, with its facts as properties."""
    verdict = each.verdict
    facts: Mapping[str, object] = {
        "status": verdict.status,
        "profile": verdict.profile,
        "seed": "" if verdict.seed is None else verdict.seed,
        "cases": verdict.cases,
        "elements": verdict.elements,
        "differing": verdict.differing,
        "promise": verdict.promise,
        "replay": verdict.replay,
        "silicon": "; ".join(verdict.silicon.lines()),
        "definition": verdict.recomputed.text,
        "waived": "; ".join(f"{name}: {what}" for name, what in verdict.waived.items() if what),
        "was": " ".join(verdict.error.was) if verdict.error else "",
        "checks": ", ".join(verdict.checks) or "none",
        **verdict.device,
    }
    inner = _properties(facts)
    if not verdict:
        element, error = _ELEMENT.get(verdict.status, "error"), verdict.error
        kind, said = (error.code, error.what) if error else (verdict.status, each.headline or verdict.status)
        inner += _said(element, kind, said, "\n".join(each.lines()))
    where = f" file={attribute(each.place[0])} line={attribute(str(each.place[1]))}" if each.place else ""
    return (
        f"<testcase classname={attribute(each.code or 'refsim')} name={attribute(verdict.kernel)}{where} "
        f'time="{verdict.seconds:.3f}">{inner}</testcase>'
    )


def _properties(facts: Mapping[str, object]) -> str:
    rows = [
        f"<property name={attribute(name)} value={attribute(str(value))}/>"
        for name, value in facts.items()
        if value != ""
    ]
    return f"<properties>{''.join(rows)}</properties>" if rows else ""


def _said(element: str, kind: str, message: str, text: str) -> str:
    return f"<{element} type={attribute(kind)} message={attribute(message)}>{escape(legal(text))}</{element}>"


def attribute(words: str) -> str:
    """Return the words as a quoted attribute."""
    return quoteattr(legal(words))


def legal(words: str) -> str:
    """Return the words with U+FFFD for characters that XML cannot spell: control characters and lone surrogates."""
    return _ILLEGAL.sub("\ufffd", words)
