"""A difference between a tensor core and its profile: the products that are compared, the smallest case that differs, and
parameters that reproduce it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from refsim.bringup.discovery import Discovery, discover
from refsim.bringup.report import Difference
from refsim.bringup.tensor_cores import TensorCoreInstruction
from refsim.errors import RefsimError
from refsim.formats import F16, F32, F64, ElementType, Integer
from refsim.numerics.methods import ASCENDING, BYTE_PAIRS, EARLY, LATE, RNE_F16, RNE_F32, RZ_E8M13, RZ_F32
from refsim.numerics.profiles import PROFILES
from refsim.numerics.rows import Profile
from refsim.silicon.tensor_features import features
from refsim.silicon.tensor_probe import Codes, cell_c, cell_operands, cells

Products = Callable[[Codes, Codes, Codes | None], Codes]
"""A tensor core or its model: a (batch, m, K), b (batch, n, K), c (batch, m, n) or None to d (batch, m, n), all codes."""
_SAMPLE = 96
_SHOWN = 9


NARROWEST = 8
"""The least N of an instruction."""


@dataclass(frozen=True)
class ProbeOperands:
    """The products of one launch: a (batch, m, K), b (batch, n, K), c (batch, m, n) or None, all codes. `labels` has
    the class of each product of the batch."""

    labels: tuple[str, ...]
    a: Codes
    b: Codes
    c: Codes | None


def operand_classes(instruction: TensorCoreInstruction, per_class: int) -> Iterator[ProbeOperands]:
    """Yield every class of operands with every class of C, `per_class` products each, and the feature probes.

    The products are equal on every call; products of one K are in one group, products without C in another. Feature
    probes are for fused sums, so not for integers and f64, and for the narrowest shape of each type only. An error is a
    bug of refsim and not a finding about the device: RuntimeError.
    """
    try:
        yield from _classes(instruction, per_class)
    except RefsimError as error:
        raise RuntimeError(f"no operands for {instruction.name}: {error}") from error


def _classes(instruction: TensorCoreInstruction, per_class: int) -> Iterator[ProbeOperands]:
    """Yield the groups of `operand_classes`."""
    groups: dict[tuple[int, bool], list[ProbeOperands]] = {}
    for name, c_name in cells(instruction):
        a, b = cell_operands(instruction, name, 0, batch=per_class)
        c = cell_c(instruction, name, c_name, 0, a, b)
        some = ProbeOperands((f"{name}, C {c_name}",) * len(a), a, b, c)
        groups.setdefault((a.shape[-1], c is None), []).append(some)
    fused = not instruction.a_format.is_integer and instruction.a_format is not F64
    for some in _features(instruction) if fused and instruction.n == NARROWEST else ():
        groups.setdefault((some.a.shape[-1], some.c is None), []).append(some)
    for group in groups.values():
        labels = tuple(label for each in group for label in each.labels)
        c = np.concatenate([each.c for each in group if each.c is not None]) if group[0].c is not None else None
        yield ProbeOperands(
            labels, np.concatenate([each.a for each in group]), np.concatenate([each.b for each in group]), c
        )


def _features(instruction: TensorCoreInstruction) -> Iterator[ProbeOperands]:
    """Yield eight cases of a feature in a product: case i has row i of A, row i of B and its C at D[i, i]."""
    for feature in features(instruction).values():
        if feature.negate_a or feature.negate_b:
            continue
        cases, length = feature.a.shape
        batch = -(-cases // NARROWEST)
        a = np.zeros((batch, instruction.m, length), feature.a.dtype)
        b = np.zeros((batch, instruction.n, length), feature.b.dtype)
        c = None if feature.c is None else np.zeros((batch, instruction.m, instruction.n), feature.c.dtype)
        product, place = np.divmod(np.arange(cases), NARROWEST)
        a[product, place], b[product, place] = feature.a, feature.b
        if c is not None and feature.c is not None:
            c[product, place, place] = feature.c
        yield ProbeOperands((f"feature {feature.name}",) * batch, a, b, c)


# ---- the smallest case -----------------------------------------------------------------------------------------------


def model_of(row: Profile, instruction: TensorCoreInstruction) -> Products:
    """Return the products of a profile's arithmetic; the profile may belong to another chip, or be made up."""

    def products(a: Codes, b: Codes, c: Codes | None) -> Codes:
        return instruction.codes(a, b, c, row=row)

    return products


