"""numerics.mma against mmasim 2.1.1, an independent model: every instruction that both have, bit for bit.

mmasim works on torch tensors, names an instruction by shape and types, and gives no meaning to M and N.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from refsim.conversions import encode
from refsim.evidence import Level
from refsim.formats import BF16, E2M1, F16, F32, F64, TF32, ElementType, Format
from refsim.numerics import PROFILES, Profile, mma, multiply
from refsim.numerics.methods import (
    ASCENDING,
    EXACT,
    FLUSHED_TREE,
    FMA_CHAIN,
    GROUPED,
    INTEGER,
    LATE,
    LATE_EVEN_ODD,
    LATE_TRUNCATED,
    RNE_F32,
    RZ_E8M13,
    RZ_F32,
    TRUNCATED,
)

pytestmark = pytest.mark.peers("torch", "mmasim")

COUNT = 100_000  # dot products a row, at least
CHIPS = {
    "sm_70": "Volta",
    "sm_75": "Turing",
    "sm_80": "Ampere",
    "sm_86": "Ampere",
    "sm_89": "Ada Lovelace",
    "sm_90": "Hopper",
    "sm_100": "Blackwell",
    "sm_120": "RTX Blackwell",
    "gfx908": "CDNA1",
    "gfx90a": "CDNA2",
    "gfx942": "CDNA3",
}
TYPES = {"e8m0": "ue8m0"}
AMD_TYPES = {"e4m3fnuz": "fp8", "e5m2fnuz": "bf8", "tf32": "xf32"}
TORCH_TYPES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "tf32": "float32",
    "f32": "float32",
    "f64": "float64",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e8m0": "float8_e8m0fnu",
    "ue4m3": "float8_e4m3fn",
    "e3m2": "uint8",
    "e2m3": "uint8",
    "e2m1": "uint8",
}
# These write the canonical NaN; the others leave what the host's processor makes of a NaN.
CANONICAL = (TRUNCATED, GROUPED, LATE_TRUNCATED, LATE_EVEN_ODD)
# Volta's product with C in f16 and D in f32; f64 of K = 8 and 16, which mmasim has for sm_90 alone.
ONLY_THERE = {("MMA", chip, "k4.f32.f16.f16.f16") for chip in ("Volta", "Turing")}
ONLY_HERE = {("MMA", chip, f"k{k}.f64.f64.f64.f64") for chip in ("Blackwell", "RTX Blackwell") for k in (8, 16)}


@dataclass(frozen=True)
class Form:
    """One instruction of a row: the types of its operands, its K, and the type and block of its scales."""

    row: Profile
    a: ElementType
    b: ElementType
    k: int
    scale: tuple[Format, int] | None

    @property
    def key(self) -> tuple[str, str, str]:
        """Class, chip and name in mmasim, without M, N and the number of blocks."""
        d, chip = self.row.d_format, CHIPS[self.row.target]
        kind = self.row.unit.split(".")[-1]
        if self.row.target.startswith("gfx"):
            a, b = (AMD_TYPES.get(format.name, format.name) for format in (self.a, self.b))
            types = f"{a}_{b}" if a in ("fp8", "bf8") else a
            return "MFMA", chip, f"{d}_x{self.k}_{types}{'_1k' if kind == '1k' else ''}"
        if self.scale is not None:
            scale, block = TYPES.get(self.scale[0].name, self.scale[0].name), self.scale[1]
            start = f"k{self.k}.kind::{kind}.block{block}.{d}.{self.a}.{self.b}"
            warp = self.row.unit.startswith("mma.sync")
            return (
                ("MMABlockScale", chip, f"{start}.{d}.{scale}")
                if warp
                else ("TCGen05MMABlockScale", chip, f"{start}.{scale}")
            )
        if self.row.unit == "wgmma":
            return "WGMMA", chip, f"k{self.k}.{d}.{self.a}.{self.b}"
        if self.row.unit.startswith("tcgen05"):
            return "TCGen05MMA", chip, f"k{self.k}.kind::{kind}.{d}.{self.a}.{self.b}"
        mixes = "kind::f8f6f4." if E2M1 in self.row.a_formats else ""
        return "MMA", chip, f"k{self.k}.{mixes}{d}.{self.a}.{self.b}.{d}"


def forms(row: Profile) -> list[Form]:
    every = product(row.a_formats, row.b_formats, row.k, row.scales or (None,))
    return [form for form in (Form(row, *parts) for parts in every) if form.key not in ONLY_HERE]


def shared_rows() -> list[Profile]:
    """The rows but integers, Hopper's rewritten FP8 mma.sync and CDNA4, which mmasim has not."""
    return [
        row
        for row in PROFILES
        if row.method != INTEGER and row.order == ASCENDING and row.evidence.level is not Level.UNVERIFIED
    ]


