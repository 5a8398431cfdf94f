"""Undefined bits: right kernels pass, with a note where unwritten memory was read; wrong ones fail with both places."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import Kind, RefsimError
from refsim.layouts import fragment
from refsim.ptx.execution.register_file import Mask
from refsim.ptx.isa import forms
from refsim.ptx.isa.definedness import bits as undefined_bits
from refsim.ptx.isa.definedness.tensor import _accumulator
from refsim.ptx.machine.program import forget
from refsim.testing.kernel_files import load_kernel_file

kernels = load_kernel_file(Path(__file__).parent / "undefined_kernels.py")
MEMORY_CASES = load_kernel_file(Path(__file__).parent / "undefined_memory_kernels.py").CASES
BIT_CASES = load_kernel_file(Path(__file__).parent / "undefined_bit_kernels.py").CASES
CASES, REGISTERS = (*kernels.CASES, *BIT_CASES, *MEMORY_CASES), kernels.REGISTERS
run, marked = kernels.run, kernels.marked
POLICIES = pytest.mark.parametrize("policy", ptx.POLICIES)
OTHERS = pytest.mark.ci("the kernel runs under one policy in every run, its neighbours under the others")
UNDER_EACH = pytest.mark.parametrize(
    ("case", "policy"),
    [
        pytest.param(case, policy, id=f"{case}-{policy}", marks=() if (at + turn) % len(ptx.POLICIES) == 0 else OTHERS)
        for at, case in enumerate(CASES)
        for turn, policy in enumerate(ptx.POLICIES)
    ],
)


def body(case, is_right: bool) -> str:
    return case.text(is_right) if "%p6" not in case.text(False) else kernels.EVERYONE + case.text(is_right)


@UNDER_EACH
def test_a_right_kernel_passes(case, policy: str) -> None:
    _, trace = run(body(case, True), policy=policy)
    assert trace.findings == ()
    assert [note.code for note in trace.notes] == ([] if case.is_silent else ["uninitialised-unused"])
    for note in trace.notes:
        assert marked(case.text(True), "A") in note.where


@UNDER_EACH
def test_a_wrong_kernel_fails_with_both_places(case, policy: str) -> None:
    text = body(case, False)
    with pytest.raises(RefsimError) as caught:
        run(text, policy=policy)
    error = caught.value
    assert error.code == "uninitialised"
    assert error.kind == Kind.FAULT
    assert f"({marked(text, 'A')})" in error.where
    assert f"they reached {case.reached}" in error.what or f"it reached {case.reached}" in error.what
    assert f"({marked(text, 'B')})" in error.what
    assert "thread (" in error.where
    assert "thread (" in error.what
    assert recorded(text, policy) >= {"uninitialised"}


def recorded(text: str, policy: str) -> set[str]:
    """The codes of what a launch records; undefined bits that made it end in a fault come first."""
    try:
        return {finding.code for finding in run(text, policy=policy, initialised="record")[1].findings}
    except RefsimError as error:
        return {error.code}


@pytest.mark.parametrize("case", REGISTERS, ids=str)
def test_registers_that_nobody_wrote(case) -> None:
    assert run(case.text(True))[1].findings == ()
    with pytest.raises(RefsimError, match=r"was never written; it reached an output") as caught:
        run(case.text(False))
    assert caught.value.code == "uninitialised"


# ---- mutants: a rule that forgets its undefined bits, and one that makes everything undefined
def forgets(operands: Any) -> list[Any]:
    return undefined_bits.defined(operands)


# What Hopper and Blackwell alone have is asked for by one thread, or read by a warpgroup, in test_bulk_copies.py,
# test_tensor_map_edits.py, test_wgmma.py, test_tensor_memory.py, test_tensor_core.py and test_launch_control.py.
OF_HOPPER = {"prefetch", "fence", "tensormap", "wgmma", "tcgen05", "clusterlaunchcontrol"}
RULED = sorted(
    {clause.mnemonic for clause in forms.clauses() if not isinstance(clause.undefined, str)}
    - {"activemask", "elect"}
    - OF_HOPPER
)
FINER = sorted({case.tests for case in (*kernels.LOGIC, *kernels.ARITHMETIC, *BIT_CASES)} | {"atom"})


@contextmanager
def changed(mnemonic: str, rule: Callable[[Any], list[Any]]) -> Iterator[None]:
    """All clauses of a mnemonic with another rule."""
    before = list(forms._CLAUSES[mnemonic])
    forms._CLAUSES[mnemonic][:] = [replace(clause, undefined=rule) for clause in before]
    remembered = forms._matches.cache_clear, forms._bound.cache_clear, forget
    for each in remembered:
        each()
    try:
        yield
    finally:
        forms._CLAUSES[mnemonic][:] = before
        for each in remembered:
            each()


def is_found(text: str) -> bool:
    try:
        run(text)
    except RefsimError as error:
        return error.code == "uninitialised"
    return False


@pytest.mark.parametrize("mnemonic", RULED)
def test_a_rule_that_forgets_is_caught(mnemonic: str) -> None:
    """Some wrong kernel about the mnemonic is no longer found."""
    mine = [case for case in (*CASES, *REGISTERS) if case.tests == mnemonic]
    assert mine, "no kernel is about it"
    with changed(mnemonic, forgets):
        assert not all(is_found(body(case, False)) for case in mine)


@pytest.mark.parametrize("mnemonic", FINER)
def test_a_rule_that_takes_all_is_caught(mnemonic: str) -> None:
    """Some right kernel about the mnemonic is blamed."""
    mine = [case for case in CASES if case.tests == mnemonic]
    with changed(mnemonic, undefined_bits.whole):
        assert any(is_found(body(case, True)) for case in mine)


# ---- whole stories
def test_partial_sums_that_were_never_written_do_not_vanish() -> None:
    """28 of 32 floats are poison of about -1e-16: every sum is the same, and none is defined."""
    adds = "\n".join(f"ld.shared.f32 %r12, [%r2+{16 * lane}]; add.f32 %r11, %r11, %r12;" for lane in range(32))
    kernel = (
        "setp.lt.u32 %p4, %r1, {}; mov.b32 %r11, 0f3f800000;\n@%p4 st.shared.u32 [%r4], %r11;\nbar.sync 0;\n" + adds
    )
    kernel += "\nst.global.u32 [%d3], %r11;"
    sums, trace = run(kernel.format(32))
    assert (trace.findings, trace.notes) == ((), ())
    short, _ = run(kernel.format(4), initialised="off")
    assert short[0] == np.float32(5).view(np.uint32), "the poison vanishes"
    assert sums[0] == np.float32(33).view(np.uint32)
    with pytest.raises(RefsimError, match="reached an output"):
        run(kernel.format(4))


PIPELINE = """mov.u32 %r20, 0; mov.u32 %r11, 0; mov.u64 %d8, %d6; cvt.u64.u32 %d9, %r3; add.u64 %d8, %d8, %d9;
cp.async.ca.shared.global [%r4], [%d5], 16; cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
ld.shared.v4.u32 {%r21, %r22, %r23, %r24}, [%r4];
LOOP: add.u32 %r20, %r20, 1; and.b32 %r25, %r20, 1; mad.lo.u32 %r26, %r25, 2048, %r4;
setp.lt.u32 %p4, %r20, 2;
@%p4 cp.async.ca.shared.global [%r26], [%d5], 16; cp.async.commit_group;
add.u32 %r11, %r11, %r21; cp.async.wait_group 0; bar.sync 0;
ld.shared.v4.u32 {%r21, %r22, %r23, %r24}, [%r26+1024];
@%p4 ld.shared.v4.u32 {%r21, %r22, %r23, %r24}, [%r26];
setp.lt.u32 %p5, %r20, LIMIT; @%p5 bra LOOP;
st.global.u32 [%d3], %r11;"""


@POLICIES
def test_a_pipeline_may_fetch_one_slice_past_the_end(policy: str) -> None:
    """The registers of the slice that nobody wrote are dead; a turn more uses them."""
    out, trace = run(PIPELINE.replace("LIMIT", "2"), policy=policy)
    assert trace.findings == ()
    assert [note.code for note in trace.notes] == ["uninitialised-unused"]
    assert (out[:128:4] == 2 * np.arange(1, 129, 4)).all()
    with pytest.raises(RefsimError, match="reached an output"):
        run(PIPELINE.replace("LIMIT", "3"), policy=policy)


def test_a_wild_address_is_told_as_what_it_is() -> None:
    """The load would be out of bounds; why it is comes first, also where findings are recorded."""
    kernel = "ld.shared.u64 %d8, [%r4];\nld.global.u32 %r11, [%d8];"
    for level in ("error", "record"):
        with pytest.raises(RefsimError, match=r"they reached an address: ld\.global\.u32") as caught:
            run(kernel, initialised=level)
        assert caught.value.code == "uninitialised"
    assert "out-of-bounds" in caught.value.help
    with pytest.raises(RefsimError, match="out-of-bounds"):
        run(kernel, initialised="off")


def test_memory_is_that_of_one_run() -> None:
    """What the launch wrote before it began again counts once, and what it found there is found again."""
    memory = ptx.GlobalMemory()
    counter = memory.allocate(4, "counter", initial=np.array([40], np.uint32))
    text = (
        kernels.HEAD
        + f"""mov.u64 %d8, {counter}; @%p3 atom.global.add.u32 %r11, [%d8], 2; bar.sync 0;
        ld.shared.u32 %r10, [%r4]; ret; }}"""
    )
    args = [np.uint64(0), np.uint64(0), np.uint64(0)]
    trace = ptx.load(text).launch("k", (1,), (32,), args, memory=memory)
    assert len(trace.notes) == 1
    assert memory.read(counter, 4).view(np.uint32)[0] == 42


def test_nothing_is_followed_before_an_unwritten_read(monkeypatch) -> None:
    def unexpected(*_: Any, **__: Any) -> None:
        raise AssertionError("masks are kept for a launch that reads what was written")

    monkeypatch.setattr("refsim.ptx.machine.launch.Tracking", unexpected)
    run("st.shared.u32 [%r4], %r1;\nld.shared.u32 %r11, [%r4];\nst.global.u32 [%d3], %r11;")
    with pytest.raises(AssertionError):
        run("ld.shared.u32 %r11, [%r4];")


def test_what_touches_memory_or_other_lanes_has_a_rule_of_its_own() -> None:
    """ "whole" knows the operands of one lane alone: it would call undefined memory, or another lane's bits, defined."""
    bare = set()
    for clause in forms.clauses():
        has_address = any(form.address for form in clause.operands)
        exchanges = clause.rendezvous is not None and any(form.is_result for form in clause.operands)
        if clause.wants_lanes and not clause.flow and isinstance(clause.undefined, str) and (has_address or exchanges):
            bare.add(clause.form)
    assert bare == set()


def test_every_bit_of_a_count_of_undefined_votes_is_undefined() -> None:
    """bar.red.popc: the lowest bit too."""
    body = kernels.NONE + "setp.lt.u32 %p4, %r10, 9; bar.red.popc.u32 %r11, 0, %p4;\nand.b32 %r11, %r11, 1;\n"
    with pytest.raises(RefsimError, match="reached an output"):
        run(body + kernels.PUT)


def test_half_a_register_of_an_accumulator_is_undefined_alone() -> None:
    """D of f16, two to a register: the upper one of thread 0 was never written, nothing is wrong with the products."""
    form = fragment("wgmma.m64n8k16.f16.d.f16")
    bits, origin = np.zeros(128, np.uint32), np.zeros(128, np.int32)
    bits[0], origin[0] = 0xFFFF0000, 5
    masks = [Mask(bits, origin), *[None] * (form.registers - 1)]
    found = _accumulator(masks, np.ones(128, bool), np.zeros((1, 64, 8), np.int32), form)
    assert found[1:] == [None] * (form.registers - 1)
    assert hex(found[0].bits[0]) == "0xffff0000"
    assert not found[0].bits[1:].any()
