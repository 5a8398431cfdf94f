"""Speed of `numerics.mma` in this tree beside another: python benchmarks/beside.py PATH-OF-A-CHECKOUT

A process for each tree and way holds the same operands; they are asked in turn, call by call, so that a busy machine slows
both alike, and started anew several times, because where arrays lie in memory counts too. The least time of a call counts, in
seconds of the processor, which waiting does not lengthen. Bits are compared first.
The exit status is 1 when bits differ or a ratio, other / this, is below the least one (0.98).
"""

import argparse
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from refsim import numerics
from refsim.conversions import encode

HERE = Path(__file__).resolve().parents[1]
LEAST = 0.98
WAYS = ("NumPy", "numba")
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "fp8 wgmma 512x512x512": ({"unit": "wgmma", "types": "e4m3"}, (1, 512, 512, 512)),
    "bf16 wgmma 512x512x512": ({"unit": "wgmma", "types": "bf16"}, (1, 512, 512, 512)),
    "nvfp4 tcgen05 512x512x512": (
        {"unit": "tcgen05.mxf4nvf4", "types": "e2m1", "target": "sm_100"},
        (1, 512, 512, 512),
    ),
    "fp8 mma.sync, C last 256x256x256": ({"unit": "mma.sync", "types": "e4m3"}, (1, 256, 256, 256)),
    "f16 wgmma into f16 256x256x256": ({"unit": "wgmma", "types": "f16", "d_format": "f16"}, (1, 256, 256, 256)),
    "fp8 wgmma 64x128x128": ({"unit": "wgmma", "types": "e4m3"}, (1, 64, 128, 128)),
    "f16 mma.sync, 2048 of 16x8x16": ({"unit": "mma.sync", "types": "f16"}, (2048, 16, 8, 16)),
    "f16 mma.sync, one of 16x8x16": ({"unit": "mma.sync", "types": "f16"}, (1, 16, 8, 16)),
    "s8 mma.sync, one of 16x8x32": ({"unit": "mma.sync", "types": "s8", "d_format": "s32"}, (1, 16, 8, 32)),
    "f16 mfma of CDNA3 64x64x64": ({"unit": "mfma", "types": "f16", "target": "gfx942"}, (1, 64, 64, 64)),
}


def prepared(name: str) -> tuple[Any, ...]:
    """The operands of a case and the keywords of its call."""
    said, (batch, m, n, k) = CASES[name]
    random, keywords = np.random.default_rng(1), {key: value for key, value in said.items() if key != "types"}
    types = said["types"]
    keywords |= {"a_format": types, "b_format": types}
    if keywords.get("d_format") == "s32":
        a, b = (random.integers(0, 256, (batch, rows, k), np.uint8) for rows in (m, n))
    else:
        a, b = (encode(random.standard_normal((batch, rows, k)), types, overflow="saturate") for rows in (m, n))
    if types == "e2m1":
        scales = [encode(np.exp2(random.uniform(-2, 2, (batch, rows, k // 16))), "ue4m3") for rows in (m, n)]
        keywords |= {"a_scale": scales[0], "b_scale": scales[1], "scale_format": "ue4m3"}
    return a, b, keywords


def serve(way: str) -> None:
    """Answer each line, a case, with a digest of the result's bits and the seconds of one call."""
    if way == "NumPy":
        sys.modules["refsim.numerics.fast.kernels"] = None  # type: ignore[assignment]
    if way == "numba":
        _compile()
    known: dict[str, tuple[Any, ...]] = {}
    for line in sys.stdin:
        name = line.strip()
        a, b, keywords = known[name] if name in known else known.setdefault(name, prepared(name))
        small = a.size * b.shape[-2] < 1 << 14
        begun = time.process_time()
        for _ in range(100 if small else 1):
            d = numerics.mma(a, b, None, **keywords)
        spent = (time.process_time() - begun) / (100 if small else 1)
        print(hashlib.sha256(d.tobytes()).hexdigest(), spent, flush=True)


def _compile() -> None:
    """Products so large that the loops are compiled first."""
    for name in ("fp8 wgmma 512x512x512", "nvfp4 tcgen05 512x512x512"):
        a, b, keywords = prepared(name)
        if "a_scale" in keywords:
            keywords |= {side: np.tile(keywords[side], (1, 2, 1)) for side in ("a_scale", "b_scale")}
        numerics.mma(np.tile(a, (1, 2, 1)), np.tile(b, (1, 2, 1)), None, **keywords)


class Worker:
    """A process that computes with the sources of one tree, on one core."""

    def __init__(self, tree: Path, way: str, script: str = __file__) -> None:
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [sys.executable, script, str(tree), "--serve", way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **single, "PYTHONPATH": str(tree)},
        )

    def ask(self, name: str) -> tuple[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(name, file=self.process.stdin, flush=True)
        digest, spent = self.process.stdout.readline().split()
        return digest, float(spent)


def least_times(
    other: Path, way: str, starts: int, rounds: int, names: list[str], script: str = __file__
) -> tuple[dict[str, list[float]], set[str]]:
    """Return the least seconds of each case in this tree and in the other, and the cases whose answers differ."""
    best = {name: [float("inf")] * 2 for name in names}
    wrong = set()
    for _ in range(starts):
        workers = [Worker(tree, way, script) for tree in (HERE, other)]
        for name in names:
            digests = {worker.ask(name)[0] for worker in workers}
            wrong |= {name} if len(digests) > 1 else set()
            for turn in range(rounds):
                for at in (0, 1) if turn % 2 else (1, 0):
                    best[name][at] = min(best[name][at], workers[at].ask(name)[1])
        for worker in workers:
            worker.process.communicate()
    return best, wrong


def ratios(other: Path, way: str, starts: int, rounds: int, names: list[str]) -> bool:
    """Print a table; whether all bits agreed and no ratio is below the least one."""
    best, wrong = least_times(other, way, starts, rounds, names)
    good = True
    for name, (mine, theirs) in best.items():
        said = "BITS DIFFER" if name in wrong else f"below {LEAST}" if theirs / mine < LEAST else ""
        good &= not said
        line = f"{way:6} {name:34} {mine * 1e3:9.3f} ms   other {theirs * 1e3:9.3f} ms   {theirs / mine:5.2f}  {said}"
        print(line.rstrip(), flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, help="a checkout of this repository at another commit")
    parser.add_argument(
        "--starts", type=int, default=3, help="pairs of fresh processes, the least time counts (default 3)"
    )
    parser.add_argument("--rounds", type=int, default=20, help="calls of each case in each process (default 20)")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--serve", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])  # one thread: the seconds of several add up
        serve(arguments.serve)
        return 0
    names = [name for name in CASES if arguments.only in name]
    good = [ratios(arguments.other, way, arguments.starts, arguments.rounds, names) for way in WAYS]
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
