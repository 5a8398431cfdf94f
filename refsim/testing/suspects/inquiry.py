"""The search after a failed campaign for the mistake that explains everything: in the outputs, then in the code."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refsim import ptx
from refsim.compare.readings import Codes, Misreading, readings
from refsim.conversions import decode
from refsim.device import Device
from refsim.device.compile import compiled
from refsim.errors import RefsimError
from refsim.formats import Format, format_named
from refsim.kernels import Bounded, Kernel
from refsim.testing.changed_device import ChangedDevice
from refsim.testing.suspects.feeding import Diet
from refsim.testing.suspects.inputs import misread, read_one_off
from refsim.testing.suspects.sizes import tail_left_out
from refsim.testing.suspects.suspicion import OutOfTimeError, Suspicion
from refsim.testing.suspects.trials import repaired
from refsim.testing.suspects.unheard import subnormals_unheard
from refsim.testing.suspects.witnesses import Witness, quickest_first, witnesses_of

LEAST = 3  # test cases needed to name a cause
Pair = tuple[Codes, Codes, Format | None]


def suspects_of(
    kernel: Kernel, device: Device, problem: Any, known: Sequence[Witness], *, seconds: float
) -> tuple[Suspicion, ...]:
    """Return the mistake that explains why the bits of `problem` differ, checked on other test cases; at most one.

    The kernel's PTX is edited and run on the simulated GPU, whatever `device` is; a kernel without code is judged by
    its outputs alone. Empty if nothing explains all. Raises OutOfTimeError if the time ended before all mistakes were
    tried.
    """
    started = time.process_time()
    deadline, is_late = started + seconds, False
    found: tuple[Suspicion, ...] = ()
    try:
        witnesses = witnesses_of(kernel, device, problem, known, seconds=seconds / 4)
        problems = [each.problem for each in witnesses]
        if len(problems) < LEAST and time.process_time() - started > seconds / 4:
            raise OutOfTimeError(0)
        if len(problems) < LEAST:
            return ()
        found = betrayed(Diet(kernel, device, deadline), problems)
        if found and not found[0].suspect.startswith("off"):
            return found
        # Do not run a kernel on changed inputs on a real GPU: it may fault.
        program = ptx.load(compiled(kernel.code, device.target).text, device.target)
        diet, quick = Diet(kernel, ChangedDevice(program, schedules=1), deadline), quickest_first(witnesses)
        if found:
            return read_one_off(diet, quick, found[0], seconds=_part(deadline, 0.4))
        failing, agreeing = ([each.problem for each in witnesses if each.failed == kind] for kind in (True, False))
        inquiries: tuple[Callable[[], tuple[Suspicion, ...]], ...] = (
            lambda: subnormals_unheard(diet, quick),
            lambda: misread(diet, quick, seconds=_part(deadline, 0.4)),
            lambda: tail_left_out(diet, failing, agreeing, seconds=_part(deadline, 0.4)),
        )
        for inquiry in inquiries:
            try:
                if found := inquiry():
                    return found
            except OutOfTimeError:
                is_late = True
        found = repaired(kernel, device.target, problems, seconds=_part(deadline, 1.0))
    except RefsimError:  # the simulator may lack what hardware runs; a fault explains no difference
        return found
    if is_late and not found:
        raise OutOfTimeError(0)
    return found


def _part(deadline: float, part: float) -> float:
    """Return a part of the remaining time in seconds."""
    return max(0.0, deadline - time.process_time()) * part


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
    rows = {name: format_named(format) if format else None for name, format in kernel.output_formats(problem).items()}
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
