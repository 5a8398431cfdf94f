"""Finds how an unknown tensor core adds, by probing alone: this module has no knowledge of chips.

Products +V and -V cancel and leave a small third number, as far as the chip kept it. The places where that number
survives show the steps, the bits below the largest exponent, the entry of C, the rounding and the exponent of a zero. A
parameter that no operand of the given formats can show is None, and `unseen` gives the reason; nothing is guessed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from refsim.bringup.bench import WIDEST, Bench, Dots, Probe, Sums, power
from refsim.conversions.rounding import DOWN, NEAREST_EVEN, TOWARD_ZERO, UP
from refsim.errors import RefsimError
from refsim.formats import F16, F32, ElementType, float_named
from refsim.numerics import methods
from refsim.numerics.rows import Profile

AWAY, TO_ODD = "away-from-zero", "to-odd"
NEAREST_TIES_AWAY, NEAREST_TIES_ZERO = "nearest, ties away", "nearest, ties to zero"
_ROUNDINGS: dict[tuple[str, int, ElementType], methods.Rounding] = {
    (TOWARD_ZERO, 23, F32): methods.RZ_F32,
    (TOWARD_ZERO, 13, F32): methods.RZ_E8M13,
    (NEAREST_EVEN, 23, F32): methods.RNE_F32,
    (NEAREST_EVEN, 10, F16): methods.RNE_F16,
}


@dataclass(frozen=True)
class Discovery:
    """The probed parameters of one instruction of a given K; None where its operands cannot show the parameter.

    `steps`: the places of K that are added together, in order; `c_enters` early or late; `fraction`: bits kept below
    the largest exponent; `direction` and `kept`: the rounding of a sum and the fraction bits it keeps; `zero_exponent`:
    the least exponent that a step aligns to when one of its terms is zero; `unseen`: reasons for None. Hopper's FP8
    wgmma: one step of 32, early, 13, toward-zero, 13, None.
    """

    k: int
    d_format: ElementType
    steps: tuple[tuple[int, ...], ...] | None = None
    c_enters: methods.CEnters | None = None
    fraction: int | None = None
    direction: str | None = None
    kept: int | None = None
    zero_exponent: int | None = None
    unseen: tuple[str, ...] = ()

    @property
    def length(self) -> int | None:
        """Return the number of products of one step, where all steps are equally long."""
        sizes = {len(step) for step in self.steps or ()}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def order(self) -> methods.Order | str | None:
        """Return ascending, byte-pairs, or "other"; None without steps."""
        if self.steps is None or self.length is None:
            return None
        if list(self.steps) == [tuple(range(i, i + self.length)) for i in range(0, self.k, self.length)]:
            return methods.ASCENDING
        halves = [tuple(i for i in range(self.k) if i % 4 // 2 == half) for half in (0, 1)]
        return methods.BYTE_PAIRS if list(self.steps) == halves else "other"

    @property
    def rounding(self) -> methods.Rounding | str | None:
        """Return the rounding of `refsim.numerics.methods`, or a description of another rounding."""
        if self.direction is None or self.kept is None:
            return None
        row = _ROUNDINGS.get((self.direction, self.kept, self.d_format))
        return row or f"{self.direction} to {self.kept} bits"

    def parameters(self) -> dict[str, str | int | None]:
        """Return the parameters by name, as plain values."""
        return {
            "length": self.length,
            "order": _plain(self.order),
            "c_enters": _plain(self.c_enters),
            "fraction": self.fraction,
            "rounding": _plain(self.rounding),
            "zero_exponent": self.zero_exponent,
        }

    def __str__(self) -> str:
        """Return the known parameters in a line."""
        signs = {"length": "L", "fraction": "F", "zero_exponent": "zero exponent", "c_enters": "C"}
        seen = {signs.get(key, key): value for key, value in self.parameters().items() if value is not None}
        return ", ".join(f"{name} = {value}" for name, value in seen.items())

    def contradicts(self, row: Profile) -> list[str]:
        """Return the parameters that differ from a profile's, as "fraction 13, not 25"."""
        said: dict[str, str | int | None] = {
            "length": len(row.steps(self.k)[0]),
            "order": str(row.order),
            "c_enters": str(row.c_enters),
            "fraction": row.fraction,
            "rounding": str(row.rounding),
            "zero_exponent": row.zero_exponent,
        }
        if self.steps is not None and len(self.steps) == 1:
            del said["order"]
        seen = self.parameters()
        return [f"{name} {seen[name]}, not {value}" for name, value in said.items() if seen[name] not in (None, value)]

    def as_profile(self, like: Profile) -> Profile | None:
        """Return a profile with these parameters, completed from `like`, or None where no profile can express them."""
        order, rounding = self.order or like.order, self.rounding or like.rounding
        if not isinstance(order, methods.Order) or not isinstance(rounding, methods.Rounding):
            return None
        length = self.length or like.length
        fraction = like.fraction if self.fraction is None else self.fraction
        zero = like.zero_exponent if self.zero_exponent is None else self.zero_exponent
        if fraction is None or zero is None or not like.method.parametrised:
            return None
        like = replace(like, length=length, fraction=fraction, zero_exponent=zero)
        return replace(like, order=order, rounding=rounding, c_enters=self.c_enters or like.c_enters)


