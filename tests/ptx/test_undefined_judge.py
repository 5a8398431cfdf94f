"""The rules of undefined bits against their definition: all completions of the undefined bits, for every opcode that computes.

No rule calls a bit defined that some completion changes. With few undefined bits no rule marks another bit either, except of
instructions whose results are approximate. OPEN lists the integer instructions whose rules may mark more than that when many
bits are undefined.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from refsim.ptx.execution.register_file import Mask
from refsim.ptx.isa.definedness import bits as undefined_bits
from refsim.ptx.isa.forms import Bound, bind
from refsim.ptx.lowering.steps import Step
from refsim.ptx.lowering.tracked import follower
from refsim.ptx.text.syntax import Register
from refsim.testing.kernel_files import load_kernel_file

judge = load_kernel_file(Path(__file__).parent / "undefined_judge.py")
WHOLE_NUMBERS = ("integer", "logic")
OPEN = {
    "add.sat", "sub.sat", "mul", "mul24", "mad", "mad24", "madc", "sad", "div", "rem", "dp2a", "dp4a", "fns",
}  # fmt: skip
FLOATS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2", "f32x2")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Instructions run as the simulator runs them: with divisions by zero and overflows unmentioned."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture
def without_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules without the completions of few bits, as for operands with many undefined bits."""
    monkeypatch.setattr(undefined_bits, "FEW_BITS", -1)


def family(bound: Bound) -> str:
    return bound.clause.function.__module__.rpartition(".")[2]


def name(bound: Bound) -> str:
    """The mnemonic, and whether an addition saturates."""
    return bound.clause.mnemonic + (".sat" if bound.opcode.startswith(("add.sat.s32", "sub.sat.s32")) else "")


def judged(bounds: list[Bound], *ties: bool, lanes: int = 8, most: int = 8) -> dict[str, Any]:
    """The counts of opcodes; a miss fails here."""
    counts = {bound.opcode: judge.judge(bound, number, ties, lanes, most) for number, bound in enumerate(bounds)}
    assert {opcode: count.example for opcode, count in counts.items() if count.misses} == {}
    return counts


def false_alarms(bounds: list[Bound], counts: dict[str, Any]) -> dict[str, str]:
    return {bound.opcode: count.example for bound in bounds if (count := counts[bound.opcode]).false_alarms}


def test_integers_and_logic_are_exact_with_few_undefined_bits() -> None:
    bounds = [bound for bound in judge.judged_opcodes(64) if family(bound) in WHOLE_NUMBERS]
    assert len(bounds) > 230
    assert false_alarms(bounds, judged(bounds, False, True)) == {}


def test_all_other_opcodes_are_exact_with_few_undefined_bits(refsim_profile: str) -> None:
    """Comparisons, selections, conversions and floats: all opcodes beyond `quick`, which draws each fifth."""
    bounds = [bound for bound in judge.judged_opcodes(64) if family(bound) not in (*WHOLE_NUMBERS, "video")]
    assert len(bounds) > 2000
    bounds = [bound for bound in bounds if not bound.clause.inexact][:: 5 if refsim_profile == "quick" else 1]
    assert false_alarms(bounds, judged(bounds, False, True, lanes=4 if refsim_profile == "quick" else 8)) == {}


def test_video_instructions_are_exact_with_few_undefined_bits(refsim_profile: str) -> None:
    """With selectors drawn for each opcode."""
    bounds = [bound for bound in judge.judged_opcodes(64) if family(bound) == "video"]
    assert len(bounds) > 150
    bounds = bounds[:: 8 if refsim_profile == "quick" else 1]
    assert false_alarms(bounds, judged(bounds, False, True, lanes=4, most=6)) == {}


