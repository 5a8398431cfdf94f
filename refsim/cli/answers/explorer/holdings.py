"""Fragments as data for the page: every map from a thread and a value is a sum of two short lists."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import ELEMENTS
from refsim.layouts.families import Fragment, fragment, fragments

COLUMNS = (
    "name", "rows", "cols", "threads", "values", "threadRow", "threadCol", "valueRow", "valueCol", "perRegister",
    "slotBits", "elementBits", "elementShift", "units", "element", "since", "evidence", "source",
)  # fmt: skip
_WIDTHS = {8: "e4m3", 16: "bf16", 32: "f32", 4: "e2m1"}  # the type for a width where the name gives none


class Interned:
    """Numbered values, each kept once: repeated text occurs once in the page."""

    def __init__(self) -> None:
        self.kept: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        """Return the number of a value, from 0; a new value gets the next number."""
        return self.kept.setdefault(value, len(self.kept))

    def listed(self) -> list[Any]:
        """Return the values in the order of their numbers."""
        return list(self.kept)


def fragment_rows(names: Sequence[str] = ()) -> dict[str, Any]:
    """Return entries of COLUMNS for the named fragments (all by default), and the lists that the entries refer to.

    mma.m16n8k16.bf16.a: thread 5 adds (1, 2), value 3 adds (8, 1): element (9, 3). A list holds None for a thread or a
    value without an element. A sum outside the shape is a place without an element.
    """
    sequences, words = Interned(), Interned()
    rows = [_row(fragment(name), sequences, words) for name in names or fragments()]
    return {"columns": COLUMNS, "rows": rows, "sequences": sequences.listed(), "words": words.listed()}


def _row(each: Fragment, sequences: Interned, words: Interned) -> list[Any]:
    return [
        each.name,
        *each.shape,
        each.threads,
        each.values,
        *(sequences.number(terms) for terms in terms_of(each)),
        each.per_register,
        each.slot_bits,
        each.element_bits,
        each.element_shift,
        *(words.number(word) for word in (each.units, _element(each), each.since, each.evidence.what)),
        words.number(str(each.source)),
    ]


Terms = tuple[int | None, ...]


def terms_of(each: Fragment) -> tuple[Terms, Terms, Terms, Terms]:
    """Return the terms of the thread for row and col, then those of the value. Raises RuntimeError for other maps."""
    row, col = each.elements
    used = row >= 0
    thread, value = int(used.sum(1).argmax()), int(used.sum(0).argmax())
    by_thread = [_first_column(table, used, value) for table in (row, col)]
    by_value = [np.where(used[thread], table[thread] - table[thread, value], -1) for table in (row, col)]
    threads, values = np.asarray(used.any(1)), np.asarray(used.any(0))
    made = [down[:, None] + across[None, :] for down, across in zip(by_thread, by_value, strict=True)]
    inside = threads[:, None] & values[None, :] & (made[0] < each.shape[0]) & (made[1] < each.shape[1])
    if not ((inside == used).all() and (made[0] == row)[used].all() and (made[1] == col)[used].all()):
        raise RuntimeError(f"{each.name}: row and col are no sums of what thread and value add")
    lists = [_terms(by_thread[0], threads), _terms(by_thread[1], threads)]
    return lists[0], lists[1], _terms(by_value[0], values), _terms(by_value[1], values)


def _first_column(table: NDArray[np.int64], used: NDArray[np.bool_], value: int) -> NDArray[np.int64]:
    return np.asarray(np.where(used[:, value], table[:, value], -1))


def _terms(terms: NDArray[np.int64], used: NDArray[np.bool_]) -> Terms:
    return tuple(term if is_used else None for term, is_used in zip(terms.tolist(), used.tolist(), strict=True))


def _element(each: Fragment) -> str:
    """Return the element type that the page selects: the last type of that width in the name, "" where none fits."""
    named = [row for word in each.name.split(".") for row in ELEMENTS if row.name == word]
    fitting = [row.name for row in named if row.code_bits == each.element_bits]
    if fitting:
        return fitting[-1]
    if each.element_bits == 32 and any(row.is_integer for row in named):
        return "s32"
    return _WIDTHS.get(each.element_bits, "")
