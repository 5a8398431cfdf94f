"""What ptxas reads, the reader reads: declarations, directives and operands, each put to both."""

import subprocess
from pathlib import Path

import pytest

from refsim.errors import RefsimError
from refsim.ptx.text.parser import parse
from refsim.reference.assembler import releases

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
FUNCTION = ".func (.param .u32 r) f(.param .u32 a) { .reg .u32 x; ld.param.u32 x, [a]; st.param.u32 [r], x; ret; }"
IN_REGISTERS = ".func (.reg .u32 r) f(.reg .u32 a) { mov.u32 r, a; ret; }"
PLAIN = ".func f() { ret; }\n.func g() { ret; }"

# fmt: off
DECLARATIONS = [
    f"{PLAIN}\n.global .u64 tab[2] = {{f, g}};",
    ".global .u32 x[4]; .global .u64 p = generic(x)+8;", ".global .u32 x[4]; .const .u64 p[] = {x, generic(x)+4, 0};",
    ".global .u32 x[4]; .global .u8 b[2] = {0xff(generic(x)+4), 0xff00(x+4)};", ".global .u32 x; .global .u64 b = x+-4;",
    ".global .f32 a[2] = {1.0, -1.5e-3};", ".global .b32 a = 1.5;", ".global .b32 a = 0f3f800000;",
    ".global .u32 a = (1+2)*4;",
    ".global .u32 a[2][2] = {{1,2},{3}};", ".global .u32 a[][2] = {{1,2},{3,4}};", ".global .u32 a[] = {1,2,3};",
    ".global .v4 .f32 a[2] = {{1.0,2.0,3.0,4.0},{1.0,2.0,3.0,4.0}};", ".global .v2 .u8 a = {1,2};",
    ".global .b128 a = 1;",
    ".global .u32 a[WARP_SZ], b = WARP_SZ;", ".global .align 4 .align 8 .u32 a;", ".global .u32 a, b = 5, c[3];",
    ".global .u32 x; .global .u64 pp[2][1] = {{x},{x}};", ".global .b8 big[1000000000];", ".global .u32 big[1000000000];",
    ".extern .shared .align 16 .b8 a[];", ".extern .shared .v4 .u32 e[];", ".extern .global .u32 e;",
    ".weak .global .u32 e;",
    ".common .global .u32 e[4] = {1};", ".weak .shared .u32 e;", ".visible .const .u32 e;", ".global .texref t;",
    ".global .attribute(.managed) .u32 e;", ".attribute(.managed) .global .u32 e;",
    ".visible .func f(){ret;}\n.visible .func ff();\n.alias ff, f;", ".weak .func f(){ret;}",
    ".func f() .noreturn {trap;}",
    ".extern .func f() .noreturn;", ".func f() .abi_preserve 8 {ret;}", ".func f {ret;}", ".entry q {ret;}",
    ".func (.reg .u32 r) f (.reg .u32 a, .reg .f64 b) { mov.u32 r, a; ret; }", ".func (.reg .v2 .u32 r) f () { ret; }",
    ".func f (.reg .pred p) { ret; }", ".func f (.param .u32 p, .reg .u32 q) { ret; }",
    ".func f (.param .b8 p[]) { ret; }",
    '.pragma "nounroll";', '.file 1 "a.cu"\n.file 2 "b.cu", 123, 456',
    ".section .debug_str { .b8 1,2\n L1: .b8 3, 4\n .b32 L1\n .b64 .debug_str+4\n .b32 L1-L1\n }",
    ".entry q() .maxntid 1,2,3 {ret;}", ".entry q() .maxntid 256 .minnctapersm 2 {ret;}", ".entry q() .maxnreg 32 {ret;}",
    ".entry q() .reqntid 32 .reqnctapercluster 2 .explicitcluster {ret;}", '.entry q() .pragma "nounroll"; {ret;}',
    ".entry q() .maxclusterrank 4 {ret;}", ".entry q(.param .u32 a[4]) {ret;}", ".weak .entry q(){ret;}",
]

