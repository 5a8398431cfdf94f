"""Speed of oracles and of explain-diff in this tree beside another: python benchmarks/computations.py PATH-OF-A-CHECKOUT

A process for each tree holds the same inputs; they are asked in turn, and started anew several times. The least seconds of
processor time count. Oracles must return equal bits, and explain-diff must find equal families of causes.
The exit status is 1 when answers differ or a ratio, this / other, is above the largest one (1.1).
"""

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from beside import least_times

from refsim import oracles
from refsim.conversions import encode

MOST = 1.1
Call = Callable[[], Any]


def codes(seed: int, *shape: int, format: str = "bf16") -> Any:
    return encode(np.random.default_rng(seed).standard_normal(shape), format, overflow="saturate")


def of_attention(heads: int, kv: int, rows: int, keys: int, *, causal: bool = False, format: str = "bf16") -> Call:
    q, k, v = codes(1, heads, rows, 128, format=format), *(codes(at, kv, keys, 128, format=format) for at in (2, 3))
    each = [np.full(count, 0.5, np.float32) for count in (heads, kv, kv)]
    scales = (each[0], each[1], each[2]) if format == "e4m3" else None
    return lambda: oracles.attention(q, k, v, 0.125, causal=causal, format=format, scales=scales)


def of_rows(name: str, *, gate: bool = False) -> Call:
    x, w, g = codes(1, 512, 2048), codes(2, 2048), codes(3, 512, 2048) if gate else None
    return (lambda: oracles.softmax(x)) if name == "softmax" else (lambda: oracles.rms_norm(x, w, gate=g))


