"""Mistakes of the catalogue in kernels: edits of the CUDA text, or bytes of operands that a host lays out wrongly."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from conformance.block_faults.catalogue import BY_ID as CLASSES
from conformance.tolerance.mutants import FOLDER, Edit
from refsim.layouts import scale_layout

QUANTISER = "block_scale_quantize"
SM90, SM100, SM120 = (f"block_scaled_matmul_{chip}" for chip in ("sm90", "sm100", "sm120"))
ENTRIES = "block_scaled/entries.cuh"
NEVER = "never written"
CHANGE = Callable[[str, Any, Any], Any]
"""What is uploaded in place of an array of that name, of a problem."""


@dataclass(frozen=True)
class Mutant:
    """One mistake of class `of`; `named` are the suspects any of which names it.

    `format` and `changes` say the problem: arguments of the declaration's recipe; `uploads` a host's mistake.
    """

    id: str
    of: str
    says: str
    kernel: str
    format: str
    edits: tuple[Edit, ...] = ()
    named: tuple[str, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    uploads: CHANGE | None = None

    def __post_init__(self) -> None:
        if self.of not in CLASSES:
            raise ValueError(f"{self.id}: no class {self.of!r}")

    def source(self, folder: Path) -> Path:
        """The kernel's file with the mistake, one format alone, in a copy of what it includes."""
        shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
        for edit in self.edits:
            file = folder / edit.file
            file.write_text(edit.applied(file.read_text("utf-8")), "utf-8")
        own = folder / f"{self.kernel}.cu"
        table = own if self.kernel == QUANTISER else folder / ENTRIES
        lines = table.read_text("utf-8").splitlines()
        mine = [line for line in lines if line.strip().startswith(f"BLOCK_SCALED({self.format},")]
        kept = [line for line in lines if not line.startswith(("ENTRIES(f16", "ENTRIES(f32"))]
        if mine:  # the table of entries is one macro
            head = next(at for at, line in enumerate(lines) if line.startswith("#define BLOCK_SCALED_ENTRIES"))
            kept = [*lines[: head + 1], mine[0].rstrip(" \\")]
        table.write_text("\n".join(kept) + "\n", "utf-8")
        return own


Q, FORMATS, TILES = f"{QUANTISER}.cu", "block_scaled/formats.cuh", "block_scaled/tensor_tiles.cuh"
WARPS, STAGING, VALUES = (f"block_scaled/{name}.cuh" for name in ("warp_tiles", "staging", "values"))
VECTORS = "quantize/vectors.cuh"
TILE_AT = "scales + static_cast<uint64_t>(tile) * kTileBytes + row_in_tile * 16;"
WORD_AT = "tile_scales + u * 4) = word;"
STORED = "return {code, __uint_as_float(factor)};"
CONVERTED = "    const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x[0], x[1]), __NV_SATFINITE, kKind);\n"
LAST = "    const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(x[2], x[3]), __NV_SATFINITE, kKind);\n"
JOINED = "    return low | high << 16;\n"
UNDERFLOW = "        if (code == 0 && recipe != kKernel) factor = 0.0f;\n"
FNUZ = """\
    uint32_t codes = 0;
    for (int i = 0; i < 4; ++i) {
        const float twice = 2.0f * x[i], most = fabsf(twice);
        uint32_t code = __nv_cvt_float_to_fp8(twice, __NV_SATFINITE, kKind);
        if (most > 464.0f) code = (code & 0x80u) | 0x7fu;
        if (code == 0x80u) code = 0;
        if (isnan(twice)) code = 0x80u;
        codes |= code << (8 * i);
    }
    return codes;
"""
BEYOND = """\
    uint32_t codes = low | high << 16;
    for (int i = 0; i < 4; ++i)
        if (fabsf(x[i]) > (kKind == __NV_E4M3 ? 448.0f : 57344.0f)) codes = (codes & ~(0xffu << 8 * i)) | 0x7fu << 8 * i;
    return codes;
"""


def quantiser(
    id: str, of: str, says: str, format: str, *edits: tuple[str, str], named: str, file: str = Q, **changes: Any
) -> Mutant:
    return Mutant(id, of, says, QUANTISER, format, tuple(Edit(file, *edit) for edit in edits), (named,), changes)


