"""What is said of instructions that no clause covers: what they are, and the first target that has them."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.isa.forms import find
from refsim.ptx.isa.unmodelled import EVERY, ROWS, unmodelled
from refsim.ptx.machine.assemblers import find_ptxas

EXAMPLES = {
    "tcgen05": "tcgen05.shift.cta_group::1.down [%r1];",
    "wmma": "wmma.load.a.sync.aligned.row.m8n8k32.shared.s4 {%r1}, [%r9];",
    "mma s4": "mma.sync.aligned.m8n8k32.row.col.s32.s4.s4.s32 {%r1,%r2}, {%r3}, {%r4}, {%r5,%r6};",
    "mma u4": "mma.sync.aligned.m8n8k32.row.col.s32.u4.u4.s32 {%r1,%r2}, {%r3}, {%r4}, {%r5,%r6};",
    "mma b1": "mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.xor.popc {%r1,%r2}, {%r3}, {%r4}, {%r5,%r6};",
    "mma.sp::ordered_metadata": "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.s32.s4.u4.s32 "
    "{%r1,%r2,%r3,%r4}, {%r5,%r6}, {%r7,%r8}, {%r1,%r2,%r3,%r4}, %r9, 0;",
    "cp.async.bulk.tensor": "cp.async.bulk.tensor.3d.shared::cta.global.im2col::w.mbarrier::complete_tx::bytes "
    "[%r1], [%d1, {%r1, %r1, %r1}], [%r2], {%h1, %h1};",
    "cp.async.bulk.prefetch.tensor": "cp.async.bulk.prefetch.tensor.3d.L2.global.im2col::w [%d1, {%r1, %r1, %r1}], "
    "{%h1, %h1};",
    "cp.async.bulk": "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%d1], [%r1], %r2, %h1;",
    "st.bulk": "st.bulk.weak.shared::cta [%r1], %d1, 0;",
    "multimem": "multimem.red.relaxed.sys.global.add.u32 [%d1], %r1;",
}
# The newest target of the family before, which does not have it; ptxas 13 knows none before sm_75.
BEFORE = {"sm_80": "sm_75", "sm_90": "sm_89", "sm_90a": "sm_90", "sm_100": "sm_90a", "sm_100a": "sm_100"}
LISTING = """.version 9.0
.target {target}
.address_size 64
.entry k() {{ .reg .b16 %h<2>; .reg .b32 %r<10>; .reg .b64 %d<4>; .reg .f32 %f<5>; .reg .pred %p<3>; {statement} ret; }}
"""


@pytest.fixture(scope="module")
def ptxas() -> str:
    return find_ptxas() or pytest.skip("ptxas is not installed: pip install 'nvidia-cuda-nvcc==13.0.*'")


def is_taken(ptxas: str, statement: str, target: str, folder: Path) -> bool:
    listing = folder / f"{target}.ptx"
    listing.write_text(LISTING.format(target=target, statement=statement))
    command = [ptxas, f"--gpu-name={target}", str(listing), "-o", str(folder / "out.cubin")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("prefix", EXAMPLES)
def test_ptxas_dates_an_instruction_as_its_row_does(prefix: str, ptxas: str, tmp_path: Path) -> None:
    start, _, having = prefix.partition(" ")
    (row,) = [row for row in ROWS if (row.prefix, row.having) == (start, having)]
    statement = EXAMPLES[prefix]
    assert unmodelled(statement.split()[0].rstrip(";")) == row
    target = max(row.since, "sm_75", key=lambda each: int("".join(filter(str.isdigit, each))))
    assert is_taken(ptxas, statement, target, tmp_path)
    if before := BEFORE.get(row.since):
        assert not is_taken(ptxas, statement, before, tmp_path)


def test_longer_prefixes_are_asked_first() -> None:
    for place, row in enumerate(ROWS):
        assert not [earlier.prefix for earlier in ROWS[:place] if not earlier.having and earlier.covers(row.prefix)]


def test_the_error_says_what_is_missing_and_since_when() -> None:
    with pytest.raises(RefsimError, match=r"does not model 'tcgen05.frob.sync' yet: .*, PTX of sm_100a") as caught:
        find("tcgen05.frob.sync")
    assert caught.value.code == "unknown-instruction"
    assert "PTX ISA" in caught.value.rule
    assert "wait for" not in str(caught.value)


def test_a_row_is_found_by_a_word_that_the_opcode_has() -> None:
    pair = unmodelled("cvt.rn.satfinite.relu.scaled::n2::ue8m0.s2f6x2.f32")
    assert pair is not None
    assert pair.since == "sm_100a"
    assert unmodelled("mma.sync.aligned.m16n8k99.row.col.f32.f16.f16.f32") is None


def test_every_row_is_cited_and_dated() -> None:
    assert len({(row.prefix, row.having) for row in ROWS}) == len(ROWS)
    assert all(row.since == EVERY or row.since.startswith("sm_") for row in ROWS)


TEXTURES = """.version 9.0
.target {target}
.address_size 64
.global .texref texture;
.global .surfref surface;
.global .texref several[4];
.visible .global .texref shown;
.extern .global .surfref elsewhere;
{sampler}
.visible .entry plain(.param .u64 out) {{
    .reg .b64 %d<3>; ld.param.u64 %d1, [out]; st.global.u32 [%d1], 7; ret; }}
