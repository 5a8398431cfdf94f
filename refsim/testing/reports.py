"""The report of a failed test: verdict, case, place and the command that repeats it, without refsim's own frames."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from refsim.errors import Kind, RefsimError
from refsim.testing.assertions import BitsDiffer, PromiseNotKept
from refsim.testing.replay import write_case
from refsim.testing.runs import describe
from refsim.testing.verdicts import Verdict

HIDDEN = "__tracebackhide__"
NOTE_LINES, NOTE_COLUMNS = 12, 200
HASHES = ("source_sha256", "ptx_sha256", "cubin_sha256", "compiler", "assembler", "target")


def is_ours(error: BaseException) -> bool:
    """Return whether an exception explains itself, so that refsim's frames in its traceback can be hidden."""
    if isinstance(error, RefsimError):
        return error.kind is not Kind.BUG
    return isinstance(error, BitsDiffer | PromiseNotKept)


@contextmanager
def hidden_frames(error: BaseException) -> Iterator[None]:
    """Hide refsim's frames while pytest writes a traceback, also in the exceptions that led to `error`."""
    marked: list[dict[str, Any]] = []
    following: BaseException | None = error
    while following is not None and is_ours(error):
        for names in _modules(following.__traceback__):
            if str(names.get("__name__", "")).startswith(("refsim.", "refsim_run.")) and HIDDEN not in names:
                names[HIDDEN] = True
                marked.append(names)
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)
    shorten_notes(error)
    try:
        yield
    finally:
        for names in marked:
            names.pop(HIDDEN, None)


def _modules(traceback: TracebackType | None) -> Iterator[dict[str, Any]]:
    """Yield the globals of each frame of a traceback."""
    while traceback is not None:
        yield traceback.tb_frame.f_globals
        traceback = traceback.tb_next


def shorten_notes(error: BaseException) -> None:
    """Shorten the notes of an exception: Hypothesis adds the arguments of the failing call, which may be long."""
    for at, note in enumerate(getattr(error, "__notes__", [])):
        lines = [line if len(line) <= NOTE_COLUMNS else f"{line[:NOTE_COLUMNS]}..." for line in str(note).splitlines()]
        more = [f"... and {len(lines) - NOTE_LINES} more lines"] if len(lines) > NOTE_LINES else []
        error.__notes__[at] = "\n".join([*lines[:NOTE_LINES], *more])


def sections(
    error: BaseException, verdicts: Sequence[Verdict], repeat: str, folder: str | None
) -> list[tuple[str, str]]:
    """Return the sections of a report after the traceback, as (title, text)."""
    found = [("refsim: verdict", "\n".join(_with_repeat(verdict, repeat))) for verdict in verdicts if not verdict]
    mismatch, case = getattr(error, "mismatch", None), getattr(error, "case", None)
    if mismatch is not None and hasattr(mismatch, "lines"):
        text = "\n".join([*mismatch.lines(), _case_line(case, str(error), folder) or f"repeat  {repeat}"])
        found.append(("refsim: bits that differ", text))
    elif is_ours(error) and not found:
        found.append(("refsim", _case_line(case, str(error), folder) or f"repeat  {repeat}"))
    return found[-2:]


def _with_repeat(verdict: Verdict, repeat: str) -> list[str]:
    return [*verdict.lines(), *([] if verdict.replay else [f"repeat  {repeat}"])]


def _case_line(case: Any, finding: str, folder: str | None) -> str:
    """Write the replay case of a law's failure and return the line that repeats it; "" if that is impossible."""
    if case is None or folder is None:
        return ""
    kernel, problem, device = case
    if kernel.declared_in is None:
        return ""
    try:
        path = write_case(Path(folder), kernel, problem, describe(device), finding)
    except (OSError, ValueError, RefsimError) as failed:
        return f"no replay case in {folder}: {failed}"
    return f"repeat  refsim replay {path}"


def properties(device: Any, verdicts: Sequence[Verdict]) -> list[tuple[str, str]]:
    """Return a test's properties for JUnit: device, hashes and tools, and each campaign's status, profile and seed."""
    found: dict[str, str] = {}
    if device is not None and hasattr(device, "describe"):
        found |= _facts("refsim", describe(device))
    for verdict in verdicts:
        prefix = f"refsim.{verdict.kernel}"
        found |= _facts(prefix, verdict.device)
        seed = "derandomised" if verdict.seed is None else str(verdict.seed)
        found |= {f"{prefix}.status": verdict.status, f"{prefix}.profile": verdict.profile, f"{prefix}.seed": seed}
        held = {"silicon": "; ".join(verdict.silicon.lines()), "definition": verdict.recomputed.text}
        held["waived"] = "; ".join(f"{name}: {what}" for name, what in verdict.waived.items() if what)
        held["checks"] = ", ".join(verdict.checks) or "none"
        found |= {f"{prefix}.{key}": text for key, text in held.items() if text}
    return list(found.items())


def _facts(prefix: str, facts: Mapping[str, str]) -> dict[str, str]:
    named = {f"{prefix}.{key}": str(facts[key]) for key in HASHES if key in facts}
    return {f"{prefix}.device": str(facts.get("name", "")), **named}
