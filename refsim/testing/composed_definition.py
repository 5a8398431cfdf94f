"""The second definition of a composition of steps: one element of an output by `refsim.reference.fused_steps`.

It has none where a step is done in a way that changes values, for most recipes of block formats, and for other layouts
of scales than row by row and nvidia_128x4.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refsim.computations.elementwise import Elementwise, Gelu, Rope
from refsim.computations.fused import FusedComputation, StoredValues
from refsim.computations.norms import ROUNDED_PRODUCT, Norm
from refsim.computations.quantised import QuantizedTensor
from refsim.computations.scale_stores import BY_ROWS
from refsim.computations.softmax import Softmax
from refsim.computations.ways import OF_ROUNDING
from refsim.formats import E8M0, F32, UE4M3
from refsim.kernels import Bounded, Kernel
from refsim.reference import fused_steps
from refsim.reference.rational_float import GRIDS
from refsim.testing.definitions import Definition
from refsim.testing.steps import Composition

MOST = 1 << 14
TILED = "as nvidia_128x4"


def definition_of(kernel: Kernel) -> Definition | None:
    """Return the kernel's own definition, or that of the steps that it computes; None where there is neither."""
    if kernel.definition is not None or not isinstance(kernel.computes, Composition):
        return kernel.definition
    computes = kernel.computes

    def definition(problem: Any, *asked: Any) -> "int | Bounded | None":
        name, at = asked[-2:]  # a target may come before them
        return _Element(computes(problem)).value(name, at)

    return definition


def _is_plain(part: Any) -> bool:
    """Return whether a step is done as it always is, but for roundings, orders and approximate functions."""
    usual, own = (
        {name: getattr(way, "name", way) for name, way in vars(each.usual).items()} for each in (replace(part), part)
    )
    changed = [(name, getattr(part.usual, name)) for name in own if own[name] != usual[name]]
    return all(
        name in ("order", "exchanged") or way is ROUNDED_PRODUCT or getattr(way, "family", "") in OF_ROUNDING
        for name, way in changed
    )


