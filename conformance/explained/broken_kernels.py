"""The broken kernels of this project: how each is built, which problems may show it, and what a user has beside its outputs."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from conformance import (
    test_attention,
    test_block_scale_quantize,
    test_gemm_mutants,
    test_group_quantize,
    test_linear_mutants,
    test_mutants,
    test_row_functions,
)
from conformance.block_faults import mutants as faults
from conformance.block_faults import trials as fault_trials
from conformance.explained import ways as of_user
from conformance.newcomer import trials as newcomer
from conformance.tolerance import mutants as tolerance
from conformance.tolerance.problems import KERNELS, problem_of, special_problems
from refsim.kernels import Kernel
from refsim.scaling.block_formats import block_format
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
from refsim.testing.matrices import Values

ROOT = Path(__file__).parents[2]
FIELD_BUGS = ROOT / "conformance" / "field_bugs"
gemm, linear = (load_kernel_file(bundled_kernels(f"{name}.py")) for name in ("gemm_1d2d", "linear_fp8_bindings"))
SHOWING = {
    "nan-becomes-zero": (
        gemm.Gemm1D2D(64, 128, 256, gemm.Values("gaussian", 1, ((300, 0x7F),)), gemm.Values("gaussian", 2)),
    ),
    "subnormals-flushed": (
        linear.LinearFp8Weight(16, 64, 128, linear.Values("gaussian", 1), linear.Values("log-uniform", 2)),
    ),
}
"""Problems with what the mistake is about: one NaN, weights of many magnitudes."""
LARGER: dict[str, Callable[..., Any]] = {
    "field-bugs/zero_residual": lambda recipe: recipe(
        4, 40, 1, x=Values("ones"), w=Values(patches=tuple((at, 0x8000) for at in range(0, 40, 2)))
    ),
    "field-bugs/nan_row": lambda recipe: recipe(
        40, Values("gaussian", 0, tuple((at, 0x7FC00000) for at in range(130, 5000, 600)))
    ),
    "newcomer/e4m3-subnormals-zero": lambda recipe: recipe(64, Values("log-uniform", 3)),
}
"""Problems of declared kernels whose own, of two to four elements that differ, are too little to name anything."""
SMALL = {tolerance.GEMM: (128, 320, 512), tolerance.LINEAR: (16, 144, 512)}
Problems = Callable[[Kernel], tuple[Any, ...]]


def of_corpus(kernel: Kernel) -> tuple[Any, ...]:
    return kernel.corpus


def larger_first(name: str) -> Problems:
    """The problem of LARGER, then the kernel's own."""
    return lambda kernel: (*((LARGER[name](kernel.recipe),) if name in LARGER else ()), *kernel.corpus)


@dataclass(frozen=True)
class Broken:
    """A kernel with a mistake: `made` builds it in a folder, `problems` of it are tried until one shows the mistake.

    `ways` are the operands of a problem for `explain_diff`; None: the kernel is asked about by its case. `also`: what a user has
    beside its outputs, asked first of those. `target` is "" where the kernel's PTX says it.
    """

    name: str
    made: Callable[[Path], Kernel]
    problems: Problems = of_corpus
    ways: of_user.Ways | None = None
    target: str = ""
    also: of_user.Ways | None = None


# ---- products and layers by their operands -----------------------------------------------------------------------------


def _of_tolerance() -> Iterator[Broken]:
    for each in tolerance.MUTANTS:
        if not each.edits:
            continue

        def made(folder: Path, mutant: tolerance.Mutant = each) -> Kernel:
            return replace(KERNELS[mutant.kernel], file=mutant.source(folder), suspects={})

        def problems(kernel: Kernel, mutant: tolerance.Mutant = each) -> tuple[Any, ...]:
            first = problem_of(mutant, mutant.shape or SMALL[mutant.kernel])
            return (*SHOWING.get(mutant.id, ()), first, *special_problems(mutant, first.entry))

        way = of_user.linear if each.kernel == tolerance.LINEAR else of_user.gemm
        yield Broken(f"tolerance/{each.id}", made, problems, way)


def _of_gemms() -> Iterator[Broken]:
    for each in test_gemm_mutants.MUTANTS:

        def made(folder: Path, values: Any = each.values) -> Kernel:
            return replace(test_gemm_mutants.broken(*values, folder), suspects={})

        is_whole = each.values[0] is test_gemm_mutants.SPLITS
        suite, way = ("splits", of_user.gemm) if is_whole else ("experts", of_user.experts)
        yield Broken(f"{suite}/{each.id}", made, of_corpus, way)


def _of_linear() -> Iterator[Broken]:
    for each in test_linear_mutants.MUTANTS:

        def made(folder: Path, values: Any = each.values) -> Kernel:
            (kernel, _), entry, *edit = values
            line = f"({entry.removeprefix(f'{kernel.name}_')},"
            file = test_linear_mutants.with_defect(kernel.file, *edit, folder, line)
            corpus = tuple(problem for problem in kernel.corpus if problem.entry == entry)
            return replace(kernel, file=file, entries=(entry,), suspects={}, corpus=corpus)

        yield Broken(f"linear/{each.id}", made, of_corpus, of_user.linear)


