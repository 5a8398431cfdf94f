"""The operands of a function of rows as a user has them: x, weights, gate, epsilon or scale, and the function."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from refsim.computations.norms import Norm
from refsim.computations.row_functions import Floats, RowFunction
from refsim.computations.silu import Silu
from refsim.computations.softmax import Softmax
from refsim.conversions import decode
from refsim.errors import RefsimError, check_named, named
from refsim.formats import BF16, F16, F32, Format
from refsim.render.cards import FieldsCard
from refsim.typed_arrays import codes_with_format

ROW_OUTPUTS = (F32, BF16, F16)
APPROXIMATE, EXACT_FUNCTIONS = "approx", "exact"
SPECIAL = (APPROXIMATE, EXACT_FUNCTIONS)


@dataclass(frozen=True)
class NamedRowFunction:
    """A function of rows: the operands that it has in addition to x, and the class that computes it."""

    name: str
    has: tuple[str, ...]
    subject: Callable[..., RowFunction]
    centres: bool = False


ROW_FUNCTIONS = (
    NamedRowFunction("softmax", ("scale",), Softmax),
    NamedRowFunction("rms_norm", ("eps", "weight", "gate"), Norm),
    NamedRowFunction("layer_norm", ("eps", "weight", "bias", "gate"), Norm, centres=True),
    NamedRowFunction("silu", ("gate",), Silu),
)


@dataclass(frozen=True, kw_only=True, repr=False)
class RowOperands(FieldsCard):
    """The operands of a function of rows, from which outputs (rows, columns) are recomputed.

    `function`: "softmax", e^(scale (x - max)) over its sum, `scale` 1 by default; "rms_norm", x / sqrt(mean(x^2) + eps)
    * weight; "layer_norm", with x less its mean, plus `bias`; "silu", x * sigmoid(x). With a `gate` (rows, columns)
    norms are multiplied by silu(gate), and silu is x * silu(gate). `x` (..., columns): codes with `x_format`, or an
    array of bfloat16, float16 or float32; likewise `weight` and `bias` (columns) and `gate`. `special`: "approx", the
    reference uses the instructions and the order of `gpu/kernels/row_functions.cu`; "exact", it rounds exponentials,
    roots and quotients once and adds columns in order.
    RowOperands(function="softmax", x=x, x_format="bf16") is the softmax of refsim's kernel.
    """

    function: str
    x: ArrayLike
    x_format: str | Format | None = None
    weight: ArrayLike | None = None
    bias: ArrayLike | None = None
    gate: ArrayLike | None = None
    eps: float | None = None
    scale: float | None = None
    special: str = APPROXIMATE

    def explained(self, shape: tuple[int, ...], format: Format) -> Any:
        """Return the function with output of that shape and format. Raises RefsimError for operands that do not fit."""
        found = named("row function", self.function, {row.name: row for row in ROW_FUNCTIONS})
        check_named("special functions", self.special, SPECIAL)
        for name in ("weight", "bias", "gate", "eps", "scale"):
            if getattr(self, name) is not None and name not in found.has:
                rule = f"in addition to x it has {', '.join(found.has)}"
                raise RefsimError("usage", f"{self.function} has no {name}", rule=rule)
        if format not in ROW_OUTPUTS:
            raise RefsimError(
                "format-mismatch", f"the output holds {format}", rule=f"one of {', '.join(map(str, ROW_OUTPUTS))}"
            )
        x, held = _values("x", self.x, self.x_format, None)
        if x.ndim == 0 or x.size == 0:
            raise RefsimError("bad-shape", f"x has shape {x.shape}", rule="(..., columns), none of them empty")
        if x.shape != shape:
            raise RefsimError("bad-shape", f"the output has shape {shape}, x has {x.shape}")
        columns = x.shape[-1]
        beside = {
            name: self._beside(own, held, (columns,) if own != "gate" else x.shape)
            for name, own in (("w", "weight"), ("bias", "bias"), ("gate", "gate"))
        }
        more: dict[str, Any] = {"centres": True} if found.centres else {}
        number = self._number("scale" in found.has)
        return found.subject(
            x.reshape(-1, columns), held, format, number, **beside, **more, exact=self.special == EXACT_FUNCTIONS
        )

    def _number(self, is_scale: bool) -> float:
        given = self.scale if is_scale else self.eps
        return float(given) if given is not None else 1.0 if is_scale else 1e-6

    def _beside(self, name: str, held: Format, shape: tuple[int, ...]) -> Floats | None:
        """Return a further operand in float32, in the shape that it must have; None where it was not given."""
        given = getattr(self, name)
        if given is None:
            return None
        values, _ = _values(name, given, None, held)
        if values.shape != shape:
            raise RefsimError(
                "bad-shape", f"{name} has shape {values.shape}", rule=f"that of the rows it goes with, {shape}"
            )
        return values.reshape(-1, shape[-1]) if name == "gate" else values


def _values(name: str, given: ArrayLike, named: str | Format | None, usual: Format | None) -> tuple[Floats, Format]:
    """Return values in float32, and their format: `named`, the array's own, or `usual`."""
    codes, row = codes_with_format(name, given, named, usual)
    if row not in ROW_OUTPUTS:
        raise RefsimError("format-mismatch", f"{name} holds {row}", rule=f"one of {', '.join(map(str, ROW_OUTPUTS))}")
    return np.asarray(decode(codes, row, np.float32)), row
