"""The laws of a kernel for every test case: it agrees with its oracle, is deterministic, leaves inputs unchanged."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.compare import Mismatch, Owner, bits, explained, within_bound
from refsim.compare.code_line import codes_of
from refsim.device import Device
from refsim.device.sim import SimLauncher
from refsim.errors import Kind, RefsimError, UnfitTargetError
from refsim.kernels import Bounded, Buffer, Expected, Findings, Kernel, Launcher, Outputs, Promise, Struct, Unordered
from refsim.layouts import TensorMap
from refsim.oracle_calls import HEARER
from refsim.ptx import Extents
from refsim.ptx.memory.space import LARGE_BYTES
from refsim.render.cards import Card
from refsim.silicon.launch_replay import shared
from refsim.testing.assertions import BitsDiffer, PromiseNotKept
from refsim.testing.decisions import DecisionBits, Observation, decide, with_open_bits
from refsim.testing.oracle_checks import Host, check_kept, check_own_arrays, check_ulps, kept, oracle_differs, slack
from refsim.testing.outputs import check_conflict_free, check_shape, checked, in_output, settled, value_of
from refsim.testing.samples import Sample, take_samples
from refsim.testing.user_code import called, said, shortened
from refsim.testing.verdicts import Recomputed
from refsim.testing.witnesses import contradicted

__all__ = ["Observation", "agrees_with_oracle", "deterministic", "inputs_unchanged", "observe"]
__dir__ = partial(sorted, __all__)
MOST_COMPUTED = 1 << 15
"""The elements of outputs up to which `computes` is compared with the oracle."""


@dataclass(repr=False)
class _WatchedLauncher(Card):
    """Forwards everything to `inner`, and records read-only uploads and all buffers.

    It also records the first fault, so that a `run` that catches the fault does not hide it, and whether anything was
    launched. `suffix` distinguishes the buffers of a second run.
    """

    inner: Launcher
    fault: RefsimError | None = None
    has_launched: bool = False
    inputs: list[tuple[Buffer, NDArray[Any]]] = field(default_factory=list)
    hosts: list[Host] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    suffix: str = ""
    keeps_large: bool = True

    def _repr_summary(self) -> str:
        return f"over {self.inner!r}"

    @property
    def target(self) -> str:
        return self.inner.target

    def launch(
        self, entry: str, grid: Extents, block: Extents, args: Sequence[Any], shared_bytes: int = 0, **options: Any
    ) -> None:  # other launchers need not support cluster and cooperative until they are used
        """Launch an entry and record its fault."""
        with self._noting_faults(entry):
            self.inner.launch(entry, grid, block, args, shared_bytes, **options)

    def call(self, *args: Any) -> None:
        with self._noting_faults():
            self.inner.call(*args)

    @contextmanager
    def _noting_faults(self, entry: str = "") -> Iterator[None]:
        self.has_launched = True
        try:
            yield
        except RefsimError as error:
            if isinstance(error, UnfitTargetError):
                error.entry = error.entry or str(entry)
            if error.kind is Kind.FAULT:
                self.fault = self.fault or error
            raise

    def encode(self, tensor_map: TensorMap) -> Struct:
        return self.inner.encode(tensor_map)

    def read(self, buffer: Buffer) -> NDArray[Any]:
        return self.inner.read(buffer)

    def findings(self) -> Findings:
        return self.inner.findings()

    def upload(self, array: NDArray[Any], *, name: str, misalign_bytes: int = 0, writable: bool = False) -> Buffer:
        """Upload an array and record its buffer, the host array, and for a read-only upload its contents.

        The contents of a large array are not kept for a simulated GPU, which cannot change a read-only buffer.
        """
        buffer = self.inner.upload(array, name=name + self.suffix, misalign_bytes=misalign_bytes, writable=writable)
        self.buffers[name] = buffer
        is_kept = self.keeps_large or buffer.count * buffer.dtype.itemsize < LARGE_BYTES
        uploaded = np.array(array, copy=True) if is_kept else np.asarray(array)
        if isinstance(array, np.ndarray) and is_kept:
            self.hosts.append((name, array, uploaded))
        if not writable:
            self.inputs.append((buffer, uploaded))
        return buffer

    def output(self, count: int, dtype: Any, *, name: str, misalign_bytes: int = 0) -> Buffer:
        """Allocate an output and record its buffer."""
        buffer = self.inner.output(count, dtype, name=name + self.suffix, misalign_bytes=misalign_bytes)
        self.buffers[name] = buffer
        return buffer


def observe(kernel: Kernel, problem: Any, device: Device, *, follow_open: bool = False) -> Observation:
    """Run a kernel once; compare every output with the oracle and every read-only input with its upload.

    `device` is the result of `refsim.device.open`. A fault of the device (out of bounds, a changed guard band, a
    deadlock) is raised as the RefsimError that describes it; errors of the kernel's own Python code are raised too.
    With `follow_open`, a simulated GPU also reports what unspecified bits reached. A kernel with entries of `any_order`
    runs once under each schedule.
    """
    seen, most = _observed(kernel, problem, device, follow_open=follow_open)
    for alone in range(1, most):
        if seen.mismatches:
            break
        other, _ = _observed(kernel, problem, device, alone=alone)
        waived = {name: what or seen.waived.get(name, "") for name, what in other.waived.items()}
        unordered = tuple(dict.fromkeys((*seen.unordered, *other.unordered)))
        seen = replace(other if other.mismatches else seen, waived=waived, unordered=unordered)
    return seen


def _observed(
    kernel: Kernel, problem: Any, device: Device, *, follow_open: bool = False, alone: int = 0
) -> tuple[Observation, int]:
    """Return one run, with schedule number `alone` for entries of `any_order`, and the most schedules of a launch."""
    if not isinstance(problem, kernel.recipe):
        raise RefsimError("bad-recipe", f"{problem!r} is no {kernel.recipe.__name__}", where=f"kernel {kernel.name}")
    formats = called(kernel, "outputs", kernel.output_formats, problem, problem=problem)
    following = {"follow_open": True} if follow_open and device.is_simulated else {}
    with device.launcher(kernel.code, count_banks=bool(kernel.conflict_free), **following) as launcher:
        if isinstance(launcher, SimLauncher):
            launcher.alone = alone
            check_conflict_free(kernel, launcher.program.module)
        watched = _WatchedLauncher(launcher, keeps_large=not device.is_simulated)
        got = _ran(kernel, problem, watched, formats)
        hosts = kept(watched.hosts)
        heard: list[Sample] = []
        want = _expected(kernel, problem, launcher.target, formats, heard)
        check_kept(kernel, hosts)
        for name in formats:
            check_shape(kernel, name, got[name], want[name])
            check_own_arrays(kernel, name, got[name], want[name])
        seen = launcher.findings()
        owners = {name: _owner(kernel, problem, name, got[name].shape, watched) for name in formats}
        right, compared = _compared_all(kernel, got, want, formats, owners)
        remarks: list[str] = []
        if any(compared):
            mistaken = _mistaken(kernel, problem, launcher.target, want, remarks)
            mistaken = {name: _in_order(kernel, got, want, wrote) for name, wrote in mistaken.items()}
            compared = [_suspected(mismatch, got, right, mistaken) for mismatch in compared]
        changed = [_changed(launcher, buffer, array, device) for buffer, array in watched.inputs]
        again: tuple[str, ...] = ()
        if seen.changed_variables and not kernel.fresh_module and not any((*compared, *changed)):
            again = _again(kernel, problem, launcher, formats, want, seen.changed_variables)
    elements = sum(mismatch.total for mismatch in compared)
    if elements and not watched.has_launched:
        _require_launches(kernel, problem, device)
    most = launcher.most if isinstance(launcher, SimLauncher) else 1
    seen_once = Observation(
        outputs=got,
        mismatches=tuple(mismatch for mismatch in (*compared, *changed) if mismatch),
        elements=elements,
        inexact=seen.inexact,
        assumed=seen.assumed,
        notes=(*seen.notes, *remarks),
        conflicts=tuple(use for use in seen.conflicts if use.startswith(kernel.conflict_free)),
        reached=seen.reached,
        slack=slack(want, formats),
        counts={mismatch.name: (mismatch.total, mismatch.count) for mismatch in (*compared, *changed)},
        again=again,
        opcodes=seen.opcodes,
        waived=seen.waived,
        unordered=seen.unordered,
        printed=seen.printed,
        samples=tuple(heard),
    )
    return seen_once, most


def _compared_all(
    kernel: Kernel, got: Outputs, want: Expected, formats: Mapping[str, str], owners: Mapping[str, Owner | None]
) -> tuple[dict[str, Any], list[Mismatch]]:
    """Return the oracle's outputs in the order of the kernel's where that is free, and the comparison of each output."""
    right, said = settled(kernel, got, want, formats)
    compared = [_judged(kernel, got[name], right[name], formats[name], name, owners.get(name)) for name in formats]
    return right, [
        replace(each, patterns=(*said.get(each.name, ()), *each.patterns)) if each else each for each in compared
    ]


def _in_order(kernel: Kernel, got: Outputs, want: Expected, wrote: Outputs) -> Outputs:
    """Return what a mistaken kernel writes, in the order of the kernel's outputs where that is free."""
    free = {name: right for name, right in want.items() if name in wrote and isinstance(right, Unordered)}
    sets = {name: replace(right, value=wrote[name]) for name, right in free.items()}
    return {**wrote, **settled(kernel, got, sets)[0]}


