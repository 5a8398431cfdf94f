"""One attempt under watch: at most 10 seconds, at most 1 GB more than before, and nothing raised but a RefsimError."""

import contextlib
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from refsim.errors import Kind, RefsimError

SECONDS = 10.0
SLOW = "slower than 10 s"
MEMORY_BYTES = 1 << 30


@dataclass(frozen=True)
class Finding:
    """What should not have happened: `subject` and `index` draw the input again."""

    subject: str
    index: int
    what: str


class TooSlow(BaseException):
    """Raised by the alarm; not an Exception, so that nothing takes it for an error of its own."""


def _ring(number: int, frame: FrameType | None) -> None:
    raise TooSlow


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """The memory that this process may have from here on: what it has, and MEMORY_BYTES."""
    with open("/proc/self/statm", encoding="ascii") as file:
        base = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, _ring)
    resource.setrlimit(resource.RLIMIT_AS, (base + MEMORY_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGALRM, handler)


def attempt(subject: str, index: int, act: Callable[[], object]) -> Finding | None:
    """What is wrong with what `act` did; `act` returns a text that says what it saw, or raises a RefsimError.

    On a busy machine 10 seconds pass with little done: what was slow is tried again with six times as long, and counts
    where it worked for more than 10 seconds, or waited to the end.
    """
    what = _tried(act, SECONDS)
    if what == SLOW:
        before = _worked()
        what = _tried(act, 6 * SECONDS)
        what = what or (SLOW if _worked() - before > SECONDS else "")
    return Finding(subject, index, what) if what else None


def _worked() -> float:
    """Seconds of processor that this process and its children had."""
    return sum(os.times()[:4])


def _tried(act: Callable[[], object], seconds: float) -> str:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    started = time.monotonic()
    try:
        answer = act()
        what = answer if isinstance(answer, str) else ""
    except RefsimError as error:
        what = _wrong_with(error)
    except TooSlow:
        what = SLOW
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {str(error)[:200]} ({last.filename.rpartition('/')[2]}:{last.lineno})"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return what or (SLOW if time.monotonic() - started > seconds else "")


def _wrong_with(error: RefsimError) -> str:
    text = str(error)
    if error.kind is Kind.BUG or not text.startswith(f"[{error.code}] "):
        return f"no error of the input: {text[:200]}"
    return ""
