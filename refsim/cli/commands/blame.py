"""refsim blame: the simulator's bits and those of every ptxas and level, and the cause where they differ."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refsim.cli.arguments import kernels_field
from refsim.cli.delivery import Answer, answering, require_writable, save
from refsim.cli.devices import need
from refsim.cli.extents import Positive, Whole
from refsim.cli.launches import ARGUMENT_RULE, CUDA_SUFFIXES, Compilation, Extents, loaded, parse_argument
from refsim.cli.names import KERNEL_NAME, SM
from refsim.cli.options import Options, argument, option
from refsim.cli.progress import reporting
from refsim.errors import Kind, RefsimError
from refsim.render import Cell, Column, Document, Part, Table, Wording, facts_of

if TYPE_CHECKING:
    from refsim.blame import Blame, BlameSubject, Build, BuiltBy, Shrunk, Silicon
    from refsim.blame.examining import BuildRow

BUILDS = (
    Column("build"),
    Column("level", "-O", align="right"),
    Column("state", "words", strong=True),
    Column("problems", align="right", drop=2),
    Column("registers", align="right", drop=3),
    Column("from", "from", drop=5),
    Column("cubin_sha256", text=False),
    Column("first", "first difference or refusal", drop=1),
)


def said(found: "Blame", older: tuple[str, ...] = ()) -> Wording:
    """Return the verdict and its reasons; `older` holds lines about ptxas releases that cannot read the text."""
    from refsim.blame.examining import ASSEMBLED, BLAME_MEANING, NOT_BUILT

    subject, made = found.subject, [row for row in found.rows if row.state in (ASSEMBLED, NOT_BUILT)]
    lines = [f"{subject.name}: {found.verdict}: {BLAME_MEANING[found.verdict]}"]
    if found.verdict == "ptxas":
        lines += [f"  blamed: {', '.join(_named(row) for row in found.culprits)}"]
    if found.verdict in ("not-run", "simulated"):
        lines += [f"  {sum(row.cubin is not None for row in made)} of {len(made)} builds assembled"]
    elif found.rows:
        lines += [f"  {len(subject.problems)} test case{'s' if len(subject.problems) > 1 else ''} of one PTX"]
    if found.never_launched:
        lines += [f"  of its {len(subject.entries)} entries no test case launched {', '.join(found.never_launched)}"]
    lines += [f"  {line}" for line in older]
    lines += [f"  {line}" for text in found.because for line in text.splitlines()]
    return Wording(tuple(lines), facts(found))


def facts(found: "Blame") -> dict[str, Any]:
    """Return the facts of a verdict for JSON."""
    return {
        "subject": found.subject.name,
        "verdict": found.verdict,
        "blamed": [_named(row) for row in found.culprits],
        "because": list(found.because),
        "launched": sorted(found.launched),
        "never_launched": list(found.never_launched),
        "problems": [found.subject.spelled(problem) for problem in found.subject.problems],
        **found.facts,
    }


def table(found: "Blame") -> Table:
    """Return a table with an entry for each ptxas and optimization level."""
    total = len(found.subject.problems)
    rows: list[tuple[Cell, ...]] = []
    for row in found.rows:
        agreeing = f"{total - len(row.differing)} of {total}" if row.has_run else ""
        registers = "" if row.cubin is None or row.cubin.registers is None else row.cubin.registers
        sha256, brought = ("", "") if row.cubin is None else (row.cubin.sha256, row.cubin.assembler_from)
        level = "" if row.build.level is None else row.build.level
        label = f"{row.build.label}, edited" if row.build.is_edited and row.build.takes_any_text else row.build.label
        rows.append((label, level, row.state, agreeing, registers, brought, sha256, row.first))
    return Table(BUILDS, tuple(rows), key="builds")


def smallest(case: "Shrunk | None", seconds: float) -> Wording:
    """Return the smallest test case and PTX that still show the difference, ready to send to its maintainers."""
    if case is None:
        text = "not shrunk: the difference did not show again, or not without a finding of the simulator"
        return Wording((text,), {"shrunk": False}, is_beside=True)
    level = "" if case.build.level is None else f" -O{case.build.level}"
    lines = [
        f"smallest that shows it: {case.problem}, {case.candidate.instructions} instructions, {case.build.label}{level}",
        f"  {case.first}",
    ]
    if not case.build.takes_any_text:
        lines += ["  the machine code was given: only the launch could be shrunk"]
    elif not case.is_smallest:
        lines += [f"  the time ended first: --seconds {seconds:g} was the limit"]
    if case.build.is_edited and case.edited:
        lines += ["  edited to:", *(f"    {line.strip()}" for line in case.edited.splitlines())]
    lines += ["", *case.text.splitlines()]
    record = {
        "shrunk": True,
        **facts_of(case, "problem instructions=candidate.instructions build=build.label level=build.level first"),
        **facts_of(case, "is_smallest edited ptx=text cubin_sha256=cubin.sha256"),
    }
    return Wording(tuple(lines), record, key="smallest", is_beside=True)


def _named(row: "BuildRow") -> str:
    return row.build.label if row.build.level is None else f"{row.build.label} -O{row.build.level}"


PTX_SUFFIX = ".ptx"
MOST_PROBLEMS, MOST_REPEATS, LARGEST = 1000, 100, 256 << 20


def _values(_: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(parse_argument(position, text).value for position, text in enumerate(texts))


class BlameOptions(Options):
    """The options of `refsim blame`."""

    kernel: str = argument(type=KERNEL_NAME)
    entry: str | None = argument()
    ptxas: tuple[Path, ...] = option("Also use this ptxas (or folder).", metavar="PATH")
    only_ptxas: bool = option("Use only the ptxas of --ptxas.")
    levels: tuple[int, ...] = option(
        "Level of ptxas, -O0 to -O3 (default: all).", "--opt", type=Whole(0, 3), metavar="0-3"
    )
    edited: Path | None = option("Also run this cubin or PTX and compare it with the kernel's.")
    problems: int = option("Test cases of a declared kernel.", type=Whole(1, MOST_PROBLEMS), default=4)
    seed: int = option("Seed of the random test cases.", type=Whole(0), default=0)
    repeats: int = option("Runs of each cubin.", type=Whole(1, MOST_REPEATS), default=3)
    seconds: float = option("Time limit of the search for the smallest PTX.", type=Positive(), default=120.0)
    no_shrink: bool = option("Do not search for the smallest PTX.")
    save_ptx: Path | None = option("Write the smallest PTX to FILE; without a GPU, the whole PTX.")
    assemble_only: bool = option("Only show which ptxas accepts the PTX. Needs no GPU.")
    grid: tuple[int, ...] | None = option("Blocks in the grid of ENTRY: 4 or 2x3 (default: 1).", type=Extents())
    block: tuple[int, ...] | None = option("Threads in a block of ENTRY: 256 or 16x16 (default: 32).", type=Extents())
    cluster: tuple[int, ...] | None = option("Blocks in a cluster of ENTRY: 2 or 2x2.", type=Extents())
    cooperative: bool = option("Launch ENTRY cooperatively: all blocks are resident at once.")
    shared: int = option("Bytes of dynamic shared memory of ENTRY.", type=Whole(0), default=0)
    arguments: tuple[Any, ...] = option(ARGUMENT_RULE, "--arg", metavar="ARG", callback=_values)
    files: tuple[Path, ...] = kernels_field()
    device_name: str = option("cuda, cuda:1 or cuda:bindings; sim needs no GPU.", "--device", default="cuda")
    target: str | None = option("Architecture (default: the GPU's; without one the PTX's or sm_90a).", type=SM)
    compilation: Compilation = Compilation()

    @property
    def is_simulated(self) -> bool:
        """Return whether the kernel runs on the simulated GPU alone."""
        return self.device_name == "sim" and not self.assemble_only

    @property
    def describes_a_launch(self) -> bool:
        """Return whether an option of a launch or of a compiler was given."""
        launch = (self.grid, self.block, self.cluster, self.cooperative, self.shared, self.arguments)
        return self.entry is not None or any(launch) or self.compilation != Compilation()


@answering()
def command(asked: BlameOptions) -> Answer:
    """Find out why KERNEL's bits on a GPU differ from the simulator's: ptxas, the model, or a race.

    KERNEL is a declared kernel, or FILE.ptx or FILE.cu with ENTRY and a launch. refsim assembles its PTX with every ptxas and
    optimization level, and the GPU runs each build. If builds disagree, ptxas is the cause, and refsim searches for the
    smallest PTX that shows it. If all builds agree on another result, the model is the cause. If results change from run to
    run, a race is the cause.

    The exit code is 0 if every element equals the simulator's, 1 if a cause is found, and 5 if bits are unspecified or no GPU
    ran. Without a GPU, --device sim looks for races and other faults, lists unspecified bits, and runs an edited PTX.

    \b
      refsim blame linear --ptxas /opt/cuda-13.5/bin/ptxas
      refsim blame scale.ptx scale --grid 4 --block 64 \\
          --arg x.npy --arg zeros:f32:256 --save-ptx small.ptx
      refsim blame fp8_quantize --edited mine.cubin
      refsim blame scale.ptx scale --block 64 --arg x.npy \\
          --arg zeros:f32:64 --device sim --edited mine.ptx
      refsim blame linear --assemble-only --as json
    """
    need("testing", "hypothesis")
    from refsim.blame import examined, examined_without_gpu, shrunk

    if asked.save_ptx is not None:
        require_writable(asked.save_ptx)
    silicon = None if asked.assemble_only or asked.is_simulated else _silicon(asked.device_name, asked.target)
    subject = _subject(asked, asked.target if silicon is None else silicon.target)
    readers, older = _readers(subject.text, asked)
    text, more = _edited(asked.edited, [each for each in readers if each.level is not None], subject)
    builds: list[Build] = [*readers, *more]
    with reporting(sys.stderr) as report:
        if asked.is_simulated:
            if more and text is None:
                raise _needs_a_gpu(f"--edited {asked.edited}")
            found = examined_without_gpu(subject, builds, edited=text, on_progress=report)
        else:
            found = examined(subject, builds, silicon, edited=text, repeats=asked.repeats, on_progress=report)
        shrunk_on = None if asked.no_shrink or not found.culprits else silicon
        case = None if shrunk_on is None else shrunk(found, shrunk_on, seconds=asked.seconds, on_progress=report)
    parts: list[Part] = [said(found, older), *([table(found)] if found.rows else [])]
    parts += [smallest(case, asked.seconds)] if shrunk_on is not None and found.is_shrinkable else []
    if asked.save_ptx is not None and (case is not None or silicon is None):
        save(asked.save_ptx, (subject.text if case is None else case.text).encode())
    return Answer(Document(tuple(parts), f"blame of {asked.kernel}"), found.exit_code)


def _readers(text: str, asked: BlameOptions) -> "tuple[tuple[BuiltBy, ...], tuple[str, ...]]":
    """Return the builds that can read a text, and lines about the others. The simulated GPU needs none."""
    from refsim.blame import builds_of, readers_of

    try:
        return readers_of(text, builds_of(asked.ptxas, asked.levels or (0, 1, 2, 3), only_named=asked.only_ptxas))
    except RefsimError as error:
        if error.kind is not Kind.MISSING or not asked.is_simulated:
            raise
        return (), (f"not assembled: {error.what}",)


def _silicon(name: str, target: str | None) -> "Silicon":
    """Return a real GPU. The simulator cannot run machine code."""
    from refsim import device

    try:
        opened: Any = device.open(name, target)
    except RefsimError as error:
        if error.kind is Kind.MISSING:
            error.help = (
                "--device sim finds races and other faults without a GPU, --assemble-only asks each ptxas alone"
            )
        raise
    if opened.is_simulated:
        raise _needs_a_gpu(f"--device {name}")
    silicon: Silicon = opened
    return silicon


def _needs_a_gpu(where: str) -> RefsimError:
    what = "the simulated GPU executes PTX, and not what ptxas makes of it"
    help = "--device cuda; --device sim with a PTX, or --assemble-only"
    return RefsimError("needs-a-gpu", what, where, help=help, kind=Kind.MISSING)


def _subject(asked: BlameOptions, target: str | None) -> "BlameSubject":
    """Return the test cases of a declared kernel, or one launch of a file."""
    from refsim.blame import GivenLaunch, of_kernel, of_launch
    from refsim.ptx import DEFAULT_TARGET

    path = Path(asked.kernel)
    if path.suffix not in (PTX_SUFFIX, *CUDA_SUFFIXES):
        if asked.describes_a_launch:
            raise RefsimError("usage", "an entry or a launch of a declared kernel", asked.kernel, "it launches itself")
        from refsim.testing import kernel_named

        kernel, target = kernel_named(asked.kernel, asked.files or None), target or DEFAULT_TARGET
        return of_kernel(kernel, target, problems=asked.problems, seed=asked.seed)
    if asked.entry is None:
        raise RefsimError(
            "usage", f"{path.name} without an entry", asked.kernel, help=f"refsim blame {path.name} ENTRY --arg ..."
        )
    program = loaded(path, target, asked.entry, asked.compilation)
    grid, block = asked.grid or (1,), asked.block or (32,)
    launch = GivenLaunch(asked.entry, grid, block, asked.arguments, asked.shared, asked.cluster, asked.cooperative)
    return of_launch(program.text, program.target, launch, name=path.name, compares=not asked.assemble_only)


def _edited(path: Path | None, builds: "list[Build]", subject: "BlameSubject") -> "tuple[str | None, list[Build]]":
    """Return the edited PTX with one build of it for each other build, or the given machine code as a build."""

    from refsim.blame import require_same_entries
    from refsim.blame.builds import ELF, BuiltBy, GivenCubin
    from refsim.files.access import checked_path, read_whole

    if path is None:
        return None, []
    content = read_whole(checked_path(path), LARGEST, "a cubin or PTX")
    if content.startswith(ELF):
        return None, [GivenCubin(path, content)]
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = ""
    if ".version" not in text:
        rule = "a cubin is an ELF file, a PTX a text with its .version"
        raise RefsimError("bad-file", "neither a cubin nor PTX", str(path), rule, kind=Kind.UNREADABLE)
    require_same_entries(subject, text, str(path))
    return text, [replace(each, is_edited=True) for each in builds if isinstance(each, BuiltBy)]
