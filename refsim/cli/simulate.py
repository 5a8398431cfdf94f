"""refsim simulate: one launch of one entry on the simulated GPU."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refsim.cli.answers import AGREED, FAILED, Answer, answers
from refsim.errors import RefsimError
from refsim.render import Column, Document, Entry, Record, Table

if TYPE_CHECKING:
    from refsim.ptx import BankUse, Program, Trace
    from refsim.render import Cell

_SCALARS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64")
FINDINGS = (Column("check", strong=True), Column("where"), Column("what"))
BANKS = (
    Column("source", strong=True),
    Column("instruction"),
    Column("accesses", align="right", drop=2),
    Column("wavefronts", align="right", drop=1),
    Column("ways", align="right", label="wavefronts / needed"),
)
_ARGUMENT_RULE = (
    "TYPE:VALUE (u64:1000, f32:1.5, u32:0x3f800000), FILE.npy or FORMAT:FILE.npy (bf16:x.npy; copied in and back), "
    "zeros:TYPE:COUNT"
)


@dataclass(frozen=True)
class Extents:
    """1 to 3 positive extents: 4 or 2x3."""

    text: str

    @property
    def numbers(self) -> tuple[int, ...]:
        parts = self.text.lower().split("x")
        if not 1 <= len(parts) <= 3 or not all(part.isdigit() and int(part) > 0 for part in parts):
            raise RefsimError(
                "bad-launch", f"{self.text!r} is no grid or block", rule="one to three extents: 4 or 2x3x1"
            )
        return tuple(map(int, parts))


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("entry")
@click.option("--grid", default="1", show_default=True, help="Blocks: 4 or 2x3.")
@click.option("--block", default="32", show_default=True, help="Threads of a block: 256 or 16x16.")
@click.option("--arg", "arguments", multiple=True, metavar="ARG", help=_ARGUMENT_RULE)
@click.option(
    "--save", "saves", multiple=True, metavar="N=FILE.npy", help="Write argument N (from 0) after the launch."
)
@click.option("--shared", default=0, type=click.IntRange(0), help="Bytes of dynamic shared memory.")
@click.option("--target", metavar="SM", help="Architecture, such as sm_90a (default: the file's own).")
@click.option(
    "--policy",
    default="eager",
    show_default=True,
    help="eager, lazy or random: the schedule of the threads, and when asynchronous copies arrive.",
)
@click.option("--seed", default=0, type=click.IntRange(0), help="Seed of a random schedule.")
@click.option(
    "--arithmetic",
    default="silicon",
    show_default=True,
    help="silicon or exact: matrices multiplied as the target does, or summed exactly (faster).",
)
@click.option("--banks/--no-banks", default=True, help="Count the bank conflicts of shared memory.")
@answers
def command(
    file: Path, entry: str, grid: str, block: str, arguments: tuple[str, ...], saves: tuple[str, ...], shared: int,
    target: str | None, policy: str, seed: int, arithmetic: str, banks: bool,
) -> Answer:  # fmt: skip
    """Execute ENTRY of a PTX or CUDA FILE lane by lane, every memory access checked.

    Findings that do not stop a kernel (races, reads of unwritten or unfinished bytes) are listed, and the exit code is 1.

    \b
      refsim simulate add.ptx add --block 64 --arg x.npy --arg u64:64 --arg zeros:f32:64 --save 2=y.npy
    """
    from refsim.files.access import write_atomically
    from refsim.ptx import Checks

    program = _program(file, target)
    values = [_argument(position, text) for position, text in enumerate(arguments)]
    targets = [_save(text, values) for text in saves]
    trace = program.launch(
        entry, Extents(grid).numbers, Extents(block).numbers, values, shared_bytes=shared, policy=policy, seed=seed,
        arithmetic=arithmetic, checks=Checks("record", "record", "record", "record", banks=banks),
    )  # fmt: skip
    for position, path in targets:
        _write_array(path, values[position], write_atomically)
    entries = [
        Entry("entry", entry),
        Entry("target", program.target),
        Entry("policy", f"random, seed {seed}" if policy == "random" else policy),
        Entry("arithmetic", arithmetic),
        Entry("thread_instructions", trace.instructions, label="thread-instructions"),
        Entry("exact", trace.is_exact),
        Entry("inexact", trace.inexact + trace.idealised),
        Entry("contractions", tuple(map(str, trace.contractions))),
        Entry("saved", tuple(str(path) for _, path in targets)),
        Entry("findings_count", len(trace.findings), label="findings"),
    ]
    parts: list[Record | Table] = [Record(tuple(entries))]
    if trace.findings:
        parts.append(Table(FINDINGS, _findings(trace), key="findings"))
    if trace.banks:
        parts.append(Table(BANKS, _banks(trace.banks), key="banks"))
    document = Document(tuple(parts), f"{entry} of {file}", hints=_previews(values))
    return Answer(document, FAILED if trace.findings else AGREED)


def _findings(trace: "Trace") -> "tuple[tuple[Cell, ...], ...]":
    return tuple((error.code, error.where, error.what) for error in trace.findings)


def _banks(uses: "tuple[BankUse, ...]") -> "tuple[tuple[Cell, ...], ...]":
    """One row for each source line and opcode: the copies of an unrolled loop are one instruction to its author."""
    totals: dict[tuple[str, str], list[int]] = {}
    for use in uses:
        place = str(use.statement.location or f"PTX line {use.statement.line}")
        row = totals.setdefault((place, use.statement.opcode), [0, 0, 0])
        for column, count in enumerate((use.accesses, use.wavefronts, use.ideal)):
            row[column] += count
    return tuple(
        (place, opcode, accesses, wavefronts, f"{wavefronts / ideal:.2f}")
        for (place, opcode), (accesses, wavefronts, ideal) in totals.items()
    )


def _program(file: Path, target: str | None) -> "Program":
    from refsim import ptx

    if file.suffix == ".cu":
        from refsim.device.compile import compile_ptx

        compiled = compile_ptx(file, target or ptx.DEFAULT_TARGET)
        return ptx.load(compiled.text, compiled.target)
    return ptx.load(file, target)


def _argument(position: int, text: str) -> Any:
    import numpy as np

    kind, _, value = text.partition(":")
    wrong = RefsimError("bad-argument", f"argument {position}: {text!r} is no argument", rule=_ARGUMENT_RULE)
    if kind == "zeros":
        name, _, count = value.partition(":")
        if name not in _SCALARS or not count.isdigit() or int(count) > 1 << 30:
            raise wrong
        return np.zeros(int(count), _dtype(name))
    if kind in _SCALARS:
        try:
            return _scalar(kind, value)
        except (ValueError, OverflowError):
            raise wrong from None
    if text.endswith(".npy"):
        from refsim import files
        from refsim.formats import FORMATS

        named = kind in {format.name for format in FORMATS}
        return files.load(Path(value if named else text), format=kind if named else None).codes.copy()
    raise wrong


def _dtype(name: str) -> str:
    return {"u": "u", "s": "i", "f": "f"}[name[0]] + str(int(name[1:]) // 8)


def _scalar(kind: str, value: str) -> Any:
    """A scalar of a PTX type; a float may be given by its bits in hexadecimal."""
    import numpy as np

    dtype = np.dtype(_dtype(kind))
    if dtype.kind == "f" and value.lower().startswith("0x"):
        return np.array([int(value, 16)], f"u{dtype.itemsize}").view(dtype)[0]
    return dtype.type(float(value) if dtype.kind == "f" else int(value, 0))


def _save(text: str, values: list[Any]) -> tuple[int, Path]:
    position, _, path = text.partition("=")
    if not position.isdigit() or int(position) >= len(values) or not path.endswith(".npy"):
        raise RefsimError("bad-save", f"{text!r} names no argument to save", rule="N=FILE.npy, N from 0")
    if getattr(values[int(position)], "ndim", 0) == 0:
        raise RefsimError("bad-save", f"argument {position} is a scalar", rule="only arrays are copied back")
    return int(position), Path(path)


def _write_array(path: Path, array: Any, write: Any) -> None:
    import numpy as np

    write(path, lambda stream: np.save(stream, array), overwrite=True)


def _previews(values: list[Any]) -> tuple[str, ...]:
    return tuple(
        f"argument {position}: {' '.join(map(str, value.reshape(-1)[:8]))}{' ...' if value.size > 8 else ''}"
        for position, value in enumerate(values)
        if getattr(value, "ndim", 0) and value.size
    )
