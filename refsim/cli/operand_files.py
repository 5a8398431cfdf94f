"""Operands of `refsim explain-diff`: the options that name them, and the operand classes that their files fill."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import numpy as np

from refsim import unpack
from refsim.cli.arguments import ARRAY_SUFFIXES, load_codes, load_named, names_array
from refsim.cli.extents import Whole
from refsim.cli.names import SCALES_OR_WEIGHTS, UNIT
from refsim.cli.options import Options, option
from refsim.cli.product_options import Types
from refsim.conversions import decode
from refsim.errors import RefsimError
from refsim.files import Stored
from refsim.formats import (
    ARRAY_TYPES,
    E4M3,
    F32,
    S32,
    ElementType,
    Format,
    Integer,
    element_named,
    float_named,
    format_named,
)

Given = dict[str, Any]
"""The options of one command line, by name."""
OPERAND = Types("operand type", "refsim.cli.products:explained_types", metavar="FORMAT")
FUNCTIONS = ("softmax", "rms_norm", "layer_norm", "silu")


class InstructionOrKeys(Whole):
    """The file of the keys, or a number: K of one instruction, which --instruction-k gives too."""

    def _describe_range(self) -> str:
        return ""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a Path for a name with the suffix of an array, else the number."""
        return Path(value) if names_array(str(value)) else super().convert(value, param, ctx)


class ProductFiles(Options):
    """The operands of a product, and the instruction of its usual result."""

    heading = "Product D = A B^T"
    a: Path | None = option("Operand A, M x K; or batches of them.")
    b: Path | None = option("Operand B, N x K; or one for each batch or expert.")
    c: Path | None = option("Operand C, f32, M x N.")
    a_format: str | None = option("Type of A, if its file does not name it.", type=OPERAND)
    b_format: str | None = option("Type of B (default: that of A).", type=OPERAND)
    unit: str | None = option("Unit of the usual result: wgmma, mma.sync, tcgen05.f16, ...", type=UNIT)
    instruction_k: int | None = option("K of one instruction of the usual result.", type=Whole(min=1))
    interval: int | None = option("Columns of K after which sums are added in float32 (0: never).", type=Whole(min=0))
    m_indices: Path | None = option("Expert of each row of A, int32; -1 is none.")


class ProductScales(Options):
    """The scales of a product."""

    heading = "Scaled product"
    a_scale: str | None = option("Scales of A: a number, or one for each row or block of K.", metavar="VALUE|FILE")
    b_scale: str | None = option(
        "As --a-scale; or shape (N/128, blocks): one scale per 128 rows.", metavar="VALUE|FILE"
    )
    scale_format: str | None = option("Type of scales for blocks of K: e8m0 or ue4m3.", metavar="FORMAT")
    global_scale: float | None = option("Factor of D for NVFP4; needs --scale-format.", metavar="NUMBER", type=float)


class ZeroPoints(Options):
    """What a product of integers has in addition."""

    heading = "Integer product"
    a_zero: str | None = option("Zero points of A, integers: a number, or one for each row.", metavar="VALUE|FILE")
    b_zero: str | None = option("Zero points of B, likewise.", metavar="VALUE|FILE")
    d_zero: int | None = option("Zero point of an output in s8 or u8.", metavar="VALUE", type=int)
    d_format: str | None = option(
        "Integer type of the output, if not in its file.", type=click.Choice(["s32", "s8", "u8"])
    )


class NarrowedFiles(Options):
    """Values before they were rounded or quantized, with the scales beside the outputs."""

    heading = "Rounded or quantized values"
    values: Path | None = option("Values before rounding, f32.")
    quantized: Path | None = option("Tensor before quantization: bf16, f16 or f32.")
    to: str | None = option("Blocks of --quantized: mxfp8, nvfp4, 1x128, tensor, ...", metavar="BLOCKS")
    recipe: str | None = option("Recipe of the usual result.")
    scales: Path | None = option("Scales of the codes in A, or of --values.")
    want_scales: Path | None = option("Scales of the codes in B.")
    layout: Any = option(
        "Layout of the scales, such as nvidia_128x4 (default: by shape); or of a checkpoint's weights.",
        type=SCALES_OR_WEIGHTS,
        metavar="NAME",
    )


class RowFiles(Options):
    """The operands of a function of rows."""

    heading = "Function of rows"
    function: str | None = option(f"{', '.join(FUNCTIONS)}.", "--row", metavar="FUNCTION", type=click.Choice(FUNCTIONS))
    x: Path | None = option("Input of the function: (..., columns), bf16, f16 or f32.")
    weight: Path | None = option("Weights of the columns of a norm.")
    bias: Path | None = option("Bias of the columns of layer_norm.")
    gate: Path | None = option("Gate with the shape of x; the result is multiplied by silu(gate).")
    eps: float | None = option("Epsilon of a norm (default: 1e-6).", metavar="NUMBER", type=float)


