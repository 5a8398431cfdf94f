"""The subject of an examination: a PTX text with test cases and the way to run one, of a kernel or of one launch."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode
from refsim.device.compile import compiled
from refsim.errors import RefsimError
from refsim.formats import format_named
from refsim.kernel_code import needs_a_gpu
from refsim.kernels import Kernel, Launcher
from refsim.ptx.text.parser import signatures
from refsim.ptx.text.source_names import entry_named
from refsim.render.cards import FieldsCard
from refsim.testing.campaign import drawn_from
from refsim.testing.outputs import checked
from refsim.testing.user_code import called, shortened

Outputs = Mapping[str, NDArray[Any]]
_SIMPLEST = 4
Smaller = Callable[[Any, Callable[[Any], bool]], Any]


@dataclass(frozen=True, repr=False)
class BlameSubject(FieldsCard):
    """A PTX text for a target, `problems` (test cases), and the function that runs one on a launcher.

    `words` returns its outputs as unsigned integers; `smaller(problem, shows)` returns a smaller problem that `shows`
    accepts too. `declared` are the entries that a declared kernel names; the text may hold further entries.
    """

    name: str
    text: str
    target: str
    problems: tuple[Any, ...]
    run: Callable[[Launcher, Any], Outputs]
    words: Callable[[Any, Outputs], Outputs]
    smaller: Smaller
    facts: Mapping[str, str]
    declared: tuple[str, ...] = ()

    @property
    def entries(self) -> tuple[str, ...]:
        """Return the entries under examination: the declared ones, else all of the text."""
        return self.declared or tuple(_signatures(self.text))

    def spelled(self, problem: Any) -> str:
        """Return a test case as short text."""
        return problem.spelled if isinstance(problem, GivenLaunch) else shortened(problem)


@dataclass(frozen=True)
class GivenLaunch:
    """One launch with its arguments: arrays are copied in and read back, scalars are NumPy scalars."""

    entry: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]
    shared_bytes: int = 0
    cluster: tuple[int, ...] | None = None
    cooperative: bool = False

    @property
    def spelled(self) -> str:
        """Return the launch as text: `scale, grid 2x1x1, block 128x1x1`."""
        grid, block = ("x".join(map(str, each)) for each in (self.grid, self.block))
        return f"{self.entry}, grid {grid}, block {block}"

    def run(self, launcher: Launcher) -> Outputs:
        """Launch the entry and return its arrays: argument N is the output "argN"."""
        buffers = {
            position: launcher.upload(each, name=f"arg{position}", writable=True)
            for position, each in enumerate(self.arguments)
            if np.ndim(each)
        }
        given = [buffers.get(position, each) for position, each in enumerate(self.arguments)]
        launcher.launch(
            self.entry,
            self.grid,
            self.block,
            given,
            self.shared_bytes,
            cluster=self.cluster,
            cooperative=self.cooperative,
        )
        return {buffer.name: launcher.read(buffer) for buffer in buffers.values()}

    def smaller(self) -> "Iterator[GivenLaunch]":
        """Yield the launch with one extent of grid or block reduced: to 1, to half, by one."""
        yield from (replace(self, grid=grid) for grid in _less(self.grid))
        yield from (replace(self, block=block) for block in _less(self.block))


def of_kernel(kernel: Kernel, target: str, *, problems: int = 4, seed: int = 0) -> BlameSubject:
    """Return the subject of a declared kernel: half of the test cases from its corpus, half drawn by its strategy.

    The text is compiled once, as `verify` compiles it. Raises RefsimError `needs-a-gpu` for a Python function, which
    has no PTX.
    """
    if kernel.call is not None:
        raise needs_a_gpu(kernel.code)
    made = compiled(kernel.code.required(), target)

    def run(launcher: Launcher, problem: Any) -> Outputs:
        formats = called(kernel, "outputs", kernel.output_formats, problem, problem=problem)
        outputs = called(kernel, "run", kernel.run, launcher, problem, problem=problem)
        return checked(kernel, "run", outputs, formats)

    def words(problem: Any, outputs: Outputs) -> Outputs:
        formats = kernel.output_formats(problem)
        any_nan = kernel.promise.nan == "any-payload"
        return {name: _words(outputs[name], formats[name] if any_nan else "") for name in formats}

    half = min(problems - problems // 2, len(kernel.corpus))
    chosen = tuple(kernel.corpus[(2 * at + 1) * len(kernel.corpus) // (2 * half)] for at in range(half))
    drawn = _drawn(kernel, problems - len(chosen), seed)
    return BlameSubject(
        kernel.name,
        made.text,
        target,
        (*chosen, *drawn),
        run,
        words,
        lambda problem, shows: _smallest(kernel, problem, shows),
        made.facts(kernel.code.label),
        kernel.entries,
    )


def of_launch(text: str, target: str, launch: GivenLaunch, *, name: str, compares: bool = True) -> BlameSubject:
    """Return the subject of one launch of a PTX text.

    Raises RefsimError `nothing-compared` where it `compares` and no argument is an array, `unknown-entry` where the
    text has no such entry.
    """
    entry_named(launch.entry, _signatures(text), text, name)
    if compares and not any(np.ndim(each) for each in launch.arguments):
        raise RefsimError("nothing-compared", f"{name} is given no array", help="--arg zeros:f32:64, or FILE.npy")
    return BlameSubject(
        name,
        text,
        target,
        (launch,),
        lambda launcher, problem: problem.run(launcher),
        lambda problem, outputs: {key: _words(each, "") for key, each in outputs.items()},
        _narrowed,
        {"kernel_file": name},
        (launch.entry,),
    )


def require_same_entries(subject: BlameSubject, edited: str, source: str) -> None:
    """Raise RefsimError `bad-file` where an edited copy lacks an entry of the text or changes its parameters.

    A copy whose third parameter has 8 bytes in place of 4 would receive arguments meant for another signature.
    """
    theirs = _signatures(edited)
    for entry, sizes in _signatures(subject.text).items():
        if theirs.get(entry) != sizes:
            took = "has no such entry" if entry not in theirs else f"takes {_sizes(theirs[entry])}"
            raise RefsimError(
                "bad-file",
                f"entry {entry} takes {_sizes(sizes)}; the edited copy {took}",
                source,
                "an edited copy is launched as the text is",
                "edit a copy of the text: --assemble-only --save-ptx FILE writes it",
            )


@lru_cache(maxsize=8)
def _signatures(text: str) -> dict[str, tuple[int, ...]]:
    """Return the sizes in bytes of the parameters of each entry."""
    functions = signatures(text).functions
    return {name: tuple(p.size for p in each.parameters) for name, each in functions.items() if each.is_entry}


def _sizes(sizes: tuple[int, ...]) -> str:
    return f"{' + '.join(map(str, sizes)) or 0} B"


def _less(extents: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield extents with one axis reduced: to 1, to half, by one."""
    for axis, extent in enumerate(extents):
        for less in dict.fromkeys((1, extent // 2, extent - 1)):
            if 0 < less < extent:
                yield (*extents[:axis], less, *extents[axis + 1 :])


def _narrowed(launch: GivenLaunch, shows: Callable[[Any], bool]) -> GivenLaunch:
    """Return the smallest launch that still shows, reduced step by step."""
    while (found := next((each for each in launch.smaller() if shows(each)), None)) is not None:
        launch = found
    return launch


def _words(array: NDArray[Any], format: str) -> NDArray[Any]:
    """Return an array as unsigned integers; with a format, every NaN becomes the same integer."""
    words = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    if not format or not (row := format_named(format)).has_nan:
        return words
    return np.where(np.isnan(decode(words, row)), words.dtype.type(np.iinfo(words.dtype).max), words)


def _drawn(kernel: Kernel, count: int, seed: int) -> tuple[Any, ...]:
    """Return `count` test cases of the kernel's strategy, equal for equal seeds; skip the first, which are the
    simplest.
    """
    import hypothesis

    found: list[Any] = []

    def note(problem: Any) -> None:
        found.append(problem)

    if count:
        search = _settings(_SIMPLEST + count, hypothesis.Phase.generate)(hypothesis.given(problem=kernel.problem)(note))
        with drawn_from(kernel):
            hypothesis.seed(seed)(search)()
    return tuple(found[-count:]) if count else ()


def _smallest(kernel: Kernel, problem: Any, shows: Callable[[Any], bool]) -> Any:
    """Return the smallest test case that Hypothesis finds to show; `problem` itself where it finds none."""
    import hypothesis

    best = [problem]

    class Shown(Exception):  # noqa: N818 (a signal, not an error)
        pass

    def attempt(problem: Any) -> None:
        if shows(problem):
            best[0] = problem
            raise Shown

    search = _settings(30, hypothesis.Phase.generate, hypothesis.Phase.shrink)(
        hypothesis.given(problem=kernel.problem)(attempt)
    )
    # Hypothesis calls a test case flaky that no longer shows once the time is over.
    with drawn_from(kernel), suppress(Shown, hypothesis.errors.Flaky):
        search()
    return best[0]


def _settings(count: int, *phases: Any) -> Any:
    """Return quiet Hypothesis settings for `count` examples without a database."""
    import hypothesis

    return hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=phases,
        verbosity=hypothesis.Verbosity.quiet,
    )
