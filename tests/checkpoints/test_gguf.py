"""GGUF files built by hand: the container byte by byte, and blocks decoded one element at a time."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from refsim.checkpoints.conversion import dequantize_file
from refsim.checkpoints.gguf_blocks import DECODERS
from refsim.checkpoints.reading import weights_of
from refsim.errors import Kind, RefsimError
from refsim.files.gguf import GGUF_BLOCKS, TENSOR_TYPES
from refsim.files.parts import source
from tests.checkpoints.handmade import FP4

NUMBER = {name: number for number, (name, _, _) in TENSOR_TYPES.items()}
NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def text(word: str) -> bytes:
    return struct.pack("<Q", len(word.encode())) + word.encode()


def container(
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]], fields: bytes = b"", count: int = 0, alignment: int = 32
) -> bytes:
    """Return a file of version 3: shapes are in NumPy's order here and reversed in the file."""
    head, body = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), count) + fields, b""
    for name, (kind, shape, raw) in tensors.items():
        body += b"\0" * (-len(body) % alignment)
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], NUMBER[kind], len(body))
        body += raw
    return head + b"\0" * (-len(head) % alignment) + body


def half(raw: bytes) -> float:
    return struct.unpack("<e", raw)[0]


def q4_0(raw: bytes) -> list[float]:
    return [half(raw[:2]) * ((raw[2 + i % 16] >> (4 * (i // 16)) & 15) - 8) for i in range(32)]


def q8_0(raw: bytes) -> list[float]:
    return [half(raw[:2]) * struct.unpack("<b", raw[2 + i : 3 + i])[0] for i in range(32)]


def iq4_nl(raw: bytes) -> list[float]:
    return [half(raw[:2]) * NL[raw[2 + i % 16] >> (4 * (i // 16)) & 15] for i in range(32)]


def mxfp4(raw: bytes) -> list[float]:
    return [2.0 ** (raw[0] - 127) * FP4[raw[1 + i % 16] >> (4 * (i // 16)) & 15] for i in range(32)]


def q4_k(raw: bytes) -> list[float]:
    """Scale and minimum j of 6 bits: whole bytes for j < 4, else a half byte and two bits of an earlier one."""
    d, dmin, s, out = half(raw[:2]), half(raw[2:4]), raw[4:16], []
    for i in range(256):
        j, pair, within = i // 32, i // 64, i % 32
        scale = s[j] & 63 if j < 4 else (s[j + 4] & 15) | (s[j - 4] >> 6) << 4
        least = s[j + 4] & 63 if j < 4 else (s[j + 4] >> 4) | (s[j] >> 6) << 4
        out.append(d * scale * (raw[16 + 32 * pair + within] >> (4 * (j % 2)) & 15) - dmin * least)
    return out


def q6_k(raw: bytes) -> list[float]:
    """Halves of 128: bits 0 to 3 in ql, bits 4 and 5 in qh, a signed scale for 16."""
    ql, qh, scales, d, out = raw[:128], raw[128:192], raw[192:208], half(raw[208:210]), []
    for i in range(256):
        part, within = i // 128, i % 128
        low = ql[64 * part + within % 64] >> (4 * (within // 64)) & 15
        high = qh[32 * part + within % 32] >> (2 * (within // 32)) & 3
        out.append(d * struct.unpack("<b", scales[i // 16 : i // 16 + 1])[0] * ((low | high << 4) - 32))
    return out


def q2_k(raw: bytes) -> list[float]:
    """A byte of scale and minimum for 16; two bits of a code in each of four passes over 32 bytes."""
    out = []
    for i in range(256):
        code = raw[16 + 32 * (i // 128) + i % 32] >> (2 * (i % 128 // 32)) & 3
        of = raw[i // 16]
        out.append(half(raw[80:82]) * (of & 15) * code - half(raw[82:84]) * (of >> 4))
    return out


def q3_k(raw: bytes) -> list[float]:
    """Codes as in q2_k, less 4 where bit i // 32 of byte i % 32 of the mask is 0; scales of 6 bits, less 32."""
    mask, codes, scales, out = raw[:32], raw[32:96], raw[96:108], []
    for i in range(256):
        j = i // 16
        low = scales[j % 8] >> (4 * (j // 8)) & 15
        high = scales[8 + j % 4] >> (2 * (j // 4)) & 3
        code = codes[32 * (i // 128) + i % 32] >> (2 * (i % 128 // 32)) & 3
        code -= 0 if mask[i % 32] >> (i // 32) & 1 else 4
        out.append(half(raw[108:110]) * ((low | high << 4) - 32) * code)
    return out


def iq4_xs(raw: bytes) -> list[float]:
    """As IQ4_NL in eight groups of 32; the scale of a group has 4 bits in one place, and 2 in another."""
    out = []
    for i in range(256):
        j, within = i // 32, i % 32
        low = raw[4 + j // 2] >> (4 * (j % 2)) & 15
        high = struct.unpack("<H", raw[2:4])[0] >> (2 * j) & 3
        code = raw[8 + 16 * j + within % 16] >> (4 * (within // 16)) & 15
        out.append(half(raw[:2]) * ((low | high << 4) - 32) * NL[code])
    return out


def tq2_0(raw: bytes) -> list[float]:
    return [half(raw[64:]) * ((raw[32 * (i // 128) + i % 32] >> (2 * (i % 128 // 32)) & 3) - 1) for i in range(256)]


def tq1_0(raw: bytes) -> list[float]:
    """Digit k of base 3 of a byte: of byte * 3^k modulo 256, the product with 3 over 256."""
    places = [(i % 32, i // 32) for i in range(160)] + [(32 + i % 16, i // 16) for i in range(80)]
    places += [(48 + i % 4, i // 4) for i in range(16)]
    return [half(raw[52:]) * ((raw[byte] * 3**digit % 256 * 3 >> 8) - 1) for byte, digit in places]


BY_HAND: dict[str, Callable[[bytes], list[float]]] = {
    "Q4_0": q4_0,
    "Q8_0": q8_0,
    "IQ4_NL": iq4_nl,
    "MXFP4": mxfp4,
    "Q4_K": q4_k,
    "Q6_K": q6_k,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "IQ4_XS": iq4_xs,
    "TQ1_0": tq1_0,
    "TQ2_0": tq2_0,
}


def blocks(rng: np.random.Generator, kind: str, count: int) -> bytes:
    """Return random blocks whose float16 factors are finite."""
    size = GGUF_BLOCKS[kind][1]
    raw = rng.integers(0, 256, (count, size), dtype=np.uint8)
    factors = {
        "Q6_K": (208,),
        "Q4_K": (0, 2),
        "MXFP4": (),
        "Q2_K": (80, 82),
        "Q3_K": (108,),
        "TQ1_0": (52,),
        "TQ2_0": (64,),
    }
    for at in factors.get(kind, (0,)):
        raw[:, at : at + 2] = rng.standard_normal(count).astype("<f2").view(np.uint8).reshape(count, 2)
    if kind == "MXFP4":
        raw[:, 0] = rng.integers(100, 150, count)
    return raw.tobytes()


@pytest.mark.parametrize("kind", BY_HAND)
def test_values_are_those_of_the_format(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    elements, size = GGUF_BLOCKS[kind]
    shape = (6, 3 * elements)
    raw = blocks(rng, kind, 18)
    norm = rng.standard_normal(7).astype("<f4")
    path = tmp_path / "model.gguf"
    path.write_bytes(container({"blk.0.q.weight": (kind, shape, raw), "norm.weight": ("F32", (7,), norm.tobytes())}))
    dequantize_file(path, tmp_path / "x.npz")
    made = np.load(tmp_path / "x.npz")
    want = np.array([BY_HAND[kind](raw[at : at + size]) for at in range(0, len(raw), size)]).reshape(shape)
    np.testing.assert_array_equal(made["blk.0.q.weight"], want.astype(np.float32))
    np.testing.assert_array_equal(made["norm.weight"], norm)
    with source(path) as file:
        weight = weights_of(file)["blk.0.q.weight"]
        np.testing.assert_array_equal(weight.values(2, 3), want[2:5])


def test_metadata_is_passed_over_and_alignment_counts(tmp_path: Path) -> None:
    fields = text("general.name") + struct.pack("<I", 8) + text("ours")
    fields += text("general.alignment") + struct.pack("<II", 4, 64)
    fields += text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bc")
    fields += text("scores") + struct.pack("<IIQ3f", 9, 6, 3, 1, 2, 3)
    raw = blocks(np.random.default_rng(1), "Q8_0", 2)
    path = tmp_path / "model.gguf"
    path.write_bytes(container({"a": ("F16", (3,), b"\0\x3c" * 3), "w": ("Q8_0", (64,), raw)}, fields, 4, alignment=64))
    with source(path) as file:
        assert file.metadata == {"general.name": "ours"}
        assert file.regions["w"].begin == 64
        np.testing.assert_array_equal(weights_of(file)["w"].values(0, 1)[0], q8_0(raw[:34]) + q8_0(raw[34:]))


def broken() -> dict[str, tuple[str, bytes]]:
    good = {"w": ("Q8_0", (64,), bytes(68))}
    whole = container(good)
    two = container({**good, "v": ("Q8_0", (64,), bytes(68))})
    many = struct.pack("<IIQ", 9, 8, 1 << 22)
    texts = struct.pack("<IQ", 8, 2) + text("a") + struct.pack("<Q", 1 << 40) + bytes(40)
    huge = text("x") + struct.pack("<IIQ", 9, 8, 1 << 60)
    return {
        "another file": ("bad-file", b"GGML" + whole[4:]),
        "an old version": ("bad-file", whole[:4] + struct.pack("<I", 1) + whole[8:]),
        "big-endian": ("bad-file", whole[:4] + struct.pack(">I", 3) + whole[8:]),
        "cut in the header": ("truncated-file", whole[:30]),
        "cut in a tensor": ("truncated-file", whole[:-1]),
        "rows that end inside a block": ("bad-shape", container({"w": ("Q8_0", (63,), bytes(68))})),
        "one name twice": ("bad-file", whole[:8] + struct.pack("<Q", 2) + whole[16:24] + 2 * whole[24:56] + bytes(400)),
        "bytes of two tensors": ("bad-file", two[: two.index(b"v") + 17] + bytes(8) + two[two.index(b"v") + 25 :]),
        "a field of many texts": ("too-large", container(good, text("x") + many + bytes(1 << 23), 1)),
        "a text beyond its field": ("truncated-file", container(good, text("x") + many[:4] + texts, 1)),
        "many fields": ("too-large", whole[:16] + struct.pack("<Q", 1 << 18) + whole[24:]),
        "a field beyond the file": ("truncated-file", container(good, huge, 1)),
        "an unknown field": ("bad-file", container(good, text("x") + struct.pack("<I", 77), 1)),
        "an alignment of 3": ("bad-file", container(good, text("general.alignment") + struct.pack("<II", 4, 3), 1)),
        "a claim of a trillion tensors": ("too-large", whole[:8] + struct.pack("<Q", 1 << 40) + whole[16:]),
        "a shape that no array has": ("bad-shape", container({"w": ("F32", (1 << 40, 1 << 40), b"")})),
        "a name that is not UTF-8": ("bad-file", whole.replace(b"\x01\0\0\0\0\0\0\0w", b"\x01\0\0\0\0\0\0\0\xff")),
    }


@pytest.mark.parametrize("fault", broken())
def test_a_broken_file_is_one_error(fault: str, tmp_path: Path) -> None:
    code, content = broken()[fault]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(RefsimError) as found:
        dequantize_file(path, tmp_path / "x.npz")
    assert (found.value.code, found.value.kind) == (code, Kind.UNREADABLE)
    assert str(path) in found.value.where


def test_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    elements, size = GGUF_BLOCKS["IQ2_XS"]
    good = blocks(np.random.default_rng(1), "Q8_0", 1)
    path.write_bytes(container({"a": ("IQ2_XS", (elements,), bytes(size)), "w": ("Q8_0", (32,), good)}))
    with pytest.raises(RefsimError, match="'a' is IQ2_XS") as found:
        dequantize_file(path, tmp_path / "x.npz")
    assert found.value.code == "unsupported-dtype"
    dequantize_file(path, tmp_path / "x.npz", keys=("w",))


@pytest.mark.peers
def test_blocks_are_those_of_the_package() -> None:
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install '.[testing,peers]'")
    rng = np.random.default_rng(5)
    for kind, decode in DECODERS.items():
        raw = rng.integers(0, 256, (2000, GGUF_BLOCKS[kind][1]), dtype=np.uint8)
        with np.errstate(all="ignore"):
            want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
            np.testing.assert_array_equal(decode(raw).astype(np.float32), want, err_msg=kind)
