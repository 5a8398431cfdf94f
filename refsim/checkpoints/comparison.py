"""Two checkpoints of one model, tensor by tensor: in bits where they are stored alike, else by their values."""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.checkpoints.reading import Weight, layout_where, weights_of
from refsim.conversions import decode, round_bits
from refsim.files.parts import PIECE_BYTES, TensorFile, source
from refsim.files.safetensors import PLAIN_TYPES, StoredTensor
from refsim.formats import F32
from refsim.scaling.wide import WIDE_FORMATS

COLUMN_PACKED = ("awq", "down")
Side = tuple[TensorFile, dict[str, Weight]]


@dataclass(frozen=True)
class TensorDifference:
    """How a tensor of two checkpoints differs: `differing` of `count` elements, in bits or by value.

    `worst` is the largest difference of two values, divided by the largest magnitude of the second file's; infinite for a
    NaN or an infinity on one side, for shapes that differ, and for a tensor that one file lacks.
    """

    key: str
    shape: tuple[int, ...]
    layouts: str
    compared: str
    differing: int
    count: int
    worst: float


def compare_checkpoints(
    one: Path, other: Path, pattern: str | None = None, layout: str | None = None
) -> list[TensorDifference]:
    """Return a row for each tensor of two files, folders or indexes, the worst first.

    A weight is called as once it is dequantized. Weights in one layout and tensors of one type are compared in bits,
    others by their values in float32, or in the format of a side that is not quantized; a matrix (K, N) of awq and gptq
    is turned where the other is (N, K). `layout` overrides what names tell where weights of a file have it. Raises
    RefsimError as `weights_of` does, and `unknown-key` where no tensor has the name of `pattern`.
    """
    with source(one) as a, source(other) as b:
        left, right = ((file, weights_of(file, layout_where(file, layout))) for file in (a, b))
        found = [_difference(left, right, key) for key in _names(left) | _names(right) if pattern in (None, key)]
    return sorted(found, key=lambda row: (-row.worst, -row.differing, row.key))


def _names(side: Side) -> dict[str, None]:
    """Return the names of weights and of tensors that belong to none."""
    file, weights = side
    spent = {each.key for weight in weights.values() for each in (weight.codes, *weight.parts.values())}
    return dict.fromkeys([*weights, *(key for key in file.regions if key not in spent)])


def _difference(left: Side, right: Side, key: str) -> TensorDifference:
    """Return how one tensor differs, compared as its layouts allow."""
    sides = [(weights.get(key), file.regions.get(key)) for file, weights in (left, right)]
    layouts = [str(weight.layout) if weight else region.dtype if region else "-" for weight, region in sides]
    shapes = [weight.shape if weight else region.shape if region else None for weight, region in sides]
    named = layouts[0] if layouts[0] == layouts[1] else " and ".join(layouts)
    shape = shapes[0] or shapes[1] or ()
    if None in shapes:
        return TensorDifference(key, shape, named, "only in one", 0, 0, inf)
    ways = _ways(sides, shapes)
    if not ways:
        return TensorDifference(key, shape, named, f"shape {shapes[1]}", 0, 0, inf)
    if layouts[0] == layouts[1]:
        alike, differing, count = _in_bits(left, right, key)
        worst = 0.0 if alike else _by_value(left, right, key, turned=False)[2]
        return TensorDifference(key, shape, named, "bits", differing, count, worst)
    found = [(_by_value(left, right, key, turned=way), "values, turned" if way else "values") for way in ways]
    numbers, compared = min(found, key=lambda each: each[0][0])
    return TensorDifference(key, shape, named, compared, *numbers)


