"""CuTe's layout strings (CUTLASS 4.2 include/cute/atom), evaluated here: who holds what of every fragment that has one."""

import ast
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.layouts import fragments

Places = tuple[NDArray[np.int64], NDArray[np.int64]]  # row and column of every (thread, value), -1 for none
Peer = dict[str, Callable[[], Places]]


# CuTe: a layout is shape:stride, coordinates count up in the first mode first.


def offsets(shape: Any, stride: Any) -> NDArray[np.int64]:
    """Every offset of a mode, in the order of its coordinates."""
    if isinstance(shape, int):
        return np.arange(shape) * stride
    total = np.zeros(1, dtype=np.int64)
    for inner, step in zip(shape, stride, strict=True):
        total = (offsets(inner, step)[:, None] + total[None, :]).ravel()
    return total


def cute(text: str) -> NDArray[np.int64]:
    """The offset of every (thread, value) of a CuTe layout string."""
    shape, stride = (ast.literal_eval(part) for part in text.split(":"))
    return offsets(shape[0], stride[0])[:, None] + offsets(shape[1], stride[1])[None, :]


def down_columns(offset: NDArray[np.int64], rows: int) -> Places:
    """A and D: the offset counts down the columns of a matrix of so many rows."""
    return offset % rows, offset // rows


def across(offset: NDArray[np.int64], columns: int) -> Places:
    """B: CuTe counts down an N x K matrix, refsim names (k, n)."""
    return offset // columns, offset % columns


def bits(offset: NDArray[np.int64], row_bits: int, element_bits: int, register_bits: int) -> Places:
    """Copies count bits of rows laid end to end; every `register_bits`-th value begins an element."""
    first = offset[:, ::register_bits]
    return first // row_bits, first % row_bits // element_bits


