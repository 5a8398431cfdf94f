"""tcgen05.mma.sp: every kind against whole rows over Python integers; metadata put into tensor memory bit by bit."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from refsim import numerics
from refsim.errors import RefsimError
from refsim.formats import element_named
from refsim.layouts import fragment, tile
from refsim.layouts.tiles import Tile
from refsim.numerics.sparse import sparsity_of
from refsim.ptx.async_ops.queue import POLICIES
from tests.numerics.sparse_product import expanded, sparse_dot_product
from tests.ptx.tcgen05_kernels import TensorKernel, with_products
from tests.ptx.test_scaled_tensor_core import scale_name, with_scales
from tests.ptx.test_tensor_core import CONTAINERS, Case, drawn, image_of
from tests.ptx.test_tensor_core_pairs import pair_body

pytestmark = pytest.mark.filterwarnings("ignore::refsim.numerics.UnverifiedProfileWarning")
META, SFA, SFB, A = 64, 72, 76, 80
LEGAL = (0x4, 0x8, 0xC, 0x9, 0xD, 0x6, 0xE)  # which two of four, the first in the low bits


@dataclass(frozen=True)
class Sparse(Case):
    """A product whose B has twice the K; `variant` is .ws or the number of CTAs."""

    variant: str = "1sm"
    vector: str = ""
    stored: str = ""

    @property
    def word_fields(self) -> dict[str, Any]:
        return {"sparse": 1} | ({"scale_format": self.stored} if self.stored else {})

    def tiling(self, side: str) -> Tile:
        if side == "a":
            return super().tiling(side)
        size = max(1, CONTAINERS[self.kind] // 8)
        span = {"64B": 64, "128B": 128}[self.swizzles[1]]
        return tile("K", self.swizzles[1], size, (self.n, span // size))


def positions_of(case: Sparse, codes: np.ndarray) -> np.ndarray:
    """Where the stored elements of a row stand, from the code of each group."""
    if case.kind == "tf32":
        return (codes == 0xE).astype(np.uint8)
    pairs = np.stack([codes & 3, codes >> 2], axis=-1).reshape(len(codes), -1)
    if CONTAINERS[case.kind] > 4:
        return pairs.astype(np.uint8)
    return np.stack([2 * pairs, 2 * pairs + 1], axis=-1).reshape(len(codes), -1).astype(np.uint8)


def put_metadata(tensor: np.ndarray, case: Sparse, codes: np.ndarray, column: int, lanes: np.ndarray) -> None:
    """Codes of 4 bits (rows, groups), row by row: those of bytes and less lie in the lane of their row; of 16 and 32 bits
    rows r and r + 8 share a lane, in halves of a column, and the second half of k is 8 lanes further. `lanes`: of each row."""
    for row, group in np.ndindex(codes.shape):
        lane, bit = row, 4 * group
        if CONTAINERS[case.kind] >= 16:
            lane = row // 16 * 16 + row % 8 + 8 * (group // 4)
            bit = 16 * (row // 8 % 2) + 4 * (group % 4)
        where = lanes[lane], column + bit // 32
        mask = np.uint32(0xF << bit % 32)
        tensor[where] = tensor[where] & ~mask | np.uint32(int(codes[row, group]) << bit % 32)


KINDS = [
    Sparse("f16", "f16", "f16"),
    Sparse("f16", "bf16", "bf16"),
    Sparse("f16", "f16", "f16", "f16"),
    Sparse("tf32", "tf32", "tf32"),
    Sparse("f8f6f4", "e4m3", "e2m1"),
    Sparse("f8f6f4", "e2m3", "e5m2", "f16"),
    Sparse("f8f6f4", "e2m1", "e3m2"),
    Sparse("i8", "s8", "u8", "s32"),
    Sparse("f16", "f16", "f16", m=64, n=24),
    Sparse("f8f6f4", "e5m2", "e4m3", m=64),
    Sparse("mxf8f6f4", "e4m3", "e5m2", vector="1x", stored="e8m0"),
    Sparse("mxf8f6f4", "e2m1", "e2m3", vector="1x", stored="e8m0"),
    Sparse("mxf4", "e2m1", "e2m1", vector="2x", stored="e8m0"),
    Sparse("mxf4nvf4", "e2m1", "e2m1", vector="2x", stored="e8m0"),
    Sparse("mxf4nvf4", "e2m1", "e2m1", vector="4x", stored="ue4m3"),
]
VECTORS = {"": "", "1x": ".block_scale", "2x": ".block_scale.block32", "4x": ".block_scale.block16"}


@dataclass(frozen=True)
class Drawn:
    """Codes of A and B, of the metadata, and of the scales."""

    a: np.ndarray
    b: np.ndarray
    codes: np.ndarray
    scales: dict[str, np.ndarray]

    def result(self, case: Sparse, c: np.ndarray | None) -> np.ndarray:
        given: dict[str, Any] = {"a_format": case.a, "b_format": case.b, "d_format": case.d} | self.scales
        given |= {"scale_format": case.stored} if case.stored else {}
        return numerics.mma(
            self.a, self.b, c, unit=case.unit, target="sm_100a", metadata=positions_of(case, self.codes), **given
        )

    def check(self, case: Sparse, got: np.ndarray, c: np.ndarray) -> None:
        """Some outputs by the definition over whole rows, all by the product of matrices."""
        np.testing.assert_array_equal(got, self.result(case, c).view(got.dtype))
        row = numerics.sparse_profile("sm_100a", case.unit, case.a, case.b, case.d)
        sparsity = sparsity_of(element_named(case.a), case.unit)
        positions = positions_of(case, self.codes)
        for m, n in np.random.default_rng(5).integers(0, (case.m, case.n), (12, 2)).tolist():
            whole = expanded(self.a[m].tolist(), positions[m].tolist(), sparsity.kept, sparsity.group)
            scales: dict[str, Any] = {}
            if case.stored:
                at = {"a_scale": m, "b_scale": n}
                scales = {name: each[at[name]].tolist() for name, each in self.scales.items()}
                scales["scale_format"] = case.stored
            code = c[m, n].view(got.dtype if got.dtype.kind == "u" else c.dtype)
            how: dict[str, Any] = {"a_format": case.a, "b_format": case.b} | scales
            want = sparse_dot_product(whole, self.b[n].tolist(), int(code), row, 2 * case.k, **how)
            assert int(got[m, n]) == want


def draw(case: Sparse, seed: int) -> Drawn:
    generator = np.random.default_rng(seed)
    a, b = drawn(generator, case.a, case.m, case.k), drawn(generator, case.b, case.n, 2 * case.k)
    if case.kind == "tf32":
        codes = generator.choice([0x4, 0xE], (case.m, case.k))
    else:
        codes = generator.choice(LEGAL, (case.m, case.k // (2 if CONTAINERS[case.kind] > 4 else 4)))
    blocks = int(case.vector[:1] or 0)
    middle = 56 if case.stored == "ue4m3" else 127
    scales = {
        name: generator.integers(middle - 5, middle + 6, (rows, blocks)).astype(np.uint8)
        for name, rows in (("a_scale", case.m), ("b_scale", case.n))
        if blocks
    }
    return Drawn(a, b, codes.astype(np.uint32), scales)


def opcode(case: Sparse, ctas: int = 1) -> str:
    return f"tcgen05.mma.sp.cta_group::{ctas}.kind::{case.kind}{VECTORS[case.vector]}"


def accumulator_places(case: Sparse) -> tuple[np.ndarray, np.ndarray]:
    row, column = np.indices((case.m, case.n))
    return fragment(f"tcgen05.m{case.m}n{case.n}.1sm.d").holder(row, column)


DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "s32": np.int32}


def run(case: Sparse, seed: int, *, selector: int = 0, in_columns: bool = False, lane: int = 0, **how: Any) -> None:
    """One product, compared; A by a descriptor or in tensor memory, with the upper lanes of each 32 where there is a choice."""
    given = draw(case, seed)
    image, words = image_of(case, given.a, given.b)
    c = np.random.default_rng(seed).normal(0, 4, (case.m, case.n)).astype(DTYPES[case.d])
    tensor = np.full((128, 96), 0xFFFFFFFF, np.uint32)
    lanes, columns = accumulator_places(case)
    lanes = lanes + lane
    tensor[lanes, columns] = c.view(f"u{c.dtype.itemsize}")
    put_metadata(tensor, case, given.codes, META + selector, lanes[:, 0])
    if in_columns:
        tensor[lanes[:, 0], A : A + 8] = np.ascontiguousarray(given.a).view(np.uint32).reshape(case.m, -1)
    scales = ""
    if case.stored:
        with_scales(tensor, given.scales["a_scale"], scale_name("sfa", case.m, case.vector, 0), SFA)
        with_scales(tensor, given.scales["b_scale"], scale_name("sfb", case.n, case.vector, 0), SFB)
        scales = f", [%base+{SFA}], [%base+{SFB}]"
    fields = case.word_fields | ({"sparsity_selector": selector} if selector else {})
    at = lane << 16
    a_from = f"[%base+{A + at}]" if in_columns else "%word0"
    body = with_products(f"{opcode(case)} [%base+{at}], {a_from}, %word1, [%base+{META + at}], %v0{scales}, %yes;")
    out, trace = TensorKernel(body, columns=64, filled=96).run(image, tensor, words, (case.word(**fields),), **how)
    assert trace.findings == ()
    got = out[lanes, columns].astype(f"u{c.dtype.itemsize}").view("i4" if case.d == "s32" else f"u{c.dtype.itemsize}")
    given.check(case, got, c)


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_every_kind(case: Sparse) -> None:
    run(case, 1)


@pytest.mark.parametrize("case", [KINDS[0], KINDS[3]], ids=str)
def test_the_selector_chooses_one_of_two_columns(case: Sparse) -> None:
    run(case, 2, selector=1)
    run(replace(case, swizzles=("32B", "64B")), 3, policy="lazy")


@pytest.mark.parametrize("case", [KINDS[1], KINDS[4], KINDS[7]], ids=str)
def test_what_is_stored_comes_from_tensor_memory(case: Sparse) -> None:
    run(case, 4, in_columns=True)


@pytest.mark.parametrize("case", [KINDS[8], KINDS[9]], ids=str)
def test_64_rows_may_take_the_upper_lanes(case: Sparse) -> None:
    run(case, 5, lane=16)
    run(replace(case, n=32), 6, lane=16, in_columns=True)


@pytest.mark.parametrize("case", [KINDS[0], KINDS[11], KINDS[14]], ids=str)
def test_exact_sums(case: Sparse) -> None:
    given = draw(case, 7)
    image, words = image_of(case, given.a, given.b)
    tensor = np.full((128, 96), 0xFFFFFFFF, np.uint32)
    put_metadata(tensor, case, given.codes, META, np.arange(128))
    scales = ""
    if case.stored:
        with_scales(tensor, given.scales["a_scale"], scale_name("sfa", case.m, case.vector, 0), SFA)
        with_scales(tensor, given.scales["b_scale"], scale_name("sfb", case.n, case.vector, 0), SFB)
        scales = f", [%base+{SFA}], [%base+{SFB}]"
    body = with_products(f"{opcode(case)} [%base], %word0, %word1, [%base+{META}], %v0{scales}, %no;")
    word = case.word(**case.word_fields)
    out, _ = TensorKernel(body, columns=64, filled=96).run(image, tensor, words, (word,), arithmetic="exact")
    whole = numerics.decompress(given.a, positions_of(case, given.codes), case.a, unit=case.unit)
    how: dict[str, Any] = {"a_format": case.a, "b_format": case.b, "d_format": case.d}
    b = given.b
    if case.stored:  # a scale of a block of what is stored goes with twice as many elements of the row
        how |= {name: each.repeat(2, axis=1) for name, each in given.scales.items()} | {"scale_format": case.stored}
    want = numerics.exact_product(whole, b, **how)
    np.testing.assert_array_equal(out[accumulator_places(case)], want.view(f"u{want.dtype.itemsize}"))


@pytest.mark.parametrize("policy", POLICIES)
def test_products_are_a_chain_with_metadata_that_copies_bring(policy: str) -> None:
    """Two steps of K: both columns of metadata come by one copy behind which they are multiplied."""
    case = KINDS[0]
    given, other = draw(case, 8), draw(case, 9)
    image, words = image_of(case, given.a, given.b)
    held = np.zeros((128, 4), np.uint32)
    put_metadata(held, case, given.codes, 0, np.arange(128))
    put_metadata(held, case, other.codes, 1, np.arange(128))
    image[24576 : 24576 + 2048] = held.view(np.uint8).ravel()
    rows = 1 << 46 | 24576 >> 4 | 8 << 32
    copy = f"tcgen05.cp.cta_group::1.128x128b [%base+{META}], %word2;"
    products = [
        f"{opcode(case)} [%base], %word0, %word1, [%base+{META}], %v{at}, %{'yes' if at else 'no'};" for at in (0, 1)
    ]
    selected = tuple(case.word(sparse=1, **({"sparsity_selector": at} if at else {})) for at in (0, 1))
    out, trace = TensorKernel(with_products(copy, *products), columns=32).run(
        image, None, (*words, rows), selected, policy=policy, seed=4
    )
    assert trace.findings == ()
    want = replace(given, codes=other.codes).result(case, given.result(case, None))
    np.testing.assert_array_equal(out[accumulator_places(case)], want.view(np.uint32))


@pytest.mark.parametrize("m", [128, 256])
def test_two_ctas_hold_the_stored_halves_of_their_rows(m: int) -> None:
    """Of 128 rows each CTA has 64, in the lower lanes of each 32, and all columns of D; of 256 it has 128."""
    case = Sparse("f8f6f4", "e4m3", "e4m3", m=m, n=64)
    given = draw(case, m)
    half = replace(case, m=m // 2, n=32)
    images, tensors = [], []
    lanes = np.arange(128) if m == 256 else np.arange(64) // 16 * 32 + np.arange(64) % 16
    for cta in range(2):
        own = slice(cta * half.m, (cta + 1) * half.m)
        image, words = image_of(half, given.a[own], given.b[cta * 32 : (cta + 1) * 32])
        images.append(image)
        tensor = np.full((128, 96), 0xFFFFFFFF, np.uint32)
        put_metadata(tensor, case, given.codes[own], META, lanes)
        tensors.append(tensor)
    body = pair_body(f"{opcode(case, 2)} [%base], %word0, %word1, [%base+{META}], %v0, %no;")
    out, trace = TensorKernel(body, columns=64, filled=96, ctas=2).run(
        np.concatenate(images), np.concatenate(tensors), words, (case.word(sparse=1),)
    )
    assert trace.findings == ()
    got = np.concatenate([out[128 * cta + lanes, :64] for cta in range(2)])
    np.testing.assert_array_equal(got, given.result(case, None).view(np.uint32))


@pytest.mark.parametrize(
    ("kind", "fields", "meta", "what"),
    [
        ("f16", {"sparse": 0}, META, "the opcode says that A is sparse, it does not"),
        ("f16", {"sparsity_selector": 2}, META, "the sparsity selector is 2: of kind::f16 0 and 1 choose"),
        ("f8f6f4", {"sparsity_selector": 1}, META, "of kind::f8f6f4 it is 0"),
        ("f16", {}, META + 1, "begins no metadata: it is odd"),
        ("f16", {}, META + (16 << 16), "lane 16 begins no operand"),
        ("f16", {}, 510, "columns 510 to 510"),
        ("f16", {}, META, "the metadata of row 3, group 5 is 0b0001, none of 0b0100"),
    ],
)
def test_mistakes(kind: str, fields: dict[str, int], meta: int, what: str) -> None:
    case = next(case for case in KINDS if case.kind == kind)
    given = draw(case, 1)
    image, words = image_of(case, given.a, given.b)
    tensor = np.full((128, 96), 0xFFFFFFFF, np.uint32)
    given.codes[3, 5] = 1
    put_metadata(tensor, case, given.codes, META, np.arange(128))
    body = with_products(f"{opcode(case)} [%base], %word0, %word1, [%base+{meta}], %v0, %no;")
    kernel = TensorKernel(body, columns=64, filled=96, allocated=256)
    with pytest.raises(RefsimError, match=what) as caught:
        kernel.run(image, tensor, words, (case.word(**({"sparse": 1} | fields)),))
    assert caught.value.code in ("invalid-operand", "tensor-memory-misuse", "out-of-bounds")


def test_a_dense_opcode_refuses_a_sparse_descriptor_and_undefined_metadata_is_told() -> None:
    case = KINDS[0]
    given = draw(case, 1)
    image, words = image_of(case, given.a, given.b)
    body = with_products(f"{opcode(case)} [%base], %word0, %word1, [%base+{META}], %v0, %no;")
    with pytest.raises(RefsimError, match="it reached the metadata of a sparse product") as caught:
        TensorKernel(body, columns=32, filled=32).run(image, None, words, (case.word(sparse=1),))
    assert caught.value.code == "uninitialised"
    dense = body.replace(".sp", "").replace(f"[%base+{META}], ", "")
    with pytest.raises(RefsimError, match="it says that A is sparse, the opcode does not"):
        TensorKernel(dense, columns=32, filled=32).run(image, None, words, (case.word(sparse=1),))
