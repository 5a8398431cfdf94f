"""What `refsim explore` writes: tables of the model that lose nothing, in a page that fetches nothing."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from refsim.cli.answers.anatomy import kind_of
from refsim.cli.answers.explorer.page import fragment_terms, kinds_of, page, rule_table, scale_terms
from refsim.conversions import decode
from refsim.formats import E4M3, FORMATS
from refsim.layouts.descriptors import DESCRIPTORS, Descriptor, descriptor
from refsim.layouts.families import fragment, fragments
from refsim.layouts.scales import scale_layout


@pytest.fixture(scope="module")
def written():
    return page()


@pytest.fixture(scope="module")
def facts(written):
    return json.loads(re.search(r'id="tables">(.*?)</script>', written, re.DOTALL)[1])


def test_every_fragment_is_a_sum_of_what_thread_and_value_add(facts):
    assert [row[0] for row in facts["fragments"]["rows"]] == list(fragments())
    down, across, added_down, added_across = fragment_terms(fragment("mma.m16n8k16.bf16.a"))
    assert (down[5] + added_down[3], across[5] + added_across[3]) == (9, 3)


def test_a_map_that_is_no_sum_is_refused_and_not_shown_wrong():
    plain = fragment("mma.m16n8k16.bf16.a")
    turned = replace(plain, formula=lambda thread, value: plain.formula(thread, value ^ (thread % 4 == 1)))
    with pytest.raises(RuntimeError, match="no sums"):
        fragment_terms(turned)


@pytest.mark.parametrize("row", [row for row in FORMATS if row.code_bits <= 16], ids=str)
def test_kinds_change_nowhere_but_where_the_table_says(row):
    runs = kinds_of(row)
    assert [run[0] for run in runs] == [0, *(run[1] + 1 for run in runs[:-1])]
    assert runs[-1][1] == row.code_limit - 1
    step = max(1, row.code_limit // 200)
    for first, last, kind, special in runs:
        for code in {first, last, *range(first, last, step)}:
            assert kind_of(code, row, row.value(code)) == kind
            assert str(abs(row.value(code))) == (special.lstrip("-") or str(abs(row.value(code))))


def test_every_format_of_decode_and_the_integers_are_there(facts):
    names = [row["name"] for row in facts["elements"]]
    assert names == [*(row.name for row in FORMATS), "s32", "s8", "u8", "s4", "u4", "b1", "f64"]


def test_places_of_scales_that_are_no_sum_are_refused():
    plain = scale_layout("nvidia_128x4")
    turned = replace(plain, place=lambda row, block, padded: plain.place(row, block ^ (row // 128 % 2), padded))
    assert len(scale_terms(plain)) == 3
    with pytest.raises(RuntimeError, match="no sums"):
        scale_terms(turned)


def test_one_is_one_in_every_format(facts):
    for row in facts["elements"]:
        if "one" in row and row["name"] != "f64":
            assert float(decode([row["one"]], row["name"])[0]) == 1
    assert next(row["one"] for row in facts["elements"] if row["name"] == "f64") == str(0x3FF0 << 48)


def test_a_rule_is_the_table_of_its_answers():
    smem = descriptor("tcgen05-smem")
    table = rule_table(smem.rules[0], smem)
    assert table["field"] == "swizzle"
    assert table["cases"][1] is None
    assert table["cases"][0]["cases"][2] == "base_offset 2 without a swizzle pattern that it could move"


def test_examples_of_descriptors_are_legal(facts):
    rows = facts["descriptors"]
    assert [row["kind"] for row in rows] == [each.kind for each in DESCRIPTORS if isinstance(each, Descriptor)]
    for row in rows:
        assert not descriptor(row["kind"]).problems(int(row["example"], 16))


def test_the_page_is_one_file_that_fetches_nothing(written):
    assert len(written.encode()) < 1_000_000
    assert "default-src 'none'" in written
    assert not re.search(r"""(?:src|href)=["'](?!data:)|@import|url\(|\bfetch\(|XMLHttpRequest|import\(""", written)
    assert not re.search(r"/\* (?:style|script|tables) \*/", written)
    assert "<noscript><p" in written


def test_no_fact_stands_in_the_script(written, facts):
    """Names of formats, fragments, swizzles and descriptors come from the tables; a script has them as first choices."""
    script = written.split('<script type="module">')[1]
    named = {*(row["name"] for row in facts["elements"]), *(row["name"] for row in facts["memory"]["swizzles"])}
    named |= {row["kind"] for row in facts["descriptors"]} | {row[0] for row in facts["fragments"]["rows"]}
    quoted = set(re.findall(r'"([^"\n]+)"', script)) & named - {"none"}
    assert quoted == {E4M3.name, "128B", "wgmma-smem", "mma.m16n8k16.bf16.a"}


def test_the_command_writes_the_file_and_says_so(refsim, tmp_path, written):
    run = refsim("explore", "-o", "page.html")
    assert (run.code, run.out) == (0, "")
    assert re.fullmatch(r"page\.html: 0\.\d MB, to open in a browser\n", run.err)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == written


def test_without_a_file_the_page_is_the_answer(refsim, written):
    run = refsim("explore")
    assert (run.code, run.err) == (0, "")
    assert run.out == written


@pytest.mark.parametrize(
    ("name", "code"),
    [("page.csv", "form-does-not-fit"), ("page.xlsx", "unknown-suffix"), ("none/page.html", "cannot-write")],
)
def test_a_name_that_is_no_page_is_refused_and_nothing_written(refsim, tmp_path, name, code):
    run = refsim("explore", "-o", name)
    assert run.code in (2, 3)
    assert f"[{code}]" in run.err
    assert list(tmp_path.iterdir()) == []


def test_holders_of_padding_have_no_terms():
    ragged = fragment("tcgen05.n40.1x.sfb")
    down, across, added_down, added_across = fragment_terms(ragged)
    used = np.array([[a is not None and b is not None for b in added_down] for a in down])
    assert (used >= (ragged.elements[0] >= 0)).all()
    assert len(across) == ragged.threads
    assert len(added_across) == ragged.values