@dataclass(frozen=True)
class Dot:
    """One output of a product: its two rows of K codes, its C, and its place (row of A, row of B)."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    c: int
    place: tuple[int, int]


class DeviceAndModel:
    """A device and its model on one instruction, called for single dot products at their places."""

    def __init__(self, device: Products, model: Products, instruction: TensorCoreInstruction) -> None:
        self.device, self.model, self.instruction = device, model, instruction

    def ask(self, dots: Sequence[Dot]) -> list[tuple[int, int]]:
        """Return (device, model) of each dot product; all other rows and columns are zeros. All have one K."""
        instruction, k = self.instruction, len(dots[0].a)
        a = np.zeros((len(dots), instruction.m, k), instruction.a_format.code_dtype)
        b = np.zeros((len(dots), instruction.n, k), instruction.b_format.code_dtype)
        c = np.zeros((len(dots), instruction.m, instruction.n), instruction.d_format.code_dtype)
        for i, dot in enumerate(dots):
            m, n = dot.place
            a[i, m], b[i, n], c[i, m, n] = dot.a, dot.b, dot.c
        rows, columns = np.array([dot.place for dot in dots]).T
        sides = [side(a, b, c)[np.arange(len(dots)), rows, columns].tolist() for side in (self.device, self.model)]
        return list(zip(*sides, strict=True))

    def differing(self, dots: Sequence[Dot]) -> Dot | None:
        """Return the first dot product whose results differ, or None."""
        if not dots:
            return None
        return next((dot for dot, (got, want) in zip(dots, self.ask(dots), strict=True) if got != want), None)


def smallest(pair: DeviceAndModel, dots: Sequence[Dot]) -> tuple[Dot, bool]:
    """Return a dot product that still differs, with few and simple terms, and whether it differs alone.

    It starts with the first of `dots` that differs when all other rows and columns are zero; without one, the first is
    returned unchanged. Terms become zero in halves, quarters and so on, whole instructions are dropped, then operands
    become 1 or lose mantissa bits and signs.
    """
    dot = pair.differing(dots)
    if dot is None:
        return dots[0], False
    dot = _fewer_steps(pair, _fewer_terms(pair, dot))
    dot = pair.differing([replace(dot, c=0)]) or dot
    while True:
        simpler = pair.differing(list(_simpler(pair.instruction, dot)))
        if simpler is None:
            return dot, True
        dot = simpler


def _fewer_terms(pair: DeviceAndModel, dot: Dot) -> Dot:
    """Return a differing dot product in which no part of the terms can become zero."""
    parts = 2
    while True:
        terms = [i for i, (x, y) in enumerate(zip(dot.a, dot.b, strict=True)) if x or y]
        parts = min(parts, len(terms))
        if parts < 1:
            return dot
        cuts = [terms[len(terms) * part // parts : len(terms) * (part + 1) // parts] for part in range(parts)]
        found = pair.differing([_without(dot, cut) for cut in cuts if cut])
        if found is not None:
            dot, parts = found, 2
        elif parts == len(terms):
            return dot
        else:
            parts *= 2


def _without(dot: Dot, places: Sequence[int]) -> Dot:
    gone = set(places)
    a, b = (tuple(0 if i in gone else code for i, code in enumerate(row)) for row in (dot.a, dot.b))
    return replace(dot, a=a, b=b)


def _fewer_steps(pair: DeviceAndModel, dot: Dot) -> Dot:
    """Return the dot product without instructions of zeros, where it still differs."""
    k, start = pair.instruction.k, 0
    while start < len(dot.a) and len(dot.a) > k:
        part = slice(start, start + k)
        if not any(dot.a[part]) and not any(dot.b[part]):
            a, b = (row[:start] + row[start + k :] for row in (dot.a, dot.b))
            found = pair.differing([replace(dot, a=a, b=b)])
            if found is not None:
                dot = found
                continue
        start += k
    return dot


def _simpler(instruction: TensorCoreInstruction, dot: Dot) -> Iterator[Dot]:
    """Yield the dot products with one simpler operand."""
    for i, code in enumerate(dot.a):
        for other in _simpler_codes(code, instruction.a_format):
            yield replace(dot, a=(*dot.a[:i], other, *dot.a[i + 1 :]))
    for i, code in enumerate(dot.b):
        for other in _simpler_codes(code, instruction.b_format):
            yield replace(dot, b=(*dot.b[:i], other, *dot.b[i + 1 :]))
    for other in _simpler_codes(dot.c, instruction.d_format):
        yield replace(dot, c=other)


def _simpler_codes(code: int, format: ElementType) -> Iterator[int]:
    """Yield 1, then the code without its mantissa, without a mantissa bit, without its sign."""
    if code == 0:
        return
    if isinstance(format, Integer):
        if code != 1:
            yield from (1, code & (code - 1) or 1)
        return
    padding = format.padding_bits
    wide = code >> padding
    one = format.bias << format.mantissa_bits
    mantissa = wide & ((1 << format.mantissa_bits) - 1)
    sign = wide & 1 << (format.bits - 1)
    if wide != one:
        yield one << padding
    if mantissa:
        yield (wide & ~mantissa) << padding
        yield (wide & (wide - 1)) << padding
    if sign:
        yield (wide ^ sign) << padding
    if code != wide << padding:
        yield wide << padding


# ---- explanations ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Returned:
    """The device's results for one class of operands."""

    operands: ProbeOperands
    got: Codes


