"""Every conversion to and from a narrow format on a device, compared with an H200's recording and the model.

A real GPU runs gpu/probes/conversions.cu over whole input spaces: one digest for each 65,536 of the 2^32 patterns. All
digests are compared with the recording, a sample also with the model, or all of them (`--exhaustive`). Where that file
does not compile for a target, and on the simulated GPU, each instruction runs alone on a fixed sample of chunks.

All 65,536 chunks of an instruction are 4,294,967,296 results. To compute the model's digests of them, one process for
each available processor computes a share: `refsim bringup --exhaustive` does so while no kernel runs.
"""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.bringup.report import Case, Difference, Task, hashed, outcome
from refsim.bringup.tensor_cores import KERNEL_FILE
from refsim.conversions import CONVERSIONS, Conversion, convert, decode, encode
from refsim.device import Device
from refsim.errors import Kind, RefsimError
from refsim.formats import format_named
from refsim.numerics.fast.product import cores
from refsim.ptx.isa.forms import bind, evaluate
from refsim.silicon.launch_replay import chunk_operands, spelled, table_operands
from refsim.silicon.scalar_probe import PROBE_THREADS, ScalarForm
from refsim.silicon.vectors import (
    CHUNK,
    Recording,
    arrays_file,
    digest,
    recordings,
    vectors_folder,
)

PROBES = KERNEL_FILE.parent / "conversions.cu"
SAMPLED = (
    *(0x0000, 0x0080, 0x3380, 0x3B80, 0x3F80, 0x4380, 0x477F, 0x4F00, 0x7F80),
    *(0x8000, 0xB380, 0xBF80, 0xCF00, 0xFF80),
)
"""Upper halves of a sample's patterns: subnormal, small, ones, ends of ranges, special, both signs."""
_WRONG_CHUNKS = 4
_NAMED = 16
ALONE = 256
"""The number of chunks that one process computes before other processes have started."""
_BAND = 512
Words = NDArray[np.unsignedinteger[Any]]


def fingerprint() -> str:
    """Return the hash of the files that decide the suite's results."""
    folder = vectors_folder()
    return hashed([PROBES, arrays_file(folder, "conversions"), folder / "conversions.json"])


def tasks(device: Device, exhaustive: str = "") -> Sequence[Task]:
    """Return a case for each recorded conversion: over whole input spaces where the probe file runs, else on a sample.

    `exhaustive` is "all" or "fp8": the model computes all 2^32 inputs of every conversion, or of the conversions to 8
    bits. Raises RefsimError `usage` where nothing could be exhaustive.
    """
    known = recordings("conversions")
    whole = not device.is_simulated and _compiles(device)
    if exhaustive and not whole:
        what = "--exhaustive goes with a GPU that runs the probe file"
        help = "leave --exhaustive out: instructions run alone on a stated sample"
        raise RefsimError("usage", what, where=device.describe()["device"], help=help)
    if not whole:
        return [Task(row.name, partial(_sampled, device, row)) for row in known.values() if row.name.startswith("cvt")]
    of_8_bits = exhaustive == "fp8"
    chosen = [row for row in known.values() if exhaustive and (is_of_8_bits(row) or not of_8_bits)]
    return [Task(row.name, partial(_whole, device, row, exhaustive=row in chosen)) for row in known.values()]


def _compiles(device: Device) -> bool:
    """Return whether the probe file compiles for the device; raise where the compiler is missing."""
    try:
        with device.launcher(PROBES):
            return True
    except RefsimError as error:
        if error.kind is Kind.MISSING:
            raise
        return False


# ---- whole input spaces ----------------------------------------------------------------------------------------------


