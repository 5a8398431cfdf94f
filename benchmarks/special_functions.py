"""Speed of the special functions' bits beside NumPy's own functions, on one thread: python benchmarks/special_functions.py

Every round times both sides in turn, in seconds of the process, and takes the ratio of that round; the rate is the best of all
rounds. Results are near each other before anything is timed.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from refsim.mufu.instructions import approximate

PEERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}
AT_LEAST = 1 << 19


def seconds(call: Callable[[], np.ndarray], times: int) -> float:
    start = time.process_time_ns()
    for _ in range(times):
        call()
    return (time.process_time_ns() - start) / 1e9 / times


def compared(name: str, count: int, rounds: int) -> tuple[float, float]:
    """Million results a second, and how often the peer's time goes into ours: the median round."""
    x = (np.random.default_rng(1).random(count) * 20 + 0.01).astype(np.float32)
    words, peer = x.view(np.uint32), PEERS[name]
    found = approximate(name, words, ftz=name != "tanh").view(np.float32)
    if not np.allclose(found, peer(x), rtol=2e-5, atol=2e-5):
        raise SystemExit(f"{name}: not the function that NumPy has")
    times = max(1, AT_LEAST // count)
    pairs = [
        (seconds(lambda: approximate(name, words, ftz=name != "tanh"), times), seconds(lambda: peer(x), times))
        for _ in range(rounds)
    ]
    return count / min(ours for ours, _ in pairs) / 1e6, statistics.median(ours / theirs for ours, theirs in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description="special functions beside NumPy's")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1 << 12, 1 << 16, 1 << 20])
    options = parser.parse_args()
    print(f"{'':6}" + "".join(f"{size:>24,}" for size in options.sizes))
    for name in PEERS:
        cells = [compared(name, size, options.rounds) for size in options.sizes]
        print(f"{name:6}" + "".join(f"{rate:10.1f} M/s {ratio:5.1f} times" for rate, ratio in cells))


if __name__ == "__main__":
    main()
