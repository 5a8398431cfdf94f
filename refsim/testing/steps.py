"""Steps of fused kernels for `Kernel(computes=fused(...))`: load, norm, activation, rope, sum, quantize, store.

Values pass from step to step as float32 (rows, columns). Operands are named: `"w"` is `problem.w`, or what its method
`w()` returns, as codes of the loaded format, float32 values, or an array of an ml_dtypes dtype. A number, an array or a
function of the test case may stand in place of a name. `how=` of a step are parts of the texts of its ways, where the
kernel does not do a step as refsim's own row functions: `how=("the sum by a quotient that is rounded once",)`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations import elementwise, quantising
from refsim.computations.elementwise import FusedStage
from refsim.computations.fused import FusedComputation, StoredValues, WrittenForm, chosen
from refsim.computations.norms import Norm
from refsim.computations.quantised import QuantizedTensor, QuantizerOutput
from refsim.computations.quantising import ONE_SCALE, QUOTIENT_WORDS, WHOLE_BYTE, WHOLE_NIBBLE
from refsim.computations.row_functions import Floats, RowFunction
from refsim.computations.row_sums import RowOrder
from refsim.computations.scale_stores import BY_ROWS, scale_stores
from refsim.computations.silu import Silu
from refsim.computations.softmax import Softmax
from refsim.computations.ways import OF_ROUNDING, Cause, Family
from refsim.conversions import decode
from refsim.errors import RefsimError, named, unknown
from refsim.formats import BF16, F32, Format, format_named
from refsim.scaling.block_formats import BLOCK_FORMATS, block_format
from refsim.scaling.blocks import tensor_factor
from refsim.scaling.rows import scale_kind
from refsim.typed_arrays import codes_with_format, is_typed, words

__all__ = [
    "RowOrder",
    "add",
    "divide",
    "fused",
    "gelu",
    "layer_norm",
    "load",
    "multiply",
    "quantize",
    "rms_norm",
    "rope",
    "rounded",
    "silu",
    "silu_mul",
    "softmax",
    "store",
]


def __dir__() -> list[str]:
    return sorted(__all__)


Operand = str | float | NDArray[Any] | Callable[[Any], Any]
Order = RowOrder
How = Sequence[str]
ROW = "row"
NIBBLES = {"low": 0, "high": 1}


@dataclass(frozen=True)
class StepOperands:
    """The operands of a test case: the shape and format of the loaded values, and further ones by name."""

    problem: Any
    shape: tuple[int, int] = (0, 0)
    format: Format = BF16

    def given(self, name: Operand) -> Any:
        """Return an operand as the test case holds it."""
        if callable(name):
            return name(self.problem)
        if not isinstance(name, str):
            return name
        if not hasattr(self.problem, name):
            raise unknown("operand", name, [each for each in dir(self.problem) if not each.startswith("_")])
        found = getattr(self.problem, name)
        return found() if callable(found) else found

    def values(
        self, name: Operand, format: str | Format | None = None, nibbles: str | None = None
    ) -> tuple[Floats, Format]:
        """Return an operand as float32 values, and its format; with `nibbles`, two codes of 4 bits share a byte."""
        given = np.asarray(self.given(name))
        if nibbles is not None:
            given = _unpacked(str(name), given, nibbles)
        elif (
            isinstance(format, Format) and format.twos_complement and (given.dtype.kind == "i" or is_typed(given.dtype))
        ):
            given = words(given).view(f"u{given.dtype.itemsize}") & (format.code_limit - 1)
        if given.dtype.kind in "f" and given.dtype.itemsize != 2:
            return given.astype(np.float32), F32
        usual = F32 if given.dtype.itemsize == 4 else self.format
        codes, row = codes_with_format(str(name), given, None if format is None else format_named(format), usual)
        return np.asarray(decode(codes, row, np.float32)), row

    def spread(self, name: Operand, shape: tuple[int, ...]) -> Floats:
        """Return an operand that spreads over a shape. Raises RefsimError bad-shape where it does not."""
        values, _ = self.values(name)
        try:
            np.broadcast_to(values, shape)
        except ValueError:
            rule = f"one value, one a column{', (rows, 1) or (rows, columns)' if len(shape) > 1 else ''} of {shape}"
            raise RefsimError("bad-shape", f"{name} has shape {values.shape}", rule=rule) from None
        return values

    def columns(self, name: Operand | None) -> Floats | None:
        """Return an operand with one value for each column."""
        columns = self.shape[1:]
        return None if name is None else np.broadcast_to(self.spread(name, columns), columns)


def _unpacked(name: str, given: NDArray[Any], nibbles: str) -> NDArray[Any]:
    """Return codes of 4 bits, one an element, of bytes. Raises RefsimError bad-dtype."""
    if given.dtype not in (np.uint8, np.int8) or not given.ndim:
        what = f"{name} is {given.dtype} of shape {given.shape}"
        raise RefsimError(
            "bad-dtype", what, "load(...)", "two codes of 4 bits share a byte", "bytes (rows, columns / 2)"
        )
    held = np.ascontiguousarray(given).view(np.uint8)
    halves = (held & 15, held >> 4)
    return np.stack(halves if nibbles == "low" else halves[::-1], -1).reshape(*held.shape[:-1], -1)


Made = Callable[[StepOperands], Any]


class AnyOperands(StepOperands):
    """Operands that fit every step, before there is a test case."""

    def given(self, name: Operand) -> Any:
        return np.float32(1)

    def values(
        self, name: Operand, format: str | Format | None = None, nibbles: str | None = None
    ) -> tuple[Floats, Format]:
        return np.zeros((self.shape[0], 1), np.float32), F32

    def spread(self, name: Operand, shape: tuple[int, ...]) -> Floats:
        return np.zeros((), np.float32)


@dataclass(frozen=True)
class ComposedStep:
    """A step: `kind`, what it makes of the operands, the texts of its ways, and the arguments that define it."""

    kind: str
    make: Made
    how: How = ()
    given: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise RefsimError bad-kernel for a text of `how` that names no way of the step."""
        if self.how:
            self.made(self._any)

    @property
    def _any(self) -> StepOperands:
        return AnyOperands(None, (128, 8 * self.given.get("head", 128)))

    def made(self, operands: StepOperands) -> Any:
        """Return the step of some operands; its usual plan has the ways that `how` names."""
        part: Any = self.make(operands)
        if self.how:
            texts = (self.how,) if isinstance(self.how, str) else self.how
            part.__dict__["usual"] = chosen(part, texts)
        return part

    @property
    def ways(self) -> tuple[str, ...]:
        """Return the texts that `how=` takes for steps that round elsewhere or use other instructions."""
        part, families = self.make(self._any), {*OF_ROUNDING, Family.DOUBLE_ROUNDING}
        return tuple(each.says for each in part.causes() if each.family in families and each.aspect != "order")


