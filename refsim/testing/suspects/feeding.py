"""Runs of a kernel on changed inputs of a test case, which show how the kernel reads its inputs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.compare.code_line import code_line, codes_of, distances
from refsim.device import Device
from refsim.kernels import Bounded, Buffer, Expected, Kernel, Launcher, Outputs
from refsim.testing.outputs import checked, settled
from refsim.testing.suspects.budget import Budget, spent_by
from refsim.testing.user_code import called

Array = NDArray[Any]
Marks = dict[str, NDArray[np.bool_]]
"""Marked elements of each output."""
Change = Callable[[str, Array], Array]
"""A function from the name and contents of an upload to the contents used instead; shape and dtype stay."""


@dataclass(repr=False)
class Feeding:
    """Forwards everything to `inner`, but changes the uploads."""

    inner: Launcher
    change: Change

    def upload(self, array: Array, *, name: str, misalign_bytes: int = 0, writable: bool = False) -> Buffer:
        """Upload the changed array."""
        changed = self.change(name, np.asarray(array))
        return self.inner.upload(changed, name=name, misalign_bytes=misalign_bytes, writable=writable)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@dataclass
class _Plain:
    """An unchanged test case: its uploads, the kernel's outputs, and the oracle's."""

    uploads: dict[str, Array]
    outputs: Outputs
    expected: Expected


@dataclass
class Diet:
    """A failing kernel and a device for runs on changed inputs; each unchanged test case runs only once."""

    kernel: Kernel
    device: Device
    budget: Budget = field(default_factory=lambda: Budget(float("inf")))
    known: dict[str, _Plain] = field(default_factory=dict)

    def uploads(self, problem: Any) -> dict[str, Array]:
        """Return the arrays that a test case uploads, by name."""
        return self._plain(problem).uploads

    def outputs(self, problem: Any) -> Outputs:
        """Return the kernel's outputs for the unchanged test case."""
        return self._plain(problem).outputs

    def expected(self, problem: Any) -> Expected:
        """Return the oracle's outputs, in the order of the kernel's where that is free."""
        plain = self._plain(problem)
        return settled(self.kernel, plain.outputs, plain.expected)[0]

    def fed(self, problem: Any, change: Change) -> Outputs:
        """Return the outputs for changed inputs; raise RefsimError for a fault, OutOfTimeError after the budget."""
        self.budget.check()
        kernel = self.kernel
        with self.device.launcher(kernel.code) as launcher:
            try:
                got = called(kernel, "run", kernel.run, Feeding(launcher, change), problem, problem=problem)
            finally:
                self.budget.spend(spent_by(launcher))
            return checked(kernel, "run", got, kernel.output_formats(problem))

    def wrong(self, problem: Any, outputs: Outputs | None = None) -> Marks:
        """Return which elements of `outputs`, or else of the kernel's own outputs, break the accuracy contract."""
        plain, formats = self._plain(problem), self.kernel.output_formats(problem)
        found = {}
        given = plain.outputs if outputs is None else outputs
        right, _ = settled(self.kernel, given, {name: plain.expected[name] for name in given})
        for name, array in given.items():
            want = right[name]
            if isinstance(want, Bounded):
                line = code_line(array.dtype, array.dtype, formats[name] or None)
                held = np.asarray(line.values(codes_of(array)), np.float64).reshape(array.shape)
                with np.errstate(all="ignore"):
                    is_near = np.abs(held - want.value) <= want.bound
                found[name] = ~(is_near | (held == want.value) | np.isnan(held) & np.isnan(want.value))
            else:
                found[name] = self._beyond(array, want, formats[name])
        return found

    def _beyond(self, got: Array, want: Array, format: str) -> NDArray[np.bool_]:
        """Return which elements of one output break the accuracy contract, shape of `got`."""
        promise, line = self.kernel.promise, code_line(got.dtype, want.dtype, format or None)
        have, right = codes_of(got), codes_of(want)
        beyond = have != right
        if promise.within_ulps:
            steps, unordered = distances(have, right, line)
            beyond &= unordered | (steps > np.uint64(promise.within_ulps))
        if promise.nan != "bitwise":
            beyond &= ~(line.is_nan(have) & line.is_nan(right))
        return np.asarray(beyond.reshape(got.shape), np.bool_)

    def _plain(self, problem: Any) -> _Plain:
        """Return the unchanged test case, run at its first use."""
        key = repr(problem)
        if key not in self.known:
            arrays: dict[str, Array] = {}

            def noted(name: str, array: Array) -> Array:
                arrays[name] = array
                return array

            outputs, kernel = self.fed(problem, noted), self.kernel
            expected = checked(
                kernel, "oracle", kernel.expected(problem, self.device.target), dict.fromkeys(outputs, "")
            )
            self.known[key] = _Plain(arrays, outputs, expected)
        return self.known[key]


def differing(one: Outputs, other: Outputs) -> Marks:
    """Return which elements of two runs differ, bit for bit."""
    return {name: (codes_of(one[name]) != codes_of(other[name])).reshape(np.shape(one[name])) for name in one}
