"""What an H200 returned for every conversion, over whole input spaces, replayed against the model without a GPU.

Profile quick: the chunks where something happens (specials, subnormals, saturation, ties) and four others; night: all
65,536 chunks of the FP8 instructions (a minute of processor time each), every 13th of the others. Conversions that have
a row go through refsim.convert, all instructions also through the simulator.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

import refsim
from refsim import ptx
from refsim.conversions import CONVERSIONS, convert, encode
from refsim.errors import RefsimError
from refsim.silicon.launch_replay import PAIRS, chunk_operands, interesting_chunks, spelled, table_operands
from refsim.silicon.scalar_probe import ScalarForm, probe_module
from refsim.silicon.vectors import CHUNK, digest, locate, recordings, sidecar

RECORDED = recordings("conversions")
DIGESTS = sorted(name for name, row in RECORDED.items() if "digests" in row.arrays)
TABLES = sorted(name for name, row in RECORDED.items() if "results" in row.arrays)
HALVES = np.arange(CHUNK, dtype=np.uint32)


MODELLED = [name for name in DIGESTS if spelled(name)]
EXHAUSTIVE = [name for name in MODELLED if name.startswith("cvt") and CONVERSIONS[spelled(name)].to.bits == 8]
SIMULATED = [name for name in DIGESTS if name.startswith("cvt")]


def chunks_of(name):
    """Chunks of the recorded float32 space in which the conversion changes its mind, and a few others."""
    return interesting_chunks(name, is_pair=RECORDED[name].facts["kind"] in PAIRS)


def operands(name, chunk):
    """The operands of one chunk, as they were on the GPU."""
    return chunk_operands(RECORDED[name].facts["kind"], chunk)


def replay(name, chunks, model=convert):
    """The chunks where the model differs from the H200, each with a first pattern if a single one explains it."""
    wanted = RECORDED[name].arrays["digests"]
    found = []
    for chunk in chunks:
        results = model(spelled(name), *operands(name, chunk))
        got = int(digest(results))
        if got != wanted[chunk]:
            place = locate(got, int(wanted[chunk]))
            at = f"pattern {chunk << 16 | place[0]:#010x} by {place[1]:+d}" if place else "more than one pattern"
            found.append(f"chunk {chunk:#06x}: {at}")
    return found


def night_chunks(name):
    """All chunks of an FP8 instruction; of other conversions every 13th, which meets every exponent with both signs."""
    stride = 1 if name in EXHAUSTIVE else 13
    return list(range(0, CHUNK, stride))


def replay_widely(name, chunks):
    """replay on all processors: NumPy lets go of the interpreter within a chunk."""
    bands = [chunks[first : first + 256] for first in range(0, len(chunks), 256)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [line for band in pool.map(partial(replay, name), bands) for line in band]


@pytest.mark.parametrize("name", MODELLED)
def test_model_returns_what_the_h200_returned(name, refsim_profile):
    if refsim_profile != "night":
        first, step = (MODELLED.index(name) % 2, 2) if refsim_profile == "quick" else (0, 1)
        assert replay(name, chunks_of(name)[first::step]) == []
        return
    chunks = night_chunks(name)
    differences = replay_widely(name, chunks) + replay(name, chunks_of(name))
    print(f"{name}: {len(chunks)} of {CHUNK} chunks")
    assert differences == []


@pytest.mark.parametrize("name", [name for name in TABLES if spelled(name)])
def test_model_returns_what_the_h200_returned_for_every_16_bit_input(name):
    """Inputs: all f16 or bf16 patterns (an f16x2 has pattern ^ PARTNER_F16 above), all pairs of FP8 codes."""
    inputs = table_operands(RECORDED[name].facts["kind"])
    got = convert(spelled(name), inputs)
    differ = np.flatnonzero(got != RECORDED[name].arrays["results"])
    assert [hex(int(inputs[i])) for i in differ[:4]] == []


@pytest.mark.parametrize("name", [name for name in TABLES if ".decode." in name])
def test_decoding_is_what_nvidias_header_returns(name):
    """The header's e8m0, e2m3, e3m2 and e2m1 values, as bf16 or f16 patterns; the inputs repeat above the code."""
    _, _, format, target = name.split(".")
    codes = (HALVES % refsim.formats.format_named(format).code_limit).astype(np.uint8)
    got = encode(refsim.decode(codes, format), target)
    assert np.array_equal(got, RECORDED[name].arrays["results"])


@cache
def instruction(opcode, source_bits, operand_count, result_bits):
    """A simulated kernel of one recorded instruction."""
    text = f"{opcode} %d, %a, %b;" if operand_count == 2 else f"{opcode} %d, %a;"
    form = ScalarForm(opcode, (f"u{source_bits}",) * operand_count, result_bits, text)
    return ptx.load(probe_module([form]))