D8, D16 = "((4,8),2):((16,1),8)", "((4,8),(2,2)):((32,1),(16,8))"
K8 = ("((4,8),(2,2)):((32,1),(16,8))", "((4,8),2):((16,1),8)")
K16 = ("((4,8),(2,2,2)):((32,1),(16,8,128))", "((4,8),(2,2)):((16,1),(8,64))")
BYTES = ("((4,8),(4,2,2)):((64,1),(16,8,256))", "((4,8),(4,2)):((32,1),(8,128))")
NIBBLES = ("((4,8),(8,2,2)):((128,1),(16,8,512))", "((4,8),(8,2)):((64,1),(8,256))")
CUTE_S4_B = "((4,8),8):((32,1),8)"  # gives one element to two lanes: left out, as in tensor-layouts, which copied it
# shape -> types, A, B, D; MMA_Traits of sm80, sm89, sm90 and sm120
CUTE_MMA = [
    ("m8n8k4", ["f64"], "((4,8),1):((8,1),0)", "((4,8),1):((8,1),0)", D8),
    ("m8n8k16", ["s8", "u8"], "((4,8),4):((32,1),8)", "((4,8),4):((32,1),8)", D8),
    ("m8n8k32", ["s4", "u4"], "((4,8),8):((64,1),8)", "((4,8),8):((64,1),8)", D8),
    ("m8n8k128", ["b1"], "((4,8),32):((256,1),8)", "((4,8),32):((256,1),8)", D8),
    ("m16n8k4", ["tf32", "f64"], "((4,8),2):((16,1),8)", "((4,8),1):((8,1),0)", D16),
    ("m16n8k8", ["f16", "bf16"], *K8, D16),
    ("m16n8k8", ["tf32", "f64"], "((4,8),(2,2)):((16,1),(8,64))", "((4,8),2):((8,1),32)", D16),
    ("m16n8k16", ["f16", "bf16"], *K16, D16),
    ("m16n8k16", ["s8", "u8"], "((4,8),(4,2)):((64,1),(16,8))", "((4,8),4):((32,1),8)", D16),
    ("m16n8k16", ["f64"], "((4,8),(2,4)):((16,1),(8,64))", "((4,8),4):((8,1),32)", D16),
    ("m16n8k32", ["s8", "u8", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1"], *BYTES, D16),
    ("m16n8k32", ["s4", "u4"], "((4,8),(8,2)):((128,1),(16,8))", CUTE_S4_B, D16),
    ("m16n8k64", ["s4", "u4", "e2m1"], *NIBBLES, D16),
    ("m16n8k128", ["b1"], "((4,8),(32,2)):((512,1),(16,8))", "((4,8),32):((256,1),8)", D16),
    ("m16n8k256", ["b1"], "((4,8),(32,2,2)):((512,1),(16,8,2048))", "((4,8),(32,2)):((256,1),(8,1024))", D16),
]
# Volta's atoms speak of one quad pair
CUTE_VOLTA = {
    "a": "(8,4):(1,8)",
    "a.col": "((4,2),4):((8,4),1)",
    "b": "(8,4):(1,8)",
    "b.row": "((4,2),4):((8,4),1)",
    "d": "((2,2,2),(2,2,2)):((1,16,4),(8,2,32))",
    "d.f16": "(8,8):(1,8)",
}
CUTE_WGMMA_A = {
    8: "((4,8,4),(2,2)):((64,1,16),(8,256))",
    16: "((4,8,4),(2,2,2)):((128,1,16),(64,8,512))",
    32: "((4,8,4),(4,2,2)):((256,1,16),(64,8,1024))",
}
CUTE_COPIES = [
    (["ldmatrix.m8n8.x{n}.b16", "stmatrix.m8n8.x{n}.b16"], "(32,(32,{n})):(32,(1,1024))", (128, 16, 16)),
    (
        ["ldmatrix.m8n8.x{n}.b16.trans", "stmatrix.m8n8.x{n}.b16.trans"],
        "((4,8),(16,2,{n})):((256,16),(1,128,1024))",
        (128, 16, 16),
    ),
    (
        ["ldmatrix.m8n16.x{n}.b8x16.b6x16_p32", "ldmatrix.m8n16.x{n}.b8x16.b4x16_p64"],
        "(32,(32,{n})):(32,(1,1024))",
        (128, 8, 8),
    ),
    (["stmatrix.m16n8.x{n}.b8.trans"], "((4,8),(8,2,2,{n})):((256,8),(1,128,64,1024))", (128, 8, 8)),
]
# Shape -> bits of one TMEM row of .x1, layout of .xn by thread stride and row bits (r of .xn); Copy_Traits of sm100
CUTE_MOVES = {
    "16x256b": (256, "((4,8),(64,2,{n})):((64,{r}),(1,{r8},256))"),
    "16x128b": (128, "((4,8),(32,2,{n})):((32,{r}),(1,{r8},128))"),
    "16x64b": (64, "((2,2,8),(32,{n})):(({r8},32,{r}),(1,64))"),
    "16x32bx2": (64, "((16,2),{half}):(({r},{half}),1)"),
    "32x32b": (32, "(32,{r}):({r},1)"),
}
# (m, n) -> lane + 128 * column, of one CTA; tmem_frg and tmem_frg_ws
CUTE_TMEM = {
    "m64n{n}.1sm": "((16,4),{n}):((1,32),128)",
    "m128n{n}.1sm": "(128,{n}):(1,128)",
    "m128n{n}.2sm": "(64,({h},2)):(1,(128,64))",
    "m256n{n}.2sm": "(128,{n}):(1,128)",
    "m32n{n}.ws": "(32,({q},4)):(1,(128,32))",
    "m64n{n}.ws": "(64,({h},2)):(1,(128,64))",
    "m128n{n}.ws": "(128,{n}):(1,128)",
}
# (row and copy, K-block) -> lane + 128 * byte; tmem_sf_frg
CUTE_SCALES = "(((32,{groups}),4),{blocks}):(((1,512),32),128)"
CUTE_SCALES_2X2 = "(((32,{groups}),2,2),{blocks}):(((1,512),64,32),128)"


# MMA_Traits of sm90_gmma_sparse and sm120_sparse: ELayout, and ALayout where A is named apart; rows, group, layout string
CUTE_SPARSE = [
    ("wgmma.sp.m", "wgmma.sp.m64k64.", 64, 4, "((2,2,8,4),(32,)):((8,2048,1,16),(64,))"),
    ("wgmma.sp.m", "wgmma.sp.m64k32.", 64, 4, "((2,2,8,4),(16,2)):((1024,0,1,16),(64,8))"),
    ("wgmma.sp.m", "wgmma.sp.m64k16.", 64, 2, "((2,2,8,4),(8,2)):((512,0,1,16),(64,8))"),
    ("mma.sp.m", "mma.sp.m16n8k64.e4m3.meta", 16, 4, "((2,2,8),(32,)):((8,512,1),(16,))"),
    ("mma.sp.m", "mma.sp.m16n8k64.e5m2.meta", 16, 4, "((2,2,8),(32,)):((8,512,1),(16,))"),
    ("mma.sp.m", "mma.sp.m16n8k64.e4m3.a", 16, 4, "((4,8),(8,2,2)):((128,1),(16,8,512))"),
    ("mma.sp.m", "mma.sp.m16n8k64.e5m2.a", 16, 4, "((4,8),(8,2,2)):((128,1),(16,8,512))"),
]


# tmem_e_frg and tmem_e_frg_ws: (row, k of the whole A) -> lane + 128 * unit, of which a field has two, for FP4 four
CUTE_METADATA = {
    "k16.tf32": (2, "((8,2,{i}),((8,2),{copies})):((1,1024,16),((128,8),{m}))"),
    "k32.f16": (2, "((8,2,{i}),((16,2),{copies})):((1,2048,16),((128,8),{m}))"),
    "k64.f8f6f4": (2, "({m},(64,{copies})):(1,(128,{m}))"),
    "k128.mxf4": (4, "({m},(128,{copies})):(1,(128,{m}))"),
}


def cute_peer() -> Peer:
    return cute_mma() | cute_wgmma() | cute_sparse() | cute_copies() | cute_tmem() | cute_metadata()


def cute_metadata() -> Peer:
    """Those of 128 rows a CTA, and of B stationary: CuTe has no other."""
    found: Peer = {}
    for name in fragments("tcgen05.sp"):
        _, _, shape, *_, variant, operand = name.split(".")
        if operand == "meta" and (variant == "ws" or shape.startswith("m128k" if variant == "1sm" else "m256k")):
            found[name] = partial(tmem_metadata, name)
    return found


def tmem_metadata(name: str) -> Places:
    """Fields of lanes; the second CTA of two has what the first has, of rows further down."""
    _, _, shape, kind, variant, _ = name.split(".")
    m, k = shape[1:].split("k")
    ctas = 2 if variant == "2sm" else 1
    rows = int(m) // ctas
    per, text = CUTE_METADATA[f"k{k}.{kind}"]
    places = cute(text.format(i=rows // 16, m=rows, copies=128 // rows))
    lane, field, row = places % 128, places // 128 // per, np.arange(rows)[:, None]
    column = np.tile(np.arange(int(k)) // per, 128 // rows)[None, :]
    found = [np.full((128 * ctas, field.max() + 1), -1) for _ in range(2)]
    for cta in range(ctas):
        found[0][lane + 128 * cta, field] = row + cta * rows
        found[1][lane + 128 * cta, field] = column
    return found[0], found[1]


def cute_mma() -> Peer:
    found: Peer = {}
    for shape, types, a, b, d in CUTE_MMA:
        m = int(shape[1:].split("n")[0])
        for type in types:
            found[f"mma.{shape}.{type}.a"] = partial(down_columns, cute(a), m)
            if b != CUTE_S4_B:
                found[f"mma.{shape}.{type}.b"] = partial(across, cute(b), 8)
            found |= dict.fromkeys(accumulators(f"mma.{shape}.{type}"), partial(down_columns, cute(d), m))
    for operand, text in CUTE_VOLTA.items():
        found |= dict.fromkeys(volta_names(operand), partial(four_pairs, cute(text), operand))
    return found


def cute_wgmma() -> Peer:
    found: Peer = {}
    for name in fragments("wgmma"):
        n, k, operand = wgmma_parts(name)
        if k < 256:
            text = CUTE_WGMMA_A[k] if operand == "a" else f"((4,8,4),(2,2,{n // 8})):((128,1,16),(64,8,512))"
            found[name] = partial(down_columns, cute(text), 64)
    return found


def cute_sparse() -> Peer:
    """What is stored of a sparse A, and its metadata: CuTe counts all elements of A, of which a group is named by its first."""
    found: Peer = {}
    for stem, names, rows, group, text in CUTE_SPARSE:
        places = partial(of_groups, cute(text), rows, group)
        found |= dict.fromkeys((name for name in fragments(stem.partition(".m")[0]) if name.startswith(names)), places)
    for type in ("e4m3", "e5m2"):
        stem = f"mma.sp.m16n8k64.{type}"
        found[f"{stem}.b"] = partial(across, cute("((4,8),(4,4)):((32,1),(8,128))"), 8)
        found |= dict.fromkeys((f"{stem}.c", f"{stem}.d"), partial(down_columns, cute(D16), 16))
    return found


def of_groups(offset: NDArray[np.int64], rows: int, group: int) -> Places:
    """Stored elements: half as many as there are elements, each with the row and the group of two of its own."""
    first, kept = offset[:, ::group], group // 2
    row, column = first % rows, first // rows // group * kept
    return row.repeat(kept, axis=1), (column[..., None] + np.arange(kept)).reshape(len(offset), -1)


def cute_copies() -> Peer:
    found: Peer = {}
    for names, text, widths in CUTE_COPIES:
        for n in (1, 2, 4):
            places = partial(bits, cute(text.format(n=n)), *widths)
            found |= dict.fromkeys((name.format(n=n) for name in names), places)
    for name in fragments("tcgen05"):
        _, direction, shape, count = [*name.split("."), ""][:4]
        if direction in ("ld", "st"):
            row_bits, text = CUTE_MOVES[shape]
            r = row_bits * int(count[1:])
            found[name] = partial(bits, cute(text.format(n=count[1:], r=r, r8=8 * r, half=r // 2)), r, 32, 32)
    return found


def cute_tmem() -> Peer:
    """Accumulators of every N; scales from sf_id 0 on where the rows are whole groups of 32."""
    found: Peer = {}
    for name in fragments("tcgen05"):
        if name.endswith(".d"):
            found[name] = partial(tmem_accumulator, name)
        elif (
            ".sf" in name
            and ".id" not in name
            and not {"3x", "6x"} & {*name.split(".")}
            and int(name.split(".")[1][1:]) % 32 == 0
        ):
            found[name] = partial(tmem_scales, name)
    return found


def accumulators(stem: str) -> Iterator[str]:
    return (name for name in fragments("mma") if name.startswith((f"{stem}.c", f"{stem}.d")))


def volta_names(operand: str) -> list[str]:
    """C lies as D does."""
    return [f"mma.m8n8k4.f16.{name}" for name in {operand, operand.replace("d", "c", 1)}]


def wgmma_parts(name: str) -> tuple[int, int, str]:
    """N, K and operand of a name."""
    _, shape, _, operand, *_ = name.split(".")
    n, k = shape.removeprefix("m64n").split("k")
    return int(n), int(k), operand


def four_pairs(offset: NDArray[np.int64], operand: str) -> Places:
    """The layout of one quad pair, set out over the four pairs of a warp."""
    lane, pair = np.arange(32), np.arange(32) >> 2 & 3
    row, col = down_columns(offset[(lane & 3) + 4 * (lane >> 4)], 8)
    row = row + 8 * pair[:, None]
    return (col, row) if operand[0] == "b" else (row, col)


def tmem_accumulator(name: str) -> Places:
    _, shape, variant, _ = name.split(".")
    m, n = (int(part) for part in shape[1:].split("n"))
    text = CUTE_TMEM[f"m{m}n{{n}}.{variant}"].format(n=n, h=n // 2, q=n // 4)
    places = cute(text)
    ctas, columns = (2, places.max() // 128 + 1) if variant == "2sm" else (1, places.max() // 128 + 1)
    rows, cols = (np.full((128 * ctas, columns), -1) for _ in range(2))
    for cta in range(ctas):
        lane, column = places % 128 + 128 * cta, places // 128
        rows[lane, column] = np.arange(len(places))[:, None] + cta * len(places)
        cols[lane, column] = np.arange(n)[None, :]
    return rows, cols


def tmem_scales(name: str) -> Places:
    side, vector, halves = name.split(".")[1], int(name.split(".")[2][0]), name.endswith("2x2")
    extent = int(side[1:])
    text = CUTE_SCALES_2X2 if halves else CUTE_SCALES
    places = cute(text.format(groups=extent // 64 if halves else extent // 32, blocks=vector))
    rows, cols = (np.full((128, extent // (16 if halves else 8)), -1) for _ in range(2))
    rows[places % 128, places // 128] = (np.arange(len(places)) % extent)[:, None]
    cols[places % 128, places // 128] = np.arange(vector)[None, :]
    return (rows, cols) if side[0] == "m" else (cols, rows)
