"""A campaign on several processes: what becomes of their verdicts, and which problems each of them runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from conformance import spread_campaign as spread
from refsim.testing.kernel_files import bundled_kernels
from refsim.testing.verdicts import FAIL, PASS, Recomputed, Verdict

SAID = {"name": "sim", "target": "sm_90a"}
RIGHT = Verdict("k", PASS, SAID, "quick", 1, 5, 100, 2.0, recomputed=Recomputed(3, 0, "", is_declared=True))
WRONG = replace(RIGHT, status=FAIL, finding="a bit", differing=1, recomputed=Recomputed(1, 1, "y[0]", is_declared=True))


def test_verdicts_of_all_processes_are_added_and_the_first_that_is_no_pass_stands_in_front():
    parts = [(RIGHT.to_json(), {"p", "q"}), (WRONG.to_json(), {"p", "r"}), (RIGHT.to_json(), {"p"})]
    verdict, different = spread.together(parts)
    assert (verdict.status, verdict.finding, verdict.cases, verdict.elements) == (FAIL, "a bit", 15, 300)
    assert (verdict.differing, verdict.seconds, different) == (1, 6.0, 3)
    assert verdict.recomputed == Recomputed(7, 1, "y[0]", is_declared=True)
    page = spread.page_of([(verdict, different)], 3, 2.4)
    assert page["verdicts"][0]["different"] == 3
    assert (page["processes"], page["took_s"], page["device"]["target"]) == (3, 2, "sm_90a")


def test_processes_share_the_corpus_and_draw_with_seeds_of_their_own(tmp_path):
    """Three processes, each the first problem of three of a corpus and one that it draws."""
    file = tmp_path / "few.py"
    file.write_text(
        "from dataclasses import replace\n"
        "from refsim.testing.kernel_files import load_kernel_file\n"
        f"amax = load_kernel_file({str(bundled_kernels('bindings.py'))!r}).FP8_AMAX\n"
        "KERNELS = (replace(amax, corpus=amax.corpus[:3]),)\n"
    )
    parts = [spread.part(str(file), "fp8_amax", "sim", 1, seed, (seed, 3)) for seed in range(3)]
    corpus = {repr(problem) for problem in spread.kernels_of(str(file))["fp8_amax"].corpus}
    assert [len(corpus & seen) for _, seen in parts] == [1, 1, 1]
    assert corpus <= set().union(*(seen for _, seen in parts))
    assert {record["seed"] for record, _ in parts} == {0, 1, 2}
    verdict, _ = spread.together(parts)
    assert (verdict.status, verdict.cases, verdict.differing) == (PASS, 6, 0)


@pytest.mark.parametrize(("stem", "least"), [("row_functions", 1000), ("attention_sm90", 300)])
def test_committed_campaigns_are_of_one_source_on_the_simulator_and_two_chips(stem, least):
    """Each kernel: so many problems on each, no two alike on the simulator, nothing differs."""
    folder = Path(__file__).parent / "reports"
    pages = {
        where: json.loads((folder / where / f"{stem}.verify.json").read_text()) for where in ("sim", "h200", "h100")
    }
    assert len({page["device"]["source_sha256"] for page in pages.values()}) == 1
    for where, page in pages.items():
        for row in page["verdicts"]:
            assert (row["status"], row["differing"], row["promise"]) == (PASS, 0, "bitwise")
            assert row["different" if where == "sim" else "cases"] >= least