def instructions(mmasim: Any) -> dict[tuple[str, str, str], Callable[[], Any]]:
    """Every instruction of mmasim by class, chip and name without M and N."""
    nv, amd = mmasim.nv_ptx, mmasim.amd
    tables = [
        (nv.MMA, nv.isa_mma.mma_shape_and_type),
        (nv.MMABlockScale, nv.isa_mma.mma_block_scale_shape_and_type),
        (nv.WGMMA, nv.isa_wgmma.wgmma_shape_and_type),
        (nv.TCGen05MMA, nv.isa_tcgen05mma.tcgen05mma_shape_and_type),
        (nv.TCGen05MMABlockScale, nv.isa_tcgen05mma.tcgen05mma_block_scale_shape_and_type),
        (amd.MFMA, amd.isa_mfma.arch_mfma_suffix),
    ]
    found: dict[tuple[str, str, str], Callable[[], Any]] = {}
    for make, table in tables:
        for chip, names in table.items():
            for name in names:
                short = re.sub(r"_\d+x\d+x(\d+)(?:_\d+b)?_?", r"_x\1_", re.sub(r"^m\d+n\d+", "", name))
                found.setdefault((make.__name__, chip, short), partial(make, chip, name))
    return found


def tensor(codes: NDArray[Any], format: ElementType) -> Any:
    """The codes as mmasim takes them: FP4 in bits 2 to 5 of a byte."""
    import torch

    shifted = codes << np.uint8(2) if format is E2M1 else codes
    return torch.from_numpy(shifted).view(getattr(torch, TORCH_TYPES[format.name]))


def packed(codes: NDArray[Any]) -> Any:
    """Two FP4 codes a byte, the first in its upper half, as mmasim unpacks them."""
    import torch

    return torch.from_numpy(codes[..., ::2] << np.uint8(4) | codes[..., 1::2])


def pairwise(a: Any, b: Any) -> tuple[Any, Any]:
    """Every row of A with every row of B."""
    rows, columns = a.shape[-2], b.shape[-2]
    return a[..., None, :].expand(-1, -1, columns, -1), b[:, None].expand(-1, rows, -1, -1)


def theirs(operation: Any, form: Form, drawn: Any) -> NDArray[Any]:
    """The codes of D by mmasim, one instruction after the other along K."""
    a, b, c = tensor(drawn.a, form.a), tensor(drawn.b, form.b), tensor(drawn.c, form.row.d_format)
    if form.scale is not None:
        scales = pairwise(*(tensor(x, form.scale[0]) for x in (drawn.a_scale, drawn.b_scale)))
        operands = [packed(x) for x in (drawn.a, drawn.b)] if form.row.method == GROUPED else [a, b]
        return codes_of(operation.dpa(*pairwise(*operands), c, *scales))
    dot = partial(with_c_kept, operation.arithmetic_op) if form.row.method == LATE_EVEN_ODD else operation.dpa
    for start in range(0, a.shape[-1], form.k):
        c = dot(*pairwise(a[..., start : start + form.k], b[..., start : start + form.k]), c)
    return codes_of(c)


def codes_of(values: Any) -> NDArray[Any]:
    array: NDArray[Any] = values.numpy()
    return array.view(f"u{array.itemsize}")


def with_c_kept(arithmetic: Any, a: Any, b: Any, c: Any) -> Any:
    """mmasim's CDNA3 FP8 steps, where a C that is NaN or infinite takes part whatever the products are.

    Its rule that a C far below the products counts as zero reads the exponent of a NaN or an infinity as -1; see
    test_far_products_leave_a_special_c.
    """
    import torch

    for start in range(0, a.shape[-1], arithmetic.L_max):
        part = slice(start, start + arithmetic.L_max)
        d = arithmetic.dpa(a[..., part], b[..., part], c)
        special = c + arithmetic.dpa(a[..., part], b[..., part], torch.zeros_like(c))
        special = torch.where(special.isnan(), torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32), special)
        c = torch.where(c.isfinite(), d, special)
    return c


def ours(form: Form, drawn: Any) -> NDArray[Any]:
    d = mma(
        drawn.a,
        drawn.b,
        drawn.c.view(f"f{drawn.c.itemsize}"),
        unit=form.row.unit,
        a_format=form.a,
        b_format=form.b,
        d_format=form.row.d_format,
        target=form.row.target,
        a_scale=drawn.a_scale,
        b_scale=drawn.b_scale,
        scale_format=form.scale and form.scale[0],
        k=form.k,
    )
    return d.view(drawn.c.dtype)


def differing(row: Profile, got: NDArray[Any], want: NDArray[Any]) -> NDArray[np.bool_]:
    """Where the bits differ; where mmasim's NaN is the host's, any NaN equals any other."""
    differ = got != want
    if row.method not in CANONICAL:
        float_type = f"f{got.itemsize}"
        differ &= ~(np.isnan(got.view(float_type)) & np.isnan(want.view(float_type)))
    return differ