def _again(
    kernel: Kernel,
    problem: Any,
    launcher: Launcher,
    formats: Mapping[str, str],
    want: Expected,
    variables: Sequence[str],
) -> tuple[str, ...]:
    """Return how a second run over the same module differs, as lines: programs launch a loaded module often."""
    left = f"second run over one module, {', '.join(variables)} as the first left it"
    watched = _WatchedLauncher(launcher, suffix=" (second run)")
    try:
        got = _ran(kernel, problem, watched, formats)
    except RefsimError as error:
        if error.kind is Kind.FAULT:
            error.what = f"{error.what}; {left}"
        raise
    for name in formats:
        check_shape(kernel, name, got[name], want[name])
    _, compared = _compared_all(kernel, got, want, formats, {})
    if not any(compared):
        return ()
    return (
        f"[stateful] {left}:",
        *(str(mismatch) for mismatch in compared if mismatch),
        "help: let the kernel, or a launch in run, put it back; Kernel(fresh_module=True) where each run needs a new module",
    )


def check_oracle_repeats(kernel: Kernel, problem: Any, seen: Observation, target: str) -> None:
    """Raise oracle-differs if the oracle, called again, no longer agrees with outputs that it agreed with."""
    formats = called(kernel, "outputs", kernel.output_formats, problem, problem=problem)
    want = _expected(kernel, problem, target, formats)
    for name in formats:
        check_shape(kernel, name, seen.outputs[name], want[name])
    for mismatch in _compared_all(kernel, seen.outputs, want, formats, {})[1]:
        if mismatch:
            text = f"{mismatch.count} of {mismatch.total} of {mismatch.name!r} on {shortened(problem)}"
            raise oracle_differs(kernel, text)


