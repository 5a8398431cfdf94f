"""Parts that all commands share: --as, -o, --source, and the delivery of an answer."""

import errno
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import click

from refsim.cli import console
from refsim.cli.console import Session
from refsim.cli.names import Name
from refsim.cli.options import with_options
from refsim.errors import Kind, RefsimError, check_named
from refsim.render import FORMS, Document, Notice, Wording, rendered

AGREED, FAILED, INTERRUPTED = 0, Kind.FAULT.value, 130
STDOUT = (None, "-", "/dev/stdout")  # opening /dev/stdout would truncate the file that it leads to
SUFFIXES = {".txt": "text", **{f".{form}": form for form in FORMS if form not in ("text", "github")}}


@dataclass(frozen=True)
class Answer:
    """A document and the exit code that goes with it: 0 agreed, 1 a comparison failed, 5 inconclusive."""

    document: Document
    exit_code: int = AGREED


def answers(
    function: Callable[..., Document | Answer | Iterator[Answer | RefsimError]], result: str = ""
) -> Callable[..., int]:
    """Make a function that returns a Document (or an Answer) the body of a command.

    Adds --as, -o and --source, renders and writes the document, and after a failure prints the command that repeats
    it. A function with several answers returns an iterator of answers and errors; the last one gives the exit code. A
    dataclass that annotates a parameter adds its options first.
    `result` is the field of `asked` that takes the FILE of -o where its suffix is one of arrays.
    """
    means = f"Write to FILE; its suffix selects the form{', or arrays' if result else ''}."

    @click.option("--as", "form", metavar="FORM", help=f"One of {', '.join(FORMS)}.", type=OutputForm())
    @click.option("-o", "--output", metavar="FILE", help=means)
    @click.option("--source", "citations", is_flag=True, help="Cite the sources of the answer.")
    @click.pass_obj
    @functools.wraps(function)
    def run(session: Session, /, form: str | None, output: str | None, citations: bool, **arguments: Any) -> int:
        """Call the function and deliver its answers. Return the exit code."""
        if result and output is not None and Path(output).suffix.lower() in (".npy", ".npz", ".safetensors"):
            if (given := getattr(arguments["asked"], result)) is not None:
                raise RefsimError("usage", f"-o {output} contradicts {given}", help="give one of them")
            arguments["asked"], output = replace(arguments["asked"], **{result: Path(output)}), None
        chosen = form or form_of(output)
        if output is not None and output not in STDOUT:
            require_writable(Path(output))

        def delivered(answer: Answer) -> int:
            """Write one answer, then the command that repeats it unless the answer agreed. Return its exit code."""
            _deliver(answer.document, chosen, output, citations)
            if answer.exit_code != AGREED:
                console.tell(f"again: {session.command_line}")
            return answer.exit_code

        console.notes()
        shared = chosen if output in STDOUT else "text"  # the form of what shares standard output with user code
        try:
            with _prints_held(shared):
                found = function(**arguments)
        except RefsimError as error:
            _annotate(error, chosen)
            raise
        if not isinstance(found, Iterator):
            return delivered(found if isinstance(found, Answer) else Answer(found))
        code = AGREED
        while True:
            with _prints_held(shared):
                each = next(found, None)
            if each is None:
                return code
            if isinstance(each, RefsimError):
                _annotate(each, chosen)
                console.tell_error(each)
                code = each.exit_code
            else:
                code = delivered(each)

    return with_options(run)


def answering(
    group: Any = click, name: str | None = None, *, result: str = "", **settings: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes a function a command that `answers`: the program's own, or one of a group. `settings`
    are those of click.command."""
    return lambda function: group.command(name, **settings)(answers(function, result))


@contextmanager
def _prints_held(form: str) -> Iterator[None]:
    """Give both streams back at the end; send what the user's code prints to standard error unless the form is text."""
    stdout, stderr = sys.stdout, sys.stderr
    with redirect_stdout(stdout if form == "text" else stderr), redirect_stderr(stderr), ExitStack() as stack:
        is_real = stdout is sys.__stdout__ and stderr is sys.__stderr__ and sys.platform == "linux"
        if form != "text" and is_real:
            from ctypes import CDLL

            stdout.flush()
            stack.callback(os.close, kept := os.dup(1))
            stack.callback(os.dup2, kept, 1)
            stack.callback(CDLL(None).fflush, None)  # what C code printed and did not write yet
            os.dup2(2, 1)
        yield


def _annotate(error: RefsimError, form: str) -> None:
    """Print an error as an annotation of GitHub where the form is github."""
    if form == "github":
        from refsim.render.github import annotation

        file, line = (Path(error.place[0]), error.place[1]) if error.place else (None, None)
        console.answer(annotation(Notice(f"refsim: {error.code}", str(error), file, line)) + "\n")


class OutputForm(Name):
    """The name of an output form."""

    def __init__(self) -> None:
        super().__init__("form", "refsim.render:FORMS")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name of the form. Raises RefsimError for an unknown one."""
        check_named("output form", value, FORMS, where="--as")
        return str(value)


def form_of(output: str | None) -> str:
    """Return the form that the suffix of a file selects, text for standard output. Raises RefsimError unknown-suffix."""
    if output in STDOUT:
        return "text"
    suffix = Path(output).suffix.lower()
    if suffix not in SUFFIXES:
        what = f"the suffix {suffix!r} names no output form" if suffix else "the name has no suffix to choose a form by"
        rule = f"suffixes are {', '.join(SUFFIXES)}"
        raise RefsimError("unknown-suffix", what, where=f"-o {output}", rule=rule, help="name the form with --as")
    return SUFFIXES[suffix]


def _deliver(document: Document, form: str, output: str | None, citations: bool) -> None:
    """Write an answer, after the notes of how its files were read."""
    said = console.notes()
    if said:
        first = Wording(said, {"read_as": list(said)}, is_beside=True)
        document = replace(document, parts=(first, *document.parts))
    to_file = output not in STDOUT
    colour = not to_file and console.takes_colour(sys.stdout)
    body, hints = rendered(
        document, form, width=None if to_file else console.width(), colour=colour, citations=citations
    )
    if output is not None and to_file:
        save(Path(output), body.encode())
    else:
        console.answer(body)
    for hint in hints:
        console.tell(hint)


def require_writable(path: Path) -> None:
    """Raise RefsimError for a file that cannot be written, before hours of work are spent on its content."""
    reason = errno.EISDIR if os.path.isdir(path) else 0 if os.path.isdir(path.parent) else errno.ENOENT
    if reason := reason or too_long(path):
        raise RefsimError("cannot-write", f"cannot write: {os.strerror(reason).lower()}", where=str(path))


def too_long(path: Path) -> int:
    """Return ENAMETOOLONG for a name that is too long for a file here, else 0."""
    try:
        os.lstat(path)
    except OSError as problem:
        return errno.ENAMETOOLONG if problem.errno == errno.ENAMETOOLONG else 0
    return 0


def save(path: Path, content: bytes) -> None:
    """Write all of `content` to a file or nothing. Files are replaced; pipes and devices are written to."""
    from refsim.files.access import write_atomically

    def fill(stream: BinaryIO) -> None:
        """Write the content to a stream."""
        stream.write(content)

    try:
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            path.write_bytes(content)
        else:
            write_atomically(path, fill, overwrite=True)
    except BrokenPipeError:
        return
    except OSError as problem:
        reason = (problem.strerror or str(problem)).lower()
        raise RefsimError("cannot-write", f"cannot write: {reason}", where=str(path)) from problem
