"""refsim explain-diff: search for the causes that reproduce every bit of a difference."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from click.core import ParameterSource

from refsim.cli.arguments import (
    ARRAY_SUFFIXES,
    file_option,
    format_option,
    kernels_option,
    load_codes,
    load_named,
    names_array,
)
from refsim.cli.delivery import AGREED, FAILED, Answer, answers
from refsim.cli.extents import Whole
from refsim.cli.function_operands import (
    ATTENTION_OPTIONS,
    ROW_OPTIONS,
    SCALED_OPTIONS,
    InstructionOrKeys,
    function_operands,
    function_options,
    quantiser_operands,
)
from refsim.cli.integer_operands import (
    ZERO_OPTIONS,
    integer_operands,
    integer_options,
    integer_output,
    integer_types,
    weight_operands,
)
from refsim.cli.names import SCALES_OR_WEIGHTS, TARGET, UNIT
from refsim.cli.product_options import ElementParam, Types
from refsim.cli.progress import reporting, tell
from refsim.cli.registry import Sectioned
from refsim.errors import Kind, RefsimError
from refsim.render import Bits, Cell, Column, Document, Table, Wording, number

if TYPE_CHECKING:
    from refsim.causes import DiffExplanation, IntegerOperands, ProductOperands, WeightOperands
    from refsim.formats import ElementType, Format

OF_EVERY_ANSWER = frozenset({"form", "output", "citations", "first", "second", "seconds"})
OF_FILES = OF_EVERY_ANSWER | {"row", "keys"}
_OF_PRODUCTS = OF_FILES | {"left", "right", "begin", "a_scale", "b_scale", "a_format", "b_format"}
_OF_FLOATS = _OF_PRODUCTS | {"unit", "target"}


@dataclass(frozen=True)
class Inquiry:
    """A question, the option that asks it, and every parameter that has a meaning in it."""

    name: str
    said_by: str
    options: frozenset[str]


CASE = Inquiry("a case", "CASE", OF_EVERY_ANSWER | {"trust"})
KERNEL = Inquiry("a kernel and its case", "KERNEL CASE", OF_EVERY_ANSWER | {"files"})
OUTPUTS = Inquiry("outputs alone", "A B", OF_FILES)
PRODUCT = Inquiry("a product", "--a and --b", _OF_FLOATS | {"k", "instruction_k", "interval", "at", "b_zero"})
EXPERTS = Inquiry("rows of experts", "--m-indices", _OF_FLOATS | {"m_indices", "k", "instruction_k", "interval", "at"})
BLOCKS = Inquiry("a block-scaled product", "--scale-format", _OF_FLOATS | {"scale_format", "global_scale"})
OF_INTEGERS = Inquiry(
    "a product of integers", "--a-format s8", _OF_PRODUCTS | {"a_zero", "b_zero", "d_zero", "d_format", "at"}
)
_OF_FUNCTIONS = OF_FILES | {*SCALED_OPTIONS, "operand_format"}
ROW = Inquiry("a function of rows", "--row", _OF_FUNCTIONS | {*ROW_OPTIONS})
ATTENTION = Inquiry("attention", "--attention", _OF_FUNCTIONS | {*ATTENTION_OPTIONS, "k", "unit", "target", "at"})
VALUES = Inquiry("values that were rounded", "--values", OF_FILES | {"values", "scales"})
QUANTISER = Inquiry(
    "a quantizer",
    "--quantized",
    OF_FILES | {"quantized", "block", "scales", "want_scales", "layout", "recipe", "operand_format"},
)
QUESTIONS = (OUTPUTS, PRODUCT, EXPERTS, BLOCKS, OF_INTEGERS, ROW, ATTENTION, VALUES, QUANTISER, CASE, KERNEL)
_SAID_BY = {"attention": ATTENTION, "function": ROW, "quantized": QUANTISER, "values": VALUES}


def asked_of_files(given: Mapping[str, Any]) -> Inquiry:
    """Return the question that the given options about files ask."""
    for name, question in _SAID_BY.items():
        if name in given:
            return question
    if "left" not in given and "right" not in given:
        return OUTPUTS
    if integer_types(given.get("a_format"), given.get("b_format")) is not None:
        return OF_INTEGERS
    return EXPERTS if "m_indices" in given else BLOCKS if "scale_format" in given else PRODUCT


def refuse_strangers(*, of_files: bool) -> None:
    """Raise RefsimError for the first given option that does not belong to the question of this call."""
    context = click.get_current_context()
    given = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
        and (name != "layout" or value is not None)  # None is a layout of checkpoints, for files of any question
    }
    kernel = CASE if given.get("second") is None else KERNEL
    question = asked_of_files(given) if of_files else kernel
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in given and name not in question.options:
            option = max(parameter.opts, key=len)
            homes = ", ".join(f"{each.name} ({each.said_by})" for each in QUESTIONS if name in each.options)
            raise RefsimError("usage", f"{option} with {question.name}", rule=f"it belongs to {homes}")


CASE_SUFFIX = ".json"


class ElementOfBatches(click.ParamType):  # type: ignore[type-arg]
    """ROW,COL of a matrix, or BATCH,ROW,COL."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return (row, column) or (batch, row, column). Raises RefsimError bad-value."""
        batch, comma, rest = str(value).partition(",")
        if not comma or "," not in rest or not batch.strip().isdecimal():
            return ElementParam().convert(value, param, ctx)
        return int(batch), *ElementParam().convert(rest, param, ctx)


