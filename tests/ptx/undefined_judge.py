"""A definition of undefined bits that shares no code with the rules: an undefined bit of a result is one that varies among
all completions of the undefined bits of the sources.

`judged` draws operands of one opcode with few undefined bits, runs the instruction on all their completions, and counts the
draws by which the opcode's rule marks a bit that does not vary (a false alarm) or does not mark one that varies (a miss).

    python tests/ptx/undefined_judge.py [--all] [MNEMONIC ...]    prints each form that is not exact; --all: all its opcodes
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from refsim.ptx.execution.register_file import Mask
from refsim.ptx.execution.types import UNSIGNED, unview, view
from refsim.ptx.isa.definedness import bits as undefined_bits
from refsim.ptx.isa.forms import Bound, clauses
from refsim.ptx.isa.instances import instances
from refsim.ptx.lowering.steps import Constant, Step
from refsim.ptx.lowering.tracked import follower
from refsim.ptx.text.syntax import Register, RegisterPart, with_selectors

TABLES = (0x00, 0x80, 0x96, 0xCA, 0xE8, 0xF0, 0x1B, 0xFF)  # of lop3
SMALL = (0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 24, 31, 32, 33, 63, 64, 255, 256)
# Halves of inf, NaN, 1, the least normal and a subnormal number, in f16 and bf16; f32 and f64 have those of bf16 above.
REAL = (0x7C00, 0x7E00, 0x3C00, 0x0400, 0x0001, 0x8000, 0x7F80, 0x7FC0, 0x3F80, 0x0080, 0xFC00, 0xFF80, 0x7BFF, 0x7F7F)


@dataclass
class Count:
    """Draws, and how many of them had a false alarm or a miss; an example of each."""

    draws: int = 0
    false_alarms: int = 0
    misses: int = 0
    example: str = ""

    def __add__(self, other: "Count") -> "Count":
        return Count(
            self.draws + other.draws,
            self.false_alarms + other.false_alarms,
            self.misses + other.misses,
            self.example or other.example,
        )


def judged_opcodes(most: int, *mnemonics: str) -> Iterator[Bound]:
    """The opcodes of all instructions whose results depend on their operands only: of each form, `most` or fewer."""
    for clause in clauses():
        has_address = any(form.address or form.many for form in clause.operands)
        if clause.wants_lanes or clause.ends_block or has_address or (mnemonics and clause.mnemonic not in mnemonics):
            continue
        if {form.is_result for form in clause.operands if not form.optional} == {True, False}:
            yield from (bound for bound in instances(clause, most) if bound.clause is clause)


def drawn_values(random: np.random.Generator, width: int, count: int) -> np.ndarray:
    """Bits of one source: special numbers more often than random ones, predicates as bool."""
    if width == 1:
        return random.random(count) < 0.5
    top = (1 << width) - 1
    kinds = [
        random.integers(0, top, count, np.uint64, endpoint=True),
        np.array([0, top, 1 << width - 1, top >> 1], np.uint64)[random.integers(0, 4, count)],
        np.uint64(1) << random.integers(0, width, count).astype(np.uint64),
        np.array(SMALL, np.uint64)[random.integers(0, len(SMALL), count)],
        np.uint64(top) ^ np.array(SMALL, np.uint64)[random.integers(0, len(SMALL), count)],
        np.array(REAL, np.uint64)[random.integers(0, len(REAL), count)]
        << np.uint64(random.integers(0, 2) * (width - 16)),
        np.array(REAL, np.uint64)[random.integers(0, len(REAL), count)] * np.uint64(0x1000100010001),
    ]
    return np.choose(random.integers(0, len(kinds), count), kinds).astype(UNSIGNED[width])


def drawn_places(random: np.random.Generator, widths: list[int], lanes: int, bits: int) -> np.ndarray:
    """Which bits are undefined, (lanes, bits): numbers of bits of all sources in a row. Half of them are neighbours."""
    total, found = sum(widths), np.zeros((lanes, bits), np.int64)
    for lane in range(lanes):
        if random.random() < 0.5:
            start = random.integers(0, max(1, total - bits))
            pool = np.arange(start, min(total, start + bits + random.integers(0, bits + 1)))
        else:
            pool = np.arange(total)
        found[lane] = random.choice(pool, bits, replace=False)
    return found


def completions(values: list[np.ndarray], widths: list[int], places: np.ndarray) -> list[np.ndarray]:
    """The sources with each of the 2**n assignments of the undefined bits, (lanes, 2**n)."""
    number, starts, found = np.arange(1 << places.shape[1]), np.cumsum([0, *widths]), []
    for at, value in enumerate(values):
        whole = np.repeat(value[:, None], len(number), axis=1)
        for column in range(places.shape[1]):
            bit = places[:, column] - starts[at]
            here = ((bit >= 0) & (bit < widths[at]))[:, None]
            ones = (number >> column & 1)[None]
            if widths[at] == 1:
                whole = np.where(here, ones != 0, whole)
                continue
            one = np.where(here, np.uint64(1) << np.clip(bit, 0, 63).astype(np.uint64)[:, None], np.uint64(0)).astype(
                value.dtype
            )
            whole = np.where(ones != 0, whole | one, whole & ~one)
        found.append(whole)
    return found


def drawn_parts(random: np.random.Generator, mnemonic: str) -> np.ndarray:
    """The constant that holds the selectors of a video instruction's operands d, a and b."""
    kind = mnemonic[-1]
    if kind == "2":
        d = ["", "h0", "h1", "h10"]
        a = ["", *(f"h{one}{other}" for one in range(4) for other in range(4))]
    elif kind == "4":
        d = ["", "b0", "b2", "b31", "b3210"]
        a = ["", *("b" + "".join(map(str, random.integers(0, 8, 4))) for _ in range(4))]
    else:
        d = [""] if mnemonic == "vmad" else ["", "b0", "b3", "h0", "h1"]
        a = ["", "b0", "b1", "b3", "h0", "h1", *(["-", "-h1"] if mnemonic == "vmad" else [])]
    chosen = [random.choice(d), random.choice(a), random.choice(a)]
    words = with_selectors(tuple(RegisterPart(Register(at), str(word)) for at, word in enumerate(chosen)))
    return np.array([words[-1].value], np.uint64)


