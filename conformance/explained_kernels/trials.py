"""One planted mistake, or one control, asked about as `refsim verify` asks, and what many of them come to."""

import re
import shutil
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from conformance.explained_kernels.cases import cases
from refsim import device
from refsim.compare.code_line import codes_of
from refsim.errors import RefsimError
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.testing import explain_problem, laws
from refsim.testing.explained import DiffExplanation

TABLE = Path(__file__).with_name("mistakes.toml")
SECONDS = 3.0
RIGHT, UNNAMED, WRONG, NO_DIFFERENCE, STOPPED = "right", "unnamed", "wrong", "no difference", "stopped"
"""A mistake that shows no difference, or that stops the run with a fault, does not belong into the table."""
OPEN = re.compile("another factor: |elements in other places: .* in another order")
"""Shapes that are true of the outputs and do not say what made them."""


@dataclass(frozen=True)
class Planted:
    """One mistake of the table. `edits`: file beside the kernel's own ("" for that), text, what replaces it.

    `says`: the pattern of its right answers; without it, those of its `kind` and `also` count. `place`: numbers any of
    which tells where a permutation acts.
    """

    id: str
    case: str
    kind: str
    what: str
    edits: tuple[tuple[str, str, str], ...]
    also: str = ""
    says: str = ""
    place: tuple[int, ...] = ()

    def kernel(self, folder: Path) -> Kernel:
        """The kernel with the mistake, in a copy of its folder; ValueError unless each text stands there once."""
        right = cases()[self.case].kernel
        assert right.file is not None
        copy = folder / "kernels"
        shutil.copytree(right.file.parent, copy)
        for name, old, new in self.edits:
            file = copy / (name or right.file.name)
            text = file.read_text("utf-8")
            if text.count(old) != 1:
                raise ValueError(f"{self.id}: {old!r} stands {text.count(old)} times in {file.name}")
            file.write_text(text.replace(old, new), "utf-8")
        return replace(right, file=copy / right.file.name, suspects={})

    def accepts(self, said: str) -> bool:
        """Whether a named cause is the mistake."""
        patterns = [self.says] if self.says else [answers()[self.kind], *([self.also] if self.also else [])]
        return any(re.search(pattern, said, re.IGNORECASE) for pattern in patterns)

    def is_located(self, said: list[str]) -> bool:
        """Whether the words tell where the permutation acts."""
        return bool({int(number) for text in said for number in re.findall(r"\d+", text)} & set(self.place))


@cache
def answers() -> dict[str, str]:
    """The pattern of right answers, by kind."""
    return dict(tomllib.loads(TABLE.read_text("utf-8"))["answers"])


@cache
def planted() -> dict[str, Planted]:
    """The table, by id."""
    records = tomllib.loads(TABLE.read_text("utf-8"))["mistake"]
    found = {}
    for record in records:
        edits, place = tuple(map(tuple, record.pop("edits"))), tuple(record.pop("place", ()))
        found[record["id"]] = Planted(**record, edits=edits, place=place)
    return found


# ---- controls --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Control:
    """A right kernel, or one whose outputs `spoil` changes at random: nothing may be named."""

    id: str
    case: str
    spoil: Callable[[np.random.Generator, Any], Any] | None = None

    def kernel(self, folder: Path) -> Kernel:
        right = cases()[self.case].kernel
        spoil = self.spoil
        if spoil is None:
            return replace(right, suspects={})

        def run(launcher: Launcher, problem: Any) -> Outputs:
            outputs, names = right.run(launcher, problem), right.output_formats(problem)
            return {name: _spoiled(array, spoil) if names[name] else array for name, array in outputs.items()}

        return replace(right, run=run, suspects={})


def _spoiled(array: Any, spoil: Callable[[np.random.Generator, Any], Any]) -> Any:
    """The array with some codes replaced; the generator depends on the contents, so that other inputs differ."""
    codes = codes_of(np.asarray(array)).reshape(np.shape(array))
    seed = int(np.frombuffer(np.ascontiguousarray(codes).tobytes().ljust(8, b"\0"), np.uint8).sum(dtype=np.int64))
    return spoil(np.random.default_rng(seed), codes).astype(codes.dtype).view(np.asarray(array).dtype)


def _low_bits(generator: np.random.Generator, codes: Any) -> Any:
    """One ulp in about a third of the elements."""
    return codes ^ (generator.random(codes.shape) < 0.3)


def _some_bits(generator: np.random.Generator, codes: Any) -> Any:
    """A random bit in a tenth of the elements."""
    bits = np.left_shift(np.uint64(1), generator.integers(0, 8 * codes.dtype.itemsize, codes.shape, dtype=np.uint64))
    return codes ^ np.where(generator.random(codes.shape) < 0.1, bits, 0).astype(codes.dtype)


def _values_of_others(generator: np.random.Generator, codes: Any) -> Any:
    """A fifth of the elements hold those of random others."""
    drawn = codes.reshape(-1)[generator.integers(0, codes.size, codes.shape)]
    return np.where(generator.random(codes.shape) < 0.2, drawn, codes)


