"""A kernel run on other inputs than its problem has: what it makes of them tells how it reads them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.compare.code_line import code_line, codes_of, distances
from refsim.device import Device
from refsim.kernels import Bounded, Buffer, Expected, Kernel, Launcher, Outputs
from refsim.testing.outputs import checked
from refsim.testing.suspects.suspicion import OutOfTimeError
from refsim.testing.user_code import called

Array = NDArray[Any]
Marks = dict[str, NDArray[np.bool_]]
"""Elements of each output."""
Change = Callable[[str, Array], Array]
"""What is uploaded in place of an array of that name; the shape and the dtype stay."""


@dataclass(repr=False)
class Feeding:
    """Passes everything on to `inner`, but changes what is uploaded."""

    inner: Launcher
    change: Change

    def upload(self, array: Array, *, name: str, misalign_bytes: int = 0, writable: bool = False) -> Buffer:
        changed = self.change(name, np.asarray(array))
        return self.inner.upload(changed, name=name, misalign_bytes=misalign_bytes, writable=writable)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@dataclass
class _Plain:
    """A problem as it is: what it uploads, what the kernel makes of that, and what it should."""

    uploads: dict[str, Array]
    outputs: Outputs
    expected: Expected


@dataclass
class Diet:
    """A failing kernel and the device that it is fed on; what it makes of a problem as it is, it is asked once."""

    kernel: Kernel
    device: Device
    deadline: float = float("inf")
    known: dict[str, _Plain] = field(default_factory=dict)

    def uploads(self, problem: Any) -> dict[str, Array]:
        """The arrays that a problem uploads, by name."""
        return self._plain(problem).uploads

    def outputs(self, problem: Any) -> Outputs:
        return self._plain(problem).outputs

    def expected(self, problem: Any) -> Expected:
        """What the oracle says."""
        return self._plain(problem).expected

    def fed(self, problem: Any, change: Change) -> Outputs:
        """The outputs of a problem whose inputs were changed. Raises RefsimError for a fault, OutOfTimeError when it is late."""
        if time.process_time() > self.deadline:
            raise OutOfTimeError(0)
        kernel = self.kernel
        with self.device.launcher(kernel.code) as launcher:
            got = called(kernel, "run", kernel.run, Feeding(launcher, change), problem, problem=problem)
            return checked(kernel, "run", got, kernel.output_formats(problem))

    def wrong(self, problem: Any, outputs: Outputs | None = None) -> Marks:
        """Which elements break the kernel's promise: of `outputs`, else of what the kernel makes of the problem as it is."""
        plain, formats = self._plain(problem), self.kernel.output_formats(problem)
        found = {}
        for name, array in (plain.outputs if outputs is None else outputs).items():
            want = plain.expected[name]
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
        key = repr(problem)
        if key not in self.known:
            arrays: dict[str, Array] = {}

            def noted(name: str, array: Array) -> Array:
                arrays[name] = array
                return array

            outputs = self.fed(problem, noted)
            self.known[key] = _Plain(arrays, outputs, self.kernel.expected(problem, self.device.target))
        return self.known[key]


def differing(one: Outputs, other: Outputs) -> Marks:
    """Which elements of two runs differ, bit for bit."""
    return {name: (codes_of(one[name]) != codes_of(other[name])).reshape(np.shape(one[name])) for name in one}
