"""Speed of the tensor-core model beside mmaemu and a float64 matmul: python benchmarks/numerics.py

Each thread count is measured in a process of its own, bound to that many cores; every round times all rows in turn, and
the least time of a row counts. Results are compared in bits before anything is timed. Where mmaemu, torch or numba are
missing their rows are left out and named. The exit status is 1 when bits differ or a target is missed.
"""

import argparse
import importlib.util
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refsim.conversions import encode
from refsim.numerics.calls import Call
from refsim.numerics.dot import chains
from refsim.numerics.fast import compiled
from refsim.numerics.fast.product import fast_product, plan_for
from refsim.numerics.multiply import call_asked_for

SIZES = ((1024, 1024, 1024), (64, 128, 128))
DEFINED = 1 << 21  # products up to which the definition is timed
MEMORY = 500 << 20  # bytes that K = 8192 may add


@dataclass(frozen=True)
class Kind:
    """One arithmetic: its row and its operands."""

    name: str
    unit: str
    format: str
    target: str = "sm_90"
    scale: tuple[str, int] | None = None


FP8 = Kind("fp8 wgmma", "wgmma", "e4m3")
BF16 = Kind("bf16 wgmma", "wgmma", "bf16")
NVFP4 = Kind("nvfp4 tcgen05", "tcgen05.mxf4nvf4", "e2m1", "sm_100", ("ue4m3", 16))


@dataclass(frozen=True)
class Row:
    """One way to compute one kind."""

    kind: str
    way: str
    call: Callable[[], Any]

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.way}"


@dataclass(frozen=True)
class Target:
    """`of` is at least (`times` > 1) or at most (below 1) that many times as fast as `than`."""

    of: str
    than: str
    times: float


TARGETS = (
    Target("fp8 wgmma, NumPy", "fp8 wgmma, mmaemu", 5),
    Target("fp8 wgmma, numba", "fp8 wgmma, mmaemu", 40),
    Target("fp8 wgmma, numba", "float64 matmul, NumPy", 1 / 5),
    *(
        Target(f"{kind.name}, {way}", f"fp8 wgmma, {way}", 1 / 2)
        for kind in (BF16, NVFP4)
        for way in ("NumPy", "numba")
    ),
)


