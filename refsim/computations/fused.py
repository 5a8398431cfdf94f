"""A fused kernel as a computation: values pass through steps, are rounded between them, and are stored or quantized.

Each step is a computation of its own with its own ways. A composition adds the ways that only a fused kernel has: a
rounding between two steps or none, two steps exchanged, a step left out, the slots of a cache.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations.elementwise import Elementwise, FusedStage, slot_ways
from refsim.computations.engine import PLACED, WRITTEN, Aspect, Computation
from refsim.computations.placing import IN_PLACE
from refsim.computations.quantised import QuantizedTensor, QuantizerOutput
from refsim.computations.row_functions import COMMON, X_READINGS, Floats, RowFunction, written
from refsim.computations.ways import Cause, Choices, Codes, Family, Way, rounded_to
from refsim.errors import RefsimError, nearest
from refsim.formats import BF16, F16, F32, Format
from refsim.sources import IEEE754, PTX, VLLM

_BETWEEN = VLLM["csrc/layernorm_kernels.cu"]
TURNS = (
    Way("the output is the transpose", Family.TRANSPOSED, PTX["st"], lambda codes: codes),
    Way("rows lie as rows, not as columns", Family.TRANSPOSED, PTX["st"], lambda codes: codes.reshape(codes.T.shape).T),
)
NIBBLES_SWAPPED = Way(
    "the two elements of a byte of x are swapped",
    Family.PACKING,
    PTX["ld"],
    lambda x, format: x.reshape(len(x), -1, 2)[..., ::-1].reshape(x.shape),
)
OWN_VALUES = Way("the values that are converted", Family.AMAX, _BETWEEN, rank=0)
NO_STEP = -1
"""The place of a step that is left out."""


def _rounding(format: Format | None) -> Way:
    if format is None:
        return Way("is kept in float32", Family.DOUBLE_ROUNDING, IEEE754["section 4.3"], lambda x: x)
    name, round_in = f"is rounded to {format}", format
    return Way(name, Family.DOUBLE_ROUNDING, IEEE754["section 4.3"], lambda x: rounded_to(x, round_in))


ROUNDINGS_BETWEEN: Mapping[Format | None, Way] = {each: _rounding(each) for each in (None, BF16, F16)}


@dataclass(frozen=True, eq=False)
class StoredValues(Computation):
    """Values (rows, columns) that are written to the output `name` in a format after `position` steps."""

    name: str
    position: int
    shape: tuple[int, ...]
    format: Format
    aspects = (WRITTEN, PLACED)

    def codes_of(self, plan: Choices, values: Floats) -> Codes:
        """Return the codes of values in their places."""
        return self.moved(plan, written(values, plan.written, self.format))


@dataclass(frozen=True)
class WrittenForm:
    """The form of an output: its name, shape and code type, and the order of two 4-bit codes in a byte ("" for none).

    `is_turned`: the output is the transpose of a matrix of that shape.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    nibbles: str = ""
    before: NDArray[Any] | None = None
    is_turned: bool = False

    def array(self, words: Codes) -> Codes:
        """Return the output as the kernel writes it."""
        codes = words.astype(self.dtype).reshape(self.shape)
        codes = np.ascontiguousarray(codes.T) if self.is_turned else codes
        if not self.nibbles:
            return codes
        low, high = (codes[..., at::2] for at in ((0, 1) if self.nibbles == "low" else (1, 0)))
        return np.asarray(low | high << 4, np.uint8)

    def words(self, array: Codes) -> Codes:
        """Return the codes of an output, one in each word."""
        given = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
        if self.nibbles:
            pair = (given & 15, given >> 4)
            given = np.stack(pair if self.nibbles == "low" else pair[::-1], -1)
        if self.is_turned:
            given = given.reshape(self.shape[::-1]).T
        return given.reshape(self.shape).reshape(-1).astype(np.uint32)


