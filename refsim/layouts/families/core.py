"""The Fragment type: a closed formula from (thread, value) to (row, col), and the inverse derived from it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.errors import RefsimError
from refsim.evidence import Evidence
from refsim.formats import element_named
from refsim.integers import whole
from refsim.layouts.drawing import drawn
from refsim.layouts.evidence import evidence as evidence_of
from refsim.render.cards import Card
from refsim.sources import Source

Integers = NDArray[np.int64]
Formula = Callable[[Integers, Integers], tuple[Integers, Integers]]


@dataclass(frozen=True)
class Shape:
    """Describe the element types of one shape, the accumulators it offers and the first target that has it."""

    m: int
    n: int
    k: int
    types: tuple[str, ...]
    accumulators: tuple[str, ...]
    since: str

    def __str__(self) -> str:
        return f"m{self.m}n{self.n}k{self.k}"


@drawn
@dataclass(frozen=True, repr=False)
class Fragment(Card):
    """Describe how a matrix lies across threads: `coord(thread, value)` is the (row, col) of that thread's value.

    `shape` is (rows, cols): A is M x K, B is K x N, C and D are M x N; scale factors are M x blocks and blocks x N.
    `value` counts elements within a thread from the lowest register and bit up; value // per_register is the register.
    An element of `element_bits` begins at bit `element_shift` of its slot of register_bits // per_register bits.
    `units` names the two hardware coordinates: TMEM layouts have ("TMEM lane", "column") instead of threads and values.
    `memory_bits` is the width of an element in the 16-byte row that ldmatrix reads or stmatrix writes, else 0.
    `since` is the first target that has the instruction.
    A place that holds no element (a scale register that the instruction ignores) has row = col = -1.
    wgmma.m64n128k32.e4m3.d: thread 37 = warp 1 lane 5, value 20 is D[17, 42].
    """

    name: str
    shape: tuple[int, int]
    threads: int
    values: int
    formula: Formula
    source: Source
    since: str
    per_register: int = 1
    register_bits: int = 32
    element_bits: int = 32
    element_shift: int = 0
    memory_bits: int = 0
    units: tuple[str, str] = ("thread", "value")
    summary: str = ""

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fragment) and other.name == self.name

    @property
    def evidence(self) -> Evidence:
        """Return the evidence for the fragment: its formula, an independent package, or a run on a chip."""
        return evidence_of(self.name)

    @property
    def slot_bits(self) -> int:
        """Return the bits of a register that one element occupies: 8 for the FP4 containers of mma.m16n8k32.e2m1.a."""
        return self.register_bits // self.per_register

    @property
    def registers(self) -> int:
        """Return the registers per thread: 4 for mma.m16n8k16.bf16.a."""
        return -(-self.values // self.per_register)

    def coord(self, thread: ArrayLike, value: ArrayLike) -> tuple[Integers, Integers]:
        """Return the row and column of a thread's value; arrays broadcast. (-1, -1) where the place holds no element.

        Raises RefsimError when a thread or value is out of range.
        """
        return self.formula(
            self._checked(self.units[0], thread, self.threads), self._checked(self.units[1], value, self.values)
        )

    def holder(self, row: ArrayLike, col: ArrayLike) -> tuple[Integers, Integers]:
        """Return the first (thread, value) that holds an element; arrays broadcast. `holders` gives all of them."""
        threads, values = self.holders(row, col)
        return threads[..., 0][()], values[..., 0][()]

    def holders(self, row: ArrayLike, col: ArrayLike) -> tuple[Integers, Integers]:
        """Return every (thread, value) that holds an element, on a last axis of length `copies`, in thread order."""
        place = self._places[self._checked("row", row, self.shape[0]), self._checked("col", col, self.shape[1])]
        return place // self.values, place % self.values

    @cached_property
    def elements(self) -> tuple[Integers, Integers]:
        """Return row and column of every place, two arrays of shape (threads, values)."""
        thread, value = np.arange(self.threads)[:, None], np.arange(self.values)[None, :]
        rows, cols = np.broadcast_arrays(*self.formula(thread, value))
        rows.setflags(write=False)
        cols.setflags(write=False)
        return rows, cols

    @property
    def _shifts(self) -> NDArray[Any]:
        """Return the lowest bit of each element of a register, in the type of a register."""
        places = np.arange(self.per_register) * self.slot_bits + self.element_shift
        return places.astype(f"u{self.register_bits // 8}")

    def packed(self, codes: NDArray[Any]) -> NDArray[Any]:
        """Return matrices of codes (..., rows, cols) as registers (..., threads, registers).

        mma.m16n8k16.bf16.a: thread 5, register 1 is A[9, 2] in its lower half and A[9, 3] in its upper. A place without
        an element is 0.
        """
        rows, cols = self.elements
        held = np.where(rows >= 0, codes[..., rows, cols], 0).astype(self._shifts.dtype)
        slots = held.reshape(*held.shape[:-1], self.registers, self.per_register)
        return np.asarray(np.bitwise_or.reduce(slots << self._shifts, axis=-1))

    def unpacked(self, registers: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return matrices (batch, rows, cols) of the registers of all threads: the inverse of `packed`."""
        slots = registers.reshape(-1, self.threads, self.registers, 1) >> self._shifts
        found = np.zeros((len(slots), *self.shape), dtype)
        found[:, *self.elements] = slots.reshape(len(slots), self.threads, self.values)
        return found

    @property
    def copies(self) -> int:
        """Return how many places hold each element: 4 for tcgen05 scale factors, which each warp repeats, else 1."""
        return int(self._places.shape[-1])

    @cached_property
    def _places(self) -> Integers:
        """Return the places thread * values + value of each element, ascending: the inverse, derived by sorting."""
        rows, cols = self.elements
        used = np.flatnonzero(rows.ravel() >= 0)
        element = (rows * self.shape[1] + cols).ravel()[used]
        count = np.bincount(element, minlength=self.shape[0] * self.shape[1])
        if count.min() != count.max():
            raise RuntimeError(f"{self.name}: elements have between {count.min()} and {count.max()} holders")
        return used[np.argsort(element, kind="stable")].reshape(*self.shape, int(count[0]))

    def _checked(self, what: str, number: ArrayLike, limit: int) -> Integers:
        try:
            return whole(what, number, limit=limit)
        except RefsimError as error:
            error.where = self.name
            raise

    def _repr_summary(self) -> str:
        return f"{self.name}: {self.shape[0]} x {self.shape[1]} over {self.threads} {self.units[0]}s"