BODIES = [
    "mov.u32 %r1, (1+2)*4;", "mov.u32 %r1, ~5;", "mov.u32 %r1, !5;", "mov.u32 %r1, 1?2:3;", "mov.u32 %r1, (.s64)5;",
    "mov.u64 %d1, (.u64)-5;", "mov.f32 %f1, 1.5+2.5;", "mov.f32 %f1, .5;", "mov.f64 %g1, 0d3ff0000000000000*2.0;",
    "mov.u32 %r1, WARP_SZ*2-1;", "add.u32 %r1, %r2+1, 3;", "st.global.u32 [%d1], %r1+1;", "setp.eq.u32 %p1, %r1+1, %r2;",
    "ld.global.u32 %r1, [%d1+4*2];", "ld.global.u32 %r1, [%d1+-4];", "ld.global.u32 %r1, [x+4-8];",
    "ld.global.u32 %r1, x[1];",
    "ld.global.u32 %r1, x[%r2+1];", "mov.u64 %d1, x[%r2];", "mov.u64 %d1, x+4*2;", "st.global.u64 [%d1], x+4;",
    "cvta.global.u64 %d1, x+8;", "mov.pred %p2, !%p1;", "mov.pred %p1, 1;", "setp.eq.and.u32 %p1|%p2, %r1, 1, !%p3;",
    "mov.b64 %d1, {1,2};", "mov.b64 {%r1,_}, %d1;", "ld.u32 %r1, [s+4];", "st.u32 [l], 5;", "atom.add.u32 %r1, [s], 1;",
    ".reg .v4 .f32 v; ld.global.v4.f32 v, [%d1]; add.f32 %f1, v.x, v.b; mov.f32 v.z, %f1; st.global.v4.f32 [%d1], v;",
    ".reg .v2 .u32 v; mov.b64 %d1, v;", ".reg .v4 .u32 v<3>; mov.u32 %r1, v1.x;", ".reg .align 4 .u32 a;",
    ".reg .v4 .u32 v; mov.v4.u32 v, {%r1,%r2,%r3,%r4};", ".reg .b128 q; mov.b128 q, {%d1, %d2}; mov.b128 {%d3, %d4}, q;",
    ".reg .b128 q; mov.b128 q, 0;", ".reg .f16x2 c; .reg .b8 d;", "{ .reg .u32 %r1; mov.u32 %r1, 3; }", ".reg .u32 $q;",
    "LL: LM: bra LL;", "{ AA: bra BB; } BB:", "$a: bra $a;", "_a: bra _a;",
    "TT: .branchtargets AA, BB; brx.idx %r1, TT; AA: BB:",
    '.pragma "a", "b";', ".shared .align 16 .b8 zz[3], yy[4];", ".global .u32 zz[2] = {3};", ".param .b64 q[3];",
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%d1], [%d2, {%r1, %r2}], [%d3];",
    "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%d2, {%r1,%r2,%r3,%r4,%r5}], [%d1];",
    "cp.async.bulk.prefetch.tensor.3d.L2.global.im2col [%d2, {%r1,%r2,%r3}], {%h1};",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1,%f2,%f3,%f4}, %d1, %d2, %p1, 1, 1, 0, 0;",
    "tex.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [%d1, {%f1, %f2}];", "sust.b.1d.b32.trap [%d1, %r2], %r1;",
    "vadd.s32.s32.s32 %r1, %r2.b0, %r3.h1;", "vadd4.s32.s32.s32 %r1.b10, %r2, %r3, %r4;", "elect.sync _|%p1, -1;",
    "multimem.ld_reduce.global.add.u32 %r1, [%d1];", "mapa.shared::cluster.u32 %r1, s, %r2;",
    "mbarrier.try_wait.shared.b64 %p1, [s], %d1, 100;", "fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;",
]

