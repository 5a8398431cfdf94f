"""refsim explain-diff: search for the causes that reproduce every bit of a difference."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from click.core import ParameterSource

from refsim.cli import operand_files
from refsim.cli.arguments import ARRAY_SUFFIXES, format_field, kernels_field, names_array, require_one_format
from refsim.cli.delivery import AGREED, FAILED, Answer, answering
from refsim.cli.extents import Whole
from refsim.cli.names import TARGET
from refsim.cli.operand_files import integer_output, integer_types, output_codes
from refsim.cli.options import Options, argument, option
from refsim.cli.product_options import ElementParam
from refsim.cli.progress import reporting, tell
from refsim.cli.registry import Sectioned
from refsim.errors import Kind, RefsimError
from refsim.render import Bits, Cell, Column, Document, Table, Wording, number

if TYPE_CHECKING:
    from refsim.causes import DiffExplanation
    from refsim.formats import ElementType, Format


class ElementOfBatches(click.ParamType):  # type: ignore[type-arg]
    """ROW,COL of a matrix, or BATCH,ROW,COL."""

    name, metavar = "place", "[BATCH,]ROW,COL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return (row, column) or (batch, row, column). Raises RefsimError bad-value."""
        batch, comma, rest = str(value).partition(",")
        if not comma or "," not in rest or not batch.strip().isdecimal():
            return ElementParam().convert(value, param, ctx)
        return int(batch), *ElementParam().convert(rest, param, ctx)


class _Common(Options):
    """What most questions ask for."""

    heading = "Common options"
    row: "Format | None" = format_field()
    keys: tuple[str, ...] = option("Name of the tensor; twice if the name in B differs.", "--key")
    target: str = option("Architecture.", default="sm_90a", type=TARGET)
    at: tuple[int, ...] | None = option("Show the partial sums of this element.", type=ElementOfBatches())
    seconds: int | None = option("Processor time for the search (default: work of about 3 s).", type=Whole(min=1))


class _KernelOptions(Options):
    """What belongs to a kernel and its case."""

    heading = "Kernel and its case"
    files: tuple[Path, ...] = kernels_field()
    trust: bool = option("Run the Python file that a case names, wherever the file lies.")


class ExplainDiffOptions(Options):
    """The options of `refsim explain-diff`."""

    first: Path = argument("A")
    second: Path | None = argument("[B]")
    common: _Common = _Common()
    product: operand_files.ProductFiles = operand_files.ProductFiles()
    scaled: operand_files.ProductScales = operand_files.ProductScales()
    zeros: operand_files.ZeroPoints = operand_files.ZeroPoints()
    narrowed: operand_files.NarrowedFiles = operand_files.NarrowedFiles()
    of_rows: operand_files.RowFiles = operand_files.RowFiles()
    of_attention: operand_files.AttentionFiles = operand_files.AttentionFiles()
    shared: operand_files.FunctionOptions = operand_files.FunctionOptions()
    kernel: _KernelOptions = _KernelOptions()


def _names(*kinds: type[Options]) -> frozenset[str]:
    return frozenset(each.name for kind in kinds for each in fields(kind))  # type: ignore[arg-type]


OF_EVERY_ANSWER = frozenset({"form", "output", "citations", "first", "second", "seconds"})
OF_FILES = OF_EVERY_ANSWER | {"row", "keys"}
_OF_PRODUCTS = OF_FILES | {"a", "b", "c", "a_scale", "b_scale", "a_format", "b_format"}
_OF_FLOATS = _OF_PRODUCTS | {"unit", "target"}
_OF_SUMS = _OF_FLOATS | {"k", "instruction_k", "interval", "at"}
_OF_BLOCKS = _OF_FLOATS | {"scale_format", "global_scale"}
_OF_INTEGERS = _OF_PRODUCTS | _names(operand_files.ZeroPoints) | {"at"}
_OF_FUNCTIONS = OF_FILES | _names(operand_files.FunctionOptions)
_OF_ROWS = _OF_FUNCTIONS | _names(operand_files.RowFiles)
_OF_ATTENTION = _OF_FUNCTIONS | _names(operand_files.AttentionFiles) | {"unit", "target", "at"}
_OF_QUANTISERS = OF_FILES | _names(operand_files.NarrowedFiles) - {"values"} | {"operand_format"}


@dataclass(frozen=True)
class Inquiry:
    """A question, the option that asks it, and every parameter that has a meaning in it.

    `read` returns the arguments of explain_diff that the files of the given options hold.
    """

    name: str
    said_by: str
    options: frozenset[str]
    read: Callable[[dict[str, Any]], dict[str, Any]] = lambda given: {}