def judged(bound: Bound, random: np.random.Generator, lanes: int, bits: int, is_tied: bool = False) -> Count:
    """Draw `lanes` operands of an opcode with `bits` undefined bits each. `is_tied`: the first two sources that have one
    width are one register."""
    is_video = any(form.name == "parts" for form, _ in bound.sources)
    sources = [(form, type) for form, type in bound.sources if is_video or not form.optional]
    types = [type for _, type in sources]
    table = next((at for at, (form, _) in enumerate(sources) if form.name in ("immLut", "parts")), None)
    widths = [1 if type.name == "pred" else type.bits for type in types]
    same = list(range(len(types)))
    if is_tied:
        twins = [(a, b) for b in same for a in range(b) if widths[a] == widths[b] > 1 and b != table]
        if not twins:
            return Count()
        same[twins[0][1]] = twins[0][0]
    free = [at for at in dict.fromkeys(same) if at != table]
    bits = min(bits, sum(widths[at] for at in free))
    drawn = [drawn_values(random, widths[at], lanes) for at in free]
    places = drawn_places(random, [widths[at] for at in free], lanes, bits)
    tried = completions(drawn, [widths[at] for at in free], places)
    constant = np.array([TABLES[random.integers(0, len(TABLES))]], np.uint32)
    if is_video:
        constant = drawn_parts(random, bound.clause.mnemonic)

    def spread(arrays: list[np.ndarray]) -> list[np.ndarray]:
        return [constant if at == table else arrays[free.index(first)] for at, first in enumerate(same)]

    flat = spread([each.reshape(-1) for each in tried])
    found = bound.clause.function(*map(view, flat, types), **bound.keywords)
    results = found if isinstance(found, tuple) else (found,)
    outcomes = [unview(one, type, type.bits) for one, (_, type) in zip(results, bound.results, strict=False)]
    tables = [np.broadcast_to(one, (flat[0].size,)).reshape(lanes, -1) for one in outcomes]
    truth = [np.bitwise_or.reduce(table ^ table[:, :1], axis=1) for table in tables]
    varied = [np.bitwise_or.reduce(each ^ each[:, :1], axis=1) for each in tried]
    marked = followed(bound, spread(drawn), spread(varied), same, table)
    false = np.logical_or.reduce([got & ~want != 0 for got, want in zip(marked, truth, strict=True)])
    missed = np.logical_or.reduce([want & ~got != 0 for got, want in zip(marked, truth, strict=True)])
    example = ""
    for lane in np.flatnonzero(missed | false)[:1]:
        shown = [f"{int(v[lane]):#x}?{int(m[lane]):#x}" for v, m in zip(drawn, varied, strict=True)]
        example = (
            f"{shown} marked {[hex(int(one[lane])) for one in marked]} varies {[hex(int(one[lane])) for one in truth]}"
        )
    return Count(lanes, int(false.sum()), int(missed.sum()), example)


