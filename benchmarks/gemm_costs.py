"""Fit the costs of the entries of the FP8 GEMM on one Hopper GPU: the tables of this chip for gpu/gemm_1d2d.py and
gpu/gemm_1d2d_splits.py, and their regret.

    PYTHONPATH=. python benchmarks/gemm_costs.py [--shapes 60] [--few 30] [--json PATH]

Times every entry that fits at random shapes, and at random shapes of few rows, in random order, each warmed first. The
regret of a shape is the time of the entry that the costs choose over the time of the fastest entry, less 1. It is printed
for the costs that the files have now, for the fitted costs, and for costs fitted to the other half of the shapes.
"""

import argparse
import json
import math
import random
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gemm_launches as launches
import numpy as np
import torch
from gemm_launches import Kernels, Sensors, Shape, bindings, entries_for, in_turns, sets_of, splits

Timed = dict[Shape, dict[str, float]]  # of each shape the microseconds of entries
Costs = dict[str, tuple[float, float]]
MOST_WORK = 1.2e12  # M x N x K of the largest shape


# Multiples of what, and the ends in powers of two.
ROWS, FEW_ROWS, COLUMNS, DEPTHS = (16, (4, 13)), (8, (3, 7)), (64, (9, 15)), (128, (9, 14))


def random_shapes(count: int, rows: tuple[int, tuple[int, int]] = ROWS) -> list[Shape]:
    """M from 16 to 8192 (or few), N from 512 to 32768, K from 512 to 16384, each even in its logarithm."""
    drawn, found = random.Random(1), []
    while len(found) < count:
        m, n, k = (step * round(2 ** drawn.uniform(*ends) / step) for step, ends in (rows, COLUMNS, DEPTHS))
        if m * n * k <= MOST_WORK:
            found.append((m, n, k))
    return found


def timed(kernels: Kernels, shape: Shape) -> dict[str, float]:
    m, n, k = shape
    sets = sets_of(shape)
    calls: dict[str, list[Any]] = {entry.name: kernels.launches(entry, sets) for entry in entries_for(m)}
    times = in_turns(calls, 2e-6 * m * n * k)
    return {name: statistics.median(some.microseconds) for name, some in times.items()}


ENTRIES = {**bindings.ENTRIES, **splits.ENTRIES}
NOW = {**bindings.COSTS, **splits.COSTS}
BOUND = 1.1  # times the least time of a B from memory, from which a launch says something of the tiles


def fitted(times: Timed) -> Costs:
    """Nanoseconds for a block of K and for a tile, of least relative error; those of now where fewer than three say it."""
    found = {}
    for name, entry in ENTRIES.items():
        rows = [
            (*parts_of(entry, shape), 1e3 * each[name])
            for shape, each in times.items()
            if 1e3 * each.get(name, 0) > BOUND * from_memory(shape)
        ]
        if len(rows) < 3:
            found[name] = NOW[name]
            continue
        turns, blocks, measured = np.array(rows).T
        matrix = np.stack([turns * blocks / measured, turns / measured], 1)
        step, tile = np.linalg.lstsq(matrix, np.ones(len(rows)), rcond=None)[0]
        found[name] = round(float(step)), max(0, round(float(tile), -1))
    return found


def from_memory(shape: Shape, times: int = 1) -> float:
    """Nanoseconds in which B comes from device memory so many times."""
    _, n, k = shape
    return float(times * n * k / splits.MEMORY[0] + splits.MEMORY[1])


def parts_of(entry: Any, shape: Shape) -> tuple[int, int]:
    """Tiles of the busiest block, and blocks of K."""
    m, n, k = shape
    units = max(1, bindings.MULTIPROCESSORS // entry.blocks)
    return -(-entry.units(m, n) // units), math.ceil(k / bindings.BLOCK)


def regrets(times: Timed, costs: Costs) -> list[float]:
    """Of each shape, of the entries that were timed, chosen as splits.chosen does."""
    found = []
    for shape, each in times.items():

        def cost(name: str, shape: Shape = shape) -> tuple[float, float]:
            entry, (turns, blocks) = ENTRIES[name], parts_of(ENTRIES[name], shape)
            busiest = turns * (blocks * costs[name][0] + costs[name][1])
            return max(busiest, from_memory(shape, -(-shape[0] // (entry.rows * entry.down)))), busiest

        found.append(each[min(each, key=cost)] / min(each.values()) - 1)
    return found


def print_regret(title: str, found: Iterable[float]) -> None:
    some = list(found)
    print(f"regret of {title}: {100 * statistics.mean(some):.1f} % in the mean, {100 * max(some):.1f} % at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=60, help="how many")
    parser.add_argument("--few", type=int, default=30, help="how many more of few rows")
    parser.add_argument("--json", type=Path, help="also write the times here")
    arguments = parser.parse_args()
    launches.ROUNDS = 3
    torch.empty(1, device="cuda")  # makes the primary context current
    kernels, sensors = Kernels(), Sensors()
    print(f"{torch.cuda.get_device_name(0)}, driver {sensors.driver}, at most {sensors.limit:.0f} W")
    shapes = random_shapes(arguments.shapes), random_shapes(arguments.few, FEW_ROWS)
    times = {shape: timed(kernels, shape) for shape in dict.fromkeys((*shapes[0], *shapes[1]))}
    costs = fitted(times)
    for name, each in costs.items():
        print(f'        "{name}": {each},')
    halves = [dict(list(times.items())[half::2]) for half in (0, 1)]
    for named, some in (("random shapes", shapes[0]), ("few rows", shapes[1])):
        of_these = {shape: times[shape] for shape in some}
        print_regret(f"the costs of now, {named}", regrets(of_these, NOW))
        print_regret(f"the fitted costs, {named}", regrets(of_these, costs))
    crossed = regrets(halves[0], fitted(halves[1])) + regrets(halves[1], fitted(halves[0]))
    print_regret("costs fitted to the other half of the shapes", crossed)
    if arguments.json:
        rows = [{"shape": shape, "microseconds": each} for shape, each in times.items()]
        record = {"device": torch.cuda.get_device_name(0), "driver": sensors.driver, "code": kernels.record()}
        arguments.json.write_text(json.dumps({**record, "times": rows, "costs": costs}, indent=1))


if __name__ == "__main__":
    main()
