"""The products with which a bring-up tests a tensor core: the classes of refsim.silicon.tensor_probe, in few
launches."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from refsim.bringup.tensor_cores import TensorCoreInstruction
from refsim.errors import RefsimError
from refsim.formats import F64
from refsim.silicon.tensor_classes import Codes
from refsim.silicon.tensor_features import features
from refsim.silicon.tensor_probe import ProbeShape, cell_c, cell_operands
from refsim.silicon.tensor_replay import cells

NARROWEST = 8
"""The least N of an instruction."""


@dataclass(frozen=True)
class ProbeOperands:
    """The products of one launch: a (batch, m, K), b (batch, n, K), c (batch, m, n) or None, all codes. `labels` has
    the class of each product of the batch."""

    labels: tuple[str, ...]
    a: Codes
    b: Codes
    c: Codes | None


def shape_of(instruction: TensorCoreInstruction) -> ProbeShape:
    """Return the shape of an instruction for the probe."""
    row = instruction
    return ProbeShape(row.a_format, row.b_format, row.d_format, row.m, row.n, row.k)


def operand_classes(instruction: TensorCoreInstruction, per_class: int) -> Iterator[ProbeOperands]:
    """Yield every class of operands with every class of C, `per_class` products each, and the feature probes.

    The products are equal on every call; products of one K are in one group, products without C in another. Feature
    probes are for fused sums, so not for integers and f64, and for the narrowest shape of each type only. An error is a
    bug of refsim and not a finding about the device: RuntimeError.
    """
    try:
        yield from _classes(instruction, per_class)
    except RefsimError as error:
        raise RuntimeError(f"no operands for {instruction.name}: {error}") from error


def _classes(instruction: TensorCoreInstruction, per_class: int) -> Iterator[ProbeOperands]:
    """Yield the groups of `operand_classes`."""
    shape = shape_of(instruction)
    groups: dict[tuple[int, bool], list[ProbeOperands]] = {}
    for name, c_name in cells(shape):
        a, b = cell_operands(shape, name, 0, batch=per_class)
        c = cell_c(shape, name, c_name, 0, a, b)
        some = ProbeOperands((f"{name}, C {c_name}",) * len(a), a, b, c)
        groups.setdefault((a.shape[-1], c is None), []).append(some)
    fused = not instruction.a_format.is_integer and instruction.a_format is not F64
    for some in _features(shape) if fused and instruction.n == NARROWEST else ():
        groups.setdefault((some.a.shape[-1], some.c is None), []).append(some)
    for group in groups.values():
        labels = tuple(label for each in group for label in each.labels)
        c = np.concatenate([each.c for each in group if each.c is not None]) if group[0].c is not None else None
        yield ProbeOperands(
            labels, np.concatenate([each.a for each in group]), np.concatenate([each.b for each in group]), c
        )


def _features(shape: ProbeShape) -> Iterator[ProbeOperands]:
    """Yield eight cases of a feature in a product: case i has row i of A, row i of B and its C at D[i, i]."""
    for feature in features(shape).values():
        if feature.negate_a or feature.negate_b:
            continue
        cases, length = feature.a.shape
        batch = -(-cases // NARROWEST)
        a = np.zeros((batch, shape.m, length), feature.a.dtype)
        b = np.zeros((batch, shape.n, length), feature.b.dtype)
        c = None if feature.c is None else np.zeros((batch, shape.m, shape.n), feature.c.dtype)
        product, place = np.divmod(np.arange(cases), NARROWEST)
        a[product, place], b[product, place] = feature.a, feature.b
        if c is not None and feature.c is not None:
            c[product, place, place] = feature.c
        yield ProbeOperands((f"feature {feature.name}",) * batch, a, b, c)
