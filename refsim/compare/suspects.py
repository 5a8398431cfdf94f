"""Find the mistake that would have written exactly these bits: a given wrong result, or exchanged rows or columns."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from refsim.compare.code_line import Codes
from refsim.errors import RefsimError

SHOWN = 4  # moves listed one by one


def explained(
    got: NDArray[np.generic], want: NDArray[np.generic], candidates: Mapping[str, NDArray[np.generic]] | None = None
) -> tuple[str, ...]:
    """Return sentences on the mistakes that explain `got`, candidates first; () where the arrays are equal.

    `candidates` maps the name of a mistake to the array that a kernel with that mistake would write, in the shape of
    `want`; a candidate is reported where `got` equals it in every bit. For arrays of two dimensions, also reported:
    wrong rows (columns) that each hold another row of `want`, or their own elements in another order. Rows [1, 2] and
    [3, 4] written as [3, 4] and [3, 4] give "row 0 holds row 1".
    Raises RefsimError for arrays of different shapes or element sizes.
    explained(np.uint8([[3, 4], [3, 4]]), np.uint8([[1, 2], [3, 4]])) is ("row 0 holds row 1",).
    Source: defined here.
    """
    for name, array in (("got", got), *(candidates or {}).items()):
        if array.shape != want.shape:
            raise RefsimError("bad-shape", f"{name!r} has shape {array.shape}, want has shape {want.shape}")
        if array.dtype.itemsize != want.dtype.itemsize:
            raise RefsimError("bad-dtype", f"{name!r} is {array.dtype}, want is {want.dtype}")
    got_codes, want_codes = _codes(got), _codes(want)
    if (got_codes == want_codes).all():
        return ()
    fitting = [name for name, array in (candidates or {}).items() if (_codes(array) == got_codes).all()]
    texts = [f"{name}: bit for bit what that gives" for name in fitting]
    if want.ndim == 2:
        axes = [("row", got_codes, want_codes), ("column", got_codes.T, want_codes.T)]
        moved = [text for axis in axes if (text := _moved(*axis))]
        texts += moved or [text for axis in axes if (text := _reordered(*axis))]
    return tuple(texts)


def _moved(name: str, got: Codes, want: Codes) -> str:
    """Return which line of `want` each wrong line along the first axis holds; "" where it is not exactly one line."""
    lines = np.flatnonzero((got != want).any(axis=1))
    places: dict[bytes, list[int]] = {}
    for line, content in enumerate(want):
        places.setdefault(content.tobytes(), []).append(line)
    homes = [places.get(got[line].tobytes(), []) for line in lines]
    if _constant(got[lines]) or any(len(home) != 1 for home in homes):
        return ""
    return _moves(name, [(int(line), home[0]) for line, home in zip(lines, homes, strict=True)])


def _reordered(name: str, got: Codes, want: Codes) -> str:
    """Return a sentence where every wrong line holds its own elements in another order; else ""."""
    lines = np.flatnonzero((got != want).any(axis=1))
    same = (np.sort(got[lines]) == np.sort(want[lines])).all()
    return f"every wrong {name} holds its own elements in another order" if same and not _constant(got[lines]) else ""


def _constant(lines: Codes) -> bool:
    """Return whether some line repeats one element, so that it fits anywhere."""
    return bool((lines == lines[:, :1]).all(axis=1).any())


def _moves(name: str, moves: list[tuple[int, int]]) -> str:
    """Return (line, line that it holds) pairs as one sentence, as a rule `n ^ 4` or `n +1` where one holds for all."""
    masks, steps = {line ^ home for line, home in moves}, {home - line for line, home in moves}
    if len(moves) > 1 and len(masks) == 1:
        return f"every wrong {name} n holds {name} n ^ {masks.pop()}"
    if len(moves) > 1 and len(steps) == 1:
        return f"every wrong {name} n holds {name} n {steps.pop():+d}"
    shown = ", ".join(f"{name} {line} holds {name} {home}" for line, home in moves[:SHOWN])
    return shown + (f" and {len(moves) - SHOWN} more" if len(moves) > SHOWN else "")


def _codes(array: NDArray[np.generic]) -> Codes:
    return np.ascontiguousarray(array).reshape(array.shape).view(f"u{array.dtype.itemsize}")
