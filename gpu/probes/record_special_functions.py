"""Runs every form of special_functions.cu on a GPU and writes digests, samples and the series that tables are fitted to.

    PYTHONPATH=. python3 gpu/probes/record_special_functions.py --out $OUT [--part evidence|pairs|series ...]

Needs PyCUDA, nvcc and a GPU of compute capability 9.0. Parts:
    evidence  special_functions.npz: digests of all 2^32 inputs of every unary form, all results of 16-bit forms
    samples   special_functions_samples.npz: 4 results of every chunk of 65,536 inputs
    pairs     special_functions_pairs.npz: digests of 2^34 pairs of every form of div
    series    special_functions_series_*.npz: all 2^23 results of chosen exponents, as `packed` says
Every kernel runs twice over differently poisoned memory; a difference is an error.
"""

import argparse
import json
import lzma
import re
import subprocess
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from record_conversions import OUT, THREADS, Gpu, facts, sha256, store

from refsim.silicon.vectors import weights

HERE = Path(__file__).parent
SOURCE = HERE / "special_functions.cu"
COMPILE = ["nvcc", "-cubin", "-std=c++17", "-gencode", "arch=compute_90a,code=sm_90a"]
STEM = "special_functions"
PARTS = ("evidence", "samples", "pairs", "series")
CHUNK, SAMPLES = 1 << 16, 4
MANTISSAS = 1 << 23
PIECE = 1 << 14
ROW = re.compile(
    r'^(?P<macro>UNARY_F32|UNARY_F64|UNARY_16|UNARY_16X2|BINARY_F32)\((?P<form>\w+), "(?P<opcode>[^"]+)"', re.M
)

PLUS, MINUS = 0, 256
SERIES = {
    "rcp_approx_ftz_f32": [127],
    "rsqrt_approx_ftz_f32": [127, 128],
    "sqrt_approx_ftz_f32": [127, 128],
    "ex2_approx_ftz_f32": [*range(100, 134), *(MINUS + e for e in (103, 110, 118, 124, 125, 126, 127, 128, 133))],
    "lg2_approx_ftz_f32": [1, 63, 95, 111, 119, 123, 124, 125, 126, 127, 128, 129, 130, 131, 135, 143, 159, 191, 254],
    "sin_approx_ftz_f32": [*range(112, 133), MINUS + 127],
    "cos_approx_ftz_f32": [*range(112, 133), MINUS + 127],
    "tanh_approx_f32": [*range(108, 132), MINUS + 126],
}
"""Upper 9 bits of the patterns of a series: sign and exponent field."""
UPPER_SERIES = {"rcp_approx_ftz_f64": [1023], "rsqrt_approx_ftz_f64": [1023, 1024]}


def forms() -> list[tuple[str, str, str]]:
    """(macro, form, opcode) of every kernel family of the source."""
    return [(row["macro"], row["form"], row["opcode"]) for row in ROW.finditer(SOURCE.read_text())]


def flushed(form: str) -> str:
    """The name of the form with .ftz: rcp_approx_f32 gives rcp_approx_ftz_f32."""
    return form if "ftz" in form else form.replace("approx_", "approx_ftz_")


# ---- what a series is kept as ------------------------------------------------------------------------------------


