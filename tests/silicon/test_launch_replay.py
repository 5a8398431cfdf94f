"""Which recordings stand for an instruction of a launch, how many of their words are replayed, and that a wrong one shows."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from refsim.mufu import coefficients
from refsim.silicon import launch_replay, scalar_probe, special_functions, tensor_witness
from refsim.silicon.launch_replay import Replays, afresh
from refsim.silicon.vectors import shelf
from refsim.silicon.witness import Replay, SiliconWitness

CHIPS = "NVIDIA H200 and NVIDIA H100 80GB HBM3"
"""The H100 returned the same words, as its sidecars say."""
WGMMA = "wgmma.mma_async.sync.aligned.m64n{}k32.f32.e4m3.e4m3"


def replays_of(*opcodes: str, target: str = "sm_90a") -> tuple[Replay, ...]:
    return Replays().of(opcodes, target).replays


@pytest.mark.parametrize(
    ("opcode", "kind", "words"),
    [
        ("fma.rn.f32", "arithmetic", 1024 + 65_536),
        ("add.f32", "arithmetic", 1024 + 65_536),  # add.rn.f32 by its other name
        ("setp.lt.u32", "arithmetic", 1024 + 65_536),
        ("lop3.b32", "arithmetic", 8 * 1024),  # eight tables
        ("addc.u32", "arithmetic", 2 * 1024),  # two chains
        ("sub.f64", "arithmetic", 1024 + 65_536),  # recorded as sub.rn.f64 alone
        ("red.relaxed.gpu.global.add.u32", "arithmetic", 1024),  # atom.global.add.u32
        ("cvt.rn.f16x2.e4m3x2", "conversions", 65_536),
        ("cvt.rn.satfinite.relu.bf16x2.f32", "conversions", 12 * 65_536),  # recorded as .relu.satfinite
        ("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", "tensor core", 768 + 3 * 65_536),
        ("mma.sp.sync.aligned.m16n8k64.row.col.f32.e4m3.e4m3.f32", "tensor core", 16_384),
        ("wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32", "tensor core", 2048),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16", "copy engine", 6144),
        (
            "cp.reduce.async.bulk.tensor.1d.global.shared::cta.min.tile.bulk_group",
            "copy engine",
            12_288,
        ),  # f16 and bf16
        ("ex2.approx.ftz.f32", "special functions", 1024 + 65_536 + (19 << 20)),
        ("div.full.f32", "special functions", 1024 + 65_536 + (4 << 20)),
        ("rcp.approx.ftz.f64", "special functions", 1024 + 65_536 + (5 << 20)),
        ("tanh.approx.f16x2", "special functions", 1024 + 65_536 + 65_536),
    ],
)
def test_an_instruction_is_held_to_its_recording(opcode: str, kind: str, words: int) -> None:
    found, *_ = replays_of(opcode)
    assert (found.kind, found.chip, found.words, found.differing) == (kind, CHIPS, words, 0)


def test_wgmma_of_any_n_is_held_to_the_recording_of_the_same_rows() -> None:
    """N = 8, 64 and 256 were recorded, and gave the same words (conformance/test_recorded_numerics.py)."""
    found, published = dict.fromkeys(replays_of(WGMMA.format(128), WGMMA.format(16)))
    assert (published.chip, published.words, published.judge) == ("H100 and H200", 256, "published")
    assert (found.instruction, found.chip) == ("wgmma.e4m3", CHIPS)


def test_what_computes_no_numbers_is_passed_over() -> None:
    assert (
        replays_of("mov.u32", "ld.global.v4.u32", "bar.sync", "wgmma.fence.sync.aligned", "and.pred", "no.such.word")
        == ()
    )


def test_what_has_no_recording_says_so() -> None:
    witness = Replays().of(
        ["atom.global.add.f32", "cvt.rn.satfinite.e2m1x2.f32", "tcgen05.mma.cta_group::1.kind::mxf4.block_scale"],
        "sm_100a",
    )
    assert witness.lines() == [
        "tensor core: tcgen05.mxf4 sm_100a, 96 dot products by a slow second definition, 0 differ; published model "
        "(independent published models agree)",
        "tensor core: tcgen05.mxf4 sm_100a, 2 published results of a B200, 0 differ",
        "no recording: cvt.rn.satfinite.e2m1x2.f32, atom.global.add.f32",
    ]


@pytest.mark.parametrize(
    ("opcode", "target", "said"),
    [
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
            "sm_103a",
            "unverified (nothing is published of sm_103: ",
        ),
        ("mma.sp.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32", "sm_80", "unverified (sparse sums are inferred"),
        ("tcgen05.mma.cta_group::1.kind::f16", "sm_100a", "published model (independent published models agree; 46"),
        ("tcgen05.mma.sp.cta_group::1.kind::f16", "sm_100a", "unverified (sparse sums are inferred"),
        ("tcgen05.mma.sp.cta_group::1.kind::i8", "sm_100a", "published model (exact integers"),
    ],
)
def test_what_no_chip_returned_is_named_by_its_level(opcode: str, target: str, said: str) -> None:
    line, *_ = Replays().of([opcode], target).lines()
    assert f" dot products by a slow second definition, 0 differ; {said}" in line


def test_arithmetic_on_another_target_names_the_one_that_was_recorded() -> None:
    (line,) = Replays().of(["fma.rn.f32"], "sm_80").lines()
    assert line == "arithmetic: fma.rn.f32, 66,560 recorded results of an H200 and an H100 80GB HBM3 (sm_90a), 0 differ"


def test_an_instruction_is_replayed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def replayed(opcode: str, target: str) -> list[Any]:
        asked.append((opcode, target))
        return []

    monkeypatch.setattr(launch_replay, "replayed", replayed)
    known = Replays()
    for _ in range(2):
        known.of(["fma.rn.f32", "mul.rn.f32"], "sm_90a")
    known.of(["fma.rn.f32"], "sm_80")
    assert asked == [("fma.rn.f32", "sm_90a"), ("mul.rn.f32", "sm_90a"), ("fma.rn.f32", "sm_80")]


def test_a_command_has_everything_replayed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """`afresh` as the module has it: for other tests it does nothing (tests/conftest.py)."""
    monkeypatch.setattr(launch_replay, "shared", cache(Replays))
    before = launch_replay.shared()
    afresh()
    assert launch_replay.shared() is not before


def test_words_compared_one_by_one_and_behind_digests_both_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalar_probe, "differing_rows", lambda row: (1000, 2))
    monkeypatch.setattr(scalar_probe, "differing_chunks", lambda row, chunks: (4000, 3))
    (found,) = replays_of("fma.rn.f32")
    assert (found.words, found.digested, found.differing) == (5000, 4000, 5)
    monkeypatch.setattr(special_functions, "differing_words", lambda opcode, device: (500, 6000, 4))
    (found,) = replays_of("ex2.approx.ftz.f32")
    assert (found.words, found.digested, found.differing) == (11_500, 10_000, 9)


@pytest.mark.parametrize(
    ("opcode", "counts"),
    [
        ("rsqrt.approx.ftz.f32", (0, 1 << 20, 1)),
        ("div.full.ftz.f32", (0, 4 << 20, 1)),
        ("rsqrt.approx.ftz.f64", (0, 1 << 20, 1)),
        ("tanh.approx.bf16", (1 << 16, 0, 1)),
        ("ex2.approx.f16x2", (1 << 16, 0, 1)),
    ],
)
def test_one_word_that_is_another_shows(opcode: str, counts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def clause_words(opcode: str, bits: int, *operands: Any) -> Any:
        found = right(opcode, bits, *operands).copy()
        found[0] ^= 1 << (bits - 1)  # of a pair in the upper half
        return found

    right = special_functions.clause_words
    monkeypatch.setattr(special_functions, "_SINGLES", (0x400,))
    monkeypatch.setattr(special_functions, "_DOUBLES", (0x400,))
    monkeypatch.setattr(special_functions, "clause_words", clause_words)
    assert special_functions.differing_words(opcode) == counts


def test_a_copy_that_reduces_otherwise_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(stem: str, device: str) -> Any:
        opened = shelf(stem, device)
        rows = {
            name: replace(row, arrays={"words": row.arrays["words"] ^ 1})
            for name, row in opened.take(["run add.f32"]).items()
        }
        return SimpleNamespace(rows=opened.rows, chips=opened.chips, take=lambda names: rows)

    monkeypatch.setattr(launch_replay, "shelf", changed)
    (found,) = replays_of("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32")
    assert found.differing == found.words > 0


def test_a_coefficient_of_rcp_that_is_off_by_one_unit_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of ex2 too, in tests/mutants.toml: its tables are made once for a process."""
    changed = coefficients.RCP.coefficients.copy()
    changed[7, 1] += 1
    monkeypatch.setattr(coefficients.RCP, "coefficients", changed)
    (found,) = replays_of("rcp.approx.ftz.f32")
    assert found.differing > 0


