"""A computation as named aspects, each chosen in one of several ways: what outputs, causes and words are read from."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from refsim.computations.placing import IN_PLACE, placings
from refsim.computations.ways import Cause, Choices, Codes, Sample, Way
from refsim.computations.writing import USUAL_WRITING, writing_causes
from refsim.formats import F32, ElementType


def always(of: Any, way: Way | Cause) -> bool:
    """Return True: a way that every computation offers."""
    return True


@dataclass(frozen=True)
class Aspect:
    """A choice of a computation; `ways` are the values that it may have, of which the first is usual.

    `ways` may be computed from the operands, as causes or as ways. `usual`, a value or a function of the operands, is
    given where the first way is not the usual one; `exact` is the usual value of a reference that rounds once. `says`,
    or its result for the operands, is the sentence around the name of a way. `when(operands, way)` returns whether a
    way is offered. A description always holds the words `told`: a sentence around the name, or a function of
    the operands and the value. `far` are more ways, for when no other cause explains.
    """

    name: str
    ways: Sequence[Any] | Callable[[Any], Iterable[Any]] = ()
    usual: Any = None
    exact: Any = None
    says: str | Callable[[Any], str] = "{}"
    when: Callable[[Any, Any], bool] = always
    told: str | Callable[[Any, Any], str] = ""
    far: Sequence[Any] | Callable[[Any], Iterable[Any]] = ()

    def usual_in(self, of: Any) -> Any:
        """Return the value in the usual plan of a computation."""
        if of.exact and self.exact is not None:
            return self.exact
        given = self.ways[0] if self.usual is None else self.usual  # type: ignore[index]
        return given(of) if callable(given) else given

    def causes_in(self, of: Any, *, far: bool = False) -> Iterator[Cause]:
        """Yield the causes of the ways that a computation offers, or of the far ones."""
        ways = self.far if far else self.ways
        for way in ways(of) if callable(ways) else ways:
            if self.when(of, way):
                says = self.says(of) if callable(self.says) else self.says
                cause = way if isinstance(way, Cause) else way.cause(self.name, says)
                name = None if cause.beside else of.inputs.get(self.name)
                yield replace(cause, says=f"{cause.says}, input {name}") if name else cause

    def words_of(self, of: Any, value: Any) -> str:
        """Return what a description always holds."""
        return self.told(of, value) if callable(self.told) else self.told.format(value.name)


WRITTEN = Aspect("written", lambda own: writing_causes(own.format), USUAL_WRITING)
PLACED = Aspect("placed", placings(), says="outputs lie {}")


@dataclass(frozen=True, eq=False)
class Computation:
    """The operands of a computation. A subclass has its `aspects`, and `coded`, the codes under a plan.

    `remembers` is the number of stages that `once` holds. `is_sampled`: some elements cost less than all of them.
    `inputs` are a kernel's names of what aspects read.
    `summed_over` names the addends of an element where it is a sum, `sums_held` is the type of that sum. A plan takes
    `work_of_plan` seconds, and `work_of_addend` for each of the `addends` of an element.
    """

    aspects: ClassVar[tuple[Aspect, ...]]
    made: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False)
    inputs: dict[str, str] = field(default_factory=dict, init=False)

    is_sampled = True
    exact = False
    remembers = 64
    work_of_plan, work_of_addend = 5e-4, 1e-8
    addends = 1
    summed_over: ClassVar[str] = ""
    sums_held: ClassVar[ElementType] = F32

    if TYPE_CHECKING:

        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def format(self) -> Any: ...

    @property
    def title(self) -> str:
        """Return what a description begins with."""
        return ""

    @property
    def choices(self) -> Sequence[tuple[Aspect, "Computation"]]:
        """Return every aspect with the computation whose operands it depends on."""
        return [(each, self) for each in self.aspects]

    def reading(self, **inputs: str) -> Self:
        """Return this computation, whose causes name the kernel's input that an aspect reads."""
        self.inputs.update(inputs)
        return self

    @cached_property
    def usual(self) -> Choices:
        """Return the plan of refsim's own kernel, or of an exact reference."""
        return Choices(**{each.name: each.usual_in(of) for each, of in self.choices})

    @cached_property
    def _offered(self) -> tuple[Cause, ...]:
        return tuple(cause for each, of in self.choices for cause in each.causes_in(of))

    @cached_property
    def far_causes(self) -> tuple[Cause, ...]:
        """Return every unlikely cause that applies to these operands."""
        return tuple(cause for each, of in self.choices for cause in each.causes_in(of, far=True))

    def work(self, elements: int) -> float:
        """Return the work of a plan for some elements, about the seconds that it takes on one core of a server."""
        return self.work_of_plan + elements * self.addends * self.work_of_addend

    def causes(self) -> Sequence[Cause]:
        """Return every cause that applies to these operands."""
        return self._offered

    def references(self) -> Sequence[Cause]:
        """Return a cause for each library that computes this too, which takes all of its steps together."""
        return ()

    def another(self, seed: int, *, wide: bool = False) -> "Computation":
        """Return the computation of other numbers, to distinguish causes; `wide`: written as wide as its sums are."""
        raise NotImplementedError

    def sums_of(self, plan: Choices, at: tuple[int, int], most: int) -> list[tuple[int, int]]:
        """Return pairs (addends, pattern): one element's sum before each of up to `most` ends."""
        raise NotImplementedError

    def coded(self, plan: Choices, sample: Sample | None) -> Codes:
        """Return the codes of a plan, in their own places: all, or those of a sample. Raises DoesNotApplyError."""
        raise NotImplementedError

    def codes(self, plan: Choices, sample: Any = None) -> Codes:
        """Return the codes that a plan writes: all, or those of a sample. Raises DoesNotApplyError."""
        with np.errstate(all="ignore"):
            codes = self.coded(plan, sample)
        return codes if sample is not None else self.moved(plan, codes)

    def moved(self, plan: Choices, codes: Codes, *, back: bool = False) -> Codes:
        """Return all codes where a plan places them, or placed codes in their own places."""
        return plan.placed.back(codes) if back else plan.placed.apply(codes)  # type: ignore[no-any-return]

    def apart(self, codes: Codes) -> dict[str, Codes]:
        """Return a kernel's outputs by name, of the codes of a computation; "" is the name of its only output.

        `written_shape` is its shape where a user of the computation set one.
        """
        return {"": codes.reshape(vars(self).get("written_shape", codes.shape))}

    def together(self, arrays: Mapping[str, Codes]) -> Codes:
        """Return the codes of a computation as one array, of a kernel's outputs by name."""
        (array,) = arrays.values()
        return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(self.shape)

    def undone(self, plan: Choices, got: Codes) -> tuple[Choices, Codes]:
        """Return the plan without its placing, and `got` with its elements moved back to their own places."""
        return plan.but(placed=IN_PLACE), got if plan.placed is IN_PLACE else self.moved(plan, got, back=True)

    def once(self, key: tuple[Any, ...], plan: Choices, aspects: str, make: Callable[[], Any]) -> Any:
        """Return a stage that depends on some aspects, remembered under a key; an empty key remembers nothing."""
        if not key:
            return make()
        whole = (*key, aspects, *(getattr(plan, each) for each in aspects.split()))
        if whole not in self.made:
            if len(self.made) >= self.remembers:
                self.made.clear()
            self.made[whole] = make()
        return self.made[whole]

    def described(self, plan: Choices) -> str:
        """Return the plan as text: what is always said, and every choice that is not the usual one."""
        usual = self.usual
        is_wide = getattr(plan, "wide", None) is not getattr(usual, "wide", None)
        told = {
            each.name: each.words_of(of, getattr(plan, each.name))
            for each, of in self.choices
            if each.told and not is_wide and each.when(of, getattr(plan, each.name))
        }
        changed = [each for each in self.causes() if each.is_made(plan) and not each.is_made(usual)]
        known = {name for each in changed for name in (each.aspect, *dict(each.beside))}
        if any(value != getattr(usual, name) for name, value in vars(plan).items() if name not in known):
            changed += [each for each in self.far_causes if each.is_made(plan) and not each.is_made(usual)]
        of_both = {name for each in changed for name in (each.aspect, *dict(each.beside)) if each.beside}
        changed = [each for each in changed if each.beside or each.aspect not in of_both]
        words = ", ".join([*told.values(), *(each.says for each in changed if each.aspect not in told)])
        return f"{self.title}{words}"