def predicted(coefficients: NDArray[np.float64], step: int) -> NDArray[np.uint32]:
    """float32 words of cubics, one per piece of a series, by multiplications and additions of float64 alone."""
    at = np.arange(-step // 2, step // 2, dtype=np.float64) / step
    value = np.zeros((len(coefficients), step))
    for column in coefficients.T:
        value = value * at + column[:, None]
    return value.astype(np.float32).view(np.uint32).ravel()


def packed(words: NDArray[np.uint32]) -> tuple[bytes, dict[str, int]]:
    """The words of a series less a prediction, xz-compressed in byte planes, the cheaper of two ways.

    "cubic": a cubic through each piece, coefficients first (float64). "steps": differences of neighbours.
    """
    values = words.view(np.float32).astype(np.float64)
    ways = {"steps": (b"", np.diff(words, prepend=np.uint32(0)))}
    if np.isfinite(values).all():
        at = np.arange(-PIECE // 2, PIECE // 2, dtype=np.float64) / PIECE
        coefficients = np.polyfit(at[::8], values.reshape(-1, PIECE)[:, ::8].T, 3).T
        ways["cubic"] = (coefficients.tobytes(), words - predicted(coefficients, PIECE))
    best, kept = "", b""
    for way, (head, residue) in ways.items():
        zigzag = (residue << np.uint32(1)) ^ (np.uint32(0) - (residue >> np.uint32(31)))
        planes = [(zigzag >> np.uint32(8 * k)).astype(np.uint8) for k in range(4)]
        content = lzma.compress(head + b"".join(plane.tobytes() for plane in planes), preset=4)
        if not kept or len(content) < len(kept):
            best, kept = way, content
    return kept, {"cubic": int(best == "cubic"), "count": len(words)}


def unpacked(content: bytes, cubic: bool, count: int) -> NDArray[np.uint32]:
    """The words that `packed` kept."""
    raw = lzma.decompress(content)
    head = 4 * 8 * (count // PIECE) if cubic else 0
    planes = np.frombuffer(raw[head:], np.uint8).reshape(4, count).astype(np.uint32)
    zigzag = planes[0] | planes[1] << np.uint32(8) | planes[2] << np.uint32(16) | planes[3] << np.uint32(24)
    residue = (zigzag >> np.uint32(1)) ^ (np.uint32(0) - (zigzag & np.uint32(1)))
    if not cubic:
        return np.asarray(np.cumsum(residue, dtype=np.uint32))
    return np.asarray(residue + predicted(np.frombuffer(raw[:head], np.float64).reshape(-1, 4), PIECE))


def _pack_one(task: tuple[str, NDArray[np.uint32]]) -> tuple[str, bytes, dict[str, int]]:
    name, words = task
    content, row = packed(words)
    if not np.array_equal(unpacked(content, bool(row["cubic"]), row["count"]), words):
        raise SystemExit(f"{name}: the packed series does not give its words")
    return name, content, row


# ---- the parts -------------------------------------------------------------------------------------------------


def digests(gpu: Gpu, form: str, count: int = CHUNK) -> NDArray[Any]:
    return gpu.run(f"digest_{form}", count, (count, np.uint64), OUT, np.uint32(0))


def words(gpu: Gpu, form: str, first: int, count: int, dtype: Any = np.uint32) -> NDArray[Any]:
    return gpu.run(f"words_{form}", count // THREADS, (count, dtype), OUT, np.uint32(first))


def evidence(gpu: Gpu) -> tuple[dict[str, Any], dict[str, Any]]:
    """Digests of every unary form, less those of the form in `less`; every result of the 16-bit ones."""
    arrays: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    whole: dict[str, NDArray[Any]] = {}
    for macro, form, _opcode in forms():
        if macro in ("UNARY_F32", "UNARY_F64"):
            whole[form] = digests(gpu, form)
            print(f"  {form:28} {sha256(whole[form].tobytes())[:16]}")
    for macro, form, opcode in forms():
        if form in whole:
            base = next(
                (each for each in (form.removesuffix("_low0"), flushed(form)) if each != form and each in whole), ""
            )
            arrays[form] = whole[form] - whole[base] if base else whole[form]
            rows[form] = {"opcode": opcode, "kind": macro, "less": base, "arrays": {"chunk_digests": form}}
        elif macro != "BINARY_F32":
            found = gpu.run(f"table_{form}", CHUNK // THREADS, (CHUNK, np.uint32), OUT)
            arrays[form] = found if macro == "UNARY_16X2" else found.astype(np.uint16)
            rows[form] = {"opcode": opcode, "kind": macro, "arrays": {"results": form}}
    return arrays, rows


def samples(gpu: Gpu) -> tuple[dict[str, Any], dict[str, Any]]:
    """The k-th result of chunk c is of c << 16 | splitmix64(c * SAMPLES + k) & 0xffff; without .ftz: what differs."""
    arrays: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    count = CHUNK * SAMPLES
    for macro, form, opcode in forms():
        if macro == "UNARY_F32":
            found = gpu.run(f"sample_{form}", count // THREADS, (count, np.uint32), OUT, np.uint32(0))
            if flushed(form) != form and flushed(form) in {each for _, each, _ in forms()}:
                other = gpu.run(f"sample_{flushed(form)}", count // THREADS, (count, np.uint32), OUT, np.uint32(0))
                where = np.flatnonzero(found != other).astype(np.uint32)
                arrays |= {f"{form} places": where, form: found[where]}
                rows[form] = {"opcode": opcode, "arrays": {"places": f"{form} places", "results": form}}
            else:
                arrays[form] = found
                rows[form] = {"opcode": opcode, "arrays": {"results": form}}
        elif macro == "UNARY_F64":
            found = gpu.run(f"sample_{form}", count // THREADS, (count, np.uint64), OUT, np.uint32(0))[:: SAMPLES // 2]
            arrays |= {f"{form} low": found.astype(np.uint32), form: (found >> np.uint64(32)).astype(np.uint32)}
            rows[form] = {"opcode": opcode, "arrays": {"upper": form, "lower": f"{form} low"}}
    return arrays, rows


def pairs(gpu: Gpu) -> tuple[dict[str, Any], dict[str, Any]]:
    """Digests of div, one of each pair of exponents (weighted sums of those of four chunks), and two results of each."""
    arrays: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    for macro, form, opcode in forms():
        if macro == "BINARY_F32":
            arrays[form] = digests(gpu, form, 1 << 18).reshape(-1, 4) @ weights()[:4]
            print(f"  {form:28} {sha256(arrays[form].tobytes())[:16]}")
            found = gpu.run(f"sample_{form}", (1 << 19) // THREADS, (1 << 19, np.uint32), OUT, np.uint32(0))
            arrays[f"{form} samples"] = found.reshape(-1, 8)[:, :2].copy()
            rows[form] = {"opcode": opcode, "arrays": {"chunk_digests": form, "samples": f"{form} samples"}}
    return arrays, rows


def series(gpu: Gpu) -> tuple[dict[str, Any], dict[str, Any]]:
    """All results of the exponents of SERIES, packed in parallel; those of f64 are 2^20 upper halves."""
    arrays: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    with ProcessPoolExecutor() as pool:
        waiting = []
        for form, tops in SERIES.items():
            for top in tops:
                name = f"{form} {top}"
                waiting.append(pool.submit(_pack_one, (name, words(gpu, form, top << 23, MANTISSAS))))
        for form, tops in UPPER_SERIES.items():
            for top in tops:
                found = words(gpu, form, top << 20, 1 << 20, np.uint64)
                if (found & np.uint64(0xFFFFFFFF)).any():
                    print(f"{form} {top}: lower halves are not 0")
                waiting.append(pool.submit(_pack_one, (f"{form} {top}", (found >> np.uint64(32)).astype(np.uint32))))
        for each in waiting:
            name, content, row = each.result()
            arrays[name] = np.frombuffer(content, np.uint8)
            rows[name] = {**row, "bytes": len(content), "arrays": {"packed": name}}
    return arrays, rows


def stored_series(out: Path, arrays: dict[str, Any], content: dict[str, Any]) -> None:
    """Files of at most 15 MB each."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, array in arrays.items():
        if size + array.nbytes > 15_000_000:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += array.nbytes
    for number, names in enumerate(groups):
        np.savez(out / f"{STEM}_series_{number}.npz", **{name: arrays[name] for name in names})
    (out / f"{STEM}_series.json").write_text(json.dumps(content, indent=1))
    print(f"series: {len(arrays)}, {sum(each.nbytes for each in arrays.values())} bytes in {len(groups)} files")


def record(out: Path, folder: Path, parts: list[str]) -> None:
    cubin = folder / f"{STEM}.cubin"
    subprocess.run([*COMPILE, str(SOURCE), "-o", str(cubin)], check=True)
    gpu = Gpu(cubin.read_bytes())
    known = facts(
        gpu, cubin, COMPILE, {SOURCE.name: SOURCE.read_bytes(), Path(__file__).name: Path(__file__).read_bytes()}
    )
    for part in parts:
        began = time.perf_counter()
        arrays, rows = globals()[part](gpu)
        print(f"{part}: {time.perf_counter() - began:.1f} s", flush=True)
        content = {**known, "recordings": rows}
        if part == "series":
            stored_series(out, arrays, content)
        else:
            store(out, STEM if part == "evidence" else f"{STEM}_{part}", arrays, content)
    gpu.context.pop()


def main() -> None:
    parser = argparse.ArgumentParser(description="record special functions on a GPU")
    parser.add_argument("--out", type=Path, required=True, help="folder for the vectors")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        record(options.out, Path(folder), options.part)


if __name__ == "__main__":
    main()