def _format(name: str | Format, *others: Format) -> Format:
    """Return the format of a name: also int8, and `others`."""
    whole = [row for row in (WHOLE_BYTE, *others) if name in (row.name, *row.aliases)]
    return whole[0] if whole else format_named(name)


LOAD, STAGE, ROUNDED, QUANTIZE, STORE = "load", "stage", "rounded", "quantize", "store"


@dataclass(frozen=True)
class Composition:
    """Steps of a fused kernel; called with a test case, it returns their computation."""

    steps: tuple[ComposedStep, ...]

    def __post_init__(self) -> None:
        """Raise RefsimError bad-kernel for steps in a wrong order."""
        kinds = [step.kind if isinstance(step, ComposedStep) else type(step).__name__ for step in self.steps]
        known = [step for step in self.steps if isinstance(step, ComposedStep)]
        names = [name for step in known for name in step.given.get("outputs", ())]
        wrong = [
            (set(kinds) - {LOAD, STAGE, ROUNDED, QUANTIZE, STORE}, "every argument is a step"),
            (kinds[:1] != [LOAD] or kinds.count(LOAD) > 1, "the first step loads, and no other does"),
            (kinds[-1:] != [STORE], "the last step stores"),
            (QUANTIZE in kinds and kinds[-2:] != [QUANTIZE, STORE], "quantize(...) is followed by the last store(...)"),
            (
                ROUNDED in kinds and kinds[max(0, kinds.index(ROUNDED) - 1)] != STAGE,
                "rounded(...) follows the step whose result it rounds",
            ),
            (len(names) != len(set(names)), "every output is stored once"),
        ]
        for is_wrong, rule in wrong:
            if is_wrong:
                what = f"the steps are {', '.join(kinds) or 'none'}"
                way = 'fused(load("x"), rms_norm("w"), quantize("e4m3", per="row"), store("q", scales="s"))'
                raise RefsimError("bad-kernel", what, "fused(...)", rule, way)

    def __call__(self, problem: Any, target: str = "") -> FusedComputation:
        """Return the computation of a test case."""
        loaded = self.steps[0]
        x, format = StepOperands(problem).values(*(loaded.given[each] for each in ("x", "format", "nibbles")))
        if x.ndim < 2:
            raise RefsimError(
                "bad-shape", f"{loaded.given['x']} has shape {x.shape}", "load(...)", "(..., rows, columns)"
            )
        x = x.reshape(-1, x.shape[-1])
        operands = StepOperands(problem, (x.shape[0], x.shape[1]), format)
        stages: list[Any] = []
        rounds: list[Format | None] = []
        stores: list[StoredValues] = []
        forms: list[WrittenForm] = []
        tail: QuantizedTensor | None = None
        more: dict[str, Any] = {"is_packed": loaded.given["nibbles"] is not None}
        for step in self.steps[1:]:
            if step.kind == STAGE:
                stages.append(step.made(operands))
                rounds.append(None)
            elif step.kind == ROUNDED:
                rounds[-1] = step.given["format"]
            elif step.kind == QUANTIZE:
                held = next((each for each in rounds[-1:] if each is not None), F32 if stages else format)
                tail = step.made(replace(operands, format=held))
            elif tail is None:
                more |= _stored(step, operands, len(stages), stores, forms)
            else:
                tail = _in_layout(tail, step.given)
                more |= _of_quantized(step, operands, tail, forms)
        return FusedComputation(x, format, tuple(stages), tuple(rounds), tuple(stores), tuple(forms), tail, **more)


