"""The operands of a function of rows and of attention as a user has them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.computations.accumulating import Adder, adder_of, adders
from refsim.computations.attention import OnlineAttention
from refsim.computations.norms import Norm
from refsim.computations.row_functions import Floats, RowFunction
from refsim.computations.silu import Silu
from refsim.computations.softmax import Softmax
from refsim.conversions import decode
from refsim.errors import RefsimError, check_named, named
from refsim.formats import BF16, E4M3, F16, F32, Format
from refsim.integers import is_whole
from refsim.numerics.profiles import profile
from refsim.numerics.rows import Unit
from refsim.render.cards import FieldsCard
from refsim.scaling.quantizing import scale_values
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
        _require_format("the output", format, ROW_OUTPUTS)
        x, held = _values("x", self.x, self.x_format, None)
        if x.ndim == 0 or x.size == 0:
            raise RefsimError("bad-shape", f"x has shape {x.shape}", rule="(..., columns), none of them empty")
        if x.shape != shape:
            raise RefsimError("bad-shape", f"the output has shape {shape}, x has {x.shape}", rule="one shape for both")
        columns = x.shape[-1]
        beside = {"w": self._beside("weight", held, (columns,)), "bias": self._beside("bias", held, (columns,))}
        beside["gate"] = self._beside("gate", held, x.shape)
        more: dict[str, Any] = {"centres": True} if found.centres else {}
        number = self._number("scale" in found.has)
        return found.subject(
            x.reshape(-1, columns), held, format, number, **beside, **more, exact=self.special == EXACT_FUNCTIONS
        )

    def _number(self, is_scale: bool) -> float:
        given = self.scale if is_scale else self.eps
        number = float(given) if given is not None else 1.0 if is_scale else 1e-6
        if not np.isfinite(number):
            raise RefsimError("usage", f"{'scale' if is_scale else 'eps'} is {number:g}", rule="a finite number")
        return number

    def _beside(self, name: str, held: Format, shape: tuple[int, ...]) -> Floats | None:
        """Return a further operand in float32, in the shape that it must have; None where it was not given."""
        given = getattr(self, name)
        if given is None:
            return None
        values, _ = _values(name, given, None, held)
        if values.shape != shape:
            what = f"{name} has shape {values.shape}"
            raise RefsimError("bad-shape", what, rule=f"that of the rows it goes with, {shape}")
        return values.reshape(-1, shape[-1]) if name == "gate" else values


def _require_format(what: str, row: Format, formats: tuple[Format, ...]) -> None:
    """Raise RefsimError for a format that is none of `formats`."""
    if row not in formats:
        raise RefsimError("format-mismatch", f"{what} holds {row}", rule=f"one of {', '.join(map(str, formats))}")


def _values(name: str, given: ArrayLike, named: str | Format | None, usual: Format | None) -> tuple[Floats, Format]:
    """Return values in float32, and their format: `named`, the array's own, or `usual`."""
    codes, row = codes_with_format(name, given, named, usual)
    _require_format(name, row, ROW_OUTPUTS)
    return np.asarray(decode(codes, row, np.float32)), row


ATTENTION_FORMATS = (BF16, F16, E4M3)


