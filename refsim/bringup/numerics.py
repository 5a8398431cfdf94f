"""Tensor-core arithmetic on a device: every instruction of its target against its profile, bit for bit, and
discovery."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from refsim.bringup import tensor_cores
from refsim.bringup.discovery import Discovery
from refsim.bringup.explain import (
    NARROWEST,
    DeviceAndModel,
    Dot,
    Products,
    Returned,
    difference,
    discovered,
    dot_at,
    explain,
    is_probed,
    known_rows,
    model_of,
    operand_classes,
    reproduces,
    said,
    unsteady,
)
from refsim.bringup.report import DIFFERS, Case, Difference, Task, hashed, outcome
from refsim.bringup.tensor_cores import TensorCoreInstruction
from refsim.device import Device
from refsim.errors import RefsimError
from refsim.numerics.profiles import profile
from refsim.numerics.rows import Profile
from refsim.silicon.tensor_probe import Codes
from refsim.testing.verdicts import PASS

WORDS = 1 << 12
"""Results of one class on a real GPU, at least one product; the simulated GPU computes a single product of each."""
_TRIED = 64


def fingerprint() -> str:
    """Return the hash of the files that decide the suite's results."""
    return hashed([tensor_cores.KERNEL_FILE])


def on_device(device: Device, instruction: TensorCoreInstruction) -> Products:
    """Return the instruction on a device, with a new launcher for each call."""
    prober = device.probing()

    def products(a: Codes, b: Codes, c: Codes | None) -> Codes:
        with prober.launcher(tensor_cores.KERNEL_FILE) as launcher:
            return tensor_cores.products(launcher, instruction, a, b, c)

    return products


def row_of(instruction: TensorCoreInstruction, target: str) -> Profile | None:
    """Return the profile of an instruction, or None where the chip's arithmetic is unknown."""
    try:
        return instruction.profile(target)
    except RefsimError as error:
        if error.code not in ("unknown-arithmetic", "unknown-target", "instruction-k"):
            raise
        return None


def tasks(device: Device) -> Sequence[Task]:
    """Return a case for each instruction; an instruction without a profile is probed instead."""
    words = 1 if device.is_simulated else WORDS
    found = []
    for instruction in tensor_cores.instructions(device.target):
        row, products = row_of(instruction, device.target), on_device(device, instruction)
        run = (
            partial(discover_case, instruction, None, products)
            if row is None
            else partial(compare_case, instruction, row, products, words)
        )
        found.append(Task(instruction.name, run))
    return found


def discovery_tasks(device: Device) -> Sequence[Task]:
    """Return the discovery of every instruction with float sums, in its narrowest shape: N has no influence."""
    return [
        Task(
            instruction.name,
            partial(discover_case, instruction, row_of(instruction, device.target), on_device(device, instruction)),
        )
        for instruction in tensor_cores.instructions(device.target)
        if instruction.n == NARROWEST and is_probed(instruction)
    ]


