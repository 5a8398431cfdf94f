"""Replay of recorded scalar instructions on the simulated GPU: stored results, and digests.

A form of one pure instruction or comparison is computed by its instruction implementation. Other forms (a vote, an
atomic, a chain of carries) run as the PTX that the GPU ran.
"""

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from refsim import ptx
from refsim.ptx.isa.forms import bind, pure_function
from refsim.silicon.scalar_probe import ScalarForm, chunk_operands, probe_module
from refsim.silicon.vectors import CHUNK, Recording, digest

Words = NDArray[np.unsignedinteger]

SWAPPED_BY_PTXAS = {"mul.rn.f64 + add.rn.f64", "mul.f64 + add.rn.f64", "mul.rn.f64 + add.f64"}
"""ptxas assembles a*b + c as DADD c, a*b, and DADD keeps the second of two NaNs; PTX does not specify which NaN."""
OF_THE_UNIT = re.compile(
    r"(rcp|rsqrt|sqrt|ex2|lg2|sin|cos|tanh|div)\.(approx|full)(\.ftz)?\.f32|(rcp|rsqrt)\.approx(\.ftz)?\.f64"
    r"|(ex2|tanh)\.approx(\.ftz)?\.b?f16(x2)?"
)
"""Forms whose bits the tables of the special-function unit give."""
ARITHMETIC_ALONE = ptx.Checks(races="off", copies="off")
"""Checks of replays: only the arithmetic matters, so race and copy checks are off."""
_ATOMIC_SUM = re.compile(r"atom\S*\.add\.(\S+\.)?b?f\d")
_PURE = re.compile(r"\S+ %d((?:, %[abce])+);")
_TEST = re.compile(r"\S+ %p((?:, %[abce])+);\nselp\.u32 %d, 1, 0, %p;")


def form_of(recording: Recording) -> ScalarForm:
    """Return the recorded form."""
    facts = recording.facts
    return ScalarForm(recording.name, tuple(facts["operands"]), facts["result_bits"], facts["body"])


def open_reason(name: str) -> str | None:
    """Return why the bits of a form are unspecified, or None where they are specified."""
    if ".approx" in name and not OF_THE_UNIT.fullmatch(name):
        return "approximate"
    if _ATOMIC_SUM.match(name):
        return "atomic sum"
    bare = "mul" in name and " + " in name and ".rn" not in name
    return "contractible" if bare else None


def launched(form: ScalarForm, operands: list[Words], checks: ptx.Checks | None = None) -> tuple[Words, bool]:
    """Return a form's results on the simulator, and whether every bit of them is exact."""
    count = len(operands[0])
    results = np.zeros(count, np.dtype(f"u{form.result // 8}"))
    arguments = [*(column.copy() for column in operands), results, np.uint32(count)]
    trace = ptx.load(probe_module([form])).launch("form_0", (count // 256,), (256,), arguments, checks=checks)
    return results, trace.is_exact


def is_pure(recording: Recording) -> bool:
    """Return whether a form is one pure instruction or a comparison, which needs no machine."""
    body = recording.facts["body"]
    return bool(_TEST.fullmatch(body) or _PURE.fullmatch(body))


def computed(form: ScalarForm, operands: list[Words]) -> Words:
    """Return a form's results: by its instruction implementation if it is pure, else by a launch."""
    is_test = _TEST.fullmatch(form.body) is not None
    if is_test or _PURE.fullmatch(form.body):
        words = clause_words(form.body.partition(" ")[0], 1 if is_test else form.result, *operands)
        if words is not None:
            return words.astype(f"u{form.result // 8}")
    return launched(form, operands, ARITHMETIC_ALONE)[0]


def clause_words(opcode: str, result_bits: int, *operands: Words) -> Words | None:
    """Return an instruction implementation's results in a register of `result_bits`; None if it needs a machine."""
    bound = bind(opcode, operands=1 + len(operands))
    if bound.clause.wants_lanes or bound.clause.ends_block:
        return None
    with np.errstate(all="ignore"):
        (words,) = pure_function(bound, len(operands), [result_bits])(*operands)
    return np.broadcast_to(words, operands[0].shape)


def differing_rows(recording: Recording) -> tuple[int, int]:
    """Return the number of stored results, and how many of the model's results differ from them."""
    form = form_of(recording)
    got = computed(form, [recording.arrays[f"operand{slot}"] for slot in range(len(form.operands))])
    want = recording.arrays["result"]
    if recording.name in SWAPPED_BY_PTXAS:
        got, want = _without_payload(got), _without_payload(want)
    return want.size, int(np.count_nonzero(got != want))


def differing_chunks(recording: Recording, chunks: range) -> tuple[int, int]:
    """Return the number of further results in some chunks, and how many of their digests differ."""
    form, wanted = form_of(recording), recording.arrays["chunk_digests"]
    if recording.name in SWAPPED_BY_PTXAS:
        return 0, 0
    wrong = sum(digest(computed(form, list(_operands(form.operands, chunk)))) != wanted[chunk] for chunk in chunks)
    return CHUNK * len(chunks), int(wrong)


@lru_cache(maxsize=64)
def _operands(kinds: tuple[str, ...], chunk: int) -> tuple[Words, ...]:
    columns = tuple(chunk_operands(kinds, chunk))
    for column in columns:
        column.setflags(write=False)
    return columns


def _without_payload(patterns: Words) -> Words:
    """Return float64 patterns with every NaN replaced by one."""
    return np.where(np.isnan(patterns.view(np.float64)), np.uint64(0x7FF8000000000000), patterns)
