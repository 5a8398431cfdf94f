"""Parts of inputs that have no effect: the outputs stay as they are, whatever the parts hold."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.testing.suspects.feeding import Array, Diet, differing
from refsim.testing.suspects.rearranged import FEWER_BY
from refsim.testing.suspects.suspicion import OutOfTimeError, Suspicion

Part = tuple[str, NDArray[np.bool_]]


def unread(diet: Diet, problem: Any, *, seconds: float) -> Suspicion | None:
    """Return an input, or a part of one, that no output of `problem` depends on; raise OutOfTimeError if time ended.

    `diet.device` must be one that a changed input cannot harm.
    """
    deadline = time.process_time() + seconds
    given, uploads = diet.outputs(problem), diet.uploads(problem)
    extents = {extent for each in given.values() for extent in np.shape(each)}
    largest = max((each.nbytes for each in uploads.values()), default=0)
    order = sorted(uploads, key=lambda name: uploads[name].nbytes)
    streams = [(name, _parts(uploads[name], extents, uploads[name].nbytes * FEWER_BY <= largest)) for name in order]
    while streams:
        for name, parts in list(streams):
            part = next(parts, None)
            if part is None:
                streams.remove((name, parts))
                continue
            if time.process_time() > deadline:
                raise OutOfTimeError(0)
            says, marks = part
            try:
                made = diet.fed(problem, partial(_changed, name, marks))
            except (RefsimError, ValueError):  # a fault on changed inputs
                continue
            if not any(each.any() for each in differing(made, given).values()):
                return Suspicion("left out", f"{says} no effect on any output", (f"input {name}",), 1)
    return None


def _changed(name: str, marks: NDArray[np.bool_], at: str, array: Array) -> Array:
    return _other(array, marks) if at == name else array


def _other(array: Array, marks: NDArray[np.bool_]) -> Array:
    """Return the array with other numbers at the marks: those of other marks, or for one number its double."""
    made, held = array.copy().reshape(-1), array.reshape(-1)[marks]
    if len(np.unique(held)) > 1:
        distinct, places = np.unique(held, return_inverse=True)
        made[marks] = distinct[(places + len(distinct) // 2) % len(distinct)]
    elif array.dtype.kind == "f":
        made[marks] = held * 2
    return made.reshape(array.shape)


def _parts(array: Array, extents: set[int], is_few: bool) -> Iterator[Part]:
    """Yield an input, then lines of a small one: those with one bit of their number set, the last, the first."""
    parts: list[Part] = [("it has", np.ones(array.size, bool))]
    rows = [array.shape[0]] if array.ndim == 2 else [1]
    rows += sorted(each for each in extents if each > 1 and array.size % each == 0 and array.size > each)
    for high in dict.fromkeys(rows) if is_few else ():
        for numbers, line in zip(np.divmod(np.arange(array.size), array.size // high), ("row", "column"), strict=True):
            last, of = int(numbers[-1]), f"of {high} x {array.size // high}"
            bits = [
                (f"{line}s {of} with bit {bit} of their number set have", numbers >> bit & 1 == 1)
                for bit in range(last.bit_length())
            ]
            ends = [(f"the {which} {line} {of} has", numbers == at) for which, at in (("last", last), ("first", 0))]
            parts += [*bits, *ends] if last else []
    for says, marks in parts:
        if (_other(array, marks).reshape(-1)[marks] != array.reshape(-1)[marks]).all():
            yield says, marks
