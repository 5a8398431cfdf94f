"""Instruction descriptors of tcgen05.mma: one per kind, since the codes of the formats differ by kind."""

from refsim.formats import E2M1, E2M3, E3M2
from refsim.layouts.descriptors.fields import Descriptor, Field, Fields, Value
from refsim.sources import PTX

Codes = tuple[tuple[int, Value], ...]

_F8F6F4: Codes = ((0, "e4m3"), (1, "e5m2"), (3, "e2m3"), (4, "e3m2"), (5, "e2m1"))
_MXF4: Codes = ((1, "e2m1"),)
_MAJORS: Codes = ((0, "K"), (1, "MN"))
_SHIFTS: Codes = ((0, 0), (1, 8), (2, 16), (3, 32))
_COLUMNS = range(8, 257, 8)
DENSE_ROWS = (32, 64, 128, 256)
# kind: (codes of A and B, codes of D)
_DENSE: dict[str, tuple[Codes, Codes]] = {
    "tf32": (((2, "tf32"),), ((1, "f32"),)),
    "f16": (((0, "f16"), (1, "bf16")), ((0, "f16"), (1, "f32"))),
    "f8f6f4": (_F8F6F4, ((0, "f16"), (1, "f32"))),
    "i8": (((0, "u8"), (1, "s8")), ((2, "s32"),)),
}
# kind: (codes of A and B, codes of the scales, legal scale factor ids)
_SCALED: dict[str, tuple[Codes, Codes, Codes]] = {
    "mxf8f6f4": (_F8F6F4, ((1, "e8m0"),), tuple((byte, byte) for byte in range(4))),
    "mxf4": (_MXF4, ((1, "e8m0"),), tuple((byte, byte) for byte in range(4))),
    "mxf4nvf4": (_MXF4, ((0, "ue4m3"), (1, "e8m0")), tuple((byte, byte) for byte in range(4))),
}


_NARROW = frozenset(row.name for row in (E2M1, E2M3, E3M2))


def _shift_only_with_ws(fields: Fields) -> str | None:
    if fields["max_shift"] and fields["m"] not in (32, 64, 128):
        return f"max_shift {fields['max_shift']} belongs to .ws, which has no M = {fields['m']}"
    return None


def _selector_only_when_sparse(fields: Fields) -> str | None:
    if fields["sparsity_selector"] and not fields["sparse"]:
        return f"sparsity_selector {fields['sparsity_selector']} in a dense descriptor"
    return None


def _major_of_narrow_types(fields: Fields) -> str | None:
    """Return an error for an MN-major operand of 4 or 6 bits, which CUTLASS does not list."""
    for side in ("a", "b"):
        if fields[f"{side}_major"] == "MN" and fields[f"{side}_format"] in _NARROW:
            return f"{side}_major MN with {fields[f'{side}_format']}: 4- and 6-bit operands are K-major"
    return None


def _long_fp4_is_dense(fields: Fields) -> str | None:
    return "k 96 is dense only (sm_103a)" if fields["k"] == 96 and fields["sparse"] else None


def _long_fp8_is_dense(fields: Fields) -> str | None:
    return "k 64 is dense only (sm_107a)" if fields["k"] == 64 and fields["sparse"] else None


def _odd_scale_ids_of_long_k(fields: Fields) -> str | None:
    """Return an error for an odd scale id: two or four scales begin at an even byte, three of K = 96 at any."""
    for side in ("a", "b"):
        if fields[f"{side}_scale_id"] % 2 and fields["k"] != 96:
            return f"{side}_scale_id {fields[f'{side}_scale_id']} with k {fields['k']}: 0 or 2"
    return None


def _first_name(codes: Codes) -> Value | None:
    """Return the default of a field with one legal value; None (must be given) where there is a choice."""
    return codes[0][1] if len(codes) == 1 else None


