"""The rule of an instruction never says less than what flipping an undefined bit can change; where bits are only moved or
combined one by one, it says no more."""

import functools
import itertools
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim.ptx.execution.register_file import Mask
from refsim.ptx.execution.types import TYPES
from refsim.ptx.isa.definedness.memory import UPDATES, Masked
from refsim.ptx.isa.forms import bind, evaluate
from refsim.ptx.lowering.steps import Constant, Step
from refsim.ptx.lowering.tracked import follower
from refsim.testing.strategies import share

WIDTHS = {16: np.uint16, 32: np.uint32, 64: np.uint64}
FLIPPED = 7  # undefined bits of one case at most: all their assignments are tried

# Opcode; which sources may have undefined bits (the others say where bits go); sources that are constants.
# fmt: off
EXACT: list[tuple[str, tuple[int, ...], dict[int, list[int]]]] = [
    *((f"{name}.b32", (0, 1), {}) for name in ("and", "or", "xor")),
    *((f"{name}.pred", (0, 1), {}) for name in ("and", "or", "xor")),
    ("not.b16", (0,), {}), ("not.b64", (0,), {}), ("not.pred", (0,), {}), ("cnot.b32", (0,), {}), ("brev.b32", (0,), {}),
    ("lop3.b32", (0, 1, 2), {3: [0x00, 0x80, 0x96, 0xCA, 0xE8, 0xF0, 0x1B, 0xFF]}),
    ("shl.b32", (0,), {1: [0, 1, 7, 31, 32, 200]}), ("shr.u32", (0,), {1: [0, 1, 7, 31, 32, 200]}),
    ("shr.s32", (0,), {1: [0, 1, 7, 31, 32, 200]}), ("shr.s64", (0,), {1: [0, 33, 64]}), ("shl.b16", (0,), {1: [0, 3, 16]}),
    ("shf.l.wrap.b32", (0, 1), {2: [0, 5, 32, 40]}), ("shf.r.clamp.b32", (0, 1), {2: [0, 5, 32, 40]}),
    ("prmt.b32", (0, 1), {2: [0x3210, 0x7531, 0x8421, 0xFBA9, 0x0000]}), ("prmt.b32.rc16", (0, 1), {2: [0, 1, 2, 3]}),
    ("bfe.u32", (0,), {1: [0, 4, 31], 2: [0, 5, 32]}), ("bfe.s32", (0,), {1: [0, 4, 31], 2: [0, 5, 32]}),
    ("bfi.b32", (0, 1), {2: [0, 4, 31], 3: [0, 5, 32]}), ("szext.wrap.s32", (0,), {1: [0, 7, 31]}),
    ("cvt.u16.u32", (0,), {}), ("cvt.s64.s16", (0,), {}), ("cvt.u64.u32", (0,), {}), ("cvt.s32.s8", (0,), {}),
    *((f"setp.{test}.{type}", (0, 1), {}) for type in ("u32", "s32", "u16", "s64")
      for test in ("eq", "ne", "lt", "le", "gt", "ge")),
    *((f"setp.{test}.u64", (0, 1), {}) for test in ("lo", "ls", "hi", "hs")), ("setp.eq.b16", (0, 1), {}),
    ("shl.b32", (0, 1), {}), ("shr.u32", (0, 1), {}), ("shr.s16", (0, 1), {}), ("shl.b64", (0, 1), {}),
    ("selp.b32", (0, 1, 2), {}), ("mov.u32", (0,), {}), ("mov.pred", (0,), {}),
]
SOUND = [
    "add.u32", "add.s64", "sub.s32", "sub.u16", "mul.lo.u32", "mul.lo.s16", "mul.hi.u32", "mul.hi.s64", "mul.wide.u32",
    "mul.wide.s16", "mad.lo.u32", "mad.hi.s32", "mad.wide.s32", "add.cc.u32", "add.u16x2", "setp.eq.and.u32", "setp.lt.bf16",
    "setp.eq.f32", "min.s32", "add.f32", "mul.f32", "fma.rn.f32", "add.f16x2", "mul.bf16x2",
    "popc.b32", "clz.b32", "bfind.u32", "abs.s32", "cvt.rn.f16x2.f32", "cvt.rn.satfinite.e4m3x2.f32", "cvt.rn.f16x2.e4m3x2",
    "cvt.rn.f32.u32", "cvt.pack.sat.u16.s32", "cvt.pack.sat.s8.s32.b32", "setp.lt.u32", "setp.lt.and.u32", "setp.ge.or.s32",
    "setp.eq.xor.u32", "setp.lt.f16x2", "set.lt.u32.s32", "slct.b32.s32", "slct.f32.f32", "dp4a.u32.u32", "shl.b32", "prmt.b32",
    "bfe.s32", "lop3.or.b32", "sad.u32", "bmsk.wrap.b32", "shr.s32", "shf.l.wrap.b32", "bfi.b32",
]
# fmt: on


