"""Options as fields: the annotation of a field says what click reads, and the command gets one object."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from refsim.cli.options import Options, argument, option, with_options


class Where(Options):
    """Options that several commands share."""

    device_name: str = option("Device.", "--device", default="sim")
    files: tuple[Path, ...] = option("Kernels.", "--kernels")


class Everything(Options):
    """A field of each kind."""

    name: str = argument()
    words: tuple[str, ...] = argument("[WORD...]")
    first: bool = option("A switch.")
    on: Where = Where()
    save_ptx: Path | None = option("A file.")
    count: int = option("A number.", "-n", "--count", default=3)
    needed: str = option("Needed.", required=True)


@pytest.fixture
def ran() -> Any:
    """What a command gets, and what click says."""

    @click.command(context_settings={"show_default": True})
    @with_options
    def command(asked: Everything) -> None:
        """Ask for everything."""
        found.append(asked)

    found: list[Everything] = []

    def run(*words: str) -> tuple[list[Everything], str]:
        said = CliRunner().invoke(command, list(words))
        return found, said.output

    return run


def test_the_command_gets_one_object_with_its_shared_options_inside(ran):
    words = "scale a b --first --kernels x.py --kernels y.py --save-ptx small.ptx -n 4 --needed yes --device cuda"
    (asked,), said = ran(*words.split())
    where = Where(device_name="cuda", files=(Path("x.py"), Path("y.py")))
    assert asked == Everything("scale", ("a", "b"), True, where, Path("small.ptx"), 4, "yes"), said


def test_options_that_are_left_out_equal_an_object_without_arguments(ran):
    (asked,), said = ran("scale", "--needed", "yes")
    assert (asked.on, asked.first, asked.words, asked.save_ptx, asked.count) == (Where(), False, (), None, 3), said


@pytest.mark.parametrize(
    ("words", "lacking"), [(("scale",), "Missing option '--needed'"), (("--needed", "yes"), "Missing argument 'NAME'")]
)
def test_what_must_be_given_is_missed(ran, words, lacking):
    found, said = ran(*words)
    assert not found
    assert lacking in said


def test_the_help_page_lists_the_fields_in_their_order(ran):
    _, said = ran("--help")
    shown = [line.split()[0] for line in said.splitlines() if line.strip().startswith("-")]
    assert shown == ["--first", "--device", "--kernels", "--save-ptx", "-n,", "--needed", "--help"]
    assert all(each in said for each in ("NAME [WORD...]", "--kernels FILE", "[default: 3]"))