def reproduces(row: Profile, instruction: TensorCoreInstruction, seen: Sequence[Returned]) -> bool:
    """Return whether a profile gives all the device's results."""
    model = model_of(row, instruction)
    return all(np.array_equal(model(each.operands.a, each.operands.b, each.operands.c), each.got) for each in seen)


def known_rows(row: Profile | None, instruction: TensorCoreInstruction) -> list[Profile]:
    """Return the profiles of other chips and units that multiply these formats."""
    a, b, d = instruction.a_format, instruction.b_format, instruction.d_format
    others = (other for other in PROFILES if other is not row and not other.scales and other.d_format == d)
    return [other for other in others if a in other.a_formats and b in other.b_formats]


def explain(
    row: Profile, instruction: TensorCoreInstruction, device: Products, seen: Sequence[Returned], wrong: int
) -> tuple[str, bool]:
    """Return the text of an arithmetic that reproduces the device, and whether a known chip has it.

    Profiles of other chips are tried first, then the result of discovery, then a grid of L, F, rounding, order and
    entry of C. `wrong` is the class in `seen` with the most differences.
    """
    sample = _sample(row, instruction, seen[wrong])
    matching = [other for other in known_rows(row, instruction) if _fits(other, instruction, sample, seen)]
    if matching:
        names = ", ".join(dict.fromkeys(f"{other.target} {other.unit}" for other in matching))
        return f"matches {names}: {said(matching[0], instruction.k)}", True
    found = discovered(instruction, device)
    made = found.as_profile(row) if found is not None else None
    if made is not None and _fits(made, instruction, sample, seen):
        return f"no known chip; fits {said(made, instruction.k)}", False
    for candidate in _grid(row, instruction):
        if _fits(candidate, instruction, sample, seen):
            return f"no known chip; fits {said(candidate, instruction.k)}", False
    return "unexplained: no known chip, and no L, F, rounding, order or way of C reproduces it", False


def said(row: Profile, k: int) -> str:
    """Return a profile's parameters as text: L = 16, F = 13, rz-e8m13, zero exponent -132."""
    if not row.method.parametrised:
        return row.method.name
    order = "" if row.order is ASCENDING else f", {row.order}"
    late = "" if row.c_enters is EARLY else ", C late"
    length = len(row.steps(k)[0])
    return f"L = {length}, F = {row.fraction}, {row.rounding}, zero exponent {row.zero_exponent}{order}{late}"


def _sample(row: Profile, instruction: TensorCoreInstruction, seen: Returned) -> Returned:
    """Return some outputs of one class as products of a single row and column, differing ones first."""
    operands = seen.operands
    want = model_of(row, instruction)(operands.a, operands.b, operands.c)
    order = np.argsort(want.ravel() == seen.got.ravel(), kind="stable")[:_SAMPLE]
    batch, m, n = np.unravel_index(order, want.shape)
    a, b = operands.a[batch, m][:, None], operands.b[batch, n][:, None]
    c = None if operands.c is None else operands.c[batch, m, n][:, None, None]
    single = ProbeOperands(("a sample",) * len(order), a, b, c)
    return Returned(single, seen.got[batch, m, n][:, None, None])


def _fits(row: Profile, instruction: TensorCoreInstruction, sample: Returned, seen: Sequence[Returned]) -> bool:
    return reproduces(row, instruction, [sample]) and reproduces(row, instruction, seen)


def is_probed(instruction: TensorCoreInstruction) -> bool:
    """Return whether discovery covers the instruction: floats summed in f32 or f16."""
    a = instruction.a_format
    return not a.is_integer and a is not F64 and instruction.d_format in (F32, F16)


def discovered(instruction: TensorCoreInstruction, device: Products) -> Discovery | None:
    """Return the probed parameters of the instruction, or None where its sums are not probed."""
    if not is_probed(instruction):
        return None

    def dots(a: Codes, b: Codes, c: Codes) -> Codes:
        wide = [
            np.zeros((len(a), rows, instruction.k), x.dtype) for rows, x in ((instruction.m, a), (instruction.n, b))
        ]
        z = np.zeros((len(a), instruction.m, instruction.n), c.dtype)
        wide[0][:, 0], wide[1][:, 0], z[:, 0, 0] = a, b, c
        return device(wide[0], wide[1], z)[:, 0, 0]

    try:
        return discover(dots, instruction.a_format, instruction.b_format, instruction.d_format, instruction.k)
    except RefsimError as error:
        if error.code != "unreachable-product":
            raise
        return None


