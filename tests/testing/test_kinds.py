"""`refsim.testing.kinds`: one line says what a kernel of a usual kind computes, and what does not fit is refused."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest
from hypothesis import strategies as st

import refsim
from refsim import oracles
from refsim.conversions import decode, encode, pack
from refsim.errors import RefsimError
from refsim.layouts import scale_layout
from refsim.numerics import mma
from refsim.scaling import quantize
from refsim.testing import Kernel, Promise, kinds
from refsim.testing.laws import check_computes
from refsim.testing.matrices import Values


@dataclass(frozen=True)
class Case:
    """Operands of every kind, drawn from a seed."""

    m: int = 4
    n: int = 8
    k: int = 256
    seed: int = 0

    def drawn(self, number, *shape):
        return np.random.default_rng(16 * self.seed + number).normal(0, 1, shape)

    @property
    def x(self):
        return encode(self.drawn(0, self.m, self.k), "bf16")

    def w(self):
        return encode(self.drawn(1, self.n, self.k), "bf16")

    @property
    def row(self):
        return self.w()[0]

    @property
    def bias(self):
        return self.drawn(2, self.n).astype(np.float32)

    @cached_property
    def a(self):
        return encode(self.drawn(3, self.m, self.k), "e4m3")

    @cached_property
    def b(self):
        return encode(self.drawn(4, self.n, self.k), "e4m3")

    @property
    def scale_a(self):
        return self.drawn(5, self.m, self.k // 128).astype(np.float32)

    @property
    def scale_b(self):
        return self.drawn(6, 1, self.k // 128).astype(np.float32)

    @property
    def blocks(self):
        return np.full((self.m, self.k // 32), 0x80, np.uint8)

    @property
    def whole(self):
        return np.rint(20 * self.drawn(7, self.m, self.k)).astype(np.int8)

    @property
    def heads(self):
        return encode(self.drawn(8, 1, 16, 64), "bf16")

    gap = np.zeros(3, np.uint8)
    values = Values("ones")

    def none(self):
        return None


CASE = Case()
F32_CODES, TARGET = np.uint32, "sm_90a"


def kernel(computes, outputs, **more):
    corpus = more.get("corpus", (CASE,))
    given = {"recipe": Case, "problem": st.sampled_from(corpus), "run": print, "ptx": ".version 8.0", "corpus": corpus}
    return Kernel("k", computes=computes, outputs=outputs, **given | more)


def of_scaled(promotion):
    d = oracles.fp8_gemm_1d2d(CASE.a, CASE.b, CASE.scale_a, CASE.scale_b, promotion=promotion, out="f32")
    return d.view(F32_CODES)


def of_attention():
    found = oracles.attention(CASE.heads, CASE.heads, CASE.heads, 0.125, causal=True)
    return {"o": found.o, "lse": found.lse.view(F32_CODES)}


def of_groups(**given):
    made = quantize(CASE.x, "bf16", **given)
    scales = made.scales.view(F32_CODES) if made.scales.dtype == np.float32 else made.scales
    return {"q": made.codes, "s": scales}


def of_blocks(to, layout=None, **given):
    made = refsim.quantize(CASE.x, to, input_format="bf16", **given)
    return {
        "q": made.codes,
        "s": made.scales if layout is None else scale_layout(layout).shuffle(made.scales).reshape(-1),
    }


SUM = decode(mma(CASE.x, CASE.w(), a_format="bf16", b_format="bf16", target=TARGET).view(np.uint32), "f32")
KINDS = {
    "scaled_product": (kinds.scaled_product(), {"d": "f32"}, lambda: {"d": of_scaled("scale_product")}),
    "b_then_a": (kinds.scaled_product(promotion="b_then_a"), {"d": "f32"}, lambda: {"d": of_scaled("b_then_a")}),
    "block_scaled_product": (
        kinds.block_scaled_product("a", "a", "blocks", "blocks", a_format="e4m3", b_format="e4m3", global_scale=0.5),
        {"d": "f32"},
        lambda: {
            "d": oracles.block_scaled_matmul(
                *(CASE.a, CASE.a, CASE.blocks, CASE.blocks),
                a_format="e4m3",
                b_format="e4m3",
                global_scale=0.5,
                target=TARGET,
            ).view(F32_CODES)
        },
    ),
    "linear": (
        kinds.linear("x", "w", "bias", a_format="bf16", b_format="bf16"),
        {"y": "f32"},
        lambda: {"y": (SUM + CASE.bias).astype(np.float32).view(F32_CODES)},
    ),
    "narrow weights": (
        kinds.linear("x", lambda p: p.b >> 4, b_scale=0.5, b_zero=8, a_format="bf16", b_format="u4"),
        {"y": "f32"},
        lambda: {
            "y": mma(
                CASE.x,
                encode(((CASE.b >> 4).astype(int) - 8) * 0.5, "bf16"),
                a_format="bf16",
                b_format="bf16",
                target=TARGET,
            ).view(F32_CODES)
        },
    ),
    "integer_product": (
        kinds.integer_product("whole", lambda p: p.whole[:3], a_zero=2),
        {"d": "s32"},
        lambda: {"d": ((CASE.whole.astype(int) - 2) @ CASE.whole[:3].T.astype(int)).astype(np.int32)},
    ),
    "softmax": (
        kinds.softmax(x_format="bf16", also={"gap": "gap"}),
        {"y": "f32", "gap": ""},
        lambda: {
            "y": oracles.softmax(decode(CASE.x, "bf16", np.float32), float(np.log2(np.e))).view(F32_CODES),
            "gap": CASE.gap,
        },
    ),
    "rms_norm": (
        kinds.rms_norm(weight="row", eps=lambda p: 1e-5, x_format=lambda p: "bf16"),
        {"y": "bf16"},
        lambda: {"y": oracles.rms_norm(CASE.x, CASE.row, 1e-5, format="bf16")},
    ),
    "attention": (
        kinds.attention("heads", "heads", "heads", format="bf16", causal=True, scale=0.125),
        {"o": "bf16", "lse": "f32"},
        of_attention,
    ),
    "1x128": (kinds.quantizer(x_format="bf16"), {"q": "e4m3", "s": "f32"}, of_groups),
    "128x128": (
        kinds.quantizer(to="128x128", x_format="bf16", quotient="divide"),
        {"q": "e4m3", "s": "f32"},
        lambda: of_groups(group=(128, 128), quotient="divide"),
    ),
    "ue8m0": (kinds.quantizer(x_format="bf16"), {"q": "e4m3", "s": "e8m0"}, lambda: of_groups(scale="e8m0")),
    "mxfp8": (
        kinds.quantizer(to="mxfp8", recipe="rceil", x_format="bf16"),
        {"q": "e4m3", "s": "e8m0"},
        lambda: of_blocks("mxfp8", recipe="rceil"),
    ),
    "nvfp4": (
        kinds.quantizer(to="nvfp4", x_format="bf16", layout="nvidia_128x4"),
        {"q": "", "s": "ue4m3"},
        lambda: {
            name: pack(array, "e2m1") if name == "q" else array
            for name, array in of_blocks("nvfp4", "nvidia_128x4").items()
        },
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_one_line_gives_the_outputs_of_the_oracle_in_their_shapes(name):
    computes, outputs, oracle = KINDS[name]
    got, want = kernel(computes, outputs).expected(CASE, TARGET), oracle()
    assert list(got) == list(want) == list(outputs)
    for output, right in want.items():
        assert got[output].shape == np.shape(right)
        assert (got[output] == np.asarray(right).view(got[output].dtype)).all(), output


def test_a_text_of_how_chooses_another_way():
    usual, other = (
        kernel(kinds.scaled_product(how=how), {"d": "f32"}).expected(CASE, TARGET)["d"]
        for how in ((), "a float32 fma for every k")
    )
    assert (usual != other).any()


BAD = {
    "an argument that does not exist": (lambda: kinds.scaled_product(scale="s"), {"d": "bf16"}, "unknown-name"),
    "two outputs of one": (kinds.softmax, {"y": "bf16", "z": "bf16"}, "bad-kernel"),
    "an output that is not there": (lambda: kinds.softmax(also={"z": "gap"}), {"y": "bf16"}, "bad-kernel"),
    "no mapping": (lambda: kinds.softmax(also="gap"), {"y": "bf16"}, "wrong-type"),
    "an operand that is not there": (lambda: kinds.softmax("z", x_format="bf16"), {"y": "bf16"}, "unknown-name"),
    "a recipe of values": (lambda: kinds.softmax("values"), {"y": "bf16"}, "not-an-array"),
    "an operand that is None": (lambda: kinds.softmax("none"), {"y": "bf16"}, "not-an-array"),
    "no format": (lambda: kinds.softmax(x_format="bf16"), {"y": ""}, "format-needed"),
    "integers of floats": (kinds.scaled_product, {"d": "s32"}, "format-needed"),
    "floats of integers": (lambda: kinds.integer_product("a", "x"), {"d": "s32"}, "bad-dtype"),
    "another format": (lambda: kinds.softmax(x_format="e4m3"), {"y": "bf16"}, "bad-dtype"),
    "another K": (lambda: kinds.scaled_product(b="row"), {"d": "bf16"}, "bad-dtype"),
    "scales of other blocks": (lambda: kinds.scaled_product(b_scale="whole"), {"d": "bf16"}, "bad-dtype"),
    "no promotion": (lambda: kinds.scaled_product(promotion="fma"), {"d": "bf16"}, "unknown-name"),
    "no way": (lambda: kinds.scaled_product(how="by hand"), {"d": "bf16"}, "bad-kernel"),
    "no kind of scale": (lambda: kinds.quantizer(kind="f16", x_format="bf16"), {"q": "e4m3"}, "unknown-name"),
    "no quotient": (lambda: kinds.quantizer(quotient="no", x_format="bf16"), {"q": "e4m3"}, "unknown-name"),
    "scales in another format": (
        lambda: kinds.quantizer(to="mxfp8", x_format="bf16"),
        {"q": "e4m3", "s": "f32"},
        "format-mismatch",
    ),
    "codes in another format": (lambda: kinds.quantizer(to="mxfp8", x_format="bf16"), {"q": "bf16"}, "format-mismatch"),
    "no such quantizer": (lambda: kinds.quantizer(to="fp3", x_format="bf16"), {"q": "e4m3"}, "unknown-format"),
    "a kind of FP8 for blocks": (lambda: kinds.quantizer(to="mxfp8", quotient="divide"), {"q": "e4m3"}, "unknown-name"),
    "a row": (lambda: kinds.quantizer("row", x_format="bf16"), {"q": "e4m3"}, "bad-shape"),
    "a number": (lambda: kinds.attention(1.0, 1.0, 1.0, format="bf16"), {"o": "bf16"}, "bad-dtype"),
    "an array for a number": (lambda: kinds.softmax("x", "row", x_format="bf16"), {"y": "bf16"}, "wrong-type"),
    "a number for a text": (lambda: kinds.scaled_product(how=3), {"d": "bf16"}, "wrong-type"),
    "a number for a matrix": (lambda: kinds.scaled_product(3.0), {"d": "bf16"}, "wrong-type"),
    "a layout of bytes": (
        lambda: kinds.quantizer(layout="nvidia_128x4", x_format="bf16"),
        {"q": "e4m3", "s": "f32"},
        "format-mismatch",
    ),
    "codes without a format": (lambda: kinds.block_scaled_product(b="a"), {"d": "f32"}, "format-needed"),
    "a missing call": (lambda: kinds.softmax, {"y": "bf16"}, "bad-kernel"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_one_error_with_a_place(name):
    make, outputs, code = BAD[name]
    with pytest.raises(RefsimError) as caught:
        kernel(make(), outputs).expected(CASE, TARGET)
    assert caught.value.code == code
    assert "computes" in caught.value.where or "kernel k" in caught.value.where
    assert caught.value.help or caught.value.rule


def test_a_computation_that_contradicts_the_oracle_is_refused():
    right = kernel(kinds.scaled_product(), {"d": "f32"}, oracle=lambda problem: {"d": of_scaled("scale_product")})
    check_computes(right, CASE, TARGET)
    wrong = replace(right, computes=kinds.scaled_product(promotion="a_then_b"))
    with pytest.raises(RefsimError, match=r"computes= gives .* other elements of 'd' than oracle"):
        check_computes(wrong, CASE, TARGET)
    check_computes(replace(wrong, promise=Promise.WITHIN(4, because="any promotion")), CASE, TARGET)
    with pytest.raises(RefsimError, match="no operand is called 'z'"):
        check_computes(replace(right, computes=kinds.scaled_product("z")), CASE, TARGET)