def product(
    id: str,
    of: str,
    says: str,
    kernel: str,
    format: str,
    *edits: tuple[str, str, str],
    named: str | tuple[str, ...],
    uploads: CHANGE | None = None,
    **changes: Any,
) -> Mutant:
    names = (named,) if isinstance(named, str) else named
    return Mutant(id, of, says, kernel, format, tuple(Edit(*edit) for edit in edits), names, changes, uploads)


def relaid(which: str, layout: str, name: str, array: Any, problem: Any) -> Any:
    """The scales of an operand as another layout has them, in a buffer of the same size."""
    if name != f"sf{which}":
        return array
    scales = problem.operands[2 + "ab".index(which)]
    if layout == "twice":
        shuffled = scale_layout("nvidia_128x4")
        once = shuffled.shuffle(scales, fill=0xFF).reshape(shuffled.padded(scales.shape))
        return shuffled.shuffle(once).reshape(-1)
    found = scale_layout(layout).shuffle(scales, fill=0xFF).reshape(-1)
    return np.pad(found, (0, max(0, array.size - found.size)), constant_values=0xFF)[: array.size]


def packed_in_halves(run: int, name: str, array: Any, problem: Any) -> Any:
    """The codes of A with element i and middle + i of a run in byte i."""
    if name != "a":
        return array
    low, high = array & 0xF, array >> 4
    elements = np.stack([low, high], -1).reshape(-1, 2, run // 2)
    return (elements[:, 0] | elements[:, 1] << 4).astype(np.uint8).reshape(array.shape)


_OLD_GROUP, _NEW_GROUP = "groups = (blocks + kTileBlocks - 1) / kTileBlocks;", "groups = blocks / kTileBlocks;"
MUTANTS = (
    quantiser(
        "pads-poisoned", "padding poison", "pads of the scales hold 0xff", "mxfp8",
        ("holds ? scale.code << (8 * place) : 0;", "holds ? scale.code << (8 * place) : 0xffu << (8 * place);"),
        named="the pads of the scales hold 0xff",
    ),
    quantiser(
        "pads-of-zeros", "padding poison", "pads hold what a block of zeros gets", "mxfp8",
        ("holds ? scale.code << (8 * place) : 0;", "scale.code << (8 * place);"), recipe="deepgemm",
        named="the pads of the scales hold what a block of zeros gets",
    ),
    product(
        "pads-read", "padding poison", "an instruction reads the NaN that pads the scales of the last block", SM120, "nvfp4",
        (FORMATS, "return (word & kept) | (kOnes & ~kept);", "return word;"), named="what pads the scales takes part",
    ),
    quantiser(
        "rows-counted-down", "another shape", "tiles of rows are counted down: the last rows are never written", "mxfp8",
        ("ceil_div(m, kTileRows) * spans", "max(m / kTileRows, 1u) * spans"), named=NEVER,
    ),
    product(
        "tiles-counted-down", "another shape", "tiles along K are counted down: the next rows' are one tile early", SM120,
        "mxfp8", (FORMATS, _OLD_GROUP, _NEW_GROUP), named="tiles of A's scales along K are counted down",
    ),
    product(
        "first-rows-for-all", "another shape", "every block of rows reads the scales of the first", SM100, "mxfp8",
        (TILES, "sfa + (size_t(blockIdx.y) * groups.all + first) * kTileBytes", "sfa + first * kTileBytes"),
        named="all rows of A have the scales of the first tile",
    ),
    quantiser(
        "not-shuffled", "interleave", "scales are stored in rows", "mxfp8",
        (TILE_AT, "scales + (static_cast<uint64_t>(first_row + row_in_tile) * spans + tile % spans) * 4;"),
        (WORD_AT, "tile_scales + u * kRowsApart * spans * 4) = word;"), named="the scales are not shuffled",
    ),
    quantiser(
        "rows-alone-shuffled", "interleave", "rows are interleaved, the four bytes of a tile's row are not", "mxfp8",
        (TILE_AT, "scales + (static_cast<uint64_t>(first_row + row_in_tile * 4) * spans + tile % spans) * 4;"),
        (WORD_AT, "tile_scales + u * spans * 4) = word;"), named="the rows of the scales alone are shuffled",
    ),
    product(
        "shuffled-twice", "interleave", "the host shuffles scales that are shuffled", SM120, "mxfp8",
        uploads=partial(relaid, "a", "twice"), named="scales of A shuffled twice",
    ),
    quantiser(
        "last-scales-dropped", "scales not written", "the last tile of scales is not stored", "mxfp8",
        ("if (place == 0 && u < kVectors) ", "if (place == 0 && u < kVectors && part + kParts < parts) "), named=NEVER,
    ),
    quantiser(
        "stored-scale-cut", "scale and elements part", "the stored scale is cut to a power of two afterwards", "mxfp8",
        ("code_of(uint32_t peak) const {", "code_of(uint32_t peak, bool cut = false) const {"),
        ("up = recipe >= kCeil,", "up = recipe >= kCeil && !cut,"),
        (STORED, "return {code_of(peak, true), __uint_as_float(factor)};"),
        named="the stored scale is cut after the elements are made",
    ),
    quantiser(
        "unrounded-scale", "scale and elements part", "elements are divided by the scale before it is rounded", "nvfp4",
        (UNDERFLOW, "        factor = __fdiv_rn(6.0f, peak);\n"),
        named="elements are divided by the scale before it is rounded",
    ),
    quantiser(
        "floor-for-rceil", "scale rule", "amax / MAX goes down to a power of two", "mxfp8",
        ("up = recipe >= kCeil", "up = recipe > kRceil"), named="amax is rounded down",
    ),
    quantiser(
        "even-by-one-bit", "scale rule", "EVEN rounds e4m3's amax to one bit, as for e2m1", "mxfp8",
        ("(1u << (22 - Element::kMantissa))", "(1u << (22 - 1))"), recipe="even",
        named="amax is rounded to 1 bits of mantissa",
    ),
    quantiser(
        "ties-away", "scale rule", "ties of elements go away from zero", "mxfp4",
        ("__fadd_rn(magnitude, steps)",
         "__fadd_rz(__fadd_rn(magnitude, magnitude < 2.0f ? 0.25f : magnitude < 4.0f ? 0.5f : 1.0f), steps)"),
        named="ties go away from zero",
    ),
    quantiser(
        "no-saturation", "overflow", "what does not fit becomes NaN", "mxfp8",
        (CONVERTED, CONVERTED.replace("SATFINITE", "NOSAT")), (LAST, LAST.replace("SATFINITE", "NOSAT")), recipe="floor",
        named="elements do not saturate",
    ),
    quantiser(
        "nan-from-max-on", "overflow", "whatever is beyond MAX is NaN, also what rounds to it", "mxfp8",
        (JOINED, BEYOND), recipe="floor", named="whatever is beyond the largest element is a NaN",
    ),
    quantiser(
        "fnuz-codes", "FN / FNUZ", "elements are codes of e4m3fnuz", "mxfp8",
        (CONVERTED + LAST + JOINED, FNUZ), named="elements are codes of FNUZ",
    ),
    quantiser(
        "bias-of-e5m2", "FN / FNUZ", "the largest power of e5m2 is one too large", "mxfp8_e5m2",
        ("kMantissa = 2, kPower = 15", "kMantissa = 2, kPower = 16"), recipe="floor",
        named="scales are half as large",
    ),
    product(
        "e5m2-for-e4m3", "FN / FNUZ", "A is multiplied as e5m2", SM120, "mxfp8",
        (ENTRIES, "BLOCK_SCALED(mxfp8,      mxf8f6f4,   32,  1,     e4m3, e4m3,",
         "BLOCK_SCALED(mxfp8,      mxf8f6f4,   32,  1,     e5m2, e4m3,"), named="A is read as e5m2",
    ),
    product(
        "fnuz-read", "FN / FNUZ", "A is decoded with the bias of e4m3fnuz", SM90, "mxfp8",
        (f"{SM90}.cu", "using A = A_TYPE##_type;", "using A = Narrow<A_TYPE##_bits, A_TYPE##_mantissa, A_TYPE##_bias + 1>;"),
        named="A is half as large",
    ),
    quantiser(
        "unsigned-zero", "signed zero", "a zero loses its sign", "mxfp4",
        ("(__float_as_uint(x) & 0x80000000u)", "(__float_as_uint(x) & (sum % 8 != 0 ? 0x80000000u : 0u))"),
        named="a zero loses its sign",
    ),
    quantiser(
        "largest-scale-flushed", "E8M0 0 / 255", "2^-127, the factor of code 254, is flushed to zero", "mxfp8",
        ("factor = kTwoToMinus127;", "factor = 0;"), named="scale code 0xfe multiplies by 0",
    ),
    quantiser(
        "nan-scale-a-number", "E8M0 0 / 255", "code 255 is no NaN", "mxfp8",
        ("recipe == kTriton ? 0u : 0x7fffffffu", "0u"), named="scale code 0xff multiplies by 0",
    ),
    quantiser(
        "exponent-wraps", "E8M0 0 / 255", "254 - 255 wraps into the sign", "mxfp8",
        ("        if (code == kNanScale) factor = recipe == kTriton ? 0u : 0x7fffffffu;\n", ""),
        named="the exponent of scale code 0xff wraps",
    ),
    product(
        "smallest-scale-zero", "E8M0 0 / 255", "code 0 is 0, not 2^-127", SM90, "mxfp8",
        (VALUES, "max(code << 23, 0x400000u)", "code << 23"), named="scale code 0 is 0",
    ),
    product(
        "nan-test-of-another-code", "E8M0 0 / 255", "the test for NaN asks for code 134, the value 128", SM90, "mxfp8",
        (VALUES, "code == 0xff ?", "code == 0x86 ?"), named="scale code 134 is a NaN",
    ),
    quantiser(
        "through-f16", "double rounding", "products are rounded to f16 before e2m1", "nvfp4",
        ("x[i] = __fmul_rn(x[i], factor);", "x[i] = __half2float(__float2half_rn(__fmul_rn(x[i], factor)));"),
        tensor_scale=750.0, named="elements are rounded to f16 first",
    ),
    quantiser(
        "through-bf16", "double rounding", "products are rounded to bf16 before e2m1", "nvfp4",
        ("x[i] = __fmul_rn(x[i], factor);", "x[i] = __bfloat162float(__float2bfloat16_rn(__fmul_rn(x[i], factor)));"),
        named="elements are rounded to bf16 first",
    ),
    quantiser(
        "zero-block-has-scale-one", "zero block", "a block of zeros has the scale 1", "mxfp8",
        (STORED, "return {peak == 0 ? 127u : code, __uint_as_float(factor)};"), named="a block of zeros has the scale 0x7f",
    ),
    quantiser(
        "zero-by-zero", "zero block", "a block of zeros is divided by zero", "nvfp4",
        (UNDERFLOW, "        if (peak == 0) factor = __fdiv_rn(peak, peak);\n"), named="a block of zeros is divided by zero",
    ),
    quantiser(
        "factor-inverted", "factor inverted, amax signed", "scales are decoded by S, not 1 / S", "nvfp4",
        ("inverse(__frcp_rn(tensor))", "inverse(tensor)"), named="factors multiply by the factor of the tensor",
    ),
    product(
        "factor-of-d-inverted", "factor inverted, amax signed", "D is multiplied by 1 / factor", SM120, "nvfp4",
        (WARPS, "__fmul_rn(scale, sums", "__fmul_rn(__frcp_rn(scale), sums"), named="the factor is inverted",
    ),
    quantiser(
        "amax-signed", "factor inverted, amax signed", "the largest number, not the largest magnitude", "mxfp8",
        ("a = v.x & kept, b = v.y & kept, c = v.z & kept, d = v.w & kept;",
         "a = __vmaxs2(v.x, 0u), b = __vmaxs2(v.y, 0u), c = __vmaxs2(v.z, 0u), d = __vmaxs2(v.w, 0u);"),
        named="negative elements do not count among the largest", file=VECTORS,
    ),
    quantiser(
        "sixth-for-quotient", "reciprocal", "amax * fl(S / 6) where the rule is amax / 6 * S", "nvfp4",
        ("__fmul_rn(__fdiv_rn(peak, 6.0f), tensor)", "__fmul_rn(peak, sixth)"), recipe="te_cpp_2d",
        named="scales are rounded as te has them",
    ),
    quantiser(
        "nibbles-swapped", "nibble order", "the first element lies in the high half", "mxfp4",
        ("before(0, x[3]), x[2]), x[1]), x[0])", "before(0, x[2]), x[3]), x[0]), x[1])"),
        named="the two elements of a byte are swapped",
    ),
    product(
        "halves-packed", "nibble order", "A is packed as GGML has it: a byte has element i and 16 + i", SM120, "mxfp4",
        uploads=partial(packed_in_halves, 32), named="a byte of A has an element of either half of 32",
    ),
    quantiser(
        "tail-without-scale", "K tail", "the block that the end of a row cuts gets no scale", "mxfp8",
        ("blocks = ceil_div(k, Blocks::kWidth),", "blocks = k / Blocks::kWidth,"), columns=9 * 32 + 24,
        named="the scale of a block that the row's end cuts is left out",
    ),
    product(
        "last-block-dropped", "K tail", "the last 16 of K are not read", SM120, "nvfp4",
        (STAGING, "if (row >= of.rows || at >= k) continue;", "if (row >= of.rows || at + 16 >= k) continue;"),
        named="the last block of K is left out",
    ),
    product(
        "step-crosses-blocks", "K tail", "the first of four scales serves four steps", SM120, "mxfp8",
        (WARPS, "multiply<kScale % kTileBlocks,", "multiply<0,"), named="the first of four scales serves all",
    ),
    quantiser(
        "tiles-transposed", "transposed grid", "tiles of scales follow each other down the rows", "mxfp8",
        ("static_cast<uint64_t>(tile) * kTileBytes",
         "static_cast<uint64_t>(tile % spans * (parts / kParts / spans) + tile / spans) * kTileBytes"),
        named="the grid of the scales' tiles is transposed",
    ),
    product(
        "tiles-read-transposed", "transposed grid", "tiles of scales are looked for down the rows", SM100, "mxfp8",
        (TILES, "sfa + (size_t(blockIdx.y) * groups.all + first) * kTileBytes",
         "sfa + (first * gridDim.y + blockIdx.y) * kTileBytes"),
        named="the grid of the tiles of A's scales is transposed", k=4 * 3 * 32,
    ),
    quantiser(
        "offset-wraps", "int32 offset", "the offset of a row wraps", "mxfp8",
        ("x + (row + u * kRowsApart) * x_pitch + column)",
         "x + static_cast<uint16_t>((row + u * kRowsApart) * x_pitch) + column)"),
        ("load_part(x + at * x_pitch, column,", "load_part(x + static_cast<uint16_t>(at * x_pitch), column,"), columns=512,
        named="offsets wrap at 16 bits",
    ),
    product(
        "row-offset-wraps", "int32 offset", "the offset of a row of codes wraps", SM120, "mxfp8",
        (STAGING, "size_t(row) * of.pitch", "uint16_t(row * of.pitch)"), named="offsets of A wrap at 16 bits", k=512,
    ),
    quantiser(
        "scales-8x4", "another chip", "scales are stored in tiles of 8 x 4", "mxfp8",
        (TILE_AT, "scales + (static_cast<uint64_t>(first_row + row_in_tile) / 8 * spans + tile % spans) * 32"
                  " + row_in_tile % 8 * 4;"),
        (WORD_AT, "tile_scales + u * (kRowsApart / 8) * spans * 32) = word;"),
        named="the scales lie as nvidia_8x4 has them",
    ),
    product(
        "scales-of-cdna4", "another chip", "scales of A are shuffled for gfx950", SM120, "mxfp8",
        uploads=partial(relaid, "a", "cdna4_32"), named="scales of A lie as cdna4_32 has them",
    ),
    product(
        "scales-of-deepgemm", "another chip", "scales of B are packed as DeepGEMM has them", SM120, "mxfp8",
        uploads=partial(relaid, "b", "deepgemm_mn_ue8m0"), named="scales of B lie as deepgemm_mn_ue8m0 has them",
    ),
    quantiser(
        "rows-share-a-scale", "1D / 2D", "four rows have one scale", "nvfp4",
        ("            peak = max_of_lanes<kLanes>(peak);\n",
         "            peak = max_of_lanes<kLanes>(peak);\n            for (int d = kRowLanes; d < kWarp; d *= 2)\n"
         "                peak = max(peak, __shfl_xor_sync(0xffffffffu, peak, d));\n"), named="4 rows share a scale",
    ),
)  # fmt: skip
BY_ID = {row.id: row for row in MUTANTS}
