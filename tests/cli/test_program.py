"""The frame around the commands: exit codes, records of errors, our own bugs, help."""

import gc
import inspect
import json

import click
import pytest

from refsim.cli import main
from refsim.cli.program import COLLECTED_EVERY
from refsim.cli.registry import COMMANDS, SECTIONS, Listing
from refsim.conversions import OVERFLOWS, ROUNDINGS
from refsim.errors import Kind, RefsimError
from refsim.render import FORMS


@pytest.fixture
def failing(monkeypatch):
    """A command that raises what it is given."""

    def install(problem):
        @click.command()
        def command():
            raise problem

        monkeypatch.setitem(COMMANDS, "failing", Listing("nowhere:command", "Fails."))
        monkeypatch.setattr(Listing, "load", lambda listing, name: command)

    return install


@pytest.mark.parametrize("code", [Kind.USAGE.value, Kind.UNREADABLE.value, Kind.MISSING.value, Kind.INCONCLUSIVE.value])
def test_error_leaves_with_its_exit_code(failing, refsim, code):
    failing(RefsimError("broken", "a thing is 3", where="here", rule="things are 2", help="use 2", kind=Kind(code)))
    run = refsim("failing")
    assert run.code == code
    assert run.out == ""
    assert run.err == "[broken] a thing is 3\n  at: here\n  rule: things are 2\n  help: use 2\n"


def test_unexpected_exception_is_our_bug(failing, refsim):
    failing(ZeroDivisionError("division by zero"))
    run = refsim("failing")
    assert run.code == 70
    assert run.err.startswith(
        "[internal-error] refsim raised ZeroDivisionError: division by zero\n  at: test_program.py:"
    )
    assert "refsim --debug failing" in run.err
    assert "Traceback" not in run.err


def test_debug_shows_the_traceback(failing, refsim):
    failing(ZeroDivisionError("division by zero"))
    run = refsim("--debug", "failing")
    assert run.code == 70
    assert "Traceback (most recent call last)" in run.err
    assert run.err.count("[internal-error]") == 1


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), click.Abort()])
def test_interruption_is_130(failing, refsim, problem):
    failing(problem)
    assert refsim("failing").code == 130


def test_errors_are_records_in_json_mode_too(refsim):
    run = refsim("decode", "-t", "e4m3", "0x1ff", "--as", "json")
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("[out-of-range] 0x1ff is not a code of e4m3\n  rule: ")


def test_failed_comparison_ends_with_the_command_that_repeats_it(refsim, two_files):
    run = refsim("diff", "got.npy", "want.npy", "-t", "bf16", "--as", "json")
    assert run.code == 1
    assert run.err == "again: refsim diff got.npy want.npy -t bf16 --as json\n"
    assert json.loads(run.out)["count"] == 2


def test_unknown_command_shows_the_three_nearest(refsim):
    run = refsim("tabel", "e4m3")
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("[unknown-command] no command is called 'tabel'\n  help: nearest: table, ")
    assert run.err.count(",") == 2


def test_no_command_shows_help_on_standard_error(refsim):
    run = refsim()
    assert (run.code, run.out) == (2, "")
    assert "Numbers:" in run.err


def test_help_lists_every_command_under_its_section(refsim):
    run = refsim("--help")
    assert (run.code, run.err) == (0, "")
    for section, commands in SECTIONS.items():
        assert f"\n{section}:\n" in run.out
        for name in commands:
            assert f"\n  {name} " in run.out


@pytest.mark.parametrize("name", ["formats", "decode", "encode", "table", "diffpolicy", "diff", "sources"])
def test_help_of_a_command_shows_examples_and_common_options(refsim, name):
    run = refsim(name, "--help")
    assert run.code == 0
    assert f"\n    refsim {name}" in run.out
    assert all(option in run.out for option in ("--as", "-o, --output", "--source"))


def test_help_of_encode_names_every_rule(refsim):
    words = refsim("encode", "--help").out.split()
    for rule in (*ROUNDINGS, *OVERFLOWS):
        assert any(word.strip(",.();") == rule for word in words), rule


def test_every_form_is_named_in_help(refsim):
    assert "|".join(FORMS) in "".join(refsim("--help").out.split())


def test_version_is_that_of_the_package(refsim):
    import refsim as package

    assert refsim("--version").out == f"refsim {package.__version__}\n"


def test_main_takes_the_arguments_of_the_process(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["refsim", "sources", "ptx", "--as", "json"])
    assert main() == 0
    assert json.loads(capsys.readouterr().out)["key"] == "ptx"


def test_the_collector_is_eased_in_a_process_of_its_own_alone(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["refsim", "sources", "ptx"])
    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        assert main(["sources", "ptx"]) == 0
        assert gc.get_threshold() == (700, 10, 10)
        assert main() == 0
        assert gc.get_threshold() == COLLECTED_EVERY
    finally:
        gc.set_threshold(*before)


def test_every_command_has_a_docstring_and_a_summary():
    for name, listing in COMMANDS.items():
        assert inspect.cleandoc(listing.load(name).help or "").strip(), name
        assert listing.summary.endswith("."), name
