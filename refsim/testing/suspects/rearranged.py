"""Inputs that the kernel reads in another order: it agrees once its inputs are rearranged in the same way."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations.reading import CHUNK_PATTERNS, chunks_moved
from refsim.errors import RefsimError
from refsim.formats import element_named
from refsim.kernels import Outputs
from refsim.testing.suspects.budget import MATRICES, Budget
from refsim.testing.suspects.feeding import Array, Diet, differing
from refsim.testing.suspects.scale_tiles import Listed, tiles
from refsim.testing.suspects.suspicion import FRAGMENT, Suspicion

LEAST, LEAST_DISTINCT = 32, 8
"""Elements that become right, and different codes among them."""
FEWER_BY = 4
"""An input with fewer elements than the largest one by this factor may hold scales, zero points or weights of rows."""
LANES, DEPTH, RUN = 3, 4, 16
"""Bits of the rows of a fragment's 8 lanes and of its 16-byte rows: what exchanged registers of `mma` confuse."""
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)
PARTS = 4
"""Candidates that one run tries together, each in its own part of the input."""
SEEN_IN_PART = 0.1
"""The part of the wrong elements that becomes right if one of the candidates tried together is right."""
CONFIRMED = 3
"""Test cases on which a rearrangement is tried."""
LEAST_OF_PARTS = 64
"""Elements of an input below which each candidate is tried alone."""
TILE = 64
"""A divisor of the extents whose scales fill tiles; others have pads, which kernels read in several ways."""
GROUPS = (128, 32, 16, 64)
"""Elements of a group that shares a scale, likely ones first."""
Order = Callable[[Array], Array | None]
PARTIAL = ("elements of another place", "rows exchanged")
"""Candidates of which the kernel may take one element for several."""


@dataclass(frozen=True)
class Rearrangement:
    """A candidate cause: `orders` are the orders in which the kernel may take an input.

    `is_partial`: each wrong element need become right in one of the runs only, because the kernel takes one element
    for several. `turned` moves the outputs' columns of a kernel that also writes in this order.
    """

    suspect: str
    says: str
    orders: tuple[Order, ...]
    is_partial: bool = False
    turned: tuple[int, ...] = ()


Candidate = tuple[tuple[str, ...], tuple[Rearrangement, ...]]
"""Inputs that are misread in the same way, and how each is."""


def rearranged(diet: Diet, problems: Sequence[Any], *, budget: Budget) -> Suspicion | None:
    """Return how the kernel misreads inputs, if it agrees on all outputs for these inputs rearranged.

    The first of `problems` decides, and others that fail must agree, where the same rearrangement changes them. Raises
    OutOfTimeError if the budget ended first. `diet.device` must be one that a changed input cannot harm.
    """
    first, later = problems[0], []
    for batch in _batches(diet, first):
        budget.check()
        if len(batch) > 1 and not _is_seen(diet, first, batch):
            later += batch
            continue
        for each in batch:
            budget.check()
            if found := _found(diet, problems, each):
                return found
    for each in later:
        budget.check()
        if found := _found(diet, problems, each):
            return found
    return None


def _found(diet: Diet, problems: Sequence[Any], candidate: Candidate) -> Suspicion | None:
    """Return the cause if the candidate mends the test cases, with one of its inputs if that one is enough."""
    if not _mends(diet, problems[0], candidate):
        return None
    alone = [((name,), (way,)) for name, way in zip(*candidate, strict=True)] if len(candidate[0]) > 1 else []
    names, ways = next((each for each in alone if _mends(diet, problems[0], each)), candidate)
    if not (count := _confirmed(diet, problems, (names, ways))):
        return None
    is_permuted = ways[0].suspect == FRAGMENT and not _has_matrices(diet)
    suspect, says = "elements permuted" if is_permuted else ways[0].suspect, ways[0].says
    whole = tuple(replace(each, is_partial=False) for each in ways)
    if ways[0].is_partial and len(ways[0].orders) == 1 and not _mends(diet, problems[0], (names, whole)):
        says = f"{says.replace(' are exchanged', ' are taken')}, for some elements and not for all"
    return Suspicion(suspect, says, tuple(f"input {name}" for name in names), count, is_mended=True)


