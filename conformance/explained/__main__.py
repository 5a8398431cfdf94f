"""Asks what makes planted pairs differ, and writes how many were named right: python -m conformance.explained -o FILE"""

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from conformance.explained.attention_pairs import of_attention
from conformance.explained.block_pairs import block_scaled
from conformance.explained.group_pairs import of_groups
from conformance.explained.integer_pairs import of_integers
from conformance.explained.pairs import LARGE, all_pairs
from conformance.explained.quantiser_paths import quantisers
from conformance.explained.row_pairs import of_rows
from conformance.explained.trials import asked, summary
from conformance.explained.weight_pairs import of_weights


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.explained", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, help="a JSON file; the terminal if left out")
    parser.add_argument("--small", type=int, default=3, help="seeds of 24 x 40 x 512")
    parser.add_argument("--large", type=int, default=1, help="seeds of 128 x 128 x 512")
    parser.add_argument("--outputs", type=int, default=6, help="seeds of outputs without operands")
    parser.add_argument("--blocks", type=int, default=0, help="seeds of block-scaled products, 128 x 128 x 512")
    parser.add_argument("--quantisers", type=int, default=0, help="seeds of quantisers' outputs, 24 x 256")
    parser.add_argument("--quantisers-large", type=int, default=0, help="seeds of quantisers' outputs, 128 x 512")
    parser.add_argument("--rows", type=int, default=0, help="seeds of functions of rows, 24 x 300")
    parser.add_argument("--attention", type=int, default=0, help="seeds of attention, 4 x 40 x 32 of 150 keys")
    parser.add_argument("--groups", type=int, default=0, help="seeds of batches, 5 x 12 x 24 x 256, and of experts")
    parser.add_argument("--integers", type=int, default=0, help="seeds of products of integers, 24 x 40 x 160")
    parser.add_argument("--weights", type=int, default=0, help="seeds of narrow weights, 48 x 24 x 128")
    parser.add_argument("--broken", action="store_true", help="ask about the broken kernels of this project instead")
    parser.add_argument(
        "--only",
        nargs="*",
        default=[],
        metavar="NAME",
        help="what begins so alone: rows/ faults/ties, or softmax: equal:",
    )
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    command = " ".join(["python -m conformance.explained", *sys.argv[1:]])
    if given.broken:
        return _of_broken(given, command)
    pairs = list(all_pairs(given.small, given.large, given.outputs))
    for seed in range(given.blocks):
        pairs += block_scaled(seed, LARGE)
    for seed in range(given.rows):
        pairs += of_rows(seed)
    for seed in range(given.attention):
        pairs += of_attention(seed)
    for count, of_kind in ((given.groups, of_groups), (given.integers, of_integers), (given.weights, of_weights)):
        for seed in range(count):
            pairs += of_kind(seed)
    pairs += quantisers(given.quantisers, given.quantisers_large)
    if given.only:
        pairs = [pair for pair in pairs if pair.name.startswith(tuple(given.only))]
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        rows = list(pool.map(asked, pairs))
    _written(given.output, summary(rows, command), "pairs", rows)
    return 0 if all(row["right"] for row in rows) else 1


def _of_broken(given: argparse.Namespace, command: str) -> int:
    """One worker a kernel at a time; what each comes to is printed as it ends, where a file takes the report."""
    from conformance.explained import broken

    names = [name for name in broken.called() if not given.only or name.startswith(tuple(given.only))]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(broken.asked, name) for name in names]):
            row = done.result()
            rows = sorted([*rows, row], key=lambda each: names.index(each["name"]))
            if given.output is not None:  # what there is so far, should the machine be taken away
                print(f"{row['name']}: {row['verdict']} {', '.join(row['named'])}".rstrip(), flush=True)
                given.output.write_text(_report(broken.summary(rows, command), "kernels", rows), "utf-8")
    found = broken.summary(rows, command)
    _written(given.output, found, "kernels", rows)
    return 1 if any(found[what] for what in ("unlike_the_table", "held_out_named", "not_built", "refused")) else 0


def _written(output: Path | None, found: dict[str, Any], of: str, rows: list[dict[str, Any]]) -> None:
    """The report to a file and its summary to the terminal, or all of it to the terminal."""
    if output is None:
        print(_report(found, of, rows), end="")
    else:
        output.write_text(_report(found, of, rows), "utf-8")
        print(json.dumps(found, indent=1))


def _report(found: dict[str, Any], of: str, rows: list[dict[str, Any]]) -> str:
    """The summary and a line for each row."""
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    return f'{{"summary": {json.dumps(found, indent=1)},\n "{of}": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    raise SystemExit(main())