def check_computes(kernel: Kernel, problem: Any, target: str) -> None:
    """Raise RefsimError unless `computes` gives the outputs of the oracle, bit for bit; of large outputs it is only called."""
    formats = called(kernel, "outputs", kernel.output_formats, problem, problem=problem)
    want = _expected(kernel, problem, target, formats)
    called(kernel, "computes", kernel.computed, problem, target, problem=problem)
    if kernel.promise is not Promise.BITWISE or sum(np.size(each) for each in want.values()) > MOST_COMPUTED:
        return
    for name, made in replace(kernel, oracle=None).expected(problem, target).items():
        one, other = (codes_of(np.asarray(each)).reshape(-1) for each in (made, want.get(name, ())))
        differ = (one != other).sum() if one.size == other.size else one.size
        if differ:
            what = f"computes= gives {differ} other elements of {name!r} than oracle, on {shortened(problem)}"
            help = "correct the arguments of computes=, or leave out oracle="
            raise RefsimError("bad-kernel", what, f"kernel {kernel.name}", "both say what is right", help)


def _expected(kernel: Kernel, problem: Any, target: str, formats: Mapping[str, str], heard: Any = None) -> Any:
    """Return the checked result of `oracle`; add samples of refsim's own oracles that it calls to `heard`."""
    context = copy_context()
    context.run(HEARER.set, None if heard is None else partial(take_samples, heard))
    label = "computes" if kernel.oracle is None else "oracle"
    want = context.run(called, kernel, label, kernel.expected, problem, target, problem=problem)
    return checked(kernel, "oracle", want, formats)


def _ran(kernel: Kernel, problem: Any, watched: _WatchedLauncher, formats: Mapping[str, str]) -> Outputs:
    """Return the checked result of `run`; a fault of a launch outranks any other error of `run`."""
    try:
        got = called(kernel, "run", kernel.run, watched, problem, problem=problem)
        if watched.fault is None:
            return checked(kernel, "run", got, formats)
    except RefsimError:
        if watched.fault is None:
            raise
    raise watched.fault


