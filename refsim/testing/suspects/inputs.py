"""Candidate causes in reading inputs: the kernel agrees once it gets the input that it takes for the right one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode, encode
from refsim.errors import RefsimError
from refsim.formats import FORMATS, Format, Specials
from refsim.testing.suspects.budget import Budget
from refsim.testing.suspects.feeding import Array, Diet, differing
from refsim.testing.suspects.suspicion import OutOfTimeError, Suspicion

LEAST = 4  # elements that change and become right
FILLINGS = (0x38, 0xC1)  # bytes for elements without a stand-in: 1 and -2.25 in e4m3, moderate in other formats
Shape = tuple[int, int]
Fed = tuple[Array, NDArray[np.bool_]]


@dataclass(frozen=True)
class InputRemedy:
    """A mistake in reading an input, and its cure.

    `change(array, shapes)` returns the input that the kernel takes for the right one, and the elements without a
    stand-in; None if it does not apply. `shapes` are the possible shapes of a flat array.
    """

    suspect: str
    says: str
    change: Callable[[Array, Sequence[Shape]], Fed | None]


def read_one_off(diet: Diet, problems: Sequence[Any], moved: Suspicion, *, budget: Budget) -> tuple[Suspicion, ...]:
    """Return the misread line of an input that explains why lines of an output are `moved` by one; else `moved` itself.

    A row of an output need not come from a row of an input. If an input could not be tested, the axis is left open.
    """
    try:
        if found := misread(diet, problems, budget=budget, remedies=_shifts()):
            return found
        uploads = diet.uploads(problems[0])
    except OutOfTimeError:
        return (replace(moved, suspect="off by one"),)
    shapes = [np.shape(each) for each in diet.outputs(problems[0]).values() if np.ndim(each) == 2]
    is_known = all(_matrix(array, shapes) is not None for array in uploads.values() if array.size > 1)
    return (moved if is_known else replace(moved, suspect="off by one"),)


def misread(
    diet: Diet, problems: Sequence[Any], *, budget: Budget, remedies: Sequence[InputRemedy] = ()
) -> tuple[Suspicion, ...]:
    """Return the one mistake in reading one input, or several inputs of one width, that explains every test case.

    Returns nothing if two kinds of mistakes fit. `remedies` defaults to all of them. Outputs that depend on an element
    without a stand-in are ignored, but some output must change and become right.
    """
    found: dict[str, Suspicion] = {}
    for names in _groups(diet.uploads(problems[0])):
        for remedy in remedies or all_remedies():
            if budget.left <= 0:
                if not found:
                    raise OutOfTimeError(0)
                return tuple(found.values()) if len(found) == 1 else ()
            if remedy.suspect not in found and _cures(diet, problems, names, remedy):
                places = tuple(f"input {name}" for name in names)
                found[remedy.suspect] = Suspicion(remedy.suspect, remedy.says, places, len(problems), is_mended=True)
    return tuple(found.values()) if len(found) == 1 else ()


def _groups(uploads: dict[str, Array]) -> Iterator[tuple[str, ...]]:
    """Yield each input alone, then all inputs of one width."""
    yield from ((name,) for name in uploads)
    widths: dict[int, list[str]] = {}
    for name, array in uploads.items():
        widths.setdefault(array.dtype.itemsize, []).append(name)
    yield from (tuple(names) for names in widths.values() if len(names) > 1)


def _cures(diet: Diet, problems: Sequence[Any], names: tuple[str, ...], remedy: InputRemedy) -> bool:
    """Return whether a remedy of the inputs `names` makes the kernel agree on every test case."""
    mended = 0
    try:
        for problem in problems:
            shapes = [shape for each in diet.outputs(problem).values() if len(shape := np.shape(each)) == 2]
            stand_ins = {name: remedy.change(diet.uploads(problem)[name], shapes) for name in names}
            if any(each is None for each in stand_ins.values()):
                if mended == 0 or any(wrong.any() for wrong in diet.wrong(problem).values()):
                    return False
                continue  # too small to show the mistake, and right
            outputs, unasked = _run(diet, problem, {name: fed for name, fed in stand_ins.items() if fed is not None})
            if any((wrong & ~unasked[name]).any() for name, wrong in diet.wrong(problem, outputs).items()):
                return False
            changed = differing(outputs, diet.outputs(problem))
            mended += sum(int((changed[name] & ~unasked[name]).sum()) for name in changed)
            if mended == 0:  # the first test case fails, so something must change
                return False
    except (RefsimError, KeyError, ValueError):  # a fault on changed inputs, or test cases with different inputs
        return False
    return mended >= LEAST


def _run(diet: Diet, problem: Any, stand_ins: dict[str, Fed]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the outputs for changed inputs, and which elements of them depend on elements without a stand-in."""

    def filled(filling: int, name: str, array: Array) -> Array:
        if name not in stand_ins:
            return array
        changed, unknown = stand_ins[name]
        changed = changed.copy()
        changed.reshape(-1).view(np.uint8).reshape(changed.size, -1)[unknown.reshape(-1)] = filling
        return changed.reshape(array.shape)

    runs = [diet.fed(problem, partial(filled, FILLINGS[0]))]
    if any(unknown.any() for _, unknown in stand_ins.values()):
        runs.append(diet.fed(problem, partial(filled, FILLINGS[1])))
    first = {name: np.asarray(array) for name, array in runs[0].items()}
    return first, differing(runs[0], runs[-1])