@dataclass(frozen=True)
class _Element:
    """The computation of a test case, of which single elements are computed again."""

    of: FusedComputation

    def value(self, name: str, at: tuple[int, ...]) -> "int | Bounded | None":
        """Return the code of an element of an output, or its value and bound; None where it is not certain."""
        own, number = self.of, self.of.names.index(name)
        if own.x.size > MOST or not all(map(_is_plain, own.stages)):
            return None
        form = own.forms[number]
        at = at[::-1] if form.is_turned and not form.nibbles else at
        row = at[0]
        if form.before is not None and own.slots is not None:
            rows = np.flatnonzero(own.slots == row)
            if not rows.size:
                return int(form.before[at])
            row = int(rows[-1])
        if number < len(own.stores):
            return self._stored(own.stores[number], row, at[1])
        tail = own.tail
        assert tail is not None
        if not _is_plain(tail) or tail.rules[0].tensor_counts_nan is not None or not np.isfinite(own.x).all():
            return None
        if number > len(own.stores):
            return self._scale_at(tail, row, at)
        if not form.nibbles:
            return self._code(tail, row, at[1])
        pairs = ((2 * at[1] + half, row) if form.is_turned else (row, 2 * at[1] + half) for half in (0, 1))
        codes = [self._code(tail, *pair) for pair in pairs]
        low, high = codes if form.nibbles == "low" else codes[::-1]
        return None if low is None or high is None else low | high << 4

    def _row(self, row: int, position: int) -> fused_steps.Row:
        """Return a row after some steps."""
        own, steps = self.of, []
        for stage, held in list(zip(own.stages, own.rounds, strict=True))[:position]:
            steps.append(_plain_step(stage, row))
            if held is not None:
                steps.append(("rounded", (held.name,)))
        return fused_steps.after(own.x[row].tolist(), steps)

    def _stored(self, store: StoredValues, row: int, column: int) -> "int | Bounded | None":
        near = self._row(row, store.position)[column]
        is_whole = store.format.twos_complement
        code = fused_steps.code_of(near, store.format.name) if is_whole or store.format.name in GRIDS else None
        if is_whole or code is not None or not np.isfinite(near.error):
            return code
        bound = near.error + (abs(near.value) + near.error) * 2.0 ** -(store.format.mantissa_bits + 1)
        return Bounded(np.array(near.value), np.array(bound + store.format.quantum))

    def _scale(self, tail: QuantizedTensor, row: int, block: int) -> fused_steps.Near | None:
        """Return the scale of a block as a number."""
        rule, last = tail.rules[0], len(self.of.stages)
        down, across = rule.group
        rows = range(row // down * down, min(row // down * down + down, len(self.of.x)))
        members = [each for at in rows for each in self._row(at, last)[block * across : (block + 1) * across]]
        if rule.stored_as is UE4M3:
            factor = float(rule.tensor(np.ones(1, np.float32))[0])
            return fused_steps.block_scale(members, factor) if rule.name == "te" else None
        is_power = rule.stored_as is E8M0 or rule.name.startswith("f32_power")
        is_known = rule.stored_as is F32 or rule.name == "rceil" or rule.name.startswith("e8m0:")
        return fused_steps.group_scale(members, tail.limit.max_value, rule.floor, is_power) if is_known else None

    def _code(self, tail: QuantizedTensor, row: int, column: int) -> int | None:
        """Return the code of an element."""
        rule = tail.rules[0]
        scale = self._scale(tail, row, column // rule.group[1])
        if scale is None:
            return None
        value = self._row(row, len(self.of.stages))[column]
        if rule.stored_as is UE4M3:
            value = fused_steps.times(value, fused_steps.Near(float(rule.tensor(np.ones(1, np.float32))[0])))
        return fused_steps.code_of(fused_steps.over(value, scale), tail.format.name)

    def _scale_at(self, tail: QuantizedTensor, row: int, at: tuple[int, ...]) -> "int | Bounded | None":
        """Return the stored scale at a place of its output."""
        rows, blocks = tail.grid
        if tail.store is BY_ROWS:
            place = row // tail.rules[0].group[0] if self.of.slots is not None else at[0], at[1]
        elif tail.store.name == TILED:
            places = {fused_steps.tiled_place(r, b, blocks): (r, b) for r in range(rows) for b in range(blocks)}
            if at[0] not in places:
                return 0
            place = places[at[0]]
        else:
            return None
        scale = self._scale(tail, place[0] * tail.rules[0].group[0], place[1])
        if scale is None:
            return None
        if tail.rules[0].stored_as is F32:
            return Bounded(np.array(scale.value), np.array(scale.error + scale.value * 2.0**-22))
        if tail.rules[0].stored_as is E8M0:
            return int(np.log2(scale.value)) + 127
        return fused_steps.code_of(scale, tail.rules[0].stored_as.name)


def _plain_step(stage: Any, row: int) -> tuple[str, tuple[Any, ...]]:
    """Return a step as the second definition takes it: a name and plain numbers."""
    if isinstance(stage, Elementwise):
        assert stage.kind in fused_steps.STEPS_OF_VALUES
        return stage.kind, (np.broadcast_to(stage.operand, stage.shape)[row].tolist(),)
    given = {name: getattr(stage, name, None) for name in ("w", "bias")}
    lists = {name: None if each is None else each.tolist() for name, each in given.items()}
    gate = getattr(stage, "gate", None)
    if isinstance(stage, Norm):
        rounds = stage.format.name if stage.usual.product is ROUNDED_PRODUCT else ""
        return "norm", (lists["w"], lists["bias"], float(np.float32(stage.number)), stage.centres, rounds)
    if isinstance(stage, Gelu):
        return "gelu", (stage.approximate,)
    if isinstance(stage, Softmax):
        return "softmax", (stage.number,)
    if isinstance(stage, Rope):
        return "rope", (stage.cos[row].tolist(), stage.sin[row].tolist(), stage.head, stage.pairs)
    return "silu", (None if gate is None else gate[row].tolist(),)