CALLS = [
    (FUNCTION, "{ .param .u32 a; .param .u32 r; st.param.u32 [a], %r1; call (r), f, (a); ld.param.u32 %r2, [r]; }"),
    (FUNCTION, "call (%r1), f, (%r2);"), (FUNCTION, "call (%r1), f, (5);"), (IN_REGISTERS, "call.uni (%r1), f, (%r2);"),
    (IN_REGISTERS, "call (_), f, (5);"), (PLAIN, "call f;"), (PLAIN, "call (), f, ();"), (PLAIN, "@!%p1 call.uni f;"),
    (FUNCTION, "{ mov.u64 %d1, f; P:.callprototype (.param .u32 _) _ (.param .u32 _); .param .u32 a, r; call (r), %d1, (a), P;}"),
    (FUNCTION, "{ mov.u64 %d1, f; P: .calltargets f; .param .u32 a, r; call (r), %d1, (a), P; }"),
    (IN_REGISTERS, "{ mov.u64 %d1, f; P: .callprototype (.reg .u32 _) _ (.reg .u32 _); call (%r1), %d1, (%r2), P; }"),
    (PLAIN, "{ mov.u64 %d1, f; P: .callprototype _ () .noreturn; call %d1, (), P; }"),
    (PLAIN, "{ mov.u64 %d1, f; P: .callprototype ()_ (); call (), %d1, (), P; }"),
    (PLAIN,
    "P: .callprototype (.param .align 8 .b8 _[16]) _ (.param .b64 _, .param .align 4 .b8 _[12]) .abi_preserve 4;"),
]
# fmt: on


def entry(body: str, declarations: str = "") -> str:
    return f"""{HEAD}{declarations}
.global .u32 x[4]; .shared .u32 s[4]; .const .u32 c[4];
.visible .entry k(.param .u64 p)
{{
.reg .b16 %h<9>; .reg .b32 %r<40>; .reg .b64 %d<20>; .reg .pred %p<9>; .reg .f32 %f<20>; .reg .f64 %g<9>;
.local .u32 l[4];
{body}
ret;
}}
"""


TEXTS = (
    {text: f"{HEAD}{text}\n" for text in DECLARATIONS}
    | {body: entry(body) for body in BODIES}
    | {f"{declared} {body}": entry(body, declared) for declared, body in CALLS}
)


@pytest.mark.parametrize("name", TEXTS)
def test_ptxas_and_the_reader_take_it(name: str, tmp_path: Path) -> None:
    parse(TEXTS[name])
    path = tmp_path / "k.ptx"
    path.write_text(TEXTS[name])
    command = [releases()[-1][1], "-arch", "sm_90a", str(path), "-o", str(tmp_path / "k.cubin")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


REFUSED = [
    "mov.u32 %r1, WARP_SZ+%r2;",
    "st.global.u32 [%d1], %r1-1;",
    "st.global.v2.u32 [%d1], {%r1+1, %r2};",
    "mov.u64 %d1, generic(x);",
    "add.u32 %r1, %r2, -%r3;",
    "ld.u32 %r1, [s+%r2];",
    "mov.u32 %r1, %tid.x+1;",
    "mov.u32 %r1, %r2+1.0;",
    "ld.global.u32 %r1, [x[1]];",
    "ld.global.u32 %r1, [%d1+x];",
    ".reg .v8 .u32 v;",
    ".reg .u32 a, a;",
    ".weak .u32 z;",
    "mov.f32 %f1, 0x1.8p3;",
    "mov.f32 %f1, 1.5 > 0.5 ? 2.0 : 3.0;",
    ".global .u32 z[2] = {1,2,3};",
    ".minnctapersm 2",
]


@pytest.mark.parametrize("body", REFUSED)
def test_both_refuse_it(body: str, tmp_path: Path) -> None:
    with pytest.raises(RefsimError) as caught:
        parse(entry(body))
    assert caught.value.code == "malformed-ptx"
    path = tmp_path / "k.ptx"
    path.write_text(entry(body))
    command = [releases()[-1][1], "-arch", "sm_90a", str(path), "-o", str(tmp_path / "k.cubin")]
    assert subprocess.run(command, capture_output=True, check=False).returncode
