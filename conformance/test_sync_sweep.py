"""Every statement that orders something in our kernels is needed: its removal is found, or is written down with the reason.

A few small kernels in every run, more with `--refsim-profile ci`, all at night; `python -m conformance.sync_sweep` tries all
and writes the report.
"""

import re
from pathlib import Path

import pytest

from conformance.sync_sweep.__main__ import TRIED, reason_for, rows_of
from conformance.sync_sweep.edits import REMOVED, RULES
from conformance.sync_sweep.equivalents import equivalents
from conformance.sync_sweep.subjects import subjects
from conformance.sync_sweep.trials import all_tried, judged, whole
from refsim import ptx
from refsim.errors import Kind, RefsimError

REPORT = Path(__file__).parent / "reports/sync_sweep.md"
QUICK = (
    "box_in",
    "box_out",
    "wgmma_pair",
    "mbarrier_fenced",
    "arrival_at_a_neighbour",
    "stores_counted",
)
LARGER = (
    "ring",
    "runs",
    "exchange",
    "multicast",
    "wgmma_once",
    "wgmma_registers",
    "mbarrier_of_a_cluster",
    "ring_of_blocks",
    "tensor_ring",
    "tensor_turns",
    "tensor_pipe",
    "tensor_pair",
)
LATER = pytest.mark.ci("smaller kernels with the same statements are swept in every run")


def page() -> list[tuple[str, ...]]:
    """The report's rows of kernels."""
    return [cells for cells in rows_of(REPORT.read_text("utf-8")) if len(cells) == len(TRIED)]


def swept(name: str) -> None:
    try:
        tried = all_tried(name)
    except RefsimError as error:
        if error.kind is not Kind.MISSING:
            raise
        pytest.skip(f"the kernels cannot be compiled here: {error.what}")
    assert [
        f"{each.edit.name}, {each.edit.location}" for each in tried if not (each.is_caught or reason_for(each))
    ] == []
    removed = [each for each in tried if each.edit.rule.is_removal]
    assert sum(each.is_caught for each in removed) > len(removed) / 2


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=LATER) for name in LARGER)])
def test_every_statement_is_needed_or_its_reason_is_written(name, device):
    if device.name != "sim":
        pytest.skip("what a missing wait does to silicon is luck: the simulated GPU is swept")
    swept(name)


@pytest.mark.ci("the kernels that take minutes, at night; smaller ones with the same statements are swept in every run")
def test_every_statement_of_the_large_kernels_is_needed(device, refsim_profile):
    if device.name != "sim" or refsim_profile != "night":
        pytest.skip("half an hour of the simulated GPU: --refsim-profile=night")
    for name in subjects():
        if name not in (*QUICK, *LARGER):
            swept(name)


@pytest.mark.parametrize(
    "name", ["tensor_ring", *(pytest.param(each, marks=LATER) for each in ("tensor_turns", "tensor_pair"))]
)
def test_what_releases_and_acquires_needs_no_fence_of_tcgen05(name, device):
    """As CUTLASS has it: arrivals and waits say nothing of memory order, nor of a scope between two blocks; no tcgen05.fence."""
    if device.name != "sim":
        pytest.skip("what is not found by the simulated GPU, a real one does not say")
    try:
        of = whole(name)
    except RefsimError as error:
        if error.kind is not Kind.MISSING:
            raise
        pytest.skip(f"the kernels cannot be compiled here: {error.what}")
    text = re.sub(r"tcgen05\.fence::\w+;", "", of.text.replace(".relaxed.cluster", ""))
    assert ".relaxed" not in text
    assert "tcgen05.fence" not in text
    assert judged(of.subject, of.subject.problems[0], ptx.load(text, of.subject.target)) == ("", "", set())


def test_the_report_is_of_these_kernels_and_edits():
    """What was caught, of removals 98 % at least for each target; a row for each kernel, and none for one that is gone."""
    rows = page()
    assert {cells[0] for cells in rows} == set(subjects())
    assert {cells[1:3] for cells in rows} <= {(rule.family, rule.change) for rule in RULES}
    for target in {each.target for each in subjects().values()}:
        named = {name for name, each in subjects().items() if each.target == target}
        removed = [(int(cells[3]), int(cells[4])) for cells in rows if cells[0] in named and cells[2] == REMOVED]
        total, caught = map(sum, zip(*removed, strict=True))
        assert total >= 60
        assert caught >= 0.98 * total


def test_what_survived_has_reasons_that_are_listed():
    text = REPORT.read_text("utf-8")
    assert "not explained" not in text
    counted = [cells for cells in rows_of(text) if len(cells) != len(TRIED)]
    reasons = {row.name: row.because for row in equivalents()}
    assert {cells[0] for cells in counted} == set(reasons)
    assert {cells[0]: cells[3] for cells in counted} == reasons
    assert sum(int(cells[2]) for cells in counted) == sum(int(cells[3]) - int(cells[4]) for cells in page())
