"""Names on the command line: every one that a command takes is found where its declaration says, and offered to a shell."""

import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from refsim.cli.names import Name
from refsim.cli.program import main
from refsim.cli.registry import COMMANDS


def parameters(command: click.Command, path: str) -> Iterator[tuple[str, Name]]:
    if isinstance(command, click.Group):
        for name in command.commands:
            yield from parameters(command.commands[name], f"{path} {name}")
    yield from ((f"{path} {each.name}", each.type) for each in command.params if isinstance(each.type, Name))


TAKEN = dict(each for name, listing in COMMANDS.items() for each in parameters(listing.load(name), name))


@pytest.mark.parametrize("where", TAKEN)
def test_names_are_there_and_offered_to_a_shell(where: str) -> None:
    taken = TAKEN[where]
    names = taken.known()
    assert names == list(dict.fromkeys(names)) != []
    context = click.Context(click.Command("any"))
    offered = taken.shell_complete(context, click.Option(["--any"]), names[0])
    assert [each.value for each in offered] == [name for name in names if name.startswith(names[0])]


@pytest.mark.parametrize("where", TAKEN)
def test_a_name_becomes_the_row_of_that_name(where: str) -> None:
    taken = TAKEN[where]
    name = taken.known()[-1]
    row = taken.convert(name, None, None)
    assert name in (row, getattr(row, "name", None), getattr(row, "kind", None))


HOSTILE = """
from pathlib import Path
Path("executed").touch()
def make(name): return Kernel(name)
ONE = Kernel("one", "not a name", source="")
KERNELS = (ONE, refsim.testing.Kernel(name="two"), make("three"), make(computed()), Kernel(f"four"))
"""


def complete(words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a shell offers for the last of these words."""
    monkeypatch.setenv("_REFSIM_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    main()
    return [line.partition(",")[2] for line in capsys.readouterr().out.split()]


@pytest.mark.parametrize("command", ["verify", "order", "blame"])
def test_completion_reads_kernel_names_without_executing_a_file(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "linear" in complete(f"refsim {command} ", capsys, monkeypatch)
    (tmp_path / "hostile.py").write_text(HOSTILE)
    assert complete(f"refsim {command} --kernels hostile.py t", capsys, monkeypatch) == ["two", "three"]
    (tmp_path / "pyproject.toml").write_text('[tool.refsim]\nkernels = ["hostile.py", "none.py"]\n')
    assert complete(f"refsim {command} ", capsys, monkeypatch) == ["one", "two", "three"]
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("text", [b"KERNELS = (", b"\0", b"x = " + b"(" * 100_000, b"KERNELS: tuple\n", b"\xff"])
def test_completion_offers_nothing_for_a_file_that_is_not_python(
    text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_bytes(text)
    (tmp_path / "pyproject.toml").write_text('[tool.refsim]\nkernels = ["broken.py"]\n')
    assert complete("refsim verify ", capsys, monkeypatch) == []
    (tmp_path / "pyproject.toml").write_text("[tool.refsim\n")
    assert complete("refsim verify ", capsys, monkeypatch) == []
    (tmp_path / "pyproject.toml").unlink()
    os.mkfifo(tmp_path / "pyproject.toml")
    assert complete("refsim verify ", capsys, monkeypatch) == []


def test_names_of_every_command_are_among_them() -> None:
    assert {where.split()[0] for where in TAKEN} == COMMANDS.keys() - {"completion", "explore"}
