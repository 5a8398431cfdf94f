"""The probe of wmma: every lane's registers after a load, the place of every stored register, and the products.

A form is one kernel of WARPS warps over their own stretch of `in` and of `out`. A GPU ran `ptx()` once on `inputs`; the
simulator runs the identical text on identical bytes. This module does not use a fragment's layout: loads read and
stores write elements that are all different, products read random ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import F16, F32, F64, element_named
from refsim.layouts.families.core import Shape
from refsim.layouts.families.wmma import WMMA_SHAPES
from refsim.silicon.vectors import splitmix64

WARPS = 8
STRETCH = 4096
"""Bytes of `in` and of `out` that belong to a warp."""
_PLACES = {"a": 0, "b": 1024, "c": 2048}
_HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"


@dataclass(frozen=True)
class WmmaForm:
    """One kernel: `body` works with %in, %out and %lane; `kind` is load, store or mma; `bits` is an element's width."""

    name: str
    kind: str
    bits: int
    body: str

    def kernel(self, entry: str) -> str:
        """Return the PTX entry (in, out)."""
        return "\n".join(
            [
                f".visible .entry {entry}(.param .u64 source, .param .u64 target) {{",
                ".reg .b64 %in, %out, %mine; .reg .b32 %lane, %warp, %thread;",
                "ld.param.u64 %in, [source]; ld.param.u64 %out, [target]; mov.u32 %thread, %tid.x;",
                f"shr.u32 %warp, %thread, 5; and.b32 %lane, %thread, 31; mad.wide.u32 %in, %warp, {STRETCH}, %in;",
                f"mad.wide.u32 %out, %warp, {STRETCH}, %out;",
                self.body,
                "ret;",
                "}",
            ]
        )

    def inputs(self) -> NDArray[np.uint8]:
        """Return the bytes of `in`: element numbers (in odd warps their upper bytes) for loads and stores, else
        noise."""
        count = 8 * STRETCH // self.bits
        if self.kind != "mma":
            number = np.arange(count, dtype=np.uint64)
            stretches = [number >> np.uint64(8 * (warp % 2) if self.bits == 8 else 0) for warp in range(WARPS)]
            return np.concatenate(stretches).astype(f"u{self.bits // 8}").view(np.uint8)
        noise = splitmix64(np.arange(WARPS * STRETCH // 8, dtype=np.uint64))
        return _moderate(noise.view(f"u{self.bits // 8}"), self.bits, self.name).view(np.uint8)


def _moderate(words: NDArray[np.unsignedinteger], bits: int, name: str) -> NDArray[np.unsignedinteger]:
    """Return noise whose float values stay near 1, so that no product overflows; integers are unchanged."""
    if bits == 8:
        return words
    mantissa, bias = {16: (7, 127) if ".bf16." in name else (10, 15), 32: (23, 127), 64: (52, 1023)}[bits]
    exponent = bias - 3 + (words >> (bits - 4)) % 7
    keep = (1 << (bits - 1)) | ((1 << mantissa) - 1)
    number = words.dtype.type
    return np.asarray((words & number(keep)) | exponent.astype(words.dtype) << number(mantissa))


def _register_type(type: str) -> str:
    """Return the PTX type of the registers: f32 and f64 as they are, else b32."""
    return type if element_named(type) in (F32, F64) else "b32"


def _registers(type: str, count: int, name: str) -> tuple[str, str, list[str]]:
    """Return the declaration of a fragment, its list, and its registers."""
    kind = _register_type(type)
    names = [f"%{name}{place}" for place in range(count)]
    return f".reg .{kind} {', '.join(names)};", "{" + ", ".join(names) + "}", names


def _count(shape: Shape, type: str, operand: str) -> int:
    """Return the number of registers of a fragment by the ISA's table: eight for f16 operands, else what its elements
    fill."""
    if element_named(type) is F16 and operand in "ab":
        return 8
    lines = shape.n if operand == "b" else shape.m
    return lines * (shape.k if operand in "ab" else shape.n) // max(32 // element_named(type).code_bits, 1) // 32


def _dump(type: str, names: list[str], operation: str) -> list[str]:
    """Return lines that move each register to or from memory: register r of lane l is item 32 r + l."""
    size, suffix = max(4, element_named(type).code_bits // 8), _register_type(type)
    lines = [f"mad.wide.u32 %mine, %lane, {size}, {'%out' if operation == 'st' else '%in'};"]
    for place, name in enumerate(names):
        at = f"[%mine+{32 * size * place}]"
        lines.append(f"st.global.{suffix} {at}, {name};" if operation == "st" else f"ld.global.{suffix} {name}, {at};")
    return lines


def _loads() -> Iterator[WmmaForm]:
    fragments = [(s, t, o) for s in WMMA_SHAPES for t, o in [*product(s.types, "ab"), *product(s.accumulators, "c")]]
    for (shape, type, operand), layout in product(dict.fromkeys(fragments), ("row", "col")):
        declared, listed, names = _registers(type, _count(shape, type, operand), "r")
        lines = [declared, f"wmma.load.{operand}.sync.aligned.{layout}.{shape}.global.{type} {listed}, [%in];"]
        name = f"wmma.load.{operand}.{layout}.{shape}.{type}"
        yield WmmaForm(name, "load", element_named(type).code_bits, "\n".join([*lines, *_dump(type, names, "st")]))


def _stores() -> Iterator[WmmaForm]:
    for (shape, type), layout in product(
        dict.fromkeys((s, t) for s in WMMA_SHAPES for t in s.accumulators), ("row", "col")
    ):
        declared, listed, names = _registers(type, _count(shape, type, "d"), "r")
        lines = [declared, *_dump(type, names, "ld")]
        lines += [f"wmma.store.d.sync.aligned.{layout}.{shape}.global.{type} [%out], {listed};"]
        yield WmmaForm(
            f"wmma.store.d.{layout}.{shape}.{type}", "store", element_named(type).code_bits, "\n".join(lines)
        )


def _products() -> Iterator[WmmaForm]:
    """Yield the forms of products, A by rows and B by columns; a 16-bit C has noise like 16-bit operands."""
    for shape in WMMA_SHAPES:
        for type, c_type, d_type in product(shape.types, shape.accumulators, shape.accumulators):
            types = f"{d_type}.{c_type}" if element_named(type) is F16 else f"{d_type}.{type}.{type}.{c_type}"
            lines, lists = [], {}
            for operand, held in zip("abcd", (type, type, c_type, d_type), strict=True):
                declared, lists[operand], _ = _registers(held, _count(shape, held, operand), operand)
                lines.append(declared)
            for operand, layout, held in (("a", "row", type), ("b", "col", type), ("c", "row", c_type)):
                load = f"wmma.load.{operand}.sync.aligned.{layout}.{shape}.global.{held}"
                lines.append(f"{load} {lists[operand]}, [%in+{_PLACES[operand]}];")
            listed = ", ".join(lists[operand] for operand in "dabc")
            for extra in ("", ".satfinite") if element_named(type).is_integer else ("",):
                body = [*lines, f"wmma.mma.sync.aligned.row.col.{shape}{extra}.{types} {listed};"]
                body += [f"wmma.store.d.sync.aligned.row.{shape}.global.{d_type} [%out], {lists['d']};"]
                yield WmmaForm(
                    f"wmma.mma.{shape}{extra}.{types}", "mma", element_named(type).code_bits, "\n".join(body)
                )


def forms() -> list[WmmaForm]:
    """Return every form in order; entry k of the module is `form_<k>`. Accumulators of several operand types are one
    form."""
    return list({form.name: form for form in [*_loads(), *_stores(), *_products()]}.values())


def module(chosen: Sequence[Any]) -> str:
    """Return the PTX module with one entry for each form."""
    return _HEAD + "\n".join(form.kernel(f"form_{number}") for number, form in enumerate(chosen)) + "\n"


def ptx() -> str:
    """Return the PTX module of all forms, as the GPU ran it."""
    return module(forms())
