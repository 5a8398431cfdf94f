"""Faults of block scaling: each class has mutants, all are caught and named, the page is of what was recorded.

Two are tried again in ci, all at night; `python -m conformance.block_faults` records them.
"""

from dataclasses import replace

import numpy as np
import pytest

from conformance.block_faults import page
from conformance.block_faults.catalogue import CLASSES
from conformance.block_faults.gates import COSINE, gates_of
from conformance.block_faults.mutants import BY_ID, MUTANTS
from conformance.block_faults.results import recorded, tried_by_id
from conformance.block_faults.trials import gates_for, judged, kernel_of, matmul, problem_of, quantisers
from conformance.tolerance.gates import References
from conformance.tolerance.mutants import FOLDER

RESULTS = recorded()
BEYOND_ANY_PROBLEM = {"offsets wrap at 32 bits", "offsets of A wrap at 32 bits", "offsets of B wrap at 32 bits"}
"""Which need operands of 4 GiB; they are made as those of 16 bits are."""


def test_every_class_of_the_catalogue_has_a_mutant():
    assert [each.id for each in CLASSES if all(mutant.of != each.id for mutant in MUTANTS)] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_mistake_fits_its_file_and_its_name_is_a_suspect(mutant):
    texts = {edit.file: (FOLDER / edit.file).read_text("utf-8") for edit in mutant.edits}
    for edit in mutant.edits:
        assert edit.applied(texts[edit.file]) != texts[edit.file]
    assert mutant.edits or mutant.uploads
    known = quantisers.MISTAKES.keys() | matmul.MISTAKES.keys() | {page.NEVER}
    assert set(mutant.named) <= known


def test_every_mistake_is_recorded_caught_and_named():
    assert list(RESULTS) == list(BY_ID)
    assert [id for id in RESULTS if not RESULTS[id].is_caught] == []
    assert [id for id in RESULTS if page.suspect(BY_ID[id], RESULTS[id]) == "NOT NAMED"] == []


def test_the_page_is_of_what_was_recorded():
    assert page.PAGE.read_text("utf-8") == page.page(RESULTS)
    text = "\n".join(page.lines(RESULTS))
    assert all(id in text for id in BY_ID)


def test_cosine_accepts_what_is_wrong():
    """Pads of NaN, a lost sign, the scales of another tile: three that it lets through."""
    for id in ("pads-poisoned", "unsigned-zero", "first-rows-for-all"):
        assert COSINE in page.passing(BY_ID[id], RESULTS[id]), id


@pytest.mark.parametrize(
    "id", ["pads-poisoned", "ties-away", "unrounded-scale", "pads-read", "shuffled-twice", "halves-packed"]
)
def test_gates_accept_what_the_right_kernel_writes(id):
    mutant = BY_ID[id]
    problem = problem_of(mutant)
    measures = judged(mutant, problem, kernel_of(mutant).expected(problem, "sm_120a"))
    assert [gate.name for gate in gates_for(mutant) if not gate.passes(measures[gate.name])] == []


@pytest.mark.parametrize("subject", ["tensor", "product"])
@pytest.mark.parametrize("bits", [4, 8])
def test_gates_accept_the_reference_and_refuse_another(subject, bits):
    y = np.random.default_rng(3).standard_normal((64, 64)) * 9
    same, other = References(y, y), np.roll(y, 1, 0)
    for gate in gates_of(subject, bits):
        assert gate.passes(gate.measures(y, same))
        assert not gate.passes(gate.measures(other, same))
        assert not gate.passes(gate.measures(y + other / 2, same)), gate.name  # a cosine of 0.89


@pytest.mark.ci("what is recorded of all mistakes is compared in every run")
@pytest.mark.parametrize("id", ["pads-read", "stored-scale-cut"])
def test_a_mistake_is_as_recorded(id):
    again = tried_by_id(id)
    assert (again.differing, again.finding, again.suspects) == (
        RESULTS[id].differing,
        RESULTS[id].finding,
        RESULTS[id].suspects,
    )


@pytest.mark.night("minutes; python -m conformance.block_faults writes it")
def test_all_is_again_as_recorded():
    for id, before in RESULTS.items():
        again = tried_by_id(id)
        assert (again.where, again.differing, again.suspects) == (before.where, before.differing, before.suspects), id


def test_suspects_of_places_are_five_orders():
    """Row 32 of the scales of 128 rows and 4 blocks: at byte 4, in rows at 128, by rows alone at 4, twice shuffled elsewhere."""
    problem = quantisers.BlockQuantize(128, 256, quantisers.Values("gaussian", 1), format="mxfp8", recipe="floor")
    right = quantisers.expected(problem)["scales"].astype(int)
    rows = right.reshape(2, 32, 4, 4).swapaxes(1, 2).reshape(2, 128, 4)  # tiles, rows, blocks
    made = {
        name: quantisers.MISTAKES[name](problem)["scales"].astype(int)
        for name in quantisers.MISTAKES
        if "scales" in name
    }
    in_rows = rows.swapaxes(0, 1).reshape(128, 8)
    assert made["the scales are not shuffled"].tolist() == in_rows.reshape(-1).tolist()
    alone = made["the rows of the scales alone are shuffled"].reshape(128, 8)
    assert alone[1].tolist() == in_rows[32].tolist()
    assert alone[4].tolist() == in_rows[1].tolist()
    assert made["the scales lie as nvidia_8x4 has them"][:8].tolist() == [*in_rows[0, :4], *in_rows[1, :4]]
    assert made["the grid of the scales' tiles is transposed"].tolist() == right.tolist()  # one tile of rows


def test_a_byte_read_the_other_way_round_shows():
    problem = matmul.BlockScaled(2, 3, 64, "block_scaled_matmul_sm120_mxfp4", *SIDES)
    right = matmul.expected(problem, "sm_120a")["d"]
    for name in ("A", "B"):
        assert (
            matmul.MISTAKES[f"the high half of a byte of {name} is the first element"](problem, "sm_120a")["d"] != right
        ).any()


@pytest.mark.ci("those that mutants make are recorded")
def test_every_suspect_of_a_product_changes_some_problem():
    shown = set(BEYOND_ANY_PROBLEM)
    entry = "block_scaled_matmul_sm120_{}".format
    problems = [
        matmul.BlockScaled(256, 256, 256, entry("nvfp4"), *SIDES),
        matmul.BlockScaled(130, 131, 288, entry("mxfp8"), *SIDES),
    ]
    problems += [matmul.BlockScaled(1030, 3, 64, entry("mxfp8"), *SIDES, factor=0.3)]
    problems += [
        matmul.BlockScaled(3, 1030, 64, entry("mxfp8"), *SIDES),
        matmul.BlockScaled(33, 33, 144, entry("nvfp4"), *SIDES),
    ]
    narrow = ("mxfp4", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2")
    problems += [matmul.BlockScaled(33, 33, 96, entry(name), *SIDES) for name in narrow]
    ends = replace(problems[-1], scale_a=matmul.Scales("ends", 1))
    for problem, target in (*((problem, "sm_120a") for problem in problems), (ends, "sm_90a")):
        want = matmul.expected(problem, target)["d"]
        for name in matmul.MISTAKES.keys() - shown:
            if (matmul.MISTAKES[name](problem, target)["d"] != want).any():
                shown.add(name)
    assert sorted(matmul.MISTAKES.keys() - shown) == []


SIDES = (
    matmul.Values("gaussian", 1),
    matmul.Values("gaussian", 2),
    matmul.Scales("distinct", 3),
    matmul.Scales("distinct", 4),
)