ALONE = "give a second one, or --a and --b, --row, --attention, --values or --quantized"
OPTION_SECTIONS = {
    "Common options": ("row", "keys", "target", "at", "seconds"),
    "Product D = A B^T": [
        "left",
        "right",
        "begin",
        "a_format",
        "b_format",
        "unit",
        "instruction_k",
        "interval",
        "m_indices",
    ],
    "Scaled product": ("a_scale", "b_scale", "scale_format", "global_scale"),
    "Integer product": (*ZERO_OPTIONS, "d_format"),
    "Rounded or quantized values": ["values", "quantized", "block", "recipe", "scales", "want_scales", "layout"],
    "Function of rows": ROW_OPTIONS,
    "Attention": ("attention", "q", "k", "v", "causal", "q_scale", "k_scale", "v_scale"),
    "Function of rows, attention or quantizer": ("operand_format", *SCALED_OPTIONS),
    "Kernel and its case": ("files", "trust"),
}
OPERAND = Types("operand type", "refsim.cli.products:explained_types")
STAGES = (
    Column("columns", label="columns of K", align="right", strong=True),
    Column("a", label="sum of A"),
    Column("a_value", label="=", gap=1),
    Column("b", label="sum of B"),
    Column("b_value", label="=", gap=1),
    Column("less", label="A less B", align="right"),
)


