"""Mistakes in two real kernels, each an edit of their CUDA text, and the problem on which every gate is asked.

What a tensor core does cannot be edited: mistakes in decoding FP8 stand in the linear layer, which decodes in registers.
"""

import difflib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from refsim.testing.kernel_files import bundled_kernels

GEMM, LINEAR = "fp8_gemm_1d2d", "linear_fp8_weight"
FOLDER = bundled_kernels("gemm_1d2d.py").parent / "kernels"
SHAPES = {GEMM: (128, 576, 2048), LINEAR: (16, 576, 2048)}


@dataclass(frozen=True)
class Edit:
    """In `file` the text `right`, which stands there once, gives way to `wrong`."""

    file: str
    right: str
    wrong: str

    def applied(self, text: str) -> str:
        if text.count(self.right) != 1:
            raise ValueError(f"the text to break stands {text.count(self.right)} times in {self.file}: {self.right}")
        return text.replace(self.right, self.wrong)


@dataclass(frozen=True)
class Mutant:
    """One mistake; without edits, the kernel as it is. `shape` (M, N, K) where the mistake needs another one to show."""

    id: str
    says: str
    kernel: str = GEMM
    edits: tuple[Edit, ...] = ()
    shape: tuple[int, int, int] | None = None

    @property
    def extents(self) -> tuple[int, int, int]:
        return self.shape or SHAPES[self.kernel]

    def files(self) -> dict[str, str]:
        """The files that are edited, as they then stand."""
        texts: dict[str, str] = {}
        for edit in self.edits:
            before = texts.get(edit.file) or (FOLDER / edit.file).read_text("utf-8")
            texts[edit.file] = edit.applied(before)
        return texts

    def changes(self) -> Iterator[str]:
        """The lines that go, with a minus, and those that come, with a plus."""
        for file, after in self.files().items():
            before = (FOLDER / file).read_text("utf-8")
            for line in difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0):
                if line[0] in "+-" and line[:3] not in ("+++", "---"):
                    yield f"{line[0]} {line[1:].strip()}"

    def source(self, folder: Path) -> Path:
        """The kernel's file, with the mistake, in a copy of what it includes."""
        shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
        for file, text in self.files().items():
            (folder / file).write_text(text, "utf-8")
        return folder / f"{self.kernel}.cu"


ASYNC, EPILOGUE, MAINLOOP, SCHEDULER = (f"gemm/{name}.cuh" for name in ("async", "epilogue", "mainloop", "scheduler"))
WEIGHTS = "linear_fp8_weight.cu"
PACK = 'asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));'
PROMOTION = """\
        sum[4 * i] = __fmaf_rn(up, product[4 * i], sum[4 * i]);
        sum[4 * i + 1] = __fmaf_rn(up, product[4 * i + 1], sum[4 * i + 1]);
        sum[4 * i + 2] = __fmaf_rn(low, product[4 * i + 2], sum[4 * i + 2]);
        sum[4 * i + 3] = __fmaf_rn(low, product[4 * i + 3], sum[4 * i + 3]);
"""
STORE = "        if (complete) store_tile<Tile>(base, d, at, sum, group, warp, lane, rows);"
FIRST_TILE = "        if (at.m + at.n == 0 && threadIdx.x"
STAGED = "        publish_to_copies();\n        meet<128>(barrier);\n"
BLOCKS = "    uint32_t blocks = (problem.k + kBlockK - 1) / kBlockK;\n"
NEAREST_BY_ADDING = """\
const uint32_t x = __float_as_uint(low), y = __float_as_uint(high);
    pair = (x + 0x7fff + (x >> 16 & 1)) >> 16 | ((y + 0x7fff + (y >> 16 & 1)) & 0xffff0000);"""


def promoted(sum_of: str) -> str:
    """The promotion with another sum of the scale, the product and the sum before."""
    names = {"": "up", " + 1": "up", " + 2": "low", " + 3": "low"}
    return "".join(
        f"        sum[4 * i{at}] = {sum_of.format(f'{name}, product[4 * i{at}]', f'sum[4 * i{at}]')};\n"
        for at, name in names.items()
    )