def test_parts_of_simd_instructions_are_exact_with_few_undefined_bits_each(
    monkeypatch: pytest.MonkeyPatch, refsim_profile: str
) -> None:
    """Twelve undefined bits, at most two in each byte: a part reads ten or fewer of them."""

    def spread(random: np.random.Generator, widths: list[int], lanes: int, bits: int) -> np.ndarray:
        pool = [at for byte in range(sum(widths) // 8) for at in 8 * byte + random.permutation(8)[:2]]
        return np.array([random.choice(pool, bits, replace=False) for _ in range(lanes)])

    monkeypatch.setattr(judge, "drawn_places", spread)
    simd = [bound for bound in judge.judged_opcodes(64) if bound.clause.mnemonic.endswith(("2", "4"))]
    bounds = [bound for bound in simd if family(bound) == "video" and bound.keywords["last"] != "add"]
    assert len(bounds) > 80
    for number, bound in enumerate(bounds[:: 8 if refsim_profile == "quick" else 1]):
        for is_tied in (False, True):
            count = judge.judged(bound, np.random.default_rng(number), 2, 12, is_tied)
            assert (count.false_alarms, count.misses) == (0, 0), (bound.opcode, count.example)


@pytest.mark.usefixtures("without_completions")
def test_a_test_of_parts_sets_the_lowest_bit_of_each_alone() -> None:
    bounds = [bound for bound in judge.judged_opcodes(8) if bound.clause.mnemonic in ("vset2", "vset4")]
    for bound in (bound for bound in bounds if bound.keywords["last"] is None):
        ones, zeros = np.array([0xFFFFFFFF], np.uint32), np.zeros(1, np.uint32)
        parts = np.zeros(1, np.uint64)
        (bits,) = judge.followed(bound, [zeros, zeros, zeros, parts], [ones, zeros, zeros, parts], [0, 1, 2, 3], 3)
        assert bits[0] == {"2": 0x00010001, "4": 0x01010101}[bound.clause.mnemonic[-1]]


def test_a_lane_is_exact_beside_one_without_undefined_bits_and_one_with_many() -> None:
    """5 % 6 is 5 and 13 % 6 is 1: only bit 2 varies, of which the rule alone is not sure."""
    values = [np.full(3, each, np.uint32) for each in (5, 6)]
    masks = [np.uint32([8, 0, 0xFFFFFFFF]), np.zeros(3, np.uint32)]
    (found,) = judge.followed(bind("rem.u32"), values, masks, [0, 1], None)
    assert found.tolist() == [4, 0, 7]


def test_approximate_results_are_open_as_a_whole() -> None:
    bounds = [bound for bound in judge.judged_opcodes(8) if bound.clause.inexact]
    assert bounds
    judged(bounds, False)


@pytest.mark.usefixtures("without_completions")
def test_integers_that_are_exact_whatever_is_undefined() -> None:
    """OPEN is the whole list of the others."""
    bounds = [bound for bound in judge.judged_opcodes(64) if family(bound) in WHOLE_NUMBERS]
    found = false_alarms(bounds, judged(bounds, False, lanes=24))
    assert {name(bound) for bound in bounds if bound.opcode in found} == OPEN


@pytest.mark.usefixtures("without_completions")
def test_comparisons_and_selections_are_exact_whatever_is_undefined() -> None:
    """setp, set, selp and slct of integers, slct by a float, copysign, and cvt between integers that only moves bits."""
    bounds = []
    for bound in judge.judged_opcodes(16):
        compared = bound.clause.mnemonic in ("setp", "set") and bound.sources[0][1].dtype.kind in "iu"
        moved = bound.clause.function.__name__ in ("cvt_integer", "selp", "slct", "slct_ftz", "copysign", "mov")
        if moved or (compared and not bound.opcode.endswith(FLOATS)):
            bounds.append(bound)
    assert len(bounds) > 200
    assert false_alarms(bounds, judged(bounds, False)) == {}


@pytest.mark.usefixtures("without_completions")
def test_no_float_rule_misses_a_bit(refsim_profile: str) -> None:
    bounds = [bound for bound in judge.judged_opcodes(16) if bound.opcode.endswith(FLOATS)]
    judged(bounds[:: 5 if refsim_profile == "quick" else 1], False, lanes=4)


def test_lanes_that_exchange_values_are_exact() -> None:
    """Votes, matches, reductions and shuffles; the reductions of floats only miss nothing."""
    counts = {}
    for number, bound in enumerate(judge.exchanging_opcodes(64)):
        random = np.random.default_rng(number)
        counts[bound.opcode] = sum(
            (judge.judged_exchange(bound, random, bits) for bits in (1, 2, 4, 5) * 6), judge.Count()
        )
    assert len(counts) > 20
    assert {opcode: count.example for opcode, count in counts.items() if count.misses} == {}
    false = {opcode for opcode, count in counts.items() if count.false_alarms}
    assert false == {opcode for opcode in counts if opcode.endswith(".f32")}


# ---- the judge itself
def with_rule(opcode: str, rule: Callable[[Any], list[Any]] | str) -> Bound:
    bound = bind(opcode)
    return replace(bound, clause=replace(bound.clause, undefined=rule))


@pytest.mark.parametrize(
    "opcode",
    ["clz.b32", "min.s32", "dp2a.lo.u32.u32", "bfe.u32", "shf.l.wrap.b32", "add.u16x2", "setp.lt.s32", "selp.b32"],
)
@pytest.mark.usefixtures("without_completions")
def test_the_judge_finds_a_rule_that_forgets_and_one_that_takes_all(opcode: str) -> None:
    assert judge.judge(with_rule(opcode, undefined_bits.defined), 1).misses
    assert judge.judge(with_rule(opcode, "whole"), 1, (False,)).false_alarms


@pytest.mark.usefixtures("without_completions")
def test_the_judge_sees_one_register_as_two_sources() -> None:
    """x ^ x has no undefined bit; a rule that takes the sources for two registers says it has."""
    assert not judge.judge(bind("xor.b32"), 1, (False, True)).false_alarms
    careless = with_rule("xor.b32", lambda operands: operands.answer(operands.bits(0) | operands.bits(1)))
    assert not judge.judge(careless, 1, (False,)).false_alarms
    assert judge.judge(careless, 1, (False, True)).false_alarms


@pytest.mark.parametrize(
    ("opcode", "count"), [("mov.b16", 2), ("mov.b32", 2), ("mov.b32", 4), ("mov.b64", 2), ("mov.b64", 4)]
)
def test_packing_and_unpacking_move_each_bit(opcode: str, count: int) -> None:
    """The parts of a mask are the masks of the parts."""
    bound, random = bind(opcode), np.random.default_rng(count)
    type = bound.sources[0][1]
    whole = random.integers(0, 1 << type.bits, 8, np.uint64).astype(type.bits_dtype)
    parts = [
        (whole >> type.bits_dtype.type(at * type.bits // count)).astype(f"u{type.bits // count // 8}")
        for at in range(count)
    ]
    for sources, results in (([whole], parts), (parts, [whole])):
        held = [Mask(each, np.ones(8, np.int32)) for each in sources]
        registers = tuple(Register(at) for at in range(len(sources)))
        step = Step(
            SimpleNamespace(line=1), bound, ((registers, type),), ((tuple(range(len(results))), type),), None, "exact"
        )
        widths = [each.itemsize * 8 for each in results]
        lanes: Any = SimpleNamespace(count=8, machine=SimpleNamespace(tracking=None))
        (found,) = follower(step, widths)(lanes, [held], [[np.zeros_like(each) for each in sources]])
        assert all((got.bits == want).all() for got, want in zip(found, results, strict=True))
