"""A kernel of our own and the defects that a wrong assembler would make of it; one whose output a race decides."""

import numpy as np

from refsim.blame import BlameSubject, GivenLaunch, of_launch

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"

POLYNOMIAL = (
    HEAD
    + """
.visible .entry other(.param .u64 y)
{
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [y];
    st.global.u32 [%rd1], 7;
    ret;
}
.visible .entry polynomial(.param .u64 x, .param .u64 y, .param .u32 n)
{
    .reg .pred %p<4>;
    .reg .b32 %r<12>;
    .reg .f32 %f<12>;
    .reg .b64 %rd<8>;
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    ld.param.u32 %r5, [n];
    setp.ge.u32 %p1, %r4, %r5;
    @%p1 bra $DONE;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    mul.wide.u32 %rd5, %r4, 4;
    add.s64 %rd6, %rd3, %rd5;
    add.s64 %rd7, %rd4, %rd5;
    ld.global.f32 %f1, [%rd6];
    mul.rn.f32 %f2, %f1, 0f3FC00000; // 1.5
    add.rn.f32 %f3, %f2, 0f40490FDB;
    fma.rn.f32 %f4, %f3, %f1, %f2;
    setp.gt.f32 %p2, %f4, 0f41200000;
    @%p2 mul.rn.f32 %f4, %f4, 0f3F000000;
    st.global.f32 [%rd7], %f4;
$DONE:
    ret;
}
"""
)

LAST_WINS = (
    HEAD
    + """
.visible .entry last_wins(.param .u64 y)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [y];
    mov.u32 %r1, %tid.x;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
)

CONTRACTED = POLYNOMIAL.replace("mul.rn.f32", "mul.f32").replace("add.rn.f32", "add.f32")
"""ptxas may make one fma of its first two."""

SUMS = (
    HEAD
    + """
.visible .entry sums(.param .u64 x, .param .u64 y)
{
    .reg .b32 %r<4>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.f32 %f1, [%rd4];
    red.global.add.f32 [%rd2], %f1;
    add.rn.f32 %f2, %f1, 0f3F800000;
    st.global.f32 [%rd5+4], %f2;
    ret;
}
"""
)
"""y[0] is the sum of x in whatever order, y[1 + i] is x[i] + 1."""

PLANTED = {
    "add-sub": ("add.rn.f32", "sub.rn.f32"),
    "no-predicate": ("@%p2 mul", "mul"),
    "constant": ("0f3FC00000", "0f3FC00001"),
    "operands": ("%f4, %f3, %f1, %f2", "%f4, %f3, %f1, %f3"),
    "rounding": ("fma.rn.f32", "fma.rz.f32"),
}
"""What is edited, by the name of the miscompile that it stands for."""


def polynomial(text: str = POLYNOMIAL, target: str = "sm_90a") -> BlameSubject:
    """12 values, of which a launch of 16 threads computes each; the last threads have nothing to do."""
    x, y = np.linspace(-4, 4, 12, dtype=np.float32), np.zeros(16, np.float32)
    launch = GivenLaunch("polynomial", (2,), (8,), (x, y, np.uint32(12)))
    return of_launch(text, target, launch, name="polynomial.ptx")


def sums() -> BlameSubject:
    launch = GivenLaunch("sums", (1,), (8,), (np.linspace(1, 2, 8, dtype=np.float32), np.zeros(9, np.float32)))
    return of_launch(SUMS, "sm_90a", launch, name="sums.ptx")


def last_wins() -> BlameSubject:
    launch = GivenLaunch("last_wins", (1,), (64,), (np.zeros(1, np.uint32),))
    return of_launch(LAST_WINS, "sm_90a", launch, name="last_wins.ptx")
