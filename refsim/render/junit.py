"""JUnit XML, which CI systems read: suites of test cases, with U+FFFD for characters that XML cannot spell."""

import re
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape, quoteattr

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # control characters, lone surrogates


def element(tag: str, inner: str = "", /, **attributes: object) -> str:
    """Return an element whose content is the XML text `inner`."""
    head = tag + "".join(f" {key}={quoteattr(_legal(value))}" for key, value in attributes.items())
    return f"<{head}>{inner}</{tag}>" if inner else f"<{head}/>"


def text(words: str) -> str:
    """Return words as XML text."""
    return escape(_legal(words))


def properties(facts: Mapping[str, object]) -> str:
    """Return the element of a suite's or a case's facts; facts that are "" are left out."""
    rows = [element("property", name=name, value=value) for name, value in facts.items() if value != ""]
    return element("properties", "".join(rows)) if rows else ""


def suite(name: str, cases: Sequence[str], inner: str = "", /, **more: object) -> str:
    """Return one test suite with the numbers of its cases; `inner` stands before them, `more` are attributes."""
    return element("testsuite", "\n".join((inner, *cases, "")), name=name, **numbers(cases), **more)


def numbers(cases: Sequence[str]) -> dict[str, int]:
    """Return the attributes that count cases: how many there are, and those that failed or were skipped."""
    words = {"failures": "<failure", "errors": "<error", "skipped": "<skipped"}
    return {"tests": len(cases), **{name: sum(word in case for case in cases) for name, word in words.items()}}


def document(*suites: str, **attributes: object) -> str:
    """Return the whole document of some suites."""
    root = element("testsuites", "\n".join(("", *suites, "")), **attributes)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{root}\n'


def _legal(words: object) -> str:
    return _ILLEGAL.sub("\ufffd", str(words))
