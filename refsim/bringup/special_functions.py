"""The special functions on a device, one instruction a kernel, compared with the model and an H200's recording.

A recorded word stands for 2^20 inputs (a group), or for 2^22 pairs of a division; for 16 bits all results are stored.
Every result of a group on the device is compared with the model, and their digest with the recording. A simulated GPU
takes one group, or one chunk of a division, compared only with the model. With `exhaustive` a GPU makes the digests of
all 4,096 groups itself, by gpu/probes/special_functions.cu, and they are compared only with the recording.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.bringup.report import DIFFERS, Case, Difference, Task, hashed, outcome
from refsim.bringup.tensor_cores import KERNEL_FILE
from refsim.device import Device
from refsim.errors import RefsimError
from refsim.kernels import Launcher
from refsim.numerics.special import RECORDED_ON, SPECIAL_FORMS, SpecialForm
from refsim.silicon.scalar_probe import PROBE_THREADS, ScalarForm
from refsim.silicon.special_functions import (
    doubles,
    folded,
    folded_pairs,
    pairs,
    recorded,
    replayed,
    replayed_pairs,
    results,
)
from refsim.silicon.vectors import CHUNK, vectors_folder
from refsim.testing.verdicts import PASS

PROBES = KERNEL_FILE.parent / "special_functions.cu"
Words = NDArray[np.unsignedinteger[Any]]

# Groups: float32 from 1, -1, the subnormals, infinity with NaNs; float64 (a group is one sign and exponent) from 1, zeros,
# NaNs; a division: 16 divisors' exponents from 112 on with dividends from 1 on.
_GROUPS = {32: (0x3F8, 0xBF8, 0, 0x7F8), 64: (0x3FF, 0, 0x7FF)}
_SIMULATED = {32: (0x3F8,), 64: (0x3FF,)}
_OF_PAIRS, _CHUNK_OF_PAIRS = (127 * 16 + 7,), 127 << 10 | 126 << 2


def fingerprint() -> str:
    """Return the hash of the files that decide the suite's results."""
    folder = vectors_folder()
    return hashed([file for file in (PROBES, *folder.glob(f"{PROBES.stem}.*")) if file.is_file()])


def tasks(device: Device, exhaustive: str = "") -> Sequence[Task]:
    """Return a case for each instruction with recorded bits; `exhaustive` makes a GPU compute digests of all its
    inputs. Raises RefsimError `usage` for `exhaustive` on a simulated GPU."""
    if exhaustive and device.is_simulated:
        what = "--exhaustive goes with a GPU: a simulated one has no digests but the model's own"
        help = "leave --exhaustive out: some groups of inputs are compared with the model"
        raise RefsimError("usage", what, where=device.describe()["device"], help=help)
    compared = _whole if exhaustive else _sampled
    return [Task(form.instruction, partial(compared, device, form)) for form in SPECIAL_FORMS]


def _probe(form: SpecialForm) -> ScalarForm:
    """Return the probe of one instruction."""
    return ScalarForm.alone(form.instruction, (f"u{form.format.bits}",) * form.operands, form.format.bits)


@dataclass
class _Compared:
    """A form on a device; every result is compared with the model's."""

    form: SpecialForm
    launcher: Launcher
    words: int = 0
    differing: int = 0
    first: Difference | None = None

    def __call__(self, *given: Words) -> Words:
        """Return the device's results of patterns of any shape, and count the differences from the model."""
        operands = [np.ascontiguousarray(each).reshape(-1) for each in given]
        got, want = _probe(self.form).launch(self.launcher, operands, str(self.words)), self.form.words(*operands)
        wrong = np.flatnonzero(got != want)
        self.words, self.differing = self.words + want.size, self.differing + len(wrong)
        if len(wrong) and self.first is None:
            simplest = min(wrong.tolist(), key=lambda at: tuple(int(each[at]).bit_count() for each in operands))
            lines = tuple(
                f"operand {name} = {int(each[simplest]):#x}" for name, each in zip("ab", operands, strict=False)
            )
            self.first = Difference(lines, f"{int(got[simplest]):#x}", f"{int(want[simplest]):#x}")
        return got.reshape(given[0].shape)


