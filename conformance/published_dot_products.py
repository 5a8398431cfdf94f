"""The model against published outputs of real tensor cores: python -m conformance.published_dot_products FOLDER -o PAGE

FOLDER holds the sets that `conformance.published_sets` describes, in folders of any name; some of them are enough without -o.
`--sample FILE.npz.xz` also writes the sample that is bundled: the dot products of each set that tell the most wrong entries
apart.
"""

import argparse
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from conformance.published_sample import Sample
from conformance.published_sets import MATLAB, MMAEMU, TCGEN05, read, sets
from refsim.silicon.tensor_witness import DotProducts

COLUMNS = ("chip", "target", "instruction", "types", "result", "K", "set", "dot products", "differing")
ORIGINS = {MATLAB: "MATLAB-tensor-core", MMAEMU: "mmaemu", TCGEN05: "tcgen05"}
Line = tuple[str | int, ...]


def head(origin: str, each: DotProducts) -> Line:
    """What the page says of some dot products, before their counts."""
    a, b, d = each.types
    return (each.chip, each.target, each.unit, f"{a} x {b}", d, each.k, ORIGINS[origin])


def compared(folder: Path, sample: Sample | None) -> Iterator[Line]:
    """The lines of the page: dot products that have the same instruction and types count together."""
    words: Counter[Line] = Counter()
    differing: Counter[Line] = Counter()
    for file in sets(folder):
        for origin, each in read(file):
            line = head(origin, each)
            words[line] += each.d.size
            differing[line] += int(np.count_nonzero(each.modelled() != each.d))
            if sample is not None:
                sample.add(file.stem, each)
    for line, count in words.items():
        yield (*line, count, differing[line])


def page(rows: list[Line]) -> str:
    """The committed report."""
    products, differing = sum(int(each[-2]) for each in rows), sum(int(each[-1]) for each in rows)
    lines = [f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else cell for cell in each)} |" for each in rows]
    chips = len({each[0] for each in rows})
    return "\n".join(
        (
            f"# Published dot products of {chips} chips",
            "",
            f"Outputs of real tensor cores against `refsim.numerics`: {products:,} results, {differing:,} differing. Whole sets",
            f"are not part of this project: {MATLAB},",
            f"{MMAEMU} and {TCGEN05}. A sample of each is in `conformance/vectors/published`, with the licences, and",
            "verdicts replay it.",
            "",
            "Operands of the MATLAB models are about N(0, 1): no NaN or infinity is among them, and subnormals of f16 and",
            "E5M2 are few. They show F, the rounding and the place of C, not what a zero or a special operand does. Several",
            "chips were given the same operands. Hopper's wgmma read no C. K is that of one instruction; some sets of mmaemu",
            "chain it.",
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
    parser.add_argument("--sample", type=Path, help="write the sample there, and its facts beside it")
    options = parser.parse_args()
    sample = None if options.sample is None else Sample()
    try:
        rows = list(compared(options.folder, sample))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as problem:
        print(f"{options.folder}: not the published sets: {problem}", file=sys.stderr)
        return 3
    if not rows:
        print(f"{options.folder}: no set of dot products is there", file=sys.stderr)
        return 3
    if sample is not None:
        sample.write(options.sample)
    if options.output is None:
        print(page(rows), end="")
    else:
        options.output.write_text(page(rows), "utf-8")
    differing = sum(int(each[-1]) for each in rows)
    print(f"{sum(int(each[-2]) for each in rows):,} results, {differing:,} differing", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
