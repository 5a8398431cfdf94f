"""What an H200 returned for some 1,200 scalar instruction forms, replayed on the simulator without a GPU.

Each form ran on 1,024 rows that are stored (corner against corner, special values, anything) and on 16 chunks of 65,536
further rows of which digests are stored. Every profile replays the stored rows of every form, with all checks of a launch.
Of the digests quick replays one of one form of every mnemonic, ci one of every form, night all of them.
"""

import hashlib
from itertools import groupby

import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim.silicon.scalar_probe import (
    ARITHMETIC_ALONE,
    DIGEST_CHUNKS,
    SWAPPED_BY_PTXAS,
    TABLE_ROWS,
    chunk_operands,
    differing_rows,
    form_of,
    is_pure,
    launched,
    open_reason,
    probe_module,
    table_operands,
)
from refsim.silicon.vectors import digest, locate, recordings, sidecar

RECORDED = recordings("scalar")
FORMS = {name: form_of(row) for name, row in RECORDED.items()}


CLOSED = sorted(name for name in FORMS if open_reason(name) is None)
BY_MNEMONIC = {key: list(names) for key, names in groupby(CLOSED, lambda name: name.partition(".")[0])}


def replayed_chunks(name, profile):
    """The chunks of a form whose digests a profile replays; in quick another place in every mnemonic."""
    if profile == "night":
        return range(DIGEST_CHUNKS)
    mnemonic = name.partition(".")[0]
    number = list(BY_MNEMONIC).index(mnemonic)
    sampled = BY_MNEMONIC[mnemonic][number % len(BY_MNEMONIC[mnemonic])]
    return [number % DIGEST_CHUNKS] if profile == "ci" or name == sampled else []


def spelled(form, operands, results, wanted, limit=4):
    """The first differing rows: operands, what came, what the H200 gave."""
    rows = np.flatnonzero(results != wanted)[:limit]
    return [
        f"{form.name} of {', '.join(hex(int(column[row])) for column in operands)}: "
        f"{int(results[row]):#x}, H200 {int(wanted[row]):#x}"
        for row in rows
    ]


def without_payload(patterns):
    """float64 patterns with one NaN for all."""
    return np.where(np.isnan(patterns.view(np.float64)), np.uint64(0x7FF8000000000000), patterns)


def wrong(name, chunks):
    """What is not as the H200 had it: stored rows of a form, and the digests of some chunks."""
    form, row = FORMS[name], RECORDED[name]
    operands = [row.arrays[f"operand{slot}"] for slot in range(len(form.operands))]
    results, exact = launched(form, operands)
    found = [] if exact else [f"{name}: the simulator does not vouch for it"]
    wanted = row.arrays["result"]
    if name in SWAPPED_BY_PTXAS:
        return found + spelled(form, operands, without_payload(results), without_payload(wanted))
    found += spelled(form, operands, results, wanted)
    for chunk in chunks:
        results, _ = launched(form, chunk_operands(form.operands, chunk), ARITHMETIC_ALONE)
        got, digested = int(digest(results)), int(row.arrays["chunk_digests"][chunk])
        if got != digested:
            found.append(f"{name}, chunk {chunk}: row and difference {locate(got, digested)}")
    return found


@pytest.mark.parametrize("mnemonic", BY_MNEMONIC)
def test_simulator_returns_what_the_h200_returned(mnemonic, refsim_profile):
    found = []
    for name in BY_MNEMONIC[mnemonic]:
        try:
            found += wrong(name, replayed_chunks(name, refsim_profile))
        except RefsimError as error:
            found.append(f"{name}: {error}")
    assert found == []


def test_every_closed_form_is_replayed():
    assert sorted(name for names in BY_MNEMONIC.values() for name in names) == CLOSED
    assert len(CLOSED) == 1173
    assert len(set(CLOSED) - SWAPPED_BY_PTXAS) == 1170


def test_every_profile_replays_digests():
    """Of every mnemonic at least one, in each profile more than in the one before."""
    counts = {
        profile: {key: sum(len(replayed_chunks(name, profile)) for name in names) for key, names in BY_MNEMONIC.items()}
        for profile in ("quick", "ci", "night")
    }
    assert set(counts["quick"].values()) == {1}
    assert counts["ci"] == {key: len(names) for key, names in BY_MNEMONIC.items()}
    assert counts["night"] == {key: DIGEST_CHUNKS * len(names) for key, names in BY_MNEMONIC.items()}
    assert not SWAPPED_BY_PTXAS & {name for name in CLOSED if replayed_chunks(name, "quick")}


@pytest.mark.parametrize("name", sorted(set(FORMS) - set(CLOSED)))
def test_simulator_does_not_vouch_for_open_forms(name):
    _, exact = launched(FORMS[name], [column[:256] for column in table_operands(FORMS[name].operands)])
    assert not exact, open_reason(name)


def test_operands_are_still_those_the_gpu_was_given():
    for kinds in dict.fromkeys(form.operands for form in FORMS.values()):
        name = next(name for name, form in FORMS.items() if form.operands == kinds)
        for slot, column in enumerate(table_operands(kinds)):
            assert len(column) == TABLE_ROWS
            assert np.array_equal(column, RECORDED[name].arrays[f"operand{slot}"]), (name, slot)


def test_ptx_is_still_the_text_that_the_gpu_ran():
    numbered = sorted(FORMS, key=lambda name: int(RECORDED[name].facts["entry"].removeprefix("form_")))
    text = probe_module([FORMS[name] for name in numbered])
    assert hashlib.sha256(text.encode()).hexdigest() == sidecar("scalar")["sha256"]["scalar.ptx"]


def test_a_wrong_clause_would_be_caught():
    """add.rn.f32 against the recording of add.rz.f32, and min against max: both differ in stored rows and digests."""
    for name, other in (("add.rn.f32", "add.rz.f32"), ("min.f32", "max.f32"), ("shl.b32", "shr.u32")):
        form, row = FORMS[name], RECORDED[other]
        operands = [row.arrays[f"operand{slot}"] for slot in range(len(form.operands))]
        results, _ = launched(form, operands)
        assert spelled(form, operands, results, row.arrays["result"]) != []
        results, _ = launched(form, chunk_operands(form.operands, 0))
        assert digest(results) != row.arrays["chunk_digests"][0]


@pytest.mark.parametrize("mnemonic", BY_MNEMONIC)
def test_clauses_alone_return_the_stored_rows_too(mnemonic):
    """The short way that a verdict replays them by: without a machine, where a form needs none."""
    alone = [name for name in BY_MNEMONIC[mnemonic] if is_pure(RECORDED[name])]
    assert {name: differing_rows(RECORDED[name]) for name in alone} == dict.fromkeys(alone, (TABLE_ROWS, 0))
