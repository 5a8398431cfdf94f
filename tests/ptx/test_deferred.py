"""Products that wait are computed by one call and give the bits that each gives by itself; a mutant of every rule is caught."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from refsim import ptx
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.machine import deferred
from refsim.ptx.machine.deferred import Deferred
from refsim.ptx.observers.steps import WarpTrace

MMA = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"
LANES = 128
OUT = 13  # words that each lane stores
# Accumulators 0 to 3 are chained from turn to turn; 4 is overwritten, an operand of 5 is, 6 continues 5 at once, and 7 is
# left out by every other warp. Between the products one accumulator is read by a scalar instruction.
SOURCE = f"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry tiles(.param .u64 x, .param .u64 y) {{
    .reg .b64 %a<4>;
    .reg .b32 %r<20>;
    .reg .f32 %f<40>;
    .reg .pred %p<3>;
    ld.param.u64 %a0, [x];
    ld.param.u64 %a1, [y];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %a2, %r0, 16;
    add.u64 %a2, %a0, %a2;
    mul.wide.u32 %a3, %r0, {4 * OUT};
    add.u64 %a3, %a1, %a3;
    shr.u32 %r1, %r0, 5;
    and.b32 %r2, %r1, 1;
    setp.eq.u32 %p0, %r2, 0;
    mov.u32 %r9, 0;
    {" ".join(f"mov.f32 %f{n}, 0f00000000;" for n in range(36))}
again:
    ld.global.v4.u32 {{%r3, %r4, %r5, %r6}}, [%a2];
    {
    " ".join(
        f"{MMA} {{%f{4 * n}, %f{4 * n + 1}, %f{4 * n + 2}, %f{4 * n + 3}}}, {{%r3, %r4}}, {{%r{5 + n % 2}}}, "
        f"{{%f{4 * n}, %f{4 * n + 1}, %f{4 * n + 2}, %f{4 * n + 3}}};"
        for n in range(4)
    )
}
    {MMA} {{%f16, %f17, %f18, %f19}}, {{%r4, %r5}}, {{%r6}}, {{%f16, %f17, %f18, %f19}};
    mov.f32 %f16, 0f40000000;
    {MMA} {{%f20, %f21, %f22, %f23}}, {{%r5, %r6}}, {{%r3}}, {{%f28, %f29, %f30, %f31}};
    xor.b32 %r5, %r5, 0x00010003;
    {MMA} {{%f20, %f21, %f22, %f23}}, {{%r5, %r6}}, {{%r3}}, {{%f20, %f21, %f22, %f23}};
    add.f32 %f32, %f0, %f32;
    @%p0 {MMA} {{%f24, %f25, %f26, %f27}}, {{%r3, %r4}}, {{%r6}}, {{%f24, %f25, %f26, %f27}};
    add.u64 %a2, %a2, {16 * LANES};
    add.u32 %r9, %r9, 1;
    setp.lt.u32 %p1, %r9, 3;
    @%p1 bra again;
    {
    " ".join(
        f"st.global.f32 [%a3 + {4 * place}], %f{number};"
        for place, number in enumerate((0, 1, 2, 3, 5, 10, 15, 16, 17, 20, 23, 32, 24))
    )
}
    ret;
}}
"""


def outputs(policy: str = "eager", seed: int = 0, arithmetic: str = "silicon") -> tuple[np.ndarray, int]:
    """What the kernel wrote, as bits, and how many instructions it executed."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal(3 * LANES * 8).astype(np.float16).view(np.uint32)
    y = np.zeros(LANES * OUT, np.float32)
    trace = ptx.load(SOURCE).launch("tiles", (1,), (LANES,), [x, y], policy=policy, seed=seed, arithmetic=arithmetic)
    return y.view(np.uint32).reshape(LANES, OUT), trace.instructions


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many executions each call computed."""
    sizes: list[int] = []
    compute = Deferred._compute

    def counted(self: Deferred, alike: list[Any]) -> None:
        sizes.append(len(alike))
        compute(self, alike)

    monkeypatch.setattr(Deferred, "_compute", counted)
    return sizes


def plainly(monkeypatch: pytest.MonkeyPatch, **how: Any) -> tuple[np.ndarray, int]:
    """The same without anything that waits."""
    with monkeypatch.context() as patch:
        patch.setattr(Deferred, "takes", lambda *_: False)
        return outputs(**how)


@pytest.mark.parametrize("arithmetic", ["silicon", "exact"])
@pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(4))])
def test_bits_and_counts_are_those_of_the_plain_definition(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], policy: str, seed: int, arithmetic: str
) -> None:
    found, instructions = outputs(policy, seed, arithmetic)
    assert max(sizes) >= 4
    want, counted = plainly(monkeypatch, policy=policy, seed=seed, arithmetic=arithmetic)
    assert (found == want).all()
    assert instructions == counted
    assert len(np.unique(found)) > LANES


def refetching(compute: Callable[..., None]) -> Callable[..., None]:
    """Operands read when the products are computed, not when the instruction ran."""

    def late(self: Deferred, alike: list[Any]) -> None:
        fresh = [deferred.Execution(each.kind, each.lanes, each.kind.operands(each.lanes)) for each in alike]
        compute(self, fresh)

    return late


def ignoring(which: str) -> Callable[..., None]:
    """Dependencies seen by what a block reads alone, or by what it writes, or by nothing."""

    def before(self: Deferred, block: Any, lanes: Lanes) -> None:
        steps = list(block.everything())
        seen = [index for step in steps for index in getattr(step, which)()] if which else []
        if any(self.code.slots[index] in self.slots for index in seen):
            self.settle()

    return before


@pytest.mark.parametrize(
    "mutant", ["no dependency", "reads alone", "writes alone", "operands late", "others' operands"]
)
def test_a_mutant_of_every_rule_gives_other_bits(monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    want, _ = outputs()
    match mutant:
        case "no dependency":
            monkeypatch.setattr(Deferred, "before", ignoring(""))
        case "reads alone":
            monkeypatch.setattr(Deferred, "before", ignoring("reads"))
        case "writes alone":
            monkeypatch.setattr(Deferred, "before", ignoring("writes"))
        case "operands late":
            monkeypatch.setattr(Deferred, "_compute", refetching(Deferred._compute))
        case _:
            stacked = deferred._stacked
            monkeypatch.setattr(deferred, "_stacked", lambda each, counts: stacked(each[::-1], counts[::-1]))
    assert (outputs()[0] != want).any()


def test_a_trace_of_registers_sees_each_product_at_its_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks at registers between statements reads them as they are: then nothing waits."""
    x, y = np.ones(3 * LANES * 4, np.uint32), np.zeros(LANES * OUT, np.float32)
    monkeypatch.setattr(Deferred, "takes", lambda *_: pytest.fail("a product waits while a warp is traced"))
    program = ptx.load(SOURCE)
    seen = WarpTrace(program.stepped("tiles"), 0)
    program.launch("tiles", (1,), (LANES,), [x, y], observer=seen)
    products = [ran for ran in seen.ran if ran.statement.opcode == MMA]
    assert len(products) == 24
    assert all(len(ran.registers) == 4 for ran in products)