def _plain(parameter: object) -> str | None:
    return None if parameter is None else str(parameter)


_PAIR = (0, 1)
# Growth in units of (even + 1/2, odd + 1/2, -(even + 1/2), -(odd + 1/2)), then of 1/4 and 3/4, and the rounding's name.
_HALVES: dict[tuple[int, ...], tuple[tuple[int, int, str], ...]] = {
    (0, 0, 0, 0): ((0, 0, TOWARD_ZERO), (0, 1, NEAREST_TIES_ZERO)),
    (0, 1, 0, 1): ((0, 1, NEAREST_EVEN),),
    (1, 1, 1, 1): ((1, 1, AWAY), (0, 1, NEAREST_TIES_AWAY)),
    (1, 1, 0, 0): ((1, 1, UP),),
    (0, 0, 1, 1): ((0, 0, DOWN),),
    (1, 0, 1, 0): ((1, 1, TO_ODD),),
}


def discover(
    dots: Dots, a_format: str | ElementType, b_format: str | ElementType, d_format: str | ElementType, k: int
) -> Discovery:
    """Return the parameters of a tensor core that multiplies `a_format` by `b_format` into `d_format` (f32 or f16).

    `dots(a, b, c)` takes codes of shape (batch, k), (batch, k), (batch,) and returns codes (batch,). It is called for
    about 2 k^2 + 900 dot products. Raises RefsimError for other result formats. Source: the probes of XIE and MMA_SIM.
    """
    result = float_named(d_format)
    if result not in (F32, F16):
        raise RefsimError("unsupported-format", f"sums in {d_format} are not probed", rule="results are f32 or f16")
    bench = Bench(dots, float_named(a_format), float_named(b_format), result, k)
    bench = replace(bench, floor=_floor(bench))
    found = _Findings(bench, Discovery(k, result))
    for probe in (_find_entry, _find_steps, _find_fraction, _find_rounding, _find_zero_exponent):
        probe(found)
    return replace(found.discovery, unseen=tuple(found.unseen))


def discover_step(bench: Bench, group: Sequence[int]) -> Discovery:
    """Return the bits that one step keeps and its rounding, where the step is known to add the places `group` at once.

    Only products are probed, without C; sums are assumed to be f32. Hopper's FP8 wgmma with the places 0 to 31:
    fraction 13, kept 13, toward-zero.
    """
    found = _Findings(bench, Discovery(bench.k, F32, steps=(tuple(group),), c_enters=methods.LATE))
    for probe in (_find_fraction, _find_rounding):
        probe(found)
    return replace(found.discovery, unseen=tuple(found.unseen))