# ---- outputs -----------------------------------------------------------------------------------------------------------


def _slots(step: ComposedStep, operands: StepOperands) -> dict[str, Any]:
    """Return the slots in which rows lie, where the store has some."""
    if step.given["at"] is None:
        return {}
    slots = np.asarray(operands.given(step.given["at"]))
    if slots.shape != operands.shape[:1] or slots.dtype.kind not in "iu" or not step.given["into"]:
        what = f"at= holds {slots.dtype} of shape {slots.shape}"
        raise RefsimError("bad-shape", what, "store(...)", f"a slot for each of {operands.shape[0]} rows, and into=")
    return {"slots": slots.astype(np.int64), "page": step.given["page"]}


def _into(step: ComposedStep, operands: StepOperands, number: int) -> NDArray[Any] | None:
    """Return what the cache of an output held before, (slots, columns)."""
    if number >= len(step.given["into"]):
        return None
    before = np.asarray(operands.given(step.given["into"][number]))
    return before.reshape(-1, before.shape[-1]).view(f"u{before.dtype.itemsize}")


def _stored(
    step: ComposedStep, operands: StepOperands, position: int, stores: list[StoredValues], forms: list[WrittenForm]
) -> dict[str, Any]:
    """Add the output of values that are stored after some steps."""
    (name, *_), row = step.given["outputs"], step.given["format"]
    row = operands.format if row is None else row
    stores.append(StoredValues(name, position, operands.shape, row))
    before = _into(step, operands, 0)
    shape = operands.shape if before is None else (len(before), operands.shape[1])
    forms.append(WrittenForm(name, shape, row.code_dtype, before=before, is_turned=step.given["turned"]))
    return _slots(step, operands)