@dataclass(frozen=True, eq=False)
class FusedComputation(Computation):
    """Values x (rows, columns) of `x_format`, the steps that they pass, and the outputs that are written.

    `rounds[k]` is the format in which the result of step k is held, None for float32. `slots` are the rows of a cache
    in which the rows of the last outputs lie (-1: nowhere). The codes of all outputs are joined as 32-bit words. If x
    `is_packed`, two of its codes share a byte.
    """

    x: Floats
    x_format: Format
    stages: tuple[FusedStage | RowFunction, ...]
    rounds: tuple[Format | None, ...]
    stores: tuple[StoredValues, ...]
    forms: tuple[WrittenForm, ...]
    tail: QuantizedTensor | None = None
    slots: NDArray[np.int64] | None = None
    page: int = 0
    is_packed: bool = False

    is_sampled = False
    title = "fused: "

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the outputs."""
        return tuple(form.name for form in self.forms)

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(int(np.prod(form.shape)) for form in self.forms),)

    @property
    def format(self) -> Format:
        return F32 if self.tail is None else self.tail.format

    # ---- the choices -------------------------------------------------------------------------------------------------

    @cached_property
    def parts(self) -> tuple[Computation, ...]:
        """Return the computations whose choices a plan makes: steps, the quantizer, stores."""
        return (*self.stages, *(() if self.tail is None else (self.tail,)), *self.stores)

    @cached_property
    def _own_names(self) -> list[dict[str, str]]:
        """Return the name in a plan of each aspect of every part; a name that is taken has the part's number added."""
        taken, found = {"read_x", "steps"}, []
        for number, part in enumerate(self.parts):
            common = COMMON if isinstance(part, RowFunction) else ()
            own = {each.name for each in part.aspects if each not in common}
            found.append({name: f"{name}_{number}" if name in taken else name for name in sorted(own)})
            taken |= own
        return found

    @cached_property
    def fused_aspects(self) -> tuple[Aspect, ...]:
        """Return the choices that no step has alone."""
        found = [
            Aspect("read_x", tuple(replace(way, apply=way.apply) for way in self._readings)),
            Aspect("steps", lambda own: own.sequences, tuple(range(len(self.stages)))),
        ]
        exchanges = [Cause(Family.GATE, "x is loaded", "exchanged_x", 0, PTX["ld"], 0)]
        for number, (stage, held) in enumerate(zip(self.stages, self.rounds, strict=True)):
            usual = ROUNDINGS_BETWEEN[held]
            ways = (usual, *(way for way in ROUNDINGS_BETWEEN.values() if way is not usual))
            says = f"the result of step {number + 1}, {_name(stage)}, {{}}"
            found.append(Aspect(f"rounded_{number}", ways, usual, says=says))
            if isinstance(stage, Elementwise) and number and stage.operand.shape == self.x.shape:
                says = f"x and {stage.name} are exchanged"
                exchanges.append(Cause(Family.GATE, says, "exchanged_x", number, PTX["ld"]))
        found.append(Aspect("exchanged_x", exchanges, 0))
        if self.tail is not None and self.stages:
            found.append(Aspect("amax_of", tuple(self._amaxes()), OWN_VALUES))
        if self.slots is not None:
            found.append(Aspect("slots", slot_ways(self.page)))
        if any(form.is_turned for form in self.forms):
            found.append(Aspect("turned", TURNS))
        return tuple(found)

    @property
    def _readings(self) -> tuple[Way, ...]:
        """Return the ways in which x is read; whole numbers have no subnormals and no NaN."""
        readings = X_READINGS[:1] if self.x_format.twos_complement else X_READINGS
        return (*readings, NIBBLES_SWAPPED) if self.is_packed else readings

    def _amaxes(self) -> Iterator[Cause]:
        """Yield the causes in the values whose amax the quantizer takes: before or after their last rounding."""
        own = self.rounds[-1]
        yield Cause(Family.AMAX, "amax is of the values that are converted", "amax_of", OWN_VALUES, _BETWEEN, 0)
        for held, way in ROUNDINGS_BETWEEN.items():
            if held is not own:
                says = f"amax is of {held or 'float32'} values, elements are made of {own or 'float32'} values"
                yield Cause(Family.AMAX, says, "amax_of", way, _BETWEEN, 2)

    @cached_property
    def sequences(self) -> tuple[Cause, ...]:
        """Return the causes in the order of steps: as declared, two neighbours exchanged, one left out."""
        usual = tuple(range(len(self.stages)))
        found = [Cause(Family.STEPS, "steps are in order", "steps", usual, _BETWEEN, 0)]
        names = [f"step {number + 1}, {_name(stage)}" for number, stage in enumerate(self.stages)]
        for at in usual[:-1]:
            swapped = (*usual[:at], at + 1, at, *usual[at + 2 :])
            says = f"{names[at + 1]}, comes before {names[at]}"
            found.append(Cause(Family.STEPS, says, "steps", swapped, _BETWEEN))
        for at in usual:
            without = (*usual[:at], NO_STEP, *usual[at + 1 :])
            found.append(Cause(Family.STEPS, f"{names[at]}, is left out", "steps", without, _BETWEEN))
        return tuple(found)

    @cached_property
    def usual(self) -> Choices:
        found = {each.name: each.usual_in(self) for each in self.fused_aspects}
        for part, names in zip(self.parts, self._own_names, strict=True):
            found |= {flat: getattr(part.usual, name) for name, flat in names.items()}
        return Choices(**found)

    @cached_property
    def _offered(self) -> tuple[Cause, ...]:
        return tuple(_ranked(self._causes(), self.usual))

    @cached_property
    def far_causes(self) -> tuple[Cause, ...]:
        return tuple(self._of_parts(lambda part: part.far_causes))

    def _causes(self) -> Iterator[Cause]:
        for aspect in self.fused_aspects:
            yield from aspect.causes_in(self)
        yield from self._moved_roundings()
        yield from self._of_parts(lambda part: part.causes())

    def _of_parts(self, causes_of: Callable[[Computation], Sequence[Cause]]) -> Iterator[Cause]:
        """Yield the causes of every part, which change the choices of the whole."""
        for part, names in zip(self.parts, self._own_names, strict=True):
            of = part.name if isinstance(part, StoredValues) else ""
            for cause in causes_of(part):
                if cause.aspect not in names or (part is self.tail and self._is_between(cause)):
                    continue
                beside = tuple((names[name], value) for name, value in cause.beside)
                says = f"{cause.says}, in {of}" if of and len(self.parts) > 1 else cause.says
                if isinstance(part, RowFunction):
                    says = says.replace("to the output", f"to {part.format}")
                yield replace(cause, aspect=names[cause.aspect], beside=beside, says=says)

    def _is_between(self, cause: Cause) -> bool:
        """Return whether a cause of the quantizer is one of the roundings between two steps."""
        return cause.aspect == "read" and cause.family == Family.DOUBLE_ROUNDING and bool(self.stages)

    def _moved_roundings(self) -> Iterator[Cause]:
        """Yield the causes that round after the next step what should be rounded before it."""
        for at, (held, later) in enumerate(zip(self.rounds, self.rounds[1:], strict=False)):
            if held is not None and later is None:
                says = f"the rounding to {held} comes after step {at + 2}, {_name(self.stages[at + 1])}, not before it"
                beside = ((f"rounded_{at + 1}", ROUNDINGS_BETWEEN[held]),)
                kept, source = ROUNDINGS_BETWEEN[None], IEEE754["section 4.3"]
                yield Cause(Family.DOUBLE_ROUNDING, says, f"rounded_{at}", kept, source, beside=beside)

    def described(self, plan: Choices) -> str:
        """Return the steps, and every choice that is not the usual one."""
        changed = [each.says for each in self.causes() if each.is_made(plan) and not each.is_made(self.usual)]
        return self.title + ", ".join([*map(_name, self.stages), *changed])

    # ---- values and codes --------------------------------------------------------------------------------------------

    def codes(self, plan: Choices, sample: Any = None) -> Codes:
        """Return the codes of all outputs as 32-bit words. Raises DoesNotApplyError."""
        with np.errstate(all="ignore"):
            written_codes = [self._stored(plan, store) for store in self.stores]
            if self.tail is not None:
                written_codes += self._quantized(plan)
            parts = [self._placed(plan, form, codes) for form, codes in zip(self.forms, written_codes, strict=True)]
        return np.concatenate(parts)

    def _of(self, plan: Choices, part: Computation) -> Choices:
        """Return the plan of one part."""
        names = self._own_names[next(at for at, each in enumerate(self.parts) if each is part)]
        return part.usual.but(**{name: getattr(plan, flat) for name, flat in names.items()})

    def _kept(self, key: tuple[Any, ...], plan: Choices, names: Sequence[str], make: Callable[[], Any]) -> Any:
        """Return a stage that depends on some choices; its first result and its last one are remembered.

        Choices are compared by identity, because a plan shares them with the usual plan and hashes take longer.
        """
        now = tuple(getattr(plan, name) for name in names)
        had = self.made.get(key, [])
        for choices, result in had:
            if all(map(operator.is_, choices, now)):
                return result
        result = make()
        self.made[key] = [*had[:1], (now, result)]
        return result

    def _values(self, plan: Choices, position: int) -> Floats:
        """Return the values after `position` steps."""
        if position == 0:
            x = self.stages[plan.exchanged_x].operand if plan.exchanged_x else self.x
            return np.asarray(plan.read_x.apply(x, self.x_format), np.float32)
        place = plan.steps[position - 1]

        def made() -> Floats:
            x = self._values(plan, position - 1)
            if place != NO_STEP:
                stage, own = self.stages[place], self._of(plan, self.stages[place])
                x = (replace(stage, operand=self.x) if plan.exchanged_x == place > 0 else stage).applied(own, x)
            held: Way = getattr(plan, f"rounded_{position - 1}")
            return np.asarray(held.apply(x), np.float32)

        found: Floats = self._kept(("values", position), plan, self._names_before(position), made)
        return found

    def _names_before(self, position: int) -> list[str]:
        """Return the names of the choices on which the values after `position` steps depend.

        A step may be exchanged with the one after it.
        """
        names = [name for own in self._own_names[: min(position + 1, len(self.stages))] for name in own.values()]
        return ["read_x", "exchanged_x", "steps", *(f"rounded_{at}" for at in range(position)), *names]

    def _stored(self, plan: Choices, store: StoredValues) -> Codes:
        """Return the codes of values that are stored."""
        names = [*self._names_before(store.position), *self._own_names[self.parts.index(store)].values()]

        def made() -> Codes:
            return store.codes_of(self._of(plan, store), self._values(plan, store.position))

        found: Codes = self._kept(("stored", store.name), plan, names, made)
        return found

    def _quantized(self, plan: Choices) -> list[Codes]:
        """Return codes and scales of the quantizer."""
        assert self.tail is not None
        last, usual = len(self.stages), self.tail

        def made() -> QuantizedTensor:
            x = self._values(plan, last)
            width = ((0, 0), (0, usual.x.shape[1] - x.shape[1]))
            of_amax = None
            if last and plan.amax_of.rank:
                of_amax = np.pad(self._values(plan.but(**{f"rounded_{last - 1}": plan.amax_of}), last), width)
            return replace(usual, x=np.pad(x, width), x_of_amax=of_amax)

        names = [*self._names_before(last), *(["amax_of"] if last else [])]
        tail: QuantizedTensor = self._kept(("quantizer",), plan, names, made)
        words = tail.codes(self._of(plan, usual)).reshape(-1)
        if usual.which != QuantizerOutput.BOTH:
            return [words]
        return list(np.split(words, [words.size - usual.scales_size]))

    def _placed(self, plan: Choices, form: WrittenForm, codes: Codes) -> Codes:
        """Return an output as words; its rows lie at their slots of what the cache held before."""
        words = codes.reshape(-1).astype(np.uint32)
        if form.is_turned:
            words = plan.turned.apply(words.reshape(form.shape)).reshape(-1)
        if form.before is None or self.slots is None:
            return words
        slots = np.asarray(plan.slots.apply(self.slots, form.shape[0]))
        found = form.words(form.before).reshape(form.shape)
        is_kept = (slots >= 0) & (slots < form.shape[0])
        found[slots[is_kept]] = words.reshape(len(slots), -1)[is_kept]
        return found.reshape(-1)

    def apart(self, codes: Codes) -> dict[str, Codes]:
        """Return the outputs by name as the kernel writes them."""
        ends = np.cumsum([int(np.prod(form.shape)) for form in self.forms])[:-1]
        parts = zip(self.forms, np.split(codes, ends), strict=True)
        return {form.name: form.array(part) for form, part in parts}

    def together(self, arrays: Mapping[str, Codes]) -> Codes:
        """Return the codes of all outputs as 32-bit words."""
        return np.concatenate([form.words(arrays[form.name]) for form in self.forms])

    # ---- what the search asks for ------------------------------------------------------------------------------------

    def undone(self, plan: Choices, got: Codes) -> tuple[Choices, Codes]:
        """Return `got` with zeros where the quantizer writes nothing, such as the pads of a layout of scales."""
        if self.tail is None or self.slots is not None:
            return plan, got
        own = self._of(plan, self.tail)
        size = int(np.prod(self.tail.shape))
        _, left = self.tail.undone(own.but(placed=IN_PLACE), got[got.size - size :])
        names = self._own_names[self.parts.index(self.tail)]
        return plan.but(**{names["pads"]: self.tail.usual.pads}), np.concatenate([got[: got.size - size], left])