def followed(opcode: str, values: list[Any], masks: list[Any]) -> list[np.ndarray]:
    """The masks that the rule of an opcode gives for one lane."""
    bound = bind(opcode, operands=1 + len(values))
    types = [type for _, type in bound.sources][: len(values)]
    results = tuple((place, type) for place, (_, type) in enumerate(bound.results))
    sources = tuple((Constant(value), type) for value, type in zip(values, types, strict=True))
    machine = SimpleNamespace(tracking=None)
    lanes: Any = SimpleNamespace(count=1, full=lambda array: array, machine=machine)
    held = [Mask(mask, np.ones(1, np.int32)) if mask.any() else None for mask in masks]
    widths = [type.bits for _, type in bound.results]
    with np.errstate(all="ignore"):
        found = follower(Step(SimpleNamespace(), bound, sources, results, None, certainty="exact"), widths)(
            lanes, held, values
        )
    empty = [np.zeros(1, np.bool_ if type.name == "pred" else type.bits_dtype) for _, type in bound.results]
    return [zeros if mask is None else mask.bits for mask, zeros in zip(found, empty, strict=True)]


def changes(opcode: str, values: list[Any], masks: list[Any]) -> list[np.ndarray]:
    """The bits of each result that some assignment of the undefined bits changes."""
    places = [(at, bit) for at, mask in enumerate(masks) for bit in range(_bits(mask)) if int(mask[0]) >> bit & 1]
    count = 1 << len(places)
    tried = [np.repeat(value, count) for value in values]
    for number, (at, bit) in enumerate(places):
        ones = np.arange(count) >> number & 1
        if tried[at].dtype == np.bool_:
            tried[at] = ones != 0
        else:
            dtype = tried[at].dtype.type
            tried[at] = tried[at] & ~dtype(1 << bit) | ones.astype(dtype) << dtype(bit)
    tried = [value if at in {place for place, _ in places} else values[at] for at, value in enumerate(tried)]
    return [np.bitwise_or.reduce(outcome ^ outcome[:1], keepdims=True) for outcome in evaluate(opcode, *tried)]


def _bits(array: np.ndarray) -> int:
    return 1 if array.dtype == np.bool_ else array.dtype.itemsize * 8


def drawn(data: Any, type: Any, fixed: list[int] | None) -> np.ndarray:
    if type.name == "pred":
        return np.array([data.draw(st.booleans())])
    top = (1 << type.bits) - 1
    value = data.draw(st.sampled_from(fixed) if fixed else st.one_of(st.sampled_from([0, top]), st.integers(0, top)))
    return np.array([value], type.bits_dtype)


def drawn_masks(data: Any, values: list[np.ndarray], open_: tuple[int, ...]) -> list[np.ndarray]:
    """Undefined bits of some of the sources, which may be set in the values."""
    masks = [np.zeros_like(value) for value in values]
    chosen = data.draw(st.lists(st.sampled_from(open_), min_size=1, unique=True))
    places = [(at, bit) for at in chosen for bit in range(_bits(values[at]))]
    for at, bit in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=FLIPPED, unique=True)):
        masks[at] = ~masks[at] if masks[at].dtype == np.bool_ else masks[at] | masks[at].dtype.type(1 << bit)
    if data.draw(st.booleans()):
        values[:] = [value | mask for value, mask in zip(values, masks, strict=True)]
    return masks


def sources(opcode: str) -> list[Any]:
    """The types of the operands, optional ones left out unless the opcode combines with a predicate."""
    bound = bind(opcode)
    return [type for form, type in bound.sources if not form.optional]