def _of_quantized(
    step: ComposedStep, operands: StepOperands, tail: QuantizedTensor, forms: list[WrittenForm]
) -> dict[str, Any]:
    """Add the outputs of the quantizer: codes, and scales where they are stored."""
    nibbles = step.given["nibbles"] if tail.format.code_bits <= 4 else ""
    for number, name in enumerate(step.given["outputs"]):
        before = _into(step, operands, number)
        if number == 0:
            shape: tuple[int, ...] = (operands.shape[0], tail.columns)
            dtype = tail.format.code_dtype
        else:
            is_grid = tail.store is BY_ROWS
            shape, dtype = tail.grid if is_grid else (tail.scales_size,), tail.rules[0].stored_as.code_dtype
        shape = shape if before is None else (len(before), *shape[1:])
        is_turned = step.given["turned"] and len(shape) > 1
        if number == 0 and nibbles and (count := shape[0 if is_turned else 1]) % 2:
            what = f"output {name} has {count} codes of 4 bits in a row"
            rule = f"two codes share a byte: an even number of {'rows of x where it is transposed' if is_turned else 'columns'}"
            raise RefsimError("bad-shape", what, "store(...)", rule, "pad x, or draw even sizes")
        forms.append(WrittenForm(name, shape, dtype, nibbles if number == 0 else "", before, is_turned))
    return _slots(step, operands)


def _in_layout(tail: QuantizedTensor, given: dict[str, Any]) -> QuantizedTensor:
    """Return the quantizer with its outputs: codes alone, or codes and scales in a layout."""
    codes = int(np.prod(tail.shape))
    if len(given["outputs"]) == 1:
        return tail
    stores = {row.name.removeprefix("as "): row for row in scale_stores()}
    store = BY_ROWS if given["layout"] is None else named("scale layout", given["layout"], stores)
    size = store.places(tail.grid)[1]
    return replace(tail, which=QuantizerOutput.BOTH, store=store, scales_size=size, shape=(codes + size,))


# ---- the catalogue -----------------------------------------------------------------------------------------------------


def fused(*steps: ComposedStep) -> Composition:
    """Return the computation of a fused kernel as a function of the test case, for `Kernel(computes=...)`.

    The first step is `load`, the last is `store`. Values are float32 between steps unless `rounded` follows a step.
    `load`, norms, `rope` and sums take rows of x; every output has the rows of x. fused(load("x"), rms_norm("w"),
    store("y", "bf16")).steps[0].kind is "load". Raises RefsimError bad-kernel for steps in another order, and when it
    is called for operands that do not fit. Source: defined here; every way cites its own.
    """
    return Composition(steps)


def load(x: Operand, format: str | None = None, *, nibbles: str | None = None) -> ComposedStep:
    """Return the step that reads x (rows, columns), by name: bf16, f16 or f32 codes, or values with their dtype.

    `format` names the format of codes, also "int8" and "int4"; the default is bf16, or f32 for codes of 32 bits. With
    `nibbles`, x (rows, columns / 2) are bytes of two e2m1 or int4 codes, the even column in the "low" or "high" half.
    load("x").kind is "load". Raises RefsimError unknown-format. Source: PTX ISA, ld.
    """
    row = None if format is None else _format(format, WHOLE_NIBBLE)
    if nibbles is not None:
        named("order of nibbles", nibbles, NIBBLES)
        if row is None or row.bits != 4:
            rule = "codes of 4 bits share a byte: e2m1, int4"
            help = 'load("x", "e2m1", nibbles="low")'
            raise RefsimError("bad-kernel", f"nibbles={nibbles!r} with format={format!r}", "load(...)", rule, help)
    return ComposedStep(LOAD, _nothing, (), {"x": x, "format": row, "nibbles": nibbles})


def _nothing(operands: StepOperands) -> None:
    return None