def _require_launches(kernel: Kernel, problem: Any, device: Device) -> None:
    """Raise RefsimError nothing-launched unless some test case of the corpus launches something.

    Called for a run that wrote elements without a launch. A kernel may answer an empty or a trivial test case on the
    host.
    """
    for other in kernel.corpus:
        with device.launcher(kernel.code) as launcher:
            watched = _WatchedLauncher(launcher)
            with suppress(RefsimError):  # its own case reports this error
                called(kernel, "run", kernel.run, watched, other, problem=other)
        if watched.has_launched:
            return
    what = f"run of kernel {kernel.name} returns outputs and launches nothing, on {shortened(problem)}"
    what += f" and on all {len(kernel.corpus)} test cases of its corpus" if kernel.corpus else ""
    help = "launcher.launch(entry, grid, block, args), or launcher.call(...) of Kernel(call=...); "
    help += "a test case that needs no launch needs another test case in corpus= that has one"
    raise RefsimError("nothing-launched", what, rule="nothing that ran on the device is no verdict", help=help)


def agrees_with_oracle(kernel: Kernel, problem: Any, device: Device) -> None:
    """Raise BitsDiffer unless every output equals the oracle's within the kernel's accuracy contract.

    The decision is the one of `refsim verify` without the check of inputs. PromiseNotKept is raised for bank conflicts
    that the kernel excludes, for bits that agree but are unspecified or unverified, and for a model that contradicts
    recorded hardware.
    """
    seen = observe(kernel, problem, device)
    finding = decide(kernel, replace(seen, mismatches=tuple(_only(seen.mismatches, inputs=False))), problem)
    finding = finding or contradicted(shared().of(seen.opcodes, device.target), Recomputed())
    if finding is None:
        return
    heading, known = f"{kernel.name} on {shortened(problem)}", DecisionBits()
    known.note(observe(kernel, problem, device, follow_open=True) if finding.is_open else seen)
    text, _ = with_open_bits(kernel, finding, known)
    case = (kernel, problem, device)
    if finding.mismatch is not None:
        after = text.removeprefix(str(finding.mismatch)).lstrip("\n")
        raise BitsDiffer(finding.mismatch, heading, after=after, case=case)
    raise PromiseNotKept(f"{heading}\n{finding.status}: {text}", case=case)


def inputs_unchanged(kernel: Kernel, problem: Any, device: Device) -> None:
    """Raise BitsDiffer unless every read-only upload is unchanged after the run."""
    changed = _only(observe(kernel, problem, device).mismatches, inputs=True)
    _demand(changed, f"{kernel.name} wrote an input: {shortened(problem)}", (kernel, problem, device))


def deterministic(kernel: Kernel, problem: Any, device: Device) -> None:
    """Raise BitsDiffer unless two runs write equal bits, including NaN payloads."""
    first, second = (observe(kernel, problem, device).outputs for _ in range(2))
    formats = kernel.output_formats(problem)
    pairs = [_compared(Promise.BITWISE, second[name], first[name], formats[name], name=name) for name in formats]
    heading = f"two runs of {kernel.name} differ on {shortened(problem)}"
    _demand([mismatch for mismatch in pairs if mismatch], heading, (kernel, problem, device))


INPUT = "input "


def _only(mismatches: Sequence[Mismatch], *, inputs: bool) -> list[Mismatch]:
    return [mismatch for mismatch in mismatches if mismatch.name.startswith(INPUT) == inputs]


def _demand(mismatches: Sequence[Mismatch], heading: str, case: tuple[Kernel, Any, Device]) -> None:
    if mismatches:
        raise BitsDiffer(mismatches[0], heading, case=case)


def _compared(
    promise: Promise, got: NDArray[Any], want: NDArray[Any], format: str, *, name: str, owner: Owner | None = None
) -> Mismatch:
    return bits(got, want, format or None, None, owner, nan=promise.nan, within_ulps=promise.within_ulps, name=name)


def _judged(
    kernel: Kernel, got: NDArray[Any], want: NDArray[Any] | Bounded, format: str, name: str, owner: Owner | None
) -> Mismatch:
    """Return the comparison of an output with the oracle's, by the kernel's accuracy contract."""
    try:
        if isinstance(want, Bounded):
            return within_bound(got, want.value, want.bound, format or None, None, owner, name=name)
        if kernel.promise.within_ulps:
            check_ulps(kernel, name, got, format)
        return _compared(kernel.promise, got, want, format, name=name, owner=owner)
    except RefsimError as error:
        raise in_output(kernel, name, format, error) from error


