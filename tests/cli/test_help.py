"""Help pages: they fit a terminal, name what an option takes, and group the many options of explain-diff."""

import re

import click
import pytest

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
    assert "[default: 4; 1 to 1000]" in re.sub(r"\n +", " ", page("refsim blame"))


def test_explain_diff_shows_the_common_options_first_and_every_option_once() -> None:
    parts = re.split(r"^(\S.*):$", page("refsim explain-diff"), flags=re.MULTILINE)
    pattern = re.compile(r"^  (?:-\w, )?(--?[\w-]+)", re.MULTILINE)
    shown = {heading: pattern.findall(text) for heading, text in zip(parts[1::2], parts[2::2], strict=True)}
    assert [*shown][:2] == ["Common options", "Product D = A B^T"]
    assert shown["Common options"] == ["--format", "--key", "--target", "--at", "--seconds"]
    assert [*shown["Output"]] == ["--as", "--output", "--source", "--help"]
    options = [
        max(each.opts, key=len) for each in HELPS["refsim explain-diff"].params if isinstance(each, click.Option)
    ]
    assert sorted(name for names in shown.values() for name in names) == sorted([*options, "--help"])