def rounded(format: str) -> ComposedStep:
    """Return the step that rounds the result of the step before to a format, as a store and a load do: "bf16", "f16".

    rounded("bf16").kind is "rounded". Raises RefsimError unknown-format. Source: IEEE 754, section 4.3.
    """
    return ComposedStep(ROUNDED, _nothing, (), {"format": format_named(format)})


def _row_function(subject: Any, how: How, order: Order | None, number: float, **operands: Any) -> ComposedStep:
    """Return the step of a function of rows with its operands by name; `number` is its epsilon or scale."""
    centres = {"centres": True} if operands.pop("centres", False) else {}

    def made(given: StepOperands) -> RowFunction:
        more = {name: given.columns(each) for name, each in operands.items() if name != "gate"}
        if operands.get("gate") is not None:
            more["gate"] = np.broadcast_to(given.spread(operands["gate"], given.shape), given.shape)
        x = np.zeros(given.shape, np.float32)
        found: RowFunction = subject(x, given.format, given.format, number, **more, **centres)
        if order is not None:
            vars(found)["usual"] = found.usual.but(order=order)
        return found

    return ComposedStep(STAGE, made, how, {"function": subject.__name__, "number": number, **operands, **centres})


def rms_norm(
    weight: Operand | None = None, eps: float = 1e-6, *, order: Order | None = None, how: How = ()
) -> ComposedStep:
    """Return the step x / sqrt(mean(x^2) + eps) * weight over each row; `weight` (columns).

    Squares are added in the order of refsim's own row functions unless `order` (a `RowOrder`) is given: thread t of 128
    adds columns t, t + 128 and so on by fma, lanes meet at distances 16 to 1, then warps ascend. The mean is by
    div.full, the root is rsqrt.approx, y = fl(fl(x * r) * w); `how` names other ways. rms_norm("w").kind is "stage".
    Raises RefsimError when it is called, for weights of another shape. Source: PyTorch, nn.RMSNorm; PTX ISA, rsqrt.
    """
    return _row_function(Norm, how, order, eps, w=weight)


def layer_norm(
    weight: Operand | None = None,
    bias: Operand | None = None,
    eps: float = 1e-5,
    *,
    order: Order | None = None,
    how: How = (),
) -> ComposedStep:
    """Return the step (x - mean) / sqrt(variance + eps) * weight + bias over each row; the sums are as of `rms_norm`.

    layer_norm("w", "b").kind is "stage". Raises RefsimError when it is called, for weights of another shape. Source:
    PyTorch, nn.LayerNorm.
    """
    return _row_function(Norm, how, order, eps, w=weight, bias=bias, centres=True)


def softmax(scale: float = 1.0, *, order: Order | None = None, how: How = ()) -> ComposedStep:
    """Return the step e^(scale (x - max)) over its sum, for each row; the sum is in the order of `rms_norm`.

    The exponent of 2 is fma(x, s, -fl(max s)), s = fl(scale log2(e)), as refsim's own kernel, unless `how` says another.
    softmax().kind is "stage". Raises RefsimError when it is called, for a text of `how` that names no way. Source:
    PyTorch, nn.functional.softmax; PTX ISA, ex2.
    """
    return _row_function(Softmax, how, order, scale)


def silu(*, how: How = ()) -> ComposedStep:
    """Return the step x / (1 + e^-x): ex2.approx of x * -log2(e), and div.full, as refsim's own row functions.

    silu().kind is "stage". Raises RefsimError when it is called, for a text of `how` that names no way. Source: PyTorch,
    nn.functional.silu.
    """
    return _row_function(Silu, how, None, 0.0)


def silu_mul(up: Operand, *, how: How = ()) -> ComposedStep:
    """Return the step silu(x) * up, the gated activation; `up` has the shape of x.

    silu_mul("up").kind is "stage". Raises RefsimError when it is called, for an operand of another shape. Source:
    PyTorch, nn.functional.silu.
    """
    return _row_function(
        Silu, ("silu is of x, not of the gate", *([how] if isinstance(how, str) else how)), None, 0.0, gate=up
    )