def compare_case(instruction: TensorCoreInstruction, row: Profile, products: Products, words: int) -> Case:
    """Return the case of every class of operands and C, about `words` results each, with a reduced difference."""
    per_class = max(1, words // (instruction.m * instruction.n))
    model, seen, compared = model_of(row, instruction), list[Returned](), 0
    differing: Counter[str] = Counter()
    worst, most = 0, -1
    for number, operands in enumerate(operand_classes(instruction, per_class)):
        got, want = (side(operands.a, operands.b, operands.c) for side in (products, model))
        seen.append(Returned(operands, got))
        compared += got.size
        wrong = np.count_nonzero(got != want, axis=(1, 2))
        for i in np.flatnonzero(wrong).tolist():
            differing[operands.labels[i]] += int(wrong[i])
        if int(wrong.sum()) > most:
            worst, most = number, int(wrong.sum())
    classes = {label for each in seen for label in each.operands.labels}
    probed = sum(label.startswith("feature") for label in classes)
    coverage = f"{len(classes) - probed} classes of operands and C, {per_class} products each; {probed} feature probes"
    if most == 0:
        return outcome(PASS, words=compared, coverage=coverage, note=str(row.evidence))
    pair = DeviceAndModel(products, model, instruction)
    found = unsteady(pair, seen[worst])
    if found is None:
        found = difference(pair, failing(seen[worst], model), explain(row, instruction, products, seen, worst))
    where = ", ".join(f"{label}: {count}" for label, count in differing.most_common(6))
    note = f"results that differ, by class: {where}{', ...' if len(differing) > 6 else ''}"
    return outcome(DIFFERS, words=compared, differing=differing.total(), coverage=coverage, note=note, difference=found)


def failing(seen: Returned, model: Products) -> list[Dot]:
    """Return outputs of a launch that differ from the model, spread over its products, fewest terms first."""
    operands = seen.operands
    want = model(operands.a, operands.b, operands.c)
    places = np.argwhere(seen.got != want)
    dots = [dot_at(operands, *place) for place in places[:: max(1, len(places) // _TRIED)].tolist()]
    return sorted(dots, key=lambda dot: sum(1 for x, y in zip(dot.a, dot.b, strict=True) if x and y))


def discover_case(instruction: TensorCoreInstruction, row: Profile | None, products: Products) -> Case:
    """Return the case of the probed parameters, and whether they reproduce random products on the device. Parameters
    that contradict the profile are a difference, explained where another chip's profile has them and its bits."""
    found = discovered(instruction, products)
    if found is None:
        what = f"sums of {instruction.a_format} in {instruction.d_format} are not probed"
        raise RefsimError("unsupported-format", what, rule="discovery probes products of floats in f32 and f16")
    candidates = [*([row] if row else []), *known_rows(row, instruction), _stand_in(instruction)]
    made = [each for each in (found.as_profile(other) for other in candidates) if each is not None]
    seen = [
        Returned(operands, products(operands.a, operands.b, operands.c)) for operands in operand_classes(instruction, 1)
    ]
    words = sum(each.got.size for each in seen)
    fitting = next((each for each in made if reproduces(each, instruction, seen)), None)
    note = _summary(found, row, made, fitting is not None, words)
    contradiction = _contradiction(found, row, instruction, seen) if row and fitting is not None else None
    status = PASS if fitting is not None and contradiction is None else DIFFERS
    return outcome(status, words=words, note=note, parameters=dict(found.parameters()), difference=contradiction)


def _contradiction(
    found: Discovery, row: Profile, instruction: TensorCoreInstruction, seen: Sequence[Returned]
) -> Difference | None:
    """Return the difference between probed parameters and the profile, or None."""
    against = found.contradicts(row)
    if not against:
        return None
    known = (other for other in known_rows(row, instruction) if not found.contradicts(other))
    matching = [other for other in known if reproduces(other, instruction, seen)]
    names = ", ".join(dict.fromkeys(f"{other.target} {other.unit}" for other in matching))
    words = f"matches {names}" if names else "no known chip"
    return Difference(tuple(against), str(found), said(row, instruction.k), words, bool(names))


def _stand_in(instruction: TensorCoreInstruction) -> Profile:
    """Return a profile of these formats, which supplies the parameters that probing did not show."""
    like = profile("sm_90", "mma.sync", "f16", "f16", instruction.d_format)
    return replace(like, a_formats=(instruction.a_format,), b_formats=(instruction.b_format,))


def _summary(found: Discovery, row: Profile | None, made: Sequence[Profile], fits: bool, words: int) -> str:
    """Return the text of a discovery: whether it fits the device and the profile, and the parameters not seen."""
    parts = (
        [] if fits else [f"does not reproduce {words:,} random and feature results" if made else "no row can say it"]
    )
    if row is not None:
        against = found.contradicts(row)
        parts.append(f"its row says otherwise: {', '.join(against)}" if against else "as its row says")
    parts += found.unseen
    return "; ".join(parts)
