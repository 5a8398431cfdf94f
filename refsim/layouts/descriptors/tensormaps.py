"""The tensor map as a descriptor: its parameters by name on one side, the driver's integers on the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refsim.errors import RefsimError, check_named
from refsim.evidence import Evidence
from refsim.layouts import tma
from refsim.layouts.descriptors.fields import Explanation, Reading
from refsim.layouts.evidence import evidence as evidence_of
from refsim.layouts.swizzles import swizzle
from refsim.sources import CUDA_DRIVER, Source

Arguments = Mapping[str, int | Sequence[int]]

# driver argument, our name, names in code order (empty: the number itself)
_Row = tuple[str, str, tuple[str, ...]]
_TILED: tuple[_Row, ...] = (
    ("tensorDataType", "data_type", tuple(row.name for row in tma.DATA_TYPES)),
    ("tensorRank", "rank", ()),
    ("globalAddress", "address", ()),
    ("globalDim", "dims", ()),
    ("globalStrides", "strides", ()),
    ("boxDim", "box", ()),
    ("elementStrides", "element_strides", ()),
    ("interleave", "interleave", tma.INTERLEAVES),
    ("swizzle", "swizzle", tma.SWIZZLE_MODES),
    ("l2Promotion", "l2_promotion", tma.L2_PROMOTIONS),
    ("oobFill", "oob_fill", tma.OOB_FILLS),
)
_PIXELS: tuple[_Row, ...] = (
    ("pixelBoxLowerCorner", "lower", ()),
    ("pixelBoxUpperCorner", "upper", ()),
    ("channelsPerPixel", "channels", ()),
    ("pixelsPerColumn", "pixels", ()),
)
_BOX = next(row for row in _TILED if row[1] == "box")
_IM2COL = (*_TILED[: _TILED.index(_BOX)], *_PIXELS, *_TILED[_TILED.index(_BOX) + 1 :])
_MEANINGS = {
    "data_type": "element type",
    "rank": "dimensions",
    "address": "first byte of the tensor in global memory",
    "dims": "elements along each dimension, innermost first",
    "strides": "bytes from one index to the next, dimensions 1 and up",
    "box": "elements that one copy spans along each dimension",
    "lower": "where the filter's base begins: offsets from the first pixel, W first",
    "upper": "where it ends: offsets from the last pixel, W first",
    "channels": "elements of each pixel that one copy takes",
    "pixels": "pixels that one copy takes",
    "element_strides": "step along each dimension, the innermost ignored",
    "interleave": "interleaved layout (NC/8HWC8)",
    "swizzle": "how shared memory is swizzled",
    "l2_promotion": "bytes that L2 fetches at once",
    "oob_fill": "what elements outside the tensor become",
}


@dataclass(frozen=True)
class TensorMapForm:
    """Encode fields to the arguments of the driver's encoders of tensor maps, decode, explain and walk them.

    A `box` selects cuTensorMapEncodeTiled; `channels`, `pixels`, `lower` and `upper` select cuTensorMapEncodeIm2col.
    The 128 bytes that the driver returns are opaque and have no published layout: they are not decoded.
    """

    kind: str
    source: Source
    summary: str

    @property
    def evidence(self) -> Evidence:
        """Return the evidence for the tensor map: its formula, an independent package, or a run on a chip."""
        return evidence_of(self.kind)

    def encode(self, **fields: Any) -> dict[str, int | tuple[int, ...]]:
        """Return the driver's arguments for the fields of `tensor_map` or `im2col_map`.

        Raises RefsimError with the broken rule.
        encode(data_type="uint8", dims=(256, 64), box=(128, 64), swizzle="128B")["swizzle"] is 3.
        """
        return driver_arguments(_built(fields))

    def decode(self, arguments: Arguments) -> tma.TensorMap:
        """Return the checked tensor map of a call's arguments (`tensorDataType`, `globalDim` ... as logged).

        Raises RefsimError for missing or unknown arguments, codes without meaning and every broken rule.
        """
        table = _IM2COL if any(argument in arguments for argument, _, _ in _PIXELS) else _TILED
        known = [argument for argument, _, _ in table]
        for argument in arguments:
            check_named("driver argument", argument, known)
        fields: dict[str, Any] = {}
        for argument, name, names in table:
            if argument not in arguments:
                raise RefsimError("bad-descriptor", f"{argument} is needed", where=self.kind)
            value = arguments[argument]
            if names:
                if not isinstance(value, int) or not 0 <= value < len(names):
                    raise RefsimError("bad-descriptor", f"{argument} {value!r} is outside 0..{len(names) - 1}")
                fields[name] = names[value]
            else:
                fields[name] = value
        rank = fields.pop("rank")
        if rank != len(fields["dims"]):
            raise RefsimError("bad-tensor-map", f"tensorRank {rank} with {len(fields['dims'])} dimensions")
        return _built(fields)

    def explain(self, arguments: Arguments) -> Explanation:
        """Explain the arguments; str() prints the explanation. Raise for arguments that the driver would refuse."""
        made = self.decode(arguments)
        readings, values = [], _values(made)
        for argument, name, _ in _TILED if made.pixels is None else _IM2COL:
            code = arguments[argument]
            stored = code if isinstance(code, int) else 0
            readings.append(Reading(argument, name, stored, str(values[name]), _MEANINGS[name]))
        return Explanation(self.kind, f"rank {len(made.dims)}", tuple(readings), _notes(made), (), made.source)

    def walk(
        self,
        arguments: Arguments,
        coordinates: Sequence[int],
        shared_address: int = 0,
        offsets: Sequence[int] | None = None,
    ) -> tma.Placement:
        """Return source and destination of the box at `coordinates`; see `TensorMap.place`, also for `offsets`."""
        return self.decode(arguments).place(coordinates, shared_address, offsets)


def driver_arguments(made: tma.TensorMap) -> dict[str, int | tuple[int, ...]]:
    """Return the arguments of cuTensorMapEncodeTiled or cuTensorMapEncodeIm2col for a map, in the driver's order."""
    table, values = _TILED if made.pixels is None else _IM2COL, _values(made)
    return {argument: names.index(values[name]) if names else values[name] for argument, name, names in table}


