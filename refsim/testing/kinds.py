"""Kinds of kernels that refsim knows, for `Kernel(computes=...)` in one line: products, quantizers, functions of rows.

Operands are named: `"x"` is `problem.x`, or what its method `x()` returns, as codes or as an array that knows its
format. A number, an array or a function of the test case may stand in place of a name, and a function in place of any
other argument. Outputs are those of the kernel in their order: D or Y; codes, then scales; O, then logarithms. Every
kind takes `how=`, parts of texts of its ways as in `refsim.testing.steps`, and `also=`, which maps each further output
to the operand that it equals.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from refsim.causes import (
    AttentionOperands,
    IntegerOperands,
    ProductOperands,
    QuantizedFrom,
    RowOperands,
    WeightOperands,
)
from refsim.causes.quantised_from import FP8_GROUPS
from refsim.computations.accumulating import PROMOTION_ROWS
from refsim.computations.fused import chosen
from refsim.computations.products import LAST
from refsim.computations.quantising import ONE_SCALE, fp8_rules, settled
from refsim.conversions import decode
from refsim.errors import RefsimError, named, unknown
from refsim.formats import E4M3, E8M0, F32, S32, Format, element_named
from refsim.integers import array_of
from refsim.kernels import ComputedKind, Kernel
from refsim.layouts import scale_layout
from refsim.scaling.block_formats import block_format
from refsim.scaling.grids import scale_grid
from refsim.scaling.rows import NAN_RULES, QUOTIENTS, scale_kind
from refsim.testing.matrices import Values
from refsim.testing.steps import Operand, StepOperands, fused, load, quantize, store
from refsim.typed_arrays import codes_with_format

__all__ = [
    "attention",
    "block_scaled_product",
    "integer_product",
    "linear",
    "quantizer",
    "rms_norm",
    "scaled_product",
    "softmax",
]


def __dir__() -> list[str]:
    return sorted(__all__)


Given = dict[str, Any]
Formats = Mapping[str, Any]
TEXTS = {"to", "recipe", "layout", "kind", "quotient", "nan", "promotion", "function", "special", "unit", "target"}
"""Arguments whose texts are no names of operands, in addition to those of formats."""


@dataclass(frozen=True)
class KnownKind(ComputedKind):
    """A kind of kernels; `make(given, outputs, target)` returns the computations of a test case by output.

    `given` are fields of `operands`, a class of `refsim.causes`, and `own` ones of the kind. The kernel has at most
    `most` outputs that are not in `also`.
    """

    operands: type
    make: Callable[[Given, Formats, str], Mapping[str, Any]]
    given: Given
    own: tuple[str, ...] = ()
    most: int = 1

    def __post_init__(self) -> None:
        """Raise RefsimError for an argument that the kind does not have."""
        known = [*(each.name for each in fields(self.operands)), *self.own, "how", "also"]
        for name in self.given:
            if name not in known:
                raise unknown("argument", name, known, where="computes=")
        if not isinstance(self.also, Mapping):
            raise RefsimError("wrong-type", f"also is {self.also!r:.60}", "computes=", help='also={"gap": "gap"}')

    @property
    def is_product(self) -> bool:  # type: ignore[override]
        return self.operands is ProductOperands

    @property
    def also(self) -> Mapping[str, Operand]:
        """Return the outputs that equal an operand."""
        return self.given.get("also", {})  # type: ignore[no-any-return]

    def outputs_of(self, kernel: Kernel, formats: Mapping[str, str]) -> Formats:
        """Return the formats of the outputs that the kind computes. Raises RefsimError if there are not so many."""
        own = {name: element_named(row) if row else None for name, row in formats.items() if name not in self.also}
        if not own or len(own) > self.most or set(self.also) - set(formats):
            what = f"outputs are {', '.join(formats)}; also= has {', '.join(self.also) or 'none'}"
            rule = f"the kind computes {'one output' if self.most == 1 else 'one output or two'}; also= has the others"
            help = 'also={"gap": "gap"}: the output gap equals problem.gap'
            raise RefsimError("bad-kernel", what, f"outputs of kernel {kernel.name}", rule, help)
        return own

    def of_kernel(self, kernel: Kernel, problem: Any, target: str) -> Mapping[str, Any]:
        """Return the computations of a kernel's test case by output. Raises RefsimError for operands that do not fit."""
        asked, outputs = StepOperands(problem), self.outputs_of(kernel, kernel.output_formats(problem))
        try:
            named_so = {name: each for name, each in self.given.items() if name not in ("how", "also")}
            given = {name: _of_case(asked, name, each) for name, each in named_so.items()}
            found = self._made({name: each for name, each in given.items() if each is not None}, outputs, target)
            return {**found, **{name: np.asarray(asked.given(each)) for name, each in self.also.items()}}
        except RefsimError as error:
            error.where = f"computes of kernel {kernel.name}" + (f", {error.where}" if error.where else "")
            if error.code == "format-needed" or not (error.rule or error.help):
                error.help = error.help or "name another operand, or give its format"
                error.help = error.help.replace("pass format=", "give its format: a_format=, x_format=")
            raise

    def _made(self, given: Given, outputs: Formats, target: str) -> Mapping[str, Any]:
        """Return the computations with the ways of `how`. Raises RefsimError wrong-type for values of another type."""
        how = self.given.get("how", ())
        try:
            found = self.make(given, outputs, target)
            for part in found.values() if how else ():
                vars(part)["usual"] = chosen(part, (how,) if isinstance(how, str) else how)
        except (TypeError, ValueError, AttributeError) as error:
            rule = "operands are arrays, eps and scale are numbers, how= holds texts"
            raise RefsimError("wrong-type", f"{type(error).__name__}: {error}", rule=rule) from error
        return found


