"""README, the guide and help texts are plain English by the rules of tests/prose.py; each rule finds a planted sentence."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from refsim.cli.program import program
from tests.prose import flaws

ROOT = Path(__file__).parents[1]
GUIDE = (
    *("quickstart", "your-kernel", "when-it-fails", "verdicts", "ci-and-campaigns", "programs-without-a-gpu"),
    *(
        "explaining-a-difference",
        "formats-and-conversions",
        "layouts",
        "tensor-cores",
        "scaled-gemm",
        "special-functions",
    ),
    *("simulator", "evidence", "glossary", "published-kernels", "fused-kernels"),
)
LINES = {"evidence": 400, "architecture": 60}  # every other page of the guide: 250
WORDS = 25_800

BAD = {
    "41 words": "The kernel " + "reads and writes " * 12 + "and then stops.",
    "mean of": "This page has sentences that are too long on average, "
    "since every one of them goes on for more words than it needs.",
    "mean of 20.0": "Twenty words are " + "long, " * 16 + "too.",
    "a line of 121 columns": "A line is " + "very " * 21 + "broad.",
    "columns": "A line of prose that goes on " + "and on " * 16 + "ends.",
    "hardware": "The verdict ends with what silicon returned.",
    "in addition to": "It brings all that the test needs beside the driver.",
    "fix": "The first line mends the kernel.",
    "elements": "The report counts 12 differing words.",
    '"Of"': "Of 18 mistakes that gate lets 17 through.",
    '"What"': "What kernel and oracle both take from the model, no comparison of the two can judge.",
    "double negative": "A pass under this mode rests on no bit that nobody recorded.",
}
HIDDEN = {
    "a quote": ("> Of 18 mistakes that gate lets 17 through.", "Of"),
    "a quote in quotation marks": ("“Of 18 mistakes that gate lets 17 through.”", "Of"),
    "a numbered item": ("1) Of 18 mistakes that gate lets 17 through.", "Of"),
    "an item before a tab": ("-\tOf 18 mistakes that gate lets 17 through.", "Of"),
    "after an ellipsis": ("The kernel stops… Of 18 mistakes that gate lets 17 through.", "Of"),
    "a heading": ("## What silicon returned", "hardware"),
    "an admonition": (":::{note}\nThe verdict ends with what silicon returned.\n:::", "hardware"),
    "emphasis": ("The kernel is right *apart* from one element.", "except"),
    "two blanks": ("The kernel is right apart  from\N{NO-BREAK SPACE}one element.", "except"),
    "a contraction": ("The value isn't incorrect.", "double negative"),
}
"""Flawed sentences where a reader sees them and a checker of lines may not."""
GOOD = (
    "If the model is wrong, kernel and oracle agree on the wrong answer.",
    "A tensor has rows and columns, and a 32-bit word holds four FP8 codes.",
    "What does this code mean?",
    "Two marks hold one: ``a `silicon` that nobody reads`` is code.",
    "Nineteen words are " + "long, " * 15 + "not.",
    "- A list item that has no full stop\n- Another item",
    "The `silicon` arithmetic replays recorded results.",
    "| table | of any width that it likes, with words beside each other, and what nobody reads |\n|---|---|",
    "```\na block of code beside the text, " + "long " * 60 + "\n```",
    "Read [the page](docs/what-nobody-reads-beside-the-silicon.md) before you start.",
    "It needs Python 3.11 or newer. It needs no GPU and no CUDA toolkit.",
    "The launch ends. The thread waits, e.g. for a barrier, and version 0.2 reads it.",
    "Nothing differs: the test does not fail. Two launches are told apart by their names.",
    "The value is not uniform, not unique, and it is not printed, not unless you ask.",
    ":::{toctree}\n" + "beside-the-silicon\n" * 50 + ":::",
)


def commands(group: click.Group, name: str = "refsim") -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its full name, the program first."""
    yield name, group
    context = click.Context(group)
    for each in group.list_commands(context):
        command = group.get_command(context, each)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {each}")
        else:
            yield f"{name} {each}", command


HELPS = dict(commands(program))


def markdown_of(command: click.Command) -> str:
    """Return the help of a command as Markdown: its paragraphs but examples, then a list item for each option."""
    paragraphs = [each for each in (command.help or "").split("\n\n") if not each.lstrip().startswith("\b")]
    options = [str(option.help) for option in command.params if isinstance(option, click.Option) and option.help]
    return "\n\n".join([*paragraphs, *(f"- {each}" for each in options), f"- {command.get_short_help_str(999)}"])


PAGES = [*ROOT.glob("*.md"), ROOT / "gpu/README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_plain_english(page: Path) -> None:
    assert [str(flaw) for flaw in flaws(page.name, page.read_text("utf-8"))] == []


def test_the_guide_has_its_pages_and_they_are_of_bounded_length() -> None:
    guide = {page.stem: page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md")}
    assert sorted(guide) == sorted((*GUIDE, "architecture", "index"))
    assert sum(len(text.split()) for text in guide.values()) <= WORDS
    assert {name: lines for name in guide if (lines := guide[name].count("\n")) > LINES.get(name, 250)} == {}
    assert (ROOT / "README.md").read_text("utf-8").count("\n") <= 100


@pytest.mark.parametrize("name", HELPS)
def test_a_help_text_is_plain_english(name: str) -> None:
    assert [
        str(flaw) for flaw in flaws(name, markdown_of(HELPS[name]), width=10**6) if "mean of" not in flaw.rule
    ] == []


@pytest.mark.parametrize("rule", BAD)
def test_a_planted_sentence_is_found(rule: str) -> None:
    found = [str(flaw) for flaw in flaws("page", BAD[rule])]
    assert any(rule in flaw for flaw in found), found


@pytest.mark.parametrize("place", HIDDEN)
def test_a_planted_sentence_is_found_wherever_it_stands(place: str) -> None:
    text, rule = HIDDEN[place]
    assert [flaw for flaw in flaws("page", text) if rule in flaw.rule] != []


def test_the_glossary_explains_our_words_in_bold() -> None:
    text = "**silicon**: hardware."
    assert list(flaws("docs/glossary.md", text)) == []
    assert len(list(flaws("docs/page.md", text))) == len(list(flaws("docs/glossary.md", f"{text} Silicon."))) == 1


@pytest.mark.parametrize("text", GOOD, ids=range(len(GOOD)))
def test_a_good_sentence_passes(text: str) -> None:
    assert list(flaws("page", text)) == []
