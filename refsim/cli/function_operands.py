"""Options of `refsim explain-diff` for the operands of functions of rows, and the operands that they make."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from refsim.cli.arguments import load_codes
from refsim.errors import RefsimError

if TYPE_CHECKING:
    from refsim.causes import RowOperands

FILE = click.Path(path_type=Path)
FUNCTIONS = ("softmax", "rms_norm", "layer_norm", "silu")
OPTIONS = (
    click.option(
        "--row", "function", metavar="FUNCTION", type=click.Choice(FUNCTIONS), help=f"{', '.join(FUNCTIONS)}."
    ),
    click.option("--x", metavar="FILE", type=FILE, help="What --row read: (..., columns), bf16, f16 or f32."),
    click.option("--weight", metavar="FILE", type=FILE, help="Weights of the columns; of a norm."),
    click.option("--bias", metavar="FILE", type=FILE, help="The bias of the columns; of layer_norm."),
    click.option("--gate", metavar="FILE", type=FILE, help="The gate, as large as x; times silu of it."),
    click.option("--eps", type=float, help="Epsilon of a norm; 1e-6 by default."),
    click.option("--scale", type=float, help="What softmax multiplies by under e^; 1 by default."),
    click.option(
        "--special", type=click.Choice(["approx", "exact"]), help="What computes powers, roots and quotients."
    ),
)


def function_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options, in the order of the list."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def row_operands(function: str | None, x: Path | None, **more: Any) -> "RowOperands | None":
    """The operands that the options name; None where there is no --row. Raises RefsimError for some without it."""
    from refsim.causes import RowOperands

    given = {name: value for name, value in more.items() if value is not None}
    if function is None:
        if x is not None or given:
            option = "x" if x is not None else next(iter(given))
            raise RefsimError("usage", f"--{option} without a function", help="give --row softmax, rms_norm, ... too")
        return None
    if x is None:
        raise RefsimError("usage", f"{function} of nothing", help="give --x FILE too")
    stored = load_codes(x, None, None)
    for name in ("weight", "bias", "gate"):
        if name in given:
            given[name] = _values(given[name])
    return RowOperands(function=function, x=stored.codes, x_format=str(stored.format), **given)


def _values(path: Path) -> Any:
    """The values of a file in float32."""
    from refsim.conversions import decode
    from refsim.formats import float_named

    stored = load_codes(path, None, None)
    return np.asarray(decode(stored.codes, float_named(stored.format)), np.float32)
