"""Speed of encode and decode beside ml_dtypes, on one thread: python benchmarks/formats.py

Every round times both sides in turn and takes the ratio of that round, so that a busy machine slows both. The results
are compared in bits before anything is timed. The exit status is 1 when a ratio is below its target.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from refsim.conversions import convert, decode, encode


@dataclass(frozen=True)
class Comparison:
    """One operation on both sides; `target` is the least ratio peer time / our time, None where none is promised."""

    name: str
    ours: Callable[[], np.ndarray]
    peer: Callable[[], np.ndarray]
    target: float | None = None


def comparisons(count: int) -> list[Comparison]:
    """Normal data times 60, and every 65,536th element a million times that: out of range for E4M3."""
    values = (np.random.default_rng(1).standard_normal(count) * 60).astype(np.float32)
    values[:: 1 << 16] *= np.float32(1e6)
    doubles = values.astype(np.float64)
    e4m3, e5m2, e2m1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn
    with np.errstate(all="ignore"):
        typed = values.astype(e4m3)
    codes = typed.view(np.uint8)
    return [
        Comparison("encode f32 -> e4m3", lambda: convert("ml_dtypes.e4m3fn", values), lambda: values.astype(e4m3), 1.5),
        Comparison(
            "decode e4m3 -> f32", lambda: decode(codes, "e4m3", np.float32), lambda: typed.astype(np.float32), 3.0
        ),
        Comparison("decode e4m3 -> f64", lambda: decode(codes, "e4m3"), lambda: typed.astype(np.float64)),
        Comparison("encode f32 -> e5m2", lambda: encode(values, "e5m2", overflow="inf"), lambda: values.astype(e5m2)),
        Comparison("encode f32 -> e2m1", lambda: encode(values, "e2m1"), lambda: values.astype(e2m1)),
        Comparison("encode f64 -> e4m3", lambda: encode(doubles, "e4m3", overflow="nan"), lambda: doubles.astype(e4m3)),
        Comparison(
            "encode f32 -> bf16",
            lambda: encode(values, "bf16", overflow="inf"),
            lambda: values.astype(ml_dtypes.bfloat16),
        ),
    ]


def seconds(call: Callable[[], np.ndarray]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def differing(comparison: Comparison) -> int:
    """Elements whose bits differ, NaN payloads included."""
    ours, peer = comparison.ours(), comparison.peer()
    return int(np.count_nonzero(ours.view(f"u{ours.itemsize}") != peer.view(f"u{peer.itemsize}")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000_000, help="elements (default 10,000,000)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds whose median counts (default 7)")
    arguments = parser.parse_args()
    print(f"{arguments.count} elements, one thread, median of {arguments.rounds} rounds, peer ml_dtypes")
    failed = False
    with np.errstate(all="ignore"):
        for comparison in comparisons(arguments.count):
            wrong = differing(comparison)
            pairs = [(seconds(comparison.ours), seconds(comparison.peer)) for _ in range(arguments.rounds)]
            ours, peer = (statistics.median(column) for column in zip(*pairs, strict=True))
            ratio = statistics.median(theirs / mine for mine, theirs in pairs)
            missed = comparison.target is not None and ratio < comparison.target
            failed |= missed or (comparison.target is not None and wrong > 0)
            goal = f"target {comparison.target:.1f}x" + (" MISSED" if missed else "") if comparison.target else ""
            print(
                f"{comparison.name:20} {ours * 1e3:7.1f} ms  peer {peer * 1e3:7.1f} ms  {ratio:5.2f}x  "
                f"{wrong} bits differ  {goal}".rstrip()
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
