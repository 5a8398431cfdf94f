"""Options of `refsim explain-diff` for row functions, attention and quantizers, and the operands that they make."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from refsim.cli.arguments import file_option, load_codes, load_named, names_array
from refsim.cli.extents import Whole
from refsim.errors import RefsimError

if TYPE_CHECKING:
    from refsim.causes import AttentionOperands, QuantizedFrom, RowOperands
    from refsim.files import Stored

FILE = click.Path(path_type=Path)
FUNCTIONS = ("softmax", "rms_norm", "layer_norm", "silu")
OPTIONS = (
    click.option(
        "--row", "function", metavar="FUNCTION", type=click.Choice(FUNCTIONS), help=f"{', '.join(FUNCTIONS)}."
    ),
    file_option("--x", help="Input of the function: (..., columns), bf16, f16 or f32."),
    file_option("--weight", help="Weights of the columns of a norm."),
    file_option("--bias", help="Bias of the columns of layer_norm."),
    file_option("--gate", help="Gate with the shape of x; the result is multiplied by silu(gate)."),
    click.option("--eps", metavar="NUMBER", type=float, help="Epsilon of a norm (default: 1e-6)."),
    click.option("--attention", is_flag=True, help="A is the output of attention, or its logarithms of sums."),
    file_option("--q", help="Q: (heads, Lq, D) or (Lq, D), bf16, f16 or e4m3."),
    file_option("--v", help="V: (kv heads, Lk, D), as for --k."),
    click.option("--causal", is_flag=True, help="Causal mask: the last row sees all keys, earlier rows fewer."),
    file_option("--q-scale", help="Scale for each head of Q in e4m3."),
    file_option("--k-scale", help="Scale for each head of K in e4m3."),
    file_option("--v-scale", help="Scale for each head of V in e4m3."),
    click.option("--operand-format", metavar="FORMAT", help="Format of these files, if they do not name it."),
    click.option("--scale", metavar="NUMBER", type=float, help="Factor of the exponent (default: 1 or 1 / sqrt(D))."),
    click.option(
        "--special", type=click.Choice(["approx", "exact"]), help="Arithmetic of powers, roots and quotients."
    ),
)


def function_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, in the order of OPTIONS."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


class InstructionOrKeys(Whole):
    """The file of the keys, or a number: K of one instruction, which --instruction-k gives too."""

    def _describe_range(self) -> str:
        return ""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a Path for a name with the suffix of an array, else the number."""
        return Path(value) if names_array(str(value)) else super().convert(value, param, ctx)


ROW_OPTIONS = ("function", "x", "weight", "bias", "gate", "eps")
ATTENTION_OPTIONS = ("attention", "q", "v", "causal", "q_scale", "k_scale", "v_scale")
SCALED_OPTIONS = ("scale", "special")


def operand_codes(path: Path, named: str | None) -> "Stored":
    """Return the codes of an operand. `named` is the format of a file that does not store its format."""
    from refsim.formats import format_named

    row = None if named is None else format_named(named)
    try:
        return load_codes(path, None, option="--operand-format FORMAT")
    except RefsimError as error:
        if error.code != "format-needed" or row is None:
            raise
    return load_codes(path, row, None)


def function_operands(options: dict[str, Any], named: str | None) -> "RowOperands | AttentionOperands | None":
    """Remove the options of functions from `options` and return their operands, or None where no option names any.

    `named`: the format of files that do not store one. Raises RefsimError for an option without the operand that it
    needs.
    """
    of_rows, of_attention, both = (
        {name: value for name in names if (value := options.pop(name)) not in (None, False)}
        for names in (ROW_OPTIONS, ATTENTION_OPTIONS, SCALED_OPTIONS)
    )
    keys, options["k"] = options["k"], options.pop("instruction_k")
    if isinstance(keys, Path):
        of_attention["k"] = keys
    elif keys is not None:
        options["k"] = keys
    if of_attention:
        return _attention(of_attention, named, {"unit": options["unit"], "target": options["target"]}, **both)
    if of_rows or both:
        return _rows(named, **of_rows, **both)
    return None


def _rows(named: str | None, function: str, x: Path | None = None, **given: Any) -> "RowOperands":
    from refsim.causes import RowOperands

    if x is None:
        raise RefsimError("usage", f"{function} of nothing", help="give --x FILE too")
    stored = operand_codes(x, named)
    for name in ("weight", "bias", "gate"):
        if name in given:
            given[name] = _values(given[name], named)
    return RowOperands(function=function, x=stored.codes, x_format=str(stored.format), **given)


def _attention(given: dict[str, Any], named: str | None, chip: dict[str, Any], **more: Any) -> "AttentionOperands":
    """Return the operands of attention: Q, K and V from files of one format, with their scales and masks."""
    from refsim.causes import AttentionOperands

    if not given.pop("attention", False):
        option = next(iter(given)).replace("_", "-")
        raise RefsimError("usage", f"--{option} without --attention", help="give --attention too")
    missing = [name for name in "qkv" if name not in given]
    if missing:
        raise RefsimError("usage", f"attention without --{missing[0]}", help="give --q FILE, --k FILE and --v FILE")
    files = {name: operand_codes(given.pop(name), named) for name in "qkv"}
    formats = {str(stored.format) for stored in files.values()}
    if len(formats) > 1:
        raise RefsimError("format-mismatch", f"Q, K and V hold {', '.join(sorted(formats))}", rule="one format")
    scales = {name: _values(given.pop(name), None) for name in ("q_scale", "k_scale", "v_scale") if name in given}
    own = {name: value for name, value in chip.items() if value is not None}
    codes: dict[str, Any] = {name: stored.codes for name, stored in files.items()}
    return AttentionOperands(**codes, format=formats.pop(), **scales, **given, **own, **more)


def _values(path: Path, named: str | None) -> Any:
    """Return the values of a file in float32."""
    from refsim.conversions import decode
    from refsim.formats import float_named

    stored = operand_codes(path, named)
    return np.asarray(decode(stored.codes, float_named(stored.format)), np.float32)


def quantiser_operands(x: Path | None, block: str | None, named: str | None, **more: Any) -> "QuantizedFrom | None":
    """Return the input of a quantizer and the scales of its codes, or None where no option names them.

    Raises RefsimError where no option names the block format.
    """
    from refsim.causes import QuantizedFrom

    if x is None:
        return None
    if block is None:
        raise RefsimError("usage", "--quantized without a block format", help="give --to mxfp8, or --to 1x128")
    stored = operand_codes(x, named)
    for name in ("scales", "want_scales"):
        if more[name] is not None:
            more[name] = _scales_beside(more[name], block)
    return QuantizedFrom(x=stored.codes, x_format=stored.format, to=block, **more)


def _scales_beside(path: Path, block: str) -> Any:
    """Return scales as float32, or as codes in the scale format of `block` where the file does not store its format."""
    from refsim.causes import QuantizedFrom
    from refsim.formats import F32

    stored = load_named(path) or load_codes(path, QuantizedFrom(x=[], to=block).codes_of_scales)
    return stored.codes.view(np.float32) if stored.format is F32 else stored.codes