def _shared_fields(a_names: Codes, b_width: int, major: Codes, negatable: bool) -> list[Field]:
    formats = _first_name(a_names) if a_names else None
    return [
        Field("a_format", 7, 3, "format of A", names=a_names, default=formats),
        Field("b_format", 10, b_width, "format of B", names=a_names, default=formats),
        Field("negate_a", 13, 1, "1 if A is negated", fixed=not negatable),
        Field("negate_b", 14, 1, "1 if B is negated", fixed=not negatable),
        Field("a_major", 15, 1, "which dimension of A is contiguous", names=major, default="K"),
        Field("b_major", 16, 1, "which dimension of B is contiguous", names=major, default="K"),
        Field("n", 17, 6, "columns of D, in eights", 8, default=None, allowed=_COLUMNS),
        Field("sparse", 2, 1, "1 if A is 2:4 sparse"),
    ]


def _dense(kind: str, types: Codes, results: Codes) -> Descriptor:
    """Return the descriptor of a kind without scales; kind "" leaves the formats as codes."""
    known = bool(types)
    fields = [
        *_shared_fields(types, 3, _MAJORS, negatable=kind != "i8"),
        Field("sparsity_selector", 0, 2, "which of the metadata in TMEM"),
        Field("saturate", 3, 1, "1 if integers saturate", fixed=kind not in ("i8", "")),
        Field("d_format", 4, 2, "format of D", names=results, default=_first_name(results) if known else None),
        Field("m", 24, 5, "rows of D, in sixteens", 16, names=tuple((m // 16, m) for m in DENSE_ROWS), default=None),
        Field("max_shift", 30, 2, "rows that B may be shifted by (.ws)", names=_SHIFTS),
    ]
    rules = (_selector_only_when_sparse, _shift_only_with_ws, _major_of_narrow_types)
    name, source = f"tcgen05-instr.{kind}" if kind else "tcgen05-instr", PTX["tcgen05, instruction descriptor"]
    of = f"kind::{kind}" if kind else "of a dense kind that is not known: formats stay codes"
    return Descriptor(name, 32, tuple(fields), source, f"tcgen05.mma {of}", rules=rules)


def _scaled(kind: str, types: Codes, scales: Codes, ids: Codes) -> Descriptor:
    """Return the descriptor of a block-scaled kind with these codes of types, scales and scale factor ids."""
    four_bit = kind != "mxf8f6f4"
    fields = [
        *_shared_fields(types, 2 if four_bit else 3, _MAJORS[:1] if four_bit else _MAJORS, negatable=True),
        Field("b_scale_id", 4, 2, "first byte of B's scales in their TMEM column", names=ids),
        Field("scale_format", 23, 1, "format of both scales", names=scales, default=_first_name(scales)),
        Field("m", 27, 2, "rows of D, in 128s", 128, default=None, allowed=range(128, 257, 128)),
        Field("a_scale_id", 29, 2, "first byte of A's scales in their TMEM column", names=ids),
    ]
    sizes = ((0, 64), (1, 96)) if four_bit else ((0, 32), (1, 64))
    fields.append(Field("k", 31, 1, "K of the dense instruction", names=sizes, default=sizes[0][1]))
    of_width = (_long_fp4_is_dense, _odd_scale_ids_of_long_k) if four_bit else (_long_fp8_is_dense,)
    source, instruction = PTX["tcgen05, instruction descriptor"], f"tcgen05.mma kind::{kind}.block_scale"
    rules = (_major_of_narrow_types, *of_width)
    return Descriptor(f"tcgen05-instr.{kind}", 32, tuple(fields), source, instruction, rules=rules)


INSTRUCTION_DESCRIPTORS = (
    _dense("", (), ((0, "f16"), (1, "f32"), (2, "s32"))),
    *(_dense(kind, types, results) for kind, (types, results) in _DENSE.items()),
    *(_scaled(kind, types, scales, ids) for kind, (types, scales, ids) in _SCALED.items()),
)
