"""The model against published outputs of real tensor cores: python -m conformance.published_dot_products FOLDER -o PAGE

The data is `model_validation` of north-numerical-computing/MATLAB-tensor-core at b12b5a7 (Khattak and Mikaitis), which is not
part of this project: 32 sets of 5,000 dot products. FOLDER holds a file for each set, `<GPU>_<format>.npz`: `a` and `b` are
uint32 [5000, K], the operands as float32 words; `c` uint32 [5000]; `d_fp32` uint32 [5000]; and where there is an f16 result,
`d_fp16`, widened to float32 words. For that one c was first rounded to f16, to nearest even.
"""

import argparse
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from refsim import decode, encode, numerics
from refsim.numerics.rows import Unit

REPOSITORY = "north-numerical-computing/MATLAB-tensor-core at b12b5a7"
TARGETS = {
    "V100": "sm_70",
    "A100": "sm_80",
    "A2": "sm_86",
    "Ada": "sm_89",
    "L40S": "sm_89",
    "H100": "sm_90",
    "H200": "sm_90",
    "B200": "sm_100",
}
FORMATS = {"fp16": "f16", "bf16": "bf16", "tf32": "tf32", "E4M3": "e4m3", "E5M2": "e5m2"}
RESULTS = {"d_fp32": "f32", "d_fp16": "f16"}
COLUMNS = ("chip", "target", "instruction", "types", "result", "K", "C", "dot products", "differing")


@dataclass(frozen=True)
class Published:
    """One column of published results with the instruction that made it."""

    chip: str
    type: str
    result: str
    unit: Unit
    a: NDArray[np.uint32]
    b: NDArray[np.uint32]
    c: NDArray[np.uint32] | None
    d: NDArray[np.uint32]

    @property
    def target(self) -> str:
        return TARGETS[self.chip]

    def modelled(self) -> NDArray[np.uint32]:
        """The same dot products by `numerics.mma`, as float32 words: 5,000 matrices of one row and one column."""
        a, b = (encode(words.view(np.float32), self.type)[:, None, :] for words in (self.a, self.b))
        c = None
        if self.c is not None:
            c = self.c.view(np.float32)[:, None, None]
            c = encode(c, "f16").view(np.float16) if self.result == "f16" else c
        found = numerics.mma(
            a,
            b,
            c,
            unit=self.unit,
            target=self.target,
            a_format=self.type,
            b_format=self.type,
            d_format=self.result,
            k=self.a.shape[1],
        )
        values = found.ravel() if self.result == "f32" else decode(found.ravel().view(np.uint16), "f16")
        return np.asarray(values, np.float32).view(np.uint32)


def unit_of(chip: str, type: str, result: str) -> tuple[Unit, bool]:
    """The unit behind a column, and whether it read C: FP8 into f32 on Hopper is a wgmma that was given none."""
    without_c = chip in ("H100", "H200") and type in ("e4m3", "e5m2") and result == "f32"
    return ("wgmma", False) if without_c else ("mma.sync", True)


def columns(file: Path) -> Iterator[Published]:
    """The columns of one set; ValueError where a file is no such set."""
    chip, _, name = file.stem.partition("_")
    if chip not in TARGETS or name not in FORMATS:
        raise ValueError(f"{file.name}: not <GPU>_<format>.npz of {', '.join(TARGETS)} and {', '.join(FORMATS)}")
    with np.load(file, allow_pickle=False) as stored:
        arrays = {key: np.asarray(stored[key]) for key in stored.files}
    for key, result in RESULTS.items():
        if key in arrays:
            unit, reads_c = unit_of(chip, FORMATS[name], result)
            c = arrays["c"] if reads_c else None
            yield Published(chip, FORMATS[name], result, unit, arrays["a"], arrays["b"], c, arrays[key])


def row(column: Published) -> tuple[str | int, ...]:
    """A line of the page; the last cell counts words that are not the model's."""
    differing = int(np.count_nonzero(column.modelled() != column.d))
    c = "given" if column.c is not None else "none"
    head = (column.chip, column.target, column.unit, f"{column.type} x {column.type}", column.result)
    return (*head, column.a.shape[1], c, column.d.size, differing)


def page(rows: list[tuple[str | int, ...]]) -> str:
    """The committed report."""
    products, differing = sum(int(each[-2]) for each in rows), sum(int(each[-1]) for each in rows)
    lines = [f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else cell for cell in each)} |" for each in rows]
    return "\n".join(
        (
            "# Published dot products of eight chips",
            "",
            f"Outputs of real tensor cores from {REPOSITORY}, which are not part of this project,",
            f"against `refsim.numerics`: {products:,} results, {differing:,} differing. Operands are about N(0, 1): no NaN or",
            "infinity is among them, and subnormals of f16 and E5M2 are few. They show F, the rounding and the place of C, not",
            "what a zero or a special operand does. K is that of the published sets. Several chips were given the same operands.",
            "",
            "    python -m conformance.published_dot_products FOLDER -o conformance/reports/published_dot_products.md",
            "",
            f"| {' | '.join(COLUMNS)} |",
            f"|{'---|' * len(COLUMNS)}",
            *lines,
            "",
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="compare the model with published outputs of tensor cores")
    parser.add_argument("folder", type=Path, help="where the sets lie")
    parser.add_argument("-o", "--output", type=Path, help="write the page there")
    options = parser.parse_args()
    order = list(TARGETS)
    try:
        files = sorted(
            options.folder.glob("*.npz"), key=lambda file: (order.index(file.stem.partition("_")[0]), file.stem)
        )
        rows = [row(column) for file in files for column in columns(file)]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as problem:
        print(f"{options.folder}: not the published sets: {problem}", file=sys.stderr)
        return 3
    if not rows:
        print(f"{options.folder}: no set of dot products is there", file=sys.stderr)
        return 3
    if options.output is None:
        print(page(rows), end="")
    else:
        options.output.write_text(page(rows), "utf-8")
    differing = sum(int(each[-1]) for each in rows)
    print(f"{sum(int(each[-2]) for each in rows):,} results, {differing:,} differing", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
