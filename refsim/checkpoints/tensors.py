"""What a checkpoint holds: a row for each tensor; and one tensor: the values of a weight, or the codes of any other."""

from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.checkpoints.layouts import SCALES_ALONE
from refsim.checkpoints.reading import ALIGNED_ROWS, Weight, layout_where, weights_of
from refsim.conversions import decode, round_bits
from refsim.errors import RefsimError
from refsim.files import DEFAULT_MAX_BYTES, Stored, codes_of
from refsim.files.access import unreadable
from refsim.files.codes import PACKED_BITS, agreed_format, bits_per_code, require_room
from refsim.files.parts import PIECE_BYTES, TensorFile, source
from refsim.files.safetensors import BITS, StoredTensor, entry
from refsim.formats import E8M0, F32, UE4M3, ElementType, Format
from refsim.scaling.wide import WIDE_FORMATS

MOST_READ_BYTES = 1 << 26
Row = tuple[str, str, str, str, str | None, str | None, int | None, int | None, str | None]


def listed(path: Path, key: str | None, layout: str | None, scan: bool) -> tuple[tuple[Row, ...], tuple[str, ...], int]:
    """Return a row for each tensor, lines that count the layouts, and of how many tensors no number was read.

    A row is the name, the type, the shape, the bits of a code as packed, the layout, the least and the largest scale,
    the count of NaN, the count of codes that the format does not have, and what told the layout. `key` is a pattern.
    """
    with source(path) as file:
        weights = weights_of(file, layout)
        part_of = {each.key: weight for weight in weights.values() for each in weight.parts.values()}
        by_codes = {weight.codes.key: weight for weight in weights.values()}
        rows, left, unread = [], MOST_READ_BYTES, 0
        names = [name for name in file.regions if key is None or fnmatchcase(name, key)]
        names = names or [each.codes.key for each in weights.values() if fnmatchcase(each.key, str(key))]
        if not file.regions:
            raise unreadable("empty-file", "the file holds no tensor", str(path))
        if not names:
            raise RefsimError("unknown-key", f"no tensor is called {str(key)[:80]!r}", where=str(path))
        for name in names:
            region, weight = file.regions[name], by_codes.get(name)
            size = region.end - region.begin + sum(e.end - e.begin for e in (weight.parts.values() if weight else ()))
            left -= size
            read = scan or left >= 0
            unread += not read
            form = region.format if weight is None else weight.layout.element or region.format
            nan, outside = _numbers(file, region, form, weight) if read else (None, None)
            meant = weight.layout.name if weight else f"of {part_of[name].key}" if name in part_of else None
            meant = meant or ("cache scale" if name.endswith(SCALES_ALONE.ends) else None)
            scales = _range(weight) if weight and read and weight.layout.packing != "blocks" else None
            shape = " x ".join(map(str, region.shape)) or "one"
            told = weight.why if weight else None
            rows.append((name, region.dtype, shape, _bits(region, weight), meant, scales, nan, outside, told))
        counted = Counter(by_codes[name].layout for name in names if name in by_codes)
        lines = tuple(f"{count} in layout {row}: {row.summary}" for row, count in counted.most_common())
        return tuple(rows), lines, unread


def _bits(region: StoredTensor, weight: Weight | None) -> str:
    """Return the bits that a code takes in the file."""
    if weight is not None and weight.layout.packing != "blocks":
        return str(weight.bits)
    return f"{8 * (region.end - region.begin) / max(1, prod(region.shape)):g}"


def _range(weight: Weight) -> str:
    """Return the least and the largest scale; a scale of NaN is neither."""
    found = weight.scales if weight.layout.name != "refsim" else weight.own_scales
    known = found[~np.isnan(found)]
    return f"{known.min():g} to {known.max():g}" if known.size else "all NaN"


def _numbers(
    file: TensorFile, region: StoredTensor, form: Format | None, weight: Weight | None
) -> tuple[int | None, int | None]:
    """Return how many codes are NaN, and how many the format does not have; None for integers."""
    if form is None or (weight is not None and weight.layout.packing == "blocks"):
        return None, None
    size, nan, outside = region.end - region.begin, 0, 0
    for offset in range(0, size, PIECE_BYTES):
        raw = np.frombuffer(file.take(region, offset, min(PIECE_BYTES, size - offset)), np.uint8)
        if bits_per_code(form) in PACKED_BITS and (weight is None or weight.bits < 8):
            continue  # every pattern is a number
        codes = raw.view(form.code_dtype.newbyteorder("<"))
        wrong = codes >= form.code_limit if form.code_limit <= np.iinfo(codes.dtype).max else np.zeros(0, bool)
        outside += int(np.count_nonzero(wrong))
        known = codes[~wrong] if wrong.any() else codes
        nan += int(np.count_nonzero(np.isnan(decode(known.astype(form.code_dtype), form, np.float32))))
    return nan, outside


WINDOWED_BYTES = 1 << 24
"""Tensors from this size on are read as rows are asked for, where a command shows a part of them."""
Rows = Callable[[TensorFile, int, int], NDArray[Any]]


