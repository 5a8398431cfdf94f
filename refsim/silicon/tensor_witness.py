"""The independent checks of a tensor-core instruction of a launch: products recorded here, products that others
published, and a slow second definition of them."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim import ptx
from refsim.errors import RefsimError
from refsim.evidence import Evidence, Level
from refsim.formats import F32, F64, S32, element_named
from refsim.matrix_opcodes import MatrixOpcode, matrix_opcode
from refsim.numerics.multiply import ProductSpec
from refsim.numerics.profiles import chip, profile, rows_of, unit_named
from refsim.numerics.rows import Profile, Unit
from refsim.numerics.sparse import sparse_profile, sparse_rows
from refsim.silicon import sparse_probe, wmma_probe
from refsim.silicon.second_definition import differing
from refsim.silicon.sparse_probe import HYPOTHESES, problems
from refsim.silicon.tensor_features import feature_words, features, negated
from refsim.silicon.tensor_probe import cells, chunk_digest, chunks_of, sample_words, shape_of
from refsim.silicon.vectors import CHUNK, Recording, recorded_devices, shelf
from refsim.silicon.witness import DEFINITION, PUBLISHED
from refsim.targets import target_named

Codes = NDArray[Any]
STEM, FOLDER = "dot_products", "published"


@dataclass(frozen=True, eq=False)
class DotProducts:
    """Dot products of one instruction on one chip: A and B are codes (n, K), C and D codes (n,).

    `types` are A's, B's and D's; `k` is the K of one instruction, and longer rows are chains. Where the instruction
    read no C, C holds zeros. Scales are codes (n, blocks) of `scale_format`.
    """

    chip: str
    target: str
    unit: Unit
    types: tuple[str, str, str]
    k: int
    a: Codes
    b: Codes
    c: Codes
    d: Codes
    scale_format: str = ""
    a_scale: Codes | None = None
    b_scale: Codes | None = None

    def modelled(self, row: Profile | None = None) -> Codes:
        """Return D as the model computes it, as codes; with a `row` of other arithmetic, by that."""
        a, b, d = map(element_named, self.types)
        scaled: dict[str, Any] = {}
        if self.a_scale is not None and self.b_scale is not None:
            scaled = {"a_scale": self.a_scale[:, None], "b_scale": self.b_scale[:, None]}
            scaled["scale_format"] = self.scale_format
        operands, product = (self.a[:, None], self.b[:, None]), ProductSpec(a, b, d, 1, 1, self.k, self.unit)
        return product.codes(*operands, self.c[:, None, None], target=self.target, row=row, **scaled).reshape(-1)


def published(target: str, unit: str, types: tuple[str, str, str] | None = None) -> Iterator[DotProducts]:
    """Yield the bundled samples of a chip's unit, of some types of A, B and D or of all."""
    for sample in _samples():
        if (sample.target, sample.unit) == (target, unit) and types in (None, sample.types):
            yield sample


@cache
def _samples() -> tuple[DotProducts, ...]:
    """Return every bundled sample; none where no recordings are installed."""
    if FOLDER not in recorded_devices(STEM):
        return ()
    opened, found = shelf(STEM, FOLDER), []
    for row in opened.take(opened.rows).values():
        facts: dict[str, Any] = {key: row.facts[key] for key in ("chip", "target", "unit", "k")} | row.arrays
        scale_format = row.facts.get("scale_format", "")
        found.append(DotProducts(types=tuple(row.facts["types"]), scale_format=scale_format, **facts))
    return tuple(found)


HOPPER = 90
CHUNKS = 6
"""Digests of an instruction that are replayed, among the 21 or 3 of its first pass."""
_POISON = 0xA5
_N = re.compile(r"(?<=\.m64n)\d+(?=k)")
_KIND = re.compile(r"kind::(\w+)")
Counts = dict[str, Any]