@dataclass
class _Findings:
    """The bench, the parameters known so far, and the reasons for unknown ones."""

    bench: Bench
    discovery: Discovery
    unseen: list[str] = field(default_factory=list)

    def add(self, **parameters: Any) -> None:
        """Record parameters."""
        self.discovery = replace(self.discovery, **parameters)

    @property
    def group(self) -> tuple[int, ...]:
        """Return the places of the last step, whose result is not truncated again; without steps, a pair."""
        return (self.discovery.steps or (_PAIR,))[-1]

    @property
    def early(self) -> bool:
        """Return whether C enters before the products."""
        return self.discovery.c_enters is methods.EARLY


def _floor(bench: Bench) -> int:
    """Return the exponent from which on a single product is its own result; smaller products are truncated."""
    exponents = range(bench.bottom, bench.top + 1)
    results = bench.ask([Probe({0: power(exponent)}) for exponent in exponents])
    lost = [exponent for exponent, got in zip(exponents, results, strict=True) if got != power(exponent)]
    return min(lost[-1] + 1, bench.top) if lost else bench.bottom


def _find_entry(found: _Findings) -> None:
    """Find the entry of C by products V and -V with a tiny C: an aligned C is lost, a C added later survives."""
    bench = found.bench
    least = max(bench.last_unit, bench.top - 100)
    (got,) = bench.ask([Probe({0: power(bench.top), 1: -power(bench.top)}, power(least))])
    if got == 0:
        found.add(c_enters=methods.EARLY)
    elif got != power(least):
        found.unseen.append(f"c_enters: V - V + C gave {float(got):g}, neither 0 nor C")
    elif bench.top - least > WIDEST or _rounds_before_c(bench):
        found.add(c_enters=methods.LATE)
    else:
        found.unseen.append(f"c_enters: late, or nothing is cut as far as {bench.top - least} bits down")


def _rounds_before_c(bench: Bench) -> bool:
    """Return whether products are rounded before C is added: C completes their half unit, or cancels it."""
    half = power(bench.top - bench.d_format.mantissa_bits - 1)
    if half < power(bench.bottom):
        return False
    whole = power(bench.top)
    results = bench.ask([Probe({0: whole, 1: half}, c) for c in (half, -half)])
    return results != [whole + 2 * half, whole]