@pytest.mark.parametrize(
    "opcode",
    [
        "mma.sp.sync.aligned.m16n8k64.row.col.f32.e4m3.e4m3.f32",
        "wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32",
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32",
    ],
)
def test_a_product_that_silicon_has_otherwise_shows(opcode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sparse products and wmma each stored word; of others also each word of the questions asked of an instruction."""

    def changed(stem: str, device: str) -> Any:
        opened = shelf(stem, device)
        if stem != "wmma":
            return opened
        row = opened.take(["wmma"])["wmma"]
        rows = {"wmma": replace(row, arrays={"results": row.arrays["results"] ^ 1})}
        return SimpleNamespace(rows=opened.rows, chips=opened.chips, take=lambda names: rows)

    monkeypatch.setattr(tensor_witness, "shelf", changed)
    monkeypatch.setitem(tensor_witness.HYPOTHESES, "as the model infers", lambda form, asked: np.uint32(0xA5A5A5A5))
    monkeypatch.setattr(tensor_witness, "_features", lambda row: [(np.arange(9), np.arange(9) ^ 1)])
    found, *_ = replays_of(opcode)
    assert found.differing >= 9


def test_what_hopper_returned_says_nothing_of_a_later_tensor_core() -> None:
    (found,) = replays_of("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", target="sm_100a")
    assert (found.chip, found.words, found.judge) == ("", 96, "definition")


def test_bits_that_nobody_knows_are_said_to_be_such() -> None:
    (found,) = replays_of("atom.global.add.f32")
    assert (found.kind, found.evidence) == ("special functions", "no bits are known")


def test_what_two_kernels_were_held_to_together() -> None:
    one, other = (SiliconWitness((Replay("conversions", name, "sm_90a"),), name) for name in ("cvt.a", ""))
    assert one.joined(one) == one
    assert [each.instruction for each in one.joined(other).replays] == ["cvt.a", ""]
    assert one.joined(other).absent == other.joined(one).absent == "cvt.a"


def test_lines_name_what_differs_by_itself_and_the_rest_together() -> None:
    right = [Replay("conversions", name, "sm_90a", "NVIDIA H200", 100) for name in ("cvt.a", "cvt.b")]
    wrong = Replay("conversions", "cvt.c", "sm_90a", "NVIDIA H200", 100, 100, 2)
    assert SiliconWitness((*right, wrong)).lines() == [
        "conversions: cvt.c, 100 recorded results of an H200, at least 2 differ",
        "conversions: 2 instructions, 200 recorded results of an H200, 0 differ",
    ]
    assert SiliconWitness.from_json(SiliconWitness((wrong,)).to_json()) == SiliconWitness((wrong,))
    stored = replace(wrong, digested=0, differing=1)
    assert stored.counted == "100 recorded results of an H200, 1 differ"
    assert SiliconWitness((*right, stored)).differing == (stored,)
