"""Requirements on an oracle: it is a function of the test case alone, and its bounds can be broken."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.compare.code_line import code_line, codes_of
from refsim.errors import RefsimError
from refsim.formats import format_named
from refsim.kernels import Bounded, Kernel
from refsim.testing.outputs import value_of

FEW, LEAST_FLOATS = 100, 10  # ordinary outputs that suffice beside many NaNs and zeros; outputs that allow a note
Host = tuple[str, NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class Slack:
    """Elements that show no mistake. By bounds: their number, how many may be any finite number, and how many may be zero.

    By values: `floats` generated elements, of which `hidden` are NaN or zero, and `ordinary` other elements of the
    corpus.
    """

    elements: int = 0
    any_number: int = 0
    zero: int = 0
    floats: int = 0
    hidden: int = 0
    ordinary: int = 0

    def __add__(self, other: "Slack") -> "Slack":
        return Slack(*(here + there for here, there in zip(astuple(self), astuple(other), strict=True)))

    def of_corpus(self) -> "Slack":
        """Return the slack of a case of the corpus, whose ordinary values show order and rounding."""
        return replace(self, floats=0, hidden=0, ordinary=self.floats - self.hidden)

    def notes(self) -> tuple[str, ...]:
        """Return the notes that zeros would pass in every case, and that most outputs show no order and no rounding."""
        notes = []
        if self.zero == self.elements > 0:
            notes.append(
                f"every bound of {self.elements} elements reaches zero: a kernel that writes zeros keeps this promise"
            )
        share = 4 if self.floats - self.hidden < FEW else 2
        if self.hidden * share > self.floats >= LEAST_FLOATS and not self.ordinary:
            notes.append(
                f"{self.hidden} of {self.floats} generated outputs are NaN or 0, which hides order and rounding: add "
                'corpus=, or draw rst.tensors(..., fills=("gaussian",), max_patches=0)'
            )
        return tuple(notes)


NO_SLACK = Slack()


def slack(want: Mapping[str, "NDArray[Any] | Bounded"], formats: Mapping[str, str]) -> Slack:
    """Return the slack of an oracle's outputs; values that are exactly zero or not finite do not count for bounds."""
    found = NO_SLACK
    for name, each in want.items():
        array, format = (each.value, "") if isinstance(each, Bounded) else (value_of(each), formats[name])
        line, codes = code_line(array.dtype, array.dtype, format or None), codes_of(array)
        if not line.integer:
            found += Slack(floats=codes.size, hidden=int((line.is_nan(codes) | (line.order(codes) == 0)).sum()))
        if isinstance(each, Bounded):
            finite = np.isfinite(each.value)
            reaches = finite & (each.bound > 0) & (each.bound >= np.abs(each.value))
            widest = np.abs(each.value) + (format_named(formats[name]).max_value if formats[name] else np.inf)
            found += Slack(each.value.size, int((finite & (each.bound >= widest)).sum()), int(reaches.sum()))
    return found


def check_ulps(kernel: Kernel, name: str, got: NDArray[Any], format: str) -> None:
    """Raise RefsimError bad-bound for a bound in ulp that no number breaks: from zero to the largest value."""
    row = format_named(format) if format else None
    steps = row.max_code >> row.padding_bits if row else 1 << (8 * got.dtype.itemsize - 1)
    if kernel.promise.within_ulps >= steps:
        what = f"{kernel.promise.within_ulps} ulp: from 0 to the largest {row or got.dtype} are {steps}"
        where = f"output {name!r} of kernel {kernel.name}"
        raise RefsimError("bad-bound", what, where=where, rule="a promise that nothing can break is none")


def check_own_arrays(kernel: Kernel, name: str, got: NDArray[Any], want: Any) -> None:
    """Raise RefsimError oracle-not-own if the oracle returns an array of `run`, which would agree with itself."""
    if got.size and np.may_share_memory(got, value_of(want)):
        what = f"oracle returns for {name!r} the memory of the array that run returned"
        rule = "an array that is compared with itself agrees, whatever the kernel wrote"
        help = "compute what the kernel must write from the test case alone"
        raise RefsimError("oracle-not-own", what, where=f"kernel {kernel.name}", rule=rule, help=help)


def kept(hosts: Sequence[Host]) -> list[Host]:
    """Return the uploaded arrays that still hold their uploaded contents; `run` may fill an array several times."""
    return [host for host in hosts if _same_bits(host[1], host[2])]


def check_kept(kernel: Kernel, hosts: Sequence[Host]) -> None:
    """Raise RefsimError oracle-changes-input if the oracle changed an array that `run` uploaded."""
    changed = [name for name, array, before in hosts if not _same_bits(array, before)]
    if changed:
        what = f"oracle writes into the array that run uploaded as {changed[0]!r}"
        rule = "run and oracle see the same test case, in every order and as often as they are called"
        help = "compute on a copy: x = problem.x.copy()"
        raise RefsimError("oracle-changes-input", what, where=f"kernel {kernel.name}", rule=rule, help=help)


def _same_bits(array: NDArray[Any], before: NDArray[Any]) -> bool:
    if array.shape != before.shape or array.dtype != before.dtype:
        return False
    here, there = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (array, before))
    return bool((here == there).all())


def oracle_differs(kernel: Kernel, text: str) -> RefsimError:
    """Return the error of an oracle that gave two answers for one test case."""
    what = f"oracle of kernel {kernel.name} returns other elements when it is asked again: {text}"
    rule = "an oracle depends on the test case alone: not on what run did, on earlier test cases, or on chance"
    help = "compute from the test case alone, on copies, with a seed that the test case holds"
    return RefsimError("oracle-differs", what, where=f"kernel {kernel.name}", rule=rule, help=help)
