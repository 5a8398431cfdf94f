"""The model's results for the recorded products of a tensor core: cells, samples and features of a recording."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from refsim import numerics
from refsim.formats import element_named
from refsim.numerics.calls import arguments_of, fitted
from refsim.numerics.rows import Profile, Unit
from refsim.silicon.tensor_classes import Codes
from refsim.silicon.tensor_features import Feature
from refsim.silicon.tensor_probe import CELL_WORDS, CELLS_A_CHUNK, SAMPLE, ProbeShape, cell_c, cell_operands
from refsim.silicon.vectors import Recording, digest


def shape_of(recording: Recording) -> ProbeShape:
    """Return the shape of a recorded instruction."""
    facts = recording.facts
    a, b, d = (element_named(facts[name]) for name in ("a_format", "b_format", "d_format"))
    return ProbeShape(a, b, d, *facts["shape"])


def modelled(
    shape: ProbeShape,
    unit: Unit,
    a: Codes,
    b: Codes,
    c: Codes | None,
    *,
    target: str = "sm_90a",
    negate: tuple[bool, bool] = (False, False),
    row: Profile | None = None,
) -> Codes:
    """Return D as codes: by `numerics.mma`, or by a `row` of other arithmetic."""
    kind = shape.d_format.array_dtype
    assert kind is not None
    z = None if c is None else np.ascontiguousarray(c).view(kind)
    how: dict[str, Any] = {"a_format": shape.a_format, "b_format": shape.b_format}
    how |= {"negate_a": negate[0], "negate_b": negate[1]}
    if row is None:
        found = numerics.mma(a, b, z, unit=unit, d_format=shape.d_format, target=target, k=shape.k, **how)
    else:
        found = fitted(arguments_of(a, b, z, **how), row, shape.k).result()
    return found.view(shape.d_format.code_dtype)


def cells(shape: ProbeShape) -> list[tuple[str, str]]:
    """Return the class of operands and the class of C of every cell, in the order of the chunks."""
    return [(name, c_name) for name in shape.classes for c_name in shape.c_classes]


def negation(shape: ProbeShape, unit: Unit, number: int) -> tuple[bool, bool]:
    """Return which of A and B are negated in a pass: none, A, B or both in turn for wgmma on floats, else none."""
    signed = unit == "wgmma" and not shape.d_format.is_integer
    return (signed and bool(number & 1), signed and bool(number & 2))


def cell_words(
    shape: ProbeShape, unit: Unit, cell: tuple[str, str], number: int, *, row: Profile | None = None
) -> Codes:
    """Return the 16,384 results of a cell in pass `number`."""
    a, b = cell_operands(shape, cell[0], number)
    c = cell_c(shape, *cell, number, a, b)
    words = modelled(shape, unit, a, b, c, negate=negation(shape, unit, number), row=row)
    return words.reshape(CELL_WORDS)


def chunk_digest(shape: ProbeShape, unit: Unit, number: int, chunk: int) -> int:
    """Return the digest of one chunk of pass `number`: four cells in order."""
    some = cells(shape)[CELLS_A_CHUNK * chunk : CELLS_A_CHUNK * (chunk + 1)]
    return int(digest(np.concatenate([cell_words(shape, unit, cell, number) for cell in some])))


def sample_words(
    shape: ProbeShape, unit: Unit, chosen: Sequence[tuple[str, str]], *, row: Profile | None = None
) -> Codes:
    """Return the stored results of some cells, (cells, 64): rows and columns 0 to 7 of the first product of pass 0."""
    found = []
    for name, c_name in chosen:
        a, b = cell_operands(shape, name, 0, batch=1, rows=SAMPLE, columns=SAMPLE)
        c = cell_c(shape, name, c_name, 0, a, b)
        found.append(modelled(shape, unit, a, b, c, row=row).reshape(-1))
    return np.array(found)


def feature_words(shape: ProbeShape, unit: Unit, feature: Feature, *, row: Profile | None = None) -> Codes:
    """Return one result for each case of a feature."""
    c = None if feature.c is None else feature.c[:, None, None]
    negate = (feature.negate_a, feature.negate_b)
    words = modelled(shape, unit, feature.a[:, None, :], feature.b[:, None, :], c, negate=negate, row=row)
    return words.reshape(-1)
