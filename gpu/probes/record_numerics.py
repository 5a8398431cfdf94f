"""Runs tensor_cores.cu on a GPU and writes what came out of every instruction, with all that decided it.

    PYTHONPATH=. python3 gpu/probes/record_numerics.py --out conformance/vectors/h200 [--check] [--only TEXT]

Needs PyCUDA, a GPU of compute capability 9.0, ptxas and cuobjdump, and NVRTC or the PTX under gpu/ptx. Operands are those
of refsim.silicon.tensor_probe and tensor_features: results are stored, as words of samples and features and as digests of
everything. Every pass 0 and every feature runs twice; a difference between the runs is an error, so is a feature whose
words of D are not all equal. `--check` also asks the model and writes what differs to mismatches.json.
"""

import argparse
import json
import multiprocessing
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from record_conversions import sha256, store

import refsim.device
from refsim.bringup.tensor_cores import KERNEL_FILE, TensorCoreInstruction, instruction_named, instructions, products
from refsim.device.compile import assemble, compile_ptx
from refsim.formats import F64
from refsim.silicon.tensor_features import Feature, feature_words, features, negated
from refsim.silicon.tensor_probe import (
    CELL_WORDS,
    SAMPLE,
    c_classes_of,
    cell_c,
    cell_operands,
    chunks_of,
    classes_of,
    negation,
)
from refsim.silicon.vectors import CHUNK, digest

TARGET = "sm_90a"
MAIN = (
    "m16n8k16.row.col.f32.f16.",
    "m16n8k16.row.col.f16.f16.",
    "m16n8k16.row.col.f32.bf16.",
    "m16n8k8.row.col.f32.tf32.",
    "m16n8k32.row.col.f32.",
    "m16n8k32.row.col.f16.e4m3.e4m3.",
    "m8n8k4.row.col.f64.",
    "m64n64k16.",
    "m64n64k8.",
    "m64n64k32.f32.",
    "m64n64k32.f16.",
    "m64n256k32.f32.e4m3.e4m3",
)
"""Instructions on floats of eight passes, 11 million words each."""
MAIN_INTEGERS = ("m16n8k32.row.col.s32.s8.s8", "m64n64k32.s32.s8.s8")
"""Of 56 passes, which is as many words."""

MACHINE = re.compile(r"\b((?:[HQIBD]G?MMA|F2FP|FADD|HADD2)(?:\.\w+)*)")


def passes(row: TensorCoreInstruction) -> int:
    """The others have eight on integers, two where operands can be negated, else one."""
    if row.d_format.is_integer:
        return 56 if any(part in row.name for part in MAIN_INTEGERS) else 8
    return 8 if any(part in row.name for part in MAIN) else 2 if row.negates else 1


def has_features(row: TensorCoreInstruction) -> bool:
    """Once for each unit and types: not for the larger N of wgmma."""
    return row.unit != "wgmma" or row.n == 8


@lru_cache(maxsize=1)
def gpu() -> Any:
    return refsim.device.open("cuda")


def multiplied(
    row: TensorCoreInstruction, a: Any, b: Any, c: Any, negate: dict[str, Any], *, twice: bool
) -> NDArray[Any]:
    """D of a batch; `twice` runs it again and compares."""
    runs = []
    for _ in range(1 + twice):
        with gpu().launcher(KERNEL_FILE) as launcher:
            runs.append(products(launcher, row, a, b, c, **negate))
    if not np.array_equal(runs[0], runs[-1]):
        raise SystemExit(f"{row.name}: two runs differ")
    return runs[0]


def one_class(row: TensorCoreInstruction, name: str, number: int) -> Iterator[tuple[str, Any, Any, Any, NDArray[Any]]]:
    """C's class, A, B, C and D of every cell of one operand class; all classes with a C in one launch."""
    negate = negation(row, number)
    a, b = cell_operands(row, name, number)
    without = multiplied(row, a, b, None, negate, twice=number == 0)
    yield "none", a, b, None, without
    given = [c_name for c_name in c_classes_of(row) if c_name != "none"]
    c = np.concatenate([cell_c(row, name, c_name, number, a, b) for c_name in given])
    repeated_a, repeated_b = (np.concatenate([codes] * len(given)) for codes in (a, b))
    d = multiplied(row, repeated_a, repeated_b, c, negate, twice=number == 0)
    for at, c_name in enumerate(given):
        part = slice(at * len(a), (at + 1) * len(a))
        yield c_name, a, b, c[part], d[part]


def record_instruction(
    opcode: str, count: int, check: bool
) -> tuple[str, dict[str, NDArray[Any]], dict[str, Any], list[Any]]:
    """Arrays, row and mismatches of one instruction."""
    row = instruction_named(opcode)
    digests, sample, wrong = np.zeros((count, chunks_of(row)), np.uint64), [], []
    for number in range(count):
        words = []
        for name in classes_of(row):
            for c_name, a, b, c, d in one_class(row, name, number):
                words.append(d.reshape(CELL_WORDS))
                if number == 0:
                    sample.append(d[0, :SAMPLE, :SAMPLE].reshape(-1))
                if check:
                    want = row.codes(a, b, c, **negation(row, number))
                    wrong += differences(f"{opcode} {name} {c_name} pass {number}", want, d, a, b, c)
        digests[number] = digest(np.concatenate(words).reshape(-1, CHUNK))
    arrays = {"chunk_digests": digests, "sample": np.array(sample)}
    asked = {**features(row), **(negated(row) if row.negates else {})} if has_features(row) else {}
    for name, feature in asked.items():
        arrays[f"feature {name}"] = recorded_feature(row, feature)
        if check:
            want = feature_words(row, feature)
            wrong += differences(
                f"{opcode} feature {name}", want, arrays[f"feature {name}"], feature.a, feature.b, feature.c
            )
    asked_words = sum(len(feature.a) * row.m * row.n for feature in asked.values())
    facts = {
        "entry": row.entry,
        "unit": row.unit,
        "shape": [row.m, row.n, row.k],
        "a_format": row.a_format.name,
        "b_format": row.b_format.name,
        "d_format": row.d_format.name,
        "passes": count,
        "words": count * chunks_of(row) * CHUNK + asked_words,
    }
    return opcode, arrays, facts, wrong


