"""A campaign of `refsim verify` on several processes: python -m conformance.spread_campaign gpu/attention.py -o FILE

    python -m conformance.spread_campaign gpu/attention.py --cases 300 --jobs 12 -o conformance/reports/sim/FILE

Every process draws problems with a seed of its own and runs a part of the corpus. FILE gets what `refsim verify --as json` says
of verdicts and devices, a row for each kernel: cases are counted over all processes, `different` are the problems among them
that no other is equal to. Ends with 1 where a kernel does not pass.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import refsim.device
from refsim.cli.answers.verdicts import devices, witnesses
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.silicon.witness import SiliconWitness
from refsim.testing import run_campaign
from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.verdicts import PASS, Recomputed, Verdict

Part = tuple[dict[str, Any], set[str]]


def kernels_of(file: str) -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in load_kernel_file(Path(file)).KERNELS}


def run_and_note(kernel: Kernel, seen: set[str], launcher: Launcher, problem: Any) -> Outputs:
    seen.add(repr(problem))
    return kernel.run(launcher, problem)


def part(file: str, name: str, device: str, cases: int, seed: int, share: tuple[int, int]) -> Part:
    """The verdict of every n-th problem of the corpus and so many generated ones, and all these problems as text."""
    kernel, seen = kernels_of(file)[name], set[str]()
    first, step = share
    variant = replace(kernel, corpus=kernel.corpus[first::step], run=partial(run_and_note, kernel, seen))
    return run_campaign(variant, refsim.device.open(device), cases=cases, seed=seed).to_json(), seen


def together(parts: Iterable[Part]) -> tuple[Verdict, int]:
    """One verdict of a kernel's parts, the first that is no pass in front, and how many problems are different."""
    found = [(Verdict.from_json(record), seen) for record, seen in parts]
    verdicts = [verdict for verdict, _ in found]
    worst = next((verdict for verdict in verdicts if verdict.status != PASS), verdicts[0])
    recomputed = [verdict.recomputed for verdict in verdicts]
    merged = replace(
        worst,
        cases=sum(verdict.cases for verdict in verdicts),
        elements=sum(verdict.elements for verdict in verdicts),
        differing=sum(verdict.differing for verdict in verdicts),
        seconds=sum(verdict.seconds for verdict in verdicts),
        silicon=reduce(SiliconWitness.joined, (verdict.silicon for verdict in verdicts)),
        recomputed=Recomputed(
            sum(each.outputs for each in recomputed),
            sum(each.differing for each in recomputed),
            next((each.first for each in recomputed if each.first), ""),
            worst.recomputed.is_declared,
            tuple(dict.fromkeys(judge for each in recomputed for judge in each.judges)),
        ),
    )
    return merged, len(set[str]().union(*(seen for _, seen in found)))


def page_of(rows: Iterable[tuple[Verdict, int]], jobs: int, took: float) -> dict[str, Any]:
    """What is kept; `seconds_s` of a kernel is that of all processes together, `took_s` that of the command."""
    kept = list(rows)
    verdicts = [
        {
            "status": verdict.status,
            "kernel": verdict.kernel,
            "cases": verdict.cases,
            "different": different,
            "elements": verdict.elements,
            "differing": verdict.differing,
            "seconds_s": f"{verdict.seconds:.1f}",
            "promise": verdict.promise,
            "finding": verdict.finding or None,
        }
        for verdict, different in kept
    ]
    ran = devices([verdict for verdict, _ in kept])
    held_to = [line for each in witnesses([verdict for verdict, _ in kept]) for line in each.lines]
    counted = {"verdicts": verdicts, "processes": jobs, "took_s": round(took), "held_to": held_to}
    return counted | {str(each.key): dict(each.facts) for each in ran}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.spread_campaign", description="a campaign on many cores"
    )
    parser.add_argument("file", help="declares kernels, as for refsim verify --kernels")
    parser.add_argument("--device", default="sim")
    parser.add_argument("--cases", type=int, default=300, help="generated problems of each kernel, at least")
    parser.add_argument("--seed", type=int, default=1, help="of the first process; the others have those that follow")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    began, jobs = time.monotonic(), given.jobs
    each = -(-given.cases // jobs) + 1  # every process begins with the same simplest problem
    with ProcessPoolExecutor(jobs) as pool:
        asked = {
            name: [
                pool.submit(part, given.file, name, given.device, each, given.seed + at, (at, jobs))
                for at in range(jobs)
            ]
            for name in kernels_of(given.file)
        }
        rows = [together(future.result() for future in futures) for futures in asked.values()]
    page = page_of(rows, jobs, time.monotonic() - began)
    given.out.write_text(json.dumps(page, indent=2) + "\n", "utf-8")
    for verdict, different in rows:
        print(f"{verdict}\n{different} different problems", flush=True)
    return 0 if all(verdict.status == PASS for verdict, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