def _whole(device: Device, row: Recording, exhaustive: bool = False) -> Case:
    """Return the case of every input on the device; a chunk with a differing digest runs again to find the input."""
    digests = "digests" in row.arrays
    count, dtype, blocks = (CHUNK, np.uint64, CHUNK) if digests else (CHUNK, np.uint32, CHUNK // PROBE_THREADS)
    with device.launcher(PROBES) as launcher:
        out = launcher.output(count, dtype, name="out")
        launcher.launch(row.facts["entry"], (blocks,), (PROBE_THREADS,), [out])
        got = launcher.read(out)
    want = row.arrays["digests" if digests else "results"]
    wrong = np.flatnonzero(got != want)
    modelled = list(range(CHUNK) if exhaustive else SAMPLED) if digests else [0]
    words, recorded = (CHUNK << 16, CHUNK - len(modelled) << 16) if digests else (CHUNK, 0)
    coverage = _covered(digests, len(modelled))
    if not wrong.size:
        difference = None
        if strayed := _strayed(row, modelled, got):
            named = ", ".join(f"{chunk:#06x}" for chunk in strayed[:_NAMED]) + (" ..." if len(strayed) > _NAMED else "")
            fault = "a fault of the model: device and recording agree"
            difference = Difference((f"chunks {named}",), "as recorded", "otherwise", fault)
        return outcome(words=words, recorded=recorded, coverage=coverage, difference=difference)
    if not digests:
        difference = _first(row, int(wrong[0]), int(got[wrong[0]]), int(want[wrong[0]]))
        return outcome(words=words, differing=wrong.size, coverage=coverage, difference=difference)
    note = f"digests of {wrong.size} of {CHUNK} chunks of 65,536 patterns differ"
    if not row.name.startswith("cvt"):
        chunk = int(wrong[0])
        lines = (f"patterns from {chunk << 16:#010x} on, 65,536 of them",)
        difference = Difference(lines, f"digest {int(got[chunk]):#x}", f"digest {int(want[chunk]):#x}")
        differing = wrong.size
    else:
        found = _compared(device, row, wrong[:_WRONG_CHUNKS].tolist())
        only = "the instruction alone agrees with the recording"
        difference, differing = found.difference or Difference((note,), "-", "-", only), found.differing
        note += f"; the words that differ are of {min(wrong.size, _WRONG_CHUNKS)} of them"
    facts: dict[str, Any] = {"words": words, "recorded": words, "differing": differing}
    return outcome(**facts, coverage=coverage, note=note, difference=difference)


def _covered(digests: bool, modelled: int) -> str:
    """Return the text of the inputs compared with the recording and the model."""
    if not digests:
        return "all 65,536 inputs against the recording and the model"
    if modelled == CHUNK:
        return "all 2^32 patterns against the recording and the model"
    return f"all 2^32 patterns against the recording, {modelled} chunks of 65,536 also against the model"


def _strayed(row: Recording, chunks: list[int], got: Words) -> list[int]:
    """Return the chunks in which the model's results differ from the device's."""
    if "digests" not in row.arrays:
        return [] if np.array_equal(expected(row, 0), got) else [0]
    return [chunk for chunk, digest in zip(chunks, model_digests(row, chunks), strict=True) if digest != got[chunk]]


def _first(row: Recording, number: int, got: int, want: int) -> Difference:
    (operand,) = operands(row, 0)
    return Difference((f"operand {int(operand[number]):#x}",), f"{got:#x}", f"{want:#x}")


# ---- an instruction alone --------------------------------------------------------------------------------------------


def _sampled(device: Device, row: Recording) -> Case:
    return _compared(device, row, list(SAMPLED) if "digests" in row.arrays else [0])


def _compared(device: Device, row: Recording, chunks: list[int]) -> Case:
    """Return the case of one instruction on some chunks; differing chunks are compared with the model result by
    result."""
    differing, first = 0, None
    form = form_of(row)
    with device.probing().loaded(form.program(device.target), row.name) as launcher:
        for chunk in chunks:
            got = form.launch(launcher, operands(row, chunk), f" of {chunk}")
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
    return outcome(words=words, recorded=words, differing=differing, coverage=coverage, difference=first)


def _agrees(row: Recording, chunk: int, got: Words) -> bool:
    if "digests" in row.arrays:
        return int(digest(got)) == int(row.arrays["digests"][chunk])
    return bool(np.array_equal(got, row.arrays["results"]))


def _worded(row: Recording, chunk: int, got: Words, want: Words, wrong: NDArray[np.intp]) -> Difference:
    """Return the difference at the simplest input whose result differs: the input with the fewest bits set."""
    if not wrong.size:
        return Difference(
            (f"chunk {chunk:#06x}",), "-", "-", "the model agrees with the device, the recording does not"
        )
    inputs = operands(row, chunk)
    simplest = min(wrong.tolist(), key=lambda i: (int(inputs[0][i]).bit_count(), int(inputs[0][i])))
    lines = [f"operand {i} = {int(x[simplest]):#x}" for i, x in enumerate(inputs)]
    return Difference(tuple(lines), f"{int(got[simplest]):#x}", f"{int(want[simplest]):#x}")


def form_of(row: Recording) -> ScalarForm:
    """Return the probe of a recorded instruction."""
    kinds = tuple(f"u{x.dtype.itemsize * 8}" for x in operands(row, 0))
    return ScalarForm.alone(row.name, kinds, result_bits(row))


def operands(row: Recording, chunk: int) -> tuple[Words, ...]:
    """Return the recorded operands of one chunk, or of the whole table."""
    kind = row.facts["kind"]
    return (table_operands(kind),) if "results" in row.arrays else chunk_operands(kind, chunk)


def conversion_of(row: Recording) -> Conversion | None:
    """Return the conversion of `refsim.conversions`; None for decoding and for other instructions."""
    return CONVERSIONS.get(spelled(row.name) or "")


def expected(row: Recording, chunk: int) -> Words:
    """Return the model's results of one chunk: by refsim.conversions, a decoder, or the instruction implementation."""
    inputs = operands(row, chunk)
    known = conversion_of(row)
    if known is not None:
        return np.asarray(convert(known.name, *inputs))
    if row.facts["kind"] == "HEADER_TABLE":
        _, _, source, target = row.name.split(".")
        codes = inputs[0] % format_named(source).code_limit  # bits above a code are not read
        return np.asarray(encode(decode(codes.astype(format_named(source).code_dtype), source), target))
    type = bind(row.name, operands=1 + len(inputs)).results[0][1]
    bits = evaluate(row.name, *inputs)[0]
    register = np.dtype(f"u{result_bits(row) // 8}")  # wider than s8, whose sign it repeats
    return bits.view(bits.dtype.str.replace("u", "i")).astype(register) if type.is_signed else bits.astype(register)


def result_bits(row: Recording) -> int:
    """Return the width of the register that an instruction writes: 16, 32 or 64."""
    return int(row.facts["kind"].rsplit("_", maxsplit=1)[1])


def is_of_8_bits(row: Recording) -> bool:
    """Return whether the results are codes of 8 bits: FP8 and E8M0."""
    known = conversion_of(row)
    return known is not None and known.to.bits == 8


def model_digests(row: Recording, chunks: Sequence[int]) -> NDArray[np.uint64]:
    """Return the digest of each chunk; many chunks are shared among all processors."""
    if len(chunks) <= ALONE or cores() == 1:
        return np.array([digest(expected(row, chunk)) for chunk in chunks], np.uint64)
    bands = [chunks[first : first + _BAND] for first in range(0, len(chunks), _BAND)]
    return np.concatenate(list(_others().map(_digests_by_name, [row.name] * len(bands), bands)))


@cache
def _others() -> ProcessPoolExecutor:
    """Return the pool of other processes, which lives to the end; a process with an open GPU must not be forked."""
    return ProcessPoolExecutor(cores(), multiprocessing.get_context("spawn"))


def _digests_by_name(name: str, chunks: Sequence[int]) -> NDArray[np.uint64]:
    """Return the digests of some chunks of a recording, in another process."""
    row = _recorded()[name]
    return np.array([digest(expected(row, chunk)) for chunk in chunks], np.uint64)


@cache
def _recorded() -> dict[str, Recording]:
    return recordings("conversions")
