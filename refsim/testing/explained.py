"""The reason why a kernel's outputs differ on one test case: declared mistakes, the outputs alone, then its code."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from refsim import ptx
from refsim.causes.alone import between_outputs, is_nan_alone
from refsim.causes.effort import WORK, Clock, Limit
from refsim.causes.explanation import DiffExplanation, DiffOutcome
from refsim.causes.search import CauseSearch, Named
from refsim.compare.code_line import codes_of
from refsim.computations.engine import Computation
from refsim.computations.ways import Cause, Codes, DoesNotApplyError, Family
from refsim.conversions import decode, encode
from refsim.device import Device
from refsim.device.compile import compiled
from refsim.errors import RefsimError
from refsim.formats import E8M0, F32, Format, array_type
from refsim.kernels import Bounded, Kernel, Outputs, Promise
from refsim.sources import PTX
from refsim.testing.changed_device import ChangedDevice
from refsim.testing.computed import of_computation
from refsim.testing.suspects.budget import Budget
from refsim.testing.suspects.feeding import Diet
from refsim.testing.suspects.inquiry import suspects_of
from refsim.testing.suspects.suspicion import OutOfTimeError, Suspicion
from refsim.testing.suspects.unread import unread
from refsim.testing.suspects.witnesses import Witness, witnesses_of

DECLARED = "a mistake that the kernel declares"
CONCLUSIVE = {Family.ORDER, Family.TRANSPOSED, Family.SWIZZLE, Family.SHIFTED, Family.PACKING, Family.SCALE_RULE}
"""The families of shapes that may be a cause; other shapes, as a bound of values, may come from many mistakes."""
CONFIRMED = 3
"""The test cases on which a shape is looked for; it must be seen on at least two."""
LEAST_SECONDS = 1.0
NUMBER = re.compile(r"\d[\d.]*( \d[\d.]*)*")
CALLED_OTHERWISE = {"infinity": Family.SATURATION, "NaN": Family.NAN, "off": Family.SHIFTED}
"""The family of a candidate cause by the first word of its name, where the two names differ."""
OF_SHAPES, OF_CODE, OF_UNREAD, OF_CASES = 0.3, 0.75, 0.1, 0.25
"""The parts of the time for the shape of one output, edits and other inputs, inputs unread, and more test cases."""
LEAST_OF_A_FACTOR = 64
LOOSE = re.compile("in another order|another factor: one factor for each|one number was added to each")
"""Words of a shape that leave open what many numbers or places are."""
Report = Callable[[str, int, int], None]


def explain_problem(
    kernel: Kernel, problem: Any, device: Device, *, seconds: float = 10.0, on_progress: Report | None = None
) -> dict[str, DiffExplanation]:
    """Explain why each output of a kernel differs from its oracle on one test case; keys are the outputs' names.

    refsim tries the mistakes that the kernel declares (`suspects=`), then causes that the outputs show alone, then the
    candidate causes of docs/when-it-fails.md. For these the kernel runs on the simulated GPU with other inputs, edits
    of its code and other test cases. `seconds` limits the work of it, which is counted: about that much processor time.
    A cause is named only if it explains every bit; an edit of the code must explain every bit of all test cases tried.
    An output without differences has the outcome "equal". Raises RefsimError if the run ends in a fault. Source:
    defined here; docs/when-it-fails.md lists the edits.
    """
    found = _without_edits(Diet(kernel, device), problem, seconds, on_progress)
    return found | _of_code(kernel, device, problem, seconds * OF_CODE, found)


def likely_causes(
    kernel: Kernel, device: Device, problem: Any, known: Sequence[Witness], *, seconds: float
) -> tuple[Suspicion, ...]:
    """Return the cause that `refsim verify` reports: at most one, and none if nothing explains all test cases.

    The choices of `Kernel(computes=...)` come first, then edits of the code and changed inputs. Where they find
    nothing, the outputs decide, if they tell where elements went or which given number was taken, in the same way on
    several test cases. Raises OutOfTimeError if the work of `seconds` ended and nothing was found.
    """
    if kernel.computes is not None and seconds >= LEAST_SECONDS:
        known = witnesses_of(kernel, device, problem, known, budget=Budget(OF_CASES * seconds))
        if chosen := _by_computation(Diet(kernel, device), problem, known):
            return chosen
    try:
        found, ended = suspects_of(kernel, device, problem, known, seconds=seconds), None
    except OutOfTimeError as error:
        found, ended = (), error
    found = found or (_by_shape(Diet(kernel, device), problem, known) if seconds >= LEAST_SECONDS else ())
    if ended and not found:
        raise ended
    return found


MOST_ELEMENTS = 1 << 15
"""Elements of the largest test case on which the choices of a computation are tried."""


def _by_size(known: Sequence[Witness], problem: Any, *, failed: bool) -> list[Any]:
    """Return a few other test cases that failed, or that passed, large ones first."""
    fitting = [each for each in known if each.failed is failed and each.elements <= MOST_ELEMENTS]
    by_size = sorted(fitting, key=lambda each: -each.elements)
    return [each.problem for each in by_size if each.problem != problem][: CONFIRMED - 1]


def _failing(problem: Any, known: Sequence[Witness]) -> list[Any]:
    """Return the test case and the smallest others that failed."""
    failing = [each for each in known if each.failed and each.problem != problem]
    return [problem, *(each.problem for each in sorted(failing, key=lambda each: each.elements)[: CONFIRMED - 1])]


def _by_computation(diet: Diet, problem: Any, known: Sequence[Witness]) -> tuple[Suspicion, ...]:
    """Return the choices of `Kernel(computes=...)` that reproduce every output of all failing test cases tried.

    They are looked for in the largest of these cases. They must also reproduce the outputs of cases that passed.
    """
    if diet.kernel.computes is None:
        return ()
    cases = [*_by_size(known, problem, failed=True), problem]
    right = _by_size(known, problem, failed=False)
    try:
        for case in cases:
            wrong = diet.wrong(case)
            named = of_computation(diet.kernel, case, diet.device.target, diet.outputs(case), wrong, WORK)
            if all(name in named for name, marks in wrong.items() if marks.any()):
                break
        else:
            return ()
        others = [each for each in (*right, *cases) if each is not case]
        shared: dict[str, dict[str, Named]] = {name: {} for name in named}
        for name, each in named.items():
            for one in each.named:
                fitting = [one, *(_as_in(diet, name, other, one) for other in others)]
                if all(fitting) and (last := fitting[-1 if problem in others else 0]):
                    shared[name][str(last)] = last
    except RefsimError:
        return ()
    if not shared or not all(shared.values()):
        return ()
    first = {name: next(iter(each.values())) for name, each in shared.items()}
    return tuple(
        Suspicion(
            str(one.causes[0].family),
            "; or ".join([" and ".join(cause.says for cause in one.causes), *_alternatives(one, shared)]),
            tuple(f"output {name}" for name, other in first.items() if str(other) == str(one)),
            len(cases),
        )
        for one in {str(each): each for each in first.values()}.values()
    )


def _alternatives(named: Named, shared: Mapping[str, Mapping[str, Named]]) -> list[str]:
    """Return a few other causes that no test case tells from `named`, except those that differ in numbers alone."""
    same = next(each for each in shared.values() if str(named) in each)
    others = {NUMBER.sub("#", says): says for says in reversed(list(same))}
    return [says for words, says in reversed(list(others.items())) if words != NUMBER.sub("#", str(named))][:2]


def _as_in(diet: Diet, name: str, case: Any, named: Named) -> Named | None:
    """Return causes as another test case calls them, where they reproduce its outputs in every bit.

    A text may hold other numbers there, as of columns.
    """
    computed, outputs = diet.kernel.computed(case, diet.device.target), diet.outputs(case)
    subject = computed.get(name, computed.get(""))
    if subject is None or isinstance(subject, np.ndarray):
        return named
    codes, alike = subject.codes(subject.usual), [_alike(subject, each) for each in named.causes]
    if any(marks.any() for marks in diet.wrong(case).values()):
        names = [name] if name in computed else list(subject.apart(codes))
        codes = subject.together({each: codes_of(np.asarray(outputs[each])) for each in names})
    elif not all(alike):  # a choice that changes nothing there is not offered
        return named
    for causes in product(*alike):
        same = Named(causes, 0, is_whole=True)
        plan = same.plan_from(subject.usual)
        with suppress(DoesNotApplyError):
            if CauseSearch(subject, plan, codes, Limit(Clock(False), WORK)).holds(plan):
                return same
    return None


def _alike(subject: Computation, cause: Cause) -> list[Cause]:
    """Return the cause of those words; otherwise those that differ in numbers alone."""
    causes = (*subject.causes(), *subject.far_causes)
    of_aspect = [each for each in causes if each.aspect == cause.aspect and each.family == cause.family]
    same = [each for each in of_aspect if each.says == cause.says]
    return same or [each for each in of_aspect if NUMBER.sub("#", each.says) == NUMBER.sub("#", cause.says)]


def _by_shape(diet: Diet, problem: Any, known: Sequence[Witness]) -> tuple[Suspicion, ...]:
    """Return the shape of the difference of every wrong output that several test cases share."""
    try:
        shapes = [_shapes_of(diet, each) for each in _failing(problem, known)]
    except RefsimError:
        return ()
    said = shapes[0]
    alike = [{name: NUMBER.sub("#", words) for name, words in each.items()} for each in shapes]
    if len(shapes) < CONFIRMED - 1 or not all(each and each.items() <= alike[0].items() for each in alike):
        return ()
    found = []
    for words in dict.fromkeys(said.values()):
        suspect, says = words.split(": ", 1)
        places = tuple(f"output {name}" for name in said if said[name] == words)
        found.append(Suspicion(suspect, says, places, len(shapes)))
    return tuple(found)


def _shapes_of(diet: Diet, problem: Any) -> dict[str, str]:
    """Return the conclusive shape of each wrong output; nothing if an output has none."""
    found = _without_edits(diet, problem, LEAST_SECONDS, None, declares=False)
    said = {}
    for name, each in found.items():
        named = [cause for one in each.named for cause in one.causes]
        if each.outcome is DiffOutcome.EXPLAINED and len(named) == 1 and _is_conclusive(named[0]):
            said[name] = str(named[0])
        elif each.outcome is not DiffOutcome.EQUAL:
            return {}
    return said


def _is_conclusive(cause: Cause) -> bool:
    """Return whether a shape tells where elements went, or which given number was taken."""
    says = str(cause)
    return (
        cause.family in CONCLUSIVE
        and not LOOSE.search(says)
        and (cause.family is not Family.SCALE_RULE or bool(re.search(r"\b(input|output) \w", says)))
    )


def _without_edits(
    diet: Diet, problem: Any, work: float, on_progress: Report | None, declares: bool = True
) -> dict[str, DiffExplanation]:
    """Return why outputs differ, from declared mistakes and from the outputs; `work` limits each search."""
    kernel, device = diet.kernel, diet.device
    got, want, wrong = diet.outputs(problem), diet.expected(problem), diet.wrong(problem)
    formats = kernel.output_formats(problem)
    found: dict[str, DiffExplanation] = {}
    computed = of_computation(kernel, problem, device.target, got, wrong, work, on_progress)
    for name, marks in wrong.items():
        count, size = int(marks.sum()), int(marks.size)
        outcome = DiffOutcome.UNEXPLAINED if count else DiffOutcome.EQUAL
        found[name] = DiffExplanation(outcome, count, size, size)
        right = want[name]
        if not count or isinstance(right, Bounded):
            continue
        one, other = (codes_of(np.asarray(each)).reshape(marks.shape) for each in (got[name], right))
        row = array_type(formats[name] or str(np.asarray(right).dtype))
        form = row if formats[name] and isinstance(row, Format) else None
        if form and kernel.promise is Promise.BITWISE_EXCEPT_NAN_PAYLOAD:
            one, other = (_of_one_nan(each, form) for each in (one, other))
        is_bare = form is not None and is_nan_alone(one, form)
        declared = () if is_bare or not declares else _declared(kernel, problem, device, name, one, count)
        if declared:
            found[name] = DiffExplanation(DiffOutcome.EXPLAINED, count, size, size, declared)
        elif name in computed:
            found[name] = computed[name]
        else:
            limit, known = Limit(Clock(False), work * OF_SHAPES), _scales_of(diet, problem, name)
            found[name] = between_outputs(one, other, row, limit, on_progress, is_right=True, known=known)
    leave_out_chance(found)
    return found


def _scales_of(diet: Diet, problem: Any, name: str) -> dict[str, Any]:
    """Return what may hold the scales of an output: floats and codes of E8M0 among the inputs and the other outputs."""
    arrays = {f"input {each}": array for each, array in diet.uploads(problem).items()}
    formats = diet.kernel.output_formats(problem)
    for each, array in diet.expected(problem).items():
        if each != name and not isinstance(array, Bounded) and array_type(formats[each] or "f32") in (F32, E8M0):
            held = np.asarray(array)
            arrays[f"output {each}"] = held.view(np.float32) if held.dtype == np.uint32 else held
    return {each: array for each, array in arrays.items() if array.dtype in (np.float32, np.float16, np.uint8)}


def _is_open(found: DiffExplanation) -> bool:
    """Return whether an output has no name, or one that leaves open what many numbers or places are."""
    named = [cause for each in found.named for cause in each.causes]
    return found.outcome is DiffOutcome.UNEXPLAINED or any(LOOSE.search(str(cause)) for cause in named)


def _of_one_nan(codes: Codes, format: Format) -> Codes:
    """Return the codes with every NaN replaced by one code, for contracts that allow any NaN payload."""
    values = np.asarray(decode(codes, format))
    is_nan = np.isnan(values)
    return (
        np.where(is_nan, encode(np.full_like(values, np.nan), format), codes).astype(codes.dtype)
        if is_nan.any()
        else codes
    )


def leave_out_chance(found: dict[str, DiffExplanation]) -> None:
    """Withdraw scale rules for fewer than 64 elements while another output is unexplained: chance may fit."""
    if all(each.outcome is not DiffOutcome.UNEXPLAINED for each in found.values()):
        return
    for name, each in found.items():
        families = {cause.family for one in each.named for cause in one.causes}
        if each.size < LEAST_OF_A_FACTOR and families == {Family.SCALE_RULE}:
            found[name] = replace(each, outcome=DiffOutcome.UNEXPLAINED, named=())


def _declared(kernel: Kernel, problem: Any, device: Device, name: str, got: Codes, count: int) -> tuple[Named, ...]:
    """Return the kernel's declared mistakes that write exactly these bits."""
    fitting = []
    for says, suspect in kernel.suspects.items():
        wrote: Outputs = suspect(*kernel.asked(problem, device.target))
        made = wrote.get(name)
        if made is None or made.shape != got.shape or made.dtype.itemsize != got.dtype.itemsize:
            continue
        if (codes_of(np.asarray(made)).reshape(got.shape) == got).all():
            fitting.append(Named((Cause(DECLARED, says, "", None, PTX["st"]),), count, is_whole=True))
    return tuple(fitting)