def _values(made: tma.TensorMap) -> dict[str, Any]:
    """Return the fields of a map by refsim's names."""
    values: dict[str, Any] = {**vars(made), "rank": len(made.dims), "data_type": made.data_type.name}
    if made.pixels is None:
        return values
    channels, pixels = made.box
    return values | {"lower": made.pixels.lower, "upper": made.pixels.upper, "channels": channels, "pixels": pixels}


def _built(fields: Mapping[str, Any]) -> tma.TensorMap:
    is_im2col = any(name in fields for _, name, _ in _PIXELS)
    names = [name for _, name, _ in (_IM2COL if is_im2col else _TILED) if name != "rank"]
    for name in fields:
        check_named("tensor map field", name, names)
    for name in ("data_type", "dims", *(name for _, name, _ in (_PIXELS if is_im2col else (_BOX,)))):
        if name not in fields:
            raise RefsimError("bad-descriptor", f"{name} is needed", where="tensormap")
    return tma.im2col_map(**fields) if is_im2col else tma.tensor_map(**fields)


def _notes(made: tma.TensorMap) -> tuple[str, ...]:
    notes = [f"one box is {made.box_bytes} bytes of shared memory, rows {made.pitch_bytes} bytes apart"]
    if made.swizzle in ("32B", "64B", "128B", "128B_32B_atom"):
        notes.append(f"the pattern repeats every {swizzle(made.swizzle).repeat_bytes} bytes: align the box to that")
    if made.data_type.padded:
        notes.append("groups of 16 elements are padded to 16 bytes; the pads are undefined")
    return tuple(notes)


TENSORMAP = TensorMapForm(
    "tensormap", CUDA_DRIVER["cuTensorMapEncodeTiled"], "what TMA copies: a box of a tensor in global memory"
)
