"""Answer the public question: what makes two results differ."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.causes.alone import between_outputs, is_nan_alone
from refsim.causes.effort import Limit, judged_rows
from refsim.causes.explanation import DiffExplanation, DiffOutcome, SumsSoFar
from refsim.causes.operands import IntegerOperands, ProductOperands, WeightOperands, integer_codes
from refsim.causes.quantised_from import QuantizedFrom, joined, words_of
from refsim.causes.row_operands import AttentionOperands, RowOperands
from refsim.causes.search import CauseSearch, Found, Named, told_apart
from refsim.causes.shapes import shapes_of
from refsim.causes.unwritten import unwritten_causes
from refsim.computations.block_scaled import BlockScaledProduct
from refsim.computations.engine import Computation
from refsim.computations.grouped import GroupedProduct
from refsim.computations.products import PlainProduct
from refsim.computations.quantised import QuantizedTensor, QuantizerOutput
from refsim.computations.scaled_values import ScaledValues, WideValues, scaled_values
from refsim.computations.ways import Codes, Family, Indices
from refsim.conversions import decode
from refsim.errors import RefsimError
from refsim.formats import F32, F64, ElementType, Format, float_named
from refsim.integers import array_of
from refsim.typed_arrays import codes_with_format, native

LEAST_DIFFERING, LEAST_ELEMENTS = 4, 256  # with fewer of both, a cause may fit by chance
MOST_BESIDE, STAGES = 4, 32
BOTH_SHARE = 0.7
"""Share of the limit for causes that explain codes and scales together; the rest is for each of them alone."""
SHARES = 0.35, 0.7, 0.85, 0.93
"""Shares of the limit at which the four searches for plans of two outputs end; the rest is for their codes alone."""
Report = Callable[[str, int, int], None]


def explain_diff(
    a: ArrayLike,
    b: ArrayLike | None = None,
    format: str | ElementType | None = None,
    *,
    operands: ProductOperands | RowOperands | AttentionOperands | IntegerOperands | WeightOperands | None = None,
    values: ArrayLike | None = None,
    scales: ArrayLike | None = None,
    quantized: QuantizedFrom | None = None,
    seconds: float | None = None,
    at: tuple[int, ...] | None = None,
    on_progress: Report | None = None,
) -> DiffExplanation:
    """Return the causes that make output `a` differ from output `b`, or from the reference of `operands` or `values`.

    `a`, `b`: codes of `format` in one shape, or arrays of such a dtype (ml_dtypes, float16, float32). `operands` are
    those of the product or function that both come from; without `b`, `a` is compared with the usual result. `values`
    (float32 or float64, in the shape of `a`) were rounded to both outputs, after a product with `scales` (float32, one
    for each row or block of columns) where given. `quantized` is the tensor that both were quantized from. A cause is
    reported only if it reproduces every bit, and never for equal outputs. The search ends after `seconds` of processor
    time, by default after a fixed amount of work, about 3 s. It calls `on_progress(phase, done, planned)` meanwhile.
    `at`: the element (row, column), or (batch, row, column), whose two sums are returned as `stages`; by default the
    first that differs.
    explain_diff(np.arange(16, dtype=np.uint8).reshape(4, 4).T, np.arange(16, dtype=np.uint8).reshape(4, 4),
    "e4m3").outcome is "explained": one is the transpose of the other.
    Raises RefsimError for shapes and formats that do not match, and where there is nothing to compare with.
    Source: defined here; the causes cite their own.
    """
    alone = all(each is None for each in (operands, values, quantized))
    coded = _codes_or_integers if alone or isinstance(operands, IntegerOperands) else _codes
    (got, row), want = coded("a", a, format), None
    if b is not None:
        want, other = coded("b", b, format)
        if other is not row:
            raise RefsimError("format-mismatch", f"a holds {row}, b holds {other}", help="format= reads both as one")
        if want.shape != got.shape:
            what = f"a has shape {got.shape}, b has shape {want.shape}"
            help = "a transpose of one has the shape of the other" if want.shape == got.shape[::-1] else ""
            raise RefsimError("bad-shape", what, rule="one shape for both", help=help)
    place = place_of_element(at, got.shape)
    question = _Question(got, want, row, Limit.of(seconds), on_progress, known=_scales_of(operands, scales))
    both = quantized is not None and (quantized.scales is not None or quantized.want_scales is not None)
    if want is not None and (want == got).all() and not both:
        return DiffExplanation(DiffOutcome.EQUAL, 0, got.size, got.size)
    _require_one_way(operands, values, quantized)
    if isinstance(operands, ProductOperands):
        return _of_product(question, operands.product(row), place)
    if operands is not None:
        subject: Computation = operands.explained(got.shape, row)
        is_one = not (isinstance(operands, IntegerOperands) and row.is_integer)
        return shown_in(replace(question, is_one=is_one).of_rows(subject, place), got.shape, subject.shape[1])
    if at is not None:
        raise RefsimError("usage", "an element is asked for that is no sum", "--at", "of products and attention")
    if values is not None or scales is not None:
        return question.of_subject(_of_values(values, scales, got, row), None)
    if quantized is not None:
        return question.of_quantiser(quantized)
    if want is None:
        raise RefsimError("usage", "one output alone", help="a second one, operands=, values= or quantized=")
    return between_outputs(got, want, row, question.limit, on_progress)


def _require_one_way(*ways: object) -> None:
    if sum(each is not None for each in ways) > 1:
        rule = "values are what is rounded, operands what is multiplied, quantized what a quantiser read"
        raise RefsimError("usage", "two ways to compute the outputs", rule=rule)


def _scales_of(operands: object, scales: ArrayLike | None) -> dict[str, NDArray[Any]]:
    """Return the scales that are given, by name."""
    given = {name: getattr(operands, name, None) for name in ("a_scale", "b_scale")} | {"the scales": scales}
    return {name: np.asarray(array) for name, array in given.items() if array is not None}


def _of_values(
    values: ArrayLike | None, scales: ArrayLike | None, got: Codes, row: Format
) -> WideValues | ScaledValues:
    """Return the subject of values that were rounded, or multiplied by scales and then rounded."""
    if values is None:
        raise RefsimError("usage", "scales without values", help="values=: what they multiply")
    wide, held = _values(values, got)
    return WideValues(wide, held, row) if scales is None else scaled_values(wide, scales, row)


@dataclass(frozen=True)
class _Question:
    """One output or two, and the limit of the search; `is_one` False: outputs join parts, such as codes and scales."""

    got: Codes
    want: Codes | None
    format: Format
    limit: Limit
    report: Report | None
    is_one: bool = True
    judged: Indices | None = None
    known: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def of_rows(self, subject: Computation, at: int | None) -> DiffExplanation:
        """Return the explanation of outputs (..., columns), or of one number a row, as rows of one matrix."""
        require_sums(subject, at)
        want = None if self.want is None else self.want.reshape(subject.shape)
        return replace(self, got=self.got.reshape(subject.shape), want=want).of_subject(subject, at)

    def of_quantiser(self, given: QuantizedFrom) -> DiffExplanation:
        """Return the explanation of codes, of scales, or of both together: one cause must explain both."""
        format = given.meant(self.format)
        subject = given.explained(self.got.shape, format)
        if given.scales is None and given.want_scales is None:
            return replace(self, format=format).of_subject(subject, None)
        if (given.scales is None) or (given.want_scales is None) != (self.want is None):
            rule = "scales= of A, want_scales= of B"
            raise RefsimError("usage", "scales of one of two outputs", rule=rule)
        both = given.with_scales(subject)
        got = joined(self.got, given.scales)
        want = None if self.want is None or given.want_scales is None else joined(self.want, given.want_scales)
        if want is not None and (got == want).all():
            return DiffExplanation(DiffOutcome.EQUAL, 0, got.size, got.size)
        said = replace(self, got=got, want=want, limit=self.limit.part(BOTH_SHARE), is_one=False).of_subject(both, None)
        return (
            said if said.named or not said.differing else replace(said, beside=self._apart_from_each_other(both, given))
        )

    def _apart_from_each_other(self, both: QuantizedTensor, given: QuantizedFrom) -> tuple[str, ...]:
        """Return what explains the codes alone, and what explains the scales alone."""
        found = []
        codes, scales = both.alone(QuantizerOutput.CODES), both.alone(QuantizerOutput.SCALES)
        pairs = ((codes, self.got, self.want), (scales, given.scales, given.want_scales))
        for number, (subject, one, other) in enumerate(pairs):
            have, right = (None if each is None else words_of(each).reshape(subject.shape) for each in (one, other))
            assert have is not None
            limit = self.limit.part(1 / (len(pairs) - number))
            kind = self.format if number == 0 else both.usual.rule.stored_as
            said = replace(self, got=have, want=right, format=kind, limit=limit).of_subject(subject, None)
            alone = f"{subject.which} alone: {said.outcome}"
            found.append(alone + (f", {said.named[0]}" if said.named else ""))
        return tuple(found)

    def of_subject(self, subject: Computation, at: int | None) -> DiffExplanation:
        """Return the explanation over as many rows as the limit allows."""
        question = replace(self, judged=judged_rows(subject, self.got, self.want, self.limit))
        return question._of_one(subject, at) if self.want is None else question._of_two(subject, self.want, at)

    def _of_two(self, subject: Computation, want: Codes, at: int | None) -> DiffExplanation:
        """Return the difference between two plans: find the plan of one side, then the change to the other side."""
        start = subject.usual
        sides = [("A", self.got, want), ("B", want, self.got)]
        if CauseSearch(subject, start, self.got, self.limit, judged=self.judged).holds(start):
            sides.reverse()  # then only B differs from the reference, and its causes keep their own names
        said, other_is = None, ""
        ends = [self.limit.part(share) for share in SHARES]
        for (made, one, other), known_by, end in zip(sides, ends[::2], ends[1::2], strict=True):
            anchor = self._plan_of(subject, start, other, known_by)
            if anchor is None:
                continue
            is_usual = anchor is start
            found = self._search(subject, anchor, one, other, ends[-1] if is_usual else end)
            if found.whole:
                return self._said(subject, anchor, found, made, at)
            if said is None:
                said = self._said(subject, anchor, found, made, at)
            else:
                other_is = subject.described(anchor)
            if is_usual:
                break  # the plan of the other output would be sought from the same plan
        if not self.is_one and said is not None:
            return replace(said, a_is=said.a_is or other_is, b_is=said.b_is or other_is)
        alone = self._by_codes(subject, want)
        if said is None or alone.named:
            return alone
        return replace(said, a_is=said.a_is or other_is, b_is=said.b_is or other_is)

    def _by_codes(self, subject: Computation, want: Codes) -> DiffExplanation:
        """Return the explanation by codes alone, unless a NaN appears where the operands give none."""
        is_right = self.want is None
        alone = between_outputs(self.got, want, self.format, self.limit, self.report, is_right)
        if alone.named and all(cause.family == Family.NAN for each in alone.named for cause in each.causes):
            rows = np.arange(len(want)) if self.judged is None else self.judged
            everything = None if self.judged is None else (rows, np.arange(want.shape[1]))
            usual = subject.codes(subject.usual, everything).reshape(want[rows].shape)
            if not np.isnan(decode(usual, self.format))[(self.got != want)[rows]].all():
                return replace(alone, named=(), outcome=DiffOutcome.UNEXPLAINED, a_is="", b_is="")
        return alone

    def _of_one(self, subject: Computation, at: int | None) -> DiffExplanation:
        """Return the explanation of one output against the reference, by plans and then by codes alone."""
        end = self.limit.part(SHARES[-1])
        search = CauseSearch(
            subject, subject.usual, self.got, end, None, self.report, self._unwritten, judged=self.judged
        )
        found = search.run()
        seen = replace(self, want=search.want, judged=search.judged)
        said = seen._said(subject, subject.usual, found, "A", at)
        if found.is_equal or found.whole or found.judged < self.got.size or not self.is_one:
            return said
        assert search.want is not None
        alone = self._by_codes(subject, search.want)
        if alone.named:
            return replace(alone, b_is=subject.described(subject.usual))
        return replace(said, seen=alone.seen)

    def _plan_of(self, subject: Computation, start: Any, output: Codes, end: Limit) -> Any:
        """Return the plan that reproduces an output; None where none is found."""
        found = CauseSearch(subject, start, output, end, report=self.report, judged=self.judged).run()
        if found.is_equal:
            return start
        return found.whole[0].plan_from(start) if found.whole else None

    def _search(self, subject: Computation, start: Any, got: Codes, want: Codes | None, end: Limit) -> Found:
        return CauseSearch(subject, start, got, end, want, self.report, self._unwritten, judged=self.judged).run()

    def _unwritten(self, got: Codes, want: Codes) -> list[Named]:
        if not self.is_one and not self.format.is_integer:
            return []
        unwritten = unwritten_causes(got, want, self.format)
        return unwritten or (shapes_of(got, want, self.format, self.known) if got is self.got else [])

    def _said(self, subject: Computation, start: Any, found: Found, made: str, at: int | None) -> DiffExplanation:
        """Return the explanation of the output `made`, "A" or "B", found from the plan `start` of the other output."""
        size = self.got.size
        if found.is_equal:
            return DiffExplanation(DiffOutcome.EQUAL, 0, found.judged, size, a_is=subject.described(start))
        output = self.got if made == "A" or self.want is None else self.want
        # there are so many pairs of causes that a fit of pairs alone to few elements may be chance
        are_pairs = all(len(each.causes) > 1 for each in found.whole)
        is_little = found.differing < LEAST_DIFFERING and (found.judged < LEAST_ELEMENTS or are_pairs)
        is_little |= self.is_one and is_nan_alone(output, self.format)
        named = () if is_little else tuple(found.whole)
        outcome = (
            DiffOutcome.TOO_LITTLE
            if is_little and found.whole
            else DiffOutcome.EXPLAINED
            if named
            else DiffOutcome.UNEXPLAINED
        )
        plans = [start]
        for each in named[:1]:
            plans.insert(0, each.plan_from(start))
        is_planned = bool(named) and all(cause.aspect for cause in named[0].causes)
        words = [subject.described(plans[0]) if is_planned else "", subject.described(start)]
        if made == "B":
            plans, words = plans[::-1], words[::-1]
        planned = tuple(each for each in named if all(cause.aspect for cause in each.causes))  # not uninitialized parts
        no_sums: tuple[None, tuple[SumsSoFar, ...]] = None, ()
        element, stages = stages_of(subject, plans, self.got, self.want, at, self.judged) if planned else no_sums
        return DiffExplanation(
            outcome,
            found.differing,
            found.judged,
            size,
            named,
            **found.tried(),
            a_is=words[0],
            b_is=words[1],
            apart=told_apart(subject, start, planned),
            element=element,
            stages=stages,
            made=made,
            beside=_beside(subject, start, planned),
        )


def _beside(subject: Computation, start: Any, named: tuple[Named, ...]) -> tuple[str, ...]:
    """Return what causes of different kinds imply for the output that was not given."""
    if not isinstance(subject, QuantizedTensor):
        return ()
    kinds: dict[tuple[str, ...], str] = {}
    for each in named:
        words = subject.beside(each.plan_from(start))
        if words:
            kinds.setdefault(tuple(cause.family for cause in each.causes), f"{each}: {words}")
    return tuple(kinds.values())[:MOST_BESIDE]


def _of_product(
    question: _Question, product: PlainProduct | BlockScaledProduct | GroupedProduct, at: int | None
) -> DiffExplanation:
    """Return the explanation of a product; of batches or experts, over the rows that exist."""
    whole = product.whole if isinstance(product, GroupedProduct) else product.shape
    if whole != question.got.shape:
        raise RefsimError("bad-shape", f"the output has shape {question.got.shape}, the product {whole}")
    require_sums(product, at)
    if not isinstance(product, GroupedProduct):
        return question.of_subject(product, at)
    if at is not None:
        row, column = divmod(at, product.shape[1])
        at = product.kept_row(row) * product.shape[1] + column
    want = None if question.want is None else product.flat(question.want)
    question = replace(question, got=product.flat(question.got), want=want)
    if want is not None and (want == question.got).all():
        return DiffExplanation(DiffOutcome.EQUAL, 0, want.size, want.size)
    return shown_in(question.of_subject(product, at), whole, product.shape[1], product.whole_row)


# ---- sums of one element -----------------------------------------------------------------------------------------------


def require_sums(subject: Computation, at: int | None) -> None:
    """Raise RefsimError where an element is given with `--at` for a subject without sums."""
    if at is not None and not subject.summed_over:
        raise RefsimError("usage", "an element is asked for that is no sum", "--at", "of products and attention")


def stages_of(
    subject: Computation,
    plans: Sequence[Any],
    got: Codes,
    want: Codes | None,
    at: int | None,
    judged: Indices | None,
) -> tuple[tuple[int, int] | None, tuple[SumsSoFar, ...]]:
    """Return an element and its sums under two plans; (None, ()) where no plan has sums.

    `at` is the flat index of the element, None: the first element that differs.
    """
    if not subject.summed_over:
        return None, ()
    columns = subject.shape[1]
    if at is None:
        rows = np.arange(len(got)) if judged is None else judged
        assert want is not None
        first = np.argwhere(got[rows] != want[rows])[0]
        at = int(rows[first[0]]) * columns + int(first[1])
    place = divmod(at, columns)
    sums = [subject.sums_of(plan, place, STAGES) for plan in plans]
    kind = subject.sums_held, subject.summed_over
    return place, tuple(SumsSoFar(end, one, other, *kind) for (end, one), (_, other) in zip(*sums, strict=True))


def place_of_element(at: tuple[int, ...] | None, shape: tuple[int, ...]) -> int | None:
    """Return the flat index of the element `at`; None for None. Raises RefsimError outside the output."""
    if at is None:
        return None
    if len(shape) != len(at):
        rule = f"{len(shape)} numbers: BATCH,ROW,COL of batches and heads, ROW,COL of a matrix"
        raise RefsimError("out-of-range", f"the output has shape {shape}", "--at", rule)
    names = ("batch", "row", "column")[-len(at) :]
    for name, place, extent in zip(names, at, shape, strict=True):
        if not 0 <= place < extent:
            raise RefsimError("out-of-range", f"{name} {place} is outside 0..{extent - 1}", "--at")
    return int(np.ravel_multi_index(at, shape))


def shown_in(
    found: DiffExplanation, shape: tuple[int, ...], columns: int, row_of: Callable[[int], int] = int
) -> DiffExplanation:
    """Return the explanation with its element as an index in an output of `shape`; `row_of` maps its row."""
    if found.element is None:
        return found
    row, column = found.element
    return replace(found, element=tuple(map(int, np.unravel_index(row_of(row) * columns + column, shape))))


def _codes(name: str, array: ArrayLike, format: str | ElementType | None) -> tuple[Codes, Format]:
    codes, row = codes_with_format(name, array, None if format is None else float_named(format))
    return np.atleast_1d(codes), row


def _codes_or_integers(name: str, array: ArrayLike, format: str | ElementType | None) -> tuple[Codes, Any]:
    return integer_codes(name, array, format) or _codes(name, array, format)


def _values(values: ArrayLike, got: Codes) -> tuple[Any, Format]:
    wide = native(array_of("values", values))
    if wide.dtype not in (np.float32, np.float64) or wide.shape != got.shape:
        what = f"values are {wide.dtype} of shape {wide.shape}"
        raise RefsimError("bad-shape", what, rule=f"float32 or float64, {got.shape}")
    return wide, F32 if wide.dtype == np.float32 else F64