class AttentionFiles(Options):
    """The operands of attention."""

    heading = "Attention"
    attention: bool = option("A is the output of attention, or its logarithms of sums.")
    q: Path | None = option("Q: (heads, Lq, D) or (Lq, D), bf16, f16 or e4m3.")
    k: Any = option("K: (kv heads, Lk, D).", metavar="FILE", type=InstructionOrKeys(min=1))
    v: Path | None = option("V: (kv heads, Lk, D), as for --k.")
    causal: bool = option("Causal mask: the last row sees all keys, earlier rows fewer.")
    window: int | None = option("Keys up to its own that a row sees (default: all).", type=Whole(min=1))
    sinks: str | None = option("Extra score of a row: a number, or one for each head.", metavar="VALUE|FILE")
    softcap: float | None = option("Bound c of scores: c tanh(s / c).", metavar="NUMBER", type=float)
    q_scale: Path | None = option("Scale for each head of Q in e4m3.")
    k_scale: Path | None = option("Scale for each head of K in e4m3.")
    v_scale: Path | None = option("Scale for each head of V in e4m3.")


class FunctionOptions(Options):
    """What functions of rows, attention and quantizers share."""

    heading = "Function of rows, attention or quantizer"
    operand_format: str | None = option("Format of these files, if they do not name it.", metavar="FORMAT")
    scale: float | None = option("Factor of the exponent (default: 1 or 1 / sqrt(D)).", metavar="NUMBER", type=float)
    special: str | None = option("Arithmetic of powers, roots and quotients.", type=click.Choice(["approx", "exact"]))


def product(given: Given) -> Given:
    """Return the operands of a product by their types: integers, narrow weights or floats."""
    from refsim.causes import IntegerOperands, ProductOperands

    if isinstance(given.get("k"), Path):
        raise RefsimError("usage", "--k without --attention", help="give --attention too")
    if not given.keys() >= {"a", "b"}:
        raise RefsimError("usage", "a product has two operands, and one is given", help="give --a FILE and --b FILE")
    scaled = {name: _scale(given, name) for name in ("a_scale", "b_scale") if name in given}
    types = integer_types(given)
    if types is not None:
        own: Given = {f"{name}_format": row for name, row in zip("ab", types, strict=True)}
        own |= {name: integer_words(given[name], row) for name, row in zip("ab", types, strict=True)}
        own |= {"c": integer_words(given["c"], S32).view(np.int32)} if "c" in given else {}
        own |= {name: _zero_points(given, name, row) for name, row in zip(("a_zero", "b_zero"), types, strict=True)}
        return {"operands": _filled(IntegerOperands, given, **scaled, **own)}
    a, a_format = floats(given["a"], float_named(given["a_format"]) if "a_format" in given else None)
    more: Given = scaled | {"a": a, "a_format": a_format, "k": given.get("k") or given.get("instruction_k")}
    more |= {"c": numbers(given["c"])} if "c" in given else {}
    if (weights := _weights(given, a_format, more)) is not None:
        return {"operands": weights}
    if "b_zero" in given:
        raise RefsimError("usage", "--b-zero of no integers", help="give --a-format s8 or u8, or --b-format, too")
    named = given.get("b_format") or given.get("a_format")
    more["b"], more["b_format"] = floats(given["b"], None if named is None else float_named(named))
    more |= {"m_indices": _indices(given["m_indices"])} if "m_indices" in given else {}
    return {"operands": _filled(ProductOperands, given, **more)}


def row_function(given: Given) -> Given:
    """Return the operands of a function of rows."""
    from refsim.causes import RowOperands

    if "x" not in given:
        raise RefsimError("usage", f"{given['function']} of nothing", help="give --x FILE too")
    named = given.get("operand_format")
    x = operand_codes(given["x"], named)
    beside = {name: _values(given[name], named) for name in ("weight", "bias", "gate") if name in given}
    return {"operands": _filled(RowOperands, given, x=x.codes, x_format=str(x.format), **beside)}