Row = tuple[str, Callable[[], Fragment]]


def in_registers(
    name: str,
    shape: tuple[int, int],
    type: str,
    formula: Formula,
    source: Source,
    since: str,
    summary: str,
    *,
    threads: int = 32,
    slot: tuple[int, int] | None = None,
    copies: int = 1,
) -> Fragment:
    """Return the fragment of a matrix of `type` in registers of 32 bits, 64 for f64.

    `slot` is the width of an element in its register and its lowest bit there, where elements are not packed densely.
    """
    bits = element_named(type).code_bits
    width, shift = slot or (bits, 0)
    per = max(1, 32 // width)
    values = shape[0] * shape[1] * copies // threads
    return Fragment(
        name, shape, threads, values, formula, source, since, per, per * width, bits, shift, summary=summary
    )


def group(lane: Integers) -> Integers:
    """Return the quad of a lane within its warp, 0 to 7: lane 5 is in quad 1."""
    return (lane >> 2) & 7


def within(lane: Integers) -> Integers:
    """Return the place of a lane within its quad, 0 to 3: lane 5 is the second, 1."""
    return lane & 3


def only(used: NDArray[np.bool_], row: Integers, col: Integers) -> tuple[Integers, Integers]:
    """Return (row, col) where `used`, else (-1, -1): that place holds no element."""
    return np.where(used, row, -1), np.where(used, col, -1)


def refuse(name: str, what: str, rule: str, help: str = "") -> RefsimError:
    """Return the error for a name whose grammar is right and whose combination no instruction has."""
    return RefsimError("illegal-fragment", what, where=name, rule=rule, help=help)


def grammar(
    pattern: str,
) -> Callable[[Callable[[str, re.Match[str]], RefsimError]], Callable[[str], RefsimError | None]]:
    """Make a refusal of a name and its match one of the name, which is None where a name does not follow the grammar."""
    follows = re.compile(pattern)

    def made(refusal: Callable[[str, re.Match[str]], RefsimError]) -> Callable[[str], RefsimError | None]:
        return lambda name: refusal(name, match) if (match := follows.fullmatch(name)) else None

    return made
