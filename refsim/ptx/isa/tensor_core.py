"""tcgen05: products of matrices in tensor memory, requested by single threads, and the commits that count them."""

from functools import partial
from typing import Any

import numpy as np

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.tensor_cells import CopyAsked
from refsim.ptx.execution.tensor_product import (
    ColumnMaskError,
    ProductAsked,
    ProductError,
    TensorForm,
    ZeroColumns,
    tensor_form,
    zero_columns,
)
from refsim.ptx.isa.definedness.memory import asked
from refsim.ptx.isa.forms import instruction
from refsim.ptx.isa.tensor_memory import TENSOR_SINCE
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.tensor_map import TENSOR_LANES
from refsim.sources import PTX
from refsim.targets import target_named

_SECTION, _SPARSE = PTX["tcgen05.mma"], PTX["tcgen05.mma.sp"]
_METADATA = "[meta], "
_DESCRIPTOR_RULE = str(PTX["tcgen05, instruction descriptor"])
_COLLECTOR = "{.collector:collector::a::fill|collector::a::use|collector::a::lastuse|collector::a::discard}"
_DOWN_COLLECTOR = "{.collector:collector::a::lastuse|collector::a::discard}"
_B_COLLECTORS = "|".join(
    f"collector::b{buffer}::{use}" for buffer in range(4) for use in ("fill", "use", "lastuse", "discard")
)
_DENSE = "kind::f16|kind::tf32|kind::f8f6f4|kind::i8"
_SHIFTED = ("f16", "tf32")  # the kinds whose D may be divided by a power of two before the addition
_MOST_SHIFT = 15
_SHIFTED_ROWS = (128, 256)  # the M whose A may be shifted by a row
_UNSHIFTED = 110  # a chip without this division
_VECTORS: dict[str, dict[str | None, str]] = {
    "mxf8f6f4": {None: "1x", "block32": "1x", "scale_vec::1X": "1x"},
    "mxf4": {None: "2x", "block32": "2x", "scale_vec::2X": "2x"},
    "mxf4nvf4": {"block16": "4x", "block32": "2x", "scale_vec::4X": "4x", "scale_vec::2X": "2x"},
}
_tensor = partial(instruction, since=TENSOR_SINCE, undefined=asked)
_product = partial(_tensor, ignores=("collector",), by_kind=True)


def _multiply(
    lanes: Lanes,
    kind: str,
    operands: tuple[Array, Array, Array, Array, Array],
    *,
    in_columns: bool,
    disabled: list[Array] | None = None,
    shift: Array | None = None,
    scales: tuple[Array, ...] = (),
    vector: str = "",
    ctas: int = 1,
    is_stationary: bool = False,
    metadata: Array | None = None,
    rows_down: bool = False,
    zeros: Array | None = None,
) -> None:
    """Request one product for each lane, with a sparse A if the lane gives metadata."""
    d, a, b, words, adds = (lanes.full(each) for each in operands)
    division = _division(lanes, kind, shift)
    for one, at in lanes.each():
        try:
            how = {"is_stationary": is_stationary, "is_sparse": metadata is not None}
            form = tensor_form(kind, int(words[at]), lanes.machine.target, vector, ctas, **how)
        except ProductError as error:
            what = f"the instruction descriptor {int(words[at]):#x}: {error}"
            raise one.fault("invalid-operand", 0, what, _DESCRIPTOR_RULE) from None
        off = np.zeros(TENSOR_LANES * ctas, np.bool_)
        if disabled is not None:
            held = np.array([int(lanes.full(each)[at]) for each in disabled], np.uint32)
            off = np.unpackbits(held.view(np.uint8), bitorder="little").astype(np.bool_)
        where = tuple(int(lanes.full(each)[at]) for each in scales)
        from_memory = 0 if metadata is None else int(lanes.full(metadata)[at])
        addresses = int(d[at]), int(a[at]), int(b[at])
        columns = None if zeros is None else _zero_columns(one, int(lanes.full(zeros)[at]), form)
        if rows_down and form.m not in _SHIFTED_ROWS:
            what = f".ashift with M = {form.m}"
            raise one.fault("invalid-operand", 0, what, f"{_SECTION}: .ashift takes M = 128 or 256")
        asked_for = ProductAsked(
            form, *addresses, bool(adds[at]), in_columns, off, division, where, from_memory, rows_down, columns
        )
        lanes.machine.tensor_pipe.multiply(one, asked_for)


