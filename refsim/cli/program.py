"""The program: a group that loads a command when it is used, and turns every failure into four lines."""

import gc
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from refsim.cli import console
from refsim.cli.console import Session
from refsim.cli.delivery import INTERRUPTED
from refsim.cli.names import completions
from refsim.cli.registry import COMMANDS, SECTIONS, Group
from refsim.errors import Kind, RefsimError, internal_error, unknown

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

RULE = "an exit code is refsim's to give: code that ends the program shows nothing"
ENDS = ("_exit", "execv", "execve")  # all other functions of os.exec* call these
HELP = "raise an exception where something is wrong"


def program_ended(by: str) -> RefsimError:
    """Return the error for user code that called `by` to end the program."""
    return RefsimError("program-ended", f"Python code that refsim ran called {by}", rule=RULE, help=HELP)


@contextmanager
def exits_held(*, for_good: bool) -> Iterator[None]:
    """Make functions of os that end the program raise `program-ended` meanwhile, in all threads. Child processes still
    end as they like.

    for_good: keep it so, for code that runs while the interpreter ends, and let C's exit end with `program-ended` too.
    """
    held, process = {name: getattr(os, name) for name in ENDS}, os.getpid()

    def refuse(name: str, *given: Any) -> None:
        """Raise `program-ended` in this process; end a child process."""
        if os.getpid() != process:
            held[name](*given)
        raise program_ended(f"os.{name}({', '.join(map(repr, given))})")

    vars(os).update({name: partial(refuse, name) for name in ENDS})
    if for_good and sys.platform == "linux":
        _hold_c_exit(held["_exit"])
    try:
        yield
    finally:
        if not for_good:
            vars(os).update(held)


def _hold_c_exit(leave: Callable[[int], Any]) -> None:
    """Make C's exit end this process with `program-ended` until Python itself ends; only GNU libc can drop a handler."""
    import atexit
    import ctypes

    libc, held, key = ctypes.CDLL(None), [os.getpid()], ctypes.c_char()

    def end(_: Any) -> None:
        if os.getpid() in held:
            console.tell_error(program_ended("exit of the C library"))
            leave(Kind.USAGE.value)

    handler = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(end)

    def release(_: Any = handler) -> None:  # the default keeps the handler in memory
        held.clear()
        libc.__cxa_finalize(ctypes.byref(key))  # calls the handler, which does nothing now, and drops it

    if hasattr(libc, "gnu_get_libc_version"):
        libc.__cxa_atexit(handler, None, ctypes.byref(key))
        atexit.register(release)  # runs after all handlers that the user's code registers
        os.register_at_fork(after_in_child=release)


# With Python's own thresholds the collector takes a third of the time that reading a long PTX text needs.
COLLECTED_EVERY = (50_000, 20, 20)