def _name(stage: FusedStage | RowFunction) -> str:
    return stage.title.removesuffix(": ") or getattr(stage, "name", "")


def _ranked(causes: Iterator[Cause], usual: Choices) -> Iterator[Cause]:
    """Yield causes with rank 0 for the usual choices, and 1 for choices that are usual elsewhere."""
    for cause in causes:
        rank = 0 if cause.is_made(usual) else max(1, cause.rank)
        yield cause if cause.rank == rank else replace(cause, rank=rank)


def chosen(part: Any, how: Sequence[str]) -> Choices:
    """Return the usual plan of a step with the ways that `how` names, each by a part of its text.

    Raises RefsimError for a text that is in no way of the step, or in several.
    """
    plan: Choices = part.usual
    causes = [each for each in part.causes() if each.aspect in vars(plan)]
    for text in how:
        exact = [each for each in causes if each.says == text]
        found = exact or [each for each in causes if text in each.says.replace("the output", str(part.format))]
        found = found or [each for each in causes if text in each.says]
        if len(found) != 1:
            says = [each.says for each in found] or nearest(text, [each.says for each in causes])
            what = f"{text!r} is in {len(found)} ways of the step"
            help = f"{'; '.join(says[:4])}; `ways` of the step lists them"
            raise RefsimError(
                "bad-kernel", what, f"how= of {_name(part) or 'the kind'}", "a text of how= is in one way", help
            )
        plan = found[0].of(plan)
    return plan