def attention(given: Given) -> Given:
    """Return the operands of attention: Q, K and V from files of one format, with their scales and masks."""
    from refsim.causes import AttentionOperands

    missing = [name for name in "qkv" if not isinstance(given.get(name), Path)]
    if missing:
        raise RefsimError("usage", f"attention without --{missing[0]}", help="give --q FILE, --k FILE and --v FILE")
    files = {name: operand_codes(given[name], given.get("operand_format")) for name in "qkv"}
    formats = {str(stored.format) for stored in files.values()}
    if len(formats) > 1:
        raise RefsimError("format-mismatch", f"Q, K and V hold {', '.join(sorted(formats))}", rule="one format")
    read: Given = {name: stored.codes for name, stored in files.items()}
    read |= {name: _values(given[name], None) for name in ("q_scale", "k_scale", "v_scale") if name in given}
    if "sinks" in given:
        word = given["sinks"]
        read["sinks"] = _values(Path(word), None) if names_array(word) else _scale(given, "sinks")
    return {"operands": _filled(AttentionOperands, given, format=formats.pop(), **read)}


def rounded_values(given: Given) -> Given:
    """Return the values before rounding, and the scales that multiplied them."""
    return {name: numbers(given[name]) for name in ("values", "scales") if name in given}


def quantiser(given: Given) -> Given:
    """Return the input of a quantizer and the scales of its codes. Raises RefsimError without a block format."""
    from refsim.causes import QuantizedFrom

    if "to" not in given:
        raise RefsimError("usage", "--quantized without a block format", help="give --to mxfp8, or --to 1x128")
    x = operand_codes(given["quantized"], given.get("operand_format"))
    read: Given = {"layout": given["layout"].name} if "layout" in given else {}
    for name in ("scales", "want_scales"):
        if name in given:
            codes_of_scales = QuantizedFrom(x=[], to=given["to"]).codes_of_scales
            stored = load_named(given[name]) or load_codes(given[name], codes_of_scales)
            read[name] = stored.codes.view(np.float32) if stored.format is F32 else stored.codes
    return {"quantized": _filled(QuantizedFrom, given, x=x.codes, x_format=x.format, **read)}


def _filled(kind: Any, given: Given, **read: Any) -> Any:
    """Return operands: what was read from files, and other options with the name of a field as they are given."""
    return kind(**({each.name: given[each.name] for each in fields(kind) if each.name in given} | read))


def _weights(given: Given, a_format: Format, more: Given) -> Any:
    """Return the operands of a product with narrow weights: A in 16 bits, B in 8 or 4. Return None for other widths."""
    from refsim.causes import WeightOperands

    stored = None if "b_format" in given else load_named(given["b"])
    held = given.get("b_format") if stored is None else stored.format
    row = None if held is None else element_named(held)
    if row is None or row.bits > 8 or a_format.bits != 16:
        return None
    for name in ("a_scale", "global_scale", "m_indices"):
        if name in given:
            raise RefsimError("usage", f"--{name.replace('_', '-')} with narrow weights", rule="--b-scale and --b-zero")
    if "b_scale" not in given:
        raise RefsimError("usage", "narrow weights without scales", help="give --b-scale too")
    if isinstance(row, Integer):
        more = more | {"b": integer_words(given["b"], row), "b_zero": _zero_points(given, "b_zero", row)}
    elif "b_zero" in given:
        raise RefsimError("usage", f"zero points of {row}", help="integers have some")
    else:
        more = more | {"b": load_codes(given["b"], row).codes}
    return _filled(WeightOperands, given, **more, b_format=row)


def integer_types(given: Given) -> tuple[Integer, Integer] | None:
    """Return the types of both operands, or None unless both are integers."""

    if "a_format" not in given:
        return None
    types = element_named(given["a_format"]), element_named(given.get("b_format") or given["a_format"])
    return types if isinstance(types[0], Integer) and isinstance(types[1], Integer) else None  # type: ignore[return-value]


