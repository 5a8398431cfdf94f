"""Instructions of the PTX ISA without an implementation: a description of each, and the first target that has it. An
entry is used only for an opcode that no form covers, so that a family may be modelled in part."""

from collections.abc import Sequence
from dataclasses import dataclass

from refsim.errors import RefsimError, nearest
from refsim.sources import PTX, Source

EVERY = "every target"


@dataclass(frozen=True)
class Unmodelled:
    """Opcodes that begin with the words of `prefix` and, where it is given, contain the word `having`."""

    prefix: str
    what: str
    since: str
    source: Source
    having: str = ""

    def covers(self, opcode: str) -> bool:
        """Return whether an opcode is one of these."""
        words = opcode.split(".")
        own = self.prefix.split(".")
        return words[: len(own)] == own and (not self.having or self.having in words)


# Prefix, description, first target, section, and optionally a word that the opcode must contain. The first entry that
# covers an opcode is used: longer prefixes stand before shorter ones.
# fmt: off
_TABLE: tuple[tuple[str, ...], ...] = (
    ("tcgen05", "part of the fifth generation of tensor cores", "sm_100a", "TensorCore 5th generation family"),
    ("wmma", "product of matrices of 4 or 1 bits by a warp, in opaque fragments", "sm_75", "wmma"),
    ("mma.sp", "product of a sparse matrix of 4 bits or of block-scaled ones by a warp", "sm_80", "mma.sp"),
    ("mma.sp::ordered_metadata", "product of a sparse matrix of 4 bits or of block-scaled ones by a warp", "sm_80", "mma.sp"),
    *(("mma", f"product of matrices of {bits} by a warp", "sm_75", "mma", type)
      for type, bits in (("s4", "4 bits"), ("u4", "4 bits"), ("b1", "single bits"))),
    ("cvt", "conversion from or to pairs of s2f6", "sm_100a", "cvt", "s2f6x2"),
    ("cp.async.bulk.tensor", "copy of a tensor's box (TMA) in a mode other than tiles and im2col", "sm_100",
     "cp.async.bulk.tensor"),
    ("cp.async.bulk.prefetch.tensor", "prefetch of a tensor's box in a mode other than tiles and im2col", "sm_100a",
     "cp.async.bulk.prefetch.tensor"),
    ("cp.async.bulk", "asynchronous copy of a run of bytes, with a mask of bytes or a semantics", "sm_100", "cp.async.bulk"),
    ("st.bulk", "initialization of a run of shared memory", "sm_100", "st.bulk"),
    ("multimem", "access to memory of several devices at once", "sm_90", "multimem"),
    ("alloca", "memory on the stack", "sm_52", "alloca"),
    ("stacksave", "the stack pointer, kept", "sm_52", "stacksave"),
    ("stackrestore", "the stack pointer, put back", "sm_52", "stackrestore"),
    *((name, "texture fetch or query", EVERY, "texture instructions") for name in ("tex", "tld4", "txq")),
    *((name, "surface access or query", EVERY, "surface instructions") for name in ("suld", "sust", "sured", "suq")),
    ("istypep", "test of a texture, sampler or surface reference", "sm_30", "istypep"),
)
# fmt: on
ROWS = tuple(Unmodelled(prefix, what, since, PTX[section], *having) for prefix, what, since, section, *having in _TABLE)


def unmodelled(opcode: str) -> Unmodelled | None:
    """Return the entry of an opcode without an implementation; None if no entry covers it."""
    return next((row for row in ROWS if row.covers(opcode)), None)


def missing(opcode: str, where: str, forms: Sequence[str], others: Sequence[str]) -> RefsimError:
    """Return the error for an opcode without an implementation: its description and first target, or the nearest form.
    forms: the forms of the opcode's mnemonic; others: all forms, for an opcode whose mnemonic is unknown."""
    if row := unmodelled(opcode):
        what = f"this simulator does not model {opcode!r} yet: {row.what}, PTX of {_spoken(row.since)}"
        return RefsimError("unknown-instruction", what, where=where, rule=str(row.source))
    (near,) = nearest(opcode.partition(".")[0], [each.partition(".")[0] for each in others], 1)
    known = list(forms) or [each for each in others if each.partition(".")[0] == near]
    help = f"nearest known form: {'; '.join(nearest(opcode, known, 1))}"
    return RefsimError("unknown-instruction", f"the simulator does not implement {opcode!r}", where=where, help=help)


def _spoken(since: str) -> str:
    return since if since == EVERY else f"{since} and later" if not since.endswith("a") else since