class CommandLine(Group):
    """A group that knows its commands from the registry and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the registry."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the imported command of a name, or None."""
        return COMMANDS[cmd_name].load(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands of each section with their summaries."""
        margin = max(map(len, COMMANDS))
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(f"{name:{margin}}", listing.summary) for name, listing in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Return commands and options that begin with `incomplete`."""
        found = completions(((name, listing.summary) for name, listing in COMMANDS.items()), incomplete)
        return found + click.Command.shell_complete(self, ctx, incomplete)


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        import refsim

        click.echo(f"refsim {refsim.__version__}")
        ctx.exit()


@click.group(
    cls=CommandLine,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
    epilog="Exit codes: 0 agreed, 1 a difference or a finding, 2 a wrong request or declaration, 3 an input that cannot be "
    "read or compiled, 4 something needed is missing here, 5 inconclusive, 70 a bug of refsim, 130 interrupted.",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_obj
def program(session: Session, debug: bool) -> None:
    """Test low-precision GPU kernels against a bit-exact model. No GPU is needed.

    Answers go to standard output, hints and errors to standard error. Commands take --as
    text|json|jsonl|csv|md|svg|html|github, -o FILE and --source. Each command has its own --help.
    """
    session.debug = debug


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (by default the process's own) and return its exit code. Errors are printed, not raised.

    0 agreed, 1 a difference or a finding, 2 a wrong request or declaration, 3 an input that cannot be read or compiled, 4
    missing, 5 inconclusive, 70 our bug, 130 interrupted.
    """
    session = Session(tuple(sys.argv[1:] if arguments is None else arguments))
    if arguments is None:  # the process runs nothing else
        gc.set_threshold(*COLLECTED_EVERY)
    console.open_closed()
    stdout = sys.stdout
    try:
        with exits_held(for_good=arguments is None):
            result = program.main(list(session.arguments), prog_name="refsim", standalone_mode=False, obj=session)
        return result if isinstance(result, int) else 0
    except SystemExit as ended:
        if os.environ.get("_REFSIM_COMPLETE"):  # click answered a shell
            return int(ended.code or 0)
        if sys.stdout is stdout:  # refsim never exits so: the user's code did
            return _failed(program_ended(f"sys.exit({ended.code!r})"), session)
        # click met a closed pipe while it printed a help page, and put its own stream in the place of stdout
        sys.stdout = stdout
        console.abandon(stdout)
        return 0
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as asked:
        console.tell(asked.ctx.get_help() if asked.ctx else "")
        return Kind.USAGE.value
    except Exception as problem:
        return _failed(problem, session)


def _failed(problem: Exception, session: Session) -> int:
    if session.debug:
        import traceback

        console.tell("".join(traceback.format_exception(problem)).rstrip())
    error = _as_error(problem, session)
    console.tell_error(error)
    return error.exit_code


def _as_error(problem: Exception, session: Session) -> RefsimError:
    """Return the RefsimError of any exception: usage, memory, a removed working directory, or a bug of refsim."""
    if isinstance(problem, RefsimError):
        return problem
    if isinstance(problem, click.UsageError):
        return _usage_error(problem, session)
    if isinstance(problem, MemoryError):
        what = f"this needs more memory than there is: {problem}".rstrip(": ")
        help = "ask for less at once: a smaller shape, fewer rows, a smaller launch"
        return RefsimError("out-of-memory", what, help=help, kind=Kind.MISSING)
    if isinstance(problem, FileNotFoundError) and _is_nowhere():
        what, help = "the working directory was removed", "cd to a folder that is there"
        return RefsimError("no-such-file", what, help=help, kind=Kind.UNREADABLE)
    return internal_error(problem, session.command_line.replace("refsim", "refsim --debug", 1))


def _is_nowhere() -> bool:
    """Return whether the working directory was removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _usage_error(problem: click.UsageError, session: Session) -> RefsimError:
    """Return click's error with its command, what is wrong, and the usage with an example."""
    where = " ".join(("refsim", *(name for name in session.arguments[:1] if name in COMMANDS)))
    if problem.ctx is None:
        return RefsimError("usage", problem.format_message().rstrip("."), where=where, help=f"{where} --help")
    where, params = problem.ctx.command_path, problem.ctx.command.params
    way, what = _example(problem.ctx), problem.format_message().rstrip(".")
    if isinstance(problem, click.NoSuchOption):
        if re.fullmatch(r"-[\d.]+", problem.option_name):
            return RefsimError("out-of-range", f"{problem.option_name}: no argument is negative", where, help=way)
        known = [name for each in params for name in each.opts if name.startswith("-")]
        error = unknown("option", problem.option_name, known, where=where)
        way = f"{error.help} ({where} --help)" if known else f"{where} --help"
        if any(str(each.metavar).startswith("--") for each in params):  # of `refsim run`
            way = f"an option of the program stands after --: {where} -- PROGRAM {problem.option_name}; {way}"
        return RefsimError(error.code, error.what, where=where, help=way)
    if isinstance(problem, click.MissingParameter) and problem.param:
        is_option, metavar = problem.param.param_type_name == "option", problem.param.make_metavar(problem.ctx)
        name = problem.param.opts[-1] if is_option else re.sub(r"\[.*?\] ", "", metavar)
        return RefsimError("missing-argument", f"{name} is missing", where=where, help=way)
    if extra := re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", what):
        what = f"too many arguments: {extra[1]}"
        if not any(each.param_type_name == "argument" for each in params):
            way = f"give options: {', '.join(each.opts[-1] for each in params)} ({where} --help)"
    return RefsimError("usage", what, where=where, help=way)


def _example(context: click.Context) -> str:
    """Return the usage of a command and the first example of its help page that is one line."""
    examples = (context.command.help or "").rpartition("\b\n")[2]
    example = re.search(r"^ *(refsim [^\\\n]+)$", examples, re.MULTILINE)
    shown = f"example: {example[1]}" if example else f"{context.command_path} --help shows examples"
    return f"{' '.join([context.command_path, *context.command.collect_usage_pieces(context)])}; {shown}"
