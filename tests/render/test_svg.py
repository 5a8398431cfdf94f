"""Drawings: what a cell says, what lights up together, contrast, and what a large one costs."""

import re
import xml.etree.ElementTree as ET

import pytest

from refsim.render import (
    ALERT,
    EMPTY,
    Column,
    Document,
    Entry,
    Fact,
    Picture,
    Record,
    Table,
    Wording,
    rendered,
)
from refsim.render.svg import ALERTING, DARK, FAINT, HOLE, INK, LIGHT, PAPER, fill
from refsim.sources import PTX

SVG = "{http://www.w3.org/2000/svg}"


def picture(rows, cols, **changes):
    """Thread 4 * row + col % 4, value col // 4, with its byte and bank: what a fragment is."""
    places = [(row, col) for row in range(rows) for col in range(cols)]
    thread = [4 * (row % 32) + col % 4 for row, col in places]
    facts = (
        Fact("warp", [each // 32 for each in thread]),
        Fact("lane", [each % 32 for each in thread]),
        Fact("value", [col // 4 for _, col in places], "v"),
        Fact("thread", thread, "t", tip=False),
        Fact("byte", [4 * (row * cols + col) for row, col in places]),
        Fact("bank", [(row * cols + col) % 32 for row, col in places]),
    )
    settled = {"written": ("thread", "value"), "colours": [each % 32 for each in thread], "together": "thread"}
    return Picture(range(rows), range(cols), facts, **(settled | changes))


def drawn(*parts, **options):
    return rendered(Document(parts, "a title", (PTX["cvt"],)), "svg", **options)[0]


def cells_of(text):
    root = ET.fromstring(text)
    group = next(each for each in root.iter(f"{SVG}g") if each.get("class") == "cells")
    return [[path.find(f"{SVG}title").text for path in each.iter(f"{SVG}path")] for each in group]


def test_a_large_picture_is_small():
    text = drawn(picture(64, 128))
    assert len(text.encode()) < 1_000_000
    assert sum(map(len, cells_of(text))) == 64 * 128


def test_every_cell_tells_its_place_and_its_facts():
    groups = cells_of(drawn(picture(8, 8)))
    tips = {tip for group in groups for tip in group}
    assert len(tips) == 64
    assert "row 5 col 6\nwarp 0 lane 22 value 1 byte 184 bank 14" in tips


@pytest.mark.parametrize(("fact", "count"), [("thread", 32), ("bank", 32), ("value", 2)])
def test_what_belongs_together_is_one_group(fact, count):
    groups = cells_of(drawn(picture(8, 8, together=fact)))
    assert len(groups) == count
    if fact != "thread":
        found = [{re.search(rf"{fact} (\d+)", tip)[1] for tip in group} for group in groups]
        assert all(len(values) == 1 for values in found)
        assert len(set(map(tuple, found))) == count


def test_words_stand_in_their_cells():
    """A line of words is text of one width; its n-th piece is the word of the n-th cell."""
    root = ET.fromstring(drawn(picture(2, 8)))
    lines = [text for text in root.iter(f"{SVG}text") if text.get("textLength")]
    assert [line.text.split() for line in lines[:1]] == [["t0", "t1", "t2", "t3", "t0", "t1", "t2", "t3"]]
    scale = re.search(r"scale\((\d+) ", drawn(picture(2, 8)))[1]
    for line in lines:
        assert float(line.get("textLength")) == 6 * len(line.text)
        assert [match.start() * 6 // int(scale) for match in re.finditer(r"\S+", line.text)] == list(range(8))


def test_empty_cells_are_not_there_and_alerts_are():
    colours = [EMPTY, ALERT, *range(2, 16)]
    text = drawn(picture(4, 4, colours=colours))
    assert sum(map(len, cells_of(text))) == 15
    assert f'class="c{ALERT}"' in text
    assert text.count(f".c{ALERT}{{") == 2
    assert "t0 " not in next(line for line in text.splitlines() if "textLength" in line)


def test_dark_paper_follows_the_system_and_nothing_runs():
    text = drawn(picture(8, 8))
    light, _, dark = text.partition("@media (prefers-color-scheme:dark)")
    assert PAPER[LIGHT] in light
    assert PAPER[DARK] in dark
    assert ".cells>g:hover" in text
    for forbidden in ("<script", "href", "@import", "url(", "onload"):
        assert forbidden not in text


def contrast(one, other):
    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [LIGHT, DARK])
def test_words_are_legible_on_every_colour(mode):
    papers = [*(fill(colour, mode) for colour in range(32)), ALERTING[mode], PAPER[mode], HOLE[mode]]
    assert len(set(papers)) == 35
    assert min(contrast(INK[mode], paper) for paper in papers) > 4.5
    assert contrast(FAINT[mode], PAPER[mode]) > 4.5


def test_hostile_text_stays_text():
    nasty = '</title><script>&"\x00\x1b[31m]]>'
    facts = (Fact(nasty, [nasty] * 4, "<"), Fact("n", [1, 2, 3, 4]))
    hostile = Picture(
        range(2), range(2), facts, (nasty,), [0] * 4, "n", axes=(nasty, "col"), about=(Entry("x", nasty, nasty),)
    )
    document = Document((hostile, Wording((nasty,), {}), Record((Entry("y", nasty),))), nasty)
    text = rendered(document, "svg")[0]
    assert len(list(ET.fromstring(text).iter(f"{SVG}script"))) == 0
    assert sum(map(len, cells_of(text))) == 4
    page = rendered(document, "html")[0]
    assert "<script" not in page


def test_percent_in_a_name_is_no_pattern():
    text = drawn(Picture([0], [0], (Fact("share %d", [7], "%"),), ("share %d",), [0], "share %d"))
    assert cells_of(text) == [["row 0 col 0\nshare %d 7"]]


def test_other_parts_are_lines_of_text():
    table = Table((Column("name"), Column("count", align="right")), (("a", 1), ("b", 22)))
    text = drawn(table, Wording(("said",), {}), citations=True)
    lines = [each.text for each in ET.fromstring(text).iter(f"{SVG}text")]
    assert lines[:5] == ["a title", "name  count", "a         1", "b        22", "said"]
    assert lines[5].startswith("PTX ISA")


def test_a_drawing_stands_above_the_parts_of_svg_and_html_alone():
    document = Document((Wording(("the answer",), {"a": 1}),), "t", drawing=picture(2, 2))
    assert rendered(document, "text")[0] == "the answer\n"
    assert rendered(document, "json")[0] == '{\n  "a": 1\n}\n'
    for form in ("svg", "html"):
        body = rendered(document, form)[0]
        assert 0 < body.index('class="cells"') < body.index("the answer")


def test_picture_in_the_other_forms():
    small = picture(2, 4, colours=[EMPTY, *range(1, 8)], about=(Entry("shape", (2, 4)),))
    document = Document((small,), "t")
    assert rendered(document, "csv")[0].splitlines()[:2] == [
        "row,col,warp,lane,value,thread,byte,bank",
        "0,1,0,1,0,1,4,1",
    ]
    assert rendered(document, "json")[0].startswith('{\n  "shape": [\n    2,\n    4\n  ],\n  "cells": [')
    assert rendered(document, "jsonl")[0].count("\n") == 7
    assert "| t:v | 0 | 1 | 2 | 3 |" in rendered(document, "md")[0]
    assert rendered(document, "text")[0].splitlines() == [
        "t:v    0    1    2    3",
        "  0       1:0  2:0  3:0",
        "  1  4:0  5:0  6:0  7:0",
    ]


@pytest.mark.parametrize(("width", "shown", "left_out"), [(23, 4, ()), (19, 4, ()), (20, 4, ())])
def test_narrow_text_closes_its_gaps_first(width, shown, left_out):
    body, hints = rendered(Document((picture(2, 4),)), "text", width=max(width, 20))
    assert len(body.splitlines()[0].split()) == shown + 1
    assert hints == left_out


def test_narrower_text_says_which_columns_it_leaves_out():
    body, hints = rendered(Document((picture(2, 64),)), "text", width=40)
    assert max(map(len, body.splitlines())) <= 40
    assert len(body.splitlines()) == 3
    assert hints == ("left out at 40 columns: col 9 to 63 (all of it: a wider terminal, or --as json)",)


def test_terminal_colours_follow_the_cells():
    body, _ = rendered(Document((picture(1, 4, colours=[0, 4, ALERT, EMPTY]),)), "text", colour=True)
    assert "\x1b[34m  0:0\x1b[0m\x1b[36m  1:0\x1b[0m\x1b[7m  2:0\x1b[0m" in body