def _zero_columns(one: Lanes, word: int, form: TensorForm) -> ZeroColumns:
    """Return the columns that a zero-column mask descriptor selects; raise a fault for a bad descriptor."""
    try:
        return zero_columns(word, form.m, form.n, form.most_shift)
    except ColumnMaskError as error:
        what = f"the zero-column mask descriptor {word:#x}: {error}"
        raise one.fault("invalid-operand", 0, what, str(PTX["zero-column mask descriptor"])) from None


def _division(lanes: Lanes, kind: str, shift: Array | None) -> int:
    """Return the exponent of the division of D, the constant after the predicate; raise a fault if the target lacks
    it."""
    if shift is None:
        return 0
    division = int(shift[0])
    if (
        kind not in _SHIFTED
        or not 0 <= division <= _MOST_SHIFT
        or target_named(lanes.machine.target).number == _UNSHIFTED
    ):
        what = f"scale-input-d {division} with kind::{kind} on {lanes.machine.target}"
        rule = f"{_SECTION}: scale-input-d is 0 to {_MOST_SHIFT}, with the kinds {' and '.join(_SHIFTED)}, not on sm_{_UNSHIFTED}"
        raise lanes.fault("invalid-operand", 0, what, rule)
    return division


def _dense(a: str, mask: str, ctas: int, sparse: str, down: str) -> None:
    """Register tcgen05.mma without scales, for one place of A, with or without a lane mask, sparse A and .ashift."""
    opcode, given = f"tcgen05.mma{sparse}.cta_group::{ctas}.{{kind:{_DENSE}}}", _METADATA if sparse else ""

    @_product(
        f"{opcode}{down}{_DOWN_COLLECTOR if down else _COLLECTOR} [t], {a}, b:b64, {given}idesc:b32, {mask}add:pred, shift:b32?",
        source=_SPARSE if sparse else _SECTION,
    )
    def mma(lanes: Lanes, d: Array, a_from: Array, b: Array, *rest: Any, kind: str) -> None:
        """Request D = A B + D, or A B where `add` is false: D in tensor memory, B by a descriptor, A by either.

        Lanes of D whose mask bit is set stay unchanged. Collector hints change no value. Half of a sparse A is stored;
        metadata in tensor memory gives the elements of B that the stored elements meet. With .ashift, each row of A is
        the previous row.
        """
        metadata, idesc, *others = rest if sparse else (None, *rest)
        disabled, adds, shift = others if mask else (None, *others)
        _multiply(
            lanes,
            kind.removeprefix("kind::"),
            (d, a_from, b, idesc, adds),
            in_columns=a.startswith("["),
            disabled=disabled,
            shift=shift,
            ctas=ctas,
            metadata=metadata,
            rows_down=bool(down),
        )


def _scaled(kind: str, a: str, ctas: int, sparse: str) -> None:
    """Register tcgen05.mma of a kind with block scales."""
    vectors = _VECTORS[kind]
    choice = "|".join(word for word in vectors if word)
    vector = f"{{.vector:{choice}}}" if None in vectors else f".{{vector:{choice}}}"
    opcode, given = f"tcgen05.mma{sparse}.cta_group::{ctas}.kind::{kind}.block_scale", _METADATA if sparse else ""

    @_product(
        f"{opcode}{vector}{_COLLECTOR} [t], {a}, b:b64, {given}idesc:b32, [x], [y], add:pred",
        source=_SPARSE if sparse else _SECTION,
    )
    def mma_block_scale(lanes: Lanes, d: Array, a_from: Array, b: Array, *rest: Array, vector: str | None) -> None:
        """Request D = (A scaled) (B scaled) + D: blocks along K have scales, stored in columns of tensor memory. For a
        sparse A, blocks count stored elements."""
        *metadata, idesc, x, y, add = rest
        _multiply(
            lanes,
            kind,
            (d, a_from, b, idesc, add),
            in_columns=a.startswith("["),
            scales=(x, y),
            vector=vectors[vector],
            ctas=ctas,
            metadata=metadata[0] if sparse else None,
        )


def _stationary(a: str, sparse: str) -> None:
    """Register tcgen05.mma.ws, whose B is stationary."""
    opcode, given = f"tcgen05.mma.ws{sparse}.cta_group::1.{{kind:{_DENSE}}}", _METADATA if sparse else ""

    @_product(
        f"{opcode}{{.collector:{_B_COLLECTORS}}} [t], {a}, b:b64, {given}idesc:b32, add:pred, zeros:b64?",
        source=PTX[f"tcgen05.mma.ws{sparse}"],
    )
    def mma_ws(lanes: Lanes, d: Array, a_from: Array, b: Array, *rest: Any, kind: str) -> None:
        """Request D = A B + D with B stationary: 32 or 64 rows, with the columns in parts below each other, or 128
        rows. A mask gives the columns of B that count as zeros, and the shift of its columns."""
        metadata, idesc, add, zeros = rest if sparse else (None, *rest)
        _multiply(
            lanes,
            kind.removeprefix("kind::"),
            (d, a_from, b, idesc, add),
            in_columns=a.startswith("["),
            is_stationary=True,
            metadata=metadata,
            zeros=zeros,
        )


