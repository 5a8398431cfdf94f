"""The machine-readable and marked-up forms of one document."""

import csv
import html.parser
import io
import json
import math

import pytest

from refsim.errors import RefsimError
from refsim.render import (
    FORMS,
    Bits,
    Coded,
    Column,
    Document,
    Entry,
    Grid,
    Interval,
    Record,
    Table,
    Wording,
    number,
    rendered,
)
from refsim.sources import PTX

NASTY = 'a|b <script>alert(1)</script> & "q" *x* ~y~ `z`\nnew'
TABLE = Table(
    (
        Column("name"),
        Column("error", unit="ulp"),
        Column("next"),
        Column("range"),
        Column("yes"),
        Column("names"),
        Column("hidden", text=False),
        Column("why", citation=True),
    ),
    (
        (
            NASTY,
            number(0.5),
            (Coded(Bits(1, 8), number(math.nan)), None),
            Interval(number(1.0), number(2.0), True, False),
            True,
            ("a", "b"),
            7,
            PTX["cvt"],
        ),
        ("plain", None, None, None, False, (), 8, PTX["cvt"]),
    ),
    key="things",
)
WHOLE = Document(
    (
        TABLE,
        Record((Entry("size", 3, unit="B"),)),
        Record((Entry("inner", "x"),), key="nested"),
        Wording(("said",), {"count": 2}),
        Grid((number(0.0), number(-math.inf)), 2, 8),
    ),
    title="A <title>",
    sources=(PTX["cvt"],),
    hints=("beside",),
)


def write(document, form, **options):
    return rendered(document, form, **options)[0]


def test_json_is_one_object_with_the_keys_of_the_parts():
    tree = json.loads(write(WHOLE, "json"))
    assert list(tree) == ["things", "size_B", "nested", "count", "codes"]
    assert tree["things"][0] == {
        "name": NASTY,
        "error_ulp": 0.5,
        "next": [{"code": "0x01", "value": "nan"}, None],
        "range": {"low": 1.0, "high": 2.0, "low_closed": True, "high_closed": False},
        "yes": True,
        "names": ["a", "b"],
        "hidden": 7,
    }
    assert tree["nested"] == {"inner": "x"}
    assert tree["codes"] == [{"code": "0x00", "value": 0.0}, {"code": "0x01", "value": "-inf"}]


def test_json_cites_on_request():
    tree = json.loads(write(WHOLE, "json", citations=True))
    assert tree["things"][0]["why"] == "PTX ISA 9.0, cvt"
    assert tree["sources"] == [{"document": "ptx", "title": "PTX ISA 9.0", "place": "cvt", "address": PTX.address}]


def test_jsonl_names_the_part_of_each_line():
    lines = [json.loads(line) for line in write(WHOLE, "jsonl", citations=True).splitlines()]
    assert [line.get("part") for line in lines] == ["things", "things", "", "nested", "", "codes", "codes", None]
    assert lines[-1]["source"]["document"] == "ptx"
    assert "part" not in json.loads(write(Document((WHOLE.parts[1],)), "jsonl"))


def test_csv_reads_back_with_a_column_for_each_value():
    rows = list(csv.DictReader(io.StringIO(write(Document((TABLE,)), "csv"))))
    assert rows[0] == {
        "name": NASTY,
        "error_ulp": "0.5",
        "next_0_code": "0x01",
        "next_0_value": "nan",
        "next_1": "",
        "range_low": "1.0",
        "range_high": "2.0",
        "range_low_closed": "true",
        "range_high_closed": "false",
        "yes": "true",
        "names": "a b",
        "hidden": "7",
    }
    assert [rows[1][name] for name in ("name", "error_ulp", "range_low", "yes")] == ["plain", "", "", "false"]


def test_csv_refuses_several_tables():
    with pytest.raises(RefsimError, match="form-does-not-fit"):
        write(WHOLE, "csv")


def test_markdown_keeps_its_tables_whole():
    lines = write(WHOLE, "md", citations=True).splitlines()
    assert lines[0] == "## A \\<title\\>"
    table = [line for line in lines if line.startswith("| ")][:3]
    bars = [line.replace("\\|", "").count("|") for line in table]
    assert len(set(bars)) == 1
    assert "a\\|b \\<script\\>" in table[1]
    assert "\\~y\\~" in table[1]
    assert "\\n" in table[1].replace("\\\\", "\\")


class Page(html.parser.HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.open, self.seen, self.words = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_html_is_closed_escaped_and_alone():
    page = Page(write(WHOLE, "html", citations=True))
    assert page.open == []
    tags = [tag for tag, _ in page.seen]
    assert "script" not in tags
    assert not {"src", "onload"} & {name for _, attributes in page.seen for name in attributes}
    assert "link" not in tags
    assert any('a|b <script>alert(1)</script> & "q"' in word for word in page.words)
    assert any("prefers-color-scheme: dark" in word for word in page.words)
    assert ("a", {"href": PTX.address}) in page.seen


def test_hints_are_beside_the_answer_in_every_form():
    document = Document((TABLE,), hints=("beside",))
    for form in FORMS:
        body, hints = rendered(document, form)
        assert hints == ("beside",)
        assert "beside" not in body
        assert body.endswith("\n")


def test_unknown_form_shows_the_nearest():
    with pytest.raises(RefsimError, match="nearest: json"):
        rendered(WHOLE, "jsn")