def _find_steps(found: _Findings) -> None:
    """Find the steps: a small number survives V and -V only in a step after both of them.

    C stands before all steps. Where C is no help, V and -V are neighbors or half of K apart: a step of neighbors holds
    some of the former pairs, a step of every other or every fourth place holds some of the latter.
    """
    bench, small, large = found.bench, power(found.bench.bottom), power(found.bench.top)
    places = range(bench.k)
    pairs: list[tuple[int, int | None]] = [(i, None) for i in places]
    if not found.early:
        pairs = [(i, i + apart) for apart in dict.fromkeys((1, bench.k // 2)) for i in places[: bench.k - apart]]
    asked = [(i, j, p) for i, j in pairs for p in places if p not in (i, j)]
    probes = [
        Probe({i: large, p: small}, -large) if j is None else Probe({i: large, j: -large, p: small})
        for i, j, p in asked
    ]
    after: dict[tuple[int, int | None], set[int]] = {pair: set() for pair in pairs}
    for (i, j, p), got in zip(asked, bench.ask(probes), strict=True):
        if got == small:
            after[i, j].add(p)
        elif got != 0:
            found.unseen.append(f"steps: a sum that cancels gave {float(got):g}")
            return
    steps = _steps_of(set(places), list(after.values()))
    ranks = {p: number for number, step in enumerate(steps or ()) for p in step}
    first = {(i, j): max(ranks[i], ranks[i if j is None else j]) for i, j in pairs} if steps else {}
    if not steps or any((p in after[i, j]) != (ranks[p] > first[i, j]) for i, j, p in asked):
        found.unseen.append(
            f"steps: products span 2^{bench.bottom} to 2^{bench.top}, too little for the larger to hide the smaller"
        )
        return
    if not found.early and len({len(step) for step in steps}) > 1:
        found.unseen.append("steps: V and -V never meet in the first of them, so that it is not told from the next")
        return
    found.add(steps=steps)


def _steps_of(places: set[int], after: list[set[int]]) -> tuple[tuple[int, ...], ...] | None:
    """Return the steps in order from the sets of places that come after something; None if the sets are not nested."""
    sets = sorted({frozenset(each) for each in after}, key=len, reverse=True)
    steps, rest = [], frozenset(places)
    for later in sets:
        if not later < rest:
            return None
        steps.append(tuple(sorted(rest - later)))
        rest = later
    return tuple([*steps, tuple(sorted(rest))] if rest else steps)


def _find_fraction(found: _Findings) -> None:
    """Find the bits kept below E with V, -V and 2^(E - x) in one step: the largest x that survives."""
    bench, group = found.bench, found.group
    if found.discovery.steps is None:
        _find_fraction_of_a_pair(found)
        return
    seen: dict[str, int | None] = {}
    if found.early and len(group) >= 2:
        lowest = max(bench.last_unit, bench.top - WIDEST)
        seen["C"] = _last_kept(bench, bench.top - lowest, lambda x: _cancelled(group, bench.top, c=x))
    if len(group) >= 3:
        seen["products"] = _last_kept(
            bench, bench.top - bench.bottom, lambda x: _cancelled(group, bench.top, product=x)
        )
    kept = [x for x in seen.values() if x is not None]
    if len(set(kept)) > 1:
        found.unseen.append(f"fraction: products keep {seen['products']} bits, C keeps {seen['C']}")
    elif kept:
        found.add(fraction=kept[0])
    else:
        found.unseen.append(f"fraction: nothing was cut as far as {bench.top - bench.bottom} bits down")


def _find_fraction_of_a_pair(found: _Findings) -> None:
    """Find the fraction without known steps: from V, -V and C, if C keeps more bits than a result holds."""
    bench, kept = found.bench, None
    if found.early:
        limit = bench.top - max(bench.last_unit, bench.top - WIDEST)
        kept = _last_kept(bench, limit, lambda x: _cancelled(_PAIR, bench.top, c=x))
    if kept is not None and kept > bench.d_format.mantissa_bits:
        found.add(fraction=kept)
    else:
        found.unseen.append("fraction: needs the steps" + (f"; it is at least {kept}" if kept is not None else ""))


def _cancelled(group: Sequence[int], top: int, *, product: int | None = None, c: int | None = None) -> Probe:
    """Return the probe of V and -V, and a number `product` or `c` bits below them."""
    products = {group[0]: power(top), group[1]: -power(top)}
    if product is not None:
        products[group[2]] = power(top - product)
    return Probe(products, Fraction(0) if c is None else power(top - c))


def _last_kept(bench: Bench, limit: int, probe: Callable[[int], Probe]) -> int | None:
    """Return the largest x up to `limit` whose number survives; None where all survive, or the first ones do not."""
    results = bench.ask([probe(x) for x in range(limit + 1)])
    kept = [got == power(bench.top - x) for x, got in enumerate(results)]
    count = kept.index(False) if False in kept else len(kept)
    return count - 1 if 0 < count < len(kept) and not any(kept[count:]) else None


def _find_rounding(found: _Findings) -> None:
    """Find the rounding: 2^j products V lift the leading bit by j, so a sum has more bits than its result keeps."""
    fraction = found.discovery.fraction
    if fraction is None:
        found.unseen.append("rounding: needs the fraction")
        return
    sums = Sums(found.bench, found.group, found.early, fraction)
    depths = range(1, sums.max_probe_depth + 1)
    results = found.bench.ask([sums.probe(depth, 1) for depth in depths])
    kept = 0
    for depth, got in zip(depths, results, strict=True):
        if got != sums.exact(depth, 1):
            break
        kept = depth
    if kept == sums.max_probe_depth:
        found.unseen.append(f"rounding: no sum has more than {kept} bits below its first, and all are kept")
        return
    found.add(kept=kept, direction=_direction(found, sums, kept))


def _direction(found: _Findings, sums: Sums, kept: int) -> str | None:
    """Return the rounding of half units above even and odd units and below zero, and of quarters where they fit."""
    bench = found.bench
    asked = [(1, 1), (3, 1), (1, -1), (3, -1)]  # halves of a unit, and the sign
    results = bench.ask([sums.probe(kept + 1, pieces, sign) for pieces, sign in asked])
    grown = [sums.growth(kept + 1, got, kept) for got in results]
    halves = tuple(units - pieces // 2 for units, (pieces, _) in zip(grown, asked, strict=True))
    candidates = _HALVES.get(halves, ())
    if sums.max_probe_depth >= kept + 2:
        results = bench.ask([sums.probe(kept + 2, pieces) for pieces in (1, 3)])
        quarters = tuple(sums.growth(kept + 2, got, kept) for got in results)
        candidates = tuple(row for row in candidates if row[:2] == quarters)
    elif len(candidates) > 1:
        words = " or ".join(row[2] for row in candidates)
        found.unseen.append(f"rounding: {words}; sums are one bit too short to tell")
        return None
    if not candidates:
        found.unseen.append(f"rounding: halves of the last unit grow the result by {halves}, which no rounding does")
        return None
    return candidates[0][2]


def _find_zero_exponent(found: _Findings) -> None:
    """Find the exponent of a zero: products below it are truncated next to a result's last unit."""
    bench, known = found.bench, found.discovery
    if known.fraction is None or len(found.group) < 2:
        found.unseen.append("zero_exponent: needs the fraction, and steps of two products")
        return
    bits = [known.kept] if known.kept is not None else range(10, bench.d_format.mantissa_bits + 1)
    units = [1 - bench.d_format.bias - each for each in bits]  # a subnormal result's last: -149 for f32 with 23 bits
    limit = -bench.least
    deepest = min(limit, known.fraction - min(units) + 1)
    showing = _showing(found, units, range(bench.d_format.bias - 1, deepest + 1))
    last = max(showing, default=0)
    reason = ""
    if not showing or last >= limit:
        reason = f"the least product, 2^{bench.least}, is too large to be cut"
    elif known.fraction - last <= max(*units, bench.normal_bottom):  # subnormal operands have the least exponent
        reason = f"at most {known.fraction - last}: the terms that show have that exponent themselves"
    if reason:
        found.unseen.append(f"zero_exponent: {reason}")
    else:
        found.add(zero_exponent=known.fraction - last)


def _showing(found: _Findings, units: Sequence[int], depths: range) -> list[int]:
    """Return the x for which +-2^-x changes the result of some sum of at most 1.5 last units."""
    bench, (place, other) = found.bench, found.group[:2]
    sums = [{}, *({place: base} for base in _bases(bench, units))]
    tiny = [sign * power(-x) for x in depths for sign in (1, -1)]
    results = bench.ask([Probe({**plain, **more}) for plain in sums for more in ({}, *({other: t} for t in tiny))])
    rows = [results[i : i + 1 + len(tiny)] for i in range(0, len(results), 1 + len(tiny))]
    changed = [any(row[0] != row[1 + i] for row in rows) for i in range(len(tiny))]
    return [x for i, x in enumerate(depths) if changed[2 * i] or changed[2 * i + 1]]


def _bases(bench: Bench, units: Sequence[int]) -> Iterator[Fraction]:
    """Yield one and one and a half of each last unit: the second is a tie for roundings to nearest."""
    for unit in units:
        if unit >= bench.least + 1:
            yield power(unit)
            yield power(unit) * Fraction(3, 2)