@click.command(cls=Sectioned, sections=OPTION_SECTIONS)
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="[B]", required=False, type=click.Path(path_type=Path))
@format_option(required=False)
@click.option(
    "--key", "keys", metavar="NAME", multiple=True, help="Name of the tensor; twice if the name in B differs."
)
@file_option("--a", "left", help="Operand A, M x K; or batches of them.")
@file_option("--b", "right", help="Operand B, N x K; or one for each batch or expert.")
@file_option("--c", "begin", help="Operand C, f32, M x N.")
@click.option("--a-scale", metavar="VALUE|FILE", help="Scales of A: a number, or one for each row or block of K.")
@click.option("--b-scale", metavar="VALUE|FILE", help="As --a-scale; or shape (N/128, blocks): one scale per 128 rows.")
@click.option("--scale-format", metavar="FORMAT", help="Type of scales for blocks of K: e8m0 or ue4m3.")
@click.option("--global-scale", metavar="NUMBER", type=float, help="Factor of D for NVFP4; needs --scale-format.")
@file_option("--m-indices", help="Expert of each row of A, int32; -1 is none.")
@click.option("--a-format", metavar="FORMAT", type=OPERAND, help="Type of A, if its file does not name it.")
@click.option("--b-format", metavar="FORMAT", type=OPERAND, help="Type of B (default: that of A).")
@click.option("--unit", type=UNIT, help="Unit of the usual result: wgmma, mma.sync, tcgen05.f16, ...")
@click.option("--target", default="sm_90a", type=TARGET, help="Architecture.")
@click.option("--instruction-k", type=Whole(min=1), help="K of one instruction of the usual result.")
@click.option("--k", metavar="FILE", type=InstructionOrKeys(min=1), help="K: (kv heads, Lk, D).")
@click.option("--interval", type=Whole(min=0), help="Columns of K after which sums are added in float32 (0: never).")
@file_option("--values", help="Values before rounding, f32.")
@file_option("--quantized", help="Tensor before quantization: bf16, f16 or f32.")
@click.option("--to", "block", metavar="BLOCKS", help="Blocks of --quantized: mxfp8, nvfp4, 1x128, tensor, ...")
@file_option("--scales", help="Scales of the codes in A, or of --values.")
@file_option("--want-scales", help="Scales of the codes in B.")
@click.option(
    "--layout",
    metavar="NAME",
    type=SCALES_OR_WEIGHTS,
    help="Layout of the scales, such as nvidia_128x4 (default: by shape); or of a checkpoint's weights.",
)
@click.option("--recipe", metavar="NAME", help="Recipe of the usual result.")
@integer_options
@function_options
@click.option("--trust", is_flag=True, help="Run the Python file that a case names, wherever the file lies.")
@kernels_option
@click.option("--at", metavar="[BATCH,]ROW,COL", type=ElementOfBatches(), help="Show the partial sums of this element.")
@click.option("--seconds", type=Whole(min=1), default=10, help="Processor time for the search.")
@answers
def command(
    *, first: Path, second: Path | None, files: tuple[Path, ...], trust: bool, seconds: int, **asked: Any
) -> Answer:
    """Find what makes result A differ from result B, or from the usual result of its operands.

    refsim computes the result again under each possible cause: another accumulator, promotion interval, split of K, data
    format, transpose, swizzle, rounding or tail. It names a cause if the cause reproduces every bit. Other causes explain
    some elements, are excluded, or change nothing on this data.

    Options say what kind of result it is: a product D = A B^T (--a, --b), rounded or quantized values (--values,
    --quantized), a function of rows (--row) or attention (--attention). With two files alone, refsim looks for a
    transformation from one to the other. A may also be a case of `refsim verify`, or a kernel with its case as B; refsim
    then runs the kernel on the simulated GPU.

    The exit code is 0 if the results are equal. It is 1 if they differ and the cause is named. It is 5 if they differ and
    no cause reproduces every bit.

    \b
      refsim explain-diff got.npy want.npy -t bf16
      refsim explain-diff train.npy serve.npy -t bf16 --a a.npy --b b.npy \\
          --a-scale sa.npy --b-scale sb.npy
      refsim explain-diff moe.npy -t bf16 --a a.npy --b experts.npy \\
          --a-format e4m3 --m-indices index.npy
      refsim explain-diff d.npy --a a.npy --b b.npy --a-format s8 \\
          --a-zero 3 --b-zero zb.npy
      refsim explain-diff y.npy -t bf16 --a x.npy --b w.npy \\
          --a-format bf16 --b-format u4 --b-scale s.npy --b-zero 8
      refsim explain-diff got.npy want.npy -t e4m3 --values x.npy --as json
      refsim explain-diff q.npy -t e4m3 --scales s.npy --quantized x.npy \\
          --to 1x128
      refsim explain-diff y.npy -t bf16 --row rms_norm --x x.npy \\
          --weight w.npy --eps 1e-5
      refsim explain-diff o.npy -t bf16 --attention \\
          --q q.npy --k k.npy --v v.npy --causal
      refsim explain-diff failures/fp8_quantize-0123456789.json --seconds 60
    """
    refuse_strangers(of_files=names_array(str(first)))
    if not names_array(str(first)):
        return _of_kernel(first, second, files, trust=trust, seconds=seconds)
    return _of_files(first, second, seconds=seconds, **asked)