REQUIRED = ("a", "b", "x", "q", "k", "v")


def _of_case(asked: StepOperands, name: str, given: Any) -> Any:
    """Return an argument for a test case. Raises RefsimError where an operand is no array."""
    if isinstance(given, str) and (name in TEXTS or name.endswith("format")):
        return given
    found = asked.given(given)
    if isinstance(found, Values) or (found is None and name in REQUIRED):
        what = f"{name}={given!r:.40} is {found!r:.60}"
        help = f'{name}=lambda problem: problem.x.codes("bf16", problem.rows, problem.columns)'
        raise RefsimError(
            "not-an-array", what, rule="an operand is codes, or an array that knows its format", help=help
        )
    return array_of(name, found) if name in REQUIRED else found


def _format_of(outputs: Formats) -> Any:
    """Return the float format of the first output. Raises RefsimError where it has none."""
    ((name, row), *_) = outputs.items()
    if not isinstance(row, Format):
        what = f"output {name} has {'no format' if row is None else f'the format {row}'}"
        raise RefsimError("format-needed", what, rule="a format of floats", help=f'outputs={{"{name}": "bf16"}}')
    return row


def _products(given: Given, outputs: Formats, target: str) -> Mapping[str, Any]:
    """Return a product of floats, or with narrow weights."""
    promotion, is_weight, ends = (given.pop(name, None) for name in ("promotion", "is_weight", "ends"))
    shape, form = (len(given["a"]), len(given["b"])), _format_of(outputs)
    if (c := given.get("c")) is not None:
        codes, row = codes_with_format("c", c, None, F32 if np.asarray(c).itemsize == 4 else given.get("a_format"))
        values = np.asarray(decode(codes, row, np.float32))
        given["c"] = np.broadcast_to(values, shape) if values.shape == shape[1:] else values
    given = {"target": target, **given}
    found: Any = WeightOperands(**given).explained(shape, form) if is_weight else ProductOperands(**given).product(form)
    if promotion is not None:
        rows = {row.order: row for row in PROMOTION_ROWS if row.is_fused}
        vars(found)["usual"] = found.usual.but(promotion=named("promotion", promotion, rows))
    if ends and "c" in given:
        vars(found)["usual"] = found.usual.but(accumuland=LAST)
    if given["a"].ndim == 3:
        vars(found)["written_shape"] = found.whole
    return {next(iter(outputs)): found}


def _integers(given: Given, outputs: Formats, target: str) -> Mapping[str, Any]:
    """Return a product of integers."""
    ((name, row),) = outputs.items()
    return {name: IntegerOperands(**given).explained((len(given["a"]), len(given["b"])), row or S32)}


def _rows(given: Given, outputs: Formats, target: str) -> Mapping[str, Any]:
    """Return a function of rows."""
    found = RowOperands(**given).explained(given["x"].shape, _format_of(outputs))
    vars(found)["written_shape"] = given["x"].shape
    return {next(iter(outputs)): found}


