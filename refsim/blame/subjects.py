"""What is examined: a PTX text with its problems, and how one of them is run. Of a declared kernel, or of one launch."""

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
from refsim.ptx.text.entry_names import entry_named
from refsim.ptx.text.parser import signatures
from refsim.render.cards import FieldsCard
from refsim.testing.draws import drawn_from
from refsim.testing.outputs import checked
from refsim.testing.user_code import called, shortened

Outputs = Mapping[str, NDArray[Any]]
_SIMPLEST = 4
Smaller = Callable[[Any, Callable[[Any], bool]], Any]


@dataclass(frozen=True, repr=False)
class BlameSubject(FieldsCard):
    """A PTX text for a target, problems, and how one is run on a launcher.

    `words` gives its outputs as unsigned words; `smaller(problem, shows)` looks for a smaller problem that `shows` as well.
    `declared` are the entries that a declared kernel names; a text may hold those of others.
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
        """The entries that are asked about: those that are declared, else all of the text."""
        return self.declared or tuple(_signatures(self.text))

    def spelled(self, problem: Any) -> str:
        return problem.spelled if isinstance(problem, GivenLaunch) else shortened(problem)


@dataclass(frozen=True)
class GivenLaunch:
    """One launch with its arguments: arrays are copied in and read afterwards, scalars are NumPy's."""

    entry: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]
    shared_bytes: int = 0
    cluster: tuple[int, ...] | None = None
    cooperative: bool = False

    @property
    def spelled(self) -> str:
        grid, block = ("x".join(map(str, each)) for each in (self.grid, self.block))
        return f"{self.entry}, grid {grid}, block {block}"

    def run(self, launcher: Launcher) -> Outputs:
        """Array N is the output argN."""
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
        """One extent less: 1, a half, one below."""
        yield from (replace(self, grid=grid) for grid in _less(self.grid))
        yield from (replace(self, block=block) for block in _less(self.block))


def of_kernel(kernel: Kernel, target: str, *, problems: int = 4, seed: int = 0) -> BlameSubject:
    """A declared kernel: half of the problems from all over its corpus, the others drawn by its own strategy.

    The text is that of `verify`, compiled once. RefsimError `needs-a-gpu` for a Python function, which has no PTX.
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
    """One launch of a PTX text. RefsimError `nothing-compared` where it `compares` and is given no array: nothing could differ;
    `unknown-entry` where the text has none of that name.
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
    """RefsimError `bad-file` where an edited copy lacks an entry of the text, or takes other parameters there.

    A copy whose third parameter has 8 bytes in place of 4 would be given what was meant for another signature.
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
    functions = signatures(text).functions
    return {name: tuple(p.size for p in each.parameters) for name, each in functions.items() if each.is_entry}


def _sizes(sizes: tuple[int, ...]) -> str:
    return f"{' + '.join(map(str, sizes)) or 0} B"


def _less(extents: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for axis, extent in enumerate(extents):
        for less in dict.fromkeys((1, extent // 2, extent - 1)):
            if 0 < less < extent:
                yield (*extents[:axis], less, *extents[axis + 1 :])


def _narrowed(launch: GivenLaunch, shows: Callable[[Any], bool]) -> GivenLaunch:
    while (found := next((each for each in launch.smaller() if shows(each)), None)) is not None:
        launch = found
    return launch


def _words(array: NDArray[Any], format: str) -> NDArray[Any]:
    """Unsigned words; with a format every NaN is the same one."""
    words = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    if not format or not (row := format_named(format)).has_nan:
        return words
    return np.where(np.isnan(decode(words, row)), words.dtype.type(np.iinfo(words.dtype).max), words)


def _drawn(kernel: Kernel, count: int, seed: int) -> tuple[Any, ...]:
    """Problems of the kernel's strategy, the same ones for a seed; not the first that are drawn, which are the simplest."""
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
    """The smallest problem that Hypothesis comes to; the one that is known where it finds none."""
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
    # What no longer shows when the time is over is flaky to Hypothesis.
    with drawn_from(kernel), suppress(Shown, hypothesis.errors.Flaky):
        search()
    return best[0]


def _settings(count: int, *phases: Any) -> Any:
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