for _sparse in ("", ".sp"):
    for _a in ("a:b64", "[a]"):
        _stationary(_a, _sparse)
for _ctas in (1, 2):
    for _a in ("a:b64", "[a]"):
        for _sparse in ("", ".sp"):
            for _mask in ("", f"mask:b32*{4 * _ctas}, "):
                for _down in ("", ".ashift") if _a.startswith("[") else ("",):
                    _dense(_a, _mask, _ctas, _sparse, _down)
            for _kind in _VECTORS:
                _scaled(_kind, _a, _ctas, _sparse)


@_tensor(
    "tcgen05.commit.{group:cta_group::1|cta_group::2}.mbarrier::arrive::one{.space:shared::cluster}.b64 [bar]",
    source=PTX["tcgen05.commit"],
    ignores=("group",),
)
def commit(lanes: Lanes, barrier: Array, *, space: str | None) -> None:
    """Arrive at an mbarrier once the tensor core has completed all earlier requests of the thread."""
    lanes.machine.tensor_pipe.commit(lanes, "generic" if space is None else "shared", barrier, None)


@_tensor(
    "tcgen05.commit.{group:cta_group::1|cta_group::2}.mbarrier::arrive::one{.space:shared::cluster}.multicast::cluster.b64 "
    "[bar], ctas:b16",
    source=PTX["tcgen05.commit"],
    ignores=("group",),
)
def commit_for_many(lanes: Lanes, barrier: Array, ctas: Array, *, space: str | None) -> None:
    """Arrive at one place in each CTA of a mask once the tensor core has completed all earlier requests of the
    thread."""
    lanes.machine.tensor_pipe.commit(lanes, "generic" if space is None else "shared", barrier, ctas)


def _moves_down(ctas: int) -> None:
    """Register tcgen05.shift for one or two CTAs."""

    @_tensor(f"tcgen05.shift.cta_group::{ctas}.down [t]", source=PTX["tcgen05.shift"])
    def move_down(lanes: Lanes, address: Array) -> None:
        """Copy 32 bytes from each of the first 31 lanes of a warp to the next lane."""
        for one, at in lanes.each():
            lanes.machine.tensor_pipe.move_down(one, int(lanes.full(address)[at]), ctas)


for _ctas in (1, 2):
    _moves_down(_ctas)


_WARPS = {"": ((0,), (1,), (2,), (3,)), "warpx2::02_13": ((0, 2), (1, 3)), "warpx2::01_23": ((0, 1), (2, 3))}
_WARPS["warpx4"] = ((0, 1, 2, 3),)
_COPIES = {
    "": ("128x256b", "4x256b", "128x128b"),
    "warpx2::02_13": ("64x128b",),
    "warpx2::01_23": ("64x128b",),
    "warpx4": ("32x128b",),
}
_NARROW = {"": 0, ".b8x16.b6x16_p32": 6, ".b8x16.b4x16_p64": 4}


def _copies(multicast: str, narrow: str, ctas: int) -> None:
    """Register tcgen05.cp for a multicast, a narrow element format and a number of CTAs."""
    shapes = "|".join(_COPIES[multicast])

    @_tensor(
        f"tcgen05.cp.cta_group::{ctas}.{{shape:{shapes}}}{'.' * bool(multicast)}{multicast}{narrow} [t], b:b64",
        source=PTX["tcgen05.cp"],
    )
    def copy(lanes: Lanes, address: Array, words: Array, *, shape: str) -> None:
        """Copy rows of shared memory, by a descriptor, to lanes of tensor memory; a multicast writes the lanes of
        several warps. Narrow elements become one byte each, low bits first."""
        for one, at in lanes.each():
            to, word = (int(lanes.full(each)[at]) for each in (address, words))
            given = CopyAsked(to, word, shape, _WARPS[multicast], _NARROW[narrow], ctas)
            lanes.machine.tensor_pipe.copy(one, given)


for _multicast in _COPIES:
    for _narrow in _NARROW:
        for _ctas in (1, 2):
            _copies(_multicast, _narrow, _ctas)