def _of_files(
    first: Path,
    second: Path | None,
    *,
    row: "Format | None",
    keys: tuple[str, ...],
    values: Path | None,
    quantized: Path | None,
    at: tuple[int, ...] | None,
    seconds: int,
    block: str | None,
    operand_format: str | None,
    **of_operands: Any,
) -> Answer:
    """Compare two files of codes, or one file with the usual result of its operands."""
    from refsim.causes import explain_diff

    (of_first, of_second), load = _keys(keys, second), _loader(of_operands)
    of_quantiser = {name: of_operands.pop(name) for name in ("recipe", "scales", "want_scales", "layout")}
    of_quantiser["layout"] = of_quantiser["layout"] and of_quantiser["layout"].name
    ways: dict[str, Any] = {"operands": _chosen(of_operands, operand_format)}
    ways |= _of_values(values, of_quantiser["scales"])
    ways["quantized"] = quantiser_operands(quantized, block, operand_format, **of_quantiser)
    alone = all(way is None for way in ways.values())
    one, format = load(first, row, of_first, alone)
    other = None if second is None else _second(first, second, format, partial(load, second, row, of_second, alone))
    if other is None and alone:
        raise RefsimError("usage", "two outputs are compared, and one is given", help=ALONE)
    with reporting(sys.stderr) as report:
        ways["on_progress"] = partial(tell, report, "explain-diff")
        found = explain_diff(one, other, format, **ways, seconds=seconds, at=at)
    return Answer(_document(found, first, second), _exit_code(found))


def _of_values(values: Path | None, scales: Path | None) -> dict[str, Any]:
    """Return the values before rounding, and the scales that multiplied them."""
    return {name: _floats(path, None) for name, path in (("values", values), ("scales", scales)) if path and values}


def _chosen(options: dict[str, Any], named: str | None) -> Any:
    """Return the operands of a product, a function of rows or attention, by the options given; None without any."""
    of_function = function_operands(options, named)
    return _operands(**options) or of_function


def _keys(keys: tuple[str, ...], second: Path | None) -> tuple[str | None, str | None]:
    """Return the names of the tensors of A and B; a single name holds for both."""
    if len(keys) > 2 or (len(keys) == 2 and second is None):
        what = f"{len(keys)} names of tensors for {'one file' if second is None else 'two files'}"
        raise RefsimError("usage", what, "--key", "one name, or that of A's tensor and that of B's", "give B too")
    return (keys[0], keys[-1]) if keys else (None, None)


def _loader(options: dict[str, Any]) -> "Callable[..., tuple[Any, ElementType]]":
    """Return the function that reads an output; outputs of integers need a reader of their own."""
    types = integer_types(options["a_format"], options["b_format"])
    d_format = options.pop("d_format")
    if types is None:
        return _output
    return lambda path, row, key, alone: (
        integer_output(path, types[0], d_format, key) if row is None else _output(path, row, key, alone)
    )


def _second(first: Path, second: Path, format: "ElementType", load: Callable[[], Any]) -> Any:
    """Return the codes of B. Raises RefsimError unless they have the format of A."""
    codes, own = load()
    if own != format:
        what = f"{first} holds {format}, {second} holds {own}"
        raise RefsimError("format-mismatch", what, help="-t FORMAT where one of them is meant otherwise")
    return codes