def integer_words(path: Path, row: Integer, key: str | None = None) -> Any:
    """Return the integers of a file as unsigned codes. A byte with two 4-bit codes gives two, the lower half first."""
    from refsim.causes.operands import codes_or_extended

    codes = load_codes(path, F32 if row.code_dtype.itemsize == 4 else E4M3, key).codes
    limit = row.code_limit
    if row.code_dtype.itemsize > 1 or limit > 255 or not codes.size:
        return codes
    if codes_or_extended(codes, row).all():
        return codes % limit
    return np.stack([codes % limit, codes // limit], axis=-1).reshape(*codes.shape[:-1], -1)


def integer_output(path: Path, operand: Integer, d_format: str | None, key: str | None) -> tuple[Any, ElementType]:
    """Return the codes and type of an output: the file's type, else s32 or the type of A by element width."""

    if d_format is not None:
        row = element_named(d_format)
        return integer_words(path, row, key), row  # type: ignore[arg-type]
    if (stored := load_named(path, key)) is not None:
        return stored.codes, stored.format
    try:
        return integer_words(path, S32, key), S32
    except RefsimError as error:
        if error.code != "format-mismatch":
            raise
    return integer_words(path, operand, key), operand


def _zero_points(given: Given, name: str, row: Integer) -> Any:
    """Return zero points: an integer, or the array of a file in int32, f32 or the operand's own type."""
    from refsim.computations.integer_products import values_of

    word = given.get(name, "0")
    if not names_array(word):
        try:
            return int(word)
        except ValueError:
            where = f"--{name.replace('_', '-')}"
            raise RefsimError("bad-value", f"{word!r} is not an integer", where, help="an integer or a file") from None
    codes, held = integer_output(Path(word), row, None, None)
    return codes.view(np.float32) if held is F32 else values_of(codes, S32 if held is S32 else row)


def _scale(given: Given, name: str) -> Any:
    """Return a scale of the command line: codes or float32 values of a file, or one float32 number."""
    word, kind = given[name], given.get("scale_format")
    if kind is not None and names_array(word):
        return floats(Path(word), format_named(kind))[0]
    if names_array(word):
        return numbers(Path(word))
    try:
        with np.errstate(over="raise"):
            return np.float32(float(word))
    except (ValueError, FloatingPointError):
        what, where = f"{word!r} is not a number of f32", f"--{name.replace('_', '-')}"
        raise RefsimError("bad-value", what, where, help="a number, or a file of f32") from None


def _indices(path: Path) -> Any:
    """Return the integers of a file as int32."""

    try:
        stored = load_named(path) or load_codes(path, S32)
        if isinstance(stored.format, Integer):
            return stored.typed().astype(np.int32)
        raise RefsimError("format-mismatch", f"{path} holds {stored.format}")
    except RefsimError as error:
        if error.code != "no-such-file":
            error.help = "give an array of int32: one index for each row of A"
        raise


def operand_codes(path: Path, named: str | None) -> Stored:
    """Return the codes of an operand. `named` is the format of a file that does not store its format."""

    row = None if named is None else format_named(named)
    try:
        return load_codes(path, None, option="--operand-format FORMAT")
    except RefsimError as error:
        if error.code != "format-needed" or row is None:
            raise
    return load_codes(path, row, None)


def _values(path: Path, named: str | None) -> Any:
    """Return the values of a file in float32."""

    stored = operand_codes(path, named)
    return np.asarray(decode(stored.codes, float_named(stored.format)), np.float32)


def numbers(path: Path) -> Any:
    """Return the numbers of a file in float32 or float64. Scales may be codes of E8M0."""

    stored = load_codes(path, None, None)
    format = float_named(stored.format)
    return stored.codes if format.array_dtype is None else stored.codes.view(format.array_dtype)


def floats(path: Path, row: Format | None) -> tuple[Any, Format]:
    """Return floating-point codes and their format."""

    codes, format = stored_codes(path, row, None)
    if format in ARRAY_TYPES:
        what = f"{path} holds {format}, which is no format of floating-point codes"
        raise RefsimError("format-needed", what, help=f"--a-format {format} or --b-format says what is meant")
    return codes, format


def stored_codes(path: Path, row: Format | None, key: str | None) -> tuple[Any, Any]:
    """Return the codes of a file and their format; bytes above four bits are two codes of four bits."""
    if not names_array(str(path)):
        known = f"suffixes: {', '.join(ARRAY_SUFFIXES)}"
        raise RefsimError("unknown-suffix", f"the suffix {path.suffix!r} chooses no container", str(path), help=known)
    try:
        stored = load_codes(path, row, key)
    except RefsimError as error:
        if row is None or error.code != "out-of-range" or row.bits != 4:
            raise

        # A byte above 0xf is no code of four bits, but two; any byte is a code of E4M3.
        return unpack(load_codes(path, E4M3, key).codes, row), row
    return stored.codes, stored.format


def output_codes(path: Path, row: Format | None, key: str | None, alone: bool) -> tuple[Any, ElementType]:
    """Return codes and format of an output; with operands, integers and float64 are float32 where that is exact."""

    codes, format = stored_codes(path, row, key)
    if format not in ARRAY_TYPES or (alone and format.is_integer):
        return codes, format
    values = codes.view(format.array_dtype)
    floats = values.astype(np.float32)
    if not np.array_equal(floats.astype(np.float64), values.astype(np.float64)):
        what = f"the {format} of {path} are no numbers of float32"
        raise RefsimError("unsupported-format", what, help="refsim diff compares them; --a and --b explain integers")
    return floats.view(np.uint32), F32