def _mistaken(
    kernel: Kernel, problem: Any, target: str, want: Expected, remarks: list[str]
) -> dict[str, Mapping[str, NDArray[Any]]]:
    """Return what a kernel with each declared mistake writes; add a remark for a mistake that raises or misfits."""
    found = {}
    for name, suspect in kernel.suspects.items():
        try:
            wrote = called(kernel, f"suspect {name!r}", suspect, *kernel.asked(problem, target), problem=problem)
            shapes = {output: array.shape for output, array in dict(wrote).items()}
        except (RefsimError, TypeError, ValueError, AttributeError) as error:
            what = error.what if isinstance(error, RefsimError) else f"suspect {name!r} returns no arrays"
            remarks.append(f"{what}; it was left out")
            continue
        misfit = [output for output in shapes if output in want and shapes[output] != value_of(want[output]).shape]
        if misfit:
            remarks.append(f"suspect {name!r} returns {misfit[0]!r} in shape {shapes[misfit[0]]}; it was left out")
            continue
        found[name] = wrote
    return found


def _suspected(
    mismatch: Mismatch, got: Outputs, want: Mapping[str, Any], mistaken: Mapping[str, Mapping[str, NDArray[Any]]]
) -> Mismatch:
    """Return the mismatch with the declared mistakes whose outputs equal the kernel's, bit for bit."""
    name = mismatch.name
    right = want.get(name)
    if not mismatch or isinstance(right, Bounded) or right is None:
        return mismatch
    outputs = {mistake: each[name] for mistake, each in mistaken.items() if name in each}
    candidates = {mistake: each for mistake, each in outputs.items() if each.dtype.itemsize == right.dtype.itemsize}
    return replace(mismatch, suspects=explained(got[name], right, candidates))


def _changed(launcher: Launcher, buffer: Buffer, array: NDArray[Any], device: Device) -> Mismatch:
    """Return the comparison of a read-only upload with its buffer after the run.

    A large buffer of the simulated GPU is not read: a store to a read-only buffer is a fault before it is made.
    """
    unsigned = f"u{array.dtype.itemsize}"
    if device.is_simulated and array.nbytes >= LARGE_BYTES:
        nothing = np.zeros(0, unsigned)
        return replace(bits(nothing, nothing, name=f"{INPUT}{buffer.name}"), total=array.size, shape=(array.size,))
    return bits(launcher.read(buffer).view(unsigned), array.reshape(-1).view(unsigned), name=f"{INPUT}{buffer.name}")


def _owner(kernel: Kernel, problem: Any, name: str, shape: tuple[int, ...], watched: _WatchedLauncher) -> Owner | None:
    """Return a function from an element's index to its writer, observed or declared (`owner`); None without either.

    The rows of an output may lie further apart in its buffer than they are long, and a byte of it may hold several
    codes.
    """
    buffer, seen = watched.buffers.get(name), watched.findings().owner_of
    if seen is not None and buffer is not None and buffer.count:
        count = buffer.count
        return lambda *index: _written(seen(buffer, _in_buffer(index, shape, count)))
    declared = kernel.owner
    if declared is None:
        return None

    def declared_owner(*index: int) -> dict[str, int] | str:
        flat = int(np.ravel_multi_index(index, shape))
        try:
            block, thread = called(kernel, "owner", declared, problem, name, flat, problem=problem)
        except (RefsimError, TypeError, ValueError) as error:  # differing elements matter more than this error
            return error.what if isinstance(error, RefsimError) else f"owner of kernel {kernel.name}: {said(error)}"
        return {"block": block, "thread": thread}

    return declared_owner


def _in_buffer(index: tuple[int, ...], shape: tuple[int, ...], count: int) -> int:
    """Return which of the `count` elements of a buffer holds the element `index` of an output of shape `shape`."""
    total = math.prod(shape)
    if len(shape) == 2 and total <= count and count % shape[0] == 0:
        shape = (shape[0], count // shape[0])
    flat = int(np.ravel_multi_index(index, shape))
    return flat if total <= count else flat * count // total


def _written(place: Mapping[str, object]) -> "Mapping[str, object] | str":
    return place if "block" in place else f"never written, address {place['address']:#x}"