def _of_kernel(first: Path, second: Path | None, declared: tuple[Path, ...], *, trust: bool, seconds: int) -> Answer:
    """Explain a case, or a kernel and its case, on the simulated GPU."""
    from refsim import device
    from refsim.cli.devices import need

    need("testing", "hypothesis")
    from refsim.testing import explain_problem, kernel_named
    from refsim.testing.replay import load_case

    case = first if second is None else second
    if case.suffix != CASE_SUFFIX:
        case = first if names_array(str(case)) else case
        rule = f"files of codes: {', '.join(ARRAY_SUFFIXES)}; cases: {CASE_SUFFIX}"
        raise RefsimError("unknown-suffix", f"the suffix {case.suffix!r} chooses no container", str(case), rule)
    kernel, problem = load_case(
        case, None if second is None else kernel_named(str(first), declared or None), trust=trust
    )
    with reporting(sys.stderr) as line:
        report = partial(tell, line, kernel.name)
        found = explain_problem(kernel, problem, device.open("sim"), seconds=seconds, on_progress=report)
    parts = [
        Wording((f"output {name}", *each.lines()), {"kernel": kernel.name, "output": name, **each.to_json()})
        for name, each in found.items()
    ]
    return Answer(
        Document(tuple(parts), f"{kernel.name}, {case}"), max(map(_exit_code, found.values()), default=AGREED)
    )


def _exit_code(found: "DiffExplanation") -> int:
    if not found.differing:
        return AGREED
    return FAILED if found.named else Kind.INCONCLUSIVE.value


def _document(found: "DiffExplanation", first: Path, second: Path | None) -> Document:
    """Return the explanation, with the partial sums of the chosen element."""
    names = {"a": str(first), "b": "" if second is None else str(second)}
    parts: list[Any] = [Wording(tuple(found.lines()), {**names, **found.to_json()})]
    if found.stages and found.element is not None:
        rows: list[tuple[Cell, ...]] = []
        begin, over = 0, found.stages[0].over
        held = np.int32 if found.stages[0].held.is_integer else np.float32
        for stage in found.stages:
            codes = np.array([stage.code_a, stage.code_b], np.uint32)
            one, other = (float(value) for value in codes.view(held))
            sums = (Bits(stage.code_a, 32), number(one), Bits(stage.code_b, 32), number(other), number(one - other))
            rows.append((f"{begin}..{stage.end - 1}", *sums))
            begin = stage.end
        place = f"element {list(found.element)}, its sum after each part of {'K' if over == 'columns of K' else f'the {over}'}"
        columns = (replace(STAGES[0], label=over), *STAGES[1:])
        parts += [Wording((place,), {"element": list(found.element)}), Table(columns, tuple(rows), key="sums")]
    title = f"{first} and {second}" if second else str(first)
    sources = tuple(dict.fromkeys(cause.source for named in found.named for cause in named.causes))
    return Document(tuple(parts), title, sources)


def _loaded(path: Path, row: "Format | None", key: str | None) -> "tuple[Any, Format]":
    """Return floating-point codes and their format."""
    from refsim.formats import ARRAY_TYPES

    codes, format = _stored(path, row, key)
    if format in ARRAY_TYPES:
        what = f"{path} holds {format}, which is no format of floating-point codes"
        raise RefsimError("format-needed", what, help=f"--a-format {format} or --b-format says what is meant")
    return codes, format


def _output(path: Path, row: "Format | None", key: str | None, alone: bool) -> "tuple[Any, ElementType]":
    """Return codes and format of an output; with operands, integers and float64 are float32 where that is exact."""
    from refsim.formats import ARRAY_TYPES, F32

    codes, format = _stored(path, row, key)
    if format not in ARRAY_TYPES or (alone and format.is_integer):
        return codes, format
    values = codes.view(format.array_dtype)
    floats = values.astype(np.float32)
    if not np.array_equal(floats.astype(np.float64), values.astype(np.float64)):
        what = f"the {format} of {path} are no numbers of float32"
        raise RefsimError("unsupported-format", what, help="refsim diff compares them; --a and --b explain integers")
    return floats.view(np.uint32), F32