FAULTS_SHOWING = {
    "sixth-for-quotient": (
        test_block_scale_quantize.bindings.BlockQuantize(
            256, 1024, Values("gaussian", 1), "bf16", "nvfp4", "te_cpp_2d"
        ),
    ),
}
"""A problem with what the mistake is about: the recipe that divides by six, in enough blocks of 16 x 16."""


def _of_faults() -> Iterator[Broken]:
    for each in faults.MUTANTS:
        target = fault_trials.TARGETS[each.kernel]

        def made(folder: Path, mutant: faults.Mutant = each) -> Kernel:
            kernel, entry = fault_trials.kernel_of(mutant), getattr(fault_trials.problem_of(mutant), "entry", "")
            entries = tuple(name for name in kernel.entries if name == entry)
            run = fault_trials.changed_run(kernel, mutant)
            return replace(kernel, file=mutant.source(folder), entries=entries, run=run, suspects={})

        def problems(kernel: Kernel, mutant: faults.Mutant = each) -> tuple[Any, ...]:
            shows = FAULTS_SHOWING.get(mutant.id, ())
            return (*shows, fault_trials.problem_of(mutant), *fault_trials.special_problems(mutant))

        way = of_user.block_quantiser if each.kernel == faults.QUANTISER else partial(of_user.blocks, target)
        yield Broken(f"faults/{each.id}", made, problems, way, target)


# ---- quantisers by what they read ----------------------------------------------------------------------------------------


def edited(source: Path, headers: tuple[str, ...], right: str, wrong: str, others: tuple[str, ...], to: Path) -> Path:
    """A copy of a kernel's file and its headers with one text replaced and the lines `others` left out."""
    for name in (source.name, *headers):
        (to / name).parent.mkdir(exist_ok=True)
        text = (source.parent / name).read_text("utf-8").replace(right, wrong)
        for line in others:
            text = text.replace(line, "")
        (to / name).write_text(text, "utf-8")
    return to / source.name


def _of_quantisers() -> Iterator[Broken]:
    blocks, groups = test_block_scale_quantize, test_group_quantize
    headers = tuple(f"quantize/{file.name}" for file in (groups.bindings.SOURCE.parent / "quantize").iterdir())
    for each in blocks.MUTANTS:

        def made(folder: Path, values: Any = each.values) -> Kernel:
            kernel, number, right, wrong = values
            entries = tuple(name for name in kernel.entries if name.endswith("_bf16"))
            file = edited(blocks.bindings.SOURCE, headers, right, wrong, blocks.OTHERS, folder)
            corpus = [problem for problem in kernel.corpus if problem.wide == "bf16"]
            shows = sorted(corpus, key=lambda problem: problem.rows * problem.columns)[number]
            usual, *others = _normal(shows)
            return replace(kernel, file=file, entries=entries, suspects={}, corpus=(usual, shows, *others))

        yield Broken(f"block-quantisers/{each.id}", made, of_corpus, of_user.block_quantiser)
    for each in groups.MUTANTS:

        def grouped(folder: Path, values: Any = each.values) -> Kernel:
            kernel, number, right, wrong = values
            entries = tuple(name for name in kernel.entries if "_f16" in name)
            file = edited(groups.bindings.SOURCE, headers, right, wrong, groups.OTHERS, folder)
            corpus = tuple(problem for problem in kernel.corpus if problem.format == "f16")
            shows = groups.problems_of(kernel)[number]
            usual = replace(shows, rows=133, columns=9 * 128, x=groups.bindings.Values("log-uniform", 1))
            return replace(kernel, file=file, entries=entries, suspects={}, corpus=(usual, shows, *corpus))

        yield Broken(f"groups/{each.id}", grouped, of_corpus, of_user.group_quantiser)


def _normal(like: Any) -> Iterator[Any]:
    """Normal numbers: in several tiles of scales, and some rows under every other recipe."""
    width = block_format(like.format).width
    usual = "te" if like.format == "nvfp4" else "rceil"
    others = [name for name in test_block_scale_quantize.bindings.recipes_of(like.format) if name != usual]
    for rows, recipe in ((133, usual), *((8, name) for name in others)):
        x = fault_trials.Held(fault_trials.normal(0, rows, 9 * width))
        yield replace(like, rows=rows, columns=9 * width, x=x, recipe=recipe)


def _usual_first(problems: list[Any]) -> list[Any]:
    """The largest ones; behind eight of them two whose amax was given, without which nothing is ever too large."""
    ordered = sorted(problems, key=lambda each: -each.x.n)
    given = [each for each in ordered if getattr(each, "amax_bits", None) is not None]
    usual = [each for each in ordered if each not in given]
    return [*usual[:8], *given[:2], *usual[8:], *given[2:]]


