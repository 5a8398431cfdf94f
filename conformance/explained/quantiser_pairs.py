"""Planted pairs of a quantiser's outputs, codes and scales: by one of its own in NumPy, of which a step is done otherwise.

Values are integers times powers of two, so that ties occur; blocks of zeros, of tiny numbers and of negative ones are among them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.explained import arithmetic as own
from conformance.explained.pairs import Pair
from refsim.causes import Family, QuantizedFrom

Matrix = NDArray[Any]
SMALL, LARGE = (24, 256), (128, 512)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


@dataclass(frozen=True)
class Kind:
    """Blocks of `width` columns, elements converted by `element(values)`, the largest of which is `largest`."""

    to: str
    width: int
    largest: float
    element: Callable[..., Matrix]
    format: str
    has_powers: bool


def e2m1(values: Matrix, ties: str = "even") -> NDArray[np.uint8]:
    """FP4 codes by looking among all eight magnitudes; what is too large is the largest."""
    magnitude = np.minimum(np.abs(values), 6)
    above = np.searchsorted(E2M1, magnitude).clip(1, 7)
    low, high = magnitude - E2M1[above - 1], E2M1[above] - magnitude
    tie_up = (above % 2 == 0) if ties == "even" else np.ones(above.shape, bool)
    code = np.where((low > high) | ((low == high) & tie_up), above, above - 1)
    return np.asarray(code | np.where(np.signbit(values), 8, 0), np.uint8)


MX8, MX4 = Kind("mxfp8", 32, 448.0, own.e4m3, "e4m3", True), Kind("mxfp4", 32, 6.0, e2m1, "e2m1", True)
GROUPS = Kind("1x128", 128, 448.0, own.e4m3, "e4m3", False)
KINDS = (MX8, MX4, GROUPS)


def drawn(seed: int, shape: tuple[int, int]) -> NDArray[np.float32]:
    """Values with ties at every scale, and blocks of all kinds."""
    random = np.random.default_rng(seed)
    rows, columns = shape
    blocks = 2.0 ** random.integers(-9, 10, (rows, columns // 32)).repeat(32, 1)
    x = random.integers(-480, 481, shape) * 2.0 ** random.integers(-12, 1, shape) * blocks
    x[::5] *= 1 + random.random((1, columns)) * 2.0**-9  # numbers of 24 bits
    x[1, :128] = 0
    x[2, :64] = -np.abs(x[2, :64])
    x[3] *= 2.0**-40
    return np.asarray(x, np.float32)


# ---- the quantiser: each step a function that a plan may exchange ----------------------------------------------------------


def _blocks(x: Matrix, kind: Kind) -> Matrix:
    return x.reshape(len(x), -1, kind.width)


def _amax(x: Matrix, kind: Kind) -> Matrix:
    return np.abs(_blocks(x, kind)).max(axis=2)


def _scales(amax: Matrix, kind: Kind) -> Matrix:
    """The power of two above amax / MAX, at least 2^-127; of groups amax / MAX in float32, amax at least 1e-4."""
    if kind.has_powers:
        with np.errstate(divide="ignore"):
            return 2.0 ** np.maximum(np.ceil(np.log2(amax.astype(np.float64) / kind.largest)), -127)
    return np.maximum(amax, np.float32(1e-4)) / np.float32(kind.largest)


def _elements(x: Matrix, scales: Matrix, kind: Kind) -> Matrix:
    """What is converted: a product with the reciprocal, which is exact where scales are powers of two."""
    spread = scales.repeat(kind.width, 1)
    return x / spread if kind.has_powers else x * (np.float32(1) / spread)


@dataclass(frozen=True)
class Steps:
    """The steps of a quantiser; `stored` changes scales as they are stored, `used` those that elements are made with."""

    amax: Callable[[Matrix, Kind], Matrix] = _amax
    scales: Callable[[Matrix, Kind], Matrix] = _scales
    stored: Callable[[Matrix], Matrix] = lambda scales: scales
    used: Callable[[Matrix], Matrix] = lambda scales: scales
    element: Callable[[Matrix, Kind], Matrix] = lambda values, kind: kind.element(values)

    def run(self, x: Matrix, kind: Kind) -> tuple[Matrix, Matrix]:
        """Codes, and scales as codes of E8M0 or float32."""
        scales = self.scales(self.amax(x, kind), kind)
        codes = self.element(_elements(x, self.used(scales), kind), kind)
        stored = self.stored(scales)
        if not kind.has_powers:
            return codes, np.asarray(stored, np.float32)
        return codes, np.asarray(np.log2(stored) + 127, np.uint8)


def _power(round_power: Callable[[Matrix], Matrix]) -> Callable[[Matrix, Kind], Matrix]:
    def scales(amax: Matrix, kind: Kind) -> Matrix:
        bounded = np.maximum(amax, np.float32(1e-4)) if not kind.has_powers else amax
        with np.errstate(divide="ignore"):
            return 2.0 ** np.maximum(round_power(np.log2(bounded.astype(np.float64) / kind.largest)), -127)

    return scales


def _late(scales: Matrix) -> Matrix:
    return np.concatenate([scales[:, :1], scales[:, :-1]], axis=1)


def _signed(x: Matrix, kind: Kind) -> Matrix:
    return np.maximum(_blocks(x, kind).max(axis=2), 0)


def _half(x: Matrix, kind: Kind) -> Matrix:
    return np.abs(_blocks(x, kind)[:, :, : kind.width // 2]).max(axis=2)


def _of_row(x: Matrix, kind: Kind) -> Matrix:
    return np.abs(x).max(axis=1, keepdims=True).repeat(x.shape[1] // kind.width, 1)


def _pairs(x: Matrix, kind: Kind) -> Matrix:
    amax = _amax(x, kind)
    return amax.reshape(len(amax), -1, 2).max(axis=2).repeat(2, 1)


def _running(x: Matrix, kind: Kind) -> Matrix:
    return np.maximum.accumulate(_amax(x, kind), axis=1)


def _ties_away(values: Matrix, kind: Kind) -> Matrix:
    return kind.element(values, ties="away")


def _toward_zero(values: Matrix, kind: Kind) -> Matrix:
    table = E2M1 if kind is MX4 else own.table(7, 1)
    found = np.searchsorted(table, np.minimum(np.abs(values), kind.largest), side="right") - 1
    return np.asarray(found | np.where(np.signbit(values), 8 if kind is MX4 else 128, 0), np.uint8)


def _through_f16(values: Matrix, kind: Kind) -> Matrix:
    return kind.element(values.astype(np.float32).astype(np.float16).astype(np.float32))


def _through_bf16(values: Matrix, kind: Kind) -> Matrix:
    return kind.element(own.of_bf16(own.bf16(values.astype(np.float32))))


def _flushed(values: Matrix, kind: Kind) -> Matrix:
    codes = kind.element(values)
    return np.where(codes & 0x78, codes, codes & 0x80).astype(np.uint8)


def _of_fnuz(values: Matrix, kind: Kind) -> Matrix:
    return own.e4m3(values, bias=8, special=0)


def _stochastic(values: Matrix, kind: Kind) -> Matrix:
    noise = np.random.default_rng(7).uniform(-(2.0**-4), 2.0**-4, values.shape)
    return kind.element(values * (1 + noise))


CODES: dict[str, tuple[Family, Steps, tuple[Kind, ...]]] = {
    "ties away": (Family.TIES, Steps(element=_ties_away), KINDS),
    "toward zero": (Family.ROUNDING, Steps(element=_toward_zero), KINDS),
    "through f16": (Family.DOUBLE_ROUNDING, Steps(element=_through_f16), (MX8, GROUPS)),
    "through bf16": (Family.DOUBLE_ROUNDING, Steps(element=_through_bf16), (MX8, MX4, GROUPS)),
    "flushed": (Family.FLUSHED, Steps(element=_flushed), (MX8, GROUPS)),
    "codes of FNUZ": (Family.FNUZ, Steps(element=_of_fnuz), (MX8, GROUPS)),
    "abs forgotten": (Family.AMAX, Steps(amax=_signed), KINDS),
    "amax of half a block": (Family.AMAX, Steps(amax=_half), KINDS),
    "amax of the row": (Family.AMAX, Steps(amax=_of_row), KINDS),
    "amax of two blocks": (Family.AMAX, Steps(amax=_pairs), KINDS),
    "amax not begun anew": (Family.AMAX, Steps(amax=_running), KINDS),
    "amax of the block before": (Family.AMAX, Steps(amax=lambda x, kind: _late(_amax(x, kind))), KINDS),
    "power below": (Family.SCALE_RULE, Steps(scales=_power(np.floor)), KINDS),
    "nearest power": (Family.SCALE_RULE, Steps(scales=_power(np.rint)), KINDS),
    "power above": (Family.SCALE_RULE, Steps(scales=_power(np.ceil)), (GROUPS,)),
    "elements by the scale before": (Family.SCALE_LAYOUT, Steps(used=_late), KINDS),
    "inverted": (Family.SCALE_RULE, Steps(used=lambda s: (np.float32(1) / s).astype(s.dtype)), KINDS),
    "bounded by 1e-10": (
        Family.CLAMP,
        Steps(scales=lambda amax, kind: np.maximum(amax, np.float32(1e-10)) / np.float32(kind.largest)),
        (GROUPS,),
    ),
}
"""One step of the codes done otherwise; of most of them the scales too."""
SCALES: dict[str, tuple[Family, Steps, tuple[Kind, ...]]] = {
    "stored doubled": (Family.SCALE_RULE, Steps(stored=lambda s: s * s.dtype.type(2)), KINDS),
    "stored late": (Family.SCALE_LAYOUT, Steps(stored=_late), KINDS),
    "stored reciprocals": (Family.SCALE_RULE, Steps(stored=lambda s: (np.float32(1) / s).astype(s.dtype)), (GROUPS,)),
}
"""What is stored alone is done otherwise: elements are right."""


def _tiles_of_128x4(scales: Matrix, pad: int = 0) -> Matrix:
    rows, blocks = scales.shape
    padded = np.full((-(-rows // 128) * 128, -(-blocks // 4) * 4), pad, scales.dtype)
    padded[:rows, :blocks] = scales
    return padded.reshape(-1, 4, 32, padded.shape[1] // 4, 4).transpose(0, 3, 2, 1, 4).reshape(-1)


def _mn_major(scales: Matrix) -> Matrix:
    """Rows side by side, padded to four of them, a line for each block."""
    padded = np.zeros((scales.shape[1], -(-len(scales) // 4) * 4), scales.dtype)
    padded[:, : len(scales)] = scales.T
    return padded


def _words(scales: Matrix) -> Matrix:
    """Four codes of a row in a word, words of rows side by side."""
    rows, blocks = scales.shape
    return scales.reshape(rows, blocks // 4, 4).transpose(1, 0, 2).reshape(-1)


def of_steps(seed: int, shape: tuple[int, int]) -> Iterator[Pair]:
    """Codes alone, scales alone, and both, of every step."""
    x = drawn(seed, shape)
    for kind in KINDS:
        usual = Steps().run(x, kind)
        for name, (family, steps, kinds) in (CODES | SCALES).items():
            if kind not in kinds:
                continue
            made = steps.run(x, kind)
            differ = [int((one != other).sum()) for one, other in zip(made, usual, strict=True)]
            given = QuantizedFrom(x=x, to=kind.to)
            beside = replace(given, scales=made[1], want_scales=usual[1] if seed % 2 else None)
            want = usual if seed % 2 else (None, None)
            format_of_scales = "e8m0" if kind.has_powers else "f32"
            title = f"{kind.to}, {shape[0]} x {shape[1]}: {name}"
            if differ[0] > 15 and name in CODES:
                yield Pair(f"{title}, codes", family, made[0], want[0], kind.format, quantized=given)
            if differ[1] > 15:
                yield Pair(f"{title}, scales", family, made[1], want[1], format_of_scales, quantized=given)
            if sum(differ) > 15:
                yield Pair(f"{title}, both", family, made[0], want[0], kind.format, quantized=beside)


def of_buffers(seed: int, shape: tuple[int, int]) -> Iterator[Pair]:
    """Where scales lie, what pads hold, and what nobody wrote."""
    x = drawn(seed, shape)
    codes, scales = Steps().run(x, MX8)
    groups, floats = Steps().run(x, GROUPS)
    mx, of_groups = QuantizedFrom(x=x, to="mxfp8"), QuantizedFrom(x=x, to="1x128")
    tiles, two = _tiles_of_128x4(scales), seed % 2
    size, want = f"{shape[0]} x {shape[1]}", (tiles if two else None)
    if scales.size < tiles.size:
        rows = np.zeros_like(tiles)
        rows[: scales.size] = scales.reshape(-1)
        yield Pair(f"{size}: not in tiles", Family.SCALE_LAYOUT, rows, want, "e8m0", quantized=mx)
    of_128 = np.zeros((-(-shape[0] // 128) * 128, scales.shape[1]), np.uint8)
    of_128[: shape[0]] = scales
    rows_alone = of_128.reshape(-1, 4, 32, scales.shape[1]).swapaxes(1, 2).reshape(-1)
    yield Pair(f"{size}: rows alone in tiles", Family.SCALE_LAYOUT, rows_alone, want, "e8m0", quantized=mx)
    poisoned = _tiles_of_128x4(scales, 0xFF)
    if (poisoned != tiles).any():
        yield Pair(f"{size}: pads hold NaN", Family.PADS, poisoned, want, "e8m0", quantized=mx)
        yield Pair(f"{size}: pads hold NaN, alone", Family.PADS, poisoned, tiles, "e8m0")
    turned = scales.T.reshape(scales.shape)
    yield Pair(f"{size}: column by column", Family.SCALE_LAYOUT, turned, scales if two else None, "e8m0", quantized=mx)
    shuffled = tiles[: scales.size].reshape(scales.shape)
    yield Pair(f"{size}: in tiles", Family.SCALE_LAYOUT, shuffled, scales if two else None, "e8m0", quantized=mx)
    words = _words(scales).reshape(scales.shape)
    yield Pair(f"{size}: words", Family.SCALE_LAYOUT, words, scales if two else None, "e8m0", quantized=mx)
    tma = _mn_major(floats)
    by_rows = np.zeros(tma.size, np.float32)
    by_rows[: floats.size] = floats.reshape(-1)
    yield Pair(
        f"{size}: rows for MN-major",
        Family.SCALE_LAYOUT,
        by_rows.reshape(tma.shape),
        tma if two else None,
        "f32",
        quantized=of_groups,
    )
    for name, code in (("zeros", 0), ("poison", 0xAA)):
        tile = codes.copy()
        tile[16:, 64:128] = code
        yield Pair(f"{size}: a tile of {name}", Family.TAIL, tile, codes if two else None, "e4m3", quantized=mx)
    tail = groups.copy()
    tail[:, -32:] = 0xAA
    yield Pair(f"{size}: last columns", Family.TAIL, tail, groups if two else None, "e4m3", quantized=of_groups)


def held_out(seed: int, shape: tuple[int, int]) -> Iterator[Pair]:
    """Neighbours of what is planted that no row stands for, and outputs that do not differ."""
    x, random = drawn(seed, shape), np.random.default_rng(seed)
    size = f"{shape[0]} x {shape[1]}"
    for kind in KINDS:
        codes, scales = Steps().run(x, kind)
        given, title = QuantizedFrom(x=x, to=kind.to), f"{kind.to}, {size}"
        some = random.random(scales.shape) < 0.4
        larger = Steps(
            scales=lambda amax, kind, some=some: _scales(amax, kind) * np.where(some, 2, 1).astype(np.float32)
        )
        order = random.permutation(len(x))
        third = Steps(amax=lambda x, kind: np.abs(_blocks(x, kind)[:, :, ::3]).max(axis=2))
        kept = "e8m0" if kind.has_powers else "f32"
        yield Pair(f"held out: {title}, some larger", "", larger.run(x, kind)[0], None, kind.format, quantized=given)
        yield Pair(f"held out: {title}, rows shuffled", "", scales[order], None, kept, quantized=given)
        yield Pair(f"held out: {title}, every third", "", third.run(x, kind)[0], None, kind.format, quantized=given)
        noisy = Steps(element=_stochastic).run(x, kind)[0]
        yield Pair(f"held out: {title}, stochastic", "", noisy, codes, kind.format, quantized=given)
        mixed = replace(given, scales=scales[order])
        yield Pair(f"held out: {title}, codes right, scales shuffled", "", codes, None, kind.format, quantized=mixed)
        yield Pair(f"equal: {title}", None, codes, None, kind.format, quantized=replace(given, scales=scales))