def _confirmed(diet: Diet, problems: Sequence[Any], candidate: Candidate) -> int:
    """Return how many test cases a rearrangement mends, at most 3; 0 if it changes one and does not mend it."""
    names, (way, *_) = candidate
    count = 1
    for problem in problems[1:]:
        uploads = diet.uploads(problem)
        if count == CONFIRMED or not any(marks.any() for marks in diet.wrong(problem).values()):
            break
        has_pads = way.suspect == "scale layout" and any(each % TILE for each in _extents(diet, problem))
        if has_pads or not set(names) <= set(uploads):
            continue
        same = [[each for each in _ways(diet, problem, name) if each.says == way.says] for name in names]
        if alike := [ways for ways in zip(*same, strict=False) if _change(names, ways, uploads) is not None]:
            if not any(_mends(diet, problem, (names, ways), least=1) for ways in alike):
                return 0
            count += 1
    return count


def _has_matrices(diet: Diet) -> bool:
    return bool(MATRICES.search(diet.device.program.text))  # type: ignore[attr-defined]


def _extents(diet: Diet, problem: Any) -> set[int]:
    return {extent for each in diet.outputs(problem).values() for extent in np.shape(each)}


def _fed(diet: Diet, problem: Any, arrays: Mapping[str, Array | None]) -> Outputs | None:
    """Return the outputs for changed inputs; None for a fault, or for a change that does not apply."""
    if any(each is None for each in arrays.values()):
        return None

    def changed(name: str, array: Array) -> Array:
        made = arrays.get(name)
        return array if made is None else np.ascontiguousarray(made).reshape(array.shape)

    try:
        return diet.fed(problem, changed)
    except (RefsimError, ValueError, KeyError):  # a fault on changed inputs
        return None


def _mends(diet: Diet, problem: Any, candidate: Candidate, least: int = LEAST) -> bool:
    """Return whether every wrong element becomes right, and enough of them do."""
    names, ways = candidate
    uploads, left = diet.uploads(problem), diet.wrong(problem)
    mended: dict[str, list[Array]] = {name: [] for name in left}
    for step in range(len(ways[0].orders)):
        arrays = {name: each.orders[step](uploads[name]) for name, each in zip(names, ways, strict=True)}
        made = _fed(diet, problem, arrays)
        if made is None:
            return False
        made = {name: _turned_back(array, ways[0].turned) for name, array in made.items()}
        wrong = diet.wrong(problem, made)
        if not ways[0].is_partial and any(marks.any() for marks in wrong.values()):
            return False
        for name, marks in left.items():
            mended[name].append(np.asarray(made[name])[marks & ~wrong[name]])
        left = {name: marks & wrong[name] for name, marks in left.items()}
    if any(marks.any() for marks in left.values()):
        return False
    found = [np.concatenate(each) for each in mended.values()]
    distinct = sum(len(np.unique(each)) for each in found)
    return sum(map(len, found)) >= least and distinct >= min(least, LEAST_DISTINCT)


def _turned_back(array: Array, turned: tuple[int, ...]) -> Array:
    is_turned = bool(turned) and array.ndim > 0 and array.shape[-1] == len(turned)
    return np.ascontiguousarray(array[..., list(turned)]) if is_turned else array


