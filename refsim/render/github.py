"""Documents as the log of a GitHub workflow: the text, then a workflow command for each notice at its line of code."""

import os
from pathlib import Path

from refsim.render import text
from refsim.render.view import Document, Notice


def write(
    document: Document, *, width: int | None = None, colour: bool = False, citations: bool = False
) -> tuple[str, tuple[str, ...]]:
    """Return the text of the document, then a line `::error file=scale.cu,line=41,title=scale: fail::...` per notice.

    GitHub resolves paths from the root of its checkout (GITHUB_WORKSPACE, else the working directory).
    """
    body, hints = text.write(document, width=width, colour=colour, citations=citations)
    return body + "".join(annotation(notice) + "\n" for notice in document.notices), hints


def annotation(notice: Notice) -> str:
    """Return one notice as a workflow command, with special characters escaped as GitHub expects."""
    properties = {"title": notice.title}
    if notice.file is not None:
        line = {} if notice.line is None else {"line": str(notice.line)}
        properties = {"file": _from_root(notice.file), **line, **properties}
    spelled = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{notice.level} {spelled}::{_message(notice.message)}"


def _from_root(file: Path) -> str:
    root = os.path.realpath(os.environ.get("GITHUB_WORKSPACE") or os.getcwd())
    real = Path(os.path.realpath(file))
    return real.relative_to(root).as_posix() if real.is_relative_to(root) else real.as_posix()


def _message(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _message(words).replace(":", "%3A").replace(",", "%2C")
