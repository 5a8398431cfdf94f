"""Fits the tables of refsim/mufu to the series that record_special_functions.py recorded: integers that give every result.

    PYTHONPATH=. python3 gpu/probes/fit_special_functions.py FOLDER [--out refsim/mufu/coefficients.py]

A result says between which two totals C0 + C1 x + C2 square lies. For a pair (C1, C2) all results of a segment leave an interval
for C0. All pairs near the least squares stand in a grid; the results that narrow the widest interval are applied to all of it,
until the widest is that of every result. Under a minute; a segment that no integers fit ends the run.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from record_special_functions import STEM, unpacked

from refsim.mufu.interpolation import squares

Integers = NDArray[np.int64]
REACH = (40, 24)
"""How far from the least squares C1 and C2 are tried."""


@dataclass(frozen=True)
class Fit:
    """A table to find: `place` is the last place of totals, `parts` are consecutive ranges of 2^23 fractions.

    Of each part the series that show it, and what their results have beyond the total. The first `skip` fractions the unit
    treats apart.
    """

    name: str
    width: int
    lowest_column: int
    place: int
    c2_shift: int
    parts: tuple[tuple[tuple[str, float], ...], ...]
    skip: int = 0


FITS = (
    Fit("RCP", 16, 17, 40, 1, ((("rcp_approx_ftz_f32 127", 0.0),),)),
    Fit("RSQRT", 17, 19, 41, 2, ((("rsqrt_approx_ftz_f32 127", 0.0),), (("rsqrt_approx_ftz_f32 128", 0.0),)), skip=1),
    Fit("SQRT", 17, 19, 40, 1, ((("sqrt_approx_ftz_f32 127", 0.0),), (("sqrt_approx_ftz_f32 128", 0.0),))),
    Fit("EX2", 17, 19, 39, 2, ((("ex2_approx_ftz_f32 127", 0.0),),)),
    Fit("LG2", 17, 19, 38, 1, ((("lg2_approx_ftz_f32 127", 0.0), ("lg2_approx_ftz_f32 128", 1.0)),), skip=1),
)


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


def table(fit: Fit, words: Callable[[str], NDArray[np.uint32]]) -> tuple[int, list[tuple[int, int, int]]]:
    """(shift of C0, rows): C0 in the coarsest unit that every segment allows."""
    bounds = [[totals(words(name), fit.place, added) for name, added in part] for part in fit.parts]
    least = np.concatenate([np.maximum.reduce([b[0] for b in part]) for part in bounds])
    beyond = np.concatenate([np.minimum.reduce([b[1] for b in part]) for part in bounds])
    least[: fit.skip], beyond[: fit.skip] = -(1 << 60), 1 << 60
    x = np.arange(1 << fit.width, dtype=np.int64)
    square = squares(fit.width, fit.lowest_column) << fit.c2_shift
    found = []
    for segment in range(0, least.size, x.size):
        part = slice(segment + (fit.skip if segment == 0 else 0), segment + x.size)
        row = fitted(least[part], beyond[part], x[part.start - segment :], square[part.start - segment :])
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
        print(f"{fit.name}: every result of {', '.join(name for part in fit.parts for name, _ in part)}")
    options.out.write_text("\n".join([*text, "# fmt: on", ""]))


if __name__ == "__main__":
    main()