class RowCodes:
    """The codes of a large tensor as a matrix; indexing by numpy.ix_ reads the rows that it needs."""

    ndim = 2

    def __init__(self, path: Path, shape: tuple[int, int], rows: Rows) -> None:
        self.path, self.shape, self.rows, self.size = path, shape, rows, prod(shape)

    def reshape(self, *shape: int) -> "RowCodes":
        """Return the matrix itself: it is one already."""
        return self

    def __getitem__(self, index: tuple[NDArray[Any], NDArray[Any]]) -> NDArray[Any]:
        rows, columns = (each.reshape(-1) for each in index)
        with source(self.path) as file:
            return np.concatenate([self.rows(file, row, 1) for row in rows.tolist()])[:, columns]


def load_tensor(
    path: Path,
    format: ElementType | None,
    key: str | None,
    layout: str | None,
    where_it_fits: str | None = None,
    *,
    scales: bool = False,
    windowed: bool = False,
) -> tuple[Stored | None, str]:
    """Return a tensor of a file, a folder or an index, and a line that names the layout of a quantized weight.

    A weight becomes its values in f32, each rounded once, or the codes of its `scales`, unless `format` asks for codes.
    The one weight of a file needs no `key`. None stands for a tensor of one safetensors file that is no weight:
    `files.load` reads it. `layout` overrides what names and types tell, `where_it_fits` does where a weight has that
    layout. `windowed`: large tensors are `RowCodes`. Raises RefsimError as `files.load` and `weights_of`
    do.
    """
    with source(path) as file:
        layout = layout or layout_where(file, where_it_fits)
        weights = weights_of(file, layout, key) if format is None or layout is not None else {}
        if key is None and len(weights) == 1:
            key = next(iter(weights))
        if key in weights:
            return _weight(file, weights[key], layout, scales=scales, windowed=windowed)
        region = file.regions.get(key or "")
        is_large = region is not None and region.end - region.begin >= WINDOWED_BYTES and BITS.get(region.dtype, 0) >= 8
        agrees = region is not None and (format is None or region.format in (None, format))
        if path.suffix.lower() == ".safetensors" and not (windowed and is_large and agrees):
            return None, ""
        if key is None or region is None:
            known = ", ".join(repr(each[:80]) for each in list(file.regions)[:8])
            what = "a checkpoint of several tensors" if key is None else f"no tensor is called {key[:80]!r}"
            rule = f"{len(file.regions)} tensors: {known}"
            raise RefsimError("unknown-key" if key else "key-needed", what, where=str(path), rule=rule, help="FILE:KEY")
        return _plain(file, region, format, windowed=windowed and is_large), ""


def _weight(
    file: TensorFile, weight: Weight, layout: str | None, *, scales: bool, windowed: bool
) -> tuple[Stored, str]:
    """Return the values of a weight, or the codes of its scales, and the line that names its layout."""
    told = f"by layout {weight.layout} ({weight.why})"
    notes = MappingProxyType(dict(file.metadata))
    if scales and "scales" in weight.parts:
        region = weight.parts["scales"]
        form = region.format or (UE4M3 if weight.layout.element is None else E8M0)
        raw = np.frombuffer(file.take(region, 0, region.end - region.begin), form.code_dtype.newbyteorder("<"))
        codes: Any = raw.astype(form.code_dtype).reshape(-1, region.shape[-1] if region.shape else 1)
        if form in WIDE_FORMATS:
            codes, form = round_bits(decode(codes, form, np.float32), F32), F32
        return Stored(weight.key, codes, form, "safetensors", notes), f"{weight.key}: scales {told}"
    rows, columns = weight.rows
    if windowed and 4 * rows * columns >= WINDOWED_BYTES:
        codes = RowCodes(
            file.path,
            weight.rows,
            lambda held, first, count: _values(weights_of(held, layout, weight.key)[weight.key], first, count),
        )
    else:
        require_room(4 * rows * columns, DEFAULT_MAX_BYTES, f"{file.path}, tensor {weight.key[:80]!r}")
        codes = np.empty((rows, columns), np.uint32)
        step = max(1, PIECE_BYTES // (8 * columns) // ALIGNED_ROWS) * ALIGNED_ROWS
        for first in range(0, rows, step):
            codes[first : first + step] = _values(weight, first, min(step, rows - first))
        codes = codes.reshape(weight.shape)
    return Stored(weight.key, codes, F32, "safetensors", notes), f"{weight.key}: values {told}"


def _values(weight: Weight, first: int, count: int) -> NDArray[Any]:
    """Return the values of rows as codes of f32."""
    return np.asarray(round_bits(weight.values(first, count), F32))


def _plain(file: TensorFile, region: StoredTensor, format: ElementType | None, *, windowed: bool) -> Stored:
    """Return the codes of a tensor that is no weight."""
    reader, start = file.readers[region.shard]
    described = entry(reader, start, region, region.format)
    if windowed:
        meant: Any = agreed_format(described, format)

        def read(held: TensorFile, first: int, count: int) -> NDArray[Any]:
            return held.codes(held.regions[region.key]._replace(format=meant), first, count)

        codes: Any = RowCodes(file.path, region.rows, read)
    else:
        codes, meant = codes_of(described, format, DEFAULT_MAX_BYTES)
    return Stored(region.key, codes, meant, "safetensors", MappingProxyType(dict(file.metadata)))
