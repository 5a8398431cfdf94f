"""Weights of a checkpoint: which tensors belong together by which layout, and the values of rows of a weight.

A value is exact in float64, or rounded once there, as far as its parts are exact: whoever stores it rounds once more.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.checkpoints.gguf_blocks import DECODERS
from refsim.checkpoints.layouts import CHECKPOINT_LAYOUTS, CONFIG_METHODS, SCALES_ALONE, CheckpointLayout, layout_named
from refsim.conversions import decode
from refsim.conversions.packing import bit_fields
from refsim.errors import RefsimError
from refsim.files.access import unreadable
from refsim.files.gguf import GGUF_BLOCKS
from refsim.files.parts import TensorFile
from refsim.files.safetensors import BITS, NAMED, StoredTensor
from refsim.formats import E8M0, F32
from refsim.layouts.scales import scale_layout
from refsim.scaling.block_formats import block_format
from refsim.scaling.blocks import Blocks
from refsim.scaling.recipes import recipe_named

Floats = NDArray[np.float64]
BLOCKS_NOTE, OWN_SCALES, TENSOR_SCALE = "refsim.blocks.", ".scales", ".tensor_scale"
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
ALIGNED_ROWS = 128
SCALES = (".weight_scale", ".weight_scale_inv", "._weight_scale", ".SCB", ".scale", ".absmax", ".quant_map")
BLOCK_SIZES = ("weight_block_size", "block_structure")
MOST_SCALES = 1 << 28


class MisfitError(Exception):
    """A layout does not fit; the text says why."""


@dataclass(eq=False)
class Weight:
    """A quantized weight: its `key` once dequantized, its layout, its shape, and the tensors that it consists of."""

    file: TensorFile
    key: str
    layout: CheckpointLayout
    codes: StoredTensor
    parts: Mapping[str, StoredTensor]
    why: str = ""
    shape: tuple[int, ...] = ()
    bits: int = 8
    block: tuple[int, int] = (1, 1)
    state: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Derive shape, width of the codes and extent of a scale; raise MisfitError where the tensors do not fit."""
        self.state = self._state()
        self.bits, self.shape = self._extent()
        if 0 in self.shape or not 0 < len(self.shape) <= 64:
            raise MisfitError(f"{self.codes.key} is {self.codes.shape}: a size of 0, or {len(self.shape)} dimensions")
        if self.layout.packing != "blocks" and self.layout.name != "refsim":
            self.block = self._block()

    @property
    def rows(self) -> tuple[int, int]:
        """Return the size as a matrix: all dimensions but the last, and the last."""
        return prod(self.shape[:-1]), self.shape[-1]

    def values(self, first: int, count: int) -> Floats:
        """Return the values (count, columns) of `count` rows from `first` on."""
        if self.layout.packing == "blocks":
            return self._of_blocks(first, count)
        if self.layout.name == "refsim":
            return self._own(first, count)
        with np.errstate(all="ignore"):
            found = self._codes(first, count)
            if self.layout.scaling == "turned":
                return found * self._spread(self.scales, first, count) + self._spread(self._zeros, first, count)
            zeros = self._spread(self._zeros, first, count) if "zeros" in self.parts else float(self.layout.zero)
            if "zeros" in self.parts or self.layout.zero:
                found -= zeros
            is_flat = self.layout.scaling == "flat"
            found *= self._flat(first, count) if is_flat else self._spread(self.scales, first, count)
            if "factor" in self.parts:
                (np.divide if self.layout.divides else np.multiply)(found, self._factor(first, count), out=found)
            return found

    @cached_property
    def scales(self) -> Floats:
        """Return the scales, times any factor that a library keeps outside of the file."""
        if self.layout.scaling == "flat":
            return self._absmax()
        found = self._part("scales")
        return found / 127 if self.layout.name == "bnb-int8" else found

    @property
    def matrix(self) -> tuple[int, int, int]:
        """Return the shape as a batch of matrices."""
        return prod(self.shape[:-2]), self.shape[-2] if len(self.shape) > 1 else 1, self.shape[-1]

    def _state(self) -> dict[str, Any]:
        """Return what the metadata or a tensor says in JSON of this weight: for torchao and bitsandbytes."""
        text = self.file.metadata.get(self.key, "") if self.layout.types else ""
        if "state" in self.parts:
            region = self.parts["state"]
            text = self.file.take(region, 0, min(region.end - region.begin, 1 << 16)).decode("utf-8", "replace")
        if not text:
            return {}
        try:
            found = json.loads(text)
            if self.layout.types and found["_type"] not in self.layout.types:
                raise MisfitError(f"the metadata says {found['_type']}")
            return dict(found["_data"] if self.layout.types else found)
        except (ValueError, KeyError, TypeError, RecursionError) as problem:
            raise MisfitError(f"what is said of {self.key} cannot be read") from problem

    def _extent(self) -> tuple[int, tuple[int, ...]]:
        """Return the bits of a code, and the shape of the values."""
        layout, stored = self.layout, self.codes.shape
        match layout.packing:
            case "blocks" | "plain":
                return 8, stored
            case "high":
                shape = self.state.get("shape")
                if not isinstance(shape, list) or not all(map(_is_size, shape)):
                    raise MisfitError(f"the state of {self.key} gives no shape")
                if -(-prod(shape) // 2) != prod(stored):
                    raise MisfitError(f"{prod(stored)} bytes are not {' x '.join(map(str, shape))} codes of 4 bits")
                return 4, tuple(shape)
        if layout.packing in ("awq", "down"):
            return self._words()
        if layout.name == "gpt-oss":
            if len(stored) < 3 or stored[-1] != 16:
                raise MisfitError(f"{self.codes.key} has shape {stored}, not (..., groups, 16)")
            return 4, (*stored[:-2], stored[-2] * 32)
        width = BITS[self.codes.dtype]
        if "shape" in self.parts:
            region = self.parts["shape"]
            if region.shape != (len(stored),):
                raise MisfitError(f"{region.key} has shape {region.shape}")
            shape = tuple(int(n) for n in self._integers(region))
            said = self.said("num_bits") or [4, 8, 2, 3, 5, 6, 7]
            fits = [n for n in said if n <= 8 and (*shape[:-1], -(-shape[-1] * n // width)) == stored]
            if not fits:
                wanted = " or ".join(map(str, said))
                raise MisfitError(f"{self.codes.key} of shape {stored} does not hold {shape} codes of {wanted} bits")
            return fits[0], shape
        bits = layout.element.bits if layout.element is not None else 4
        if not stored or stored[-1] * width % bits:
            raise MisfitError(f"{self.codes.key} of shape {stored} ends inside a code of {bits} bits")
        return bits, (*stored[:-1], stored[-1] * width // bits)

    def _words(self) -> tuple[int, tuple[int, ...]]:
        """Return the bits of a code and the shape (K, N) of awq and gptq: zeros and scales have as many columns."""
        stored, scales, zeros = self.codes.shape, self.parts["scales"].shape, self.parts["zeros"].shape
        if len(stored) != 2 or len(scales) != 2 or len(zeros) != 2 or zeros[0] != scales[0] or not scales[1]:
            raise MisfitError(
                f"shapes {stored}, scales {scales}, zeros {zeros} are not those of matrices that fit together"
            )
        bits = 32 * zeros[1] // scales[1]
        if not 1 <= bits <= 8 or zeros[1] * 32 != scales[1] * bits or bits not in (2, 3, 4, 8):
            raise MisfitError(f"zeros of shape {zeros} do not fit scales of shape {scales}")
        if self.layout.packing == "awq":
            if bits != 4 or stored[1] != zeros[1]:
                raise MisfitError(f"{self.codes.key} has {stored[1]} words a row, its zeros {zeros[1]}")
            return 4, (stored[0], scales[1])
        if stored[1] != scales[1] or stored[0] * 32 % bits:
            raise MisfitError(f"{self.codes.key} has {stored[1]} columns, its scales {scales[1]}")
        return bits, (stored[0] * 32 // bits, scales[1])

    def said(self, *names: str, fits: Callable[[Any], bool] | None = None) -> list[Any]:
        """Return the sizes, or what else `fits`, that config.json says of weights in any group: shapes decide."""
        groups = [each.get("weights") for each in _config_groups(self.file)] or [self.file.config]
        found = [each.get(name) for name in names for each in groups if isinstance(each, dict)]
        return list(filter(fits or _is_size, found))

    def _block(self) -> tuple[int, int]:
        """Return how many rows and columns share a scale; raise MisfitError where the scales have another shape."""
        columns = self.shape[-1]
        found, layout = self.parts["scales"].shape, self.layout
        count = prod(found)
        if count > MOST_SCALES:
            raise MisfitError(f"{count} scales are too many")
        grouped = self.shape[-2] if layout.packing == "down" else columns
        if "groups" not in self.parts and layout.packing == "down" and self.file.config.get("desc_act") is True:
            raise MisfitError(f"config.json says desc_act, and the g_idx of {self.key} is missing")
        if "groups" in self.parts and self.parts["groups"].shape != (grouped,):
            raise MisfitError(f"{self.parts['groups'].key} has shape {self.parts['groups'].shape}")
        if layout.scaling == "flat":
            size = self.state.get("blocksize")
            if type(size) is not int or size < 1 or count != -(-prod(self.shape) // size):
                raise MisfitError(f"{count} scales are not one for each {size} of {prod(self.shape)} values")
            return 1, size
        for way in ("tensor", "channel", "groups", "blocks") if layout.scaling == "any" else (layout.scaling,):
            block = self._block_of(way, found, count)
            if block:
                self._require_zeros()
                return block
        shapes = f"{self.parts['scales'].key} has shape {found}, {self.codes.key} {self.codes.shape}"
        raise MisfitError(f"{shapes}: no scale for each {layout.scaling.removesuffix('s')}")

    def _block_of(self, way: str, found: tuple[int, ...], count: int) -> tuple[int, int] | None:
        """Return the extent of a scale where the shape of the scales is one of this way."""
        batch, rows, columns = self.matrix
        match way:
            case "tensor":
                return (rows, columns) if count in (1, batch) and (count == 1 or rows > 1 or batch > 1) else None
            case "channel":
                fits = found in (self.shape[:-1], (*self.shape[:-1], 1))
                return (1, columns) if fits else None
            case "columns":
                sizes = self.said("group_size") or [-(-rows // max(1, found[0]))]
                return next(((high, 1) for high in sizes if found == (-(-rows // high), columns)), None)
            case "turned":
                said = self.state.get("block_size")
                width = said[-1] if isinstance(said, list) and said and type(said[-1]) is int and said[-1] > 0 else 0
                return (1, width) if width and found == (*self.shape[:-2], -(-columns // width), rows) else None
            case "groups":
                if self.state.get("is_swizzled_scales"):
                    width = self.layout.width
                    padded = batch * -(-rows // 128) * 128 * -(-(columns // width) // 4) * 4
                    return (1, width) if count == padded and columns % width == 0 else None
                if len(found) < 2 or found[:-1] != self.shape[:-1] or not found[-1]:
                    return None
                sizes = [self.layout.width] if self.layout.width else self.said("group_size") or [columns // found[-1]]
                return next(((1, wide) for wide in sizes if -(-columns // max(1, wide)) == found[-1]), None)
        config = self.file.config.get(BLOCK_SIZES[0])
        said = [config, *self.said(*BLOCK_SIZES, fits=_is_extent), self.state.get("block_size")]
        for down, across in [each[-2:] for each in said if _is_extent(each)] or [(128, 128)]:
            grid = (*self.shape[:-2], -(-rows // down), -(-columns // across))
            if len(self.shape) > 1 and found in (grid, (*grid[:-1], 1, grid[-1], 1)):
                return down, across
        return None

    def _require_zeros(self) -> None:
        """Raise MisfitError for zero points that are not one for each scale, and for none where config.json says so."""
        lacks = "zeros" in self.layout.parts and "zeros" not in self.parts
        if lacks and set(self.said("symmetric", fits=lambda each: isinstance(each, bool))) == {False}:
            raise MisfitError(f"config.json says symmetric false, and a zero point of {self.key} is missing")
        if "zeros" not in self.parts or self.layout.packing in ("awq", "down"):
            return
        zeros, scales = self.parts["zeros"], self.parts["scales"]
        wanted = scales.shape
        if self.layout.packing == "low" and zeros.dtype == "I32":
            wanted = (*scales.shape[:-2], -(-scales.shape[-2] * self.bits // 32), scales.shape[-1])
        if zeros.shape != wanted:
            raise MisfitError(f"{zeros.key} has shape {zeros.shape}, not {wanted}")

    def _integers(self, region: StoredTensor) -> NDArray[np.int64]:
        raw = self.file.take(region, 0, region.end - region.begin)
        kind = {"I8": "<i1", "U8": "<u1", "I32": "<i4", "I64": "<i8"}[region.dtype]
        return np.frombuffer(raw, kind).astype(np.int64).reshape(region.shape)

    def _part(self, role: str) -> Floats:
        """Return the numbers of a part: of a float format, powers of two in U8, integers in I8 and I32."""
        region = self.parts[role]
        if region.dtype in ("I8", "I32"):
            return self._integers(region).astype(np.float64)
        form = NAMED.get(region.dtype, E8M0)
        raw = np.frombuffer(self.file.take(region, 0, region.end - region.begin), form.code_dtype.newbyteorder("<"))
        codes: NDArray[Any] = raw.astype(form.code_dtype).reshape(region.shape)
        if role == "scales" and self.state.get("is_swizzled_scales"):
            batch, rows, columns = self.matrix
            codes = scale_layout("nvidia_128x4").unshuffle(
                codes.reshape(batch, -1), (rows, -(-columns // self.block[1]))
            )
        if self.layout.scaling == "turned":
            codes = codes.swapaxes(-1, -2)
        return np.asarray(decode(codes, form, np.float64), np.float64)

    def _codes(self, first: int, count: int) -> Floats:
        """Return the numbers that codes stand for, before zero points and scales."""
        layout, columns = self.layout, self.shape[-1]
        if layout.packing == "high":
            return self._table[self._nibbles(first * columns, count * columns)].reshape(count, columns)
        if layout.packing == "down":
            return self._down(first, count).astype(np.float64)
        region = self.codes
        width = (region.end - region.begin) // self.rows[0]
        raw = np.frombuffer(self.file.take(region, first * width, count * width), np.uint8).reshape(count, width)
        if layout.packing == "plain":
            if layout.element is None:
                return raw.view(np.int8).astype(np.float64)
            return np.asarray(decode(raw, NAMED[region.dtype], np.float64))
        found = bit_fields(raw, self.bits, columns)
        if layout.packing == "awq":
            found = found.reshape(count, -1, 8)[:, :, np.argsort(AWQ_ORDER)].reshape(count, columns)
        if layout.element is not None:
            return np.asarray(decode(found, layout.element, np.float64))
        half = 1 << (self.bits - 1)
        if layout.scaling == "turned":
            found ^= np.uint8(half)
        return found.astype(np.float64) - (half if layout.scaling == "turned" or "zeros" not in self.parts else 0)

    def _down(self, first: int, count: int) -> NDArray[np.uint8]:
        """Return rows of codes that lie in words along each column; parts begin at multiples of 32 rows."""
        region, columns, begin = self.codes, self.shape[-1], first // ALIGNED_ROWS * ALIGNED_ROWS
        top, end = begin * self.bits // 32, -(-min(first + count, self.shape[0]) * self.bits // 32)
        raw = self.file.take(region, top * columns * 4, (end - top) * columns * 4)
        words = np.frombuffer(raw, np.uint8).reshape(end - top, columns, 4).transpose(1, 0, 2).reshape(columns, -1)
        return bit_fields(words, self.bits, first - begin + count).T[first - begin :]

    def _nibbles(self, first: int, count: int) -> NDArray[np.uint8]:
        """Return codes of a stream of bytes with the first code in the high half."""
        begin, end = first // 2, -(-(first + count) // 2)
        raw = np.frombuffer(self.file.take(self.codes, begin, end - begin), np.uint8)
        return np.stack([raw >> 4, raw & 15], axis=-1).reshape(-1)[first - 2 * begin :][:count]

    @cached_property
    def _table(self) -> Floats:
        found = self._part("values")
        if found.size != 16:
            raise self._unfit(f"{self.parts['values'].key} holds {found.size} values, not 16")
        return found.reshape(-1)

    @cached_property
    def _zeros(self) -> Floats:
        """Return the zero points, one for each scale."""
        region, scales = self.parts["zeros"], self.parts["scales"].shape
        if region.dtype != "I32" or self.layout.packing == "plain":
            return self._part("zeros")
        raw = np.frombuffer(self.file.take(region, 0, region.end - region.begin), np.uint8)
        if self.layout.packing == "low":  # along the rows of the scales
            batch, words, groups = prod(region.shape[:-2]), region.shape[-2], region.shape[-1]
            turned = raw.reshape(batch, words, groups, 4).transpose(0, 2, 1, 3).reshape(batch * groups, -1)
            found = bit_fields(turned, self.bits, scales[-2]).reshape(batch, groups, scales[-2])
            return found.transpose(0, 2, 1).reshape(scales).astype(np.float64)
        found = bit_fields(raw.reshape(scales[0], -1), self.bits, scales[1])
        if self.layout.packing == "awq":
            found = found.reshape(scales[0], -1, 8)[:, :, np.argsort(AWQ_ORDER)].reshape(scales)
        return ((found.astype(np.int64) + self.layout.zero) % (1 << self.bits)).astype(np.float64)

    @cached_property
    def _groups(self) -> NDArray[np.int64]:
        found = self._integers(self.parts["groups"])
        most = self.parts["scales"].shape[0 if self.layout.packing == "down" else -1]
        if found.min() < 0 or found.max() >= most:
            raise self._unfit(f"{self.parts['groups'].key} names group {found.max()} of {most}")
        return found

    def _spread(self, grid: Floats, first: int, count: int) -> Floats:
        """Return the number of each element of rows, out of one for each block."""
        batch, rows, columns = self.matrix
        down, across = self.block
        if grid.size == 1:
            return grid.reshape(1, 1)
        grid = grid.reshape(batch, -(-rows // down), -1)
        at, row = np.divmod(np.arange(first, first + count), rows)
        by_row = "groups" in self.parts and self.layout.packing == "down"
        found: Floats = grid[at, self._groups[row] if by_row else row // down]
        if "groups" in self.parts and not by_row:
            return found[:, self._groups]
        return found if across == 1 or found.shape[1] == 1 else np.repeat(found, across, axis=1)[:, :columns]

    def _factor(self, first: int, count: int) -> Floats:
        """Return the factor of the tensor, or of the matrix of a batch that each row belongs to."""
        found, (batch, rows, _) = self._part_once, self.matrix
        if found.size not in (1, batch):
            raise self._unfit(f"{self.parts['factor'].key} holds {found.size} factors for {batch} matrices")
        return found.reshape(-1, 1)[np.arange(first, first + count) // rows if found.size > 1 else [0]]

    @cached_property
    def _part_once(self) -> Floats:
        return self._part("factor")

    def _absmax(self) -> Floats:
        """Return the largest magnitudes of blocks; where they are quantized too, in float32 as the library does."""
        if self.parts["scales"].dtype == "F32":
            return self._part("scales").reshape(-1)
        size, offset = self.state.get("nested_blocksize"), self.state.get("nested_offset")
        if not {"nested scales", "nested values"} <= self.parts.keys() or type(size) is not int or size < 1:
            raise self._unfit("its absmax is quantized, and what it was quantized by is missing")
        codes = self._integers(self.parts["scales"]).reshape(-1)
        table, outer = self._part("nested values").astype(np.float32), self._part("nested scales").astype(np.float32)
        if table.size != 256 or outer.size != -(-codes.size // size) or not isinstance(offset, int | float):
            raise self._unfit(f"{outer.size} nested scales and {table.size} values do not fit {codes.size} blocks")
        found = table.reshape(-1)[codes] * np.repeat(outer.reshape(-1), size)[: codes.size] + np.float32(offset)
        return found.astype(np.float64)

    def _flat(self, first: int, count: int) -> Floats:
        columns = self.shape[-1]
        places = np.arange(first * columns, (first + count) * columns) // self.block[1]
        return self.scales[places].reshape(count, columns)

    def _of_blocks(self, first: int, count: int) -> Floats:
        elements, size = GGUF_BLOCKS[self.codes.dtype]
        width = self.shape[-1] // elements * size
        raw = np.frombuffer(self.file.take(self.codes, first * width, count * width), np.uint8).reshape(-1, size)
        return DECODERS[self.codes.dtype](raw).reshape(count, -1)

    def _own(self, first: int, count: int) -> Floats:
        name, _, by = self.file.metadata[BLOCKS_NOTE + self.key].partition(" ")
        row = block_format(name)
        codes = self.file.codes(self.codes._replace(format=row.element), first, count)
        scales = self.file.codes(self.parts["scales"]._replace(format=row.scale), first, count)
        kept = None
        if "factor" in self.parts:
            kept = decode(self.file.codes(self.parts["factor"]._replace(format=F32), 0, 1), F32, np.float32)[0, 0]
        return Blocks(codes, scales, row, recipe_named(by, row) if by else None, kept).dequantize(np.float64)

    @property
    def own_scales(self) -> Floats:
        """Return the scales of a weight that `refsim quantize` wrote, without the factor of the tensor."""
        row, region = block_format(self.file.metadata[BLOCKS_NOTE + self.key].partition(" ")[0]), self.parts["scales"]
        codes = self.file.codes(region._replace(format=row.scale), 0, region.rows[0])
        return np.asarray(decode(codes, row.scale, np.float64))

    def _unfit(self, what: str) -> RefsimError:
        return unreadable("bad-shape", what, str(self.file.path), rule=f"layout {self.layout}: {self.layout.summary}")


def _config_groups(file: TensorFile) -> list[dict[str, Any]]:
    groups = file.config.get("config_groups")
    return [each for each in groups.values() if isinstance(each, dict)] if isinstance(groups, dict) else []


def _is_extent(said: Any) -> bool:
    """Return whether config.json gives rows and columns, as [128, 128]."""
    return isinstance(said, list) and len(said) >= 2 and all(map(_is_size, said))


def _is_size(said: Any) -> bool:
    return type(said) is int and 0 < said < 1 << 40


def weights_of(file: TensorFile, layout: str | None = None, near: str | None = None) -> dict[str, Weight]:
    """Return the quantized weights of a file, by the key of their values; with `near` only those that may have this key.

    `layout` overrides what names and types tell. Raises RefsimError: `ambiguous-name` where several layouts fit, with
    their names; `bad-shape` where parts of a weight are missing or do not fit.
    """
    meant = None if layout is None else layout_named(layout)
    found: dict[str, Weight] = {}
    stem = (near or "").removesuffix(".weight")
    for note in file.metadata:
        if note.startswith(BLOCKS_NOTE + stem):
            weight = _own_weight(file, note)
            found[weight.key] = weight
    taken = {region.key for weight in found.values() for region in (weight.codes, *weight.parts.values())}
    scaled = bool(file.config) or any(key.endswith(SCALES) for key in file.regions)
    claims = {end for row in CHECKPOINT_LAYOUTS for end in row.codes.ends}
    for key, region in file.regions.items():
        if not key.startswith(stem) or key in taken:
            continue
        if region.dtype in DECODERS or any(end and key.endswith(end) for end in claims):
            weight_found = _weight(file, region, meant, scaled=scaled)
            if weight_found is not None:
                if weight_found.key in found or (weight_found.key in file.regions and weight_found.key != key):
                    raise unreadable("bad-file", f"two tensors are called {weight_found.key[:80]!r}", str(file.path))
                found[weight_found.key] = weight_found
    if near is None:
        _require_owners(file, found)
    return found


def layout_where(file: TensorFile, layout: str | None) -> str | None:
    """Return the layout if weights of the file have it, else None: two files of a comparison may have two layouts."""
    try:
        return (
            layout if layout and any(str(each.layout) == layout for each in weights_of(file, layout).values()) else None
        )
    except RefsimError:
        return None


def _weight(file: TensorFile, codes: StoredTensor, meant: CheckpointLayout | None, *, scaled: bool) -> Weight | None:
    """Return the weight whose codes a tensor holds, or None for numbers: bytes without scales where none are `scaled`."""
    fitting, misfits = [], []
    for row in CHECKPOINT_LAYOUTS[1:] if meant is None else (meant,):
        fits = codes.dtype in row.codes.dtypes
        end = next((each for each in row.codes.ends if fits and codes.key.endswith(each)), None)
        if end is None:
            continue
        base = codes.key.removesuffix(end) if end else codes.key
        try:
            fitting.append(_fitted(file, codes, row, base))
        except MisfitError as problem:
            misfits.append((row, str(problem)))
    chosen = _by_config(file, fitting)
    if len(chosen) == 1:
        return chosen[0]
    if not chosen:
        if misfits and (meant or scaled or codes.dtype not in ("F8_E4M3", "F8_E5M2", "U8", "I8")):
            (row, why), *others = sorted(misfits, key=lambda each: each[1].endswith("is missing"))
            said = "; ".join(f"{each}: {text}" for each, text in others[:3])
            if why.endswith("is missing"):
                said = "give the folder or its index.json if the parts lie in several files"
            what, rule = f"{codes.key[:80]!r}: {why}", f"{row}: {row.summary}"
            raise unreadable("bad-shape", what, str(file.path), rule=rule, help=said)
        return None
    names = ", ".join(weight.layout.name for weight in chosen)
    what = f"{codes.key[:80]!r} fits several layouts: {names}"
    rule = f"{chosen[0].layout}: {chosen[0].layout.summary}; {chosen[1].layout}: {chosen[1].layout.summary}"
    raise unreadable("ambiguous-name", what, str(file.path), rule=rule, help=f"--layout {chosen[0].layout}, or another")


def _fitted(file: TensorFile, codes: StoredTensor, row: CheckpointLayout, base: str) -> Weight:
    """Return the weight by one layout; raise MisfitError."""
    parts = {}
    for role, part in row.parts.items():
        region = next((file.regions[base + end] for end in part.ends if base + end in file.regions), None)
        if region is None:
            if part.needed:
                raise MisfitError(f"{(base + part.ends[0])[:80]!r} is missing")
        elif region.dtype not in part.dtypes:
            if role != "input scale":
                raise MisfitError(f"{region.key[:80]!r} is {region.dtype}, not {' or '.join(part.dtypes)}")
        elif 0 in region.shape:
            raise MisfitError(f"{region.key[:80]!r} has shape {region.shape}")
        else:
            parts[role] = region
    key = base + row.becomes if row.codes.ends[0] else codes.key
    weight = Weight(file, key, row, codes, {role: each for role, each in parts.items() if role != "input scale"})
    told = [f"{codes.dtype} {codes.key[len(base) :]}" if codes.key != base else f"type {codes.dtype}"]
    told += [", ".join(f"{each.dtype} {each.key[len(base) :]}" for each in parts.values())][: bool(parts)]
    weight.why = " with ".join(told)
    return weight


def _by_config(file: TensorFile, fitting: list[Weight]) -> list[Weight]:
    """Return the weights whose layout config.json names, if it names one of them."""
    said = [str(file.config.get(name, "")) for name in ("checkpoint_format", "format", "quant_algo", "quant_method")]
    said += [str(each.get("format", "")) for each in _config_groups(file)]
    for word in dict.fromkeys(said):
        named = [weight for weight in fitting if word and word.lower() in map(str.lower, weight.layout.methods)]
        if named and len(named) < len(fitting):
            for weight in named:
                weight.why += f"; {file.config['file']} says {word}"
        fitting = named or fitting
    words = [word.lower() for word in said if word.lower() in CONFIG_METHODS]
    for weight in fitting:
        if words and weight.layout.methods and not {*words} & {*map(str.lower, weight.layout.methods)}:
            weight.why += f"; {file.config['file']} says {words[0]}, which these tensors are not"
    if len(fitting) < 2:
        return fitting
    ways = {(w.layout.element, w.layout.packing, w.layout.zero, w.bits) for w in fitting}
    parts = {(*(each.key for each in w.parts.values()), *map(min, w.block, w.matrix[1:])) for w in fitting}
    is_tiled = fitting[0].said(*BLOCK_SIZES, fits=_is_extent)
    blocks = [weight for weight in fitting if is_tiled and weight.layout.scaling == "blocks"]
    return (blocks or fitting)[:1] if len(ways) == len(parts) == 1 else fitting  # the same values by either


def _require_owners(file: TensorFile, found: Mapping[str, Weight]) -> None:
    """Raise for scales that belong to a weight which the file does not hold."""
    used = {region.key for weight in found.values() for region in weight.parts.values()}
    for key in file.regions:
        for end in (".weight_scale_inv", ".weight_scale_2", ".weight_global_scale", ".qzeros", "_scales", ".absmax"):
            base = key.removesuffix(end)
            if end == "_scales" and file.regions[key].dtype not in ("U8", "F8_E8M0"):
                continue  # of no layout
            if key.endswith(end) and key not in used and not key.endswith(SCALES_ALONE.ends) and base not in found:
                if any(other.startswith(base) and other != key for other in found) or base + ".weight" in file.regions:
                    continue
                what = f"{key[:80]!r} belongs to a weight that the file does not hold"
                raise unreadable("bad-file", what, str(file.path), rule="codes and scales lie in one file or folder")


def _own_weight(file: TensorFile, note: str) -> Weight:
    """Return a weight of `refsim quantize`; raise `Kind.UNREADABLE` for a note or parts that do not fit."""
    key = note.removeprefix(BLOCKS_NOTE)
    name, _, by = file.metadata[note].partition(" ")
    try:
        row = block_format(name)
        recipe_named(by or None, row)
        factor = {"factor": key + TENSOR_SCALE} if row.two_levels else {}
        wanted = {"codes": key, "scales": key + OWN_SCALES, **factor}
        missing = [each for each in wanted.values() if each not in file.regions]
        if missing:
            rule = f"{note}: {file.metadata[note]}"
            raise RefsimError("unknown-key", f"no tensor is called {missing[0]!r}", rule=rule)
        parts = {role: file.regions[each] for role, each in wanted.items()}
        for role, widths in (("codes", (row.element.bits, 8)), ("scales", (8,)), ("factor", (F32.bits,))):
            region = parts.get(role)
            if region and (BITS[region.dtype] not in widths or (role == "factor" and prod(region.shape) != 1)):
                what = f"{region.key!r} is {region.dtype} of shape {region.shape}"
                rule = f"{row}: {row.element} elements, a byte for each scale, one float32 for the tensor"
                raise RefsimError("bad-dtype", what, rule=rule)
        shape, scales = parts["codes"].shape, parts["scales"].shape
        if not shape or scales != (*shape[:-1], shape[-1] // row.width) or shape[-1] % row.width:
            what = f"{key!r} has shape {shape}, its scales {scales}"
            raise RefsimError("bad-shape", what, rule=f"{row.width} of K share one")
        codes = parts.pop("codes")
        return Weight(file, key, CHECKPOINT_LAYOUTS[0], codes, parts, f"metadata {note}: {file.metadata[note]}")
    except RefsimError as error:
        raise unreadable(error.code, error.what, str(file.path), rule=error.rule, help=error.help) from error
    except MisfitError as problem:
        raise unreadable("bad-shape", str(problem), str(file.path)) from problem
