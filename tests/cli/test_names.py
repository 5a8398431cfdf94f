"""Names on the command line: every one that a command takes is found where its declaration says, and offered to a shell."""

from collections.abc import Iterator

import click
import pytest

from refsim.cli.names import Name
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


def test_names_of_every_command_are_among_them() -> None:
    assert {where.split()[0] for where in TAKEN} == COMMANDS.keys() - {"completion", "explore"}
