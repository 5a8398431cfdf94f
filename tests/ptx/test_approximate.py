"""Instructions of the special-function unit: the chip's bits on sm_90, the same bits marked as assumed elsewhere."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import Kind, RefsimError
from refsim.evidence import Level
from refsim.numerics.sparse import INFERRED
from refsim.ptx.isa.products import mma_kind, tensor_kind, unrecorded
from refsim.silicon.scalar_probe import ScalarForm, kind_bits, probe_module

ONE = {
    "rcp": 0x3F0A54EA,
    "rsqrt": 0x3F3C2EE6,
    "sqrt": 0x3FAE20D1,
    "ex2": 0x4066D1EA,
    "lg2": 0x3F6354C1,
    "sin": 0x3F760AD8,
    "cos": 0xBE8D68CA,
    "tanh": 0x3F73A9B0,
}
X = 0x3FECE141
NARROW = {  # of 0.55 in f16, 0x3866, in bf16 0x3f0d, and of another number beside it
    "ex2.approx.f16": (0x3866, 0x3DDB),
    "ex2.approx.f16x2": (0xCD003866, 0x00103DDB),
    "ex2.approx.ftz.bf16": (0x3F0D, 0x3FBB),
    "ex2.approx.ftz.bf16x2": (0xC2FE3F0D, 0x00003FBB),
    "tanh.approx.f16": (0x3866, 0x3800),
    "tanh.approx.f16x2": (0x7C003866, 0x3C00 << 16 | 0x3800),
    "tanh.approx.bf16": (0x3F0D, 0x3F00),
    "tanh.approx.bf16x2": (0x80013F0D, 0x8001 << 16 | 0x3F00),
}
DOUBLE = {  # of 3 and one place more, whose lower word only rsqrt without .ftz reads
    "rcp.approx.ftz.f64": (0x4008000000000001, 0x3FD5555500000000),
    "rsqrt.approx.ftz.f64": (0x4008000000000001, 0x3FE279A700000000),
    "rsqrt.approx.f64": (0x4008000000000001, 0x3FE279A74590331C),
}


def run(
    name: str, body: str, operands: int, target: str, arithmetic: ptx.Arithmetic = "silicon"
) -> tuple[int, ptx.Trace]:
    """The result of X, or of 1 / X, and what the launch says of it."""
    form = ScalarForm(name, ("f32",) * operands, 32, body)
    return ran(form, [0x3F800000, X] if operands == 2 else [X], target, arithmetic)


def ran(
    form: ScalarForm, words: list[int], target: str, arithmetic: ptx.Arithmetic = "silicon"
) -> tuple[int, ptx.Trace]:
    """The result of these operands in every lane, and what the launch says of it."""
    text = probe_module([form]).replace("sm_90a", target)
    columns = [np.full(32, word, f"u{form.result // 8}") for word in words]
    found = np.zeros(32, f"u{form.result // 8}")
    arguments = [*columns, found, np.uint32(32)]
    trace = ptx.load(text).launch("form_0", (1,), (32,), arguments, arithmetic=arithmetic)
    assert len(set(found.tolist())) == 1
    return int(found[0]), trace


def certain(trace: ptx.Trace, opcode: str, target: str) -> bool:
    """Whether a launch of one statement is exact where its chip was recorded, and says what it assumes elsewhere."""
    assert trace.inexact == ()
    if target.startswith("sm_90"):
        return trace.is_exact and trace.assumed == ()
    (said,) = trace.assumed
    ends = said.startswith(f"{opcode} at PTX line ") and said.endswith(f": as on sm_90, unverified on {target}")
    return ends and not trace.is_exact and len(trace.open_lines) == 1


@pytest.mark.parametrize("target", ["sm_90", "sm_90a", "sm_80", "sm_100a"])
@pytest.mark.parametrize("name", ONE)
def test_functions(name: str, target: str) -> None:
    for ftz in ("", ".ftz") if name != "tanh" else ("",):
        opcode = f"{name}.approx{ftz}.f32"
        found, trace = run(name, f"{opcode} %d, %a;", 1, target)
        assert found == ONE[name]
        assert certain(trace, opcode, target)


@pytest.mark.parametrize("opcode", ["div.approx", "div.full", "div.approx.ftz", "div.full.ftz"])
def test_quotients_are_products_with_the_reciprocal(opcode: str) -> None:
    for target in ("sm_90a", "sm_89"):
        found, trace = run(opcode, f"{opcode}.f32 %d, %a, %b;", 2, target)
        assert found == ONE["rcp"]
        assert certain(trace, f"{opcode}.f32", target)


@pytest.mark.parametrize("target", ["sm_90", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("opcode", [*NARROW, *DOUBLE])
def test_functions_of_other_widths(opcode: str, target: str) -> None:
    operand, result = (NARROW | DOUBLE)[opcode]
    kind = opcode.rpartition(".")[2]
    form = ScalarForm(opcode, (kind,), kind_bits(kind), f"{opcode} %d, %a;")
    found, trace = ran(form, [operand], target)
    assert found == result
    assert certain(trace, opcode, target)


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("opcode", ["ex2.approx.ftz.f32", "div.full.f32"])
def test_known_arithmetic_refuses_what_is_assumed(opcode: str, target: str) -> None:
    """The refusal names the instruction, its line and the target; where the chip was recorded nothing is refused."""
    operands = 2 if opcode.startswith("div") else 1
    body = f"{opcode} %d, %a{', %b' if operands == 2 else ''};"
    want, _ = run("one", body, operands, target)
    if target == "sm_90a":
        assert run("one", body, operands, target, "known")[0] == want
        return
    with pytest.raises(
        RefsimError, match="the bits of its result are assumed: those of sm_90, unverified on sm_80"
    ) as caught:
        run("one", body, operands, target, "known")
    assert (caught.value.code, caught.value.kind) == ("open-bits", Kind.INCONCLUSIVE)
    assert caught.value.where.startswith(f"{opcode} at PTX line ")


ONE_ENTRY = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry one(.param .u64 y) {{
.reg .b64 %rd<2>; .reg .f32 %f<2>; .reg .pred %p<2>;
ld.param.u64 %rd1, [y];
ld.global.f32 %f0, [%rd1];
setp.gt.f32 %p0, %f0, 0f3F800000;
{body}
st.global.f32 [%rd1], %f1;
ret;
}}
"""
OPEN = {
    "an order of arrival": "atom.global.add.f32 %f1, [%rd1], 0f3F800000;",
    "a contraction": "mul.f32 %f1, %f0, %f0; add.f32 %f1, %f1, %f0;",
}