CASE = Inquiry("a case", "CASE", OF_EVERY_ANSWER | {"trust"})
KERNEL = Inquiry("a kernel and its case", "KERNEL CASE", OF_EVERY_ANSWER | {"files"})
OUTPUTS = Inquiry("outputs alone", "A B", OF_FILES)
PRODUCT = Inquiry("a product", "--a and --b", _OF_SUMS | {"b_zero"}, operand_files.product)
EXPERTS = Inquiry("rows of experts", "--m-indices", _OF_SUMS | {"m_indices"}, operand_files.product)
BLOCKS = Inquiry("a block-scaled product", "--scale-format", _OF_BLOCKS, operand_files.product)
OF_INTEGERS = Inquiry("a product of integers", "--a-format s8", _OF_INTEGERS, operand_files.product)
ROW = Inquiry("a function of rows", "--row", _OF_ROWS, operand_files.row_function)
ATTENTION = Inquiry("attention", "--attention", _OF_ATTENTION, operand_files.attention)
VALUES = Inquiry("values that were rounded", "--values", OF_FILES | {"values", "scales"}, operand_files.rounded_values)
QUANTISER = Inquiry("a quantizer", "--quantized", _OF_QUANTISERS, operand_files.quantiser)
QUESTIONS = (OUTPUTS, PRODUCT, EXPERTS, BLOCKS, OF_INTEGERS, ROW, ATTENTION, VALUES, QUANTISER, CASE, KERNEL)
_SAID_BY = {"attention": ATTENTION, "function": ROW, "quantized": QUANTISER, "values": VALUES}


def asked_of_files(given: dict[str, Any]) -> Inquiry:
    """Return the question that the given options about files ask."""
    for name, question in _SAID_BY.items():
        if name in given:
            return question
    if "a" not in given and "b" not in given:
        return OUTPUTS
    if integer_types(given) is not None:
        return OF_INTEGERS
    return EXPERTS if "m_indices" in given else BLOCKS if "scale_format" in given else PRODUCT


def asked_by(*, of_files: bool) -> tuple[Inquiry, dict[str, Any]]:
    """Return the question of this call and its given options. Raise RefsimError for the first that does not belong."""
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
    return question, given


CASE_SUFFIX = ".json"
ALONE = "give a second one, or --a and --b, --row, --attention, --values or --quantized"
STAGES = (
    Column("columns", label="columns of K", align="right", strong=True),
    Column("a", label="sum of A"),
    Column("a_value", label="=", gap=1),
    Column("b", label="sum of B"),
    Column("b_value", label="=", gap=1),
    Column("less", label="A less B", align="right"),
)


@answering(cls=Sectioned)
def command(asked: ExplainDiffOptions) -> Answer:
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
    question, given = asked_by(of_files=names_array(str(asked.first)))
    return _of_kernel(asked) if question in (CASE, KERNEL) else _of_files(asked, question, given)


def _of_files(asked: ExplainDiffOptions, question: Inquiry, given: dict[str, Any]) -> Answer:
    """Compare two files of codes, or one file with the usual result of its operands."""
    from refsim.causes import explain_diff

    first, second, row = asked.first, asked.second, asked.common.row
    of_first, of_second = _keys(asked.common.keys, second)
    ways = question.read(given)
    types = integer_types(given) if row is None else None

    def load(path: Path, key: str | None) -> "tuple[Any, ElementType]":
        """Return the codes and the type of an output."""
        if types is not None:
            return integer_output(path, types[0], asked.zeros.d_format, key)
        return output_codes(path, row, key, question is OUTPUTS)

    one, format = load(first, of_first)
    other = None
    if second is not None:
        other, own = load(second, of_second)
        require_one_format(first, format, second, own)
    elif question is OUTPUTS:
        raise RefsimError("usage", "two outputs are compared, and one is given", help=ALONE)
    with reporting(sys.stderr) as report:
        ways["on_progress"] = partial(tell, report, "explain-diff")
        found = explain_diff(one, other, format, **ways, seconds=asked.common.seconds, at=asked.common.at)
    return Answer(_document(found, first, second), _exit_code(found))


def _keys(keys: tuple[str, ...], second: Path | None) -> tuple[str | None, str | None]:
    """Return the names of the tensors of A and B; a single name holds for both."""
    if len(keys) > 2 or (len(keys) == 2 and second is None):
        what = f"{len(keys)} names of tensors for {'one file' if second is None else 'two files'}"
        raise RefsimError("usage", what, "--key", "one name, or that of A's tensor and that of B's", "give B too")
    return (keys[0], keys[-1]) if keys else (None, None)


def _of_kernel(asked: ExplainDiffOptions) -> Answer:
    """Explain a case, or a kernel and its case, on the simulated GPU."""
    from refsim import device
    from refsim.cli.devices import need

    need("testing", "hypothesis")
    from refsim.testing import explain_problem, kernel_named
    from refsim.testing.replay import load_case

    first, second = asked.first, asked.second
    case = first if second is None else second
    if case.suffix != CASE_SUFFIX:
        case = first if names_array(str(case)) else case
        rule = f"files of codes: {', '.join(ARRAY_SUFFIXES)}; cases: {CASE_SUFFIX}"
        raise RefsimError("unknown-suffix", f"the suffix {case.suffix!r} chooses no container", str(case), rule)
    named = None if second is None else kernel_named(str(first), asked.kernel.files or None)
    kernel, problem = load_case(case, named, trust=asked.kernel.trust)
    with reporting(sys.stderr) as line:
        report = partial(tell, line, kernel.name)
        found = explain_problem(
            kernel, problem, device.open("sim"), seconds=asked.common.seconds or 10, on_progress=report
        )
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