def followed(
    bound: Bound, values: list, masks: list, same: list[int], table: int | None, lanes: Any = None
) -> list[np.ndarray]:
    """The masks that the rule of an opcode gives."""
    count = max(map(len, values))
    types = [type for _, type in bound.sources][: len(values)]
    sources = tuple(
        (Constant(value) if at == table else Register(same[at]), type)
        for at, (value, type) in enumerate(zip(values, types, strict=True))
    )
    results = tuple((place, type) for place, (_, type) in enumerate(bound.results))
    step = Step(SimpleNamespace(line=1), bound, sources, results, None, certainty="exact")
    held = [
        Mask(mask, (mask != 0).astype(np.int32)) if at != table and mask.any() else None
        for at, mask in enumerate(masks)
    ]
    lanes = lanes or SimpleNamespace(count=count, machine=SimpleNamespace(tracking=None))
    found = follower(step, [type.bits for _, type in bound.results])(lanes, held, values)
    nothing = [np.zeros(count, np.bool_ if type.name == "pred" else type.bits_dtype) for _, type in bound.results]
    return [zeros if mask is None else mask.bits for mask, zeros in zip(found, nothing, strict=True)]


# ---- instructions by which the lanes of a warp exchange values
EXCHANGES = ("vote", "match", "redux", "shfl")
GROUPS = (
    (0xFFFFFFFF,),
    (0x0000FFFF, 0xFFFF0000),
    (0x00000001, 0xFFFFFFFE),
    (0x55555555, 0xAAAAAAAA),
    (0x00000007, 0xFFFFFFF8),
)


def exchanging_opcodes(most: int) -> Iterator[Bound]:
    """The opcodes of votes, matches, reductions of a warp and shuffles."""
    for clause in clauses():
        if clause.mnemonic in EXCHANGES:
            yield from (bound for bound in instances(clause, most) if bound.clause is clause)


