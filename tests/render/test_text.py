"""Text at any width: nothing is cut, words wrap within their column, and what is left out is said."""

import pytest

from refsim.render import Column, Command, Document, Entry, Grid, Number, Record, Table, Wording, number, rendered
from refsim.sources import PTX

TABLE = Table(
    (
        Column("name", strong=True),
        Column("bits", align="right", unit="bit"),
        Column("note", drop=1),
        Column("why", citation=True),
    ),
    (("e4m3", 8, "a longer remark", PTX["cvt"]), ("e2m1", 4, None, PTX["cvt"])),
)
SENTENCES = Table(
    (
        Column("code", strong=True),
        Column("value", gap=3),
        Column("near", label="neighbours", gap=3),
        Column("key", text=False),
    ),
    (("0x7e", number(448.0), "416, nan", 1), ("0xff", "nan", None, 2)),
    headings=False,
)


def write(part, **options):
    return rendered(Document((part,)), **options)


def test_table_is_aligned():
    body, hints = write(TABLE)
    assert body == "name  bits [bit]  note\ne4m3           8  a longer remark\ne2m1           4  -\n"
    assert hints == ()


def test_table_loses_columns_and_says_so():
    body, hints = write(TABLE, width=20)
    assert body == "name  bits [bit]\ne4m3           8\ne2m1           4\n"
    assert hints == ("left out at 20 columns: note (all of it: a wider terminal, or --as json)",)


def test_table_becomes_records_where_no_column_may_go():
    columns = (Column("name"), Column("long", label="a long heading"), Column("absent"))
    body, hints = write(Table(columns, (("e4m3", "x" * 14, None), ("e2m1", "y", "z"))), width=24)
    assert hints == ()
    assert body.splitlines() == [
        "name            e4m3",
        "a long heading  xxxxxxxxxxxxxx",
        "",
        "name            e2m1",
        "a long heading  y",
        "absent          z",
    ]


def test_words_wrap_under_their_column_before_a_column_goes():
    columns = (Column("name"), Column("says", label="what it says of it"), Column("bits", align="right", drop=1))
    table = Table(columns, (("e4m3", "one two three four five six", 8), ("e2m1", "short", 4)))
    body, hints = write(table, width=28)
    assert hints == ()
    assert body.splitlines() == [
        "name  what it says of   bits",
        "      it",
        "e4m3  one two three        8",
        "      four five six",
        "e2m1  short                4",
    ]
    assert rendered(Document((table,)), "csv", width=28) == rendered(Document((table,)), "csv")


def test_a_column_of_words_is_not_squeezed_below_twelve_characters():
    columns = (Column("name"), Column("says"), Column("bits", align="right", drop=1))
    body, hints = write(Table(columns, (("e4m3", "a b c d e f g h i j", 8),)), width=20)
    assert body.splitlines() == ["name  says", "e4m3  a b c d e f g", "      h i j"]
    assert hints == ("left out at 20 columns: bits (all of it: a wider terminal, or --as json)",)


def test_citations_are_shown_on_request():
    assert "PTX ISA 9.0, cvt" in write(TABLE, citations=True)[0]
    assert "PTX" not in write(TABLE)[0]
    body, _ = rendered(Document((TABLE,), sources=(PTX["cvt"],)), citations=True)
    assert body.endswith(f"\nsource  PTX ISA 9.0, cvt  {PTX.address}\n")


def test_sentences_carry_labels_before_their_cells():
    assert write(SENTENCES)[0] == "0x7e   448   neighbours 416, nan\n0xff   nan\n"


def test_sentences_continue_between_cells():
    assert write(SENTENCES, width=24)[0] == "0x7e   448\n      neighbours 416, nan\n0xff   nan\n"


def test_sentence_does_not_repeat_itself():
    table = Table((Column("value"), Column("x", label="="), Column("class")), (("nan", None, "nan"),), headings=False)
    assert write(table)[0] == "nan\n"


@pytest.mark.parametrize("width", [None, 80, 40, 30, 20, 12, 1])
def test_grid_keeps_every_value_at_every_width(width):
    values = tuple(Number(1 / (1 << place), f"{1 / (1 << place):f}", f"1/{1 << place}") for place in range(16))
    body, _ = write(Grid(values, 8, 8), width=width)
    lines = body.splitlines()
    shown = [cell for line in lines if line.startswith("0x") for cell in line.split()[1:]]
    assert shown in ([value.text for value in values], [value.short for value in values])
    assert width is None or all(len(line) <= max(width, 20) for line in lines)
    assert lines[-1].split()[0] == f"0x{16 - len(lines[-1].split()[1:]):02x}"


def test_record_wraps_words_under_its_value():
    body, _ = write(
        Record((Entry("key", "one two three four five"), Entry("absent", None), Entry("size", 3, unit="B"))), width=26
    )
    assert body == "key   one two three four\n      five\nsize  3 B\n"


def test_statement_is_worded_by_the_model():
    body, _ = write(Wording(("2 of 64 elements differ", "first x\x1b[2J"), {"count": 2}))
    assert body == "2 of 64 elements differ\nfirst x\\x1b[2J\n"
    assert write(Wording(("one two three four five",), {}), width=20)[0] == "one two three four\n  five\n"
    assert write(Wording((Command("one two three four five"),), {}), width=20)[0] == "one two three four five\n"


def test_parts_stand_apart():
    body, _ = rendered(Document((Wording(("one",), {}), Wording((), {}), Wording(("two",), {})), hints=("hint",)))
    assert body == "one\n\ntwo\n"


def test_colour_changes_no_letter():
    for part in (TABLE, SENTENCES):
        coloured = write(part, colour=True)[0]
        assert "\x1b[1m" in coloured
        for escape in ("\x1b[1m", "\x1b[2m", "\x1b[0m"):
            coloured = coloured.replace(escape, "")
        assert coloured.replace(" ", "") == write(part)[0].replace(" ", "")
        assert [line.rstrip() for line in coloured.splitlines()] == write(part)[0].splitlines()