@pytest.mark.parametrize("name", OPEN)
def test_known_arithmetic_refuses_what_is_open(name: str) -> None:
    program = ptx.load(ONE_ENTRY.format(body=OPEN[name]))
    assert not program.launch("one", 1, 1, [np.zeros(1, np.float32)]).is_exact
    with pytest.raises(RefsimError, match="the bits of its result are left open") as caught:
        program.launch("one", 1, 1, [np.zeros(1, np.float32)], arithmetic="known")
    assert caught.value.where.startswith(OPEN[name].partition(" ")[0])


MMA = """.reg .b32 %a; .reg .f32 %d<4>; mov.b32 %a, 0;
mma.sync.aligned.{shape}.row.col.f32.{type}.{type}.f32 {{%d0, %d1, %d2, %d3}}, {{{a}}}, {{%a, %a}}, {{%f0, %f0, %f0, %f0}};
mov.f32 %f1, %d0;"""
DENSE = MMA.format(shape="m16n8k16", type="bf16", a="%a, %a, %a, %a")


@pytest.mark.parametrize(
    ("target", "rests_on"),
    [
        ("sm_80", ""),
        ("sm_90a", ""),
        ("sm_100a", ""),
        ("sm_110a", "nothing is published of sm_110: taken for sm_100"),
        ("sm_120a", "independent published models agree"),
    ],
)
def test_known_arithmetic_refuses_tensor_cores_that_rest_on_models_alone(target: str, rests_on: str) -> None:
    """A100, Hopper and B200 returned what the rows of bf16 say; of sm_120 models agree, which no chip was asked about."""
    program = ptx.load(ONE_ENTRY.format(body=DENSE).replace("sm_90a", target))
    y = np.zeros(1, np.float32)
    if not rests_on:
        assert program.launch("one", 1, 32, [y], arithmetic="known").is_exact
        return
    with pytest.raises(RefsimError, match="the bits of its result are those of a model alone") as caught:
        program.launch("one", 1, 32, [y], arithmetic="known")
    assert (caught.value.code, caught.value.kind) == ("open-bits", Kind.INCONCLUSIVE)
    assert rests_on in str(caught.value)
    assert caught.value.where.startswith("mma.sync.aligned.m16n8k16")


