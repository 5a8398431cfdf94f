"""What the clauses of the simulated GPU say to the rows that scalar instructions were given: stored ones, and digests.

A form whose body is one instruction of numbers, or such a comparison, is computed by its clause alone; any other (a vote, an
atomic, a chain of carries) runs as the PTX that the GPU ran.
"""

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from refsim import ptx
from refsim.ptx.isa.binding import bind, pure_function
from refsim.silicon.scalar_probe import ScalarForm, chunk_operands, probe_module
from refsim.silicon.vectors import CHUNK, Recording, digest

Words = NDArray[np.unsignedinteger]

SWAPPED_BY_PTXAS = {"mul.rn.f64 + add.rn.f64", "mul.f64 + add.rn.f64", "mul.rn.f64 + add.f64"}
"""ptxas assembles a*b + c as DADD c, a*b, and of two NaNs DADD keeps the second: PTX does not say whose stays."""
OF_THE_UNIT = re.compile(
    r"(rcp|rsqrt|sqrt|ex2|lg2|sin|cos|tanh|div)\.(approx|full)(\.ftz)?\.f32|(rcp|rsqrt)\.approx(\.ftz)?\.f64"
    r"|(ex2|tanh)\.approx(\.ftz)?\.b?f16(x2)?"
)
"""Forms whose bits the tables of the special-function unit have."""
ARITHMETIC_ALONE = ptx.Checks(races="off", copies="off")
"""For replays: that the kernel around an instruction races nowhere is no question of its arithmetic."""
_ATOMIC_SUM = re.compile(r"atom\S*\.add\.(\S+\.)?b?f\d")
_PURE = re.compile(r"\S+ %d((?:, %[abce])+);")
_TEST = re.compile(r"\S+ %p((?:, %[abce])+);\nselp\.u32 %d, 1, 0, %p;")


def form_of(recording: Recording) -> ScalarForm:
    """The form that was recorded."""
    facts = recording.facts
    return ScalarForm(recording.name, tuple(facts["operands"]), facts["result_bits"], facts["body"])


def open_reason(name: str) -> str | None:
    """Why the bits of a form are not ours to say; None for the others, which are most."""
    if ".approx" in name and not OF_THE_UNIT.fullmatch(name):
        return "approximate"
    if _ATOMIC_SUM.match(name):
        return "atomic sum"
    bare = "mul" in name and " + " in name and ".rn" not in name
    return "contractible" if bare else None


def launched(form: ScalarForm, operands: list[Words], checks: ptx.Checks | None = None) -> tuple[Words, bool]:
    """A form's results on the simulator, and whether the simulator vouches for every bit of them."""
    count = len(operands[0])
    results = np.zeros(count, np.dtype(f"u{form.result // 8}"))
    arguments = [*(column.copy() for column in operands), results, np.uint32(count)]
    trace = ptx.load(probe_module([form])).launch("form_0", (count // 256,), (256,), arguments, checks=checks)
    return results, trace.is_exact


def is_pure(recording: Recording) -> bool:
    """Whether a form is one instruction of numbers, or a comparison, which its clause computes alone."""
    body = recording.facts["body"]
    return bool(_TEST.fullmatch(body) or _PURE.fullmatch(body))


def computed(form: ScalarForm, operands: list[Words]) -> Words:
    """A form's results: by the clause of its instruction alone, where it has no other."""
    is_test = _TEST.fullmatch(form.body) is not None
    if is_test or _PURE.fullmatch(form.body):
        words = clause_words(form.body.partition(" ")[0], 1 if is_test else form.result, *operands)
        if words is not None:
            return words.astype(f"u{form.result // 8}")
    return launched(form, operands, ARITHMETIC_ALONE)[0]


def clause_words(opcode: str, result_bits: int, *operands: Words) -> Words | None:
    """What the clause of an opcode leaves in a register of so many bits; None where it asks more than its operands."""
    bound = bind(opcode, operands=1 + len(operands))
    if bound.clause.wants_lanes or bound.clause.ends_block:
        return None
    with np.errstate(all="ignore"):
        (words,) = pure_function(bound, len(operands), [result_bits])(*operands)
    return np.broadcast_to(words, operands[0].shape)


def differing_rows(recording: Recording) -> tuple[int, int]:
    """How many stored rows there are, and how many of the model's results differ from them."""
    form = form_of(recording)
    got = computed(form, [recording.arrays[f"operand{slot}"] for slot in range(len(form.operands))])
    want = recording.arrays["result"]
    if recording.name in SWAPPED_BY_PTXAS:
        got, want = _without_payload(got), _without_payload(want)
    return want.size, int(np.count_nonzero(got != want))


def differing_chunks(recording: Recording, chunks: range) -> tuple[int, int]:
    """How many further rows some chunks have, and how many of their digests the model does not give."""
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
    """float64 patterns with one NaN for all."""
    return np.where(np.isnan(patterns.view(np.float64)), np.uint64(0x7FF8000000000000), patterns)
