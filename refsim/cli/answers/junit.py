"""Verdicts as JUnit XML, which CI systems read: a test case for each kernel, with its hashes, flags and seed."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from refsim.errors import RefsimError
from refsim.render.junit import document, element, properties, suite, text

if TYPE_CHECKING:
    from refsim.cli.answers.judged import Judged

_ELEMENT = {"fail": "failure", "not-run": "skipped"}  # other statuses are errors: CI must not show them as green


def junit(all_judged: "Sequence[Judged]", ended: tuple[str, RefsimError] | None = None) -> str:
    """Return one test suite. `ended` is a command and the error that ended it before a kernel ran.

    The status `fail` is a failure. `inexact`, `assumed`, `unsupported` and `timeout` are errors of that type, `error`
    one of the type of its code. A kernel that `--fail-fast` left out is skipped. The text is the output of `verify`.
    """
    cases = [_case(each) for each in all_judged]
    if ended is not None:
        name, error = ended
        inner = properties({"was": " ".join(error.was)}) + _said("error", error.code, error.what, str(error))
        cases.append(element("testcase", inner, classname="refsim", name=name, **_place(error.place)))
    seconds = sum(each.verdict.seconds for each in all_judged)
    return document(suite("refsim verify", cases, time=f"{seconds:.3f}"))


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
    inner = properties(facts)
    if not verdict:
        kind_of, error = _ELEMENT.get(verdict.status, "error"), verdict.error
        kind, said = (error.code, error.what) if error else (verdict.status, each.headline or verdict.status)
        inner += _said(kind_of, kind, said, "\n".join(each.lines()))
    own = {"classname": each.code or "refsim", "name": verdict.kernel, **_place(each.place)}
    return element("testcase", inner, **own, time=f"{verdict.seconds:.3f}")


def _place(place: tuple[str, int | None] | None) -> dict[str, object]:
    return {"file": place[0], "line": place[1]} if place else {}


def _said(name: str, kind: str, message: str, words: str) -> str:
    return element(name, text(words), type=kind, message=message)