def compared(opcode: str, target: str) -> Iterator[tuple[str, Counts]]:
    """Yield the short name of a product and the counts of each comparison: with every recorded chip, with the published
    results of every chip, and with the second definition where nothing is recorded here.

    Yields nothing for other opcodes. wgmma of any N is compared with the recording of N = 8: the hardware gave equal
    results for equal rows at 8, 64 and 256.
    """
    if opcode.startswith("tcgen05."):
        if opcode.startswith("tcgen05.mma"):
            for each in _fifth_generation(opcode, target):
                yield each.pop("name"), each
        return
    parts = matrix_opcode(opcode)
    if parts is None or (parts.family == "wmma" and not opcode.startswith("wmma.mma")):
        return
    name = _short(parts)
    found = [*_recorded(opcode, parts)] if target_named(target).number == HOPPER else []
    asked = _asked_of(parts, target)
    if asked is not None and not parts.sparse:
        found += _published(
            published(chip(target), asked[1].unit, (parts.types["a"], parts.types["b"], parts.types["d"]))
        )
    if asked is not None and not any("judge" not in each for each in found):
        found.append(_defined([asked], target, sparse=parts.sparse))
    for each in found or [{"evidence": ""}]:
        yield name, each


def _short(parts: MatrixOpcode) -> str:
    """Return a short name: mma.sync.bf16, wgmma.e4m3 x e5m2, mma.sync.mxf4.e2m1, mma.sp.f16 -> f16."""
    unit = "mma" if parts.family == "mma" else parts.family
    unit = f"{unit}.sp" if parts.sparse else "mma.sync" if parts.family == "mma" else unit
    unit = f"{unit}.{parts.kind}" if parts.kind else unit
    a, b, d = (parts.types[each] for each in "abd")
    types = a if a == b else f"{a} x {b}"
    return f"{unit}.{types}" + ("" if element_named(d) in (F32, F64, S32) else f" -> {d}")


def _recorded(opcode: str, parts: MatrixOpcode) -> Iterator[Counts]:
    """Yield the counts of each chip that recorded the instruction."""
    if parts.family == "wmma":
        yield from _warp_matrix(opcode)
        return
    stem, replay = ("sparse", _sparse) if parts.sparse else ("numerics", _dense)
    for device in recorded_devices(stem):
        counts = replay(_N.sub("8", opcode), device)
        if counts:
            yield {"chip": shelf(stem, device).chips, **counts}