def judged_exchange(bound: Bound, random: np.random.Generator, bits: int) -> Count:
    """Draw the operands of a warp, with `bits` undefined bits in all lanes together."""
    types = [type for _, type in bound.sources]
    names = [form.name for form, _ in bound.sources]
    lane, group = np.arange(32), GROUPS[0 if bound.clause.mnemonic == "shfl" else random.integers(0, len(GROUPS))]
    mask = sum(np.where(np.uint32(each) >> lane.astype(np.uint32) & 1, np.uint32(each), np.uint32(0)) for each in group)
    widths = [1 if type.name == "pred" else type.bits for type in types]
    values = [drawn_values(random, width, 32) for width in widths]
    if random.random() < 0.7:  # lanes with few different values
        values[0] = values[0][random.integers(0, random.integers(1, 4), 32)]
    for at, name in enumerate(names):
        if name == "c":  # the clamp and the segment of shfl
            values[at] = np.full(32, random.choice([0x1F, 0, 0x181F, 0x1C03]), np.uint32)
        values[at] = mask if name == "mask" else values[at]
    able = [(at, one) for at, name in enumerate(names) if name != "mask" for one in range(32)]
    open_ = [able[each] for each in random.integers(0, len(able), bits)]
    if names.count("b") and random.random() < 0.5:
        open_ = [(1 + at % 2, one) for at, one in open_]
    where = list(dict.fromkeys((at, one, int(random.integers(0, widths[at]))) for at, one in open_))
    for at, one, bit in where:  # the bits may differ from those of lanes with the same value
        values[at][one] ^= values[at].dtype.type(int(random.integers(0, 2)) << bit)
    lanes: Any = SimpleNamespace(
        count=32,
        ids=lane,
        laneid=lane,
        warp=np.zeros(32, np.int64),
        members=np.full(32, 0xFFFFFFFF, np.uint32),
        key=slice(0, 32),
        full=lambda each: each if len(each) == 32 else each.repeat(32),
        machine=SimpleNamespace(
            tracking=None,
            warp_bits=lambda _: np.array([0xFFFFFFFF]),
            geometry=SimpleNamespace(lanes=32),
        ),
    )
    tried = []
    for number in range(1 << len(where)):
        given = [value.copy() for value in values]
        for place, (at, one, bit) in enumerate(where):
            given[at][one] ^= given[at].dtype.type((number >> place & 1) << bit)
        found = bound.clause.function(lanes, *map(view, given, types), **bound.keywords)
        results = found if isinstance(found, tuple) else (found,)
        tried.append([unview(one, type, type.bits) for one, (_, type) in zip(results, bound.results, strict=False)])
    truth = [np.bitwise_or.reduce([each ^ one[0] for each in one]) for one in zip(*tried, strict=True)]
    masks = [value ^ value for value in values]
    for at, one, bit in where:
        masks[at][one] |= masks[at].dtype.type(1 << bit)
    marked = followed(bound, values, masks, list(range(len(types))), None, lanes)
    false = any((got & ~want).any() for got, want in zip(marked, truth, strict=True))
    missed = any((want & ~got).any() for got, want in zip(marked, truth, strict=True))
    shown = [[[hex(int(each)) for each in one] for one in bits] for bits in (marked, truth)]
    example = f"undefined {where}: marked {shown[0]}, varies {shown[1]}"
    return Count(1, int(false), int(missed), example if false or missed else "")


def judge(bound: Bound, seed: int, ties: tuple[bool, ...] = (False, True), lanes: int = 24, most: int = 8) -> Count:
    """Judge an opcode with 1 to `most` undefined bits, without and with one register as two sources (`ties`)."""
    random, total = np.random.default_rng(seed), Count()
    for bits in sorted({1, 2, max(1, most // 2), most}):
        for is_tied in ties:
            total += judged(bound, random, lanes, bits, is_tied)
    return total


def main(mnemonics: list[str], most: int) -> None:
    """Print a line for each form that is not exact, with completions of few bits and without, and the sums."""
    np.seterr(all="ignore")
    for few in (undefined_bits.FEW_BITS, -1):
        undefined_bits.FEW_BITS = few
        forms: dict[str, Count] = {}
        opcodes = list(judged_opcodes(most, *mnemonics))
        for number, bound in enumerate(opcodes):
            count = judge(bound, number, (False, True) if few > 0 else (False,))
            forms[bound.clause.form] = forms.get(bound.clause.form, Count()) + count
        for form, count in forms.items():
            if count.misses or count.false_alarms:
                print(f"{form}\n  {count.false_alarms} false, {count.misses} missed of {count.draws}: {count.example}")
        for number, bound in enumerate(exchanging_opcodes(most) if few > 0 and not mnemonics else ()):
            random = np.random.default_rng(number)
            for bits in (1, 2, 4, 6) * 8:
                forms[bound.clause.form] = forms.get(bound.clause.form, Count()) + judged_exchange(bound, random, bits)
        total = sum(forms.values(), Count())
        exact = sum(not (count.misses or count.false_alarms) for count in forms.values())
        print(f"completions of at most {few} bits: {len(forms)} forms, {len(opcodes)} opcodes, {exact} forms exact;")
        print(f"  {total.draws} draws, {total.false_alarms} false alarms, {total.misses} misses")


if __name__ == "__main__":
    main([word for word in sys.argv[1:] if word != "--all"], 64 if "--all" in sys.argv else 1)