def gelu(approximate: str = "none", *, how: How = ()) -> ComposedStep:
    """Return the step x / 2 * (1 + erf(x / sqrt 2)), or with `approximate` "tanh" its approximation by tanh.

    erff and tanhf are those of CUDA; tanh is of b * fma(k, x^3, x). `how` names other ways. gelu("tanh").kind is
    "stage". Raises RefsimError for another name. Source: PyTorch, nn.functional.gelu; CUDA C++ Programming Guide.
    """
    named("approximation of GELU", approximate, elementwise.APPROXIMATIONS)
    made = lambda given: elementwise.Gelu(given.shape, approximate)  # noqa: E731
    return ComposedStep(STAGE, made, how, {"function": "gelu", "approximate": approximate})


def _elementwise(kind: str, by: Operand, how: How) -> ComposedStep:
    def made(given: StepOperands) -> FusedStage:
        return elementwise.Elementwise(
            given.shape, kind, by if isinstance(by, str) else "operand", given.spread(by, given.shape)
        )

    return ComposedStep(STAGE, made, how, {"function": kind, "by": by})


def add(other: Operand, *, how: How = ()) -> ComposedStep:
    """Return the step x + other in float32, as of a residual or a bias; `other` spreads over (rows, columns).

    add("residual").kind is "stage". Raises RefsimError bad-shape when it is called. Source: PTX ISA, add.
    """
    return _elementwise(elementwise.ADD, other, how)


def multiply(by: Operand, *, how: How = ()) -> ComposedStep:
    """Return the step x * by in float32, as of a scale; `by` spreads over (rows, columns).

    multiply(0.5).kind is "stage". Raises RefsimError bad-shape when it is called. Source: PTX ISA, mul.
    """
    return _elementwise(elementwise.MULTIPLY, by, how)


def divide(by: Operand, *, how: How = ()) -> ComposedStep:
    """Return the step x / by, a quotient that is rounded once, as of a scale; `how` names other divisions.

    divide("scale").kind is "stage". Raises RefsimError bad-shape when it is called. Source: PTX ISA, div.rn.
    """
    return _elementwise(elementwise.DIVIDE, by, how)


def rope(cos: Operand, sin: Operand, head: int, *, pairs: bool = False, how: How = ()) -> ComposedStep:
    """Return the step that rotates each head of `head` columns by its position: x cos - y sin, y cos + x sin.

    `cos` and `sin` (rows, at most head / 2) turn element i with element i + width, or with `pairs` elements 2i and
    2i + 1; further columns of a head stay. Both products are rounded before they are added, unless `how` names an fma.
    rope("cos", "sin", 64).kind is "stage". Raises RefsimError bad-shape when it is called. Source: vLLM,
    csrc/pos_encoding_kernels.cu.
    """

    def made(given: StepOperands) -> FusedStage:
        tables = [given.values(each)[0] for each in (cos, sin)]
        is_even = given.shape[1] % head == 0
        if not is_even or any(
            each.ndim != 2 or len(each) != given.shape[0] or 2 * each.shape[1] > head for each in tables
        ):
            what = f"cos and sin have shapes {tables[0].shape} and {tables[1].shape}, x has {given.shape}"
            raise RefsimError("bad-shape", what, "rope(...)", f"(rows, at most {head // 2}), heads of {head} columns")
        return elementwise.Rope(given.shape, tables[0], tables[1], head, pairs)

    return ComposedStep(STAGE, made, how, {"function": "rope", "cos": cos, "sin": sin, "head": head, "pairs": pairs})