def _of_tensors() -> Iterator[Broken]:
    for each in test_mutants.MUTANTS:

        def made(folder: Path, values: Any = each.values) -> Kernel:
            kernel, right, wrong = values
            file = edited(test_mutants.bindings.SOURCE, (), right, wrong, (), folder)
            half = [problem for problem in kernel.corpus if problem.x.format == "f16"]
            small = _usual_first([each for each in half if each.x.n < 10_000])
            return replace(kernel, file=file, suspects={}, corpus=tuple(small))

        yield Broken(f"tensors/{each.id}", made, of_corpus, of_user.tensor)


# ---- kernels by their case -----------------------------------------------------------------------------------------------


def _usual_rows(kernel: Kernel) -> tuple[Any, ...]:
    """Float32 rows of a user's length; of softmax with weights down to the smallest subnormals, and with sums up to infinity."""
    rows, normal = test_row_functions.rows, test_row_functions.rows.Values
    if kernel.name == "softmax":
        wide = (normal("gaussian", 11), "f32")
        return rows.Softmax(4, 700, *wide, scale=40.0), rows.Softmax(16, 300, *wide, scale=-21.0)
    return (rows.RmsNorm(4, 700, normal("gaussian", 11), normal("gaussian", 12), None, "f32"),)


def _of_rows() -> Iterator[Broken]:
    source = test_row_functions.rows.SOURCE
    for each in test_row_functions.MUTANTS:

        def made(folder: Path, values: Any = each.values) -> Kernel:
            kernel, number, right, wrong = values
            file = edited(source, ("special_functions.cuh",), right, wrong, (), folder)
            return replace(kernel, file=file, corpus=(kernel.corpus[number], *_usual_rows(kernel), *kernel.corpus))

        yield Broken(f"rows/{each.id}", made, of_corpus, of_user.rows)


ATTENTION = test_attention.attention
ATTENTION_SHOWING = {
    "subnormal-weights-kept": (
        ATTENTION.Attend(
            64,
            3,
            64,
            "bf16",
            False,
            *(ATTENTION.Values(fill, place + 1) for place, fill in enumerate(("gaussian", "gaussian", "log-uniform"))),
            6.0,
        ),
    ),
}
"""A problem with what the mistake is about: weights that are subnormal, of values that are large."""


def _of_attention() -> Iterator[Broken]:
    for each in test_attention.MUTANTS:

        def made(folder: Path, values: Any = each.values, each_id: str | None = each.id) -> Kernel:
            kernel, mutant = values[0], test_attention.edited(*values, folder)
            first = mutant.corpus[0]
            shows = ATTENTION_SHOWING.get(str(each_id), ())
            same = [each for each in kernel.corpus if (each.type, each.depth) == (first.type, first.depth)]
            return replace(mutant, corpus=(*shows, first, *same))

        yield Broken(f"attention/{each.id}", made, of_corpus, of_user.attention)


BESIDE = {
    **dict.fromkeys(("scale_of_block_zero", "padded_scales", "padded_batch", "straddled_scale"), of_user.multiplied),
    **dict.fromkeys(("scale_of_scale", "nan_row"), of_user.quantised_rows),
}
"""What a user has beside the outputs of a kernel of the field."""


def _of_declarations() -> Iterator[Broken]:
    """Exhibits and bugs of the field, as they are declared."""
    for kernel in load_kernel_file(bundled_kernels().parent / "exhibits" / "bindings.py").KERNELS:
        yield Broken(f"exhibits/{kernel.name}", partial(_as_it_is, kernel))
    for file in ("linear", "scaled"):
        for kernel in load_kernel_file(FIELD_BUGS / f"{file}.py").KERNELS:
            if not kernel.name.endswith(".right"):
                name = f"field-bugs/{kernel.name}"
                also = partial(BESIDE[kernel.name], kernel) if kernel.name in BESIDE else None
                yield Broken(name, partial(_as_it_is, kernel), larger_first(name), also=also)


def _as_it_is(kernel: Kernel, folder: Path) -> Kernel:
    return kernel


def _of_newcomer() -> Iterator[Broken]:
    for bug in newcomer.read_bugs():

        def made(folder: Path, bug: newcomer.Bug = bug) -> Kernel:
            shutil.copytree(newcomer.FOLDER / "kernels", folder / "kernels")
            shutil.copy(newcomer.FOLDER / f"{bug.kernel}.py", folder)
            source = folder / "kernels" / bug.file
            source.write_text(bug.applied(source.read_text("utf-8")), "utf-8")
            return newcomer.declared(bug.kernel, folder)[0]

        yield Broken(f"newcomer/{bug.id}", made, larger_first(f"newcomer/{bug.id}"))


@cache
def all_broken() -> dict[str, Broken]:
    """Every broken kernel by its name, suite after suite: "tolerance/bf16-cut"."""
    suites = (
        _of_tolerance,
        _of_gemms,
        _of_linear,
        _of_faults,
        _of_quantisers,
        _of_tensors,
        _of_rows,
        _of_attention,
        _of_declarations,
        _of_newcomer,
    )
    return {broken.name: broken for suite in suites for broken in suite()}
