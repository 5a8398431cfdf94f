"""The laws a kernel obeys on every problem: it agrees with its oracle, repeats itself, leaves its inputs alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.compare import Mismatch, Owner, bits, explained
from refsim.device import Device
from refsim.errors import RefsimError
from refsim.kernels import Buffer, Findings, Kernel, Launcher, Outputs, Promise
from refsim.ptx import Extents
from refsim.testing.assertions import BitsDiffer
from refsim.testing.recipes import spelled


@dataclass(frozen=True)
class Observation:
    """One run of a kernel: what it wrote, what differs, and what the device says about the run.

    `inexact` and `notes` are the launcher's findings; `conflicts` are those of its findings that the kernel promises not to
    have.
    """

    outputs: Outputs
    mismatches: tuple[Mismatch, ...]
    elements: int
    inexact: tuple[str, ...]
    notes: tuple[str, ...]
    conflicts: tuple[str, ...] = ()


@dataclass
class _WatchedLauncher:
    """Passes everything on to `inner`, and remembers what was uploaded as read-only and where every buffer lies."""

    inner: Launcher
    inputs: list[tuple[Buffer, NDArray[Any]]] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)

    @property
    def target(self) -> str:
        return self.inner.target

    def launch(
        self, entry: str, grid: Extents, block: Extents, args: Sequence[Any], shared_bytes: int = 0, **options: Any
    ) -> None:  # a launcher of somebody else's need not know cluster and cooperative until they are asked for
        self.inner.launch(entry, grid, block, args, shared_bytes, **options)

    def read(self, buffer: Buffer) -> NDArray[Any]:
        return self.inner.read(buffer)

    def findings(self) -> Findings:
        return self.inner.findings()

    def upload(self, array: NDArray[Any], *, name: str, misalign_bytes: int = 0, writable: bool = False) -> Buffer:
        buffer = self.inner.upload(array, name=name, misalign_bytes=misalign_bytes, writable=writable)
        self.buffers[name] = buffer
        if not writable:
            self.inputs.append((buffer, np.array(array, copy=True)))
        return buffer

    def output(self, count: int, dtype: Any, *, name: str, misalign_bytes: int = 0) -> Buffer:
        buffer = self.inner.output(count, dtype, name=name, misalign_bytes=misalign_bytes)
        self.buffers[name] = buffer
        return buffer


def observe(kernel: Kernel, problem: Any, device: Device) -> Observation:
    """Runs a kernel once and compares every output with the oracle and every read-only input with itself.

    `device` is what `refsim.device.open` returns. A fault of the device (out of bounds, a guard band written, a
    deadlock) is raised as the RefsimError that describes it.
    """
    if not isinstance(problem, kernel.recipe):
        raise RefsimError("bad-recipe", f"{problem!r} is no {kernel.recipe.__name__}", where=f"kernel {kernel.name}")
    formats = kernel.output_formats(problem)
    with device.launcher(kernel.file, count_banks=bool(kernel.conflict_free)) as launcher:
        watched = _WatchedLauncher(launcher)
        got = kernel.run(watched, problem)
        want = kernel.expected(problem, launcher.target)
        for label, outputs in (("run", got), ("oracle", want)):
            if set(outputs) != set(formats):
                what = f"{label} returns {sorted(outputs)}, declared are {sorted(formats)}"
                raise RefsimError("outputs-differ", what, where=f"kernel {kernel.name}")
        seen = launcher.findings()
        owners = {name: _owner(kernel, problem, name, want[name].shape, watched) for name in formats}
        compared = [
            _compared(kernel.promise, got[name], want[name], format, name=name, owner=owners[name])
            for name, format in formats.items()
        ]
        if any(compared):
            mistaken = kernel.mistaken(problem, launcher.target)
            compared = [_suspected(mismatch, got, want, mistaken) for mismatch in compared]
        changed = [_changed(launcher, buffer, array) for buffer, array in watched.inputs]
    return Observation(
        outputs=got,
        mismatches=tuple(mismatch for mismatch in (*compared, *changed) if mismatch),
        elements=sum(mismatch.total for mismatch in compared),
        inexact=seen.inexact,
        notes=seen.notes,
        conflicts=tuple(use for use in seen.conflicts if use.startswith(kernel.conflict_free)),
    )


def agrees_with_oracle(kernel: Kernel, problem: Any, device: Device) -> None:
    """Every output equals the oracle's as far as the kernel's promise goes; else BitsDiffer."""
    _demand(_only(observe(kernel, problem, device).mismatches, inputs=False), f"{kernel.name} on {spelled(problem)}")


def inputs_unchanged(kernel: Kernel, problem: Any, device: Device) -> None:
    """What was uploaded as read-only holds the same bits afterwards; else BitsDiffer."""
    changed = _only(observe(kernel, problem, device).mismatches, inputs=True)
    _demand(changed, f"{kernel.name} wrote an input: {spelled(problem)}")


def deterministic(kernel: Kernel, problem: Any, device: Device) -> None:
    """Two runs write the same bits, NaN payloads included; else BitsDiffer."""
    first, second = (observe(kernel, problem, device).outputs for _ in range(2))
    formats = kernel.output_formats(problem)
    pairs = [_compared(Promise.BITWISE, second[name], first[name], formats[name], name=name) for name in formats]
    _demand([mismatch for mismatch in pairs if mismatch], f"two runs of {kernel.name} differ on {spelled(problem)}")


INPUT = "input "


def _only(mismatches: Sequence[Mismatch], *, inputs: bool) -> list[Mismatch]:
    return [mismatch for mismatch in mismatches if mismatch.name.startswith(INPUT) == inputs]


def _demand(mismatches: Sequence[Mismatch], heading: str) -> None:
    if mismatches:
        raise BitsDiffer(mismatches[0], heading)


def _compared(
    promise: Promise, got: NDArray[Any], want: NDArray[Any], format: str, *, name: str, owner: Owner | None = None
) -> Mismatch:
    return bits(got, want, format or None, None, owner, nan=promise.nan, within_ulps=promise.within_ulps, name=name)


def _suspected(mismatch: Mismatch, got: Outputs, want: Outputs, mistaken: Mapping[str, Outputs]) -> Mismatch:
    """The mismatch with the mistakes that explain it."""
    if not mismatch:
        return mismatch
    name = mismatch.name
    candidates = {mistake: outputs[name] for mistake, outputs in mistaken.items() if name in outputs}
    return replace(mismatch, suspects=explained(got[name], want[name], candidates))


def _changed(launcher: Launcher, buffer: Buffer, array: NDArray[Any]) -> Mismatch:
    unsigned = f"u{array.dtype.itemsize}"
    return bits(launcher.read(buffer).view(unsigned), array.reshape(-1).view(unsigned), name=f"{INPUT}{buffer.name}")


def _owner(kernel: Kernel, problem: Any, name: str, shape: tuple[int, ...], watched: _WatchedLauncher) -> Owner | None:
    """Who wrote an element: what the device saw, else what the kernel declares.

    The rows of an output may lie further apart in its buffer than they are long.
    """
    buffer, seen = watched.buffers.get(name), watched.findings().owner_of
    if seen is not None and buffer is not None:
        pitch = buffer.count // shape[0] if shape and shape[0] else 0
        apart = (shape[0], pitch) if len(shape) == 2 else shape
        return lambda *index: _written(seen(buffer, int(np.ravel_multi_index(index, apart))))
    declared = kernel.owner
    if declared is None:
        return None

    def declared_owner(*index: int) -> dict[str, int]:
        flat = int(np.ravel_multi_index(index, shape))
        return dict(zip(("block", "thread"), declared(problem, name, flat), strict=True))

    return declared_owner


def _written(place: Mapping[str, object]) -> "Mapping[str, object] | str":
    return place if "block" in place else f"never written, address {place['address']:#x}"