def simulated(name, *inputs):
    """The results of one chunk on the simulator."""
    kind = RECORDED[name].facts["kind"]
    bits = int(kind.rsplit("_", maxsplit=1)[1])
    results = np.zeros(CHUNK, np.dtype(f"u{bits // 8}"))
    program = instruction(name, inputs[0].dtype.itemsize * 8, len(inputs), bits)
    program.launch("form_0", (CHUNK // 256,), (256,), [*(x.copy() for x in inputs), results, np.uint32(CHUNK)])
    return results


@pytest.mark.parametrize("name", SIMULATED)
def test_simulator_returns_what_the_h200_returned(name, refsim_profile):
    chunks = chunks_of(name)
    count = {"quick": 3, "ci": 12, "night": len(chunks)}[refsim_profile]
    chunks = chunks[:: max(1, len(chunks) // count)]
    wanted = RECORDED[name].arrays["digests"]
    differ = [hex(chunk) for chunk in chunks if digest(simulated(name, *operands(name, chunk))) != wanted[chunk]]
    assert differ == []


# ---- the replay can fail ---------------------------------------------------------------------------------------------


def nan_keeps_sign(name, *inputs):
    """A model whose negative NaN is 0xff, as ml_dtypes and gfloat have it."""
    results = convert(name, *inputs)
    nan = (inputs[0] & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    negative = (inputs[0] >> np.uint32(31)) == 1
    return np.where(nan & negative, results | np.uint16(0x8000), results).astype(results.dtype)


def with_rounding(rounding):
    """A model that rounds another way but is right about NaN."""

    def model(name, *inputs):
        right = convert(name, *inputs)
        finite = [np.where((x & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000), np.uint32(0), x) for x in inputs]
        codes = [encode(x.view(np.float32), "e4m3", rounding=rounding) for x in finite]
        changed = codes[0].astype(np.uint16) << 8 | codes[1]
        return np.where((finite[0] == inputs[0]) & (finite[1] == inputs[1]), changed, right)

    return model


def flushes_subnormals(name, *inputs):
    small = np.uint32(0x3C800000)  # 2^-6, the least normal of E4M3
    flushed = [np.where((x & np.uint32(0x7FFFFFFF)) < small, x & np.uint32(0x80000000), x) for x in inputs]
    return convert(name, *flushed)


def swaps_halves(name, *inputs):
    return convert(name, *reversed(inputs))


def wrong_once(name, *inputs):
    results = convert(name, *inputs)
    results[inputs[0] == 0x3F800123] ^= 1
    return results


@pytest.mark.parametrize(
    "mutant",
    [nan_keeps_sign, with_rounding("ties-away"), with_rounding("toward-zero"), flushes_subnormals, swaps_halves],
)
def test_replay_catches_a_wrong_model(mutant):
    name = "cvt.rn.satfinite.e4m3x2.f32"
    assert replay(name, chunks_of(name), mutant) != []


def test_replay_names_the_pattern_of_a_single_wrong_result():
    name = "cvt.rn.satfinite.e4m3x2.f32"
    found = replay(name, [0x3F7F, 0x3F80, 0x3F81], wrong_once)
    assert len(found) == 1
    assert found[0].startswith("chunk 0x3f80: pattern 0x3f800123 by ")


# ---- the recording -------------------------------------------------------------------------------------------------


def test_every_recording_is_replayed():
    """A recording goes through the model, the simulator or the decoder: none is kept for show."""
    tables = {name for name in TABLES if spelled(name) or ".decode." in name}
    assert set(RECORDED) == {*MODELLED, *SIMULATED, *tables}
    assert len(RECORDED) == 131


def test_recording_says_what_made_it():
    facts = sidecar("conversions")
    assert facts["device"] == "NVIDIA H200"
    assert "V13.0.88" in facts["compiler"]
    assert facts["flags"].endswith("arch=compute_90a,code=sm_90a")
    hardware = RECORDED["cvt.rn.satfinite.e4m3x2.f32"].facts["sass"]
    assert hardware == ["F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C"]


def test_recording_was_made_from_the_source_beside_it():
    source = Path(refsim.__file__).parents[1] / "gpu" / "probes" / "conversions.cu"
    if not source.is_file():
        pytest.skip("the checkout's gpu/probes is not here: run from a checkout")
    assert hashlib.sha256(source.read_bytes()).hexdigest() == sidecar("conversions")["sha256"]["conversions.cu"]


def test_unknown_recordings_are_named():
    with pytest.raises(RefsimError, match="no recording file is called 'conversion'"):
        sidecar("conversion")
    with pytest.raises(RefsimError, match="no recorded device is called 'b300'"):
        sidecar("conversions", "b300")