def of_gemm(promotion: Any, m: int = 256, n: int = 256, k: int = 1024) -> Call:
    a, b = codes(1, m, k, format="e4m3"), codes(2, n, k, format="e4m3")
    random = np.random.default_rng(3)
    sa, sb = (random.uniform(0.5, 2, shape).astype(np.float32) for shape in ((m, k // 128), (n // 128, k // 128)))
    return lambda: oracles.fp8_gemm_1d2d(a, b, sa, sb, promotion=promotion)


def of_blocks(format: str, scale_format: str, block: int, **more: Any) -> Call:
    a, b = codes(1, 256, 1024, format=format), codes(2, 256, 1024, format=format)
    random = np.random.default_rng(3)
    sa, sb = (encode(np.exp2(random.integers(-3, 4, (256, 1024 // block))), scale_format) for _ in range(2))
    formats: dict[str, Any] = {"a_format": format, "b_format": format, "scale_format": scale_format, "block": block}
    return lambda: oracles.block_scaled_matmul(a, b, sa, sb, **formats, **more)


def of_linear(*, is_narrow: bool) -> Call:
    x, r = codes(1, 16, 2048), codes(2, 16, 512)
    if not is_narrow:
        w = codes(3, 512, 2048)
        return lambda: oracles.linear(x, w, r)
    w8, scales = codes(3, 512, 2048, format="e4m3"), codes(4, 4, 16)
    return lambda: oracles.linear_fp8_weight(x, w8, scales, r)


def of_quantize() -> Call:
    x = codes(1, 1 << 20)
    return lambda: oracles.fp8_quantize.quantize(x, "bf16")


ORACLES: dict[str, Callable[[], Call]] = {
    "softmax, 512 x 2048": lambda: of_rows("softmax"),
    "RMSNorm, 512 x 2048": lambda: of_rows("rms_norm"),
    "RMSNorm with a gate, 512 x 2048": lambda: of_rows("rms_norm", gate=True),
    "attention, 8 heads of 2, 256 x 512": lambda: of_attention(8, 2, 256, 512),
    "attention in E4M3, 4 heads, 256 x 512": lambda: of_attention(4, 4, 256, 512, format="e4m3"),
    "causal attention, 4 heads, 512 x 512": lambda: of_attention(4, 4, 512, 512, causal=True),
    "causal attention, 4 heads, 512 x 128": lambda: of_attention(4, 4, 512, 128, causal=True),
    "causal attention, 8 heads, 1 x 2048": lambda: of_attention(8, 1, 1, 2048, causal=True),
    "FP8 GEMM 1d2d, scale product": lambda: of_gemm("scale_product"),
    "FP8 GEMM 1d2d, a then b": lambda: of_gemm("a_then_b"),
    "linear, batch of 16": lambda: of_linear(is_narrow=False),
    "linear with E4M3 weights": lambda: of_linear(is_narrow=True),
    "mxfp8 product": lambda: of_blocks("e4m3", "e8m0", 32),
    "nvfp4 product": lambda: of_blocks("e2m1", "ue4m3", 16),
    "mxfp4 product in bf16": lambda: of_blocks("e2m1", "e8m0", 32, target="sm_90a", unit="wgmma"),
    "quantization with one scale, 2^20": of_quantize,
}


def pairs_of(kind: str) -> list[Any]:
    """Planted pairs of one kind, few enough to be asked again and again."""
    from conformance.explained import attention_pairs, block_pairs, group_pairs, integer_pairs, row_pairs, weight_pairs
    from conformance.explained.pairs import LARGE, all_pairs
    from conformance.explained.quantiser_paths import quantisers

    made: dict[str, Callable[[], Any]] = {
        "products": lambda: all_pairs(1, 0, 1),
        "block-scaled products": lambda: block_pairs.block_scaled(0, LARGE),
        "functions of rows": lambda: row_pairs.of_rows(0),
        "attention": lambda: attention_pairs.of_attention(0),
        "groups": lambda: group_pairs.of_groups(0),
        "integers": lambda: integer_pairs.of_integers(0),
        "narrow weights": lambda: weight_pairs.of_weights(0),
        "quantizers": lambda: quantisers(1, 0),
    }
    planted = [each for each in made[kind]() if each.planted]
    return planted[:: max(1, len(planted) // PAIRS)][:PAIRS]


PAIRS = 8
KINDS = (
    "products",
    "block-scaled products",
    "functions of rows",
    "attention",
    "groups",
    "integers",
    "narrow weights",
    "quantizers",
)


def bits(result: Any) -> list[bytes]:
    """The bytes of an array, or of the arrays of a result."""
    return [np.asarray(each).tobytes() for each in (result if isinstance(result, tuple) else (result,))]


def asked(name: str) -> Call:
    """What a case computes: an oracle's bits, or the families that explain-diff finds."""
    if name in ORACLES:
        call = ORACLES[name]()
        return lambda: bits(call())
    from conformance.explained import trials

    pairs = pairs_of(name.removeprefix("explain-diff: "))
    return lambda: [trials.asked(pair)["right"] for pair in pairs]


def serve() -> None:
    """Answer each line, a case, with a digest of the answer and the seconds of one call."""
    known: dict[str, Call] = {}
    for line in sys.stdin:
        name = line.strip()
        call = known[name] if name in known else known.setdefault(name, asked(name))
        begun = time.process_time()
        answer = call()
        spent = time.process_time() - begun
        print(hashlib.sha256(repr(answer).encode()).hexdigest(), spent, flush=True)


def ratios(other: Path, starts: int, rounds: int, names: list[str]) -> bool:
    """Print a table; whether all answers agree and no ratio is above the largest one."""
    best, wrong = least_times(other, "", starts, rounds, names, __file__)
    good = True
    for name, (mine, theirs) in best.items():
        said = "ANSWERS DIFFER" if name in wrong else f"above {MOST}" if mine / theirs > MOST else ""
        good &= not said
        line = f"{name:40} {mine * 1e3:9.1f} ms   other {theirs * 1e3:9.1f} ms   {mine / theirs:5.2f}  {said}"
        print(line.rstrip(), flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, help="a checkout of this repository at another commit")
    parser.add_argument("--starts", type=int, default=2, help="pairs of fresh processes (default 2)")
    parser.add_argument("--rounds", type=int, default=4, help="calls of each case in each process (default 4)")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
        serve()
        return 0
    names = [each for each in (*ORACLES, *(f"explain-diff: {kind}" for kind in KINDS)) if arguments.only in each]
    return int(not ratios(arguments.other, arguments.starts, arguments.rounds, names))


if __name__ == "__main__":
    sys.exit(main())
