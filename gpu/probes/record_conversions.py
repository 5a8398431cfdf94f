"""Runs the probes on a GPU and writes what came back, with all that decided it: device, driver, compiler, hashes.

    PYTHONPATH=. python3 gpu/probes/record_conversions.py --out conformance/vectors/h200 [--cubins FOLDER]

Needs PyCUDA, a GPU of compute capability 9.0, nvcc, ptxas and cuobjdump. `--cubins` takes conversions.cubin and
scalar.cubin from a folder instead of compiling. Every kernel runs twice over differently poisoned memory; a difference
between the runs is an error, so is a word that nobody wrote.
"""

import argparse
import datetime
import hashlib
import json
import re
import subprocess
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scalar_semantics
from numpy.typing import NDArray

from refsim.silicon.scalar_probe import DIGEST_CHUNKS, TABLE_ROWS, ScalarForm, chunk_operands, table_operands
from refsim.silicon.vectors import CHUNK, digest, pack_digests

HERE = Path(__file__).parent
SOURCE = HERE / "conversions.cu"
TARGET = "arch=compute_90a,code=sm_90a"
COMPILE = ["nvcc", "-cubin", "-std=c++17", "-gencode", TARGET]
ASSEMBLE = ["ptxas", "-arch=sm_90a"]
THREADS = 256
ROW = re.compile(r'^(?P<macro>[A-Z]\w+)\((?P<entry>\w+), "(?P<name>[^"]+)"', re.MULTILINE)
SASS_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]+)")


@dataclass(frozen=True)
class Probe:
    """One kernel of conversions.cu: digests over float32, or results over 16-bit inputs."""

    entry: str
    name: str
    macro: str

    @property
    def is_table(self) -> bool:
        return self.macro in ("F16_PAIR_TO_16", "FP8_PAIR_TO_32", "HEADER_TABLE")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def first_line(*command: str) -> str:
    """The line of a tool's version output that has the version in it."""
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return next((line.strip() for line in text.splitlines() if "V13" in line or "release" in line), text.strip())


def build(folder: Path) -> None:
    """conversions.cubin by nvcc and scalar.cubin by ptxas, into a folder."""
    subprocess.run([*COMPILE, str(SOURCE), "-o", str(folder / "conversions.cubin")], check=True)
    assembled("scalar", scalar_semantics.ptx(), folder)


def assembled(stem: str, ptx: str, folder: Path) -> Path:
    """STEM.cubin by ptxas, beside the text that it was made of."""
    source, cubin = folder / f"{stem}.ptx", folder / f"{stem}.cubin"
    source.write_text(ptx)
    subprocess.run([*ASSEMBLE, str(source), "-o", str(cubin)], check=True)
    return cubin


def opcodes(cubin: Path) -> dict[str, list[str]]:
    """The machine instructions of each entry, in order of first use, less those that most entries share."""
    text = subprocess.run(["cuobjdump", "-sass", str(cubin)], capture_output=True, text=True, check=True).stdout
    found = {}
    for part in re.split(r"\n\s*Function : ", text)[1:]:
        name, _, body = part.partition("\n")
        found[name.strip()] = list(dict.fromkeys(SASS_LINE.findall(body)))
    uses = Counter(opcode for used in found.values() for opcode in used)
    shared = {opcode for opcode, count in uses.items() if count > len(found) / 2 or opcode[:3] in ("LDG", "STG")}
    return {name: [opcode for opcode in used if opcode not in shared] for name, used in found.items()}


class Gpu:
    """A module on the GPU, and one launch that checks itself by running twice."""

    def __init__(self, image: bytes) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pycuda.driver
        self.driver = pycuda.driver
        self.driver.init()
        self.device = self.driver.Device(0)
        self.context = self.device.retain_primary_context()
        self.context.push()
        self.module = self.driver.module_from_buffer(image)

    def run(self, entry: str, blocks: int, results: tuple[int, Any], *arguments: Any) -> NDArray[Any]:
        """Launches an entry over an output of (count, dtype); arguments are given after (out) or as listed."""
        count, dtype = results
        runs: list[NDArray[Any]] = []
        for poison in (0xA5, 0x5A):
            output = np.full(count * np.dtype(dtype).itemsize, poison, np.uint8)
            memory = self.driver.to_device(output)
            values = [np.uint64(int(memory)) if value is OUT else value for value in arguments]
            self.module.get_function(entry)(*values, grid=(blocks, 1, 1), block=(THREADS, 1, 1))
            self.driver.Context.synchronize()
            self.driver.memcpy_dtoh(output, memory)
            runs.append(output.view(dtype))
        if not np.array_equal(runs[0], runs[1]):
            raise SystemExit(f"{entry}: two runs differ at {np.flatnonzero(runs[0] != runs[1])[:8]}")
        return runs[0]


OUT = object()


