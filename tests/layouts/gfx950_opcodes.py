"""The instructions of gfx950 that Triton writes for a block-scaled product: some sixty mnemonics, MFMA included.

Source: AMD CDNA4 ISA (opcodes, OPSEL of scales, V_BITOP3, V_PERM_B32).
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim import numerics
from refsim.numerics import UnverifiedProfileWarning
from tests.layouts.gfx950_waves import LANES, Instruction, KernelFault, Wave, Words, every

ZERO_BYTE = 12  # the selector of V_PERM_B32 that gives 0
OPERAND_FORMATS = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")  # cbsz and blgp
Lanes = NDArray[Any]


def signed(x: Any) -> Any:
    return x.view(np.int32)


def field_of(x: Words, offset: int, width: int, *, sign: bool) -> Words:
    """A field of bits, with its sign or without."""
    up = np.uint32(32 - width - offset)
    value = x << up
    return signed(value).__rshift__(np.int32(32 - width)).view(np.uint32) if sign else value >> np.uint32(32 - width)


def permuted(high: Words, low: Words, selector: Words) -> Words:
    """V_PERM_B32: selectors 0 to 3 are the second operand's bytes, 4 to 7 the first's, 12 is a zero."""
    both = np.concatenate([np.ascontiguousarray(x).view(np.uint8).reshape(LANES, 4) for x in (low, high)], 1)
    chosen = np.ascontiguousarray(selector).view(np.uint8).reshape(LANES, 4)
    if ((chosen > 7) & (chosen != ZERO_BYTE)).any():
        raise KernelFault("V_PERM_B32 with signs")
    picked = np.take_along_axis(np.pad(both, ((0, 0), (0, ZERO_BYTE - 7))), chosen.astype(np.int64), 1)
    return np.ascontiguousarray(picked).view(np.uint32)[:, 0]


def by_table(a: Words, b: Words, c: Words, table: int) -> Words:
    """V_BITOP3: bit 4a + 2b + c of the table."""
    found = np.zeros_like(a)
    for index in range(8):
        if table >> index & 1:
            x, y, z = (word if index >> at & 1 else ~word for word, at in ((a, 2), (b, 1), (c, 0)))
            found |= x & y & z
    return found


LANES_ALONE: dict[str, Callable[..., Words]] = {
    "v_mov_b32": lambda x: x,
    "v_and_b32": lambda x, y: x & y,
    "v_or_b32": lambda x, y: x | y,
    "v_xor_b32": lambda x, y: x ^ y,
    "v_add_u32": lambda x, y: x + y,
    "v_mul_lo_u32": lambda x, y: x * y,
    "v_mul_u32_u24": lambda x, y: (x & np.uint32(0xFFFFFF)) * (y & np.uint32(0xFFFFFF)),
    "v_lshlrev_b32": lambda n, x: x << (n & np.uint32(31)),
    "v_lshrrev_b32": lambda n, x: x >> (n & np.uint32(31)),
    "v_ashrrev_i32": lambda n, x: (signed(x) >> signed(n & np.uint32(31))).view(np.uint32),
    "v_lshl_or_b32": lambda x, n, y: x << (n & np.uint32(31)) | y,
    "v_and_or_b32": lambda x, y, z: x & y | z,
    "v_or3_b32": lambda x, y, z: x | y | z,
    "v_lshl_add_u32": lambda x, n, y: (x << (n & np.uint32(31))) + y,
    "v_bfe_i32": lambda x, at, n: field_of(x, int(at[0]), int(n[0]), sign=True),
    "v_bfe_u32": lambda x, at, n: field_of(x, int(at[0]), int(n[0]), sign=False),
    "v_perm_b32": permuted,
    "v_accvgpr_write_b32": lambda x: x,
    "v_accvgpr_read_b32": lambda x: x,
}
SCALARS: dict[str, Callable[[int, int, int], tuple[int, int | None]]] = {
    # of two unsigned numbers and SCC: the result, and SCC where it is written
    "s_mov_b32": lambda x, y, scc: (x, None),
    "s_movk_i32": lambda x, y, scc: (x, None),
    "s_and_b32": lambda x, y, scc: (x & y, int(x & y != 0)),
    "s_or_b32": lambda x, y, scc: (x | y, int(x | y != 0)),
    "s_lshl_b32": lambda x, y, scc: (x << (y & 31), int(x << (y & 31) & 0xFFFFFFFF != 0)),
    "s_lshr_b32": lambda x, y, scc: (x >> (y & 31), int(x >> (y & 31) != 0)),
    "s_ashr_i32": lambda x, y, scc: (whole(x) >> (y & 31), int(whole(x) >> (y & 31) != 0)),
    "s_add_i32": lambda x, y, scc: (x + y, int(not -(1 << 31) <= whole(x) + whole(y) < 1 << 31)),
    "s_add_u32": lambda x, y, scc: (x + y, x + y >> 32),
    "s_addc_u32": lambda x, y, scc: (x + y + scc, x + y + scc >> 32),
    "s_lshl1_add_u32": lambda x, y, scc: (2 * x + y, int(2 * x + y >> 32 != 0)),
    "s_mul_i32": lambda x, y, scc: (x * y, None),
    "s_bfe_u32": lambda x, y, scc: (bits(x, y), int(bits(x, y) != 0)),
    "s_bfe_i32": lambda x, y, scc: (extended(bits(x, y), y >> 16), int(bits(x, y) != 0)),
}
COMPARED: dict[str, Callable[[int, int], bool]] = {
    "s_cmp_lg_u32": lambda x, y: x != y,
    "s_cmp_eq_u32": lambda x, y: x == y,
    "s_cmpk_lt_i32": lambda x, y: whole(x) < whole(y),
    "s_cmp_lt_i32": lambda x, y: whole(x) < whole(y),
}


def whole(x: int) -> int:
    """A 32-bit number with its sign."""
    return extended(x & 0xFFFFFFFF, 32)


def extended(x: int, width: int) -> int:
    return x - (1 << width) if width and x >> (width - 1) & 1 else x


def bits(x: int, where: int) -> int:
    return x >> (where & 31) & ((1 << (where >> 16)) - 1)


def execute(wave: Wave, made: Instruction) -> None:
    """One instruction that goes on to the next."""
    opcode, operands = made.opcode, made.operands
    if opcode in LANES_ALONE:
        wave.put(operands[0], LANES_ALONE[opcode](*(wave.words(x)[0] for x in operands[1:]))[None])
    elif opcode in SCALARS:
        given = operands if opcode == "s_addk_i32" else operands[1:]
        x, y = (*(int(wave.words(each)[0, 0]) for each in given), 0)[:2]
        value, scc = SCALARS[opcode](x, y, wave.scc)
        wave.put(operands[0], np.uint32([[value & 0xFFFFFFFF]]))
        wave.scc = wave.scc if scc is None else scc
    elif opcode in COMPARED:
        wave.scc = int(COMPARED[opcode](*(int(wave.words(each)[0, 0]) for each in operands)))
    elif opcode in OTHERS:
        OTHERS[opcode](wave, made)
    elif match := re.fullmatch(
        r"(global|ds)_(load|store|read|write)_(ubyte|u16|dword|b32|b64|b128|dwordx(\d))", opcode
    ):
        (_global if match[1] == "global" else _lds)(wave, made, match[2], match[3])
    elif match := re.fullmatch(r"s_load_dword(?:x(\d))?", opcode):
        at = int(wave.wide(operands[1])[0]) + int(operands[2], 0)
        content = wave.machine.memory.load(np.array([at]), 4 * int(match[1] or 1)).view(np.uint32).T
        wave.later("lgkmcnt", lambda: wave.put(operands[0], content), operands[0])
    elif match := re.fullmatch(r"v_mfma_scale_f32_(\d+x\d+x\d+)_f8f6f4", opcode):
        _mfma(wave, made, match[1])
    else:
        raise KernelFault(f"no {opcode} here")


SIZES = {"ubyte": 1, "u16": 2, "dword": 4, "b32": 4, "b64": 8, "b128": 16, "dwordx2": 8, "dwordx4": 16}


def _filled(content: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bytes of a narrow load as whole registers."""
    return np.pad(content, ((0, 0), (0, -content.shape[1] % 4)))


