"""What CuPy computes, as digests: by CuPy itself on a GPU, or by the stand-in of `refsim run`; and where the two differ.

    python conformance/cupy_bits.py run there.json                    where CuPy and a GPU are
    refsim run -- python conformance/cupy_bits.py run here.json       here
    python conformance/cupy_bits.py compare here.json there.json

Functions of which `refsim_run/cupy/names.py` says that their bits are CuPy's, on numbers drawn from one seed with special
values among them, and generated kernels: ElementwiseKernel of real numbers and ReductionKernel of integers. A digest ends
with another in which every NaN is the same.
"""

import argparse
import hashlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

SPECIALS = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.5, np.inf, -np.inf, np.nan, 6e-8, -6e-8, 65504.0, 1e-5]
ELEMENTWISE = {
    "squared": ("T x, T y", "T z", "T t = x - y; z = t * t"),
    "fused": ("T x, T y", "T z", "z = x * y + x"),
    "raw": ("T x, raw T y", "T z", "z = x + y[_ind.size() - i - 1] * x"),
    "clipped": ("T x, T y", "T z", "z = max(min(x, y), (T)-1)"),
    "mixed": ("T x, T y", "float64 z", "z = x / (y + 1) + 0.1"),
}
REDUCTIONS = {
    "squares": ("T x", "T y", "x * x", "a + b", "y = a", "0"),
    "largest": ("T x", "T y", "x", "max(a, b)", "y = a", "-2147483647"),
}


def operands(kind: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pairs = [np.concatenate([SPECIALS, rng.standard_normal(485) * 3]) for _ in range(2)]
        pairs[1] = rng.permutation(pairs[1])
        if np.dtype(kind).kind in "iu":
            pairs = [np.nan_to_num(each, nan=3, posinf=7, neginf=-7).clip(-99, 99) for each in pairs]
        return tuple(each.astype(kind) for each in pairs)  # type: ignore[return-value]


def digest(found: Any) -> str:
    """Of the bytes of all results, and of the bytes with one NaN."""
    parts = found if isinstance(found, tuple | list) else [found]
    whole, plain = hashlib.sha256(), hashlib.sha256()
    for part in parts:
        held = np.ascontiguousarray(part.get() if hasattr(part, "get") else np.asarray(part))
        one_nan = held.copy()
        if held.dtype.kind == "f":
            one_nan[np.isnan(held)] = np.nan
        for into, values in ((whole, held), (plain, one_nan)):
            into.update(f"{values.dtype}{values.shape}".encode() + values.tobytes())
    return f"{whole.hexdigest()[:16]} {plain.hexdigest()[:16]}"


def run(path: Path) -> None:
    import cupy as cp  # type: ignore[import-not-found]

    from refsim_run.cupy.names import SAME_BITS, UFUNCS

    found = {}
    for kind in ("float16", "float32", "float64", "int32"):
        x, y = (cp.asarray(each) for each in operands(kind))
        for name in sorted(
            SAME_BITS & UFUNCS | {"around", "clip", "sort", "max", "min", "argmax", "argsort", "nan_to_num", "ptp"}
        ):
            function = getattr(cp, name)
            count = getattr(function, "nin", 1)
            args = (x, -1, 2) if name == "clip" else (x, cp.arange(x.size) % 5) if name == "ldexp" else (x, y)[:count]
            try:
                found[f"{name} {kind}"] = digest(function(*args))
            except TypeError as error:
                found[f"{name} {kind}"] = type(error).__name__
        for name, parts in ELEMENTWISE.items():
            found[f"ElementwiseKernel {name} {kind}"] = digest(cp.ElementwiseKernel(*parts, name)(x, y))
    values = cp.asarray(operands("int32")[0].reshape(-1, 1) * np.arange(1, 301, dtype=np.int32))
    for name, parts in REDUCTIONS.items():
        found |= {
            f"ReductionKernel {name} {axis}": digest(cp.ReductionKernel(*parts, name)(values, axis=axis))
            for axis in (0, 1)
        }
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(found)} digests")


def compare(here: Path, there: Path) -> int:
    one, other = (json.loads(each.read_text()) for each in (here, there))
    differ = {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
    by_nan = {name for name in differ if one.get(name, "").split()[-1:] == other.get(name, "").split()[-1:]}
    for name in sorted(differ):
        print(name, "NaN alone" if name in by_nan else f"{one.get(name)} {other.get(name)}")
    print(f"{len(one)} digests: {len(differ)} differ, {len(by_nan)} of them by NaN alone")
    return int(bool(differ))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    acts = parser.add_subparsers(dest="act", required=True)
    acts.add_parser("run").add_argument("path", type=Path)
    of_both = acts.add_parser("compare")
    of_both.add_argument("here", type=Path)
    of_both.add_argument("there", type=Path)
    asked = parser.parse_args()
    if asked.act == "compare":
        return compare(asked.here, asked.there)
    run(asked.path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
