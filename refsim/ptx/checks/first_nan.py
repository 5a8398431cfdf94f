"""Where NaN and infinities come from: each one in a register or in memory has an event that names its statement.

The masks of `refsim.ptx.isa.definedness.tracking` follow them: here a set bit marks an element that is NaN or infinite. After
each statement with a float result, `seen` sets the mask by the values. A result that is NaN or infinite while all
operands are finite is a birth. NaN of infinities has an event of its own, which leads back to the infinities.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from refsim.conversions import decode
from refsim.errors import RefsimError, counted
from refsim.formats import array_type, element_named
from refsim.ptx.execution.geometry import Geometry
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.register_file import Mask
from refsim.ptx.isa.definedness.memory import Shadow, cells_of, space_named, write
from refsim.ptx.isa.definedness.tracking import OpenBits, UndefinedEvent, place_in
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.global_memory import GlobalMemory
from refsim.ptx.memory.space import GLOBAL_BASE, Region
from refsim.ptx.text.syntax import NO_STATEMENT, Register, Statement, place

BORN, OF_INFINITIES, PASSED_ON, CONSTANT = "born", "NaN of infinities", "passed on", "constant"
INPUT, LOADED, OF_INTEGERS, NEVER_WRITTEN = "input", "loaded", "integer bits", "never written"
MOST, SHOWN = 1 << 20, 8
"""The most events by thread, and the most statements of a way in a report."""
Kind = tuple[str, int]
Masks = list[Mask | None]
_FLOAT = re.compile(r"(?:u(?=e8m0))?(ue4m3|e8m0|e4m3|e5m2|bf16|f16|tf32|f32|f64)(?:x(\d))?$")
_TYPE = re.compile(r"u?e\dm\d$|[bt]?f\d+$|[su]\d$")
_NATIVE = {"f16": "f2", "f32": "f4", "tf32": "f4", "f64": "f8"}
_ALONE = Geometry((1, 1, 1), (1, 1, 1), 0, 1)


class NanRow(NamedTuple):
    """One line of a report: `role`, the statement with its thread, or the element of an array, and what happened."""

    role: str
    where: str
    what: str


class NanArray(NamedTuple):
    """The elements of a buffer: their kind (None: integers, or codes of an unknown format), bytes and shape."""

    kind: Kind | None
    itemsize: int
    shape: tuple[int, ...] = ()
    is_unsigned: bool = False

    @staticmethod
    def of(dtype: "np.dtype[Any]", format: str = "", shape: tuple[int, ...] = ()) -> "NanArray":
        """Return the elements of an array of a dtype; `format` names that of its codes."""
        kind = None
        with suppress(RefsimError):
            kind = kind_of(array_type(format or dtype.name).name)
        return NanArray(kind, dtype.itemsize, shape, dtype.kind == "u")

    def kinds(self, opcodes: Collection[str]) -> list[Kind]:
        """Return the kinds that the elements may have: of unsigned integers those of equal size in the opcodes."""
        words = ".".join([*opcodes, "bf16"]).replace("f8f6f4", ".e4m3").split(".") if self.is_unsigned else []
        names = sorted({kind[0] for word in words if (kind := kind_of(word))})
        return [self.kind] if self.kind else [(name, 1) for name in names if _bytes(name) == self.itemsize]

    def named(self, region: Region, index: int) -> str:
        """Return an element in words: `argument 0[3, 1]`."""
        at = np.unravel_index(index, self.shape) if len(self.shape) > 1 else (index,)
        return f"{region.name}[{', '.join(str(int(each)) for each in at)}]"

    def values(self, memory: GlobalMemory, region: Region, kind: Kind) -> Array:
        """Return the elements as numbers of a kind."""
        size = (region.end - region.start) // self.itemsize * self.itemsize
        return numbers(memory.read(region.start + GLOBAL_BASE, size).view(f"u{self.itemsize}"), kind).reshape(-1)


@dataclass(frozen=True)
class NanEvent(UndefinedEvent):
    """Lanes whose result is NaN or infinite; `what` says how that came about. `operands` are (register, values) and
    `turns` how often the lane had run the statement; `earlier` and `others` are the events of the operands."""

    results: Array | None = None
    operands: tuple[tuple[str, Array], ...] = ()
    turns: Array | None = None
    others: Array | None = None
    launch: str = ""
    buffer: tuple[NanArray, Region] | None = None

    def row(self, number: int) -> NanRow:
        """Return the line of one lane in a report."""
        lane = number - self.first
        said = "moves it" if self.results is None else f"gives {self.results[lane]:.6g}"
        if self.buffer is not None:
            element = self.buffer[0].named(self.buffer[1], int(self.ids[lane]))
            return NanRow(self.what, element, said.replace("gives", "is") + f"{self.launch} before the launch")
        given = ", ".join(f"{name}{' = ' * bool(name)}{held[lane]:.9g}" for name, held in self.operands)
        said = f"({given}) {said}" if given else said
        if self.turns is not None and self.turns[lane] > 1:
            said += f", run {self.turns[lane]} by the thread"
        if self.what == LOADED and self.space is not None and self.at is not None:
            said += f", which was at {place_in(self.space, int(self.at[lane]))}"
        elif self.what == LOADED and self.operands:
            said += "; its matrices held NaN or infinities before"
        return NanRow(self.what, f"{self.where(number)}{self.launch}", said)


class NanOperand(NamedTuple):
    """A float source of a statement: its register or None, values (lanes or 1, elements) and mask."""

    register: int | None
    values: Array
    mask: Mask | None

    def at(self, rows: Array, element: Array, place: int, count: int) -> Array:
        """Return its value for element `element` of `count` of the result: of its own elements the same one, of
        sources that are packed (`place`, the first in the upper place) the one that the element is made of."""
        held = self.values[rows] if len(self.values) > 1 else self.values.repeat(len(rows), axis=0)
        own = held[np.arange(len(rows)), element % held.shape[1]]
        return np.where(held.shape[1] == count or element == count - 1 - place, own, 0.0)


@dataclass
class NonFinite(OpenBits):
    """Tracks NaN and infinities through launches. `known` are the elements of buffers by name, `launch` is the name of
    the present launch among several, `writers` the last step to write each register, `turns` how often each lane ran a
    statement, `statements` those that ran, by their lines."""

    watches = True
    granule = 1
    known: Mapping[str, NanArray] = field(default_factory=dict)
    launch: str = ""
    memory: GlobalMemory = field(default_factory=GlobalMemory)
    since: int = 1
    writers: dict[int, Any] = field(default_factory=dict)
    turns: dict[tuple[int, int], Array] = field(default_factory=dict)
    statements: dict[int, Statement] = field(default_factory=dict)
    left: tuple[Array, Array] = field(default_factory=lambda: (np.zeros(0, np.int64), np.zeros(0, np.uint8)))

    def begin(self, memory: GlobalMemory, opcodes: Collection[str]) -> None:
        """Begin a launch: mark what is NaN or infinite in known buffers."""
        self.memory, self.since, self.writers, self.turns, self.statements = memory, self.stores.following, {}, {}, {}
        shadow = self.masks.get("global")
        if shadow is None or shadow.space is not memory.space:
            shadow = self.masks["global"] = Shadow(memory.space, self.granule)
        shadow.grow()
        memory.track_writers()
        at, held = self.left
        words = shadow.bits[: len(shadow.bits) // 4 * 4].view(np.uint32)
        words[at[memory.space.bytes[at] != held] // 4] = 0  # written by the host, or by a launch that was not followed
        found = (
            (memory.named(name), array, kind) for name, array in self.known.items() for kind in array.kinds(opcodes)
        )
        for region, array, kind in found:
            values = np.zeros(0) if region is None else array.values(memory, region, kind)
            some = np.flatnonzero(~np.isfinite(values))
            if region is None or (array.kind is None and array.itemsize == 1 and 2 * len(some) > len(values)):
                continue  # half of the codes: they are of another format, perhaps scales
            some = some[shadow.bits[region.start + some * array.itemsize] == 0]
            first, buffer, read_as = self.origins.following, (array, region), "" if array.kind else f" as {kind[0]}"
            event = NanEvent(
                first, NO_STATEMENT, some, _ALONE, INPUT, results=values[some], launch=read_as, buffer=buffer
            )
            self.origins.append(event, len(some))
            for at in (region.start + some * array.itemsize + byte for byte in range(array.itemsize)):
                shadow.bits[at], shadow.origin[at] = 0xFF, np.arange(first, first + len(some))

    def seen(
        self, lanes: Lanes, step: Any, values: list[Any], before: list[Any], found: list[Array], masks: Masks
    ) -> Masks:
        """Return the masks of the registers that a step wrote. `values` and `before` are the bits and masks of its
        sources, `found` the bits of its results, `masks` what the rule of the instruction says of them."""
        given, made = _kinds(step)
        fresh: Masks = []
        for at, (index, kind, bits, mask) in enumerate(zip(step.writes(), made, found, masks, strict=True)):
            if kind is not None and not np.isfinite(numbers(bits, kind)).all():
                operands = list(_operands(step, given, values, before))
                own = operands[at : at + 1] if _is_product(step) else operands
                fresh.append(self._judged(lanes, step, own, bits, kind, mask, values, at * bits.itemsize))
            elif kind is None and mask is not None and _is_load(step):
                rows = np.flatnonzero(mask.origin)
                moved = Mask(mask.bits, mask.origin.copy())
                moved.origin[rows] = self._note(lanes, step, rows, PASSED_ON, mask.origin[rows])
                fresh.append(moved)
            else:
                fresh.append(mask if kind is None else None)
            self.writers[index] = step
        return fresh

    def ran(self, lanes: Lanes, step: Any) -> None:
        """Count that lanes ran a step."""
        geometry = lanes.machine.geometry
        self.statements[step.statement.line] = step.statement
        self.turns.setdefault((id(step), geometry.first), np.zeros(geometry.lanes, np.int32))[lanes.ids] += 1

    def updated(self, lanes: Lanes, step: Any, address: Array, added: Array, before: list[Any]) -> Array:
        """Note the lanes whose sums in memory are the first that are not finite, and return the event of what each lane
        finds there, else 0. `before`: the places and their old bits."""
        found, kind = np.zeros(lanes.count, np.int32), kind_of(step.statement.opcode.rpartition(".")[2])
        if kind is None or ".add" not in step.statement.opcode:
            return found
        most = np.finfo(np.float32 if kind[0] == "bf16" else _NATIVE[kind[0]]).max
        size, given = _bytes(kind[0]) * kind[1], numbers(lanes.full(added), kind)
        after = cells_of(lanes, space_named(step.bound.keywords), address, size)
        old, new = (numbers(np.array([bits for _, bits in cells], f"u{size}"), kind) for cells in (before, after))
        sums, made = dict[Any, Array](), dict[Any, int]()
        for lane, (cell, _) in enumerate(before):
            found[lane] = made.get(cell, 0)
            sums[cell] = sums.get(cell, old[lane]) + given[lane]
            bad = np.isfinite(sums[cell]) & (abs(sums[cell]) > most) & ~np.isfinite(new[lane])
            chosen = lanes.select(np.arange(lanes.count) == lane) if bad.any() and cell not in made else None
            if chosen is not None:
                rows, operands = np.array([lane]), (("", given[lane][bad][:1]),)
                number = self._note(lanes, step, rows, BORN, operands=operands, results=new[lane][bad][:1])
                ones, at = np.full((1, size), 0xFF, np.uint8), lanes.full(address)[rows]
                write(chosen, space_named(step.bound.keywords), at, size, ones, number[:, None])
                made[cell] = int(number[0])
        return found

    def _judged(
        self,
        lanes: Lanes,
        step: Any,
        operands: list[NanOperand],
        bits: Array,
        kind: Kind,
        mask: Mask | None,
        *fetched: Any,
    ) -> Mask:
        """Return the mask of one result with NaN or infinities, and its events. `fetched`: all sources, and the bytes
        from the address among them to what was loaded."""
        result = numbers(bits, kind)
        count = result.shape[1]
        result = np.broadcast_to(result, (lanes.count, count))
        rows = np.flatnonzero(~np.isfinite(result).all(axis=1))
        element = (~np.isfinite(result[rows])).argmax(axis=1)
        given = [(one, one.at(rows, element, at, count)) for at, one in enumerate(operands)]
        causes = [(value, self._origin(lanes, step, one, rows, value)) for one, value in given]
        if mask is not None and (_is_product(step) or not operands):
            causes.append((np.where(self._of_nan(mask.origin[rows]), np.nan, np.inf), mask.origin[rows]))
        earlier, others = np.zeros((2, len(rows)), np.int32)
        for is_one in (np.isnan, np.isinf):
            for value, origin in causes:
                own = np.where(is_one(value), origin, 0)
                others = np.where((earlier != 0) & (earlier != own) & (others == 0), own, others)
                earlier = np.where(earlier == 0, own, earlier)
        had_nan = np.logical_or.reduce([earlier < 0, *(np.isnan(value) & (origin != 0) for value, origin in causes)])
        value = result[rows, element]
        what = np.where(np.isnan(value) & ~had_nan & (not _is_load(step)), OF_INFINITIES, PASSED_ON)
        what = np.where(earlier == 0, np.where(_given_nan(lanes, step, fetched[0])[rows], LOADED, BORN), what)
        space, place = _addresses(lanes, step, fetched[0][0], fetched[1])
        names, origin = lanes.machine.code.function.register_names, np.zeros(lanes.count, np.int32)
        for each in np.unique(what).tolist():
            some = what == each
            more = {"results": value[some], "others": others[some], "space": space}
            more["at"] = None if place is None else place[rows[some]]
            texts = (("" if one.register is None else names[one.register], held[some]) for one, held in given)
            more["operands"] = () if each == PASSED_ON else tuple(texts)
            origin[rows[some]] = self._note(lanes, step, rows[some], each, earlier[some], **more)
        width = bits.itemsize * 8 // count
        packed = [np.where(np.isfinite(result[:, at]), 0, (1 << width) - 1 << width * at) for at in range(count)]
        return Mask(np.bitwise_or.reduce(np.array(packed, np.uint64)).astype(bits.dtype), origin)

    def _note(
        self, lanes: Lanes, step: Any, rows: Array, what: str, earlier: Array | None = None, **more: Any
    ) -> Array:
        """Return an event number for each row. Beyond `MOST` events, what is passed on keeps its earlier event, and a
        statement its last one."""
        last = self.origins.last.get(step.statement.line)
        if self.origins.following > MOST and (what == PASSED_ON or last is not None):
            return earlier if what == PASSED_ON and earlier is not None else np.full(len(rows), last, np.int32)
        ids, first = lanes.ids[rows], self.origins.following
        turns = self.turns.get((id(step), lanes.machine.geometry.first))
        more |= {"earlier": earlier, "turns": None if turns is None else turns[ids], "launch": self.launch}
        self.origins.append(NanEvent(first, step.statement, ids, lanes.machine.geometry, what, **more), len(ids))
        self.origins.last[step.statement.line] = first
        return np.arange(first, first + len(rows), dtype=np.int32)

    def _origin(self, lanes: Lanes, step: Any, operand: NanOperand, rows: Array, values: Array) -> Array:
        """Return the events of an operand where it is NaN or infinite, else 0; bits without an event get one."""
        hit = ~np.isfinite(values)
        held = np.zeros(len(rows), np.int32) if operand.mask is None else operand.mask.origin[rows]
        if (fresh := hit & (held == 0)).any():
            what, by = self._maker(step, operand.register)
            held = held.copy()
            held[fresh] = self._note(lanes, by, rows[fresh], what, results=values[fresh])
        return np.where(hit, held, 0)

    def _maker(self, step: Any, index: int | None) -> tuple[str, Any]:
        """Return how bits that no float statement made came into a register, and the step that made them."""
        while index is not None and (by := self.writers.get(index)) is not None:
            mnemonic, index, step = by.bound.clause.mnemonic, None, by
            if mnemonic not in ("mov", "selp"):
                is_product = _is_product(by) or mnemonic == "tcgen05"  # computed after the statement, or elsewhere
                return BORN if is_product else LOADED if _is_load(by) else OF_INTEGERS, by
            if mnemonic == "mov":
                index = next((each.index for each in _flat(by.sources[0][0]) if isinstance(each, Register)), None)
        return CONSTANT, step

    def _of_nan(self, events: Array) -> Array:
        """Return which events are of a NaN; bits that were only moved are what they were before."""
        found = np.zeros(len(events), np.bool_)
        for at, first in enumerate(events.tolist()):
            number = first
            while number and isinstance(event := self.origins.of(number), NanEvent):
                lane, number = number - event.first, 0
                if event.results is not None:
                    found[at] = np.isnan(event.results[lane])
                elif event.earlier is not None:
                    number = int(event.earlier[lane])
        return found

    # ---- the report
    def rows(self) -> list[NanRow]:
        """Return the lines of a report on the present launch; none if no output holds NaN or infinities of it."""
        found, ways, roots = list[NanRow](), dict[int, list[tuple[int, str, int, int]]](), self._roots()
        origin, store, position = self.masks["global"].outputs()
        marked = np.flatnonzero(self.masks["global"].bits)
        self.left = marked, self.memory.space.bytes[marked]
        for region in self.memory.space.regions:
            inside = np.flatnonzero((position >= region.start) & (position < region.end) & (store >= self.since))
            array = self.known.get(region.name) or self._stored(store[inside])
            element, first = np.unique((position[inside] - region.start) // array.itemsize, return_index=True)
            values, gives = None, ""
            if array.kind is None:
                of_nan = [isinstance(self.origins.of(each), NanEvent) for each in roots[origin[inside[first]]].tolist()]
                element, first = element[of_nan], first[of_nan]
            elif region.name in self.memory.space.stored:
                values = array.values(self.memory, region, array.kind)
                element, first = element[bad := ~np.isfinite(values[element])], first[bad]
                found += self._unknown(region, array, values, element)
            for number, one, at in zip(
                roots[origin[inside[first]]].tolist(), element.tolist(), inside[first], strict=True
            ):
                line = self.origins.of(number).statement.line
                ways.setdefault(line, []).append((number, array.named(region, one), int(origin[at]), int(store[at])))
            if len(element):
                total = counted((region.end - region.start) // array.itemsize, "element")
                gives = "" if values is None else f" is {values[element[0]]:.6g}"
                said = f"{len(element)} of {total} are NaN or infinite, the first {array.named(region, int(element[0]))}{gives}"
                found.append(NanRow("output", region.name, said))
        roles = {line: [row.role for row in self._links(min(way)[2])] for line, way in ways.items()}
        rank = {line: (BORN not in each, OF_INFINITIES not in each) for line, each in roles.items()}
        for rest, line in enumerate(sorted(ways, key=lambda line: (rank[line], min(ways[line])))):
            number, where, last, by = min(ways[line])
            others, row = len(ways[line]) - 1, self._row(number)
            where += f", and {counted(others, 'other element')} from there" if others else ""
            found += self._way(last, by, where) if not rest else [NanRow("also", row.where, f"{row.role}: {where}")]
        return found

    def _way(self, last: int, by: int, where: str) -> list[NanRow]:
        """Return the lines from the first event to the one that a statement stored; `where` are the elements."""
        links, half = self._links(last), SHOWN // 2
        left = NanRow("...", "", f"{counted(len(links) - SHOWN, 'statement')} more")
        links = links if len(links) <= SHOWN else [*links[:half], left, *links[-half:]]
        return [*links, NanRow("stored", self.stores.of(by).where(by), where)]

    def _unknown(self, region: Region, array: NanArray, values: Array, explained: Array) -> list[NanRow]:
        """Return a line for elements that threads stored as NaN or infinite and that no event explains."""
        bad = ~np.isfinite(values)
        bad[explained] = False
        start = region.start + GLOBAL_BASE
        some = [at for at in np.flatnonzero(bad).tolist() if self.memory.writer(start + at * array.itemsize) >= 0]
        if not some:
            return []
        at = start + some[0] * array.itemsize
        line = self.memory.writing_line(at)
        by = f"PTX line {line}" if line not in self.statements else place(self.statements[line])
        where = f"{by}, thread {self.memory.writer(at)} of the grid"
        said = f"{counted(len(some), 'element')}, the first {array.named(region, some[0])} is {values[some[0]]:.6g}"
        return [NanRow(OF_INTEGERS, where, f"{said}: no float statement made the bits that are stored")]

    def _row(self, number: int) -> NanRow:
        event = self.origins.of(number)
        if isinstance(event, NanEvent):
            return event.row(number)
        return NanRow(NEVER_WRITTEN, event.where(number), event.cause(number))

    def _links(self, number: int) -> list[NanRow]:
        """Return the way from the first event to one, with the other operand of a NaN of infinities."""
        found: list[NanRow] = []
        while number:
            event, row, lane = self.origins.of(number), self._row(number), number - self.origins.of(number).first
            number = 0 if event.earlier is None else int(event.earlier[lane])
            other = event.others[lane] if isinstance(event, NanEvent) and event.others is not None else 0
            if (
                row.role == OF_INFINITIES
                and other
                and (where := self._links(int(other))[0].where) != self._links(number)[0].where
            ):
                row = row._replace(what=f"{row.what}; the other infinity: {where}")
            if found and row.role == CONSTANT and row.where == found[-1].where:
                found.pop()  # a mov passes its own constant on
            found.append(row)
        return found[::-1]

    def _roots(self) -> Array:
        """Return the first event on the way to each event."""
        found = np.arange(self.origins.following)
        for event in self.origins.events:
            if event.earlier is not None:
                at = event.first + np.arange(len(event.earlier))
                found[at] = np.where(event.earlier != 0, event.earlier, at)
        while (found[found] != found).any():
            found = found[found]
        return found

    def _stored(self, stores: Array) -> NanArray:
        """Return the elements of a buffer by the type of a statement that stored to it."""
        word = self.stores.of(int(stores[0])).statement.opcode.rpartition(".")[2] if len(stores) else ""
        kind, found = kind_of(word), re.search(r"(8|16|32|64)$", word.partition("x")[0])
        return NanArray((kind[0], 1) if kind else None, int(found[1]) // 8 if found else 4)


@lru_cache(maxsize=1 << 10)
def kind_of(word: str) -> Kind | None:
    """Return the format and number of the floats in a register of a PTX type (e4m3x2: e4m3, 2), or None."""
    found = _FLOAT.match(word)
    return (found[1], int(found[2] or 1)) if found else None


def numbers(bits: Array, kind: Kind) -> Array:
    """Return the values of registers, (n, elements), the lowest element first."""
    name, count = kind
    width = _bytes(name)
    held = np.ascontiguousarray(bits.astype(f"u{width * count}", copy=False)).view(f"u{width}").reshape(-1, count)
    if name == "ue4m3":
        return decode(held & 0x7F, name)  # the top bit is no part of a code
    if name == "bf16":
        return (held.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    with np.errstate(invalid="ignore"):  # a signaling NaN
        return held.view(_NATIVE[name]).astype(np.float64) if name in _NATIVE else decode(held, name)


def _bytes(format: str) -> int:
    return element_named(format).code_dtype.itemsize


def _addresses(lanes: Lanes, step: Any, addresses: Array, offset: int) -> tuple[Any, Array | None]:
    """Return the space and positions of a load, None if it is none or its lanes read several spaces."""
    if step.bound.clause.mnemonic not in ("ld", "ldu", "atom"):
        return None, None
    parts = lanes.parts(space_named(step.bound.keywords), addresses + offset)
    return (parts[0][0].space(parts[0][1])[0], lanes.full(parts[0][2])) if len(parts) == 1 else (None, None)


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _is_product(step: Any) -> bool:
    return step.bound.clause.mnemonic in ("mma", "wgmma") or step.statement.opcode.startswith("wmma.mma")


def _is_load(step: Any) -> bool:
    """Return whether the results are bits of memory or of other lanes."""
    return not _is_product(step) and (step.bound.clause.wants_lanes or step.bound.clause.rendezvous is not None)


def _given_nan(lanes: Lanes, step: Any, values: list[Any]) -> Array:
    """Return the lanes of a load, and of a product in warps whose matrices A and B hold NaN or infinities."""
    found = np.full(lanes.count, _is_load(step))
    types = [kind_of(word) for word in step.statement.opcode.split(".") if _TYPE.match(word)][1:3]
    named = dict(zip((form.name for form, _ in step.bound.sources), values, strict=True))
    pairs = [(name, kind[0]) for name, kind in zip("ab", types, strict=False) if kind is not None]
    for name, format in pairs if step.bound.clause.mnemonic == "mma" else ():
        for bits in named[name]:
            found |= ~np.isfinite(numbers(bits, (format, bits.itemsize // _bytes(format)))).all(axis=1)
    return found | np.isin(lanes.warp, lanes.warp[found])


def _kinds(step: Any) -> tuple[list[Kind | None], list[Kind | None]]:
    """Return the kinds of a step's sources, and of the registers that it writes."""
    sources = [kind_of(type.name) for _, type in step.bound.sources]
    results = [kind_of(type.name) for result, type in step.results for one in _flat(result) if one is not None]
    words = step.statement.opcode.split(".")
    if _is_load(step):
        return [None] * len(sources), results
    if step.bound.clause.mnemonic == "cvt":
        given = [None if form.name == "random" else kind_of(words[-1]) for form, _ in step.bound.sources]
        return given, [kind_of(words[-2])] * len(results)
    if _is_product(step):
        kind = next((kind for word in words if (kind := kind_of(word)) is not None), None)
        kind = ("f16", 2) if kind == ("f16", 1) else kind
        return [kind if form.name == "c" else None for form, _ in step.bound.sources], [kind] * len(results)
    return sources, results


def _operands(step: Any, kinds: list[Kind | None], values: list[Any], masks: list[Any]) -> Iterator[NanOperand]:
    """Yield the float sources of a step, each element of a vector."""
    for (source, _), kind, value, mask in zip(step.sources, kinds, values, masks, strict=True):
        many = mask if isinstance(mask, list) else [mask] * len(_flat(value))
        for one, bits, own in zip(_flat(source), _flat(value), many, strict=True):
            if kind is not None and one is not None:
                yield NanOperand(one.index if isinstance(one, Register) else None, numbers(np.asarray(bits), kind), own)
