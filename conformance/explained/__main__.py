"""Asks what makes planted pairs differ, and writes how many were named right: python -m conformance.explained -o FILE"""

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from conformance.explained.block_pairs import block_scaled
from conformance.explained.pairs import LARGE, all_pairs
from conformance.explained.trials import asked, summary


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.explained", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, help="a JSON file; the terminal if left out")
    parser.add_argument("--small", type=int, default=3, help="seeds of 24 x 40 x 512")
    parser.add_argument("--large", type=int, default=1, help="seeds of 128 x 128 x 512")
    parser.add_argument("--outputs", type=int, default=6, help="seeds of outputs without operands")
    parser.add_argument("--blocks", type=int, default=0, help="seeds of block-scaled products, 128 x 128 x 512")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    pairs = list(all_pairs(given.small, given.large, given.outputs))
    for seed in range(given.blocks):
        pairs += block_scaled(seed, LARGE)
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        rows = list(pool.map(asked, pairs))
    found = summary(rows, " ".join(["python -m conformance.explained", *sys.argv[1:]]))
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    text = f'{{"summary": {json.dumps(found, indent=1)},\n "pairs": [\n{lines}\n]}}'
    if given.output is None:
        print(text)
    else:
        given.output.write_text(text + "\n", "utf-8")
        print(json.dumps(found, indent=1))
    return 0 if all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