SPOILED = {
    "low-bits": (_low_bits, ("groups", "sm120_mxfp8", "gemm", "linear", "attention", "norm", "matmul_f16")),
    "some-bits": (_some_bits, ("mxfp8", "blocks", "sm90_mxfp8", "narrow", "softmax", "awq_dequantize", "pack_scales")),
    "values-of-others": (
        _values_of_others,
        ("nvfp4", "uncast", "gemm", "rope_cache", "int8_matmul", "nvfp4_dequantize", "transpose_quantize"),
    ),
}
"""Which outputs are spoiled in which way."""


@cache
def controls() -> dict[str, Control]:
    """Every kernel as it is, and the spoiled ones, by id."""
    found = [Control(f"equal/{name}", name) for name in cases()]
    for way, (spoil, names) in SPOILED.items():
        found += [Control(f"{way}/{name}", name, spoil) for name in names]
    return {each.id: each for each in found}


# ---- the question ----------------------------------------------------------------------------------------------------


def asked(name: str, seconds: float = SECONDS) -> dict[str, Any]:
    """The row of a report: what was planted, what was named, the verdict, and the processor time of the question."""
    subject = planted().get(name) or controls()[name]
    case = cases()[subject.case]
    row: dict[str, Any] = {"id": name, "kernel": case.kernel.name, "kind": getattr(subject, "kind", "")}
    with tempfile.TemporaryDirectory(prefix="refsim-planted-") as folder:
        kernel, gpu = subject.kernel(Path(folder)), device.open("sim", case.target)
        try:
            laws.observe(kernel, case.problem, gpu)  # compiles; the question below does not
            started = time.process_time()
            said = explain_problem(kernel, case.problem, gpu, seconds=seconds)
        except RefsimError as error:
            return row | {"verdict": STOPPED, "says": [f"[{error.code}]"], "seconds": 0.0, "outputs": {}}
        took = time.process_time() - started
    names = {output: [str(cause) for named in each.named for cause in named.causes] for output, each in said.items()}
    row["verdict"] = of_control(said) if isinstance(subject, Control) else of_mistake(subject, said)
    row["says"] = list(dict.fromkeys(text for each in names.values() for text in each))[:3]
    if isinstance(subject, Planted) and subject.place:
        row["located"] = row["verdict"] == RIGHT and subject.is_located(
            [text for each in names.values() for text in each]
        )
    row["outputs"] = {output: [each.differing, each.size] for output, each in said.items() if each.differing}
    return row | {"seconds": round(took, 2)}


def of_mistake(mistake: Planted, said: dict[str, DiffExplanation]) -> str:
    """Right: each output with a name has the right one among them, where a cause of several parts counts by any part.

    A factor or an order that the words leave open is no name, unless it says the mistake.
    """
    if not any(each.differing for each in said.values()):
        return NO_DIFFERENCE
    causes = [[str(cause) for one in each.named for cause in one.causes] for each in said.values() if each.named]
    named = [each for each in causes if not all(OPEN.match(text) and not mistake.accepts(text) for text in each)]
    if not named:
        return UNNAMED
    return RIGHT if all(any(mistake.accepts(text) for text in each) for each in named) else WRONG


def of_control(said: dict[str, DiffExplanation]) -> str:
    return WRONG if any(each.named for each in said.values()) else RIGHT


def _percent(part: int, whole: int) -> float:
    return round(100 * part / max(1, whole), 1)


def summary(rows: list[dict[str, Any]], command: str) -> dict[str, Any]:
    """Counts over mistakes, kinds and controls."""
    mistakes, held = ([row for row in rows if (row["id"] in planted()) == is_one] for is_one in (True, False))
    counts = Counter(row["verdict"] for row in mistakes)
    kinds = Counter(row["kind"] for row in mistakes)
    right = Counter(row["kind"] for row in mistakes if row["verdict"] == RIGHT)
    return {
        "command": command,
        "mistakes": len(mistakes),
        "kernels": len({row["kernel"] for row in mistakes}),
        "right": counts[RIGHT],
        "right_percent": _percent(counts[RIGHT], len(mistakes)),
        "right_in_time": sum(row["verdict"] == RIGHT and row["seconds"] <= SECONDS for row in mistakes),
        "wrong": counts[WRONG],
        "unnamed": counts[UNNAMED],
        "located": [
            sum(row["located"] for row in mistakes if "located" in row),
            sum("located" in row for row in mistakes),
        ],
        "unfit": [row["id"] for row in mistakes if row["verdict"] in (NO_DIFFERENCE, STOPPED)],
        "controls": len(held),
        "controls_named": [row["id"] for row in held if row["verdict"] != RIGHT],
        "longest_seconds": max((row["seconds"] for row in rows), default=0.0),
        "kinds": {kind: [right[kind], count] for kind, count in sorted(kinds.items())},
    }