def _sampled(device: Device, form: SpecialForm) -> Case:
    """Return the case of the instruction on some groups: results against the model, digests against the recording."""
    name, bits = form.instruction.replace(".", "_"), form.format.bits
    with device.probing().loaded(_probe(form).program(device.target), form.instruction) as launcher:
        seen, strayed = _Compared(form, launcher), list[str]()
        if form.operands == 2 and device.is_simulated:
            seen(*pairs(range(_CHUNK_OF_PAIRS, _CHUNK_OF_PAIRS + 1)))
            return _case(device, seen, strayed, f"{CHUNK:,} pairs, against the model")
        groups = _OF_PAIRS if form.operands == 2 else (_SIMULATED if device.is_simulated else _GROUPS).get(bits, ())
        if not groups:
            found = seen(np.arange(CHUNK, dtype=form.format.code_dtype))
            strayed += [] if np.array_equal(found, results(name)) else [f"{CHUNK:,} inputs"]
        for group in groups:
            strayed += [] if _digest(form, seen, group) == recorded(name)[group] else [f"group {group:#05x}"]
    what = f"groups {', '.join(f'{group:#05x}' for group in groups)} of 4,096" if groups else f"all {CHUNK:,} inputs"
    return _case(device, seen, strayed, f"{what}, against the model and the recording")


def _digest(form: SpecialForm, function: Callable[..., Words], group: int) -> int:
    """Return the recorded word of a group by a function on patterns."""
    if form.operands == 2:
        return replayed_pairs([function], group)[0]
    if form.format.bits == 64:
        return replayed(lambda words: function(doubles(words, lower=True).view(np.uint64)), group)
    return replayed(function, group)


def _case(device: Device, seen: _Compared, strayed: list[str], coverage: str) -> Case:
    """Return the case of one form from its comparisons."""
    is_recorded = device.target.startswith(RECORDED_ON)
    if not (seen.differing or strayed):
        return outcome(PASS, words=seen.words, coverage=coverage, note="" if is_recorded else f"as on {RECORDED_ON}")
    lines = (f"recorded results of {', '.join(strayed)}",)
    fault = Difference(lines, "otherwise", "as recorded", "the model agrees with the device, the recording does not")
    differing = max(seen.differing, 1)
    note = "" if is_recorded else f"recorded on {RECORDED_ON}; the unit of this chip may be another"
    return outcome(
        DIFFERS, words=seen.words, differing=differing, coverage=coverage, note=note, difference=seen.first or fault
    )


def _whole(device: Device, form: SpecialForm) -> Case:
    """Return the case of every input by digests made on the device. 16-bit forms, and forms with a differing digest,
    run alone."""
    if form.format.bits == 16:
        return _sampled(device, form)
    name, is_pair = form.instruction.replace(".", "_"), form.operands == 2
    chunks = 4 * CHUNK if is_pair else CHUNK
    with device.launcher(PROBES) as launcher:
        out = launcher.output(chunks, np.uint64, name="digests")
        launcher.launch(f"digest_{name}", (chunks,), (PROBE_THREADS,), [out, np.uint32(0)])
        found = launcher.read(out)
    wrong = np.flatnonzero((folded_pairs(found) if is_pair else folded(found)) != recorded(name))
    words = chunks * CHUNK
    coverage = f"all {'2^34 pairs' if is_pair else '2^32 inputs'}, by digests of 4,096 groups, against the recording"
    sampled = _sampled(device, form)
    if not len(wrong) and sampled.status == PASS:
        extent = f"{coverage}; {sampled.coverage}"
        return outcome(PASS, words=words + sampled.words, recorded=words, coverage=extent, note=sampled.note)
    if not len(wrong):
        return sampled
    difference = sampled.difference or Difference(
        (f"group {int(wrong[0]):#05x}",), "another digest", "the recorded one"
    )
    note = f"digests of {len(wrong)} of 4,096 groups differ"
    return outcome(DIFFERS, words=words, differing=len(wrong), coverage=coverage, difference=difference, note=note)