def _ways(sides: list[tuple[Weight | None, StoredTensor | None]], shapes: list[Any]) -> list[bool]:
    """Return whether the second side is read turned: False, True, both where either fits, or none.

    Matrices of awq and gptq lie (K, N). transformers turns the experts of GPT-OSS that are called `_blocks`: a file of
    their values has (experts, K, N), or (experts, N, K) where `refsim dequantize` wrote it.
    """
    turned = [weight is not None and weight.layout.packing in COLUMN_PACKED for weight, _ in sides]
    experts = [weight is not None and weight.codes.key.endswith("_blocks") for weight, _ in sides]
    fits = {False: shapes[0] == shapes[1], True: shapes[0] == (*shapes[1][:-2], *shapes[1][-2:][::-1])}
    if experts[0] != experts[1]:
        return [way for way, fitting in fits.items() if fitting]
    way = turned[0] != turned[1]
    return [way] if fits[way] else []


def _in_bits(left: Side, right: Side, key: str) -> tuple[bool, int, int]:
    """Return whether all parts have equal bytes, how many of their bytes differ, and the count of bytes."""
    parts = [
        [weights[key].codes, *weights[key].parts.values()] if key in weights else [file.regions[key]]
        for file, weights in (left, right)
    ]
    differing = count = 0
    for a, b in zip(*parts, strict=False):
        size = min(a.end - a.begin, b.end - b.begin)
        count += max(a.end - a.begin, b.end - b.begin)
        for offset in range(0, size, PIECE_BYTES):
            length = min(PIECE_BYTES, size - offset)
            pair = ((left[0], a), (right[0], b))
            raw = [np.frombuffer(file.take(each, offset, length), np.uint8) for file, each in pair]
            differing += int(np.count_nonzero(raw[0] != raw[1]))
    return differing == 0 and len(parts[0]) == len(parts[1]), differing, count


def _by_value(left: Side, right: Side, key: str, *, turned: bool) -> tuple[int, int, float]:
    """Return how many values differ, how many there are, and the worst difference relative to the largest value."""
    held = left[1][key] if key in left[1] else left[0].regions[key]
    rows, columns = held.rows
    step = held.shape[-2] if turned else max(128, PIECE_BYTES // (8 * max(1, columns)) // 128 * 128)
    differing = count = 0
    worst = largest = 0.0
    plain = [file.regions[key].format for file, weights in (left, right) if key not in weights]
    wide = next((row for row in plain if row in WIDE_FORMATS), F32)

    def rounded(side: Side, first: int, count: int) -> NDArray[np.float64]:
        found = _values(side, key, first, count)
        return np.asarray(decode(round_bits(found, wide), wide, np.float64)) if key in side[1] else found

    for first in range(0, rows, step):
        a = rounded(left, first, min(step, rows - first))
        b = rounded(right, first // step * columns, columns).T if turned else rounded(right, first, len(a))
        with np.errstate(all="ignore"):
            apart = np.abs(a - b)[~((a == b) | (np.isnan(a) & np.isnan(b)))]
        finite = np.abs(b[np.isfinite(b)])
        differing, count = differing + int(apart.size), count + a.size
        largest = max(largest, float(finite.max()) if finite.size else 0.0)
        worst = max(worst, 0.0 if not apart.size else inf if np.isnan(apart).any() else float(apart.max()))
    return differing, count, worst / largest if largest else inf if worst else 0.0


def _values(side: Side, key: str, first: int, count: int) -> NDArray[np.float64]:
    """Return rows of a weight or of a tensor as float64."""
    file, weights = side
    if key in weights:
        return weights[key].values(first, count)
    region = file.regions[key]
    if region.format is None:
        kind, width = np.dtype(PLAIN_TYPES[region.dtype]), region.rows[1]
        raw = file.take(region, first * width * kind.itemsize, count * width * kind.itemsize)
        return np.frombuffer(raw, kind).reshape(count, width).astype(np.float64)
    return np.asarray(decode(file.codes(region, first, count), region.format, np.float64), np.float64)


def are_checkpoints(*paths: Path, layout: str | None = None) -> bool:
    """Return whether each path is a folder, an index, or a file of more tensors than the parts of one weight."""
    for path in paths:
        if path.is_dir() or path.suffix == ".json":
            continue
        if path.suffix.lower() not in (".safetensors", ".gguf") or not path.is_file():
            return False
        with source(path) as file:
            if len(_names((file, weights_of(file, layout_where(file, layout))))) < 2:
                return False
    return True