@dataclass(frozen=True, kw_only=True, repr=False)
class AttentionOperands(FieldsCard):
    """The operands of O = softmax(scale * Q K^T) V, from which O or the logarithms of its sums are recomputed.

    `q` (..., heads, Lq, D), `k` and `v` (..., kv_heads, Lk, D), heads a multiple of kv_heads: codes of `format` (bf16,
    f16 or e4m3), or arrays of such a dtype; (L, D) is one head. `causal`: the last row sees all keys. `scale`: 1 /
    sqrt(D) by default. `q_scale`, `k_scale`, `v_scale`: for e4m3 only, a float32 for each head. Outputs are O, in Q's
    shape, or float32 logarithms in that shape without D. The reference is the arithmetic of `oracles.attention` with
    the products of `unit` on `target`; `special` "exact": a float32 fma for every k, exponentials and quotients rounded
    once, P rounded to the operands' format. With `window`, a row sees the last `window` keys up to its own. `sinks`: a
    score in addition to the keys, one or one for each head. `softcap`: a score s becomes softcap tanh(s / softcap).
    AttentionOperands(q=q, k=k, v=v, format="bf16", causal=True) is the attention of refsim's kernel.
    """

    q: ArrayLike
    k: ArrayLike
    v: ArrayLike
    format: str | Format | None = None
    causal: bool = False
    scale: float | None = None
    q_scale: ArrayLike | None = None
    k_scale: ArrayLike | None = None
    v_scale: ArrayLike | None = None
    unit: Unit = "wgmma"
    target: str = "sm_90a"
    special: str = APPROXIMATE
    window: int = 0
    sinks: ArrayLike | None = None
    softcap: float = 0.0

    def explained(self, shape: tuple[int, ...], format: Format) -> OnlineAttention:
        """Return the subject for O or the logarithms, by shape. Raises RefsimError for operands that do not fit."""
        check_named("special functions", self.special, SPECIAL)
        (q, row), (k, k_row), (v, v_row) = (self._operand(name) for name in "qkv")
        if row is not k_row or row is not v_row:
            raise RefsimError("format-mismatch", f"q holds {row}, k {k_row}, v {v_row}", rule="one format")
        if k.shape != v.shape or q.shape[2] != k.shape[2] or len(q) % len(k):
            what = f"q {q.shape}, k {k.shape}, v {v.shape}"
            rule = "(heads, Lq, D), (kv_heads, Lk, D) twice, heads a multiple of kv_heads"
            raise RefsimError("bad-shape", what, rule=rule)
        whole = np.shape(self.q)
        is_lse = shape == whole[:-1] and format is F32
        if not is_lse and shape != whole:
            raise RefsimError("bad-shape", f"the output has shape {shape}", rule=f"O {whole}, logarithms {whole[:-1]}")
        _require_format("the output", format, ROW_OUTPUTS)
        scale = self.scale if self.scale is not None else q.shape[2] ** -0.5
        exact = self.special == EXACT_FUNCTIONS
        scales = self._scales(row, len(q), len(k))
        if not is_whole(self.window) or self.window < 0 or not (0 <= self.softcap < float("inf")):
            what = f"window is {self.window!r}, softcap {self.softcap!r}"
            raise RefsimError("out-of-range", what, rule="a count of keys and a bound of scores, 0: none")
        sinks = None if self.sinks is None else _one_a_head("sinks", self.sinks, len(q))
        more: dict[str, Any] = {"window": int(self.window), "sinks": sinks, "cap": float(self.softcap)}
        chain = self._chain(row, exact=exact)
        return OnlineAttention(q, k, v, row, format, float(scale), self.causal, chain, scales, is_lse, exact, **more)

    def _operand(self, name: str) -> tuple[NDArray[np.unsignedinteger], Format]:
        """Return codes (heads, length, depth) and their format."""
        codes, row = codes_with_format(name, getattr(self, name), self.format)
        _require_format(name, row, ATTENTION_FORMATS)
        if codes.ndim < 2 or 0 in codes.shape:
            raise RefsimError("bad-shape", f"{name} has shape {codes.shape}", rule="(..., heads, length, depth)")
        return codes.reshape(-1, *codes.shape[-2:]), row

    def _scales(self, row: Format, heads: int, kv_heads: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return float32 scales of q, k and v, one for each head; None for formats without scales."""
        given = [self.q_scale, self.k_scale, self.v_scale]
        if row is not E4M3:
            if all(each is None for each in given):
                return None
            raise RefsimError("bad-scale", f"scales of {row} attention", rule="e4m3 has scales of q, k and v")
        found = []
        for name, each, count in zip("qkv", given, (heads, kv_heads, kv_heads), strict=True):
            found.append(_one_a_head(f"{name}_scale", 1.0 if each is None else each, count))
        return found[0], found[1], found[2]

    def _chain(self, row: Format, *, exact: bool) -> Adder:
        """Return the adder of the reference."""
        if exact:
            return next(adder for adder in adders(row, row) if adder.row is None)
        own = profile(self.target, self.unit, row, row, F32, None)
        return adder_of(own, (row, row), max(own.k))


def _one_a_head(name: str, given: ArrayLike, count: int) -> NDArray[np.float32]:
    """Return a number for each head, from one or as many."""
    values = scale_values(given).reshape(-1)
    if values.size not in (1, count):
        raise RefsimError("bad-shape", f"{name} has {values.size} numbers", rule=f"one, or {count}: a head each")
    return np.ascontiguousarray(np.broadcast_to(values, (count,)), np.float32)
