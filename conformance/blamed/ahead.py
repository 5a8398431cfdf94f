"""What needs no GPU, made ahead by processes of their own: the simulator's words of each problem, machine code of each build."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, as_completed, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from typing import Any

from conformance.blamed.subjects import chosen, subject_named
from refsim.blame import BlameSubject, BuiltBy
from refsim.blame.examining import BuildRow, assembled_row
from refsim.blame.running import RunWords, simulated
from refsim.blame.statements import pieces_of
from refsim.errors import RefsimError

_named = lru_cache(maxsize=None)(subject_named)


@dataclass(frozen=True)
class Ahead:
    """What was asked for of one kernel; each `result` waits, and raises the error that its making ended with."""

    subject: BlameSubject
    words: Sequence[Future[RunWords]]
    rows: Sequence[Future[BuildRow]]

    @property
    def waits(self) -> bool:
        return not all(each.done() for each in (*self.words, *self.rows))

    @property
    def models(self) -> list[RunWords]:
        return [each.result() for each in self.words]

    @property
    def assembled(self) -> list[BuildRow]:
        return [each.result() for each in self.rows]


class _Here(Executor):
    """Does at once what it is asked for."""

    def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*given, **named))
        except RefsimError as error:
            done.set_exception(error)
        return done


@contextmanager
def pool(jobs: int) -> Iterator[Executor]:
    """Processes that know nothing of this one's GPU, or none; what they have not begun when it ends is dropped."""
    executor = ProcessPoolExecutor(jobs, get_context("spawn")) if jobs else _Here()
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def ready(waiting: Mapping[str, Ahead]) -> Iterator[str]:
    """Each name once, as soon as all is there that was asked of it."""
    left = dict(waiting)
    while left:
        pending = {each for ahead in left.values() for each in (*ahead.words, *ahead.rows) if not each.done()}
        for name in [name for name, ahead in left.items() if not ahead.waits]:
            yield name
            del left[name]
        if left and pending:
            wait(pending, return_when=FIRST_COMPLETED)


@dataclass(frozen=True)
class Asked:
    """A kernel with its problems, as a process can be told: no problem or kernel travels."""

    name: str
    target: str | None
    problems: int
    first: tuple[int, ...]

    @property
    def subject(self) -> BlameSubject:
        return _named(self.name, self.target, self.problems, self.first)


def ask_all(
    executor: Executor,
    names: Sequence[str],
    target: str | None,
    problems: int,
    builds: Sequence[BuiltBy],
    *,
    runs: bool,
) -> Iterator[tuple[str, Ahead | RefsimError]]:
    """Everything of each kernel: words where it `runs`, and machine code; the error where it has no PTX for the target.

    In the order in which its problems are chosen: some take long to be made.
    """
    found = {executor.submit(chosen if runs else _none, name, target): name for name in names}
    for done in as_completed(found):
        asked = Asked(found[done], target, problems, done.result())
        try:
            numbers = range(len(asked.subject.problems)) if runs else ()
        except RefsimError as error:
            yield asked.name, error
            continue
        words = [executor.submit(_words, asked, number) for number in numbers]
        yield asked.name, Ahead(asked.subject, words, [executor.submit(_row, asked, build) for build in builds])


def _none(name: str, target: str | None) -> tuple[int, ...]:
    return ()


def _words(asked: Asked, number: int) -> RunWords:
    return simulated(asked.subject, asked.subject.text, asked.subject.problems[number])


def _row(asked: Asked, build: BuiltBy) -> BuildRow:
    return assembled_row(asked.subject, build, pieces_of(asked.subject.text).all)
