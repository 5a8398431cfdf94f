"""Every conversion to and from a narrow format on a device, against what an H200 returned and the model is held to.

A real GPU runs gpu/probes/conversions.cu over whole input spaces: one digest for each 65,536 of the 2^32 patterns, all
compared with the recording, a sample also with the model itself. Where that file does not compile for a target, and on
the simulated GPU, each instruction runs alone on a stated sample of chunks.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.bringup.report import DIFFERS, Case, Difference
from refsim.bringup.tasks import Task, hashed, outcome
from refsim.bringup.tensor_cores import KERNEL_FILE
from refsim.conversions import CONVERSIONS, convert
from refsim.device import Device
from refsim.errors import Kind, RefsimError
from refsim.kernels import Launcher
from refsim.ptx.isa.binding import bind, evaluate
from refsim.silicon.scalar_probe import ScalarForm, probe_module
from refsim.silicon.vectors import (
    CHUNK,
    PARTNER,
    PARTNER_F16,
    Recording,
    chunk_patterns,
    digest,
    recordings,
    vectors_folder,
)
from refsim.testing.verdicts import PASS

PROBES = KERNEL_FILE.parent / "conversions.cu"
BLOCK_THREADS = 256
SAMPLED = (
    0x0000,
    0x0080,
    0x3380,
    0x3B80,
    0x3F80,
    0x4380,
    0x477F,
    0x4F00,
    0x7F80,
    0x8000,
    0xB380,
    0xBF80,
    0xCF00,
    0xFF80,
)
"""Upper halves of the patterns that a sample holds: subnormal, small, ones, ends of ranges, special, both signs."""
_WRONG_CHUNKS = 4
_PAIRS = ("F32_PAIR_TO_16", "F32_PAIR_TO_32")
Words = NDArray[np.unsignedinteger[Any]]


def fingerprint() -> str:
    folder = vectors_folder()
    return hashed([PROBES, folder / "conversions.npz", folder / "conversions.json"])


def tasks(device: Device) -> Sequence[Task]:
    """A case for each recorded conversion: exhaustive where the probe file runs, else a sample of the instructions."""
    known = recordings("conversions")
    whole = not device.is_simulated and _compiles(device)
    rows = [row for row in known.values() if whole or row.name.startswith("cvt")]
    run: Callable[[Device, Recording], Case] = _exhaustive if whole else _sampled
    return [Task(row.name, partial(run, device, row)) for row in rows]


def _compiles(device: Device) -> bool:
    try:
        with device.launcher(PROBES):
            return True
    except RefsimError as error:
        if error.kind is Kind.MISSING:
            raise
        return False


# ---- whole input spaces ----------------------------------------------------------------------------------------------


def _exhaustive(device: Device, row: Recording) -> Case:
    """Every input on the device; a chunk whose digest differs is run again alone, to see which input it was."""
    digests = "digests" in row.arrays
    count, dtype, blocks = (CHUNK, np.uint64, CHUNK) if digests else (CHUNK, np.uint32, CHUNK // BLOCK_THREADS)
    with device.launcher(PROBES) as launcher:
        out = launcher.output(count, dtype, name="out")
        launcher.launch(row.facts["entry"], (blocks,), (BLOCK_THREADS,), [out])
        got = launcher.read(out)
    want = row.arrays["digests" if digests else "results"]
    wrong = np.flatnonzero(got != want)
    words, coverage = (1 << 32, "all 2^32 patterns") if digests else (CHUNK, "all 65,536 inputs")
    sample = f", {len(SAMPLED)} chunks of 65,536 also against the model" if digests else ""
    coverage = f"{coverage} against the recording{sample}"
    if not wrong.size:
        strayed = [chunk for chunk in SAMPLED if digests and digest(expected(row, chunk)) != got[chunk]]
        if not strayed:
            return outcome(PASS, words=words, coverage=coverage)
        lines = (f"chunks {', '.join(f'{chunk:#06x}' for chunk in strayed)}",)
        difference = Difference(lines, "as recorded", "otherwise", "a fault of the model: device and recording agree")
        return outcome(DIFFERS, words=words, coverage=coverage, difference=difference)
    if not digests:
        difference = _first(row, int(wrong[0]), int(got[wrong[0]]), int(want[wrong[0]]))
        return outcome(DIFFERS, words=words, differing=wrong.size, coverage=coverage, difference=difference)
    note = f"digests of {wrong.size} of {CHUNK} chunks of 65,536 patterns differ"
    if not row.name.startswith("cvt"):
        chunk = int(wrong[0])
        lines = (f"patterns from {chunk << 16:#010x} on, 65,536 of them",)
        difference = Difference(lines, f"digest {int(got[chunk]):#x}", f"digest {int(want[chunk]):#x}")
        return outcome(DIFFERS, words=words, differing=wrong.size, coverage=coverage, note=note, difference=difference)
    found = _compared(device, row, wrong[:_WRONG_CHUNKS].tolist())
    difference = found.difference or Difference((note,), "-", "-", "the instruction alone agrees with the recording")
    return outcome(
        DIFFERS,
        words=words,
        differing=found.differing,
        coverage=coverage,
        difference=difference,
        note=f"{note}; the words that differ are of {min(wrong.size, _WRONG_CHUNKS)} of them",
    )


def _first(row: Recording, number: int, got: int, want: int) -> Difference:
    (operand,) = operands(row, 0) if row.facts["kind"] != "HEADER_TABLE" else (np.arange(CHUNK, dtype=np.uint32),)
    return Difference((f"operand {int(operand[number]):#x}",), f"{got:#x}", f"{want:#x}")


# ---- an instruction alone --------------------------------------------------------------------------------------------


def _sampled(device: Device, row: Recording) -> Case:
    return _compared(device, row, list(SAMPLED) if "digests" in row.arrays else [0])


def _compared(device: Device, row: Recording, chunks: list[int]) -> Case:
    """One instruction on some chunks, against the recording; what differs is compared with the model word by word."""
    differing, first = 0, None
    with device.probing().loaded(_program(row, device.target), row.name) as launcher:
        for chunk in chunks:
            got = _results(launcher, row, chunk)
            if _agrees(row, chunk, got):
                continue
            want = expected(row, chunk)
            wrong = np.flatnonzero(got != want)
            differing += max(int(wrong.size), 1)
            first = first or _worded(row, chunk, got, want, wrong)
    coverage = (
        f"{len(chunks)} of {CHUNK} chunks: upper halves {', '.join(f'{chunk:#06x}' for chunk in chunks)}"
        if "digests" in row.arrays
        else "all 65,536 inputs"
    )
    words = CHUNK * len(chunks)
    status = DIFFERS if first else PASS
    return outcome(status, words=words, differing=differing, coverage=coverage, difference=first)


def _agrees(row: Recording, chunk: int, got: Words) -> bool:
    if "digests" in row.arrays:
        return int(digest(got)) == int(row.arrays["digests"][chunk])
    return bool(np.array_equal(got, row.arrays["results"]))


def _worded(row: Recording, chunk: int, got: Words, want: Words, wrong: NDArray[np.intp]) -> Difference:
    """The simplest input whose result differs: the one with the fewest bits set."""
    if not wrong.size:
        return Difference(
            (f"chunk {chunk:#06x}",), "-", "-", "the model agrees with the device, the recording does not"
        )
    inputs = operands(row, chunk)
    simplest = min(wrong.tolist(), key=lambda i: (int(inputs[0][i]).bit_count(), int(inputs[0][i])))
    lines = [f"operand {i} = {int(x[simplest]):#x}" for i, x in enumerate(inputs)]
    return Difference(tuple(lines), f"{int(got[simplest]):#x}", f"{int(want[simplest]):#x}")


def operands(row: Recording, chunk: int) -> tuple[Words, ...]:
    """The operands of one chunk, as they were recorded."""
    match row.facts["kind"]:
        case "F16_PAIR_TO_16":
            halves = np.arange(CHUNK, dtype=np.uint32)
            return (halves | (halves ^ np.uint32(PARTNER_F16)) << np.uint32(16),)
        case "FP8_PAIR_TO_32":
            return (np.arange(CHUNK, dtype=np.uint16),)
        case kind:
            patterns = chunk_patterns(chunk)
            return (patterns, patterns ^ np.uint32(PARTNER)) if kind in _PAIRS else (patterns,)


def expected(row: Recording, chunk: int) -> Words:
    """What the model says of one chunk: a row of refsim.conversions, or the clause of the simulated GPU."""
    # PTX 9.0 wants .relu and .satfinite in one order for FP8 and in the other for f16.
    name = row.name if row.name in CONVERSIONS else row.name.replace(".relu.satfinite", ".satfinite.relu")
    inputs = operands(row, chunk)
    if name in CONVERSIONS:
        return np.asarray(convert(name, *inputs))
    type = bind(row.name, operands=1 + len(inputs)).results[0][1]
    bits = evaluate(row.name, *inputs)[0]
    register = np.dtype(f"u{_result_bits(row) // 8}")  # wider than s8, whose sign it repeats
    return bits.view(bits.dtype.str.replace("u", "i")).astype(register) if type.is_signed else bits.astype(register)


def _program(row: Recording, target: str) -> str:
    """The kernel of one instruction over 65,536 rows, for a target."""
    inputs = operands(row, 0)
    kinds = tuple(f"u{x.dtype.itemsize * 8}" for x in inputs)
    names = "".join(f", %{name}" for name in "ab"[: len(inputs)])
    form = ScalarForm(row.name, kinds, _result_bits(row), f"{row.name} %d{names};")
    return re.sub(r"(?m)^\.target .*$", f".target {target}", probe_module([form]))


def _result_bits(row: Recording) -> int:
    return int(row.facts["kind"].rsplit("_", maxsplit=1)[1])


def _results(launcher: Launcher, row: Recording, chunk: int) -> Words:
    inputs = [launcher.upload(x, name=f"operand{i} of {chunk}") for i, x in enumerate(operands(row, chunk))]
    out = launcher.output(CHUNK, np.dtype(f"u{_result_bits(row) // 8}"), name=f"out of {chunk}")
    launcher.launch("form_0", (CHUNK // BLOCK_THREADS,), (BLOCK_THREADS,), [*inputs, out, np.uint32(CHUNK)])
    return launcher.read(out)
