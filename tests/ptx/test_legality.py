"""Every form of the float, conversion, move, memory, atomic, warp, barrier and control families, put to ptxas.

The forms must be ones that the assembler takes for their first target and refuses for the target before it; and every
clause must run in a program as it evaluates alone.
"""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from refsim.ptx.isa.forms import Bound, Instruction, clauses, evaluate, find
from refsim.ptx.isa.instances import instances
from refsim.reference import single_instruction
from refsim.reference.assembler import OPERAND_WORDS, first_target, refusals, releases
from refsim.targets import has, lacking

FAMILIES = (
    "video",
    "real",
    "half",
    "convert",
    "move",
    "memory",
    "atomic",
    "warp",
    "barrier",
    "proxy_fence",
    "control",
    "matrix",
    "sparse",
    "block_scale",
    "wmma",
    "async_copy",
    "cluster",
    "warpgroup",
    "async_store",
    "mbarrier",
    "wgmma",
    "bulk_copy",
    "tensor_copy",
    "tensor_map",
    "launch_control",
)
OURS = [clause for clause in clauses() if clause.function.__module__.rsplit(".", 1)[1] in FAMILIES]
OURS += [clause for clause in clauses() if clause.form.startswith("cvt.r") and clause not in OURS]
# Labels need a place to go, and calls a function, so that these have a test of their own below.
BRANCHES = ("bra", "brx", "call")
# Vectors of eight registers are moved as those of two and four are; ptxas has no such vectors.
# With vectors of eight bytes it crashes at times, so that they have a test of their own.
BEYOND = ("mov.{vec:v8}", "{vec:v8}.{type:b8")
INSTANCES = [
    bound
    for clause in OURS
    if clause.mnemonic not in BRANCHES
    and not any(each in clause.form for each in BEYOND)
    and clause.rendezvous != "converged"
    for bound in instances(clause, 4 if clause.mnemonic == "wgmma" else 64)
    if bound.clause is clause
]
BEFORE = {
    "sm_80": "sm_75",
    "sm_86": "sm_80",
    "sm_89": "sm_86",
    "sm_90": "sm_89",
    "sm_100": "sm_90",
    "sm_100a": "sm_90a",
    "sm_100f": "sm_100",
    "sm_120f": "sm_110a",
}
# The conversions of PTX 9.2, all that began with a family of targets; older assemblers do not know them.
FAMILIES_JUDGED_FROM = (13, 2)
# What ptxas takes although the ISA dates it later: .satfinite came to f16 with sm_80, one-sided fences with sm_90 (13.0).
TAKEN_EARLIER = {"cvt.rn.satfinite.f16.f32", "cvt.rz.satfinite.f16.f32"}
TAKEN_EARLIER |= {f"fence.{side}.{scope}" for side in ("acquire", "release") for scope in ("cta", "gpu", "sys")}
# Of kind::f8f6f4 ptxas takes the types of 8 bits wherever mma has them without a kind.
TAKEN_EARLIER |= {
    f"mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.{d}.{a}.{b}.{d}"
    for d in ("f32", "f16")
    for a in ("e4m3", "e5m2")
    for b in ("e4m3", "e5m2")
}


def needs_a_function(bound: Bound) -> bool:
    """st.param writes the arguments of a call, param::func reads those of a function: not to be had in an entry."""
    return (bound.clause.mnemonic == "st" and ".param" in bound.opcode) or "param::func" in bound.opcode


LATEST = ("sm_100a", "sm_120a")
TARGETS = sorted({bound.since for bound in INSTANCES if any(has(target, bound.since) for target in LATEST)})


