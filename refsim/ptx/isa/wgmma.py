"""wgmma: products of matrices by a warpgroup, which continue while its threads compute. The four warps execute the
instruction together; refsim.ptx.async_ops decides when it reads and writes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from refsim.formats import element_named
from refsim.layouts.families.wgmma import PRODUCTS, Product
from refsim.layouts.tiles import MN, K
from refsim.ptx.execution.geometry import WARPGROUP
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.matrix_product import MatrixProduct, ProductForm
from refsim.ptx.isa.definedness import tensor as undefined
from refsim.ptx.isa.forms import Clause, instruction
from refsim.ptx.isa.products import INTEGERS
from refsim.ptx.isa.sparse import check_selector, stored_positions
from refsim.ptx.memory.arrays import Array
from refsim.sources import PTX

_SECTION, _SPARSE = PTX["wgmma.mma_async"], PTX["wgmma.mma_async.sp"]
_SINCE = "sm_90a"
_BITS = "b1"
_ZERO = np.zeros(1, np.uint32)
_TRANSPOSED = 16  # bits of elements that a descriptor may order either way


@instruction("wgmma.fence.sync.aligned", rendezvous="warpgroup", since=_SINCE, source=PTX["wgmma.fence"])
def fence(lanes: Lanes) -> None:
    """Allow registers that were accessed before to be accumulators and fragments of later products."""
    lanes.machine.tensor_cores.fence(lanes)


@instruction("wgmma.commit_group.sync.aligned", rendezvous="warpgroup", since=_SINCE, source=PTX["wgmma.commit_group"])
def commit_group(lanes: Lanes) -> None:
    """Make one group of the warpgroup's products since its last commit; the group may be empty."""
    lanes.machine.tensor_cores.commit(lanes)


@instruction(
    "wgmma.wait_group.sync.aligned n:b32", rendezvous="warpgroup", since=_SINCE, source=PTX["wgmma.wait_group"]
)
def wait_group(lanes: Lanes, n: Array) -> None:
    """Wait until at most the `n` newest of the warpgroup's groups are in flight."""
    lanes.machine.tensor_cores.wait(lanes, int(n[0]))


def _common(lanes: Lanes, values: Array, what: str) -> Array:
    """Return the value that all threads of each warpgroup give; different values are a fault."""
    held = lanes.full(values).reshape(-1, WARPGROUP)
    stray = held != held[:, :1]
    if stray.any():
        group, thread = (int(each[0]) for each in np.nonzero(stray))
        raise lanes.fault(
            "invalid-operand",
            group * WARPGROUP + thread,
            f"{what} is {_spoken(held[group, thread])}, that of the warpgroup's first thread {_spoken(held[group, 0])}",
            f"{_SECTION}: all threads of a warpgroup give the same",
        )
    return np.ascontiguousarray(held[:, 0])


def _spoken(value: Any) -> str:
    return str(bool(value)) if value.dtype == np.bool_ else f"{int(value):#x}"


def _signed(value: Array) -> int:
    return int(value.view(np.int32)[0])


def _check_constant(lanes: Lanes, name: str, value: int) -> None:
    """Raise a fault unless a constant of the text has a legal value."""
    allowed = (1, -1) if name.startswith("scale") else (0, 1)
    if value not in allowed:
        known, what = " or ".join(map(str, allowed)), f"imm-{name.replace('_', '-')}"
        raise lanes.fault("invalid-operand", 0, f"{what} is {value}", f"{_SECTION}: {what} is {known}")


def _sizes(shape: str) -> tuple[int, int]:
    """Return N and K of a shape: m64n128k32 is (128, 32)."""
    n, k = shape.removeprefix("m64n").split("k")
    return int(n), int(k)


