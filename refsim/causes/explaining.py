"""The public question: what makes two results differ."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from refsim.causes.alone import between_outputs, is_nan_alone, stands_for_nan
from refsim.causes.apart import told_apart
from refsim.causes.block_scaled import BlockScaledProduct
from refsim.causes.explanation import DiffExplanation, DiffOutcome, SumsSoFar
from refsim.causes.operands import ProductOperands
from refsim.causes.products import ProductOfPlans
from refsim.causes.quantised import QuantizedFrom
from refsim.causes.rows import Codes, Explained, Family
from refsim.causes.search import CauseSearch, Found
from refsim.causes.values import WideValues
from refsim.errors import RefsimError
from refsim.formats import F32, F64, Format
from refsim.integers import array_of
from refsim.typed_arrays import format_held, with_format

LEAST_DIFFERING, LEAST_ELEMENTS = 4, 256  # with less of both a cause may fit by chance
STAGES = 32
SHARES = 0.35, 0.7, 0.85, 0.93
"""Of the time: until when each step ends that looks for the plans of two outputs; what is left is for their codes alone."""
Report = Callable[[str, int, int], None]


def explain_diff(
    a: ArrayLike,
    b: ArrayLike | None = None,
    format: str | Format | None = None,
    *,
    operands: ProductOperands | None = None,
    values: ArrayLike | None = None,
    quantized: QuantizedFrom | None = None,
    seconds: float = 10.0,
    at: tuple[int, int] | None = None,
    on_progress: Report | None = None,
) -> DiffExplanation:
    """What makes output `a` differ from output `b`, or from what `operands` or `values` usually give: causes by their bits.

    `a`, `b`: codes of one shape, of `format`, or arrays that know it (ml_dtypes, float16, float32). `operands` are those of the
    product that both come from: `b` may then be left out, and means one with nothing changed; `values` (float32 or float64, the
    shape of `a`) are what both were rounded from, `quantized` what both were quantised from. A cause is named only if it
    reproduces every bit, and never for equal outputs. The search ends after about `seconds` of processor time;
    `on_progress(phase, done, planned)` is called meanwhile. `at`: the element (row, column) whose two sums are returned as
    `stages`, else the first that differs.
    explain_diff(np.arange(16, dtype=np.uint8).reshape(4, 4).T, np.arange(16, dtype=np.uint8).reshape(4, 4), "e4m3").outcome is
    "explained": the one is the transpose of the other.
    Raises RefsimError for shapes and formats that do not match, and where there is nothing to compare with.
    Source: defined here; the causes cite their own.
    """
    got, row = _codes("a", a, format)
    want = None
    if b is not None:
        want, other = _codes("b", b, format)
        if other is not row:
            raise RefsimError("format-mismatch", f"a holds {row}, b holds {other}", help="format= reads both as one")
        if want.shape != got.shape:
            raise RefsimError("shape-mismatch", f"a has shape {got.shape}, b has shape {want.shape}")
    question = _Question(got, want, row, time.process_time() + seconds, on_progress)
    if want is not None and (want == got).all():
        return DiffExplanation(DiffOutcome.EQUAL, 0, got.size, got.size)
    if sum(each is not None for each in (operands, values, quantized)) > 1:
        rule = "values are what is rounded, operands what is multiplied, quantized what a quantiser read"
        raise RefsimError("usage", "two ways to compute the outputs", rule=rule)
    if operands is not None:
        return question.of_subject(_fitting(operands.product(row), got), at)
    if values is not None:
        wide, held = _values(values, got)
        return question.of_subject(WideValues(wide, held, row), at)
    if quantized is not None:
        return question.of_subject(quantized.explained(got.shape, row), at)
    if want is None:
        raise RefsimError("usage", "one output alone", help="a second one, operands=, values= or quantized=")
    return between_outputs(got, want, row, question.deadline, on_progress)


@dataclass(frozen=True)
class _Question:
    """Two outputs, or one, and the time there is."""

    got: Codes
    want: Codes | None
    format: Format
    deadline: float
    report: Report | None

    def of_subject(self, subject: Explained[Any], at: tuple[int, int] | None) -> DiffExplanation:
        """The difference between plans: what one side has is looked for, and from there what the other one does otherwise."""
        start = subject.usual
        if self.want is None:
            return self._said(subject, start, self._search(subject, start, self.got, None), "A", at)
        sides = [("A", self.got, self.want), ("B", self.want, self.got)]
        if self._is_usual(subject, self.got):
            sides.reverse()  # then B alone has done something otherwise, and its causes are known by their own names
        said, other_is = None, ""
        ends = self._ends()
        for (made, one, other), known_by, end in zip(sides, ends[::2], ends[1::2], strict=True):
            anchor = self._plan_of(subject, start, other, known_by)
            if anchor is None:
                continue
            found = self._search(subject, anchor, one, other, end)
            if found.whole:
                return self._said(subject, anchor, found, made, at)
            if said is None:
                said = self._said(subject, anchor, found, made, at)
            else:
                other_is = subject.described(anchor)
        alone = between_outputs(self.got, self.want, self.format, self.deadline, self.report)
        is_of_nan = alone.named and all(cause.family == Family.NAN for each in alone.named for cause in each.causes)
        if is_of_nan and not stands_for_nan(self.got, self.want, self.format):
            # The operands say where a NaN belongs: one that any number stands for has come from elsewhere.
            alone = replace(alone, named=(), outcome=DiffOutcome.UNEXPLAINED, a_is="", b_is="")
        if said is None or alone.named:
            return alone
        return replace(said, a_is=said.a_is or other_is, b_is=said.b_is or other_is)

    def _is_usual(self, subject: Explained[Any], output: Codes) -> bool:
        made = CauseSearch(subject, subject.usual, output, self.deadline)
        return made.holds(subject.usual)

    def _ends(self) -> list[float]:
        """Until when the plan of one side is looked for, and the other side from there; then the same with sides exchanged."""
        now = time.process_time()
        return [now + share * (self.deadline - now) for share in SHARES]

    def _plan_of(self, subject: Explained[Any], start: Any, output: Codes, end: float) -> Any:
        """The plan that reproduces an output; None where there is none in the time."""
        found = CauseSearch(subject, start, output, end, report=self.report).run()
        if found.is_equal:
            return start
        plan = start
        for cause in found.whole[0].causes if found.whole else ():
            plan = cause.of(plan)
        return plan if found.whole else None

    def _search(
        self, subject: Explained[Any], start: Any, got: Codes, want: Codes | None, end: float | None = None
    ) -> Found:
        return CauseSearch(subject, start, got, end or self.deadline, want, self.report).run()

    def _said(
        self, subject: Explained[Any], start: Any, found: Found, made: str, at: tuple[int, int] | None
    ) -> DiffExplanation:
        """What was found of the output `made`, "A" or "B", from the plan of the other one on."""
        size = self.got.size
        if found.is_equal:
            return DiffExplanation(DiffOutcome.EQUAL, 0, found.judged, size, a_is=subject.described(start))
        output = self.got if made == "A" or self.want is None else self.want
        is_little = found.differing < LEAST_DIFFERING and found.judged < LEAST_ELEMENTS
        is_little |= is_nan_alone(output, self.format)
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
            plan = start
            for cause in each.causes:
                plan = cause.of(plan)
            plans.insert(0, plan)
        words = [subject.described(plans[0]) if named else "", subject.described(start)]
        if made == "B":
            plans, words = plans[::-1], words[::-1]
        element, stages = _stages(subject, plans, self.got, self.want, at) if named else (None, ())
        return DiffExplanation(
            outcome,
            found.differing,
            found.judged,
            size,
            named,
            tuple(found.parts),
            tuple(found.excluded),
            tuple(found.unseen),
            found.pairs,
            found.untried,
            words[0],
            words[1],
            told_apart(subject, start, named),
            element,
            stages,
            made,
        )


def _stages(
    subject: Explained[Any], plans: list[Any], got: Codes, want: Codes | None, at: tuple[int, int] | None
) -> tuple[tuple[int, int] | None, tuple[SumsSoFar, ...]]:
    """The sums of one element under two plans, column by column; none where no plan has sums."""
    if not isinstance(subject, ProductOfPlans):
        return None, ()
    if at is None:
        want = subject.codes(plans[1]) if want is None else want
        first = np.argwhere(got != want)[0]
        at = int(first[0]), int(first[1])
    for place, extent in zip(at, got.shape, strict=True):
        if not 0 <= place < extent:
            raise RefsimError("at-range", f"element {at} is outside {got.shape}")
    sums = [subject.sums_of(plan, at, STAGES) for plan in plans]
    return at, tuple(SumsSoFar(end, one, other) for (end, one), (_, other) in zip(*sums, strict=True))


def _fitting(product: ProductOfPlans | BlockScaledProduct, got: Codes) -> ProductOfPlans | BlockScaledProduct:
    if product.shape != got.shape:
        raise RefsimError("shape-mismatch", f"the output has shape {got.shape}, the product {product.shape}")
    return product


def _codes(name: str, array: ArrayLike, format: str | Format | None) -> tuple[Codes, Format]:
    given = array_of(name, array)
    held = None if given.dtype.kind in "iu" else format_held(given.dtype)
    if given.dtype.kind == "f" and held is not None:
        given = np.ascontiguousarray(given).view(held.code_dtype).reshape(given.shape)
    words, row = with_format(given, held if format is None else format, name)
    codes = np.asarray(words)
    if codes.dtype != row.code_dtype:
        raise RefsimError("code-type", f"{name} holds {codes.dtype}, codes of {row} are {row.code_dtype}")
    return codes, row


def _values(values: ArrayLike, got: Codes) -> tuple[Any, Format]:
    wide = array_of("values", values)
    if wide.dtype not in (np.float32, np.float64) or wide.shape != got.shape:
        raise RefsimError(
            "values", f"values are {wide.dtype} of shape {wide.shape}", rule=f"float32 or float64, {got.shape}"
        )
    return wide, F32 if wide.dtype == np.float32 else F64