.visible .entry k(.param .u64 handle, .param .texref given, .param .u64 .ptr .surfref other) {{
    .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %d<9>; .reg .pred %p<3>; ld.param.u64 %d1, [handle];
    {statement} ret; }}
"""
SAMPLER = ".global .samplerref sampler = { addr_mode_0 = clamp_to_border, filter_mode = nearest };"
FETCHES = [
    "tex.1d.v4.s32.s32 {%r1,%r2,%r3,%r4}, [texture, {%r5}];",
    "tex.1d.v4.s32.s32 {%r1,%r2,%r3,%r4}, [given, {%r5}];",
    "tex.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [%d1, {%f5,%f6}];",
    "tld4.r.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [texture, {%f5,%f6}];",
    "tex.level.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [texture, {%f5,%f6}], %f7;",
    "tex.grad.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [%d1, {%f5,%f6}], {%f7,%f8}, {%f7,%f8};",
    "suld.b.1d.b32.trap %r1, [surface, {%r2}];",
    "suld.b.a1d.v2.b32.clamp {%r1,%r2}, [%d1, {%r3,%r4}];",
    "sust.b.1d.b32.trap [surface, {%r2}], %r1;",
    "sured.b.add.1d.u32.trap [surface, {%r2}], %r1;",
    "txq.width.b32 %r1, [texture];",
    "suq.width.b32 %r1, [surface];",
    "istypep.texref %p1, %d1;",
]
SAMPLED = "tex.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [texture, sampler, {%f5,%f6}];"


@pytest.mark.parametrize("statement", [*FETCHES, SAMPLED])
def test_textures_and_surfaces_refuse_their_own_entry(statement: str, ptxas: str, tmp_path: Path) -> None:
    """ptxas takes the file; here another entry of it runs, and the one that fetches is refused by name."""
    mode = ("sm_80, texmode_independent", SAMPLER) if statement == SAMPLED else ("sm_80", "")
    text = TEXTURES.format(target=mode[0], sampler=mode[1], statement=statement)
    listing = tmp_path / "k.ptx"
    listing.write_text(text)
    command = [ptxas, "--gpu-name=sm_80", "-c", str(listing), "-o", str(tmp_path / "k.cubin")]
    ran = subprocess.run(command, capture_output=True, check=False, text=True)
    assert ran.returncode == 0, ran.stderr
    program, out = ptx.load(text), np.zeros(1, np.uint32)
    program.launch("plain", 1, 1, [out])
    assert out[0] == 7
    opcode = statement.split(maxsplit=1)[0]
    with pytest.raises(RefsimError, match=f"does not model '{opcode}' yet: .*(texture|surface)") as caught:
        program.launch("k", 1, 1, [np.uint64(0)] * 3)
    assert caught.value.code == "unknown-instruction"
    assert caught.value.where.startswith("PTX line ")
