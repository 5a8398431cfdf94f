"""Calls a matrix product for single sums: the added products are chosen, the shape is always the subject's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.bringup.bench import Bench, Codes, Probe, exponent_of, power, reach
from refsim.conversions import decode, encode
from refsim.errors import Kind, RefsimError
from refsim.formats import Format
from refsim.render.cards import FieldsCard


@dataclass(frozen=True, repr=False)
class OrderSubject(FieldsCard):
    """A matrix product whose order is asked: D (M, N) of A (M, K) and B (N, K), D[m, n] the sum of A[m, k] B[n, k].

    `multiply` takes codes and returns codes, and is called with these `n` and `k` and with M from `rows`. Without
    `a_is_free`, every element of A is 1: the subject takes only B. Without `b_is_free`, every element of B is 1, and
    the subject adds the rows of A. `scheduled` is `multiply` on a simulated GPU whose threads run in a random order.
    """

    name: str
    multiply: Callable[[Codes, Codes], Codes]
    a_format: Format
    b_format: Format
    d_format: Format
    n: int
    k: int
    rows: tuple[int, ...]
    a_is_free: bool = True
    b_is_free: bool = True
    scheduled: Callable[[Codes, Codes], Codes] | None = None

    @property
    def factors(self) -> tuple[Format, ...]:
        """Return the formats of a product's factors: only A's for sums of rows."""
        sides = (self.a_format, self.a_is_free), (self.b_format, self.b_is_free)
        return tuple(row for row, is_free in sides if is_free)

    def product(self, a: Codes, b: Codes) -> Codes:
        """Return D, after a check of its shape and dtype, as a copy: a subject may reuse its result's memory."""
        d = np.array(self.multiply(np.ascontiguousarray(a), np.ascontiguousarray(b)))
        if d.shape != (len(a), len(b)) or d.dtype != self.d_format.code_dtype:
            raise RefsimError(
                "wrong-output",
                f"{self.name} returned {d.dtype} of shape {d.shape}",
                rule=f"{self.d_format.code_dtype}, codes of {self.d_format}, of shape {(len(a), len(b))}",
            )
        return d


@dataclass
class Asker:
    """One subject at one M: sums by the row of A and the row of B that they multiply, many in one call.

    `columns` are the columns of D that are read; `row` is the only row, where the order of single elements is asked.
    `scale` is the power of two by which D is its sum multiplied; `sums` divides by it.
    """

    subject: OrderSubject
    m: int
    row: int | None = None
    columns: Sequence[int] = ()
    calls: int = field(default=0)
    scale: Fraction = Fraction(1)

    def sums(self, a: Codes, b: Codes, c: Codes | None = None) -> Codes:
        """Return d (batch,) of a (batch, K) and b (batch, K), as `Bench` asks for it; C must be zero."""
        if c is not None and c.any():
            raise RefsimError("no-order", "a product of matrices has no C", kind=Kind.BUG)
        found, row = self._found(a, b), self.subject.d_format
        return found if self.scale == 1 else encode(decode(found, row) / float(self.scale), row, overflow="saturate")

    def _found(self, a: Codes, b: Codes) -> Codes:
        """Return the elements of D that hold these sums."""
        columns = list(self.columns) or list(range(self.subject.n))
        rows = [self.row] if self.row is not None else list(range(self.m))
        if not self.subject.b_is_free:
            return self._row_by_row(np.where(b == 0, a.dtype.type(0), a), rows, columns[0])
        d = np.zeros(len(a), self.subject.d_format.code_dtype)
        numbers: dict[bytes, int] = {}
        kind_of = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in a], np.int64)
        kinds = a[np.unique(kind_of, return_index=True)[1]]
        order = np.argsort(kind_of, kind="stable")
        start = 0
        while start < len(order):
            taken, mine = self._fitting(kind_of[order], start, len(rows), len(columns))
            part = order[start : start + taken]
            left = kinds[np.resize(mine, self.m)] if self.row is None else np.repeat(kinds[mine], self.m, axis=0)
            right = np.zeros((self.subject.n, self.subject.k), b.dtype)
            right[columns[:taken]] = b[part]
            found = self.subject.product(left, right)
            self.calls += 1
            place = {kind: rows[at] for at, kind in enumerate(mine)}
            d[part] = found[[place[kind] for kind in kind_of[part].tolist()], columns[:taken]]
            start += taken
        return d

    def _row_by_row(self, a: Codes, rows: list[int], column: int) -> Codes:
        """Return sums of rows of A, one in each of `rows`; later rows repeat the last one."""
        subject, found = self.subject, []
        ones = np.full((subject.n, subject.k), encode(np.array(1.0), subject.b_format), subject.b_format.code_dtype)
        for start in range(0, len(a), len(rows)):
            part = a[start : start + len(rows)]
            left = part[np.minimum(np.arange(self.m), len(part) - 1)] if self.row is None else part[[0] * self.m]
            found.append(subject.product(left, ones)[rows[: len(part)], column])
            self.calls += 1
        return np.concatenate(found)

    @staticmethod
    def _fitting(kinds: NDArray[Any], start: int, rows: int, columns: int) -> tuple[int, list[int]]:
        """Return how many of the sums from `start` on fit in one call, and the rows of A that they share."""
        mine: list[int] = []
        for taken, kind in enumerate(kinds[start : start + columns].tolist()):
            if not mine or mine[-1] != kind:
                if len(mine) == rows:
                    return taken, mine
                mine.append(kind)
        return min(columns, len(kinds) - start), mine

    def bench(self, *, weighted: bool = False) -> Bench:
        """Return the subject as a bench; with `weighted`, all of A is 1 and B carries the products."""
        subject = self.subject
        kind = _Rows if not subject.b_is_free else _Weighted if weighted or not subject.a_is_free else Bench
        return kind(self.sums, subject.a_format, subject.b_format, subject.d_format, subject.k)


