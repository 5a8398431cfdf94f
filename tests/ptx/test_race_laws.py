"""The check of races against a second definition: on random small programs it finds something exactly where a race is.

Both see one execution: the simulator's own order of accesses, under a policy. `race_definition.py` computes by the letter of
the memory model, and says where the simulator departs from it.
"""

from pathlib import Path

import pytest
from hypothesis import given

from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.strategies import share

programs = load_kernel_file(Path(__file__).parent / "race_programs.py")
definition = programs.definition
Chunk, Op = definition.Chunk, definition.Op
SCHEDULES = [("eager", 1), ("random", 1), ("random", 2)]
A, B, C, D, E = programs.CANDIDATES  # lanes 0 and 1, warp 1, and lanes 0 and 1 of the other block


def disagreement(threads, chunks, schedules=SCHEDULES):
    """What simulator and definition say under the first schedule where only one of them says anything."""
    for schedule, (said, order) in zip(schedules, programs.runs(chunks, threads, schedules), strict=True):
        races = definition.Execution(chunks, definition.executed(chunks, order)).races()
        if bool(said) != bool(races):
            lines = [
                f"{number} {chunk.threads} {programs.text(chunk.op, number)}" for number, chunk in enumerate(chunks)
            ]
            what = [error.what for error in said]
            return "\n".join(
                ["", f"threads {threads}", *lines, f"{schedule}: {order}", f"wanted {races}", f"said {what}"]
            )
    return None


@share(2)
@given(case=programs.programs())
def test_a_race_is_reported_exactly_where_there_is_one(case) -> None:
    assert disagreement(*case) is None


def chunk(threads, kind, *order, **rest):
    return Chunk((threads,) if isinstance(threads[0], int) else threads, Op(kind, *order, **rest))


