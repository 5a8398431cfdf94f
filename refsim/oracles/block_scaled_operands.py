"""The operands of a block-scaled product: codes and logical scales that fit each other, or one clear error."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.errors import RefsimError
from refsim.formats import E4M3, E8M0, UE4M3, Format
from refsim.integers import array_of, is_whole
from refsim.layouts import ScaleLayout, scale_layout
from refsim.numerics.profiles import PROFILES
from refsim.typed_arrays import format_of, is_typed, with_format

BLOCKS: dict[Format, int] = {E8M0: 32, UE4M3: 16}
"""The default number of elements of K that share a scale, by the scale's format."""
PAIRS = tuple(dict.fromkeys(pair for row in PROFILES for pair in row.scales))
"""Every pair of scale format and block size that some unit takes."""
BYTE = 8


@dataclass(frozen=True)
class ScaledSide:
    """The rows of an operand: codes (rows, K), scales (rows, K / block), and both formats."""

    codes: NDArray[Any]
    format: Format
    scales: NDArray[Any]
    kind: Format

    @property
    def k(self) -> int:
        """Return the number of elements of K."""
        return int(self.codes.shape[1])

    @property
    def block(self) -> int:
        """Return the number of elements that share a scale."""
        return self.k // int(self.scales.shape[1])

    def rows(self, part: slice) -> "ScaledSide":
        """Return a part of the rows as an operand."""
        return ScaledSide(self.codes[part], self.format, self.scales[part], self.kind)


@dataclass(frozen=True)
class ScaleForm:
    """The caller's description of scales: their format and block, None for the default, and their layout."""

    format: str | Format | None
    block: int | None
    layout: str | ScaleLayout | None


def side(name: str, codes: ArrayLike, format: str | Format | None, scales: ArrayLike, form: ScaleForm) -> ScaledSide:
    """Return the operand of that name, checked; scales of a layout are unshuffled, and their padding is ignored."""
    array, row = _codes(name, codes, format)
    given, kind = _scales(name, scales, form.format)
    size = BLOCKS[kind] if form.block is None else form.block
    if not is_whole(size) or (kind, size) not in PAIRS:
        known = ", ".join(f"{format.name} of {length}" for format, length in PAIRS)
        raise RefsimError("bad-scale", f"{kind.name} scales of blocks of {size!r}", f"{name}_scale", f"known: {known}")
    k = array.shape[1]
    if k % size:
        what = f"K = {k} of {name} is not a multiple of its blocks of {size}"
        raise RefsimError("bad-shape", what, help=f"pad {name} with zeros")
    shape = (len(array), k // size)
    if form.layout is not None:
        given = scale_layout(form.layout).unshuffle(given, shape)
    elif given.shape != shape:
        raise RefsimError(
            "bad-shape",
            f"{name}_scale has shape {given.shape}",
            f"{name} of shape {array.shape}",
            f"{shape}: {kind.name}, one for {size} of K",
            "scales that are shuffled or padded need layout=, those of another format or block scale_format= or block=",
        )
    return ScaledSide(array, row, given, kind)


def _codes(name: str, codes: ArrayLike, format: str | Format | None) -> tuple[NDArray[Any], Format]:
    """Return an operand's codes (rows, K) and their format; raise for other types, shapes or illegal codes."""
    codes, row = with_format(array_of(name, codes), format, name)
    array = np.asarray(codes)
    if row.bits > BYTE or array.dtype != np.uint8:
        what = f"{name} holds {array.dtype}, codes of {row}"
        raise RefsimError("bad-dtype", what, rule="FP8, FP6 or FP4: one uint8 a code")
    if array.ndim != 2 or array.shape[1] == 0:
        raise RefsimError("bad-shape", f"{name} has shape {array.shape}", rule="(rows, K), K at least 1")
    if array.size and int(array.max()) >= row.code_limit:
        what = f"{name} holds {int(array.max()):#x}"
        help = "one code an element; refsim.unpack takes packed bytes apart"
        raise RefsimError("out-of-range", what, rule=f"{row} has codes below {row.code_limit:#x}", help=help)
    if 2 * row.bits <= BYTE and array.shape[1] % 2:
        what = f"{name} has K = {array.shape[1]} of {row}"
        raise RefsimError("bad-shape", what, rule="two of them share a byte: K is even")
    return array, row


def _scales(name: str, scales: ArrayLike, format: str | Format | None) -> tuple[NDArray[Any], Format]:
    """Return the codes of scales and their format: the given format, the dtype's format, or E8M0."""
    given: ArrayLike = array_of(f"{name}_scale", scales)
    own = format_of(given.dtype) if isinstance(given, np.ndarray) and is_typed(given.dtype) else E8M0
    given, kind = with_format(given, format or (UE4M3 if own == E4M3 else own), f"{name}_scale")
    array = np.asarray(given)
    if kind not in BLOCKS or array.dtype != np.uint8:
        what = f"{name}_scale holds {array.dtype}, scales of {kind.name}"
        raise RefsimError("bad-dtype", what, rule=f"codes of {' or '.join(row.name for row in BLOCKS)}: one uint8 each")
    return array, kind
