"""The commands of docs/seeing-inside.md print what the page shows."""

import re
import shlex
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "seeing-inside.md"
BLOCKS = re.findall(r"```\n\$ refsim (.*)\n((?:.*\n)*?)```", PAGE.read_text())


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_the_page_shows_what_is_printed(command, shown, refsim):
    assert refsim(*shlex.split(command)).out == shown


def test_the_page_has_every_option():
    assert {"--trace", "--at", "--policy all"} <= {
        option for command, _ in BLOCKS for option in re.findall(r"--policy all|--\w+", command)
    }