def _dense(name: str, device: str) -> Counts | None:
    """Return the counts of a recorded dense product, or None where the device did not record it."""
    if name not in shelf("numerics", device).rows:
        return None
    row = shelf("numerics", device).take([name])[name]
    shape = shape_of(row)
    is_slow = shape.d_format is F64  # seconds a chunk
    some = cells(shape)[:: 7 if is_slow else 1]
    want = row.arrays["sample"][:: 7 if is_slow else 1]
    words, wrong = want.size, int(np.count_nonzero(sample_words(shape, some) != want))
    for got, stored in _features(row):
        words, wrong = words + stored.size, wrong + int(np.count_nonzero(got != stored))
    digests = row.arrays["chunk_digests"]
    chosen = [] if is_slow else sorted({place * chunks_of(shape) // CHUNKS for place in range(CHUNKS)})
    wrong += sum(int(chunk_digest(shape, 0, chunk) != int(digests[0, chunk])) for chunk in chosen)
    return {"words": words + CHUNK * len(chosen), "digested": CHUNK * len(chosen), "differing": wrong}


def _features(row: Recording) -> Iterator[tuple[Any, Any]]:
    """Yield the model's and the chip's results for every recorded feature of the instruction."""
    shape = shape_of(row)
    stored = {key.removeprefix("feature "): words for key, words in row.arrays.items() if key.startswith("feature ")}
    if stored:
        for key, asked in {**_asked(shape), **(_negated(shape) if shape.unit == "wgmma" else {})}.items():
            if key in stored:
                yield feature_words(shape, asked), stored[key]


_asked, _negated = cache(features), cache(negated)


def _sparse(opcode: str, device: str) -> Counts | None:
    """Return the counts over all test cases of every form with that opcode, or None without a recording."""
    stored = shelf("sparse", device).rows
    chosen = [form for form in sparse_probe.forms() if form.opcode == opcode and form.name in stored]
    if not chosen:
        return None
    rows = shelf("sparse", device).take(form.name for form in chosen)
    words = wrong = 0
    for form in chosen:
        want = rows[form.name].arrays["results"]
        wrong += int(np.count_nonzero(HYPOTHESES["as the model infers"](form, problems(form)) != want))
        words += want.size
    return {"words": words, "differing": wrong}


def _warp_matrix(opcode: str) -> Iterator[Counts]:
    """Yield the counts of the recorded wmma of that shape and types, run on the simulated GPU. A is by rows and B by
    columns, whatever the launch uses."""
    name = "wmma.mma." + ".".join(word for word in opcode.split(".")[3:] if word not in ("aligned", "row", "col"))
    forms = wmma_probe.forms()
    number = next((place for place, form in enumerate(forms) if form.name == name), None)
    for device in () if number is None else recorded_devices("wmma"):
        assert number is not None
        form, want = forms[number], shelf("wmma", device).take(["wmma"])["wmma"].arrays["results"][number]
        got = np.full(want.shape, _POISON, np.uint8)
        threads = 32 * wmma_probe.WARPS
        ptx.load(wmma_probe.module([form])).launch("form_0", (1,), (threads,), [form.inputs(), got])
        parts = matrix_opcode(opcode)
        assert parts is not None
        m, n = (int(size) for size in re.findall(r"\d+", parts.shape)[:2])
        wrong = int(np.count_nonzero(got != want))
        yield {"chip": shelf("wmma", device).chips, "words": wmma_probe.WARPS * m * n, "differing": wrong}


Asked = tuple[Profile, ProductSpec]
"""An instruction for the second definition: its arithmetic and its product, whose M and N are 1."""


def _fifth_generation(opcode: str, target: str) -> Iterator[Counts]:
    """Yield the checks of a tcgen05.mma: its opcode names only a kind, so that all types of the kind are checked."""
    kind = _KIND.search(opcode)
    unit, sparse = f"tcgen05.{kind[1] if kind else ''}", "sp" in opcode.split(".")
    try:
        rows = rows_of(target, unit)
    except RefsimError:
        rows = []
    rows = list(sparse_rows(rows)) if sparse else rows
    if rows and not sparse:
        yield from ({"name": unit, **each} for each in _published(published(chip(target), unit)))
    asked: list[Asked] = []
    for row in rows:
        pairs = [(each, each) for each in row.a_formats]
        pairs += [(row.a_formats[0], row.b_formats[-1])] * (len(pairs) > 1)
        asked += [(row, ProductSpec(a, b, row.d_format, 1, 1, max(row.k), row.unit)) for a, b in pairs]
    yield {"name": unit, **(_defined(asked, target, sparse=sparse) if asked else {"evidence": ""})}


def _published(samples: Iterable[DotProducts]) -> list[Counts]:
    """Return the counts of published results of all chips together; nothing without any."""
    found = [(each.chip, each.d.size, int(np.count_nonzero(each.modelled() != each.d))) for each in samples]
    if not found:
        return []
    chips, words, wrong = zip(*found, strict=True)
    named = " and ".join(dict.fromkeys(chips))
    return [{"chip": named, "words": sum(words), "differing": sum(wrong), "judge": PUBLISHED}]


def _defined(asked: list[Asked], target: str, *, sparse: bool) -> Counts:
    """Return the counts of the second definition over some instructions, with the weakest evidence of their rows."""
    found = np.concatenate([differing(row, target, shape, sparse=sparse) for row, shape in asked])
    weakest = min((row.evidence for row, _ in asked), key=lambda each: each.level)
    counts = {"words": found.size, "differing": int(found.sum()), "judge": DEFINITION}
    return {**counts, "evidence": _said(weakest)}


def _asked_of(parts: MatrixOpcode, target: str) -> Asked | None:
    """Return an instruction's arithmetic and product on a target; None where none is known."""
    a, b, d = (element_named(parts.types[each]) for each in "abd")
    row_of = sparse_profile if parts.sparse else profile
    for k in (parts.k, None):  # a wmma may be a chain of instructions
        try:
            row = row_of(target, unit_named(parts.unit), a, b, d, k)
        except RefsimError:
            continue
        return row, ProductSpec(a, b, d, 1, 1, k or max(row.k), row.unit)
    return None


def _said(evidence: Evidence) -> str:
    """Return the text that a verdict prints beside the second definition: what the arithmetic rests on."""
    return f"{'unverified' if evidence.level is Level.UNVERIFIED else 'published model'} ({evidence.what})"