def _stored(path: Path, row: "Format | None", key: str | None) -> "tuple[Any, Any]":
    if not names_array(str(path)):
        known = f"suffixes: {', '.join(ARRAY_SUFFIXES)}"
        raise RefsimError("unknown-suffix", f"the suffix {path.suffix!r} chooses no container", str(path), help=known)
    try:
        stored = load_codes(path, row, key)
    except RefsimError as error:
        if row is None or error.code != "out-of-range" or row.bits != 4:
            raise
        from refsim import unpack
        from refsim.formats import E4M3

        # A byte above 0xf is no code of four bits, but two; any byte is a code of E4M3.
        return unpack(load_codes(path, E4M3, key).codes, row), row
    return stored.codes, stored.format


def _floats(path: Path, key: str | None) -> Any:
    """Return the numbers of a file in float32 or float64. Scales may be codes of E8M0."""
    from refsim.formats import float_named

    stored = load_codes(path, None, key)
    format = float_named(stored.format)
    return stored.codes if format.array_dtype is None else stored.codes.view(format.array_dtype)


def _operands(
    *,
    left: Path | None,
    right: Path | None,
    begin: Path | None,
    a_scale: str | None,
    b_scale: str | None,
    a_format: "ElementType | None",
    b_format: "ElementType | None",
    scale_format: str | None,
    m_indices: Path | None,
    **chosen: Any,
) -> "ProductOperands | IntegerOperands | WeightOperands | None":
    """Return the operands of a product by their types: integers, narrow weights or floats; None without --a and --b."""
    from refsim.causes import ProductOperands
    from refsim.formats import float_named

    zeros = {name: chosen.pop(name) for name in ZERO_OPTIONS}
    if left is None and right is None:
        return None
    if left is None or right is None:
        raise RefsimError("usage", "a product has two operands, and one is given", help="give --a FILE and --b FILE")
    types = integer_types(a_format, b_format)
    scales = {
        "a_scale": _scale(a_scale, "--a-scale", scale_format),
        "b_scale": _scale(b_scale, "--b-scale", scale_format),
    }
    if types is not None:
        return integer_operands(left, right, types, begin=begin, **zeros, **scales)
    a = _loaded(left, None if a_format is None else float_named(a_format), None)
    c = None if begin is None else _floats(begin, None)
    beside: dict[str, Any] = {"scale_format": scale_format, "m_indices": m_indices}
    weights = weight_operands(a, right, b_format, begin=c, **zeros, **scales, **beside, **chosen)
    if weights is not None:
        return weights
    if any(each is not None for each in zeros.values()):
        raise RefsimError("usage", "--b-zero of no integers", help="give --a-format s8 or u8, or --b-format, too")
    b = _loaded(right, None if b_format is None and a_format is None else float_named(b_format or a_format or ""), None)
    return ProductOperands(
        a=a[0],
        b=b[0],
        a_format=a[1],
        b_format=b[1],
        c=c,
        **scales,
        scale_format=scale_format,
        m_indices=None if m_indices is None else _indices(m_indices),
        **chosen,
    )


def _indices(path: Path) -> Any:
    """Return the integers of a file as int32."""
    from refsim.formats import S32, Integer

    try:
        stored = load_named(path) or load_codes(path, S32)
        if isinstance(stored.format, Integer):
            return stored.typed().astype(np.int32)
        raise RefsimError("format-mismatch", f"{path} holds {stored.format}")
    except RefsimError as error:
        if error.code != "no-such-file":
            error.help = "give an array of int32: one index for each row of A"
        raise


def _scale(word: str | None, option: str, scale_format: str | None) -> Any:
    """Return a scale of the command line: codes or float32 values of a file, or one float32 number."""
    if word is None:
        return None
    if scale_format is not None and names_array(word):
        from refsim.formats import format_named

        return _loaded(Path(word), format_named(scale_format), None)[0]
    if names_array(word):
        return _floats(Path(word), None)
    try:
        with np.errstate(over="raise"):
            return np.float32(float(word))
    except (ValueError, FloatingPointError):
        raise RefsimError(
            "bad-value", f"{word!r} is not a number of f32", option, help="a number, or a file of f32"
        ) from None
