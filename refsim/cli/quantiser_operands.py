"""Options of `refsim explain-diff` for the input of a quantizer, and the operands that they make."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from refsim.cli.arguments import load_codes
from refsim.cli.function_operands import operand_codes
from refsim.errors import RefsimError

if TYPE_CHECKING:
    from refsim.causes import QuantizedFrom


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

    try:
        stored = load_codes(path, None)
    except RefsimError as error:
        if error.code != "format-needed":
            raise
        stored = load_codes(path, QuantizedFrom(x=[], to=block).codes_of_scales)
    return stored.codes.view(np.float32) if stored.format is F32 else stored.codes