def _address(wave: Wave, vector: str, base: str, made: Instruction) -> NDArray[np.uint64]:
    """64 bits in two registers of each lane, or 32 behind a scalar base."""
    at = wave.wide(vector) if base == "off" else wave.wide(base) + wave.words(vector)[0].astype(np.uint64)
    return at + np.uint64(made.number("offset"))


def _global(wave: Wave, made: Instruction, way: str, kind: str) -> None:
    memory, size = wave.machine.memory, SIZES[kind]
    if way == "load":
        target, vector, base = made.operands
        content = _filled(memory.load(_address(wave, vector, base, made), size))
        wave.later("vmcnt", lambda: wave.put_bytes(target, content), target)
    else:
        vector, source, base = made.operands
        stored = np.ascontiguousarray(wave.words(source).T).view(np.uint8)[:, :size]
        at = _address(wave, vector, base, made)
        wave.later("vmcnt", lambda: memory.store(at, stored, new=False))


def _lds(wave: Wave, made: Instruction, way: str, kind: str) -> None:
    lds, at = wave.machine.lds, wave.words(made.operands[way == "read"])[0] + np.uint32(made.number("offset"))
    if way == "read":
        target = made.operands[0]
        wave.later("lgkmcnt", lambda: wave.put_bytes(target, _filled(lds.load(at, SIZES[kind]))), target)
    else:
        stored = np.ascontiguousarray(wave.words(made.operands[1]).T).view(np.uint8)
        wave.later("lgkmcnt", lambda: lds.store(at, stored, new=True))