@dataclass(frozen=True)
class _Rows(Bench):
    """A bench whose products are elements of A; B is 1 at the places of the probe."""

    @property
    def carrier(self) -> Format:
        """Return the format of the operand whose elements are the products."""
        return self.a_format

    @property
    def top(self) -> int:
        """Return the largest exponent of a product that probes use."""
        return min(reach(self.carrier), reach(self.d_format) - 1, 60)

    @property
    def least(self) -> int:
        """Return the exponent of the least product."""
        return exponent_of(Fraction(self.carrier.quantum))

    @property
    def normal_bottom(self) -> int:
        """Return the least exponent of a product of normal operands."""
        return 1 - self.carrier.bias

    def factors(self, value: Fraction) -> tuple[int, int]:
        """Return the codes of the value in A and of 1 in B."""
        code, one = (int(encode(np.array(float(x)), row)) for x, row in ((value, self.a_format), (1, self.b_format)))
        return code, one


@dataclass(frozen=True)
class _Weighted(_Rows):
    """A bench whose products are elements of B: all rows of A are equal, so one call answers as many as it has
    columns."""

    @property
    def carrier(self) -> Format:
        """Return the format of B."""
        return self.b_format

    def factors(self, value: Fraction) -> tuple[int, int]:
        """Return the codes of 1 in A and of the value in B."""
        one, code = (int(encode(np.array(float(x)), row)) for x, row in ((1, self.a_format), (value, self.b_format)))
        return one, code

    def ask(self, probes: Sequence[Probe]) -> list[Fraction]:
        """Return the result of each probe, with A all ones."""
        full = replace(self, dots=lambda a, b, c: self.dots(np.full_like(a, self.factors(power(0))[0]), b, c))
        return Bench.ask(full, probes)


@dataclass(frozen=True)
class ReadBack(Bench):
    """A bench whose largest products are cancelled again at the place `taken`, by a later step: the rest has few bits.

    A result in bf16 thereby shows the bits that the sum before it kept. Without such a place the sums are read
    unchanged.
    """

    inner: Bench | None = None
    taken: int | None = None

    @property
    def top(self) -> int:
        """Return the largest exponent of a product that probes use: 64 such products are still one product."""
        return self._inner.top - (0 if self.taken is None else 6)

    @property
    def least(self) -> int:
        """Return the exponent of the least product."""
        return self._inner.least

    @property
    def normal_bottom(self) -> int:
        """Return the least exponent of a product of normal operands."""
        return self._inner.normal_bottom

    @property
    def _inner(self) -> Bench:
        assert self.inner is not None
        return self.inner

    def ask(self, probes: Sequence[Probe]) -> list[Fraction]:
        """Return the result of each probe, with its largest products cancelled and added back exactly."""
        largest = [self._largest(probe) if self.taken is not None else Fraction(0) for probe in probes]
        changed = [
            Probe({**probe.products, self.taken: -sum_of}) if sum_of and self.taken is not None else probe
            for probe, sum_of in zip(probes, largest, strict=True)
        ]
        return [got + sum_of for got, sum_of in zip(self._inner.ask(changed), largest, strict=True)]

    @staticmethod
    def _largest(probe: Probe) -> Fraction:
        most = max((abs(value) for value in probe.products.values()), default=Fraction(0))
        return sum((value for value in probe.products.values() if abs(value) == most), Fraction(0))


def read_back(bench: Bench, taken: int | None) -> ReadBack:
    """Return the bench with sums that are cancelled at the place `taken`."""
    return ReadBack(
        bench.dots, bench.a_format, bench.b_format, bench.d_format, bench.k, bench.floor, inner=bench, taken=taken
    )