def _grid(row: Profile, instruction: TensorCoreInstruction) -> Iterator[Profile]:
    """Yield profiles around `row`, with parameters that no chip needs to have."""
    a, b = instruction.a_format, instruction.b_format
    if not row.method.parametrised or row.fraction is None or isinstance(a, Integer) or isinstance(b, Integer):
        return
    lengths = [length for length in (1, 2, 4, 8, 16, 32, 64) if length <= instruction.k]
    roundings = (RNE_F16,) if instruction.d_format is F16 else (RZ_F32, RZ_E8M13, RNE_F32)
    fractions = sorted(range(a.mantissa_bits + b.mantissa_bits, 36), key=lambda f: abs(f - (row.fraction or 0)))
    orders = (ASCENDING, BYTE_PAIRS) if instruction.k % 4 == 0 else (ASCENDING,)
    for enters, order, rounding, fraction, length in product((EARLY, LATE), orders, roundings, fractions, lengths):
        if order is BYTE_PAIRS and length != lengths[0]:
            continue
        yield replace(row, length=length, fraction=fraction, rounding=rounding, order=order, c_enters=enters)


# ---- words -----------------------------------------------------------------------------------------------------------


def difference(pair: DeviceAndModel, dots: Sequence[Dot], explanation: tuple[str, bool]) -> Difference:
    """Return the smallest case in bits, with the results of the device and its model."""
    small, alone = smallest(pair, dots)
    if not alone:
        needs = "it differs next to other rows and columns only: each dot product alone agrees"
        return Difference((*_cut(_spelled(pair.instruction, small)), needs), "-", "-", *explanation)
    ((got, want),) = pair.ask([small])
    words = [_result(code, pair.instruction) for code in (got, want)]
    if got == want:
        explanation = ("the device does not repeat itself: this differed, and asked once more agrees", False)
    return Difference(tuple(_spelled(pair.instruction, small)), words[0], words[1], *explanation)


def unsteady(pair: DeviceAndModel, seen: Returned) -> Difference | None:
    """Return the first result that changes when its launch is repeated twice, or None."""
    operands = seen.operands
    for _ in range(2):
        again = pair.device(operands.a, operands.b, operands.c)
        places = np.argwhere(again != seen.got)
        if len(places):
            break
    else:
        return None
    batch, m, n = places[0].tolist()
    one = slice(batch, batch + 1)
    want = pair.model(operands.a[one], operands.b[one], None if operands.c is None else operands.c[one])
    first, second, model = (
        _result(int(word), pair.instruction) for word in (seen.got[batch, m, n], again[batch, m, n], want[0, m, n])
    )
    count = f"{len(places)} of {again.size} words"
    return Difference(
        tuple(_cut(_spelled(pair.instruction, dot_at(operands, batch, m, n)))),
        f"{first}, then {second}",
        model,
        f"the device does not repeat itself: the same launch made again differs in {count}",
    )


def dot_at(operands: ProbeOperands, batch: int, m: int, n: int) -> Dot:
    """Return one output of a launch."""
    c = 0 if operands.c is None else int(operands.c[batch, m, n])
    return Dot(tuple(operands.a[batch, m].tolist()), tuple(operands.b[batch, n].tolist()), c, (m, n))


def _cut(lines: Iterator[str]) -> list[str]:
    """Return the first lines, and the number of further lines."""
    found = list(lines)
    return [*found[:_SHOWN], f"and {len(found) - _SHOWN} lines more"] if len(found) > _SHOWN else found


def _result(code: int, instruction: TensorCoreInstruction) -> str:
    return _pattern(code, instruction.d_format)


def _spelled(instruction: TensorCoreInstruction, dot: Dot) -> Iterator[str]:
    """Yield the lines of a dot product: its place, its nonzero terms and C."""
    yield f"D[{dot.place[0]}, {dot.place[1]}] of K = {len(dot.a)}, all other operands zero"
    for i, (x, y) in enumerate(zip(dot.a, dot.b, strict=True)):
        if x or y:
            sides = _pattern(x, instruction.a_format), _pattern(y, instruction.b_format)
            yield f"k = {i}: {sides[0]} x {sides[1]}"
    yield f"C = {_pattern(dot.c, instruction.d_format)}"


def _pattern(code: int, format: ElementType) -> str:
    """Return the bits and the value of a code: 0x38 (1)."""
    return f"0x{code:0{2 * format.code_dtype.itemsize}x} ({format.value(code):.9g})"