def _is_seen(diet: Diet, problem: Any, batch: Sequence[Candidate]) -> bool:
    """Return whether wrong elements become right with each candidate in its own part of the inputs."""
    uploads, wrong = diet.uploads(problem), diet.wrong(problem)
    arrays: dict[str, Array | None] = {}
    for number, name in enumerate(batch[0][0]):
        made = uploads[name].reshape(-1).copy()
        for part, (_, ways) in enumerate(batch):
            order = ways[number].orders[0](uploads[name])
            if order is not None:
                of_part = slice(part * made.size // len(batch), (part + 1) * made.size // len(batch))
                made[of_part] = np.ascontiguousarray(order).reshape(-1)[of_part]
        arrays[name] = made
    outputs = _fed(diet, problem, arrays)
    if outputs is None:
        return True
    still = diet.wrong(problem, outputs)
    mended = sum(int((marks & ~still[name]).sum()) for name, marks in wrong.items())
    return mended >= max(LEAST / 2, SEEN_IN_PART * sum(int(marks.sum()) for marks in wrong.values()))


def _is_local(array: Array, way: Rearrangement) -> bool:
    """Return whether elements stay in their quarter of the input, and the orders move elements only."""
    if way.turned or len(way.orders) > 1 or array.size % PARTS or array.size < LEAST_OF_PARTS:
        return False
    parts = (np.arange(array.size) * PARTS // array.size).astype(array.dtype).reshape(array.shape)
    made = way.orders[0](parts)
    return made is not None and bool((np.reshape(made, parts.shape) == parts).all())


def _batches(diet: Diet, problem: Any) -> Iterator[list[Candidate]]:
    """Yield candidates that change the inputs, likely ones of all inputs first, together where one run can try them."""
    uploads = diet.uploads(problem)
    few = _few(uploads)
    alone = {name: _ways(diet, problem, name) for name, array in uploads.items() if array.size > 1}
    single = {name: few[name] or _is_spread(diet, problem, name) for name in alone}
    queues = [_queue([((name,), (each,)) for each in ways], uploads, single[name]) for name, ways in alone.items()]
    for names in _alike(alone, uploads, few):
        called = [{(each.suspect, each.says): each for each in reversed(alone[name])} for name in names]
        both = [key for key in reversed(called[0]) if all(key in each for each in called)]
        queues.append(
            _queue(
                [(names, tuple(each[key] for each in called)) for key in both],
                uploads,
                any(single[name] for name in names),
            )
        )
    while queues:
        batches = [(queue, next(queue, None)) for queue in queues]
        queues = [queue for queue, batch in batches if batch]
        yield from (batch for _, batch in batches if batch)


def _few(uploads: dict[str, Array]) -> dict[str, bool]:
    """Return which inputs are small next to the largest one."""
    largest = max((each.nbytes for each in uploads.values()), default=0)
    return {name: array.nbytes * FEWER_BY <= largest for name, array in uploads.items()}


def _alike(alone: Mapping[str, object], uploads: dict[str, Array], few: dict[str, bool]) -> Iterator[tuple[str, ...]]:
    """Yield inputs that may be misread in the same way: two of one type, then all small ones."""
    for one, other in combinations(alone, 2):
        is_packed = uploads[one].dtype == np.uint32
        if uploads[one].dtype == uploads[other].dtype and (few[one] == few[other] or is_packed):
            yield one, other
    small = tuple(name for name in alone if few[name] and uploads[name].ndim > 1)
    if len(small) > 1:
        yield small


def _is_spread(diet: Diet, problem: Any, name: str) -> bool:
    """Return whether a part of an input changes most of the outputs, so that parts of it cannot be tried apart."""
    array = diet.uploads(problem)[name]
    made = array.reshape(-1).copy()
    first = made.size // PARTS
    made[:first] = made[:first][::-1]
    outputs = _fed(diet, problem, {name: made})
    changed = {} if outputs is None else differing(outputs, diet.outputs(problem))
    return 2 * sum(int(each.sum()) for each in changed.values()) > sum(each.size for each in changed.values())


def _queue(candidates: Iterable[Candidate], uploads: dict[str, Array], is_few: bool) -> Iterator[list[Candidate]]:
    """Yield the candidates that change the inputs, each change once, in batches that one run can try together."""
    tried: set[tuple[int, ...]] = set()
    together: list[Candidate] = []
    for names, ways in candidates:
        if (key := _change(names, ways, uploads)) is None or key in tried:
            continue
        tried.add(key)
        if is_few or not all(_is_local(uploads[name], way) for name, way in zip(names, ways, strict=True)):
            yield [(names, ways)]
            continue
        together.append((names, ways))
        if len(together) == PARTS:
            yield together
            together = []
    if together:
        yield together


def _change(
    names: tuple[str, ...], ways: tuple[Rearrangement, ...], uploads: dict[str, Array]
) -> tuple[int, ...] | None:
    """Return what identifies a change of the inputs; None if there is none."""
    key = []
    for name, way in zip(names, ways, strict=True):
        for made in (order(uploads[name]) for order in way.orders):
            if made is None:
                return None
            key.append(hash(np.ascontiguousarray(made).tobytes()))
        if key[-len(way.orders) :] == [hash(np.ascontiguousarray(uploads[name]).tobytes())]:
            return None
    return (*key, hash(ways[0].turned))


def _ways(diet: Diet, problem: Any, name: str) -> list[Rearrangement]:
    """Return the orders in which an input may be taken: within words, then within its matrix."""
    uploads, extents = diet.uploads(problem), _extents(diet, problem)
    array, is_few, has_matrices = uploads[name], _few(uploads)[name], _has_matrices(diet)
    shapes = _shapes(array, extents, is_few)
    listed = [
        *(_steps(array) if is_few else ()),
        *(_packed(array) if array.dtype.kind in "ui" else ()),
        *_at_indices(array, uploads),
        *(tiles(array.size, extents) if is_few and array.dtype.itemsize == 1 else ()),
    ]
    found = [Rearrangement(suspect, says, (order,)) for suspect, says, order in listed]
    orders = [list(_scales(shape) if is_few else _operands(shape, array.dtype.itemsize)) for shape in shapes]
    is_narrow = any(each and element_named(each).bits <= 8 for each in diet.kernel.output_formats(problem).values())
    matrices = [
        *(() if has_matrices else _of_pairs(shapes, extents)),
        *_of_pitch(array, extents),
        *(_of_larger_groups(shapes) if is_few else _of_groups(array, shapes) if is_narrow else ()),
    ]
    for rank in range(max([len(matrices), *(len(each) for each in orders)])):
        for suspect, says, order in (each[rank] for each in orders if rank < len(each)):
            found.append(Rearrangement(suspect, says, (order,), is_partial=suspect in PARTIAL))
        found += matrices[rank : rank + 1]
    return found


def _shapes(array: Array, extents: set[int], is_few: bool) -> list[tuple[int, int]]:
    """Return the matrices that an array may be: its own, or with as many rows as an output."""
    rows = [array.shape[0]] if array.ndim == 2 else []
    rows += sorted(each for each in extents if each > 1 and array.size % each == 0 and array.size > each)
    return [(each, array.size // each) for each in dict.fromkeys(rows)] + [(array.size, 1)] * is_few


# ---- within bytes and words ------------------------------------------------------------------------------------------


def _packed(array: Array) -> Iterator[Listed]:
    """Yield orders of the nibbles and bytes of a word."""
    if array.dtype.itemsize in (1, 4):
        yield "order of codes in a byte", "the two nibbles of each byte are exchanged", partial(_nibbles, (1, 0))
    if array.nbytes % 4 == 0 and array.dtype.itemsize == 4:
        back = tuple(int(each) for each in np.argsort(AWQ))
        awq = "the nibbles of each word are taken "
        yield "order of codes", f"{awq}in their order, not in that of AWQ", partial(_nibbles, AWQ)
        yield "order of codes", f"{awq}in the order of AWQ, not as they lie", partial(_nibbles, back)
        yield "order of codes", f"{awq}from the highest down", partial(_nibbles, tuple(range(7, -1, -1)))
        yield "byte order", "the bytes of each word are taken from the highest down", np.ndarray.byteswap
        for at in range(1, 8):
            yield (
                "order of codes",
                f"the nibbles i and i ^ {at} of each word are exchanged",
                partial(_nibbles, tuple(i ^ at for i in range(8))),
            )


def _nibbles(order: tuple[int, ...], array: Array) -> Array:
    octets = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    nibbles = np.stack([octets & 0xF, octets >> 4], -1).reshape(-1, len(order))[:, list(order)].reshape(-1, 2)
    return np.asarray((nibbles[:, 0] | nibbles[:, 1] << 4).astype(np.uint8).view(array.dtype))


def _steps(array: Array) -> Iterator[Listed]:
    """Yield integers, codes or nibbles that are taken for one more or less, as zero points and biases are."""
    if array.dtype.itemsize > 1 and not (array.dtype.kind == "i" or array.dtype == np.uint32):
        yield "sign", "each number is taken with the other sign", _negated
    if array.dtype.kind not in "ui":
        return
    for step, more in ((-1, "more"), (1, "less")):
        if array.dtype.itemsize == 4 and array.dtype.kind == "u":
            word = step * 0x11111111 % (1 << 32)
            yield "zero point", f"its nibbles are taken for one {more}", partial(_plus, word)
        if array.dtype.kind == "i":
            yield "zero point", f"each number is taken for one {more}", partial(_plus, step)


def _negated(array: Array) -> Array:
    """Return floats, or codes of floats, with the other sign."""
    width = array.dtype.itemsize
    words = np.ascontiguousarray(array).view(f"u{width}")
    return np.asarray((words ^ words.dtype.type(1 << 8 * width - 1)).view(array.dtype))


def _plus(step: int, array: Array) -> Array:
    return (array.astype(np.int64) + step).astype(array.dtype)


# ---- places in a matrix ----------------------------------------------------------------------------------------------


def _operands(shape: tuple[int, int], size: int) -> Iterator[Listed]:
    """Yield orders of a large input: of exchanged registers of a fragment, and of a swizzle on one side alone."""
    unit = size.bit_length() - 1
    fragment = "bit {} of the row and bit {} of the byte in the row are exchanged"

    def crossed(row: int, column: int) -> Listed:
        bits = (0, 1 << row), (1, 1 << max(0, column - unit))
        return FRAGMENT, fragment.format(row, column), partial(_exchanged, shape, *bits)

    yield crossed(LANES, DEPTH)
    yield crossed(LANES, DEPTH - 1)
    yield from _runs(shape, size, (RUN,), FRAGMENT)
    yield from _swizzles(shape, size, (CHUNK_PATTERNS[0], (RUN // 2, 8, 0), CHUNK_PATTERNS[4]))
    yield "transposed", "each block of 8 x 8 is read as its transpose", partial(_blocks_turned, shape, 8)
    yield "transposed", "it is read as its transpose", partial(_turned, shape)
    yield "transposed", "it is read as its transpose", partial(_turned, shape[::-1])
    yield from _runs(shape, size, (RUN // 2, 2 * RUN, RUN // 4, 4 * RUN), FRAGMENT)
    yield from (crossed(row, column) for row, column in ((LANES + 1, DEPTH), (LANES, DEPTH + 1)))
    yield from _swizzles(shape, size, CHUNK_PATTERNS)
    yield from _rows(shape, "rows exchanged")
    for high in range(1, 6):
        for low in range(high):
            says = f"bits {low} and {high} of the element's index in the row are exchanged"
            yield "elements permuted", says, partial(_exchanged, shape, (1, 1 << low), (1, 1 << high))
    yield from _runs(shape, size, (1, 2, 8 * RUN), FRAGMENT)
    yield from (crossed(row, column) for row in range(6) for column in range(unit, 7))


def _swizzles(shape: tuple[int, int], size: int, patterns: tuple[tuple[int, int, int], ...]) -> Iterator[Listed]:
    for pattern in patterns:
        says = f"it is swizzled on one side alone: chunk c of row r at c ^ (r >> {pattern[2]}) % {pattern[1]}"
        yield "swizzle not undone", f"{says}, {pattern[0] or size} bytes each", partial(_swizzled, shape, pattern)


def _runs(shape: tuple[int, int], size: int, widths: tuple[int, ...], suspect: str) -> Iterator[Listed]:
    for width in widths:
        if width >= size:
            says = f"neighbouring runs of {width} bytes of each row are exchanged"
            yield suspect, says, partial(_neighbours, shape, 1, width // size)


def _rows(shape: tuple[int, int], suspect: str) -> Iterator[Listed]:
    for apart in (8, 1, 16, 2, 4, 32, 64):
        if apart < shape[0]:
            yield suspect, f"rows {apart} apart are exchanged", partial(_neighbours, shape, 0, apart)


def _scales(shape: tuple[int, int]) -> Iterator[Listed]:
    """Yield orders of a small input: neighbours exchanged, rotated in groups, transposed."""
    yield "transposed", "it is read as its transpose", partial(_turned, shape)
    yield "transposed", "it is read as its transpose", partial(_turned, shape[::-1])
    lines = ((0, "row" if shape[1] > 1 else "element"), (1, "column"))
    for apart in (8, 1, 4):
        for axis, line in lines:
            yield from _apart(shape, axis, line, apart)
    for group in (4, 2, 8, 0):
        for axis, line in lines:
            yield from _groups_of(shape, axis, line, group or shape[axis])
    for axis, line in lines:
        for apart in (2, 16, 32, 64, shape[axis] // 2):
            yield from _apart(shape, axis, line, apart)
        yield "elements of another place", f"{line}s are taken in reverse", partial(_reversed, shape, axis)
    for apart in range(1, 7):
        for other in range(10 - apart):
            one = other + apart
            says = f"bits {other} and {one} of the {'row' if shape[1] > 1 else 'index'} are exchanged"
            yield "elements permuted", says, partial(_exchanged, shape, (0, 1 << other), (0, 1 << one))


def _groups_of(shape: tuple[int, int], axis: int, line: str, group: int) -> Iterator[Listed]:
    """Yield lines that are rotated by one within each group, or exchanged."""
    for step in (1, -1) if group > 2 and shape[axis] % group == 0 else ():
        says = f"the {'next' if step == 1 else 'previous'} {line} of every {group} is taken"
        yield "elements of another place", says, partial(_rotated, shape, axis, group, step)


def _apart(shape: tuple[int, int], axis: int, line: str, apart: int) -> Iterator[Listed]:
    if 0 < apart < shape[axis]:
        says = f"those of {line}s {apart} apart are exchanged"
        yield "elements of another place", says, partial(_neighbours, shape, axis, apart)


def _turned(shape: tuple[int, int], array: Array) -> Array:
    return np.ascontiguousarray(array.reshape(shape).T)


def _blocks_turned(shape: tuple[int, int], side: int, array: Array) -> Array | None:
    if shape[0] % side or shape[1] % side:
        return None
    blocks = array.reshape(shape[0] // side, side, shape[1] // side, side)
    return np.ascontiguousarray(blocks.transpose(0, 3, 2, 1))


def _reversed(shape: tuple[int, int], axis: int, array: Array) -> Array:
    return np.flip(array.reshape(shape), axis)


def _rotated(shape: tuple[int, int], axis: int, group: int, step: int, array: Array) -> Array | None:
    lines = np.moveaxis(array.reshape(shape), axis, 0)
    parts = lines.reshape(-1, group, lines.shape[1])
    return np.moveaxis(np.roll(parts, step, 1).reshape(lines.shape), 0, axis)


def _neighbours(shape: tuple[int, int], axis: int, apart: int, array: Array) -> Array | None:
    """Return the matrix with lines `apart` exchanged in every two runs of them; None where one has no partner."""
    lines = np.arange(shape[axis])
    lines = np.where(lines // apart % 2, lines - apart, lines + apart)
    return None if lines.max() >= shape[axis] else np.take(array.reshape(shape), lines, axis)


def _exchanged(shape: tuple[int, int], one: tuple[int, int], other: tuple[int, int], array: Array) -> Array | None:
    """Return the matrix with two bits of an element's place exchanged, each as (axis, the bit's weight)."""
    place = list(np.indices(shape))
    apart = ((place[one[0]] & one[1]) != 0) != ((place[other[0]] & other[1]) != 0)
    for axis, weight in (one, other):
        place[axis] = place[axis] ^ np.where(apart, weight, 0)
    if any((each >= extent).any() for each, extent in zip(place, shape, strict=True)):
        return None
    return np.asarray(array.reshape(shape)[tuple(place)])


def _swizzled(shape: tuple[int, int], pattern: tuple[int, int, int], array: Array) -> Array | None:
    return chunks_moved(array.reshape(shape), *pattern)


# ---- other indices ---------------------------------------------------------------------------------------------------


def _at_indices(array: Array, uploads: dict[str, Array]) -> Iterator[Listed]:
    """Yield lines that are taken at the numbers of an input of indices, or at their inverse."""
    for name, indices in uploads.items():
        is_order = indices.dtype.kind in "iu" and indices.ndim == 1 and 1 < len(indices) == len(array)
        if is_order and indices is not array and (np.sort(indices) == np.arange(len(indices))).all():
            for way, order in (("at", np.argsort(indices)), ("before", indices)):
                says = f"its rows are taken {way} the places that input {name} gives"
                yield "elements of another place", says, partial(np.take, indices=order, axis=0)


def _of_pitch(array: Array, extents: set[int]) -> Iterator[Rearrangement]:
    """Yield rows that are taken for dense, although they lie a pitch apart."""
    for rows, pitch in _shapes(array, extents, is_few=False):
        for columns in sorted(extents):
            if pitch / 2 < columns < pitch:
                says = f"rows are taken for {columns} elements apart, and lie {pitch} apart"
                yield Rearrangement("stride", says, (partial(_dense, (rows, pitch), columns),))


def _dense(shape: tuple[int, int], columns: int, array: Array) -> Array:
    dense = array.reshape(shape)[:, :columns].reshape(-1)
    return np.concatenate([dense, array.reshape(-1)[dense.size :]])


def _of_pairs(shapes: list[tuple[int, int]], extents: set[int]) -> Iterator[Rearrangement]:
    """Yield rows whose even and odd elements are taken together, where element i belongs to the other half of the row."""
    for rows, columns in shapes:
        if columns in extents and columns % 4 == 0:
            halves = np.arange(columns).reshape(2, -1)
            says = f"{{}} of every {columns} are taken together, and lie so in the outputs, where {{}} belong together"
            for order, words in (
                (halves.T, ("even and odd elements", "the halves of the row")),
                (halves.reshape(-1, 2).T, ("elements of both halves", "even and odd elements")),
            ):
                taken = order.reshape(-1)
                moved = partial(_columns, (rows, columns), taken)
                turned = tuple(int(each) for each in np.argsort(taken))
                yield Rearrangement("order of pairs", says.format(*words), (moved,), turned=turned)


def _columns(shape: tuple[int, int], order: NDArray[np.int64], array: Array) -> Array:
    return array.reshape(shape)[:, order]


def _of_larger_groups(shapes: list[tuple[int, int]]) -> Iterator[Rearrangement]:
    """Yield lines each of which is taken for several, as if groups were larger."""
    for shape in shapes:
        for axis, line in ((0, "row"), (1, "column")):
            for factor in (2, 4):
                if shape[axis] % factor == 0 and shape[axis] >= factor:
                    says = f"a {line} is taken for {factor}, as if groups were {factor} times as large"
                    orders = tuple(partial(_every, shape, axis, factor, first) for first in range(factor))
                    yield Rearrangement("elements of another place", says, orders, is_partial=True)


def _every(shape: tuple[int, int], axis: int, factor: int, first: int, array: Array) -> Array:
    lines = np.arange(shape[axis])
    lines[: shape[axis] // factor] = lines[first::factor]  # larger groups read no other line
    return np.take(array.reshape(shape), lines, axis)


def _of_groups(array: Array, shapes: list[tuple[int, int]]) -> Iterator[Rearrangement]:
    """Yield groups whose scale comes from other elements: from a part of them, or from their neighbours' too."""
    for size in GROUPS:
        for rows, columns in shapes:
            for high, wide in ((1, size), (size, size), (size, 1)):
                if rows % high or columns % wide or array.dtype.itemsize == 1:
                    continue
                folded = rows // high, high, columns // wide, wide
                at = f"groups of {high} x {wide}"
                peaks = tuple(partial(_with_peaks, folded, first) for first in range(2))
                says = f"the scale of {at} depends on another group: on a part of theirs alone"
                yield Rearrangement("amax of other elements", says, peaks, is_partial=True)
                if columns % (2 * wide) == 0 and high == 1:
                    copies = tuple(partial(_copied, folded, kept) for kept in range(2))
                    says = f"the scale of {at} depends on another group: on their neighbour"
                    yield Rearrangement("scale group", says, copies, is_partial=True)


def _with_peaks(folded: tuple[int, int, int, int], first: int, array: Array) -> Array | None:
    """Return groups with a copy of their largest magnitude at two places, `first` elements from each half."""
    values = array.copy()
    groups = values.reshape(folded).transpose(0, 2, 1, 3).reshape(folded[0], folded[2], -1)
    magnitudes = np.abs(groups) if array.dtype.kind == "f" else groups << 1  # without the sign
    largest = magnitudes.argmax(-1)[..., None]
    peak = np.take_along_axis(groups, largest, -1)[..., 0]
    for start in (first, groups.shape[-1] // 2 + first):
        groups[..., start] = peak
    return groups.reshape(folded[0], folded[2], folded[1], folded[3]).transpose(0, 2, 1, 3).reshape(array.shape)


def _copied(folded: tuple[int, int, int, int], kept: int, array: Array) -> Array:
    """Return the first of every two groups in both places, or the second."""
    lines = array.reshape(folded[0] * folded[1], folded[2] // 2, 2, folded[3])
    return np.repeat(lines[:, :, kept : kept + 1], 2, 2).reshape(array.shape)
