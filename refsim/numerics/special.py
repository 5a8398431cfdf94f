"""The results of the `.approx` instructions and div.full: one entry for each recorded form, by its name in PTX.

Every function of `refsim.mufu` gets its f32 forms here automatically; another width needs one more entry.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError, unknown
from refsim.formats import BF16, F16, F32, F64, Format
from refsim.integers import read_as_array
from refsim.mufu import halves, unit, upper_words
from refsim.mufu.instructions import approximate, divided
from refsim.numerics.ieee.patterns import kind_of
from refsim.numerics.ieee.roots import rsqrt_approximate
from refsim.typed_arrays import words

Array = NDArray[Any]

RECORDED_ON = "sm_90"
"""The target whose chips (an H200 and an H100) returned these bits; sm_90a has equal results."""
_WITHOUT_FTZ = ("tanh",)


@dataclass(frozen=True)
class SpecialForm:
    """Describe one instruction: its `function` of `operands` numbers of a format, and whether it flushes subnormals.

    `words` maps patterns of the operands to patterns of the results.
    """

    instruction: str
    function: str
    format: Format
    flushes: bool
    words: Callable[..., Array]
    operands: int = 1

    @property
    def by_upper_words(self) -> bool:
        """Return whether the form reads and writes only the upper half of a float64: the two f64 forms with .ftz."""
        return self.format is F64 and self.flushes


def _singles() -> Iterator[SpecialForm]:
    """Yield the f32 forms: every function of the unit, with and without .ftz, and the divisions."""
    for name in unit.FUNCTIONS:
        for ftz in (False,) if name in _WITHOUT_FTZ else (False, True):
            text = f"{name}.approx{'.ftz' if ftz else ''}.f32"
            yield SpecialForm(text, name, F32, ftz, lambda a, name=name, ftz=ftz: approximate(name, a, ftz=ftz))
    for full in (False, True):
        for ftz in (False, True):
            text = f"div.{'full' if full else 'approx'}{'.ftz' if ftz else ''}.f32"
            yield SpecialForm(
                text, "div", F32, ftz, lambda a, b, full=full, ftz=ftz: divided(a, b, ftz=ftz, full=full), 2
            )


def _half(instruction: str, row: Format) -> SpecialForm:
    name, flushes = instruction.partition(".")[0], ".ftz" in instruction
    return SpecialForm(instruction, name, row, flushes, lambda a: halves.approximate(name, a, bf16=row == BF16))


def _double(instruction: str, compute: Callable[[Array], Array]) -> SpecialForm:
    name, flushes = instruction.partition(".")[0], ".ftz" in instruction
    return SpecialForm(instruction, name, F64, flushes, lambda a: compute(a.view(np.float64)).view(np.uint64))


SPECIAL_FORMS: tuple[SpecialForm, ...] = (
    *_singles(),
    _half("ex2.approx.f16", F16),
    _half("ex2.approx.ftz.bf16", BF16),
    *(_half(f"tanh.approx.{row.name}", row) for row in (F16, BF16)),
    _double("rcp.approx.ftz.f64", lambda a: upper_words.approximate("rcp", a)),
    _double("rsqrt.approx.ftz.f64", lambda a: upper_words.approximate("rsqrt", a)),
    _double("rsqrt.approx.f64", rsqrt_approximate),
)
_BY_NAME = {form.instruction: form for form in SPECIAL_FORMS} | {
    f"{form.instruction}x2": form for form in SPECIAL_FORMS if form.format in (F16, BF16)
}
"""The forms by their names; an instruction on pairs applies the form of one number to each half."""


def special_form(instruction: str) -> SpecialForm:
    """Return the form of an instruction by its name in PTX; raise RefsimError with the nearest names.

    Modifiers are in PTX's order. The beginning of a name is an error with the names that begin so. An instruction on
    pairs ("ex2.approx.f16x2") has the form of one number.
    """
    longer = [name for name in _BY_NAME if isinstance(instruction, str) and name.startswith(f"{instruction}.")]
    if longer:
        what = f"{instruction} may be any of {len(longer)} instructions"
        raise RefsimError("ambiguous-name", what, help=f"known: {', '.join(longer)}")
    if not isinstance(instruction, str) or instruction not in _BY_NAME:
        raise unknown("special function", instruction, [form.instruction for form in SPECIAL_FORMS])
    return _BY_NAME[instruction]


def approx(instruction: str, *operands: Array) -> Array:
    """Return the result of an `.approx` instruction, or of div.full, on sm_90, bit for bit.

    instruction: its name in PTX, such as "ex2.approx.ftz.f32" or "div.full.f32". operands: arrays of the instruction's
    type, as in `numerics.ieee` (float32, float16, float64, bf16 as uint16 patterns or as bfloat16), which broadcast;
    the result has this dtype. An instruction on pairs, such as "tanh.approx.f16x2", takes arrays of its halves.
    approx("sqrt.approx.f32", np.float32([2.25])) is [1.5]. Raises RefsimError for another name, dtype or number of
    operands, and for shapes that do not broadcast.
    Source: recorded on an H200 and an H100 (docs/special-functions.md); other targets were not.
    """
    form = special_form(instruction)
    if len(operands) != form.operands:
        what = f"{instruction} takes {form.operands} operand{'s' if form.operands > 1 else ''}, not {len(operands)}"
        raise RefsimError("operand-count", what)
    arrays = _together(instruction, operands)
    returned = arrays[0].dtype
    if all(each.dtype == form.format.ml_dtype for each in arrays):
        arrays = [words(each) for each in arrays]
    kind = kind_of(*arrays)
    if kind.name != form.format.name:
        raise RefsimError("bad-dtype", f"{instruction} does not take {kind.name}", rule=f"{form.format.name} alone")
    flat = (np.ascontiguousarray(each).reshape(-1).view(kind.unsigned) for each in arrays)
    return form.words(*flat).reshape(arrays[0].shape).view(returned)


def _together(instruction: str, operands: tuple[Array, ...]) -> list[Array]:
    """Return the operands as arrays of one shape."""
    try:
        arrays = [read_as_array("an operand", each) for each in operands]
    except ValueError:  # lists in a list that differ in length
        raise RefsimError("bad-shape", "the rows of an operand differ in length", where=instruction) from None
    try:
        return list(np.broadcast_arrays(*arrays))
    except ValueError:
        shapes = " and ".join(str(each.shape) for each in arrays)
        raise RefsimError("bad-shape", f"operands of shapes {shapes} do not fit together", where=instruction) from None
