"""Planted pairs of a quantiser that goes wrong on one of its paths: some columns, the last tile, NaN, another place."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.explained import arithmetic as own
from conformance.explained.pairs import Pair
from conformance.explained.quantiser_pairs import (
    GROUPS,
    KINDS,
    LARGE,
    MX8,
    SMALL,
    Kind,
    Matrix,
    Steps,
    drawn,
    held_out,
    of_buffers,
    of_steps,
)
from refsim.causes import Family, QuantizedFrom

POISON = 0xA5


def _amax_of(x: Matrix, kind: Kind) -> Matrix:
    return x.reshape(len(x), -1, kind.width).max(axis=2)


def _signed_in(chosen: Callable[[Any], Any]) -> Callable[[Matrix, Kind], Matrix]:
    """The sign is kept in some columns, so that what is negative there is never the largest."""

    def amax(x: Matrix, kind: Kind) -> Matrix:
        signed = chosen(np.arange(x.shape[1]))
        return _amax_of(np.where(signed, np.maximum(x, 0), np.abs(x)), kind)

    return amax


def _cut_before_power(bits: int) -> Callable[[Matrix, Kind], Matrix]:
    """The power of two above what is left of amax / MAX behind so many bits."""

    def scales(amax: Matrix, kind: Kind) -> Matrix:
        bounded = np.maximum(amax, np.float32(1e-4)) if not kind.has_powers else amax
        with np.errstate(divide="ignore"):
            return 2.0 ** np.maximum(np.ceil(np.log2(own.cut(bounded.astype(np.float64) / kind.largest, bits))), -126)

    return scales


def _by_reciprocal(amax: Matrix, kind: Kind) -> Matrix:
    return np.maximum(amax, np.float32(1e-4)) * (np.float32(1) / np.float32(kind.largest))


def _of_first_two(scales: Matrix) -> Matrix:
    """Blocks 2 and 3 of four have the scales of 0 and 1."""
    fours = scales.reshape(len(scales), -1, 4)
    return np.concatenate([fours[:, :, :2]] * 2, axis=2).reshape(scales.shape)


def _of_rows_apart(scales: Matrix) -> Matrix:
    """Of four rows of a tile, 32 apart, all have the scale of the first."""
    rows = np.arange(len(scales))
    return scales[rows - rows % 128 // 32 * 32]


STEPS: dict[str, tuple[Family, Steps, tuple[Kind, ...]]] = {
    "abs forgotten in columns 0 and 1 of 8": (Family.AMAX, Steps(amax=_signed_in(lambda c: c % 8 < 2)), KINDS),
    "abs forgotten in odd columns": (Family.AMAX, Steps(amax=_signed_in(lambda c: c % 2 == 1)), KINDS),
    "power above what 2 bits say": (Family.SCALE_RULE, Steps(scales=_cut_before_power(2)), (MX8, GROUPS)),
    "power above what 7 bits say": (Family.SCALE_RULE, Steps(scales=_cut_before_power(7)), (GROUPS,)),
    "times 1 / 448": (Family.SCALE_RULE, Steps(scales=_by_reciprocal), (GROUPS,)),
    "elements by the row 32 above": (Family.SCALE_LAYOUT, Steps(used=_of_rows_apart), (MX8, GROUPS)),
}
"""Steps that codes and scales share, or that elements alone have."""


def _kept(kind: Kind) -> str:
    return "e8m0" if kind.has_powers else "f32"


def of_paths(seed: int, shape: tuple[int, int]) -> Iterator[Pair]:
    """One step otherwise; some columns converted otherwise; scales of the first two blocks of four for all."""
    x, two = drawn(seed, shape), seed % 2
    for kind in KINDS:
        usual = Steps().run(x, kind)
        given, title = QuantizedFrom(x=x, to=kind.to), f"{kind.to}, {shape[0]} x {shape[1]}"
        for name, (family, steps, kinds) in STEPS.items():
            made = steps.run(x, kind)
            if kind not in kinds or sum(int((a != b).sum()) for a, b in zip(made, usual, strict=True)) < 16:
                continue
            beside = replace(given, scales=made[1], want_scales=usual[1] if two else None)
            yield Pair(f"{title}: {name}", family, made[0], usual[0] if two else None, kind.format, quantized=beside)
        if usual[1].shape[1] % 4 == 0:
            scales = Steps(scales=lambda amax, kind: _of_first_two(Steps().scales(amax, kind))).run(x, kind)
            beside = replace(given, scales=scales[1])
            yield Pair(f"{title}: two of four", Family.SCALE_LAYOUT, scales[0], None, kind.format, quantized=beside)
        some = np.arange(shape[1]) % 4 < 2
        unsigned = np.where(some, usual[0] & (7 if kind.format == "e2m1" else 127), usual[0])
        yield Pair(
            f"{title}: no sign in two of four", Family.ZERO_SIGN, unsigned, usual[0], kind.format, quantized=given
        )


def of_reach(seed: int, shape: tuple[int, int]) -> Iterator[Pair]:
    """The last rows or columns are not reached, in codes and in scales; a block that is cut has no scale."""
    rows, columns = shape
    x = drawn(seed, shape)[: rows - 5]
    codes, scales = Steps().run(x, MX8)
    given, size = QuantizedFrom(x=x, to="mxfp8"), f"{rows - 5} x {columns}"
    end = (rows - 6) // 8 * 8
    for name, where in (("rows", np.s_[end:]), ("columns", np.s_[:, columns - 32 :])):
        q, s = codes.copy(), scales.copy()
        q[where] = POISON
        s[(where if name == "rows" else np.s_[:, -1:])] = POISON
        beside = replace(given, scales=s, want_scales=scales)
        yield Pair(f"{size}: the last {name} of both", Family.TAIL, q, codes, "e4m3", quantized=beside)
    packed = np.full(scales.size, POISON, np.uint8)
    fewer = scales[:, :-1].reshape(-1)
    packed[: fewer.size] = fewer
    q = codes.copy()
    q[:, -32:] = POISON
    beside = replace(given, scales=packed.reshape(scales.shape), want_scales=scales)
    yield Pair(f"{size}: the last columns, packed", Family.TAIL, q, codes, "e4m3", quantized=beside)
    cut = scales.copy()
    cut[:, -1] = 0
    narrow = replace(given, x=x[:, : columns - 8])
    yield Pair(f"{size}: no scale for a cut block", Family.TAIL, cut, _of_cut(x, columns - 8), "e8m0", quantized=narrow)


def _of_cut(x: Matrix, columns: int) -> Matrix:
    kept = x.copy()
    kept[:, columns:] = 0
    return Steps().run(kept, MX8)[1]


def of_places(seed: int, shape: tuple[int, int]) -> Iterator[Pair]:
    """MN-major words of four codes, of which five blocks fill two: turned about, and in lines as long as there are rows."""
    rows, columns = shape[0] - 3, 5 * 128
    x = drawn(seed, (shape[0], columns))[:rows]
    amax = np.abs(x).reshape(rows, -1, 128).max(axis=2).astype(np.float64)
    codes = np.asarray(np.ceil(np.log2(np.maximum(amax, np.float32(1e-4)) / 448)) + 127, np.uint8)
    lines = np.zeros((-(-codes.shape[1] // 4), -(-rows // 4) * 4, 4), np.uint8)
    for block in range(codes.shape[1]):
        lines[block // 4, :rows, block % 4] = codes[:, block]
    given = QuantizedFrom(x=x, to="1x128", layout="deepgemm_mn_ue8m0")
    turned = np.ascontiguousarray(lines[:, :, ::-1])
    yield Pair(f"{rows} x {columns}: words turned", Family.SCALE_LAYOUT, turned, lines, "e8m0", quantized=given)
    short = np.full(lines.size, POISON, np.uint8)
    packed = np.ascontiguousarray(lines[:, :rows]).reshape(-1)
    short[: packed.size] = packed
    title = f"{rows} x {columns}: short lines"
    yield Pair(title, Family.SCALE_LAYOUT, short.reshape(lines.shape), lines, "e8m0", quantized=given)


def of_special(seed: int, shape: tuple[int, int]) -> Iterator[Pair]:
    """Scales of blocks with NaN and infinity: a NaN that half of a vector drops, a NaN that counts for nothing."""
    random = np.random.default_rng(seed)
    x = drawn(seed, shape)
    x[random.random(shape) < 0.02] = np.nan
    eights = np.abs(x).reshape(len(x), -1, 2, 4).max(axis=3)
    dropped = np.fmax(eights[:, :, 0], eights[:, :, 1]).reshape(len(x), -1, 4).max(axis=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        usual, made, none = (
            np.where(np.isnan(amax), 255, np.nan_to_num(np.maximum(np.ceil(np.log2(amax / 448)), -127)) + 127)
            for amax in (
                np.abs(x).reshape(len(x), -1, 32).max(axis=2).astype(np.float64),
                dropped.astype(np.float64),
                np.fmax.reduce(np.abs(x).reshape(len(x), -1, 32), axis=2).astype(np.float64),
            )
        )
    given, size = QuantizedFrom(x=x, to="mxfp8"), f"{shape[0]} x {shape[1]}"
    for name, scales in (("dropped by halves", made), ("that does not count", none)):
        codes = scales.astype(np.uint8)
        title = f"{size}: a NaN {name}"
        yield Pair(title, Family.NAN, codes, usual.astype(np.uint8), "e8m0", quantized=given)


def held_out_paths(seed: int, shape: tuple[int, int]) -> Iterator[Pair]:
    """Neighbours of these that no row stands for: other columns, elements here and there, rows here and there."""
    x, random = drawn(seed, shape), np.random.default_rng(seed)
    size = f"{shape[0]} x {shape[1]}"
    for kind in (MX8, GROUPS):
        usual = Steps().run(x, kind)
        given, title = QuantizedFrom(x=x, to=kind.to), f"held out: {kind.to}, {size}"
        steps = Steps(amax=_signed_in(lambda c: (c * 5 % 11) < 3))
        yield Pair(
            f"{title}, abs forgotten here and there", "", steps.run(x, kind)[0], None, kind.format, quantized=given
        )
        some = random.random(shape) < 0.5
        signs = np.where(some, usual[0] & 127, usual[0])
        yield Pair(f"{title}, some without a sign", "", signs, usual[0], kind.format, quantized=given)
        rows = usual[0].copy()
        rows[random.permutation(len(x))[: len(x) // 3]] = POISON
        beside = replace(given, scales=usual[1], want_scales=usual[1])
        yield Pair(f"{title}, rows not written", "", rows, usual[0], kind.format, quantized=beside)


def quantisers(seeds: int, large: int) -> Iterator[Pair]:
    """Pairs of so many seeds of the small shape, and of so many of 128 x 512."""
    kinds = (of_steps, of_buffers, held_out, of_paths, of_reach, of_places, of_special, held_out_paths)
    for seed in range(seeds + large):
        shape = SMALL if seed < seeds else LARGE
        for pairs in kinds:
            yield from pairs(seed, shape)