def quantize(
    to: str,
    *,
    per: str | int | tuple[int, int] = ROW,
    scale: str = "f32",
    quotient: str = "reciprocal",
    nan: str | None = None,
    recipe: str | None = None,
    eps: float | None = None,
    tensor_scale: Operand | None = None,
    how: How = (),
) -> ComposedStep:
    """Return the step that quantizes values: to a block format (mxfp8, mxfp4, nvfp4), or e4m3 or e5m2 with scales.

    FP8: one scale `per` "tensor", "row", N columns of a row, or block (rows, columns). `scale`, `quotient`, `nan`
    ("spreads" by default) and `eps` are those of `refsim.scaling.quantize`; `quotient` may also be "largest" (x *
    fl(MAX / amax)) or "approximate" (rcp.approx.ftz). A scale of the tensor ignores NaN, its eps is 1e-12. Block
    formats: `recipe` is a rule of `refsim.quantize`, `tensor_scale` the given factor of NVFP4.
    quantize("nvfp4").kind is "quantize". Raises RefsimError for unknown names. Source: DeepGEMM,
    per_token_cast_to_fp8; the recipe's entry.
    """
    is_block = to in {name for row in BLOCK_FORMATS for name in (row.name, *row.aliases)}
    if not is_block:
        if per == ONE_SCALE and nan is not None:
            rule = "a NaN has no part in the scale of a tensor"
            raise RefsimError("bad-kernel", f'nan={nan!r} with per="tensor"', "quantize(...)", rule, "leave out nan=")
        _format(to)
        scale_kind(scale)
        named("quotient", quotient, QUOTIENT_WORDS)

    def made(given: StepOperands) -> QuantizedTensor:
        """Return the quantizer of values of a shape, for its codes alone."""
        x = np.zeros(given.shape, np.float32)
        variants: tuple[Cause, ...] = ()
        if is_block:
            x = np.pad(x, ((0, 0), (0, -x.shape[1] % block_format(to).width)))
            factor = None if tensor_scale is None else tensor_factor(given.given(tensor_scale), block_format(to))
            rules = tuple(quantising.settled(row, eps, factor) for row in quantising.block_rules(to, recipe))
            variants = quantising.block_causes(to, recipe, eps, factor)
        else:
            group = (1, given.shape[1]) if per == ROW else (1, per) if isinstance(per, int) else per
            chosen_rules = quantising.fp8_rules(given.shape, _format(to), group, scale, quotient, nan or "spreads")
            rules = tuple(quantising.settled(row, eps, None) for row in chosen_rules)
        form = rules[0].element.to
        return QuantizedTensor(
            x, given.format, rules, QuantizerOutput.CODES, given.shape, form, form, BY_ROWS, 0, given.shape[1], variants
        )

    said = {"to": to, "per": per, "scale": scale, "quotient": quotient, "nan": nan, "recipe": recipe, "eps": eps}
    return ComposedStep(QUANTIZE, made, how, {**said, "is_block": is_block, "tensor_scale": tensor_scale})


def store(
    output: str,
    format: str | None = None,
    *,
    scales: str | None = None,
    layout: str | None = None,
    nibbles: str = "low",
    transposed: bool = False,
    at: Operand | None = None,
    into: Operand | Sequence[Operand] = (),
    page: int = 0,
) -> ComposedStep:
    """Return the step that writes an output (rows, columns); after `quantize` its codes, and the output `scales`.

    `format`: of values that were not quantized; they are rounded to nearest even, FP8 saturates. `layout`: of scales, a
    name of `layouts.scale_layout` such as nvidia_128x4, a buffer with zeros in its pads; otherwise (rows, blocks). Two
    4-bit codes share a byte, the even column in its low half ("low") or "high". `at` names the slot of each row in a
    cache, -1 for no slot; `into` names what each cache held before, (slots, columns); `page` is the slots of a page.
    `transposed`: values or codes are an output (columns, rows), and scales without a layout (blocks, rows).
    store("y", "bf16").kind is "store". Raises RefsimError for unknown names, and when it is called for slots that do
    not fit. Source: PTX ISA, st; vLLM, csrc/cache_kernels.cu.
    """
    named("order of nibbles", nibbles, NIBBLES)
    caches = tuple(into) if isinstance(into, list | tuple) else (into,)
    given: dict[str, Any] = {"format": None if format is None else _format(format), "turned": transposed}
    given |= {"outputs": (output,) if scales is None else (output, scales), "layout": layout}
    return ComposedStep(STORE, _nothing, (), {**given, "nibbles": nibbles, "at": at, "into": caches, "page": page})
