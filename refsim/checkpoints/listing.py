"""What a checkpoint holds: a row for each tensor, with its layout and what its numbers are."""

from collections import Counter
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path

import numpy as np

from refsim.checkpoints.layouts import SCALES_ALONE
from refsim.checkpoints.reading import Weight, weights_of
from refsim.conversions import decode
from refsim.errors import RefsimError
from refsim.files.access import unreadable
from refsim.files.codes import PACKED_BITS, bits_per_code
from refsim.files.parts import PIECE_BYTES, TensorFile, source
from refsim.files.safetensors import StoredTensor
from refsim.formats import Format

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
