"""Calls of device functions: parameters, results, scopes, divergence and recursion; bodies become part of the entry."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
TRIPLE = """
.func (.param .b32 r) triple(.param .b32 x)
{ .reg .b32 %a; ld.param.b32 %a, [x]; mul.lo.s32 %a, %a, 3; st.param.b32 [r], %a; ret; }
"""
POLICIES = pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("random", 1), ("random", 2)])


def call(function: str, argument: str, result: str) -> str:
    """The call sequence that compilers write: .param variables in a scope of their own."""
    return f"""{{ .param .b32 in0; .param .b32 out0; st.param.b32 [in0], {argument};
        call.uni (out0), {function}, (in0); ld.param.b32 {result}, [out0]; }}"""


def run(functions: str, body: str, threads: int = 48, *, policy: str = "eager", seed: int = 0) -> np.ndarray:
    text = f"""{HEAD}{functions}
    .visible .entry k(.param .u64 out) {{
    .reg .b32 %r<8>; .reg .b64 %d<4>; .reg .pred %p<4>;
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d3, %d1, %d2;
    {body}
    st.global.u32 [%d3], %r2; ret; }}\n"""
    out = np.zeros(threads, np.uint32)
    ptx.load(text).launch("k", (1,), (threads,), [out], policy=policy, seed=seed)
    return out


LANE = np.arange(48)


@POLICIES
def test_a_call_takes_its_argument_and_gives_its_result(policy: str, seed: int) -> None:
    assert (run(TRIPLE, call("triple", "%r1", "%r2"), policy=policy, seed=seed) == 3 * LANE).all()


def test_two_calls_do_not_share_registers_or_parameters() -> None:
    body = call("triple", "%r1", "%r3") + call("triple", "%r3", "%r4") + "sub.s32 %r2, %r4, %r3;"
    assert (run(TRIPLE, body) == 6 * LANE).all()


def test_functions_call_functions_declared_later() -> None:
    nine = f"""
    .func (.param .b32 r) triple(.param .b32 x);
    .func (.param .b32 r) nine(.param .b32 x)
    {{ .reg .b32 %a; ld.param.b32 %a, [x]; {call("triple", "%a", "%a")} {call("triple", "%a", "%a")}
      st.param.b32 [r], %a; ret; }}"""
    assert (run(nine + TRIPLE, call("nine", "%r1", "%r2")) == 9 * LANE).all()


@POLICIES
def test_lanes_leave_a_function_where_they_return(policy: str, seed: int) -> None:
    """Three returns, one under a guard, and a loop: lanes part inside and go on together."""
    function = """
    .func (.param .b32 r) f(.param .b32 x)
    { .reg .b32 %a, %b; .reg .pred %p; ld.param.b32 %a, [x];
      st.param.b32 [r], 1000; setp.lt.u32 %p, %a, 10; @%p ret;
      setp.gt.u32 %p, %a, 40; @%p bra FAR; mov.u32 %b, 0;
      LOOP: add.s32 %b, %b, 2; sub.s32 %a, %a, 1; setp.ne.s32 %p, %a, 0; @%p bra LOOP;
      st.param.b32 [r], %b; ret.uni;
      FAR: st.param.b32 [r], 7; ret; }"""
    want = np.where(LANE < 10, 1000, np.where(LANE > 40, 7, 2 * LANE))
    assert (run(function, call("f", "%r1", "%r2"), policy=policy, seed=seed) == want).all()


@POLICIES
def test_a_guarded_call_is_for_some_lanes(policy: str, seed: int) -> None:
    body = """mov.u32 %r2, 5; setp.lt.u32 %p1, %r1, 20;
        { .param .b32 in0; .param .b32 out0; st.param.b32 [in0], %r1; st.param.b32 [out0], 9;
        @%p1 call (out0), triple, (in0); ld.param.b32 %r2, [out0]; }"""
    assert (run(TRIPLE, body, policy=policy, seed=seed) == np.where(LANE < 20, 3 * LANE, 9)).all()


def test_structures_are_bytes_of_a_parameter() -> None:
    function = """
    .func (.param .align 8 .b8 r[16]) swap(.param .align 8 .b8 x[16])
    { .reg .b64 %a, %b; ld.param.b64 %a, [x]; ld.param.b64 %b, [x+8]; st.param.b64 [r+8], %a; st.param.b64 [r], %b; ret; }"""
    body = """
        { .param .align 8 .b8 in0[16]; .param .align 8 .b8 out0[16]; cvt.u64.u32 %d1, %r1; add.s64 %d2, %d1, 100;
        st.param.v2.b64 [in0], {%d1, %d2}; call (out0), swap, (in0); ld.param.v2.b64 {%d1, %d2}, [out0]; }
        sub.s64 %d1, %d1, %d2; cvt.u32.u64 %r2, %d1; add.s32 %r2, %r2, %r1;"""
    assert (run(function, body) == LANE + 100).all()


def test_local_variables_are_a_call_s_own_and_shared_ones_are_the_function_s() -> None:
    function = """
    .func (.param .b32 r) f(.param .b32 x)
    { .reg .b32 %a, %b, %c; .local .align 4 .b8 mine[4]; .shared .align 4 .b8 ours[256];
      ld.param.b32 %a, [x]; st.local.b32 [mine], %a; mov.u32 %b, %tid.x; shl.b32 %b, %b, 2; mov.u32 %c, ours;
      add.s32 %b, %b, %c; st.shared.b32 [%b], %a; bar.sync 0; ld.shared.b32 %a, [ours+4]; ld.local.b32 %b, [mine];
      add.s32 %a, %a, %b; bar.sync 0; st.param.b32 [r], %a; ret; }"""
    body = "add.s32 %r3, %r1, 500;" + call("f", "%r1", "%r4") + call("f", "%r3", "%r5") + "add.s32 %r2, %r4, %r5;"
    assert (run(function, body) == LANE + 1 + LANE + 500 + 501).all()


def test_a_branch_table_goes_with_its_function() -> None:
    function = """
    .func (.param .b32 r) pick(.param .b32 x)
    { .reg .b32 %a; ld.param.b32 %a, [x]; and.b32 %a, %a, 1; T: .branchtargets EVEN, ODD; brx.idx %a, T;
      EVEN: st.param.b32 [r], 20; ret; ODD: st.param.b32 [r], 10; ret; }"""
    body = call("pick", "%r1", "%r3") + call("pick", "%r3", "%r2") + "add.s32 %r2, %r2, %r3;"
    assert (run(function, body) == np.where(LANE % 2, 30, 40)).all()


def test_an_exit_ends_the_thread_and_not_the_function() -> None:
    function = """
    .func f(.param .b32 x) { .reg .b32 %a; .reg .pred %p; ld.param.b32 %a, [x]; setp.lt.u32 %p, %a, 16; @%p exit; ret; }"""
    body = "mov.u32 %r2, 1; { .param .b32 in0; st.param.b32 [in0], %r1; call f, (in0); }"
    assert (run(function, body) == (LANE >= 16)).all()


def test_reports_name_the_line_inside_the_function() -> None:
    function = "\n\n.func f() { .reg .b64 %a; .reg .b32 %b;\nmov.u64 %a, 8;\nld.global.u32 %b, [%a];\nret; }"
    with pytest.raises(RefsimError) as caught:
        run(function, "call f;")
    assert caught.value.code == "out-of-bounds"
    assert "PTX line 8" in caught.value.where


REFUSED = {
    "recursive-call": (".func f() { call g; ret; }\n.func g() { call f; ret; }", "call f;"),
    "indirect-call": ("", "P: .callprototype _ (); call %d1, (), P;"),
    "unsupported-call": (".extern .func f();", "call f;"),
    "too-many-calls": (
        "".join(f".func f{n}() {{ {f'call f{n - 1};' * 9 if n else ''} ret; }}\n" for n in range(9)),
        "call f8;",
    ),
}


@pytest.mark.parametrize("code", sorted(REFUSED))
def test_what_cannot_be_inlined_is_refused(code: str) -> None:
    with pytest.raises(RefsimError) as caught:
        run(*REFUSED[code])
    assert caught.value.code == code
    assert caught.value.rule == "device functions are inlined: PTX ISA, call"
