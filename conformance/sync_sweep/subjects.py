"""Kernels of ours whose synchronisation is swept, each with the problems that it is tried on: small, every stage used again."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from refsim.kernels import Kernel
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
from refsim.testing.matrices import Values
from refsim.testing.recipes import Launch, Tensor

HERE = Path(__file__).parent
# Entries of the GEMM, which share their source: products in pairs, and in turn.
SWEPT = ("fp8_gemm_1d2d_64x128", "fp8_gemm_1d2d_128x176")
FIRST, SECOND = Values("gaussian", 1), Values("gaussian", 2)


@dataclass(frozen=True, eq=False)
class Subject:
    """One entry of a kernel, and the problems that run it in the order in which they are tried; `name` is the report's.

    `weakens`: its statements are also weakened, not only removed. `target` is the chip that it is compiled for.
    """

    name: str
    kernel: Kernel
    entry: str
    problems: tuple[Any, ...]
    weakens: bool = True
    target: str = "sm_90a"


class Again:
    """A launcher whose every launch is followed by the same one, which may begin before the first has ended."""

    def __init__(self, launcher: Any) -> None:
        self.launcher = launcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self.launcher, name)

    def launch(self, *arguments: Any, **options: Any) -> None:
        self.launcher.launch(*arguments, **options)
        self.launcher.launch(*arguments, programmatic=True, **options)


@cache
def subjects() -> dict[str, Subject]:
    """All of them by name."""
    found = [*of_gemm(), *of_layers(), *of_quantisers(), *of_fixtures(), *of_tensor_memory()]
    return {subject.name: subject for subject in found}


def of_gemm() -> Iterator[Subject]:
    """One tile; two for one cluster, the second in stages that were used before; many of one block of K, and of two; at last one
    tile by two launches. The copying loop is unrolled by four, the multiplying one by two: every part of both runs."""
    gemm = load_kernel_file(bundled_kernels("gemm_1d2d.py"))
    run = gemm.FP8_GEMM_1D2D.run

    def often(launcher: Any, problem: Any) -> Any:
        entry = gemm.ENTRIES[problem.entry]
        is_smallest = problem.k == gemm.BLOCK and entry.units(problem.m, problem.n) == 1
        return run(Again(launcher) if is_smallest else launcher, problem)

    kernel = replace(gemm.FP8_GEMM_1D2D, run=often, suspects={})
    for name in SWEPT:
        entry = gemm.ENTRIES[name]
        blocks = max(-(-(entry.stages - 3) // 4), 1) * 4 + 3
        shapes = (1, 2), (2, blocks), (2, blocks + 1), (entry.stages + 2, 1), (entry.stages // 2 + 2, 2), (1, 1)
        yield Subject(name, kernel, name, tuple(
            gemm.Gemm1D2D(
                entry.block_m * entry.down, entry.block_n * entry.across * tiles, gemm.BLOCK * count, FIRST, SECOND,
                Values("distinct", 1), Values("distinct", 2), entry=name, clusters=1, together=1)
            for tiles, count in shapes), weakens=False)  # fmt: skip


def of_layers() -> Iterator[Subject]:
    """Five tiles a split fill the ring of stages and use it again; columns within a tile, and beyond one."""
    bf16, fp8 = (load_kernel_file(bundled_kernels(f"{name}_bindings.py")) for name in ("linear", "linear_fp8"))
    layers = (
        (bf16.LINEAR, bf16.Linear, bf16.LINEAR_ENTRIES),
        (fp8.LINEAR_FP8_WEIGHT, fp8.LinearFp8Weight, fp8.ENTRIES),
    )
    for kernel, recipe, entries in layers:
        for name, entry in entries.items():
            if entry.shape is None:
                blocks = 2 if entry.over_blocks else 1
                depth = 5 * entry.reduction_tile * entry.warps_k * blocks
                yield Subject(
                    name,
                    replace(kernel, suspects={}),
                    name,
                    tuple(
                        recipe(2, width, depth, FIRST, SECOND, entry=name, blocks=blocks)
                        for width in (8, entry.output_tile + 3)
                    ),
                )


def of_quantisers() -> Iterator[Subject]:
    """Two blocks for the largest magnitude; a tile of 128 x 128 and one at an edge."""
    tensors, groups = (load_kernel_file(bundled_kernels(f"{name}bindings.py")) for name in ("", "group_quantize_"))
    for wide in tensors.WIDE:
        problem = tensors.Amax(Tensor(2049, wide, "bits", 3), Launch(threads=64, blocks=2))
        yield Subject(f"fp8_amax_{wide}", replace(tensors.FP8_AMAX, suspects={}), f"fp8_amax_{wide}", (problem,))
        for quotient, suffix in groups.QUOTIENTS.items():
            name = f"fp8_block_quantize_{wide}{suffix}"
            problems = tuple(
                groups.GroupQuantize(rows, columns, FIRST, wide, 128, quotient=quotient, blocks=1)
                for rows, columns in ((128, 128), (131, 260))
            )
            yield Subject(name, replace(groups.FP8_BLOCK_QUANTIZE, suspects={}), name, problems)


def of_fixtures() -> Iterator[Subject]:
    fixtures = load_kernel_file(HERE / "fixtures.py")
    for kernel in fixtures.KERNELS:
        turns = tuple(fixtures.Turns(count) for count in ((5, 11, 8, 3) if kernel.name in fixtures.TURNING else (5,)))
        yield Subject(kernel.name, kernel, "k" if kernel.ptx else kernel.name, turns)


def of_tensor_memory() -> Iterator[Subject]:
    """Products with scales by block, of two formats: of ten stages and a tail, so that every part of the copying loop waits,
    which is unrolled by four; then of one stage. The tail has scales that are pads where an instruction has several."""
    matmul = load_kernel_file(bundled_kernels("block_scaled_matmul_sm100.py"))
    kernel = replace(matmul.BLOCK_SCALED_SM100, suspects={})
    for word in ("mxfp8", "nvfp4"):
        name = f"{matmul.NAME}_{word}"
        block = matmul.ENTRIES[name].block
        stage = 4 * {"mxfp8": block, "nvfp4": 4 * block}[word]
        problems = tuple(matmul.BlockScaledSm100(64, 64, k, name, FIRST, SECOND) for k in (10 * stage + block, stage))
        yield Subject(name, kernel, name, problems, weakens=False, target="sm_100a")
    fixtures = load_kernel_file(HERE / "tensor_fixtures.py")
    for kernel in fixtures.KERNELS:
        problems = tuple(fixtures.Turns(count) for count in (5, 2))
        yield Subject(kernel.name, kernel, kernel.name, problems, weakens=False, target="sm_100a")