ATOMIC, NARROW = ("relaxed", "gpu"), ("relaxed", "cta")
# fmt: off
RACES = {
    "fences of a block before a barrier, read by another block": [
        chunk(B, "st", value=1), chunk(B, "fence", "sc", "cta"), chunk((A, B), "bar"),
        chunk(A, "st", *ATOMIC, word=1, value=1), chunk(D, "ld", *ATOMIC, word=1), chunk(D, "fence", "sc"), chunk(D, "ld")],
    "a fence of the grid before a barrier, and one of the other block behind the read": [
        chunk(B, "st", value=1), chunk(B, "fence", "sc"), chunk((A, B), "bar"),
        chunk(A, "st", *ATOMIC, word=1, value=1), chunk(D, "ld", *ATOMIC, word=1), chunk(D, "fence", "sc", "cta"),
        chunk(D, "ld")],
    "an acq_rel fence before a barrier of the warp": [
        chunk(B, "st", value=1), chunk(B, "fence", "acq_rel", "cta"), chunk((A, B), "warp"),
        chunk(A, "st", *ATOMIC, word=1, value=1), chunk(C, "ld", *ATOMIC, word=1), chunk(C, "fence", "sc"), chunk(C, "ld")],
    "an atomic that changes nothing reads what another thread stored": [
        chunk(D, "st", value=1), chunk(C, "add", *ATOMIC, value=0)],
    "a compare-and-swap that fails reads it too": [chunk(D, "st", value=1), chunk(C, "cas", *ATOMIC, value=1, expected=2)],
    "a weak store behind a strong one that waits to be marked": [
        chunk(A, "add", *ATOMIC, space="shared", value=1),
        chunk(A, "st", space="shared", value=2),
        chunk(C, "add", *ATOMIC, space="shared", value=0),
    ],
    "lanes store different values by one instruction, one of them what is there": [chunk((A, B), "st", is_own=True)],
    "of two own accesses the weak one races": [
        chunk(A, "st", value=2), chunk(A, "exch", *NARROW, is_used=False), chunk(C, "add", *ATOMIC, value=1)],
    "a weak read before one's own atomic races with the atomic of another thread": [
        chunk(A, "ld"), chunk(A, "exch", *ATOMIC, value=1), chunk(C, "exch", *ATOMIC, value=2)],
    "an atomic whose result nobody reads has observed nothing": [
        chunk(C, "exch", *ATOMIC, value=1), chunk(E, "cas", *ATOMIC, value=2, expected=0, is_used=False), chunk(E, "ld")],
    "of a strong store, by an atomic of the block alone": [
        chunk(A, "st", *ATOMIC, value=1), chunk(D, "add", *NARROW, value=1)],
    "a later benign store is no order": [chunk(A, "st", value=1), chunk(C, "st", value=1), chunk(D, "st", value=2)],
    "relaxed on both sides": [
        chunk(A, "st", value=1), chunk(A, "st", *ATOMIC, word=1, value=1), chunk(D, "ld", *ATOMIC, word=1), chunk(D, "ld")],
    "a release to the block, acquired by another": [
        chunk(A, "st", value=1), chunk(A, "st", "release", "cta", word=1, value=1),
        chunk(D, "ld", "acquire", "gpu", word=1), chunk(D, "ld")],
    "the first of the lanes that swap one value in changes what is there": [
        chunk((A, B), "exch", *ATOMIC, value=1), chunk(C, "ld")],
    "a relaxed atomic hands nothing on": [
        chunk(A, "st", value=1), chunk(A, "exch", *ATOMIC, word=1, value=1), chunk(D, "ld", "acquire", "gpu", word=1),
        chunk(D, "ld")],
    "a plain strong store ends the chain": [
        chunk(A, "st", value=1), chunk(A, "st", "release", "gpu", word=1, value=1),
        chunk(C, "st", *ATOMIC, word=1, value=2), chunk(D, "ld", "acquire", "gpu", word=1), chunk(D, "ld")],
}
RIGHT = {
    "lanes that stored one value by one instruction, of which one reads it": [
        chunk((A, B), "st", value=1), chunk(A, "ld")],
    "a thread's own strong store keeps what its atomic observed": [
        chunk(C, "exch", *ATOMIC, value=1), chunk(A, "exch", *ATOMIC, value=2), chunk(A, "st", *ATOMIC, value=3),
        chunk((A, B), "warp"), chunk(B, "st", value=0)],
    "a thread's own weak read keeps what its strong read observed": [
        chunk(C, "st", *ATOMIC, value=1), chunk(A, "ld", *ATOMIC), chunk(A, "ld"), chunk((A, B), "warp"), chunk(B, "ld")],
    "observing a store observes the earlier ones of its thread": [
        chunk(B, "st", *ATOMIC, value=0), chunk(B, "st", "release", "gpu", value=0), chunk(E, "exch", *ATOMIC),
        chunk(E, "st", value=1)],
    "observing a store that changes nothing observes the one before": [
        chunk(B, "st", *ATOMIC, value=1),
        chunk(B, "st", *ATOMIC, value=1),
        chunk(E, "exch", *ATOMIC, value=2),
        chunk(E, "st", value=3),
    ],
    "a release to the block, acquired there by more": [
        chunk(A, "st", value=1),
        chunk(A, "st", "release", "cta", word=1, value=1),
        chunk(C, "ld", "acquire", "gpu", word=1),
        chunk(C, "ld"),
    ],
    "lanes of two blocks store one value by one instruction": [chunk((A, D), "st", "release", "cta", value=1)],
    "a failed compare-and-swap behind the success of the same instruction": [
        chunk((A, B, C), "cas", *ATOMIC, value=1, expected=0), chunk((A, B, C), "bar"), chunk(C, "ld")],
    "a chain of atomics hands on": [
        chunk(A, "st", value=1), chunk(A, "st", "release", "gpu", word=1, value=1), chunk(C, "add", *ATOMIC, word=1, value=1),
        chunk(D, "ld", "acquire", "gpu", word=1), chunk(D, "ld")],
    "what a thread acquired it releases in turn": [
        chunk(A, "st", value=1), chunk(A, "st", "release", "gpu", word=1, value=1), chunk(C, "ld", "acquire", "gpu", word=1),
        chunk(C, "st", "release", "gpu", word=2, value=1), chunk(D, "ld", "acquire", "gpu", word=2), chunk(D, "ld")],
    "fences about relaxed accesses": [
        chunk(A, "st", value=1), chunk(A, "fence", "acq_rel"), chunk(A, "st", *ATOMIC, word=1, value=1),
        chunk(D, "ld", *ATOMIC, word=1), chunk(D, "fence", "acq_rel"), chunk(D, "ld")],
    "fences of the whole grid before a barrier": [
        chunk(B, "st", value=1), chunk(B, "fence", "sc"), chunk((A, B), "bar"), chunk(A, "add", *ATOMIC, word=1, value=1),
        chunk(D, "add", *ATOMIC, word=1, value=1), chunk(D, "fence", "sc"), chunk(D, "ld")],
    "fences of a block before a barrier of the warp": [
        chunk(B, "st", value=1), chunk(B, "fence", "sc", "cta"), chunk((A, B), "warp"),
        chunk(A, "st", *ATOMIC, word=1, value=1), chunk(C, "ld", *ATOMIC, word=1), chunk(C, "fence", "sc"), chunk(C, "ld")],
}
# fmt: on


def agreed(chunks) -> bool:
    """Whether both say that there is a race, where the statements are run in their order."""
    threads = sorted({thread for one in chunks for thread in one.threads})
    assert disagreement(threads, chunks, [("eager", 1), *(("random", seed) for seed in range(1, 9))]) is None
    return bool(next(programs.runs(chunks, threads, [("eager", 1)]))[0])


@pytest.mark.parametrize("name", RACES)
def test_what_was_missed_once_is_found(name) -> None:
    assert agreed(RACES[name])


@pytest.mark.parametrize("name", RIGHT)
def test_what_was_a_false_alarm_once_is_silent(name) -> None:
    assert not agreed(RIGHT[name])