@dataclass(frozen=True)
class _Spelling:
    """The instruction for types that may be mixed, with A in registers or in shared memory, dense or sparse."""

    row: Product
    types: tuple[str, ...]
    accumulator: str
    from_registers: bool
    sparse: bool

    @property
    def flags(self) -> list[str]:
        """Return the constants after the predicate: signs for floats, orders for 16-bit elements in shared memory."""
        if element_named(self.types[0]).is_integer:
            return []
        sides = ("b",) if self.from_registers else ("a", "b")
        turns = [f"trans_{side}" for side in sides] if element_named(self.types[0]).code_bits == _TRANSPOSED else []
        return ["scale_a", "scale_b", *turns]

    @property
    def text(self) -> str:
        """Return the instruction's form."""
        shapes = "|".join(f"m64n{n}k{self.row.k * (1 + self.sparse)}" for n in self.row.columns)
        choice, counts = "|".join(self.types), self.types[0] == _BITS
        types = ".".join(f"{{{which}_type:{choice}}}" if len(self.types) > 1 else choice for which in "ab")
        saturates = "{.satfinite}" if self.types == INTEGERS else ""
        sparse = ".sp" if self.sparse else ""
        opcode = f"wgmma.mma_async{sparse}.sync.aligned.{{shape:{shapes}}}{saturates}.{self.accumulator}.{types}"
        held = {"f16": "b32"}.get(self.accumulator, self.accumulator)
        constants = [f"{flag}:b32" for flag in self.flags]
        metadata = ["metadata:b32", "selector:b32"] if self.sparse else []
        a = "a:b32*4" if self.from_registers else "a:b64"
        operands = [f"+d:{held}**", a, "b:b64", *metadata, "add:pred", *constants]
        return f"{opcode}{'.and.popc' if counts else ''} {', '.join(operands)}"

    def length(self, modifiers: dict[str, Any]) -> int:
        """Return how many registers D has."""
        n, _ = _sizes(modifiers["shape"])
        return n // 4 if self.accumulator == "f16" else n // 2

    def form(self, given: dict[str, Any], keywords: dict[str, Any]) -> ProductForm:
        """Return the product of one text, from the constants among its operands and the words of its opcode."""
        n, k = _sizes(keywords["shape"])
        turned = [_signed(given.get(f"trans_{side}", _ZERO)) == 1 for side in "ab"]
        negated = [_signed(given.get(f"scale_{side}", _ZERO)) < 0 for side in "ab"]
        return ProductForm(
            n,
            k,
            keywords.get("a_type", self.types[0]),
            keywords.get("b_type", self.types[0]),
            self.accumulator,
            (MN if turned[0] else K, MN if turned[1] else K),
            (negated[0], negated[1]),
            keywords.get("satfinite", False),
            self.sparse,
            _signed(given.get("selector", _ZERO)),
        )


def _instruction(spelling: _Spelling) -> Callable[[Clause], Clause]:
    return instruction(
        spelling.text,
        rendezvous="warpgroup",
        since=_SINCE,
        source=_SPARSE if spelling.sparse else _SECTION,
        undefined=undefined.warpgroup_multiplied(spelling.form),
        keeps_registers=True,
        length=spelling.length,
    )


def _multiply(
    lanes: Lanes, form: ProductForm, operands: tuple[tuple[int, ...], Any, Array, Array], metadata: Array | None = None
) -> None:
    """Start a product from the registers of D, the registers or descriptors of A, the descriptors of B, and whether to
    add."""
    d, a, b, add = operands
    product = MatrixProduct(
        form,
        d,
        a if isinstance(a, tuple) else _common(lanes, a, "the descriptor of A"),
        _common(lanes, b, "the descriptor of B"),
        _common(lanes, add, "scale-d"),
        # the metadata is read when the instruction is issued
        None
        if metadata is None
        else stored_positions(lanes, metadata, form.sparse_shape, form.a, form.selector, _SPARSE),
    )
    lanes.machine.tensor_cores.multiply(lanes, product)


def _products(spelling: _Spelling) -> None:
    """Register the instruction of a spelling."""
    type = spelling.types[0]

    @_instruction(spelling)
    def mma_async(
        lanes: Lanes,
        d: tuple[int, ...],
        a: Any,
        b: Array,
        *rest: Array,
        shape: str,
        a_type: str = type,
        b_type: str = type,
        satfinite: bool = False,
    ) -> None:
        """Start D = A B + D, or A B where `add` is false: 64 rows, B by descriptors, A by descriptors or from
        registers. For a sparse A, the stored half of each row meets the elements of B at its positions. The sum then
        follows the dense instruction of half the K, which is inferred and not measured."""
        words = {"shape": shape, "a_type": a_type, "b_type": b_type, "satfinite": satfinite}
        *sparse, add = rest[: 3 if spelling.sparse else 1]
        given = dict(zip(spelling.flags, rest[len(sparse) + 1 :], strict=True))
        for name, value in given.items():
            _check_constant(lanes, name, _signed(value))
        form = spelling.form(given | dict(zip(("metadata", "selector"), sparse, strict=False)), words)
        if sparse:
            check_selector(lanes, form.selector, form.sparse_shape, str(_SPARSE))
        _multiply(lanes, form, (d, a, b, add), *sparse[:1])


for _row in PRODUCTS:
    for _types in [_row.types] if len(_row.types) > 1 else [(type,) for type in _row.types]:
        for _accumulator in _row.accumulators:
            for _from_registers in (False, True):
                for _sparse in (False, True) if _types != (_BITS,) else (False,):
                    _products(_Spelling(_row, _types, _accumulator, _from_registers, _sparse))
