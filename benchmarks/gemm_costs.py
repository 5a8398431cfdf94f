"""Fit the costs of the entries of the FP8 GEMM on one Hopper GPU: the table of this chip for gpu/gemm_1d2d.py, and its regret.

    PYTHONPATH=. python benchmarks/gemm_costs.py [--shapes 60] [--json PATH]

Times every entry that fits at random shapes, in random order, each warmed first. The regret of a shape is the time of the
entry that the costs choose over the time of the fastest entry, less 1. It is printed for the costs that gpu/gemm_1d2d.py has
now, for the fitted costs, and for costs fitted to the other half of the shapes.
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
from gemm_launches import Kernels, Sensors, Shape, bindings, in_turns, sets_of

Timed = dict[Shape, dict[str, float]]  # of each shape the microseconds of entries
Costs = dict[str, tuple[float, float]]
MOST_WORK = 1.2e12  # M x N x K of the largest shape


def random_shapes(count: int) -> list[Shape]:
    """M from 16 to 8192, N from 512 to 32768, K from 512 to 16384, each even in its logarithm."""
    drawn, found = random.Random(1), []
    while len(found) < count:
        m, n, k = (step * round(2 ** drawn.uniform(*ends) / step) for step, ends in DIRECTIONS)
        if m * n * k <= MOST_WORK:
            found.append((m, n, k))
    return found


DIRECTIONS = ((16, (4, 13)), (64, (9, 15)), (128, (9, 14)))  # multiples of what, and the ends in powers of two


def timed(kernels: Kernels, shape: Shape) -> dict[str, float]:
    m, n, k = shape
    sets = sets_of(shape)
    entries = bindings.fitting(bindings.ENTRIES.values(), m)
    calls: dict[str, list[Any]] = {entry.name: [kernels.gemm(entry).prepared(o) for o in sets] for entry in entries}
    times = in_turns(calls, 2e-6 * m * n * k)
    return {name: statistics.median(some.microseconds) for name, some in times.items()}


def fitted(times: Timed) -> Costs:
    """Nanoseconds for a block of K and for a tile, of least relative error."""
    found = {}
    for name, entry in bindings.ENTRIES.items():
        rows = [(*parts_of(entry, shape), 1e3 * each[name]) for shape, each in times.items() if name in each]
        turns, blocks, measured = np.array(rows).T
        matrix = np.stack([turns * blocks / measured, turns / measured], 1)
        step, tile = np.linalg.lstsq(matrix, np.ones(len(rows)), rcond=None)[0]
        found[name] = round(float(step)), max(0, round(float(tile), -1))
    return found


def parts_of(entry: Any, shape: Shape) -> tuple[int, int]:
    """Tiles of the busiest block, and blocks of K."""
    m, n, k = shape
    units = max(1, bindings.MULTIPROCESSORS // entry.blocks)
    return -(-entry.units(m, n) // units), math.ceil(k / bindings.BLOCK)


def regrets(times: Timed, costs: Costs) -> list[float]:
    """Of each shape, of the entries that were timed."""
    found = []
    for shape, each in times.items():

        def cost(name: str, shape: Shape = shape) -> float:
            turns, blocks = parts_of(bindings.ENTRIES[name], shape)
            return turns * (blocks * costs[name][0] + costs[name][1])

        found.append(each[min(each, key=cost)] / min(each.values()) - 1)
    return found


def print_regret(title: str, found: Iterable[float]) -> None:
    some = list(found)
    print(f"regret of {title}: {100 * statistics.mean(some):.1f} % in the mean, {100 * max(some):.1f} % at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=60, help="how many")
    parser.add_argument("--json", type=Path, help="also write the times here")
    arguments = parser.parse_args()
    launches.ROUNDS = 3
    torch.empty(1, device="cuda")  # makes the primary context current
    kernels, sensors = Kernels(bindings), Sensors()
    print(f"{torch.cuda.get_device_name(0)}, driver {sensors.driver}, at most {sensors.limit:.0f} W")
    times = {shape: timed(kernels, shape) for shape in random_shapes(arguments.shapes)}
    costs = fitted(times)
    for name, each in costs.items():
        print(f'        "{name}": {each},')
    halves = [dict(list(times.items())[half::2]) for half in (0, 1)]
    print_regret("the costs of gpu/gemm_1d2d.py", regrets(times, bindings.COSTS))
    print_regret("the fitted costs", regrets(times, costs))
    crossed = regrets(halves[0], fitted(halves[1])) + regrets(halves[1], fitted(halves[0]))
    print_regret("costs fitted to the other half of the shapes", crossed)
    if arguments.json:
        rows = [{"shape": shape, "microseconds": each} for shape, each in times.items()]
        record = {"device": torch.cuda.get_device_name(0), "driver": sensors.driver, "code": kernels.record()}
        arguments.json.write_text(json.dumps({**record, "times": rows, "costs": costs}, indent=1))


if __name__ == "__main__":
    main()