MUTANTS = (
    Mutant("correct", "the kernel as it is"),
    Mutant(
        "mul-then-add",
        "a scaled product is added by mul and add, not by FMA",
        edits=(Edit(MAINLOOP, PROMOTION, promoted("__fadd_rn(__fmul_rn({0}), {1})")),),
    ),
    Mutant(
        "bf16-cut",
        "bf16 cut off, not rounded",
        edits=(Edit(EPILOGUE, "cvt.rn.bf16x2.f32", "cvt.rz.bf16x2.f32"),),
    ),
    Mutant(
        "nan-becomes-zero",
        "rounded by adding 0x7fff: NaN becomes -0",
        edits=(Edit(EPILOGUE, PACK, NEAREST_BY_ADDING),),
    ),
    Mutant(
        "no-meeting",
        "one thread stores Y before the other warps have written it",
        edits=(Edit(EPILOGUE, STAGED, STAGED.splitlines(keepends=True)[0]),),
    ),
    Mutant(
        "no-proxy-fence",
        "no proxy fence before the copy engine stores Y",
        edits=(Edit(EPILOGUE, STAGED, STAGED.splitlines(keepends=True)[1]),),
    ),
    Mutant(
        "product-not-awaited",
        "a product is used one wait too early",
        edits=(
            Edit(
                MAINLOOP,
                "        wait_for_products<1>();\n        finish(0);\n        wait_for_products<0>();\n",
                "        wait_for_products<1>();\n        finish(0);\n        wait_for_products<1>();\n",
            ),
        ),
    ),
    Mutant(
        "one-sign",
        "one output of 73,728 has the wrong sign",
        edits=(Edit(MAINLOOP, STORE, f"{FIRST_TILE} == 128) sum[0][0] = -sum[0][0];\n{STORE}"),),
    ),
    Mutant(
        "tail-columns",
        "the last 8 columns of 584 are never written",
        edits=(Edit(SCHEDULER, "across((problem.n + Tile::N * Tile::kAcross - 1)", "across((problem.n)"),),
        shape=(128, 584, 2048),
    ),
    Mutant(
        "zeros-in-a-row",
        "64 outputs of one row are zero",
        edits=(
            Edit(
                MAINLOOP,
                STORE,
                f"{FIRST_TILE} < 132)\n"
                "            for (uint32_t i = 0; i < Tile::N / 2; i += 4) sum[0][i] = sum[0][i + 1] = 0;\n" + STORE,
            ),
        ),
    ),
    Mutant(
        "previous-scale",
        "the last 64 columns of 576 have the scale of the 128 before them",
        edits=(
            Edit(
                MAINLOOP, "last = ((Tile::kSwapped ? problem.m : problem.n) - 1) / 128;", "last = problem.n / 128 - 1;"
            ),
        ),
    ),
    Mutant(
        "doubled",
        "every output is twice what it should be",
        edits=(Edit(MAINLOOP, "scales[i] = __ldg(rows[i] + k);", "scales[i] = 2 * __ldg(rows[i] + k);"),),
    ),
    Mutant(
        "row-scales-swapped",
        "scales of A: blocks 0 and 1 of K swapped",
        edits=(Edit(MAINLOOP, "place.first() + k);", "place.first() + (k < 2 ? k ^ 1 : k));"),),
    ),
    Mutant(
        "column-scales-late",
        "scales of B one block of K late",
        edits=(Edit(MAINLOOP, "__ldg(rows[i] + k)", "__ldg(rows[i] + (k > 0 ? k - 1 : 0))"),),
    ),
    Mutant(
        "sum-in-bf16",
        "the running sum is cut to bf16 after every block of K",
        edits=(
            Edit(MAINLOOP, PROMOTION, promoted("__uint_as_float(__float_as_uint(__fmaf_rn({0}, {1})) & 0xffff0000)")),
        ),
    ),
    Mutant(
        "last-block-dropped",
        "the last 128 of K are left out",
        edits=tuple(
            Edit(MAINLOOP, BLOCKS + follows, BLOCKS.replace("- 1) / kBlockK", "- 1) / kBlockK - 1") + follows)
            for follows in ("    using Tiles = typename Job::template Tiles<false>", "    const uint32_t lane")
        ),
    ),
    Mutant("linear-correct", "the linear layer as it is", LINEAR),
    Mutant(
        "subnormals-flushed",
        "E4M3 subnormals decoded to zero",
        LINEAR,
        (
            Edit(
                WEIGHTS,
                "return pack(wide.x, wide.y);",
                "return pack(fabsf(wide.x) < 0.015625f ? 0.0f : wide.x, fabsf(wide.y) < 0.015625f ? 0.0f : wide.y);",
            ),
        ),
    ),
    Mutant(
        "exponent-added",
        "E4M3 decoded by adding 120 to the exponent: zero becomes 0.0078",
        LINEAR,
        (Edit(WEIGHTS, "LINEAR(n64_s1, kExact,", "LINEAR(n64_s1, kTrick,"),),
    ),
    Mutant(
        "columns-swapped",
        "columns 2032 and 2033 of K are swapped",
        LINEAR,
        (
            Edit(
                WEIGHTS,
                "decode_word<kDecode>(codes[i], b[2 * i]",
                "decode_word<kDecode>(left <= kMmaStep && lane % 4 == 0 ? __byte_perm(codes[i], 0, 0x3201) : codes[i], b[2 * i]",
            ),
        ),
    ),
)
BY_ID = {mutant.id: mutant for mutant in MUTANTS}