SPARSE = (
    DENSE.replace("mma.sync", "mma.sp.sync").replace("m16n8k16", "m16n8k32").replace("{%a, %a}", "{%a, %a, %a, %a}")
)
SPARSE = SPARSE.replace("%f0};", "%f0}, %e, 0;").replace(
    "mov.b32 %a, 0;", "mov.b32 %a, 0; .reg .b32 %e; mov.b32 %e, 0x44444444;"
)
INTEGERS = """.reg .b32 %a, %d<4>; mov.b32 %a, 0;
mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%d0, %d1, %d2, %d3}, {%a, %a}, {%a}, {%a, %a, %a, %a}; mov.b32 %f1, %d0;"""


@pytest.mark.filterwarnings("ignore::refsim.numerics.UnverifiedProfileWarning")
@pytest.mark.parametrize(
    ("body", "target", "rests_on"),
    [
        (DENSE, "sm_80", ""),
        (DENSE, "sm_100a", ""),
        (DENSE, "sm_120a", ""),
        (DENSE, "sm_103a", "nothing is published of sm_103: taken for sm_100"),
        (INTEGERS, "sm_103a", ""),
        (SPARSE, "sm_90a", ""),
        (SPARSE, "sm_80", "sparse sums are inferred, not measured"),
        (SPARSE, "sm_100a", "sparse sums are inferred, not measured"),
    ],
)
def test_a_product_of_which_nothing_is_published_is_assumed(body: str, target: str, rests_on: str) -> None:
    """One by a chip's words, by models that others published, or by definition is not; exact sums rest on no row."""
    program, y = ptx.load(ONE_ENTRY.format(body=body).replace("sm_90a", target)), np.zeros(1, np.float32)
    trace = program.launch("one", 1, 32, [y])
    assert trace.is_exact == (not rests_on)
    if rests_on:
        (said,) = trace.assumed
        assert said.startswith("mma.s")
        assert f": {rests_on}" in said
    assert program.launch("one", 1, 32, [y], arithmetic="exact").assumed == ()


def test_sums_that_are_defined_and_sparse_ones_of_hopper_are_known() -> None:
    """Integers, and float64 by IEEE 754, need no chip; of a sparse A Hopper was recorded."""
    bf16 = mma_kind("bf16", "bf16", "f32")
    assert unrecorded(mma_kind("s8", "s8", "s32"), 32, "sm_120a") is None
    assert unrecorded(mma_kind("f64", "f64", "f64"), 4, "sm_120a") is None
    assert unrecorded(bf16, 32, "sm_90a", is_sparse=True) is None
    assert unrecorded(bf16, 32, "sm_80", is_sparse=True) is INFERRED
    published = unrecorded(tensor_kind("f16", "bf16", "bf16", "f32"), 16, "sm_100a")
    assert published is not None
    assert (published.level, "B200" in published.what) == (Level.INDEPENDENT, True)


@pytest.mark.parametrize("guard", ["@%p0 ", "@!%p0 bra OVER; "])
def test_what_no_lane_runs_is_neither_marked_nor_refused(guard: str) -> None:
    text = ONE_ENTRY.format(body=f"mov.f32 %f1, %f0; {guard}ex2.approx.ftz.f32 %f1, %f0; OVER:").replace(
        "sm_90a", "sm_80"
    )
    program = ptx.load(text)
    y = np.ones(1, np.float32)
    assert program.launch("one", 1, 1, [y], arithmetic="known").is_exact
    assert y[0] == 1
    y[0] = 2
    assert len(program.launch("one", 1, 1, [y.copy()]).assumed) == 1
    with pytest.raises(RefsimError, match="open-bits"):
        program.launch("one", 1, 1, [y], arithmetic="known")
    assert y[0] == 2