@pytest.fixture(scope="module")
def compared(
    mmasim: Any, cases: Callable[..., Any]
) -> Callable[[Profile, int], Iterator[tuple[Form, Any, NDArray[Any]]]]:
    """The forms of a row, their cases, and what mmasim makes of them."""
    known = instructions(mmasim)

    def each(row: Profile, count: int) -> Iterator[tuple[Form, Any, NDArray[Any]]]:
        todo = [(form, chain) for form in forms(row) for chain in ((1,) if row.scales else (1, 2))]
        for seed, (form, chain) in enumerate(todo):
            drawn = cases(form.a, form.b, row.d_format, chain * form.k, count // len(todo) + 1, seed, form.scale)
            yield form, drawn, theirs(known[form.key](), form, drawn)

    return each


def test_every_instruction_of_mmasim_is_compared(mmasim: Any) -> None:
    assert {form.key for row in shared_rows() for form in forms(row)} | ONLY_THERE == set(instructions(mmasim))


@pytest.mark.parametrize("row", shared_rows(), ids=lambda row: row.name)
def test_row_equals_mmasim(row: Profile, compared: Any) -> None:
    count, wrong = 0, []
    for form, drawn, want in compared(row, COUNT):
        got = ours(form, drawn)
        count += drawn.count
        for batch, m, n in np.argwhere(differing(row, got, want))[:1]:
            a, b = (list(map(hex, x)) for x in (drawn.a[batch, m], drawn.b[batch, n]))
            codes = [hex(x[batch, m, n]) for x in (drawn.c, got, want)]
            wrong.append((form.key, a, b, dict(zip(("c", "refsim", "mmasim"), codes, strict=True))))
    print(f"{row.name}: {count} dot products, {len(wrong)} instructions disagree")
    assert wrong == []
    assert count >= COUNT


def mutants(row: Profile) -> dict[str, Profile]:
    """Rows with one parameter changed, of those that some operands can tell from the true one."""
    changed: dict[str, Profile] = {}
    if row.fraction is not None:
        changed |= {f"F {step:+}": replace(row, fraction=row.fraction + step) for step in (-1, 1)}
    if row.length > 1 and row.method != GROUPED:
        changed["half of L"] = replace(row, length=row.length // 2)
    if row.length < max(row.k) and row.method not in (FLUSHED_TREE, FMA_CHAIN):
        changed["twice L"] = replace(row, length=2 * row.length)
    if row.rounding in (RZ_F32, RZ_E8M13):
        changed["to nearest"] = replace(row, rounding=RNE_F32)
    if row.method == TRUNCATED:
        changed["late C"] = replace(row, c_enters=LATE)
    if row.zero_exponent is not None and reaches_zero_exponent(row):
        changed |= {f"zero exponent {step:+}": replace(row, zero_exponent=row.zero_exponent + step) for step in (-1, 1)}
    if row.method in (FMA_CHAIN, FLUSHED_TREE) and row.d_format is not F64:
        changed["one rounding"] = replace(row, method=EXACT, length=4)
    return changed


def reaches_zero_exponent(row: Profile) -> bool:
    """Products of f16 and narrower operands without scales end above the place where a sum of zeros in f32 is cut."""
    return bool(row.scales) or (row.a_formats, row.d_format) in (
        ((F16,), F16),
        ((BF16,), F32),
        ((TF32,), F32),
    )


@pytest.mark.parametrize("row", [row for row in shared_rows() if mutants(row)], ids=lambda row: row.name)
def test_changed_parameters_are_refused(row: Profile, compared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    problems, survived = list(compared(row, COUNT)), []
    for name, mutant in mutants(row).items():
        monkeypatch.setattr(multiply, "profile", lambda *_, mutant=mutant: mutant)
        if not any(differing(row, ours(form, drawn), want).any() for form, drawn, want in problems):
            survived.append(name)
    assert survived == []


@pytest.mark.parametrize("c", [0x7FC00000, 0x7F800000, 0xFF800000], ids=hex)
def test_far_products_leave_a_special_c(mmasim: Any, c: int) -> None:
    """CDNA3 bf8 FNUZ: with a product of 2^25 or more mmasim loses a C that is NaN or infinite; refsim keeps it.

    A C more than 25 places below the products counts as zero, and mmasim reads the exponent of NaN and infinity as -1.
    The paper lets specials go first (arXiv 2511.10909, section 4.2), as MMA-Sim's own code did before it was vectorised.
    """
    import torch

    operation = mmasim.amd.MFMA("CDNA3", "f32_32x32x16_bf8_bf8")
    a, b = np.zeros((2, 1, 1, 16), np.uint8)
    b[..., 0] = encode(np.float64([2.0**12]), "e5m2fnuz")
    addend = np.full((1, 1), c, np.uint32)
    for factor, lost in ((2.0**12, False), (2.0**13, True)):
        a[..., 0] = encode(np.float64([factor]), "e5m2fnuz")
        x, y = (torch.from_numpy(codes).view(torch.float8_e5m2fnuz) for codes in (a, b))
        peer = operation.dpa(x[:, 0], y[:, 0], torch.from_numpy(addend[0]).view(torch.float32)).item()
        kinds = {"unit": "mfma", "target": "gfx942", "a_format": "e5m2fnuz", "b_format": "e5m2fnuz", "k": 16}
        kept = mma(a[0], b[0], addend.view(np.float32), **kinds).view(np.uint32).item()
        assert kept == (0x7FFFFFFF if c == 0x7FC00000 else c)
        assert (peer == 2.0**25) == lost
