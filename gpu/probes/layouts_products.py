"""Products on a GPU: places of A and B one by one, and the place of D where a 1 comes out.

Nothing here knows a layout: descriptors are written bit by bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import layouts_forms
import numpy as np
from layouts_forms import TYPES, Form
from layouts_prober import ABSENT, Prober
from numpy.typing import NDArray

ALL, NONE, MANY = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD


class IrregularError(Exception):
    """What came out of D is no matrix product; the recording goes on without it and says so."""


@dataclass(frozen=True)
class Side:
    """An operand in shared memory: its descriptor's bytes, counted from its region, and its major."""

    major: str
    start: int
    leading: int
    stride: int
    base: int
    swizzle: str
    region_bytes: int

    @property
    def word(self) -> int:
        mode = {"none": 0, "128B": 1, "64B": 2, "32B": 3}[self.swizzle]
        return self.start >> 4 | self.leading >> 4 << 16 | self.stride >> 4 << 32 | self.base << 49 | mode << 62


@dataclass(frozen=True)
class Product:
    """A recording of one form: operands in shared memory have a Side, those in registers None."""

    name: str
    form: Form
    a: Side | None = None
    b: Side | None = None


def side(
    rows: int,
    element_bits: int,
    major: str,
    swizzle: str,
    *,
    start: int = 0,
    base: int = 0,
    tight: bool = False,
    leading: int | None = None,
) -> Side:
    """An operand of `rows` by 32 bytes of K (K-major), or of 16 k (MN-major), with gaps between its atoms.

    `tight` puts core matrices that follow each other along K together, else those along M or N.
    """
    span = {"none": 16, "32B": 32, "64B": 64, "128B": 128}[swizzle]
    atom = 8 * span
    if swizzle == "none":
        along_mn, along_k = rows // 8, 2
        near = 128 if tight else 256
        far = near * (along_k if tight else along_mn) + 128
        lead, stride = (near, far) if tight else (far, near)
        extent = (along_k - 1) * lead + (along_mn - 1) * stride + atom
    elif major == "K":
        lead, stride = 16, 2 * atom
        extent = (rows // 8 - 1) * stride + atom
    else:
        chunks = max(1, rows * element_bits // 8 // span)
        lead, stride = 2 * atom, (2 * chunks + 1) * atom
        extent = (chunks - 1) * lead + stride + atom
    region = (start + extent + 2047) // 1024 * 1024
    return Side(major, start, lead if leading is None else leading, stride, base, swizzle, region)


def products() -> Iterator[Product]:
    """Every recording of a product."""
    for form in layouts_forms.forms():
        _, n, _ = form.shape
        bits = TYPES[form.type][0]
        if form.kind == "mma":
            yield Product(form.name, form)
        elif form.kind == "wgmma":
            yield Product(form.name, form, None, side(n, bits, "K", "none"))
        else:
            for label, options in variants(form):
                a, b = (side(rows, bits, major, **options) for rows, major in zip((64, n), form.majors, strict=True))
                yield Product(f"{form.name}.{label}", form, a, b)


def variants(form: Form) -> Iterator[tuple[str, dict[str, Any]]]:
    """Descriptors of one form: every swizzle, starts within a row of 128 bytes, base offsets, a leading offset unused."""
    yield "none", {"swizzle": "none"}
    for swizzle in ("32B", "64B", "128B"):
        yield swizzle, {"swizzle": swizzle}
    if form.type == "f16" or form.majors == ("MN", "MN"):
        yield "none.tight", {"swizzle": "none", "tight": True}
    if form.majors != ("K", "K"):
        return
    yield "128B.start32", {"swizzle": "128B", "start": 32}
    if form.type != "f16":
        return
    yield "128B.start96", {"swizzle": "128B", "start": 96}
    yield "64B.start32", {"swizzle": "64B", "start": 32}
    yield "128B.leading4096", {"swizzle": "128B", "leading": 4096}
    yield "128B.start256", {"swizzle": "128B", "start": 256}
    yield "128B.start256.base2", {"swizzle": "128B", "start": 256, "base": 2}
    yield "128B.start512.base4", {"swizzle": "128B", "start": 512, "base": 4}
    yield "64B.start128.base1", {"swizzle": "64B", "start": 128, "base": 1}
    yield "32B.start128.base1", {"swizzle": "32B", "start": 128, "base": 1}


def record_products(gpu: Prober) -> Iterator[tuple[str, dict[str, NDArray[Any]], dict[str, Any]]]:
    """Every product; one that is irregular is named and left out."""
    for product in products():
        try:
            arrays, row = record_product(gpu, product)
        except IrregularError as fault:
            print(f"irregular: {fault}", flush=True)
            continue
        yield product.name, arrays, row


def record_product(gpu: Prober, product: Product) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The classes of one product and its row."""
    form = product.form
    bits = TYPES[form.type][0]
    counts = [
        operand.region_bytes * 8 // bits if operand else form.threads * values
        for operand, values in zip((product.a, product.b), form.values, strict=False)
    ]
    everything = np.array([ALL], np.uint32)
    places = [np.arange(count, dtype=np.uint32) for count in counts]
    used_a = places[0][pairs(gpu, product, places[0], everything)[:, 0] != NONE]
    used_b = places[1][pairs(gpu, product, everything, places[1])[0] != NONE]
    found = pairs(gpu, product, used_a, used_b)
    if (found == MANY).any():
        raise IrregularError(f"{product.name}: a pair of single ones gave several ones")
    arrays = {"a_places": used_a, "b_places": used_b, **classes(product.name, found)}
    if form.kind == "mma":
        arrays["carried"] = gpu.twice(f"{form.entry}_carry", (32 * form.values[2], np.uint64))
    row = {
        "entry": form.entry,
        "kind": form.kind,
        "opcode": form.opcode,
        "shape": form.shape,
        "type": form.type,
        "accumulator": form.accumulator,
        "majors": form.majors,
        "places": counts,
        "pairs": found.size,
    }
    for name, operand in (("a", product.a), ("b", product.b)):
        if operand:
            row[name] = {"word": f"{operand.word:#018x}", "major": operand.major}
    return arrays, row


def pairs(gpu: Prober, product: Product, a: NDArray[np.uint32], b: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """What came out of D for every place of `a` against every place of `b`."""
    uploads = [gpu.driver.to_device(column) for column in (a, b)]
    arguments: list[Any] = []
    shared = 0
    if product.form.kind != "mma":
        a_bytes, b_bytes = (operand.region_bytes if operand else 0 for operand in (product.a, product.b))
        words = [operand.word if operand else 0 for operand in (product.a, product.b)]
        operands = np.zeros(1, np.dtype([("words", np.uint64, 2), ("bytes", np.uint32, 2)]))
        operands["words"], operands["bytes"] = words, (a_bytes, b_bytes)
        arguments.append(operands[0])
        shared = -(-a_bytes // 1024) * 1024 + b_bytes
    for upload, column in zip(uploads, (a, b), strict=True):
        arguments += [np.uint64(int(upload)), np.uint32(len(column))]
    got = gpu.twice(
        product.form.entry,
        (len(a) * len(b), np.uint32),
        *arguments,
        blocks=min(len(a), 2048),
        threads=product.form.threads,
        shared=shared,
    )
    return got.reshape(len(a), len(b))


def classes(name: str, found: NDArray[np.uint32]) -> dict[str, NDArray[np.uint32]]:
    """What `found` says, without loss: D is `d[row, col]` for a pair whose k agree, nothing for others.

    Rows, columns and k are numbered as the places of A (columns: of B) first show them.
    """
    met = found < MANY
    first_b, first_a = met.argmax(axis=1), met.argmax(axis=0)
    a_k, a_row, b_col = numbered(first_b), numbered(found.min(axis=1)), numbered(found.min(axis=0))
    b_k = a_k[first_a]
    d = np.full((a_row.max() + 1, b_col.max() + 1), NONE, np.uint32)
    for begin in range(0, len(found), 1024):
        rows, columns = np.nonzero(met[begin : begin + 1024])
        d[a_row[begin + rows], b_col[columns]] = found[begin + rows, columns]
    for begin in range(0, len(found), 1024):
        part = slice(begin, begin + 1024)
        said = np.where(a_k[part, None] == b_k, d[a_row[part, None], b_col], np.uint32(NONE))
        if not np.array_equal(said, found[part]):
            raise IrregularError(f"{name}: D is not a product of rows, columns and k")
    return {"a_row": a_row, "a_k": a_k, "b_k": b_k, "b_col": b_col, "d": np.where(d == NONE, ABSENT, d)}


def numbered(marks: NDArray[Any]) -> NDArray[np.uint32]:
    """Classes of equal marks, numbered in order of first appearance: [7, 3, 7] gives [0, 1, 0]."""
    _, first, which = np.unique(marks, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first)).astype(np.uint32)[which]
