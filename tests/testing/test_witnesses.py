"""Kernel and oracle rest on one model: where that is wrong a verdict still fails, by recorded silicon or by a slow definition."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

import refsim.device
from refsim.cli.answers.verdicts import judged, junit, witnesses
from refsim.conversions import coding, encode, rounding
from refsim.errors import RefsimError
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.layouts import fragment
from refsim.numerics import mma, profiles
from refsim.silicon import launch_replay, vectors
from refsim.testing import Verdict, run_campaign
from refsim.testing.assertions import PromiseNotKept
from refsim.testing.laws import agrees_with_oracle
from refsim.testing.replay import run_problem

MMA = """.version 8.0
.target sm_90
.address_size 64
.visible .entry product(.param .u64 a, .param .u64 b, .param .u64 d) {
    .reg .b32 %t, %a<4>, %b<2>, %d<4>;
    .reg .b64 %p, %o;
    mov.u32 %t, %tid.x;
    mul.wide.u32 %o, %t, 16;
    ld.param.u64 %p, [a];
    add.u64 %p, %p, %o;
    ld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%p];
    mul.wide.u32 %o, %t, 8;
    ld.param.u64 %p, [b];
    add.u64 %p, %p, %o;
    ld.global.v2.b32 {%b0, %b1}, [%p];
    mov.b32 %d0, 0;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
        {%d0, %d1, %d2, %d3}, {%a0, %a1, %a2, %a3}, {%b0, %b1}, {%d0, %d0, %d0, %d0};
    mul.wide.u32 %o, %t, 16;
    ld.param.u64 %p, [d];
    add.u64 %p, %p, %o;
    st.global.v4.b32 [%p], {%d0, %d1, %d2, %d3};
    ret;
}
"""
ROUND = """.version 8.0
.target sm_90
.address_size 64
.visible .entry round(.param .u64 x, .param .u64 q) {
    .reg .b32 %t;
    .reg .f32 %x<2>;
    .reg .b16 %q;
    .reg .b64 %p, %o;
    mov.u32 %t, %tid.x;
    mul.wide.u32 %o, %t, 8;
    ld.param.u64 %p, [x];
    add.u64 %p, %p, %o;
    ld.global.v2.f32 {%x0, %x1}, [%p];
    cvt.rn.satfinite.e4m3x2.f32 %q, %x1, %x0;
    mul.wide.u32 %o, %t, 2;
    ld.param.u64 %p, [q];
    add.u64 %p, %p, %o;
    st.global.b16 [%p], %q;
    ret;
}
"""
A, B, D = (fragment(f"mma.m16n8k16.bf16.{operand}") for operand in "abd")


@dataclass(frozen=True)
class Problem:
    seed: int

    def codes(self, rows: int) -> NDArray[Any]:
        values = np.random.default_rng(self.seed + rows).standard_normal((rows, 16))
        return encode(values, "bf16")


def packed(layout, codes: NDArray[Any]) -> NDArray[Any]:
    rows, columns = layout.elements
    return np.ascontiguousarray(codes[rows, columns]).view(np.uint32)


def run_product(launcher: Launcher, problem: Problem) -> Outputs:
    a = launcher.upload(packed(A, problem.codes(16)), name="a")
    b = launcher.upload(packed(B, problem.codes(8).T), name="b")
    d = launcher.output(128, np.uint32, name="d")
    launcher.launch("product", 1, 32, [a, b, d])
    found = np.zeros(D.shape, np.uint32)
    found[D.elements] = launcher.read(d).reshape(32, 4)
    return {"d": found}


def product_of(problem: Problem, target: str) -> Outputs:
    d = mma(problem.codes(16), problem.codes(8), None, unit="mma.sync", a_format="bf16", b_format="bf16", target=target)
    return {"d": d.view(np.uint32)}


def product(**declared: object) -> Kernel:
    return Kernel(
        "product",
        oracle=product_of,
        problem=st.builds(Problem, st.integers(0, 9)),
        run=run_product,
        outputs={"d": "f32"},
        recipe=Problem,
        ptx=MMA,
        per_target=True,
        **declared,
    )


def run_round(launcher: Launcher, problem: Problem) -> Outputs:
    x = launcher.upload(values_of(problem), name="x")
    q = launcher.output(64, np.uint8, name="q")
    launcher.launch("round", 1, 32, [x, q])
    return {"q": launcher.read(q)}


def values_of(problem: Problem) -> NDArray[Any]:
    return np.random.default_rng(problem.seed).standard_normal(64).astype(np.float32)


ROUNDING = Kernel(
    "rounding",
    oracle=lambda problem: {"q": encode(values_of(problem), "e4m3")},
    problem=st.builds(Problem, st.integers(0, 9)),
    run=run_round,
    outputs={"q": "e4m3"},
    recipe=Problem,
    ptx=ROUND,
)


@pytest.fixture(autouse=True)
def replayed_anew() -> Iterator[None]:
    """The model is changed below: nothing may be known of it from another test, and nothing stay."""
    launch_replay.shared.cache_clear()
    yield
    launch_replay.shared.cache_clear()
    coding.code_table.cache_clear()


def verdict_of(kernel: Kernel) -> Verdict:
    return run_campaign(kernel, refsim.device.open("sim", "sm_90a"), cases=2, suspect_seconds=0)


@pytest.fixture
def five_bits_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """F = 20 in place of 25 in the row of bf16: clause and oracle take it from there, both."""
    key = ("sm_90", "mma.sync", "bf16", "bf16", "f32")
    changed = [replace(row, fraction=20) for row in profiles._BY_KEY[key]]
    assert [row.fraction for row in profiles._BY_KEY[key]] == [25] * len(changed)
    monkeypatch.setitem(profiles._BY_KEY, key, changed)


def test_a_verdict_names_the_recordings_of_what_ran() -> None:
    verdict = verdict_of(product())
    assert verdict.status == "pass", str(verdict)
    tensor, published = [each for each in verdict.silicon.replays if each.kind == "tensor core"]
    assert (tensor.instruction, tensor.target, tensor.chip) == (
        "mma.sync.bf16",
        "sm_90a",
        "NVIDIA H200 and NVIDIA H100 80GB HBM3",
    )
    assert tensor.words > 400_000
    assert tensor.differing == 0
    assert f"held to  tensor core: mma.sync.bf16 sm_90a, {tensor.counted}" in str(verdict)
    assert tensor.counted == f"{tensor.words:,} recorded results of an H200 and an H100 80GB HBM3, 0 differ"
    assert published.counted == "256 published results of an H100 and an H200, 0 differ"
    assert verdict.checks == ("recorded", "published")
    assert {each.instruction for each in verdict.silicon.replays} == {tensor.instruction, "add.u64", "mul.wide.u32"}
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_a_tensor_core_with_five_bits_fewer_fails_although_the_oracle_has_them_too(five_bits_fewer: None) -> None:
    verdict = verdict_of(product())
    assert verdict.differing == 0
    assert (verdict.status, verdict.exit_code) == ("fail", 1)
    assert verdict.finding.startswith("[model-differs]")
    assert "mma.sync.bf16 sm_90a" in verdict.finding
    assert "mul.wide" not in verdict.finding


def test_one_problem_and_the_law_are_held_to_it_too(five_bits_fewer: None) -> None:
    gpu = refsim.device.open("sim", "sm_90a")
    assert run_problem(product(), Problem(1), gpu).status == "fail"
    with pytest.raises(PromiseNotKept, match="model-differs"):
        agrees_with_oracle(product(), Problem(1), gpu)


def test_ties_that_go_up_fail_although_the_oracle_rounds_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """`encode` and the clause of cvt round by one function."""
    assert verdict_of(ROUNDING).status == "pass"
    launch_replay.shared.cache_clear()
    right = rounding._rounds_away

    def ties_up(rest: NDArray[Any], half: NDArray[Any], *others: object) -> NDArray[Any]:
        return right(rest, half, *others) | (rest == half)

    monkeypatch.setattr(rounding, "_rounds_away", ties_up)
    coding.code_table.cache_clear()
    verdict = verdict_of(ROUNDING)
    assert (verdict.differing, verdict.status) == (0, "fail")
    assert "conversions: cvt.rn.satfinite.e4m3x2.f32" in verdict.finding


def test_a_chip_without_a_recording_is_judged_by_published_results_and_a_second_definition() -> None:
    witness = launch_replay.Replays().of(["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"], "sm_100a")
    assert witness.judges == ("published", "definition")
    definition, published = witness.lines()
    assert published == "tensor core: mma.sync.bf16 sm_100a, 128 published results of a B200, 0 differ"
    assert definition.startswith(
        "tensor core: mma.sync.bf16 sm_100a, 96 dot products by a slow second definition, 0 differ; published model ("
    )


def test_a_verdict_without_an_independent_check_says_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_replay, "replayed", lambda opcode, target: iter(()))
    verdict = verdict_of(ROUNDING)
    assert (verdict.status, verdict.checks) == ("pass", ())
    assert str(verdict).splitlines()[-1] == "held to  none: no independent check was made"
    assert verdict.to_json()["checks"] == []
    (case,) = [line for line in junit([judged(ROUNDING, verdict)]).splitlines() if "<testcase" in line]
    assert '<property name="checks" value="none"/>' in case
    (line,) = witnesses([verdict])
    assert line.lines[-1] == "independent checks: none of rounding"


def test_without_recordings_the_verdict_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_here(path: str) -> None:
        raise RefsimError("no-such-file", path)

    monkeypatch.setattr(vectors, "bundled", none_here)
    assert verdict_of(ROUNDING).silicon.lines() == [
        "recorded hardware: none is installed here (conformance/vectors): nothing was replayed"
    ]


def by(change: Callable[[int], int | None]) -> Kernel:
    return product(definition=lambda problem, target, name, at: change(int(product_of(problem, target)[name][at])))


def test_outputs_are_computed_again_by_the_definition_of_the_kernel() -> None:
    verdict = verdict_of(by(lambda code: code))
    assert (verdict.recomputed.outputs, verdict.recomputed.differing) == (2, 0)
    assert "held to  2 outputs computed again by the slow definition (definition=), 0 differ" in str(verdict)
    assert verdict_of(product()).recomputed.text.startswith("no second definition was asked")


def test_a_definition_that_says_otherwise_fails_the_verdict() -> None:
    verdict = verdict_of(by(lambda code: code ^ 1))
    assert (verdict.status, verdict.recomputed.differing) == ("fail", 2)
    assert verdict.finding.startswith(
        "[definition-differs] 2 outputs computed again by the slow definition (definition=), 2"
    )


def test_a_definition_may_leave_outputs_out_and_returns_codes() -> None:
    assert verdict_of(by(lambda code: None)).recomputed.outputs == 0
    with pytest.raises(RefsimError, match="definition of kernel product returns float for d"):
        verdict_of(by(float))