@pytest.mark.parametrize(("opcode", "open_", "fixed"), EXACT, ids=[row[0] for row in EXACT])
@share(3 / 5)
@given(data=st.data())
def test_bits_that_are_moved_or_combined_are_followed_exactly(opcode: str, open_: Any, fixed: Any, data: Any) -> None:
    values = [drawn(data, type, fixed.get(at)) for at, type in enumerate(sources(opcode))]
    masks = drawn_masks(data, values, open_)
    for got, want in zip(followed(opcode, values, masks), changes(opcode, values, masks), strict=True):
        assert (got == want).all(), (opcode, values, masks)


@pytest.mark.parametrize("opcode", SOUND)
@share(3 / 5)
@given(data=st.data())
def test_no_bit_that_can_change_is_called_defined(opcode: str, data: Any) -> None:
    types = sources(opcode)
    fixed = {3: [0x96, 0x80, 0xE8]} if opcode.startswith("lop3") else {}
    values = [drawn(data, type, fixed.get(at)) for at, type in enumerate(types)]
    open_ = tuple(at for at in range(len(types)) if at not in fixed)
    masks = drawn_masks(data, values, open_)
    for got, able in zip(followed(opcode, values, masks), changes(opcode, values, masks), strict=True):
        assert (able & ~got == 0).all(), (opcode, values, masks, got, able)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_a_mask_follows_the_sign_into_a_wider_register(value: int, mask: int) -> None:
    """cvt.s64.s32: the upper word is as undefined as the sign."""
    (got,) = followed("cvt.s64.s32", [np.array([value], np.uint32)], [np.array([mask], np.uint32)])
    sign = 0xFFFFFFFF if mask >> 31 else 0
    assert int(got[0]) == sign << 32 | mask
    assert TYPES["s64"].is_signed


# What each update of memory leaves, of what was there, b and c.
MEANINGS: dict[str, Callable[[int, int, int], int]] = {
    "and": lambda old, b, c: old & b,
    "or": lambda old, b, c: old | b,
    "xor": lambda old, b, c: old ^ b,
    "exch": lambda old, b, c: b,
    "cas": lambda old, b, c: c if old == b else old,
}


def assigned(bits: Masked) -> list[int]:
    """All numbers that a number with undefined bits can be."""
    return [value for value in range(1 << bits.width) if (value ^ bits.value) & ~bits.mask == 0]


@pytest.mark.parametrize("operation", MEANINGS)
def test_an_update_leaves_undefined_what_can_change(operation: str) -> None:
    """All numbers of two bits: no less than that, and no more unless a swap may or may not be made."""
    numbers = [Masked(value, mask, 2) for value, mask in itertools.product(range(4), repeat=2)]
    for old, b, c in itertools.product(numbers, numbers, numbers if operation == "cas" else [Masked(0, 0, 2)]):
        found = [MEANINGS[operation](*each) for each in itertools.product(*map(assigned, (old, b, c)))]
        able = functools.reduce(operator.or_, (one ^ found[0] for one in found))
        left = UPDATES[operation](old, b, c)
        assert able & ~left.mask == 0
        assert (left.value ^ found[0]) & ~left.mask == 0
        may_swap = operation == "cas" and len({one == other for one in assigned(old) for other in assigned(b)}) == 2
        assert may_swap or left.mask == able


EXACTLY = {"add.u32": 0.9, "sub.u16": 0.9, "mul.lo.u32": 0.6, "mul.wide.u32": 0.5, "mad.lo.u32": 0.6}


@pytest.mark.parametrize("opcode", EXACTLY)
def test_sums_and_products_are_called_undefined_where_they_are(opcode: str) -> None:
    """How often the lowest bit that the rule calls undefined can change: small numbers, few undefined bits."""
    random, types, hits, tried = np.random.default_rng(1), sources(opcode), 0, 300
    for _ in range(tried):
        values = [np.array([random.integers(0, 64)], type.bits_dtype) for type in types]
        masks = [
            np.array([1 << random.integers(0, 6) if random.random() < 0.5 else 0], type.bits_dtype) for type in types
        ]
        (got,), (want,) = followed(opcode, values, masks), changes(opcode, values, masks)
        hits += int(got[0]) & -int(got[0]) == int(want[0]) & -int(want[0])
    assert hits >= EXACTLY[opcode] * tried