@cache
def all_remedies() -> tuple[InputRemedy, ...]:
    """Return every mistake in reading that refsim searches for."""
    return (*_recodings(), *_shifts())


@cache
def _shifts() -> tuple[InputRemedy, ...]:
    """Return the mistakes that read an input one row, column or element off."""
    return (
        *(
            InputRemedy(f"off-by-one {line}", f"each {line} is read one {way} its place", partial(_shifted, axis, step))
            for axis, line in enumerate(("row", "column"))
            for step, way in ((1, "behind"), (-1, "before"))
        ),
        *(
            InputRemedy("off by one", f"each element is read one {way} its place", partial(_shifted_row, step))
            for step, way in ((1, "behind"), (-1, "before"))
        ),
    )


def _recodings() -> Iterator[InputRemedy]:
    """Yield codes of one format read as another of equal width: FN for FNUZ, or another FP8, FP6 or 16-bit type."""
    rows = [row for row in FORMATS if row.signed and row.exponent_bits and row.mantissa_bits and row.bits in (6, 8, 16)]
    for right in rows:
        for taken in rows:
            fields = [(row.exponent_bits, row.mantissa_bits) for row in (right, taken)]
            unsigned_zero = [row.specials is Specials.NAN_NEGATIVE_ZERO for row in (right, taken)]
            if right == taken or right.bits != taken.bits or all(unsigned_zero):
                continue
            if fields[0] == fields[1]:
                suspect = "FN / FNUZ"
            elif any(unsigned_zero):
                continue
            else:
                suspect = "format"
            says = f"codes of {right.name} are read as {taken.name}"
            yield InputRemedy(suspect, says, partial(_recoded, right, taken))


def _recoded(right: Format, taken: Format, array: Array, shapes: Sequence[Shape]) -> Fed | None:
    """Return codes of `taken` with the values of codes of `right`, and the elements without such a code."""
    if array.dtype.kind not in "ui" or (array.dtype.itemsize == 2) != (right.code_bits == 16):
        return None  # a 16-bit word holds one element of 16 bits, any other word one or more elements of 8 bits
    codes = np.ascontiguousarray(array).reshape(-1).view(right.code_dtype)
    if (codes >= right.code_limit).any():
        return None
    table, exact = _stand_ins(right, taken)
    known = np.asarray(exact[codes].reshape(array.size, -1).all(axis=1), np.bool_)
    return np.asarray(table[codes].view(array.dtype).reshape(array.shape)), ~known.reshape(array.shape)


@cache
def _stand_ins(right: Format, taken: Format) -> tuple[NDArray[np.unsignedinteger], NDArray[np.bool_]]:
    """Return, for each code of `right`, the code of `taken` with its value, and whether there is one.

    A NaN counts as without one: a decoder may know the NaN of one format and the bias of another.
    """
    codes = np.arange(right.code_limit, dtype=right.code_dtype)
    values = decode(codes, right)
    others = encode(np.where(np.isinf(values), 0, values), taken)
    back = decode(others, taken)
    same = (back == values) & (np.signbit(back) == np.signbit(values)) & ~np.isnan(decode(others, right))
    return others.astype(right.code_dtype), same


def _matrix(array: Array, shapes: Sequence[Shape]) -> Array | None:
    """Return an array as a matrix, in its own shape or in the shape of an output with as many elements; else None."""
    if array.ndim == 2:
        return array
    return next(
        (array.reshape(shape) for shape in shapes if array.ndim == 1 and array.size == shape[0] * shape[1]), None
    )


def _shifted(axis: int, step: int, array: Array, shapes: Sequence[Shape]) -> Fed | None:
    """Return the matrix with each line moved to where the kernel reads it; the lines at both edges have no stand-in."""
    matrix = _matrix(array, shapes)
    if matrix is None or matrix.shape[axis] < 2:
        return None
    unknown = np.zeros(matrix.shape, bool)
    edges = np.moveaxis(unknown, axis, 0)
    edges[0] = edges[-1] = True
    return np.roll(matrix, step, axis).reshape(array.shape), unknown.reshape(array.shape)


def _shifted_row(step: int, array: Array, shapes: Sequence[Shape]) -> Fed | None:
    """Return the shifted array for one dimension that is not a matrix."""
    return _shifted(1, step, array, [(1, array.size)]) if array.ndim == 1 and _matrix(array, shapes) is None else None