def record_conversions(gpu: Gpu) -> tuple[dict[str, NDArray[Any]], dict[str, dict[str, Any]]]:
    """Every kernel of conversions.cu: arrays to store, and the row of each."""
    arrays: dict[str, NDArray[Any]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for match in ROW.finditer(SOURCE.read_text()):
        probe = Probe(match["entry"], match["name"], match["macro"])
        if probe.is_table:
            results = gpu.run(probe.entry, CHUNK // THREADS, (CHUNK, np.uint32), OUT)
            arrays[probe.name] = results if results.max() >= 1 << 16 else results.astype(np.uint16)
            key = "results"
        else:
            arrays[probe.name] = pack_digests(gpu.run(probe.entry, CHUNK, (CHUNK, np.uint64), OUT))
            key = "digests"
        rows[probe.name] = {"entry": probe.entry, "kind": probe.macro, "arrays": {key: probe.name}}
    return arrays, rows


def record_scalar(gpu: Gpu) -> tuple[dict[str, NDArray[Any]], dict[str, dict[str, Any]]]:
    """Every scalar form: one table of operands and results, and digests of further rows."""
    arrays: dict[str, NDArray[Any]] = {}
    rows: dict[str, dict[str, Any]] = {}
    forms = scalar_semantics.forms()
    for kinds in dict.fromkeys(row.operands for row in forms):
        tables = table_operands(kinds)
        chunks = [chunk_operands(kinds, chunk) for chunk in range(DIGEST_CHUNKS)]
        columns = [np.concatenate([table, *(chunk[k] for chunk in chunks)]) for k, table in enumerate(tables)]
        uploads = [gpu.driver.to_device(column) for column in columns]
        label = ",".join(kinds)
        arrays |= {f"operands {label} {k}": table for k, table in enumerate(tables)}
        for number, row in enumerate(forms):
            if row.operands != kinds:
                continue
            results = scalar_results(gpu, f"form_{number}", row, uploads, len(columns[0]))
            arrays[row.name] = results[:TABLE_ROWS]
            arrays[f"{row.name} digests"] = digest(results[TABLE_ROWS:].reshape(DIGEST_CHUNKS, CHUNK))
            members = {f"operand{k}": f"operands {label} {k}" for k in range(len(kinds))}
            rows[row.name] = {
                "entry": f"form_{number}",
                "operands": list(kinds),
                "result_bits": row.result,
                "body": row.body,
                "arrays": {**members, "result": row.name, "chunk_digests": f"{row.name} digests"},
            }
    return arrays, rows


def scalar_results(gpu: Gpu, entry: str, row: ScalarForm, uploads: list[Any], count: int) -> NDArray[Any]:
    """The results of one form on all its rows."""
    pointers = [np.uint64(int(upload)) for upload in uploads]
    blocks = -(-count // THREADS)
    return gpu.run(entry, blocks, (count, np.dtype(f"u{row.result // 8}")), *pointers, OUT, np.uint32(count))


def facts(gpu: Gpu, cubin: Path, flags: list[str], sources: dict[str, bytes]) -> dict[str, Any]:
    """What decided the recording, for the sidecar."""
    version = gpu.driver.get_driver_version()
    kernel = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "device": gpu.device.name(),
        "compute_capability": ".".join(map(str, gpu.device.compute_capability())),
        "driver": f"{kernel} (CUDA {version // 1000}.{version % 1000 // 10})",
        "compiler": first_line("nvcc", "--version"),
        "assembler": first_line("ptxas", "--version"),
        "flags": " ".join(flags),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "sha256": {
            **{name: sha256(content) for name, content in sources.items()},
            cubin.name: sha256(cubin.read_bytes()),
        },
    }


def store(out: Path, stem: str, arrays: Mapping[str, Any], content: dict[str, Any]) -> None:
    """The arrays as a compressed npz of plain integers, the sidecar as JSON with one row per line."""
    np.savez_compressed(out / f"{stem}.npz", **arrays)
    head = json.dumps({key: value for key, value in content.items() if key != "recordings"}, indent=1)[:-2]
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in content["recordings"].items())
    (out / f"{stem}.json").write_text(f'{head},\n "recordings": {{\n{rows}\n }}\n}}\n')
    print(f"{stem}: {len(content['recordings'])} recordings, {(out / f'{stem}.npz').stat().st_size} bytes")


def record(out: Path, cubins: Path) -> None:
    """Both modules, timed."""
    ptx = scalar_semantics.ptx().encode()
    for stem, recorder, flags, sources in (
        ("conversions", record_conversions, COMPILE, {SOURCE.name: SOURCE.read_bytes()}),
        ("scalar", record_scalar, ASSEMBLE, {"scalar.ptx": ptx}),
    ):
        cubin = cubins / f"{stem}.cubin"
        gpu = Gpu(cubin.read_bytes())
        began = time.perf_counter()
        arrays, rows = recorder(gpu)
        print(f"{stem}: {time.perf_counter() - began:.1f} s on the device")
        machine = opcodes(cubin)
        for row in rows.values():
            row["sass"] = machine.get(row["entry"], [])
        store(out, stem, arrays, {**facts(gpu, cubin, flags, sources), "recordings": rows})
        gpu.context.pop()


def record_one(subject: str, record: Callable[[Path, Path], None]) -> None:
    """The command line of a probe that needs no other option: `record` takes the folder of vectors and one to build in."""
    parser = argparse.ArgumentParser(description=f"record {subject} on a GPU")
    parser.add_argument("--out", type=Path, required=True, help="folder for the vectors")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        record(options.out, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description="record conversions and scalar instructions on a GPU")
    parser.add_argument("--out", type=Path, required=True, help="folder for the vectors")
    parser.add_argument("--cubins", type=Path, help="folder with conversions.cubin and scalar.cubin")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if options.cubins is None:
            build(Path(folder))
        record(options.out, options.cubins or Path(folder))


if __name__ == "__main__":
    main()