@pytest.mark.parametrize("since", TARGETS)
def test_ptxas_takes_every_form_from_its_first_target_on_and_not_before(since: str, tmp_path: Path) -> None:
    target = first_target(since)
    if since.endswith("f") and releases()[-1][0] < FAMILIES_JUDGED_FROM:
        pytest.skip("no ptxas from 13.2 on is here to judge these forms: it comes with triton 3.9")
    bounds = [bound for bound in INSTANCES if bound.since == since and not needs_a_function(bound)]
    assert refusals(bounds, target, tmp_path) == {}
    if since in BEFORE:
        early = {bound.opcode for bound in bounds} - refusals(bounds, BEFORE[since], tmp_path).keys()
        assert early <= TAKEN_EARLIER


# Families whose instructions begin with targets that have a suffix: only some of the later targets have them.
SUFFIXED = ("warpgroup", "tensor_map", "tensor_copy", "launch_control")
LATER = ("sm_90", "sm_90a", "sm_100", "sm_100f", "sm_100a", "sm_103f", "sm_103a", "sm_107f", "sm_107a")
LATER += ("sm_110f", "sm_110a", "sm_120", "sm_120f", "sm_120a", "sm_121f", "sm_121a")
JUDGED = [
    bound
    for clause in OURS
    if clause.function.__module__.rsplit(".", 1)[1] in SUFFIXED
    for bound in instances(clause, 4)
    if bound.clause is clause
]


every_other = pytest.mark.ci("starts each ptxas for every target; the newest one is asked in every run")
RELEASES = [
    pytest.param(at, id=".".join(map(str, number)), marks=[every_other] * (at + 1 < len(releases())))
    for at, (number, _) in enumerate(releases())
]


@pytest.mark.parametrize("release", RELEASES)
def test_refsim_and_every_ptxas_take_an_instruction_for_the_same_targets(release: int, tmp_path: Path) -> None:
    number = releases()[release][0]
    known = [target for target in LATER if "107" not in target or number >= (13, 4)]
    if number < (12, 9):
        pytest.skip(f"ptxas {number} knows no target with suffix f")
    for target in (each for each in known if "110" not in each or number >= (13, 0)):
        ours = {bound.opcode for bound in JUDGED if has(target, bound.since) and lacking(target, bound.opcode) is None}
        theirs = {bound.opcode for bound in JUDGED} - refusals(JUDGED, target, tmp_path, release).keys()
        assert sorted(ours ^ theirs) == [], target


@pytest.mark.parametrize("type", ["b8", "u8", "s8"])
def test_ptxas_has_no_objection_to_vectors_of_eight_bytes(type: str, tmp_path: Path) -> None:
    """It ends with a program, or by a signal that is its own defect; of 16-bit elements it never makes a program."""
    vector = "{%h0, %h1, %h2, %h3, %h4, %h5, %h6, %h7}"
    for target in ("sm_75", "sm_90", "sm_100"):
        text = tmp_path / "bytes.ptx"
        text.write_text(
            f".version 9.0\n.target {target}\n.address_size 64\n.entry k(.param .u64 o) {{ .reg .b64 %a; .reg .b16 %h<8>;\n"
            f"ld.param.u64 %a, [o]; ld.global.v8.{type} {vector}, [%a]; st.global.v8.{type} [%a+8], {vector}; ret; }}\n"
        )
        command = [releases()[-1][1], "-arch", target, str(text), "-o", str(tmp_path / "out.cubin")]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode <= 0, ended.stderr


@pytest.mark.parametrize(("version", "taken"), [("6.3", True), ("6.4", False)])
def test_ptxas_takes_votes_and_shuffles_without_sync_before_ptx_6_4(version: str, taken: bool, tmp_path: Path) -> None:
    """On sm_70 and later; on older targets every version has them, which a text of `.target sm_50` is judged by."""
    bounds = [bound for clause in OURS if clause.rendezvous == "converged" for bound in instances(clause)]
    assert len(bounds) == 8
    for bound in bounds:
        for target, fits in (("sm_75", taken), ("sm_50", True)):
            text = tmp_path / "old.ptx"
            listing = single_instruction.listing([bound], "sm_75", OPERAND_WORDS, version)
            text.write_text(listing.replace(".target sm_75", f".target {target}"))
            command = [releases()[-1][1], "-arch", "sm_75", str(text), "-o", str(tmp_path / "out.cubin")]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            assert (ended.returncode == 0) == fits, (bound.opcode, ended.stderr)