def recorded_feature(row: TensorCoreInstruction, feature: Feature) -> NDArray[Any]:
    """One word a case; the case is given to every row and every column."""
    cases, length = feature.a.shape
    a = np.broadcast_to(feature.a[:, None, :], (cases, row.m, length))
    b = np.broadcast_to(feature.b[:, None, :], (cases, row.n, length))
    c = None if feature.c is None else np.broadcast_to(feature.c[:, None, None], (cases, row.m, row.n))
    d = multiplied(row, a, b, c, {"negate_a": feature.negate_a, "negate_b": feature.negate_b}, twice=True).reshape(
        cases, -1
    )
    if (d != d[:, :1]).any():
        raise SystemExit(f"{row.name}: {feature.name} depends on the place in D")
    return d[:, 0].copy()


def differences(label: str, want: NDArray[Any], got: NDArray[Any], a: Any, b: Any, c: Any) -> list[Any]:
    """How many words differ, and the first of them with its operands."""
    places = np.argwhere(want != got)
    if not len(places):
        return []
    at = tuple(int(index) for index in places[0])
    batch, m, n = (*at, 0, 0)[:3] if len(at) < 3 else at
    x, y = (a[batch], b[batch]) if a.ndim == 2 else (a[batch, m], b[batch, n])
    accumulator = None if c is None else int(c[at])
    return [
        {
            "what": label,
            "differing": len(places),
            "at": at,
            "model": f"{int(want[at]):#x}",
            "gpu": f"{int(got[at]):#x}",
            "a": [f"{code:#x}" for code in x.tolist()],
            "b": [f"{code:#x}" for code in y.tolist()],
            "c": None if accumulator is None else f"{accumulator:#x}",
        }
    ]


def machine_code(image: bytes, folder: Path) -> dict[str, list[str]]:
    """The arithmetic machine instructions of each entry, in order of first use."""
    cubin = folder / "tensor_cores.cubin"
    cubin.write_bytes(image)
    text = subprocess.run(["cuobjdump", "-sass", str(cubin)], capture_output=True, text=True, check=True).stdout
    cubin.unlink()
    parts = (part.partition("\n") for part in re.split(r"\n\s*Function : ", text)[1:])
    return {name.strip(): list(dict.fromkeys(MACHINE.findall(body))) for name, _, body in parts}


def kept(
    found: dict[str, tuple[dict[str, NDArray[Any]], dict[str, Any]]],
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Members of the archive and rows; equal arrays are stored once."""
    members: dict[str, NDArray[Any]] = {}
    known: dict[str, str] = {}
    rows = {}
    for opcode, (arrays, facts) in found.items():
        facts["arrays"] = {}
        for key, array in arrays.items():
            mark = sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes())
            if mark not in known:
                known[mark] = f"{len(known)}"
                members[known[mark]] = array
            facts["arrays"][key] = known[mark]
        rows[opcode] = facts
    return members, rows


def record(out: Path, only: str, most: int, check: bool, workers: int) -> None:
    """Every instruction, the slowest first, in processes of their own."""
    began = time.perf_counter()
    compiled = compile_ptx(KERNEL_FILE, TARGET)
    cubin = assemble(compiled)
    chosen = [row for row in instructions(TARGET) if only in row.name]
    slow = sorted(chosen, key=lambda row: -passes(row) * row.k * (20 if row.d_format is F64 else 1))
    found, mismatches = {}, []
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(record_instruction, row.name, min(passes(row), most), check) for row in slow]
        for job in as_completed(jobs):
            opcode, arrays, facts, wrong = job.result()
            found[opcode] = arrays, facts
            mismatches += wrong
            total = sum(entry["differing"] for entry in wrong)
            print(f"{time.perf_counter() - began:6.1f} s {opcode} {facts['words']} words, {total} differ", flush=True)
    (out / "mismatches.json").write_text(json.dumps(mismatches, indent=1))
    machine = machine_code(cubin.image, out)
    with gpu().launcher(KERNEL_FILE):
        described = gpu().describe()
    members, rows = kept({row.name: found[row.name] for row in chosen})
    for facts in rows.values():
        facts["sass"] = machine.get(facts["entry"], [])
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    content = {
        **described,
        "driver": f"{driver} ({described['driver']})",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    store(out, "numerics", members, {**content, "recordings": rows})
    words = sum(facts["words"] for facts in rows.values())
    print(
        f"{words} words, {sum(entry['differing'] for entry in mismatches)} differ, {time.perf_counter() - began:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="record tensor-core arithmetic on a GPU")
    parser.add_argument("--out", type=Path, required=True, help="folder for the vectors")
    parser.add_argument("--only", default="", help="instructions whose opcode has this text")
    parser.add_argument("--passes", type=int, default=99, help="at most so many passes each")
    parser.add_argument("--check", action="store_true", help="compare with the model, write mismatches.json")
    parser.add_argument("--workers", type=int, default=8)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    record(options.out, options.only, options.passes, options.check, options.workers)


if __name__ == "__main__":
    main()
