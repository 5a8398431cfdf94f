"""Fits the tables of refsim/mufu to the series that record_special_functions.py recorded: integers that give every result.

    PYTHONPATH=. python3 gpu/probes/fit_special_functions.py FOLDER [--out refsim/mufu/coefficients.py]

A result says between which two totals C0 + C1 x + C2 square lies. For a pair (C1, C2) all results of a segment leave an interval
for C0. All pairs near the least squares stand in a grid; the results that narrow the widest interval are applied to all of it,
until the widest is that of every result. A minute or two; a segment that no integers fit ends the run.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from record_special_functions import MANTISSAS, STEM, unpacked

from refsim.mufu.instructions import turns
from refsim.mufu.interpolation import squares
from refsim.mufu.unit import quarters, segments_of_tanh

Integers = NDArray[np.int64]
REACH = (40, 24)
"""How far from the least squares C1 and C2 are tried."""


@dataclass(frozen=True)
class Series:
    """What one series shows of a table: of its words `places` gives the fractions, results have `added` beyond the total."""

    form: str
    top: int
    places: Callable[[NDArray[np.uint32]], Integers]
    added: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.form} {self.top}"

    def fractions(self) -> Integers:
        return self.places(np.arange(MANTISSAS, dtype=np.uint32) | np.uint32(self.top << 23))


@dataclass(frozen=True)
class Fit:
    """A table to find: `place` is the last place of totals. The first `skip` fractions the unit treats apart."""

    name: str
    width: int
    lowest_column: int
    place: int
    c2_shift: int
    segments: int
    series: tuple[Series, ...]
    skip: int = 0


def first_part(words: NDArray[np.uint32]) -> Integers:
    return (words & np.uint32(MANTISSAS - 1)).astype(np.int64)


def second_part(words: NDArray[np.uint32]) -> Integers:
    return first_part(words) + MANTISSAS


def of_quarter(words: NDArray[np.uint32]) -> Integers:
    """The fraction of the quarter turn in which the sine's table is read."""
    return quarters(turns(words.view(np.float32)).view(np.uint32))[1]


RSQRT, SQRT, LG2 = "rsqrt_approx_ftz_f32", "sqrt_approx_ftz_f32", "lg2_approx_ftz_f32"
FITS = (
    Fit("RCP", 16, 17, 40, 1, 128, (Series("rcp_approx_ftz_f32", 127, first_part),)),
    Fit("RSQRT", 17, 19, 41, 2, 128, (Series(RSQRT, 127, first_part), Series(RSQRT, 128, second_part)), skip=1),
    Fit("SQRT", 17, 19, 40, 1, 128, (Series(SQRT, 127, first_part), Series(SQRT, 128, second_part))),
    Fit("EX2", 17, 19, 39, 2, 64, (Series("ex2_approx_ftz_f32", 127, first_part),)),
    Fit("LG2", 17, 19, 38, 1, 64, (Series(LG2, 127, first_part), Series(LG2, 128, first_part, 1.0)), skip=1),
    Fit("SIN", 17, 19, 37, 0, 64, tuple(Series("sin_approx_ftz_f32", top, of_quarter) for top in range(112, 128))),
    Fit("TANH", 17, 19, 39, 0, 51, tuple(Series("tanh_approx_f32", top, segments_of_tanh) for top in range(119, 130))),
)
OPEN = 1 << 60
"""A total beyond every other: of fractions that no series shows."""


def totals(words: NDArray[np.uint32], place: int, added: float) -> tuple[Integers, Integers]:
    """Least total of each result, and the first beyond it: results are totals cut off below their last place."""
    values = words.view(np.float32).astype(np.float64)
    exponent = (words >> np.uint32(23)).astype(np.int64) - 127
    last = np.left_shift(np.int64(1), np.maximum(exponent - 23 + place, 0))
    least = np.ldexp(values - added, place).astype(np.int64)
    return least, least + last