def test_ptxas_takes_branches_and_calls(tmp_path: Path) -> None:
    text = tmp_path / "branches.ptx"
    text.write_text(
        """.version 9.0
.target sm_75
.address_size 64
.func (.param .b32 r) f(.param .b32 x) { .reg .b32 %a; ld.param.b32 %a, [x]; st.param.b32 [r], %a; ret.uni; }
.entry k() {
    .reg .b32 %i; .reg .pred %p;
    TABLE: .branchtargets A, B;
    mov.u32 %i, %tid.x; setp.eq.u32 %p, %i, 0;
    @%p bra A; bra.uni B;
    A: brx.idx %i, TABLE;
    B: brx.idx.uni %i, TABLE;
    { .param .b32 q; .param .b32 s; st.param.b32 [q], %i; call.uni (s), f, (q); ld.param.b32 %i, [s]; }
    { .reg .b64 %a; .param .b32 q; .param .b32 s; mov.u64 %a, f; st.param.b32 [q], %i;
      P: .callprototype (.param .b32 _) _ (.param .b32 _); call (s), %a, (q), P; ld.param.b32 %i, [s]; }
    ret;
}
"""
    )
    subprocess.run([releases()[-1][1], "-arch", "sm_75", str(text), "-o", str(tmp_path / "out.cubin")], check=True)


def _is_pure(clause: Instruction) -> bool:
    written = [form for form in clause.operands if not form.optional]
    is_apart = clause.wants_lanes or clause.ends_block or any(form.address or form.many for form in written)
    return not is_apart and any(form.is_result for form in clause.operands)


# The clauses that depend on their operands alone, by family.
PURE: dict[str, list[Instruction]] = {}
for pure in filter(_is_pure, clauses()):
    PURE.setdefault(pure.function.__module__.rsplit(".", 1)[1], []).append(pure)


@pytest.mark.parametrize("family", sorted(PURE))
def test_a_clause_runs_in_a_program_as_it_evaluates_alone(family: str) -> None:
    """Parser, lowering, translation and machine add nothing to a clause: one opcode of each, the last of its form."""
    generator = np.random.default_rng(7)
    own = ([bound for bound in instances(clause) if bound.clause is clause] for clause in PURE[family])
    for bound in (bounds[-1] for bounds in own if bounds):
        if any(form.name in ("cc", "dcc") for form, _ in bound.operands):
            continue
        sources = [
            generator.integers(0, 2, 40).astype(np.bool_)
            if type.name == "pred"
            else generator.integers(0, 1 << 63, 40, dtype=np.uint64).astype(type.bits_dtype)
            for form, type in bound.sources
            if form.name != "immLut" and not form.optional
        ]
        constant = {"immLut": "0x96"} if "immLut" in [form.name for form, _ in bound.sources] else {}
        table = [np.array([0x96], np.uint32)] if constant else []
        got = single_instruction.run(bound.opcode, *sources, immediate=constant).results
        place = [form.name for form, _ in bound.sources].index("immLut") if constant else len(sources)
        want = evaluate(bound.opcode, *sources[:place], *table, *sources[place:])
        for one, other in zip(got, want, strict=True):
            assert np.array_equal(one, np.broadcast_to(other, one.shape)), bound.opcode


def test_extremum_of_three_is_a_form_of_its_own() -> None:
    """max.f32 takes two sources, or three from sm_100 on: the number of operands decides."""
    assert find("max.f32", operands=3)[0].since == "sm_50"
    assert find("max.f32", operands=4)[0].since == "sm_100"
    sources = [np.array([value], np.float32).view(np.uint32) for value in (1.0, 3.0, 2.0)]
    assert single_instruction.run("max.f32", *sources, operands=4).results[0].view(np.float32)[0] == 3.0
