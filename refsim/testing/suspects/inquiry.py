"""The search after a failed campaign for the mistake that explains everything: in the outputs, then in the code."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np

from refsim import ptx
from refsim.compare.readings import Codes, Misreading, readings
from refsim.conversions import decode
from refsim.device import Device
from refsim.device.compile import compiled
from refsim.errors import RefsimError
from refsim.formats import Format, array_type
from refsim.kernels import Bounded, Kernel
from refsim.testing.changed_device import ChangedDevice
from refsim.testing.suspects.budget import Budget
from refsim.testing.suspects.feeding import Diet
from refsim.testing.suspects.inputs import misread, read_one_off
from refsim.testing.suspects.rearranged import rearranged
from refsim.testing.suspects.sizes import tail_left_out
from refsim.testing.suspects.suspicion import OutOfTimeError, Suspicion
from refsim.testing.suspects.trials import repaired
from refsim.testing.suspects.unheard import subnormals_unheard
from refsim.testing.suspects.witnesses import Witness, smallest_first, witnesses_of

LEAST = 3  # test cases needed to name a cause
Pair = tuple[Codes, Codes, Format | None]


class TooFewError(Exception):
    """There are too few test cases to check a cause on."""


def suspects_of(
    kernel: Kernel, device: Device, problem: Any, known: Sequence[Witness], *, seconds: float, thorough: bool = True
) -> tuple[Suspicion, ...]:
    """Return the mistake that explains why the bits of `problem` differ, checked on other test cases; at most one.

    The kernel's PTX is edited and run on the simulated GPU, whatever `device` is; a kernel without code is judged by
    its outputs alone. Empty if nothing explains all. `seconds` counts work, so that slow machines find the same.
    `thorough`: all searches; else what few runs show. Raises OutOfTimeError if the work ended before all were tried.
    """
    budget, is_late, tried = Budget(seconds), False, 0
    inquiry = _Inquiry(kernel, device, problem, known, budget)
    searches = [inquiry.by_signature, inquiry.by_inputs]
    searches += [inquiry.by_outputs, inquiry.by_tail, inquiry.by_edits] if thorough else []
    for search in searches:
        try:
            budget.check()
            if found := search():
                return found
        except OutOfTimeError as ended:
            is_late, tried = True, ended.tried
        except RefsimError:  # the simulator may lack what hardware runs, or there is no code
            continue
        except TooFewError:
            return ()
    if is_late:
        raise OutOfTimeError(tried)
    return ()


@dataclass
class _Problems(Sequence[Any]):
    """The failing test case, then others that are gathered when they are asked for."""

    first: Any
    inquiry: "_Inquiry"
    smallest: bool = False

    @cached_property
    def _all(self) -> list[Any]:
        found = self.inquiry.witnesses
        others = smallest_first(found) if self.smallest else [each.problem for each in found]
        return [self.first, *(each for each in others if each is not self.first)]

    @overload
    def __getitem__(self, at: int) -> Any: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Any]: ...

    def __getitem__(self, at: int | slice) -> Any:
        return self.first if at == 0 else self._all[at]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Any]:
        yield self.first
        yield from self._all[1:]


@dataclass
class _Inquiry:
    """The searches for the mistake of a failing kernel, all within one budget."""

    kernel: Kernel
    device: Device
    problem: Any
    known: Sequence[Witness]
    budget: Budget

    @cached_property
    def witnesses(self) -> list[Witness]:
        """Return the test cases that a cause must explain, gathered at their first use."""
        budget = Budget(self.budget.limit * 0.25)
        found = witnesses_of(self.kernel, self.device.probing(), self.problem, self.known, budget=budget)
        if len(found) < LEAST:
            raise TooFewError if budget.left else OutOfTimeError(0)
        return found

    @cached_property
    def simulated(self) -> Diet:
        """Return the kernel for runs on changed inputs; on a real GPU these may fault."""
        program = ptx.load(compiled(self.kernel.code, self.device.target).text, self.device.target)
        return Diet(self.kernel, ChangedDevice(program, schedules=1), self.budget)

    def by_signature(self) -> tuple[Suspicion, ...]:
        """Try the edits of few, telling instructions."""
        problems, budget = _Problems(self.problem, self), self.budget.part(0.5)
        return repaired(self.kernel, self.device.target, problems, budget=budget, is_brief=True)

    def by_inputs(self) -> tuple[Suspicion, ...]:
        """Try inputs in another order."""
        problems = _Problems(self.problem, self, smallest=True)
        found = rearranged(self.simulated, problems, budget=self.budget.part(0.6))
        return (found,) if found else ()

    def by_outputs(self) -> tuple[Suspicion, ...]:
        """Look for a misreading in the outputs of all test cases, then in the inputs."""
        problems, smallest = [each.problem for each in self.witnesses], smallest_first(self.witnesses)
        found = betrayed(Diet(self.kernel, self.device, self.budget), problems)
        if found and not found[0].suspect.startswith("off"):
            return found
        if found:
            try:
                return read_one_off(self.simulated, smallest, found[0], budget=self.budget.part(0.4))
            except RefsimError:  # the simulator lacks what hardware runs, or there is no code
                return found
        found = subnormals_unheard(self.simulated, smallest)
        return found or misread(self.simulated, smallest, budget=self.budget.part(0.4))

    def by_tail(self) -> tuple[Suspicion, ...]:
        """Look for a size at whose multiples the kernel agrees."""
        failing, agreeing = ([each.problem for each in self.witnesses if each.failed == kind] for kind in (True, False))
        return tail_left_out(self.simulated, failing, agreeing, budget=self.budget.part(0.4))

    def by_edits(self) -> tuple[Suspicion, ...]:
        """Try every other edit of the code."""
        problems = _Problems(self.problem, self)
        return repaired(self.kernel, self.device.target, problems, budget=self.budget, is_brief=False)


def betrayed(diet: Diet, problems: Sequence[Any]) -> tuple[Suspicion, ...]:
    """Return the one misreading that fits every wrong output on all test cases; none if several fit.

    Unwritten elements fit nothing. More test cases may distinguish two misreadings that fit.
    """
    wrong: dict[str, list[Pair]] = {}
    for problem in problems:
        for name, pair in _pairs(diet, problem):
            wrong.setdefault(name, []).append(pair)
    guilty = {name: pairs for name, pairs in wrong.items() if any((got != want).any() for got, want, _ in pairs)}
    fitting = [reading for reading in readings() if guilty and all(_fits(reading, pairs) for pairs in guilty.values())]
    if len(fitting) != 1:
        return ()
    suspect, says = fitting[0].suspect, fitting[0].says
    if suspect.startswith("off-by-one") and all(want.ndim < 2 for pairs in guilty.values() for _, want, _ in pairs):
        suspect, says = "off by one", says.replace("each column", "each element")  # the output has no rows and columns
    return (Suspicion(suspect, says, tuple(f"output {name}" for name in guilty), len(problems)),)


def _pairs(diet: Diet, problem: Any) -> list[tuple[str, Pair]]:
    """Return (name, (output, oracle's output, format)) of a test case; outputs with bounds are left out.

    NaN codes are replaced by one code if the accuracy contract allows any NaN.
    """
    kernel, got, want = diet.kernel, diet.outputs(problem), diet.expected(problem)
    types = {name: array_type(format or "u8") for name, format in kernel.output_formats(problem).items()}
    rows = {name: row if isinstance(row, Format) else None for name, row in types.items()}
    one_nan = kernel.promise.nan != "bitwise"
    return [
        (name, (_codes(got[name], row, one_nan), _codes(want[name], row, one_nan), row))
        for name, row in rows.items()
        if not isinstance(want[name], Bounded)
    ]


def _fits(reading: Misreading, pairs: Sequence[Pair]) -> bool:
    """Return whether a misreading turns every right output into the wrong one, and enough elements differ."""
    differing = sum(int(np.count_nonzero(got != want)) for got, want, _ in pairs)
    return differing >= reading.least and all(reading.fits(*pair) for pair in pairs)


def _codes(array: Any, row: Format | None, one_nan: bool) -> Codes:
    """Return an array as unsigned codes, with `one_nan` every NaN as one code."""
    codes = np.ascontiguousarray(array).reshape(np.shape(array)).view(f"u{np.asarray(array).dtype.itemsize}")
    if not one_nan or row is None or row.nan_code is None:
        return codes
    return np.where(np.isnan(decode(codes, row)), codes.dtype.type(row.nan_code), codes)
