"""refsim numerics: the pages say what the rows say; help and completion of both commands.

Both tables of conformance/reports/accumulators.md are written again by
    pytest tests/cli/commands/test_numerics_commands.py --refresh-golden
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from refsim import numerics
from refsim.evidence import Level
from refsim.formats import F16, F32
from refsim.numerics.rows import kept_bits, result_bits, where_c_enters

ROOT = Path(__file__).parents[3]


def answer(run):
    assert run.code == 0, run.err
    return json.loads(run.out)


def asked(refsim, line):
    return answer(refsim(*shlex.split(line), "--as", "json"))


def test_numerics_list_has_every_row(refsim):
    rows = answer(refsim("numerics", "list", "--as", "json"))["rows"]
    assert len(rows) == len(numerics.PROFILES)
    for found, row in zip(rows, numerics.PROFILES, strict=True):
        assert (found["target"], found["unit"], found["length"]) == (row.target, row.unit, row.length)
        assert (found["fraction"], found["rounding"], found["evidence"]) == (
            row.fraction,
            str(row.rounding),
            row.evidence.what,
        )
    some = asked(refsim, "numerics list --target sm_90a --unit wgmma -t e5m2 --source")["rows"]
    assert [row["types"] for row in some] == ["e4m3|e5m2 -> f32", "e4m3|e5m2 -> f16"]
    assert all(row["source"] for row in some)


@pytest.mark.parametrize("verb", ["list", "bits"])
@pytest.mark.parametrize(
    ("filters", "error", "said"),
    [
        ("--unit wgma", "unknown-name", "nearest: wgmma"),
        ("--target sm_91", "unknown-target", "nearest: sm_90"),
        ("-t e9m9", "unknown-name", "nearest: e5m2"),
        ("--unit wgmma --target sm_80", "unknown-arithmetic", "sm_80 mma.sync f16 -> f32"),
        ("--unit wgmma -t e2m1", "unknown-arithmetic", "sm_90 wgmma e4m3|e5m2 -> f32"),
    ],
)
def test_an_unknown_filter_shows_the_known(refsim, verb, filters, error, said):
    run = refsim("numerics", verb, *filters.split())
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith(f"[{error}]")
    assert said in run.err


def test_bits_gathers_all_rows_and_hides_no_level(refsim):
    found = answer(refsim("numerics", "bits", "--as", "json"))["accumulators"]
    for row in numerics.PROFILES:
        of = [
            each
            for each in found
            if row.target in each["targets"].split(", ")
            and row.unit == each["unit"]
            and "|".join(map(str, row.a_formats)) in each["types"].split(" -> ")[0].split(", ")
            and each["types"].endswith(f"-> {row.d_format}")
            and each["length"] in (row.length, None)
        ]
        assert of, row.name
        assert row.evidence.level.word in {each["level"] for each in of}
        if row.evidence.level is Level.UNVERIFIED:
            assert of[0]["kept"] == of[0]["result"] == of[0]["c_enters"] == "not known"
            assert of[0]["length"] is None
        elif row.fraction is not None:
            assert of[0]["kept"] == str(row.fraction + 1)
        assert any(row.evidence.what in each["evidence"] for each in of)


def test_a_half_result_keeps_as_many_bits_as_a_float():
    """The report says so, and its short table leaves the rows with f16 results out."""
    floats = {
        (row.target, row.unit, row.a_formats, row.length, row.fraction, row.c_enters)
        for row in numerics.PROFILES
        if row.d_format is F32
    }
    halves = [row for row in numerics.PROFILES if row.d_format is F16]
    assert halves
    assert all(
        (row.target, row.unit, row.a_formats, row.length, row.fraction, row.c_enters) in floats for row in halves
    )


# the pages


REPORT = ROOT / "conformance" / "reports" / "accumulators.md"
DOCS_MARK = "<!-- refsim numerics bits --source --as md -->\n"


def test_the_long_table_of_the_report_is_current(refsim, request):
    intro, mark, table = REPORT.read_text().partition(DOCS_MARK)
    assert mark, f"{REPORT} has no line {DOCS_MARK}"
    found = "\n" + refsim("numerics", "bits", "--source", "--as", "md").out
    if request.config.getoption("--refresh-golden"):
        REPORT.write_text(intro + mark + found)
        return
    assert table == found, __doc__


SHORT = {"e4m3|e5m2": "e4m3, e5m2", "e4m3|e5m2|e2m3|e3m2|e2m1": "FP8, FP6, FP4", "e4m3fnuz|e5m2fnuz": "FP8 (fnuz)"}


def condensed():
    """The short table of the report: the rows with float32 results, chips and types together that agree in bits and evidence."""
    gathered = {}
    for row in numerics.PROFILES:
        types = "|".join(map(str, row.a_formats))
        if row.d_format is not F32 or types == "f32":
            continue
        unit, _, kind = row.unit.removeprefix("mma.").partition(".")
        unit = "mma.sync" if unit == "sync" else unit
        key = (row.target, unit, kept_bits(row), result_bits(row), where_c_enters(row), row.evidence.level)
        kinds, whats = gathered.setdefault(key, ({}, {}))
        named = (
            SHORT.get(types, types) if kind in ("", "f16", "tf32") else f"{types} ({kind})" if kind == "1k" else kind
        )
        kinds.setdefault(row.length, {})[named] = None
        whats[row.evidence.what] = None
    merged = {}
    for (target, *rest), (kinds, whats) in gathered.items():
        taken = "; ".join(f"{', '.join(names)}: {length}" for length, names in kinds.items())
        targets, notes = merged.setdefault((*rest, taken), ([], {}))
        targets.append(target)
        notes.update(whats)
    numbers, lines = {}, []
    for (unit, kept, result, enters, level, taken), (targets, notes) in merged.items():
        cited = ", ".join(str(numbers.setdefault(what, len(numbers) + 1)) for what in notes)
        products = "not known" if level is Level.UNVERIFIED else taken
        cells = (", ".join(targets), unit, kept, result, products, enters, f"{level.word} [{cited}]")
        lines.append(f"| {' | '.join(cells)} |")
    headings = "chip", "instruction", "bits kept", "bits of the result", "products a step", "C enters", "evidence"
    head = f"| {' | '.join(headings)} |\n{'|---' * len(headings)}|\n"
    return head + "\n".join(lines) + "\n\n" + "\n".join(f"{place}. {what}" for what, place in numbers.items()) + "\n"


def test_the_short_table_of_the_report_is_current(request):
    before, mark, rest = REPORT.read_text().partition("<!-- accumulators -->\n\n")
    section, end, after = rest.partition("\n<!-- end -->\n")
    assert mark, f"{REPORT} has no <!-- accumulators -->"
    assert end
    if request.config.getoption("--refresh-golden"):
        REPORT.write_text(before + mark + condensed() + end + after)
        return
    assert section == condensed(), __doc__


# the program as a process


def test_sparse_rows_have_the_evidence_of_their_profiles(refsim) -> None:
    for target, level, said in (("sm_90a", "silicon", "H200"), ("sm_80", "unverified", "not measured")):
        rows = asked(refsim, f"numerics list --sparse --target {target} --source")["rows"]
        inferred = [row for row in rows if row["types"] != "s8|u8 -> s32"]
        assert inferred
        for row in inferred:
            assert row["level"] == level
            assert said in row["evidence"]
            a, d = row["types"].split("|")[0].split(" -> ")[0], row["types"].split(" -> ")[1]
            found = numerics.sparse_profile(target, row["unit"], a, a, d)
            assert found.evidence.what == row["evidence"]
    rows = asked(refsim, "numerics list --sparse --target sm_90a --unit wgmma -t e4m3 --source")["rows"]
    assert [(row["types"], row["k"]) for row in rows] == [("e4m3|e5m2 -> f32", "64"), ("e4m3|e5m2 -> f16", "64")]
    whole = asked(refsim, "numerics list --sparse --target sm_120")["rows"]
    assert len({(row["unit"], row["types"]) for row in whole}) == len(whole)


@pytest.mark.parametrize("name", ["mma", "numerics", "numerics list", "numerics bits"])
def test_help_loads_nothing_heavy(name):
    script = (
        "import sys; from refsim.cli import main; code = main(sys.argv[1:]);"
        "print(code, *sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, *name.split(), "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    code, *loaded = run.stderr.split()
    assert code == "0"
    assert {"numpy", "ml_dtypes", "hypothesis"} & set(loaded) == set()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("refsim mma --unit wg", {"wgmma"}),
        ("refsim mma --target gfx90", {"gfx908", "gfx90a"}),
        ("refsim mma -t e5m2", {"e5m2", "e5m2fnuz"}),
        ("refsim mma --d-format s", {"s32"}),
        ("refsim mma --scale-format u", {"ue4m3"}),
        ("refsim numerics li", {"list"}),
        ("refsim numerics list --unit mfma.", {"mfma.1k", "mfma.scale"}),
        ("refsim numerics bits -t b", {"bf16"}),
    ],
)
def test_completion_knows_the_names(words, found, refsim, monkeypatch):
    monkeypatch.setenv("_REFSIM_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    run = refsim()
    assert {line.partition(",")[2] for line in run.out.splitlines()} == found