def fitted(least: Integers, beyond: Integers, x: Integers, square: Integers) -> tuple[int, int, int, int] | None:
    """(C1, C2, least C0, first C0 beyond) of the pair that leaves C0 most room, or None."""
    every = max(1, x.size // 8192)
    middle = (least - least[0] + (beyond - least) // 2).astype(np.float64)[::every]
    columns = np.stack([np.ones(middle.size), x[::every], square[::every]], axis=1).astype(np.float64)
    start = np.linalg.lstsq(columns / columns.max(axis=0), middle, rcond=None)[0] / columns.max(axis=0)
    near = [np.arange(-reach, reach + 1) + round(c) for c, reach in zip(start[1:], REACH, strict=True)]
    c1, c2 = (grid.ravel().astype(np.int64) for grid in np.meshgrid(*near, indexing="ij"))
    low, high = np.full(c1.size, -(1 << 62)), np.full(c1.size, 1 << 62)
    places = set(np.linspace(0, x.size - 1, 33).astype(int).tolist())
    while True:
        for at in places:
            known = c1 * x[at] + c2 * square[at]
            np.maximum(low, least[at] - known, out=low)
            np.minimum(high, beyond[at] - known, out=high)
        best = int((high - low).argmax())
        if low[best] >= high[best]:
            return None
        known = c1[best] * x + c2[best] * square
        places = {int((least - known).argmax()), int((beyond - known).argmin())}
        if all(low[best] >= least[at] - known[at] and high[best] <= beyond[at] - known[at] for at in places):
            return int(c1[best]), int(c2[best]), int(low[best]), int(high[best])


def bounds(fit: Fit, words: Callable[[str], NDArray[np.uint32]]) -> tuple[Integers, Integers]:
    """Of every fraction the least total that its results allow, and the first beyond."""
    least = np.full(fit.segments << fit.width, -OPEN)
    beyond = np.full(fit.segments << fit.width, OPEN)
    for series in fit.series:
        at = series.fractions()
        low, high = totals(words(series.name), fit.place, series.added)
        np.maximum.at(least, at, low)
        np.minimum.at(beyond, at, high)
    least[: fit.skip], beyond[: fit.skip] = -OPEN, OPEN
    return least, beyond


def table(fit: Fit, words: Callable[[str], NDArray[np.uint32]]) -> tuple[int, list[tuple[int, int, int]]]:
    """(shift of C0, rows): C0 in the coarsest unit that every segment allows."""
    least, beyond = bounds(fit, words)
    x = np.arange(1 << fit.width, dtype=np.int64)
    square = squares(fit.width, fit.lowest_column) << fit.c2_shift
    found = []
    for segment in range(0, least.size, x.size):
        shown = np.flatnonzero(least[segment : segment + x.size] > -OPEN)
        row = fitted(least[segment + shown], beyond[segment + shown], x[shown], square[shown])
        if row is None:
            raise SystemExit(f"{fit.name}: no integers for the segment from {segment:#x}")
        found.append(row)
    shift = max(s for s in range(24) if all(-(-low >> s) << s < high for _, _, low, high in found))
    return shift, [(-(-low >> shift), c1, c2) for c1, c2, low, _ in found]


def lines(fit: Fit, shift: int, rows: list[tuple[int, int, int]]) -> Iterator[str]:
    yield f"{fit.name} = Quadratics({fit.width}, {fit.lowest_column}, {shift}, {fit.c2_shift}, ("
    for at in range(0, len(rows), 3):
        yield "    " + " ".join(f"{row}," for row in rows[at : at + 3])
    yield "))"


HEAD = '''"""Tables of the special-function unit: (C0, C1, C2) of each segment. Written by gpu/probes/fit_special_functions.py."""

from refsim.mufu.interpolation import Quadratics

# fmt: off'''


def main() -> None:
    parser = argparse.ArgumentParser(description="fit the tables of the special functions")
    parser.add_argument("folder", type=Path, help="where the recorded series are")
    parser.add_argument("--out", type=Path, default=Path("refsim/mufu/coefficients.py"))
    options = parser.parse_args()
    rows = json.loads((options.folder / f"{STEM}_series.json").read_text())["recordings"]
    files = [np.load(path) for path in options.folder.glob(f"{STEM}_series*.npz")]
    stored = {name: file for file in files for name in file.files}

    def words(name: str) -> NDArray[np.uint32]:
        return unpacked(stored[name][name].tobytes(), bool(rows[name]["cubic"]), rows[name]["count"])

    text = [HEAD]
    for fit in FITS:
        text += lines(fit, *table(fit, words))
        print(f"{fit.name}: every result of {', '.join(series.name for series in fit.series)}")
    options.out.write_text("\n".join([*text, "# fmt: on", ""]))


if __name__ == "__main__":
    main()