def operands(kind: Kind, size: tuple[int, int, int]) -> tuple[Any, ...]:
    """Normal data as codes, scales of about 1 with all their mantissas."""
    m, n, k = size
    random = np.random.default_rng(1)
    a, b = (encode(random.standard_normal((rows, k)), kind.format, overflow="saturate") for rows in (m, n))
    if kind.scale is None:
        return a, b, None, None, None
    name, block = kind.scale
    scales = [encode(np.exp2(random.uniform(-2, 2, (rows, k // block))), name) for rows in (m, n)]
    return a, b, *scales, name


def problem(kind: Kind, arrays: tuple[Any, ...]) -> Call:
    a, b, a_scale, b_scale, scale_format = arrays
    scales = {"a_scale": a_scale, "b_scale": b_scale, "scale_format": scale_format}
    of_kind = {"a_format": kind.format, "b_format": kind.format, "unit": kind.unit, "target": kind.target}
    return call_asked_for(a, b, **of_kind, **scales)


def ours(kind: Kind, arrays: tuple[Any, ...], threads: int, with_numba: bool) -> Callable[[], np.ndarray]:
    def call() -> np.ndarray:
        found = problem(kind, arrays)
        plan = plan_for(found.c.shape, found.operands.a.shape[-1], found.row, found.k)
        plan = replace(plan, threads=min(plan.threads, threads), compiled=with_numba, may_compile=True)
        return fast_product(found.operands, found.c, plan)[0]

    return call


def definition(kind: Kind, arrays: tuple[Any, ...]) -> Callable[[], np.ndarray]:
    def call() -> np.ndarray:
        found = problem(kind, arrays)
        return chains.matrix_product(found.operands, found.c, found.row, found.k)[0]

    return call


def emulated(arrays: tuple[Any, ...], threads: int) -> Callable[[], np.ndarray]:
    import mmaemu
    import torch

    torch.set_num_threads(threads)
    a, b = (torch.from_numpy(codes).view(torch.float8_e4m3fn) for codes in arrays[:2])

    def call() -> np.ndarray:
        found = mmaemu.accumulate(a, b, use_fast_accum=True, splitk=1, profile="hopper")
        return found.numpy().view(np.uint32)

    return call


def rows(size: tuple[int, int, int], threads: int) -> Iterator[Row]:
    m, n, k = size
    random = np.random.default_rng(2)
    x, y = random.standard_normal((m, k)), random.standard_normal((k, n))
    yield Row("float64 matmul", "NumPy", lambda: x @ y)
    for kind in (FP8, BF16, NVFP4):
        arrays = operands(kind, size)
        if kind is FP8 and has_peer():
            yield Row(kind.name, "mmaemu", emulated(arrays, threads))
        if math.prod(size) <= DEFINED:
            yield Row(kind.name, "int64 definition", definition(kind, arrays))
        yield Row(kind.name, "NumPy", ours(kind, arrays, threads, False))
        if compiled.kernels() is not None:
            yield Row(kind.name, "numba", ours(kind, arrays, threads, True))


def has_peer() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("mmaemu", "torch"))


def differing(table: list[Row]) -> list[str]:
    """The rows whose bits are not those of the first row of their kind."""
    first: dict[str, np.ndarray] = {}
    wrong = []
    for row in table:
        if row.kind != "float64 matmul":
            found = row.call()
            if (found != first.setdefault(row.kind, found)).any():
                wrong.append(row.name)
    return wrong


def seconds(call: Callable[[], Any], least: float) -> float:
    """The least time of one call among as many as take `least` seconds together."""
    best, start = math.inf, time.perf_counter()
    while best == math.inf or time.perf_counter() - start < least:
        begun = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begun)
    return best


def measured(size: tuple[int, int, int], threads: int, rounds: int) -> bool:
    """Print one table; whether all bits agreed and, at the first size, all targets were met."""
    table = list(rows(size, threads))
    wrong = differing(table)
    times = dict.fromkeys((row.name for row in table), math.inf)
    for _ in range(rounds):
        for row in table:
            times[row.name] = min(times[row.name], seconds(row.call, 0.05))
    peer, matmul = times.get("fp8 wgmma, mmaemu"), times["float64 matmul, NumPy"]
    print(f"\n{'x'.join(map(str, size))}, {threads} thread{'s' * (threads > 1)}, least of {rounds} rounds")
    for row in table:
        spent = times[row.name]
        against = f"{peer / spent:7.1f}x mmaemu" if peer and row.kind == FP8.name else " " * 15
        print(
            f"{row.name:32} {spent * 1e3:9.2f} ms {math.prod(size) / spent / 1e9:7.2f} GMAC/s "
            f"{spent / matmul:8.1f} matmuls {against}".rstrip()
        )
    for name in wrong:
        print(f"{name}: BITS DIFFER")
    return not wrong and (size != SIZES[0] or met(times))


def met(times: dict[str, float]) -> bool:
    missed = 0
    for target in TARGETS:
        if target.of in times and target.than in times:
            ratio = times[target.than] / times[target.of]
            missed += ratio < target.times
            verdict = "MISSED" if ratio < target.times else "met"
            print(f"  {target.of}: {ratio:.2f} x the speed of {target.than}, target {target.times:.2f}, {verdict}")
    return not missed


def memory(with_numba: bool) -> bool:
    """Print what 1024 x 1024 with K = 8192 adds to the largest resident size of a fresh process."""
    way = "numba" if with_numba else "NumPy"
    warm = ours(FP8, operands(FP8, (64, 128, 64)), 2, with_numba)
    arrays = operands(FP8, (1024, 1024, 8192))
    warm()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ours(FP8, arrays, 2, with_numba)()
    added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(f"1024x1024x8192, {way}: {added / 2**20:.0f} MiB more, target below {MEMORY / 2**20:.0f}")
    return added < MEMORY


def bound(arguments: list[str], threads: int) -> bool:
    """Run this script again on that many cores."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(threads))}
    return subprocess.run([sys.executable, __file__, *arguments], check=False, env=environment).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds, the least time counts (default 3)")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2], help="thread counts (default 1 2)")
    parser.add_argument(
        "--only", choices=["speed", "numpy-memory", "numba-memory"], help="one measurement, in this process"
    )
    arguments = parser.parse_args()
    if arguments.only is None:
        if not has_peer():
            print("mmaemu or torch is missing: pip install mmaemu==0.1.0 torch==2.13.0; its row is left out")
        if compiled.kernels() is None:
            print("numba is missing: pip install 'refsim[fast]'; its rows are left out")
        good = [
            bound(["--only", "speed", "--threads", str(count), "--rounds", str(arguments.rounds)], count)
            for count in arguments.threads
        ]
        good += [
            bound(["--only", f"{way}-memory"], 2) for way in ("numpy", *["numba"] * (compiled.kernels() is not None))
        ]
        return int(not all(good))
    if arguments.only != "speed":
        return int(not memory(arguments.only == "numba-memory"))
    (threads,) = arguments.threads
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    return int(not all(measured(size, threads, arguments.rounds) for size in SIZES))


if __name__ == "__main__":
    sys.exit(main())
