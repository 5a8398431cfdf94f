"""Every tensor-core entry that a kernel may run has an independent check, and the check sees an entry that is wrong."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from refsim import targets
from refsim.formats import E2M1, E2M3, E3M2, F16, F32, ElementType
from refsim.numerics import profiles
from refsim.numerics.multiply import ProductSpec
from refsim.numerics.profiles import rows_of
from refsim.numerics.rows import Profile
from refsim.numerics.sparse import sparse_rows
from refsim.silicon.launch_replay import Replays
from refsim.silicon.second_definition import _AGAINST_C as AGAINST_C
from refsim.silicon.second_definition import PLAN, DrawnProducts, differing
from refsim.silicon.tensor_witness import published
from refsim.silicon.vectors import vectors_folder
from refsim.silicon.witness import SiliconWitness

OF_CHIPS = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
"""A target of each chip with entries of its own."""
OTHERS = tuple(row.names[-1] for row in targets.ARCHITECTURES if row.cores and row.names[-1] not in OF_CHIPS)
NARROW = (E2M1, E2M3, E3M2)


def opcode_of(row: Profile, type: ElementType, *, sparse: bool = False) -> str:
    """An instruction of an entry, for A and B of one type; of tcgen05 the opcode names only the kind."""
    unit, _, kind = row.unit.partition(".sync") if row.unit.startswith("mma") else row.unit.partition(".")
    k, d = max(row.k), row.d_format
    if unit == "tcgen05":
        return f"tcgen05.mma{'.sp' * sparse}.cta_group::1.kind::{kind}"
    if unit == "wgmma":
        return f"wgmma.mma_async{'.sp' * sparse}.sync.aligned.m64n8k{k}.{d}.{type}.{type}"
    scaled = f"kind::{kind[1:]}.block_scale." if kind else "kind::f8f6f4." if type in NARROW else ""
    shape = "m8n8k4" if k == 4 else f"m16n8k{k}"
    return f"mma{'.sp' * sparse}.sync.aligned.{shape}.row.col.{scaled}{d}.{type}.{type}.{d}"


def entries(target: str) -> Iterator[tuple[Profile, ElementType]]:
    for row in rows_of(target):
        for type in row.a_formats:
            yield row, type


def wrong(row: Profile, type: ElementType) -> Profile:
    """The entry with fewer bits kept; where products are so coarse that f16 shows no lost bit, with shorter steps."""
    if type in NARROW and row.d_format is F16:
        return replace(row, length=row.length // 2)
    assert row.fraction is not None
    return replace(row, fraction=20 if row.fraction > 20 else row.fraction - 1)


@pytest.mark.sampled(2, "the chips share the definition and the draws")
@pytest.mark.parametrize("target", OF_CHIPS)
def test_a_wrong_entry_is_seen_by_the_check_of_its_instruction(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replays, unseen, tried = Replays(), [], 0
    for row, type in entries(target):
        opcode, types = opcode_of(row, type), (type.name, type.name, row.d_format.name)
        assert not replays.of([opcode], target).differing
        if row.fraction is None:
            continue
        key = (profiles.chip(target), row.unit, *types)
        with monkeypatch.context() as patched:
            patched.setitem(profiles._BY_KEY, key, [wrong(each, type) for each in profiles._BY_KEY[key]])
            if row.unit.startswith("tcgen05"):  # one opcode stands for all types of a kind
                seen = differing(
                    row, target, ProductSpec(type, type, row.d_format, 1, 1, max(row.k), row.unit), sparse=False
                ).any()
            else:
                seen = Replays().of([opcode], target).differing
        tried += 1
        unseen += [f"{row.name}: {type}"] * (not seen)
    assert unseen == []
    assert tried


@pytest.mark.ci("every target; the chips whose entries they take are checked above in every run")
@pytest.mark.parametrize("target", OTHERS)
def test_a_target_that_takes_the_entries_of_a_chip_is_checked_too(target: str) -> None:
    opcodes = {opcode_of(row, type) for row, type in entries(target)}
    assert opcodes
    for opcode in opcodes:
        witness = Replays().of([opcode], target)
        assert witness.judges, opcode
        assert not witness.differing, witness.lines()


@pytest.mark.sampled(1, "sparse products are those of the dense entries, of stored elements")
@pytest.mark.parametrize("target", OF_CHIPS[2:])
def test_sparse_products_are_checked(target: str) -> None:
    for row in sparse_rows(rows_of(target)):
        for type in row.a_formats[:2]:
            witness = Replays().of([opcode_of(row, type, sparse=True)], target)
            assert witness.judges, row.name
            assert not witness.differing, witness.lines()


def test_drawn_products_cancel_c() -> None:
    """A product of some rows is minus C, so that their result is what the other products leave."""
    drawn = DrawnProducts((F16, F16, F32), 16, 0)
    kinds = np.repeat([kind for kind, _ in PLAN], [count for _, count in PLAN])
    a, b = (codes.view(np.float16).astype(np.float64) for codes in (drawn.a, drawn.b))
    minus_c = -drawn.c.view(np.float32)[:, None]
    assert (a * b == minus_c).any(axis=1)[kinds == AGAINST_C].all()


def test_every_published_set_has_a_sample_and_its_licence() -> None:
    samples = {unit: [*published(target, unit)] for target, unit in (("sm_100", "tcgen05.f16"), ("sm_90", "wgmma"))}
    assert {each.chip for each in samples["wgmma"]} == {"H100", "H200"}
    assert {each.chip for each in samples["tcgen05.f16"]} == {"B200"}
    chips = {each.chip for target in ("sm_70", "sm_80", "sm_86", "sm_89") for each in published(target, "mma.sync")}
    assert chips == {"V100", "A100", "A2", "RTX 1000 Ada", "L40S", "RTX 4060"}
    notice = (vectors_folder("published") / "NOTICE").read_text("utf-8")
    for words in ("BSD 2-Clause License", "MIT License", "Apache License", "Khattak", "Tensor Company", "Xun Ding"):
        assert words in notice


def test_a_sample_of_other_results_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = next(published("sm_80", "mma.sync", ("bf16", "bf16", "f32")))
    other = replace(sample, d=sample.d ^ 1)
    monkeypatch.setattr("refsim.silicon.tensor_witness._samples", lambda: (other,))
    witness = Replays().of(["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"], "sm_80")
    (line,) = SiliconWitness(witness.differing).lines()
    assert line == "tensor core: mma.sync.bf16 sm_80, 128 published results of an A100, 128 differ"