def _attention(given: Given, outputs: Formats, target: str) -> Mapping[str, Any]:
    """Return O, and the logarithms of its sums where they are an output."""
    shape, given = given["q"].shape, {"target": target, **given}
    formats = [_format_of(outputs), *(row or F32 for row in [*outputs.values()][1:])]
    found = {}
    for name, extents, row in zip(outputs, (shape, shape[:-1]), formats, strict=False):
        found[name] = AttentionOperands(**given).explained(extents, row)
        vars(found[name])["written_shape"] = extents
    return found


def _quantizer(given: Given, outputs: Formats, target: str) -> Mapping[str, Any]:
    """Return codes, and scales where they are an output."""
    names, (form, *stored), to = [*outputs], outputs.values(), given["to"]
    own = {name: given.pop(name) for name in ("kind", "quotient", "nan") if name in given}
    row = None if to in (*FP8_GROUPS, ONE_SCALE) else block_format(to)
    element: Any = row.element if row else E4M3
    if row and own:
        raise unknown("argument", next(iter(own)), ["recipe", "tensor_scale", "eps"])
    if given["x"].ndim != 2:
        raise RefsimError("bad-shape", f"x has shape {given['x'].shape}", rule="(rows, columns)")
    if row and form is None and element.bits == 4:
        return {"": _packed(given, names)}
    rows, columns = extents = given["x"].shape
    held = -(-columns * element.bits // 8) * 8 // element.bits
    subject = QuantizedFrom(**given).explained((rows, held), form or element)
    kind = scale_kind(own.get("kind", "e8m0" if stored == [E8M0] else "f32"))
    scale = row.scale if row else kind.format
    if stored:
        if stored[0] not in (None, scale):
            raise RefsimError("format-mismatch", f"output {names[1]} holds {stored[0]}", rule=f"scales of {scale}")
        grid = scale_grid(extents, subject.rules[0].group)
        layout = None if given.get("layout") is None else scale_layout(given["layout"])
        scales = np.zeros(layout.packed_shape(grid) if layout else grid, scale.array_dtype or np.uint8)
        if layout and layout.element_bytes != scales.itemsize:
            what = f"{layout.name} has {layout.element_bytes} bytes for a scale"
            raise RefsimError("format-mismatch", what, rule=f"{scale} has {scales.itemsize}")
        subject = replace(QuantizedFrom(**given, scales=scales).with_scales(subject), names=(names[0], names[1]))
    if not row:
        quotient = own.get("quotient", QUOTIENTS[0])
        quotient = QUOTIENTS[0] if kind.is_power_of_two and quotient in QUOTIENTS else quotient
        group = FP8_GROUPS.get(to, ONE_SCALE)
        rules = fp8_rules(extents, form or element, group, kind.name, quotient, own.get("nan", NAN_RULES[0]))
        subject = replace(subject, rules=tuple(settled(rule, given.get("eps"), None) for rule in rules))
    return {"" if stored else names[0]: subject}


def _packed(given: Given, names: list[str]) -> Any:
    """Return the quantizer to a block format whose codes of 4 bits are written in bytes."""
    factor = "tensor_scale" if given.get("tensor_scale") is not None else None
    steps = (
        load("x", given.get("x_format")),
        quantize(given["to"], recipe=given.get("recipe"), tensor_scale=factor, eps=given.get("eps")),
        store(names[0], scales=names[1] if len(names) > 1 else None, layout=given.get("layout")),
    )
    return fused(*steps)(SimpleNamespace(**given))


# ---- the catalogue ---------------------------------------------------------------------------------------------------


def scaled_product(
    a: Operand = "a", b: Operand = "b", a_scale: Operand = "scale_a", b_scale: Operand = "scale_b", **more: Any
) -> KnownKind:
    """Return the kind D = A B^T of FP8 with float32 or E8M0 scales: 1 x 128 of A, 128 x 128 of B, or others.

    `promotion`: "scale_product", "a_then_b" or "b_then_a", as of `oracles.fp8_gemm_1d2d`. `more`: fields of
    `causes.ProductOperands`; codes are e4m3 unless `a_format` and `b_format` say otherwise. scaled_product().most is 1.
    Raises RefsimError for an argument that does not exist, and when it is called for operands that do not fit. Source:
    the oracle's.
    """
    given = {"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale, "a_format": "e4m3", "b_format": "e4m3"}
    return KnownKind(ProductOperands, _products, {**given, "promotion": "scale_product", **more}, ("promotion",))


def block_scaled_product(
    a: Operand = "a",
    b: Operand = "b",
    a_scale: Operand = "scale_a",
    b_scale: Operand = "scale_b",
    *,
    scale_format: Any = "e8m0",
    **more: Any,
) -> KnownKind:
    """Return the kind D = A B^T whose blocks of K have scale codes, "e8m0" (MX) or "ue4m3" (NVFP4), before a shuffle.

    `more`: fields of `causes.ProductOperands`, such as `a_format`, `b_format` and `global_scale`.
    block_scaled_product().most is 1. Raises RefsimError as `scaled_product`. Source: that of
    `oracles.block_scaled_matmul`.
    """
    given = {"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale, "scale_format": scale_format}
    return KnownKind(ProductOperands, _products, {**given, **more})


def linear(x: Operand = "x", w: Operand = "w", residual: Operand | None = None, **more: Any) -> KnownKind:
    """Return the kind Y = X W^T + residual of floats; with `b_scale`, W has narrow codes of `b_format`.

    `residual` (M, N) or (N,) is added to the float32 sum. `more`: fields of `causes.ProductOperands`, with `b_scale` of
    `causes.WeightOperands`; their `a` is X, their `b` is W. linear().most is 1. Raises RefsimError as `scaled_product`.
    Source: PyTorch, nn.Linear.
    """
    is_weight = more.get("b_scale") is not None
    given = {"a": x, "b": w, "c": residual, "ends": True, "is_weight": is_weight, **more}
    return KnownKind(WeightOperands if is_weight else ProductOperands, _products, given, ("ends", "is_weight"))


def integer_product(a: Operand = "a", b: Operand = "b", **more: Any) -> KnownKind:
    """Return the kind D = (A - za)(B - zb)^T + C of integers, in s32, or with scales in another format.

    `more`: fields of `causes.IntegerOperands`, such as `c`, `a_zero`, `a_scale`. integer_product().most is 1. Raises
    RefsimError as `scaled_product`. Source: PTX ISA, mma.
    """
    return KnownKind(IntegerOperands, _integers, {"a": a, "b": b, **more})


def softmax(x: Operand = "x", scale: Operand = 1.0, **more: Any) -> KnownKind:
    """Return the kind e^(scale (x - max)) over its sum, for each row.

    `more`: fields of `causes.RowOperands`, such as `x_format`. softmax().most is 1. Raises RefsimError as
    `scaled_product`. Source: PyTorch, nn.functional.softmax.
    """
    return KnownKind(RowOperands, _rows, {"function": "softmax", "x": x, "scale": scale, **more})


def rms_norm(x: Operand = "x", weight: Operand | None = "w", eps: Operand = 1e-6, **more: Any) -> KnownKind:
    """Return the kind x / sqrt(mean(x^2) + eps) * weight of each row, times silu(gate) where a `gate` is given.

    `more`: fields of `causes.RowOperands`; with `function` "layer_norm" x is less its mean. rms_norm().most is 1.
    Raises RefsimError as `scaled_product`. Source: PyTorch, nn.RMSNorm.
    """
    return KnownKind(RowOperands, _rows, {"function": "rms_norm", "x": x, "weight": weight, "eps": eps, **more})


def attention(q: Operand = "q", k: Operand = "k", v: Operand = "v", **more: Any) -> KnownKind:
    """Return the kind O = softmax(scale * Q K^T) V; a second output holds the logarithms of the sums of its rows.

    `more`: fields of `causes.AttentionOperands`, such as `format`, `causal` and `scale`. attention().most is 2. Raises
    RefsimError as `scaled_product`. Source: that of `oracles.attention`.
    """
    return KnownKind(AttentionOperands, _attention, {"q": q, "k": k, "v": v, **more}, most=2)


def quantizer(x: Operand = "x", to: Any = "1x128", **more: Any) -> KnownKind:
    """Return the kind of a quantizer to FP8 in groups "1x128" or "128x128", or to "tensor", "mxfp8", "nvfp4" and others.

    A second output holds the scales. FP8 has `kind` ("f32", "f32_power", "e8m0"), `quotient` and `nan` of
    `steps.quantize`. Codes of 4 bits fill bytes, low half first, unless their output has a format. `more`: fields of
    `causes.QuantizedFrom`, such as `recipe`, `layout` of the scales and `eps`. quantizer().most is 2. Raises RefsimError
    as `scaled_product`. Source: that of `scaling.quantize` and of the recipe.
    """
    return KnownKind(QuantizedFrom, _quantizer, {"x": x, "to": to, **more}, ("kind", "quotient", "nan"), most=2)
