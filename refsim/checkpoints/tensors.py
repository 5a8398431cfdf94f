"""One tensor of a checkpoint: the values of a quantized weight, or the codes of any other tensor."""

from collections.abc import Callable
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.checkpoints.reading import ALIGNED_ROWS, Weight, layout_where, weights_of
from refsim.conversions import decode, round_bits
from refsim.errors import RefsimError
from refsim.files import DEFAULT_MAX_BYTES, Stored, codes_of
from refsim.files.codes import agreed_format, require_room
from refsim.files.parts import PIECE_BYTES, TensorFile, source
from refsim.files.safetensors import BITS, StoredTensor, entry
from refsim.formats import E8M0, F32, UE4M3, ElementType
from refsim.scaling.wide import WIDE_FORMATS

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
