"""Codes of errors and findings: what each means, a recorded message, and the modules that raise it."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from refsim.bundled import PACKAGE, PACKAGES
from refsim.errors import code_table, unknown_code
from refsim.ptx.findings.table import CHECKS, STOPS, Check


def codes() -> tuple[str, ...]:
    """Return every code of an error or a finding, sorted."""
    return tuple(sorted((*code_table(), *checks())))


def renamed(code: str) -> str:
    """Return the code that replaces one of refsim 0.1: renamed("bad-header") is "bad-file". "" for any other code."""
    return next((new for new, row in code_table().items() if code in row.get("was", "").split()), "")


def meaning(code: str) -> str:
    """Return what a finding or an error means, in a sentence."""
    return checks()[code].finds if code in checks() else code_table()[code]["means"]


def sample(code: str) -> str:
    """Return a recorded message with this code, "" if none was recorded. An empty line separates those of samples.txt."""
    texts = (PACKAGE / "cli" / "answers" / "samples.txt").read_text("utf-8").rstrip().split("\n\n")
    return next((text for text in texts if text.startswith(f"[{code}] ")), "")


def places(code: str) -> Iterator[str]:
    """Yield each module of refsim that names a code: refsim.files.npz.

    The code may be spelled out, made of what `unknown` or `named` is given, or be that of `missing_extra` or of the
    number checks of `refsim.integers`.
    """
    made = {"out-of-range": r"|\bwhole(?:_numbers?)?\(", "missing-extra": r"|\bmissing_extra\("}
    raised = re.compile(rf'"{code}"|\[{code}\]|\b(?:unknown|named|check_named)\(\s*"([^"]*)"' + made.get(code, ""))
    files = {path for folder in PACKAGES for path in folder.rglob("*.py")}
    for path in sorted(files - {Path(__file__).resolve()}):
        if any(not kind or unknown_code(kind) == code for kind in raised.findall(path.read_text("utf-8"))):
            yield ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


@cache
def checks() -> dict[str, Check]:
    """Return the checks of a launch by the code that their findings carry."""

    return {row.name: row for row in (*STOPS, *CHECKS)}
