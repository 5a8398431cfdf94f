"""Calls of device functions: parameters, results, scopes, divergence and recursion; bodies become part of the entry.

Every test runs twice: with calls as copies, and with bodies that stand once and are shared.
"""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.machine.program import forget
from refsim.ptx.text import inline

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
TRIPLE = """
.func (.param .b32 r) triple(.param .b32 x)
{ .reg .b32 %a; ld.param.b32 %a, [x]; mul.lo.s32 %a, %a, 3; st.param.b32 [r], %a; ret; }
"""
POLICIES = pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("random", 1), ("random", 2)])


@pytest.fixture(autouse=True, params=["copies", "shared"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether calls become copies, or branches to bodies that are shared."""
    forget()  # a text does not say how calls are bound
    if request.param == "shared":
        monkeypatch.setattr(inline, "MAX_INLINED", 0)
    return str(request.param)


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


PAIR = """
.func (.param .b32 r) twice(.param .b32 x) { .reg .b32 %a; ld.param.b32 %a, [x]; shl.b32 %a, %a, 1; st.param.b32 [r], %a; ret; }
.func (.param .b32 r) square(.param .b32 x)
{ .reg .b32 %a; ld.param.b32 %a, [x]; mul.lo.s32 %a, %a, %a; st.param.b32 [r], %a; ret; }
.func (.param .b32 r) other(.param .b64 x) { st.param.b32 [r], 999; ret; }
.global .align 8 .u64 table[3] = {twice, square, other};
"""
THROUGH_TABLE = """{ .reg .b64 %t; .reg .b32 %i; .param .b32 in0; .param .b32 out0; st.param.b32 [in0], %r1;
    P: .callprototype (.param .b32 _) _ (.param .b32 _); %PICK% mul.wide.u32 %t, %i, 8; mov.u64 %d2, table; add.s64 %t, %t, %d2;
    ld.global.u64 %t, [%t]; call (out0), %t, (in0), P; ld.param.b32 %r2, [out0]; }"""


@POLICIES
def test_each_lane_calls_the_function_whose_address_it_holds(policy: str, seed: int) -> None:
    body = THROUGH_TABLE.replace("%PICK%", "and.b32 %i, %r1, 1;")
    assert (run(PAIR, body, policy=policy, seed=seed) == np.where(LANE % 2, LANE * LANE, 2 * LANE)).all()


def test_call_targets_name_the_functions() -> None:
    body = THROUGH_TABLE.replace("%PICK%", "and.b32 %i, %r1, 1;").replace(
        ".callprototype (.param .b32 _) _ (.param .b32 _);", ".calltargets square, twice;"
    )
    assert (run(PAIR, body) == np.where(LANE % 2, LANE * LANE, 2 * LANE)).all()


@pytest.mark.parametrize(("pick", "says"), [("mov.u32 %i, 2;", "other"), ("mov.u32 %i, 3;", "no function")])
def test_an_address_of_no_function_that_fits_is_a_fault(pick: str, says: str) -> None:
    """The last one takes other parameters; behind the table lies a zero."""
    functions = PAIR.replace("table[3] = {twice, square, other}", "table[4] = {twice, square, other, 0}")
    with pytest.raises(RefsimError, match=says) as caught:
        run(functions, THROUGH_TABLE.replace("%PICK%", pick))
    assert caught.value.code == "invalid-call"
    assert "thread (0, 0, 0)" in caught.value.where


def test_a_function_may_call_through_the_table_that_holds_it() -> None:
    """`pick` could reach itself, and does not: a composite calling its parts."""
    functions = """
    .func (.param .b32 r) leaf(.param .b32 x) { .reg .b32 %a; ld.param.b32 %a, [x]; add.s32 %a, %a, 5;
    st.param.b32 [r], %a; ret; }
    .func (.param .b32 r) pick(.param .b32 x);
    .global .align 8 .u64 table[2] = {leaf, pick};
    .func (.param .b32 r) pick(.param .b32 x)
    { .reg .b32 %a; .reg .b64 %t; ld.param.b32 %a, [x]; ld.global.u64 %t, [table+ENTRY];
      { .param .b32 in0, out0; st.param.b32 [in0], %a; P: .callprototype (.param .b32 _) _ (.param .b32 _);
        call (out0), %t, (in0), P; ld.param.b32 %a, [out0]; }
      shl.b32 %a, %a, 1; st.param.b32 [r], %a; ret; }"""
    body = THROUGH_TABLE.replace("%PICK%", "and.b32 %i, %r1, 1;")
    assert (run(functions.replace("ENTRY", "0"), body) == np.where(LANE % 2, 2 * (LANE + 5), LANE + 5)).all()
    with pytest.raises(RefsimError, match="running already") as caught:
        run(functions.replace("ENTRY", "8"), body)
    assert caught.value.code == "invalid-call"


def test_values_stand_where_a_parameter_is_usual() -> None:
    """Registers and constants as operands of a call, and results that nobody takes."""
    body = "call (%r3), triple, (%r1); call (%r4), triple, (7); call (_), triple, (1); add.s32 %r2, %r3, %r4;"
    assert (run(TRIPLE, body) == 3 * LANE + 21).all()


def test_parameters_in_registers() -> None:
    functions = """.func (.reg .u32 r, .reg .pred big) f(.reg .u32 a, .reg .f64 b, .param .b32 c)
    { .reg .u32 t; .reg .f64 w; ld.param.u32 t, [c]; cvt.rn.f64.u32 w, a; add.f64 w, w, b; cvt.rzi.u32.f64 r, w; add.u32 r, r, t;
      setp.gt.u32 big, a, 20; ret; }"""
    body = """.reg .f64 %f; mov.f64 %f, 100.5; { .param .b32 c; st.param.b32 [c], 1000;
    call (%r3, %p1), f, (%r1, %f, c); } selp.b32 %r2, %r3, 0, %p1;"""
    assert (run(functions, body) == np.where(LANE > 20, LANE + 1100, 0)).all()


SHARED_LATER = pytest.mark.ci("calls that become copies are as long a chain, and many calls are shared, in every run")
COPIES_LATER = pytest.mark.ci("many calls of shared bodies are counted in every run")


@pytest.mark.parametrize("how", ["copies", pytest.param("shared", marks=SHARED_LATER)], indirect=True)
def test_a_long_chain_of_calls_ends(how: str) -> None:
    functions = (
        ".func (.param .b32 r) f0(.param .b32 x) { .reg .b32 %a; ld.param.b32 %a, [x]; st.param.b32 [r], %a; ret; }\n"
    )
    functions += "".join(
        f".func (.param .b32 r) f{n}(.param .b32 x) {{ .reg .b32 %a; ld.param.b32 %a, [x]; add.s32 %a, %a, 1;"
        f"{call(f'f{n - 1}', '%a', '%a')} st.param.b32 [r], %a; ret; }}\n"
        for n in range(1, 1101)
    )
    assert (run(functions, call("f1100", "%r1", "%r2"), 2) == LANE[:2] + 1100).all()


@pytest.mark.parametrize("how", ["shared", pytest.param("copies", marks=COPIES_LATER)], indirect=True)
def test_the_work_of_calls_grows_with_the_text_and_not_with_the_calls_that_happen(how: str) -> None:
    """2^30 calls in 31 functions: the text is resolved at once, and only the launch would take for ever."""
    functions = ".func f0() { ret; }\n" + "".join(
        f".func f{n}() {{ call f{n - 1}; call f{n - 1}; ret; }}\n" for n in range(1, 31)
    )
    program = ptx.load(f"{HEAD}{functions}.entry k() {{ call f30; ret; }}\n")
    assert len(program.code("k").steps) < 2 * 20_000


def test_a_report_names_the_call() -> None:
    functions = """.func f() { .reg .b64 %a; .reg .b32 %b;
.loc 1 27 3
mov.u64 %a, 8; ld.global.u32 %b, [%a]; ret; }"""
    body = ".loc 1 65 3\ncall f; "
    with pytest.raises(RefsimError) as caught:
        run('.file 1 "mine.cu"\n' + functions, body)
    assert "mine.cu:27 in f" in caught.value.where


def test_a_copy_names_the_place_of_its_call(how: str) -> None:
    functions = """.func _Z4slowPf() { .reg .b64 %a; .reg .b32 %b;
.loc 1 27 3
mov.u64 %a, 8; ld.global.u32 %b, [%a]; ret; }"""
    with pytest.raises(RefsimError) as caught:
        run('.file 1 "mine.cu"\n' + functions, ".loc 1 65 3\ncall _Z4slowPf; ")
    assert ("mine.cu:27 in slow, called at mine.cu:65" in caught.value.where) == (how == "copies")


REFUSED = (
    (".func f() { call g; ret; }\n.func g() { call f; ret; }", "call f;"),
    (".extern .func f();", "call f;"),
)


@pytest.mark.parametrize(("functions", "body"), REFUSED, ids=["recursion", "no body"])
def test_what_cannot_be_resolved_is_refused(functions: str, body: str) -> None:
    with pytest.raises(RefsimError) as caught:
        run(functions, body)
    assert caught.value.code == "unsupported-feature"
    assert caught.value.rule == "PTX ISA, call: device functions become part of the entry"


def test_too_many_statements_are_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "MAX_STATEMENTS", 50)
    forget()
    with pytest.raises(RefsimError) as caught:
        run(TRIPLE, call("triple", "%r1", "%r2") * 20)
    assert caught.value.code == "too-large"


def test_a_fault_in_a_shared_body_names_the_calls_that_led_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both lanes fail in one statement, which two calls share."""
    monkeypatch.setattr(inline, "MAX_INLINED", 0)
    text = """.version 9.0
.target sm_90a
.address_size 64
.func inner(.param .u64 a) { .reg .b64 %d; ld.param.u64 %d, [a]; st.global.u32 [%d], 1; ret; }
.func outer(.param .u64 a) { .reg .b64 %d; ld.param.u64 %d, [a]; { .param .u64 q; st.param.u64 [q], %d;
  call inner, (q); } ret; }
.visible .entry k(.param .u64 out) { .reg .b64 %d<2>; .reg .b32 %r; .reg .pred %p; ld.param.u64 %d1, [out];
  { .param .u64 q; st.param.u64 [q], %d1;
    call outer, (q); }
  add.u64 %d1, %d1, 2; { .param .u64 q; st.param.u64 [q], %d1;
    call outer, (q); }
  ret; }
"""
    with pytest.raises(RefsimError) as caught:
        ptx.load(text).launch("k", 1, 1, [np.zeros(4, np.uint32)])
    assert caught.value.code == "misaligned"
    assert caught.value.where.endswith("called at PTX line 6, called at PTX line 11")