def _two_reads(wave: Wave, made: Instruction) -> None:
    """Two words, 64 words apart for each unit of an offset."""
    target, lds = made.operands[0], wave.machine.lds
    at = wave.words(made.operands[1])[0]
    places = [at + np.uint32(256 * made.number(name)) for name in ("offset0", "offset1")]
    wave.later("lgkmcnt", lambda: wave.put_bytes(target, np.concatenate([lds.load(x, 4) for x in places], 1)), target)


def _two_writes(wave: Wave, made: Instruction) -> None:
    """Two pieces, 64 of them apart for each unit of an offset."""
    at, lds = wave.words(made.operands[0])[0], wave.machine.lds
    pieces = [np.ascontiguousarray(wave.words(source).T).view(np.uint8) for source in made.operands[1:]]
    size = 64 * pieces[0].shape[1]
    places = [at + np.uint32(size * made.number(name)) for name in ("offset0", "offset1")]
    for place, piece in zip(places, pieces, strict=True):
        lds.at(place, piece.shape[1])
    wave.later(
        "lgkmcnt", lambda: [lds.store(x, piece, new=True) for x, piece in zip(places, pieces, strict=True)] and None
    )


def _wait(wave: Wave, made: Instruction) -> None:
    for counter, left in re.findall(r"(vmcnt|lgkmcnt)\((\d+)\)", " ".join(made.operands)):
        wave.wait(counter, int(left))


def _mfma(wave: Wave, made: Instruction, shape: str) -> None:
    """D = A B + C, block-scaled: registers to matrices by the maps, the product, and back."""
    maps, (target, *sources) = wave.machine.maps, made.operands
    low, high = made.flags("op_sel"), made.flags("op_sel_hi")
    formats = [OPERAND_FORMATS[made.number(name)] for name in ("cbsz", "blgp")]
    matrices, scales = [], []
    for which, (side, format) in enumerate(zip("ab", formats, strict=True)):
        packed = np.ascontiguousarray(wave.words(sources[which]).T).view(np.uint8)
        suffix = "" if format[-2:] != "m1" else ".fp4"
        if suffix:
            pair = (packed & 15, packed >> 4)
            packed = np.stack(pair if maps.low_first else pair[::-1], -1).reshape(LANES, -1)
        held = maps.operand(f"mfma.{shape}.f8f6f4.{side}{suffix}")
        matrices.append(_matrix(held, packed))
        byte = maps.byte(low[which], high[which])
        word = (
            np.ascontiguousarray(wave.words(sources[3 + which])[0]).view(np.uint8).reshape(LANES, 4)[:, byte : byte + 1]
        )
        scales.append(_matrix(maps.scale(f"mfma.{shape}.f8f6f4.sf{side}"), word))
    d = maps.result(f"mfma.{shape}.f8f6f4.d")
    c = _matrix(d, np.ascontiguousarray(wave.words(sources[2]).T).view(np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnverifiedProfileWarning)
        product = numerics.mma(
            matrices[0],
            matrices[1].T,
            c,
            unit="mfma.scale",
            a_format=formats[0],
            b_format=formats[1],
            target="gfx950",
            a_scale=scales[0],
            b_scale=scales[1].T,
            scale_format="e8m0",
            k=matrices[0].shape[1],
        )
    wave.put(target, np.ascontiguousarray(product[d.coord(*every(LANES, d.values))]).view(np.uint32).T)


def _matrix(held: Any, values: NDArray[Any]) -> NDArray[Any]:
    """What the lanes hold, put where the map says."""
    rows, columns = np.broadcast_arrays(*held.coord(*every(LANES, values.shape[1])))
    found = np.zeros((int(rows.max()) + 1, int(columns.max()) + 1), values.dtype)
    found[rows, columns] = values
    return found


OTHERS: dict[str, Callable[[Wave, Instruction], None]] = {
    "s_nop": lambda wave, made: None,
    "s_waitcnt": _wait,
    "s_addk_i32": lambda wave, made: execute(
        wave, replace(made, opcode="s_add_i32", operands=(made.operands[0], *made.operands))
    ),
    "v_readfirstlane_b32": lambda wave, made: wave.put(made.operands[0], wave.words(made.operands[1])),
    "v_lshl_add_u64": lambda wave, made: wave.put_wide(
        made.operands[0],
        (wave.wide(made.operands[1]) << wave.wide(made.operands[2])) + wave.wide(made.operands[3]),
    ),
    "v_lshlrev_b64": lambda wave, made: wave.put_wide(
        made.operands[0], wave.wide(made.operands[2]) << wave.wide(made.operands[1])
    ),
    "v_bitop3_b32": lambda wave, made: wave.put(
        made.operands[0], by_table(*(wave.words(x)[0] for x in made.operands[1:]), made.number("bitop3"))[None]
    ),
    "ds_read2st64_b32": _two_reads,
    "ds_write2st64_b64": _two_writes,
}
