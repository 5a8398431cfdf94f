"""Calls of the functions in a kernel's declaration: their errors are reported as errors of their author.

No exception of such a function, not even `sys.exit(0)`, ends a verification as if the kernel had agreed.
"""

import sysconfig
import traceback
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from refsim.bundled import PACKAGE, PACKAGES
from refsim.errors import Kind, RefsimError
from refsim.kernels import Kernel
from refsim.testing.recipes import spelled

LONGEST = 200
EXPLAINED = (TypeError, ValueError, AttributeError, AssertionError, ImportError, OSError)
LIBRARIES = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}


def called(kernel: Kernel, label: str, function: Callable[..., Any], *arguments: Any, problem: Any = None) -> Any:
    """Return the result of a function of a kernel's declaration; `label` is its name: "oracle".

    An exception becomes a RefsimError that names the function, the test case and the line; a bug of refsim passes. A
    RefsimError only gets a place if it has none (of `run` only a usage error does: a fault belongs to the launch).
    KeyboardInterrupt passes. An AssertionError of `run` is a failure of the kernel. NumPy's warnings about overflow and
    NaN are off, because campaigns consist of them.
    """
    try:
        with np.errstate(all="ignore"):
            return function(*arguments)
    except KeyboardInterrupt:
        raise
    except RefsimError as error:
        if label != "run" or error.kind is Kind.USAGE:
            error.where = _with_line(error) if error.where else f"{label} of kernel {kernel.name}{_at(error)}"
            error.place = error.place or location(error)
        if label != "run":
            error.kind = Kind.USAGE if error.kind in (Kind.FAULT, Kind.INCONCLUSIVE) else error.kind
        raise
    except BaseException as error:
        if is_bug(error):
            raise
        if label != "run" or not isinstance(error, AssertionError):
            raise code_fails(kernel, label, error, problem) from error
        what = f"run of kernel {kernel.name} asserts: {said(error)}"
        where = place(error)
        raise RefsimError("user-code-raised", what, where=where, kind=Kind.FAULT, place=location(error)) from error


def is_bug(error: BaseException) -> bool:
    """Return whether an exception is a bug of refsim: raised in the simulated GPU, or deep in refsim and of no class
    that a wrong argument explains."""
    files = [each.filename for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<")]
    inner = list(takewhile(_is_own, reversed(files)))
    is_deep = len(inner) > 1 and not isinstance(error, EXPLAINED)
    is_possible = isinstance(error, Exception) and not isinstance(error, MemoryError)
    return is_possible and (is_deep or any(Path(file).is_relative_to(PACKAGE / "ptx") for file in inner))


def code_fails(kernel: Kernel, label: str, error: BaseException, problem: Any = None) -> RefsimError:
    """Return the error for an exception in a kernel's own Python code."""
    on = "" if problem is None else f" on {shortened(problem)}"
    if isinstance(error, SystemExit):
        what, help = f"ended the program: sys.exit({error.code!r}){on}", "raise an exception where something is wrong"
    else:
        what, help = f"raised {said(error)}{on}", f"fix {label}: this is neither the kernel nor refsim"
    what = f"{label} of kernel {kernel.name} {what}"
    return RefsimError("user-code-raised", what, where=place(error), help=help, place=location(error))


def shortened(problem: Any) -> str:
    """Return a test case on one line of limited length, whatever its class prints."""
    text = ""
    with suppress(Exception):
        text = spelled(problem)
    text = text or type(problem).__name__
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def said(error: BaseException) -> str:
    """Return an exception on one line: `KeyError: 'y'`."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "(its text cannot be had)"
    return f"{type(error).__name__}: {text}"[:LONGEST].removesuffix(": ")


def place(error: BaseException) -> str:
    """Return the last line of the user's own code in a traceback: `kernels.py:12 in oracle`; "" if there is none."""
    own = _own_frames(error)
    return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""


def location(error: BaseException) -> tuple[str, int] | None:
    """Return (file, line) of that place, for a SyntaxError the line where the parser stopped; None if there is none."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return error.filename, error.lineno
    own = _own_frames(error)
    return (own[-1].filename, own[-1].lineno or 1) if own else None


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<")]
    return [each for each in frames if not is_foreign(each.filename)]


def is_foreign(file: str) -> bool:
    """Return whether a source file belongs to refsim, Python or a library; bundled kernels count as the user's."""
    path = Path(file)
    if any(path.is_relative_to(folder) for folder in PACKAGES):
        return _is_own(file)
    return any(path.is_relative_to(folder) for folder in LIBRARIES)


def _is_own(file: str) -> bool:
    """Return whether a source file belongs to refsim."""
    path = Path(file)
    is_inside = any(path.is_relative_to(folder) for folder in PACKAGES)
    return is_inside and not path.is_relative_to(PACKAGE / "_bundled")


def _at(error: BaseException) -> str:
    where = place(error)
    return f", {where}" if where else ""


def _with_line(error: RefsimError) -> str:
    """Return the place of an error and the user's line that led to it, unless that line raised the error itself."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    return error.where if not is_foreign(innermost.filename) else f"{error.where}{_at(error)}"
