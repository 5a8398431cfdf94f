"""Targets mean what ptxas makes of them: what runs where, which suffix has which unit, and whose arithmetic stands."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from refsim import numerics, ptx
from refsim.device.compile import TARGETS, compile_ptx
from refsim.errors import RefsimError
from refsim.evidence import Level
from refsim.numerics.profiles import profile, rows_of
from refsim.ptx.machine.launch_rules import LIMITS, limits_of
from refsim.reference.assembler import ptx_version, releases
from refsim.targets import CHIPS, SPECIFIC_UNITS, has, lacking, names, runs, target_name, target_named

EMPTY = ".version {version}\n.target {target}\n.address_size 64\n.entry k() {{ {body} ret; }}\n"
ONE_OF = {
    "wgmma": "wgmma.fence.sync.aligned;",
    "tcgen05 of kind i8": "{ .reg .b32 a, i; .reg .b64 x; .reg .pred p; tcgen05.mma.cta_group::1.kind::i8 [a], x, x, i, p; }",
    "a sparse A of FP4": "{ .reg .b32 a, i; .reg .b64 x; .reg .pred p; tcgen05.mma.sp.cta_group::1.kind::mxf4.block_scale "
    "[a], x, x, [a], i, [a], [a], p; }",
    **{
        f".scale_vec::{blocks}X": "{ .reg .b32 a, i; .reg .b64 x; .reg .pred p; "
        f"tcgen05.mma.cta_group::1.kind::{kind}.block_scale.scale_vec::{blocks}X [a], x, x, i, [a], [a], p; }}"
        for blocks, kind in ((1, "mxf8f6f4"), (2, "mxf4"), (4, "mxf4nvf4"))
    },
    "TMA with .cta_group": "{ .shared .align 128 .b8 S[128]; .shared .align 8 .b64 bar; .reg .b64 m; mov.b64 m, 0; "
    "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::2 [S], [m, {0}], [bar]; }",
    "tcgen05.shift": "{ .reg .b32 a; mov.u32 a, 0; tcgen05.shift.cta_group::1.down [a]; }",
    "tcgen05.ld.red": "{ .reg .b32 a, r<3>; mov.u32 a, 0; tcgen05.ld.red.sync.aligned.32x32b.x2.min.u32 {r0, r1}, r2, [a]; }",
    "tcgen05": "{ .reg .b32 a; mov.u32 a, 0; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [a], 32; }",
    "mma with block scaling": "{ .reg .f32 d<4>; .reg .b32 a<4>, b<2>, s; .reg .b16 z; mov.u16 z, 0; "
    "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 "
    "{d0,d1,d2,d3}, {a0,a1,a2,a3}, {b0,b1}, {d0,d1,d2,d3}, s, {z,z}, s, {z,z}; }",
    "mma of kind f8f6f4": "{ .reg .f32 d<4>; .reg .b32 a<4>, b<2>; "
    "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e2m1.f32 {d0,d1,d2,d3}, {a0,a1,a2,a3}, {b0,b1}, {d0,d1,d2,d3}; }",
}


def taken(made: str, here: str, body: str, folder: Path) -> bool:
    release, program = releases()[-1]
    file = folder / "k.ptx"
    file.write_text(EMPTY.format(version=ptx_version(release), target=made, body=body))
    command = [program, "-arch", here, str(file), "-o", str(folder / "k.cubin")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def judged() -> list[str]:
    text = subprocess.run([releases()[-1][1], "--help"], capture_output=True, text=True, check=True).stdout
    return [name for name in names() if f"'{name}'" in text]


def test_ptxas_takes_code_for_exactly_the_targets_that_run_it(tmp_path: Path, refsim_profile: str) -> None:
    shown = [name for name in judged() if target_named(name).number >= 86]
    assert len(shown) >= 15
    wrong = [
        (a, b)
        for a in shown[:: 4 if refsim_profile == "quick" else 2]
        for b in shown
        if taken(a, b, "", tmp_path) != runs(a, b)
    ]
    assert wrong == []


@pytest.mark.ci("starts ptxas for every target; it is asked whose code runs where in every run")
def test_a_feature_is_on_exactly_the_targets_that_ptxas_takes_it_for(tmp_path: Path, refsim_profile: str) -> None:
    """Parts of tcgen05 in the larger profiles: tests/ptx/test_tensor_legality.py has all their opcodes."""
    for feature in SPECIFIC_UNITS:
        if refsim_profile == "quick" and feature.unit.startswith(("tcgen05.mma.", "tcgen05.shift.", "tcgen05.ld.")):
            continue
        wants = {name for name in judged() if target_named(name).number >= 90}
        found = {name for name in wants if taken(name, name, ONE_OF[feature.what], tmp_path)}
        assert found == set(feature.targets) & wants, feature.what


@pytest.mark.parametrize(
    ("target", "since", "expected"),
    [
        ("sm_86", "sm_80", True),
        ("sm_80", "sm_86", False),
        ("sm_90", "sm_90a", False),
        ("sm_90a", "sm_90a", True),
        ("sm_100a", "sm_90a", True),
        ("sm_121f", "sm_90a", True),
        ("sm_100", "sm_90a", False),
        ("sm_103a", "sm_100a", True),
        ("sm_103f", "sm_100a", False),
        ("sm_100f", "sm_100a", False),
        ("sm_100a", "sm_100f", True),
        ("sm_120a", "sm_100a", False),
        ("sm_120f", "sm_100f", True),
        ("sm_120", "sm_100f", False),
        ("sm_101a", "sm_100f", True),
    ],
)
def test_what_a_target_has(target: str, since: str, expected: bool) -> None:
    assert has(target, since) is expected


@pytest.mark.parametrize(
    "name",
    [
        *("sm_91", "sm_90f", "sm_86a", "compute_90", "sm_9", "", "sm 90", "sm_\u0669\u0660", "sm_90\0"),
        *("RTX 6000", "GTX 1080", "Blackwell", "NVIDIA", "ti", "h100 h100", "\uff28100", "h100" + " " * 80),
    ],
)
def test_what_is_no_target_is_refused(name: str) -> None:
    with pytest.raises(RefsimError) as caught:
        target_named(name)
    assert caught.value.code == "unknown-target"


@pytest.mark.parametrize(
    ("target", "unit", "what"),
    [
        ("sm_90", "wgmma", "sm_90 has no wgmma"),
        ("sm_100", "tcgen05.f16", "sm_100 has no tcgen05"),
        ("sm_103a", "tcgen05.i8", "sm_103a has no tcgen05 of kind i8"),
        ("sm_120a", "tcgen05.f16", "sm_120a has no tcgen05"),
        ("sm_100a", "mma.sync.mxf4", "sm_100a has no mma with block scaling"),
        ("sm_100f", "tcgen05.f16", None),
        ("sm_121a", "mma.sync.mxf4", None),
        ("sm_80", "mma.sync", None),
    ],
)
def test_a_unit_that_a_suffix_leaves_out_is_named(target: str, unit: str, what: str | None) -> None:
    refused = lacking(target, unit)
    assert (None if refused is None else refused.what) == what


def test_one_table_serves_compile_limits_and_numerics() -> None:
    assert {row.target for row in LIMITS} <= set(names())
    assert {row.name for row in TARGETS} <= set(names())
    assert {row.target for row in rows_of() if row.target.startswith("sm_")} <= set(names())
    for name in names():
        assert limits_of(name).number <= max(target_named(name).number, 75)


def test_a_chip_of_which_nothing_is_published_has_anothers_arithmetic_and_says_so() -> None:
    row, other = (
        profile("sm_103a", "tcgen05.f16", "f16", "f16", "f32"),
        profile("sm_100a", "tcgen05.f16", "f16", "f16", "f32"),
    )
    assert (row.target, row.evidence.level) == ("sm_103", Level.UNVERIFIED)
    assert "taken for sm_100" in row.evidence.what
    assert row.arithmetic == other.arithmetic
    one = np.ones((1, 16), np.uint16)
    with pytest.warns(numerics.UnverifiedProfileWarning):
        numerics.mma(one, one, unit="tcgen05.f16", target="sm_103a", a_format="f16", b_format="f16")
    with pytest.raises(RefsimError, match="no tcgen05 of kind i8"):
        profile("sm_103a", "tcgen05.i8", "s8", "s8", "s32")


@pytest.mark.parametrize(
    ("module", "target", "code"), [("sm_80", "sm_86", None), ("sm_90a", "sm_100a", "wrong-target")]
)
def test_the_simulator_runs_what_the_target_runs(module: str, target: str, code: str | None) -> None:
    text = EMPTY.format(version="9.0", target=module, body="")
    if code is None:
        assert ptx.load(text, target).launch("k", (1,), (32,), []).findings == ()
        return
    with pytest.raises(RefsimError) as caught:
        ptx.load(text, target)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("target", "body", "what"),
    [
        ("sm_90", ONE_OF["wgmma"], "sm_90 has no wgmma"),
        ("sm_100", ONE_OF["tcgen05"], "sm_100 has no tcgen05"),
    ],
)
def test_the_simulator_names_the_unit_that_the_target_has_not(target: str, body: str, what: str) -> None:
    program = ptx.load(EMPTY.format(version="9.0", target=target, body=body))
    with pytest.raises(RefsimError) as caught:
        program.launch("k", (1,), (32,), [])
    assert (caught.value.code, caught.value.what) == ("wrong-target", what)


@pytest.mark.parametrize("target", ["sm_86", "sm_90", "sm_103a", "sm_121f"])
def test_a_source_is_compiled_for_every_target(target: str, tmp_path: Path) -> None:
    source = tmp_path / "k.cu"
    source.write_text("__global__ void k(float* x) { x[threadIdx.x] += 1.0f; }\n")
    made = compile_ptx(source, target)
    assert f".target {target}" in made.text
    assert made.target == target


def test_without_a_compiler_the_text_of_an_older_target_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    from refsim.device import compile

    monkeypatch.setattr(compile, "find_toolchain", lambda number=0: None)
    made = compile_ptx(Path("gpu/kernels/fp8_quantize.cu").resolve(), "sm_86")
    assert (made.origin, made.target) == ("bundled", "sm_86")
    assert ".target sm_80" in made.text


def test_a_target_by_its_old_name_has_what_it_has_by_its_new_one() -> None:
    for name in ("tcgen05.mma.cta_group::1.kind::f16", "tcgen05.mma.cta_group::1.kind::i8", "wgmma.mma_async"):
        assert (lacking("sm_101a", name) is None) == (lacking("sm_110a", name) is None)
        assert (lacking("sm_101f", name) is None) == (lacking("sm_110f", name) is None)
    refused = lacking("sm_101", "tcgen05.mma.cta_group::1.kind::f16")
    assert refused is not None
    assert refused.help == "sm_110a is sm_101 with it"


@pytest.mark.parametrize(
    ("chip", "target"),
    [
        ("H100", "sm_90a"),
        ("NVIDIA H100 80GB HBM3", "sm_90a"),
        ("A100-SXM4-80GB", "sm_80"),
        ("Tesla V100-SXM2-32GB", "sm_70"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "sm_89"),
        ("rtx_3090", "sm_86"),
        ("L40-S", "sm_89"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "sm_120a"),
        ("NVIDIA GB10", "sm_121a"),
        ("gb300", "sm_103a"),
        ("AMD Instinct MI300X", "gfx942"),
        ("MI355X", "gfx950"),
        ("sm90a", "sm_90a"),
        (" sm_90a\n", "sm_90a"),
        ("sm-80", "sm_80"),
        ("SM_100F", "sm_100f"),
        ("GFX942", "gfx942"),
        ("gfx90a:sramecc+:xnack-", "gfx90a"),
        ("AMD Instinct MI300X VF", "gfx942"),
        ("NVIDIA GH200 144G HBM3e", "sm_90a"),
        ("NVIDIA B300 SXM6 AC", "sm_103a"),
        ("GB300 NVL72", "sm_103a"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "sm_80"),
        ("Tesla V100S-PCIE-32GB", "sm_70"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "sm_120a"),
        ("NVIDIA RTX 4000 SFF Ada Generation", "sm_89"),
        ("Jetson Orin Nano", "sm_87"),
        ("A100X", "sm_80"),
    ],
)
def test_a_chip_and_another_spelling_are_targets(chip: str, target: str) -> None:
    assert target_name(chip) == target
    assert rows_of(chip) == rows_of(target) != []
    if target.startswith("sm_"):
        assert target_named(chip) == target_named(target)


def test_every_chip_has_a_target_with_all_features_and_arithmetic() -> None:
    for chip, (target, source) in CHIPS.items():
        assert target_name(chip.upper()) == target == target_name(f"NVIDIA {chip}")
        assert source.place
        if target.startswith("sm_"):
            assert target_named(target).row.names[-1] == target
        assert rows_of(chip), chip


PUBLISHED = {  # https://developer.nvidia.com/cuda-gpus, and the Example Products of LLVM's AMDGPUUsage
    "sm_121a": "GB10",
    "sm_120a": "RTX PRO 6000, RTX PRO 5000, RTX PRO 4500, RTX PRO 4000, RTX PRO 2000, RTX 5090, RTX 5080, RTX 5070 Ti, "
    "RTX 5070, RTX 5060 Ti, RTX 5060, RTX 5050",
    "sm_110a": "Jetson T5000, Jetson T4000",
    "sm_103a": "GB300, B300",
    "sm_100a": "GB200, B200",
    "sm_90a": "GH200, H200, H100",
    "sm_89": "L4, L40, L40S, RTX 6000 Ada, RTX 5000 Ada, RTX 4500 Ada, RTX 4000 Ada, RTX 4000 SFF Ada, RTX 2000 Ada, "
    "RTX 4090, RTX 4080, RTX 4070 Ti, RTX 4070, RTX 4060 Ti, RTX 4060, RTX 4050",
    "sm_87": "Jetson AGX Orin, Jetson Orin NX, Jetson Orin Nano",
    "sm_86": "A40, A10, A16, A2, RTX A6000, RTX A5000, RTX A4000, RTX A3000, RTX A2000, RTX 3090, RTX 3080, RTX 3070, "
    "RTX 3060, RTX 3050",
    "sm_80": "A100, A30",
    "sm_75": "T4, TITAN RTX, T1000",
    "sm_70": "V100, Quadro GV100, TITAN V",
    "gfx950": "MI350X, MI355X",
    "gfx942": "MI300X, MI300A, MI325X",
    "gfx90a": "MI210, MI250, MI250X",
    "gfx908": "MI100",
}


@pytest.mark.parametrize("target", PUBLISHED)
def test_every_published_product_has_its_target(target: str) -> None:
    assert {chip: target_name(chip) for chip in PUBLISHED[target].split(", ")} == dict.fromkeys(
        PUBLISHED[target].split(", "), target
    )


@pytest.mark.parametrize(
    ("name", "near"),
    [("h1000", "h100 (sm_90a)"), ("b20", "b200 (sm_100a)"), ("rtx409", "rtx4090 (sm_89)"), ("compute_90a", "sm_90a")],
)
def test_an_unknown_chip_has_the_nearest_with_their_targets(name: str, near: str) -> None:
    for asked in (
        target_named,
        rows_of,
        lambda name: ptx.load(EMPTY.format(version="8.0", target="sm_90", body=""), name),
    ):
        with pytest.raises(RefsimError, match="unknown-target") as caught:
            asked(name)
        assert near in caught.value.help


def test_a_chip_of_amd_runs_no_ptx() -> None:
    with pytest.raises(RefsimError, match="gfx942 is a target of AMD"):
        target_named("MI300A")


@pytest.mark.parametrize("asked", ["sm_70", "V100", "sm_61"])
def test_a_target_that_cuda_dropped_has_a_way_out(asked: str, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text('extern "C" __global__ void k() {}\n')
    with pytest.raises(RefsimError, match="does not compile for") as caught:
        compile_ptx(tmp_path / "k.cu", asked)
    assert "CUDA 13" in caught.value.rule
    assert f"--target {target_name(asked)}" in caught.value.help
