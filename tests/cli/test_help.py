"""Help pages: they fit a terminal, name what an option takes, and group the many options of explain-diff."""

import re

import click
import pytest

from refsim.cli.commands.explain_diff import OPTION_SECTIONS
from tests.test_prose import HELPS

LEAKS = re.compile(r"INTEGER|RANGE|TEXT|FLOAT|[<>]=")  # click's own names of types and ranges


def page(name: str) -> str:
    """The help page of a command, as a terminal of 80 columns shows it."""
    context = click.Context(HELPS[name], info_name=name, show_default=True, terminal_width=80, max_content_width=80)
    return HELPS[name].get_help(context)


@pytest.mark.parametrize("name", HELPS)
def test_a_page_fits_80_columns(name: str) -> None:
    assert [line for line in page(name).splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("name", HELPS)
def test_an_option_names_what_it_takes(name: str) -> None:
    assert LEAKS.findall(page(name).partition("Options:")[2]) == []


def test_ranges_and_defaults_are_shown_in_words() -> None:
    assert "--jobs N " in page("refsim verify")
    assert "[1 to 1024]" in page("refsim verify")
    assert "[default: 10; 1 or more]" in page("refsim explain-diff").replace("\n" + " " * 24, " ")


def test_explain_diff_shows_the_common_options_first_and_every_option_once() -> None:
    options = {each.name for each in HELPS["refsim explain-diff"].params if isinstance(each, click.Option)}
    grouped = [name for names in OPTION_SECTIONS.values() for name in names]
    assert options - {*grouped} == {"form", "output", "citations"}
    assert len(grouped) == len({*grouped})
    headings = re.findall(r"^(\S.*):$", page("refsim explain-diff"), re.MULTILINE)
    assert headings == [*OPTION_SECTIONS, "Output"]
    assert OPTION_SECTIONS[headings[0]] == ("row", "keys", "target", "at", "seconds")