def _of_code(
    kernel: Kernel, device: Device, problem: Any, seconds: float, found: Mapping[str, DiffExplanation]
) -> dict[str, DiffExplanation]:
    """Return, for every output without a tight explanation, the cause in the code or in the reading of inputs."""
    unsaid = [name for name, each in found.items() if _is_open(each)]
    if not unsaid:
        return {}
    thorough = any(each.outcome is DiffOutcome.UNEXPLAINED for each in found.values())
    untried = 0
    suspicions: tuple[Suspicion, ...] = ()
    try:
        suspicions = suspects_of(kernel, device, problem, (), seconds=seconds, thorough=thorough)
    except OutOfTimeError:
        untried = 1
    if not suspicions and thorough:
        with suppress(RefsimError, OutOfTimeError):  # the simulator may lack what hardware runs
            program = ptx.load(compiled(kernel.code, device.target).text, device.target)
            unheard = unread(
                Diet(kernel, ChangedDevice(program, schedules=1)), problem, budget=Budget(seconds * OF_UNREAD)
            )
            suspicions = (unheard,) if unheard else ()
    said = {}
    for name in unsaid:
        each = found[name]
        if suspicions:
            named = tuple(_named(suspicion, each.differing) for suspicion in suspicions)
            said[name] = replace(each, outcome=DiffOutcome.EXPLAINED, named=named)
        elif each.outcome is DiffOutcome.UNEXPLAINED:
            said[name] = replace(each, untried=each.untried + untried)
    return said


def _named(suspicion: Suspicion, count: int) -> Named:
    family = CALLED_OTHERWISE.get(suspicion.suspect.split(" ")[0].split("-")[0], suspicion.suspect)
    places = ", ".join(suspicion.places)
    tried = "the test case" if suspicion.problems == 1 else f"all {suspicion.problems} test cases tried"
    says = f"{suspicion.says}, {places}, on {tried}"
    return Named((Cause(family, says, "", None, PTX["the kernel's own code"]),), count, is_whole=True)
