"""Findings that are a known defect of the compiler: warnings that name it, and failures where it is mended or unknown."""

import re
from typing import Any

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import Kind, RefsimError
from refsim.ptx.findings.table import defect_of
from refsim.ptx.machine.launch_rules import LaunchRequest
from refsim.testing.adapters import TritonKernel
from refsim.testing.adapters.triton_kernels import TRITON_DEFECTS, known_defects
from refsim_run.records import Fidelity
from refsim_run.session import GpuSession
from tests.ptx import test_proxies as products
from tests.ptx import test_tensor_map_edits as maps

HEAD = """.version 9.0
.target {target}
.address_size 64
.visible .entry k(.param .u64 out) {{
    .reg .b32 %r<12>; .reg .b64 %d<8>; .reg .pred %p<8>; .shared .align 16 .b8 bar[64];
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, bar; setp.ne.u32 %p1, %r1, 0;
"""
COPIED = """mov.u32 %r7, %r5; mov.u64 %d4, %d1; cp.async.cg.shared.global [%r5], [%d4], 16; cp.async.commit_group;
    cp.async.wait_group 0; bar.sync 0;"""
UNFENCED = products.HEAD + COPIED + products.PRODUCT + "ret; }"
TWICE = HEAD.format(target="sm_90a") + (
    """@%p1 bra $end; mbarrier.init.shared.b64 [%r2], 1; mbarrier.arrive.shared.b64 %d2, [%r2];
    mbarrier.init.shared.b64 [%r2], 1; mbarrier.arrive.shared.b64 %d2, [%r2];
    $poll: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra $poll;
    mbarrier.inval.shared.b64 [%r2]; st.global.u32 [%d1], 7; $end: ret; }"""
)
COMMIT = HEAD.format(target="sm_100a") + (
    """@%p1 bra $end; mbarrier.init.shared.b64 [%r2], 1; cvt.u64.u32 %d2, %r2;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%d2];
    $poll: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra $poll;
    st.global.u32 [%d1], 7; $end: ret; }"""
)
SUMS = HEAD.format(target="sm_80") + (
    """ld.global.b32 %r3, [%d1];
    $again: add.u32 %r4, %r3, 1; atom.acq_rel.gpu.global.cas.b32 %r5, [%d1], %r3, %r4;
    setp.ne.b32 %p2, %r5, %r3; mov.b32 %r3, %r5; @%p2 bra $again; ret; }"""
)
BEHIND = products.PRODUCT.replace("aligned;", "aligned; mov.b32 %f1, 0; mov.b32 %f0, %f1;", 1)
COPIED_REGISTERS = products.HEAD + products.WRITE + products.FENCE + products.SYNC + BEHIND + "ret; }"
DISAGREEING = HEAD.format(target="sm_90") + (
    """st.shared.b32 [%r2], %r1; bar.sync 0; @%p1 bra $end; st.global.u32 [%d1], 7; $end: ret; }"""
)
CASES = {
    "lanes-disagree": ("race", DISAGREEING, 32, "3.9.0", ""),
    "registers-copied-behind-the-fence": ("unfenced-register", COPIED_REGISTERS, 128, "3.9.0", ""),
    "copies-unfenced": ("missing-proxy-fence", UNFENCED, 128, "3.7.0", "3.7.1"),
    "barriers-not-ended": ("barrier-misuse", TWICE, 32, "3.7.1", "3.8.0"),
    "commit-by-shared-address": ("barrier-misuse", COMMIT, 32, "3.6.0", "3.7.0"),
    "weak-load-before-cas": ("race", SUMS, 64, "3.7.1", "3.8.0"),
}


def launched(text: str, threads: int, **checks: Any) -> tuple[ptx.Trace, np.ndarray]:
    out = np.full(512, 0x38383838, np.uint32) if "wgmma" in text else np.zeros(512, np.uint32)
    return ptx.load(text).launch("k", 1, threads, [out], checks=ptx.Checks(**checks)), out


@pytest.mark.parametrize("name", CASES)
def test_a_known_defect_is_a_warning_that_names_the_compiler(name: str) -> None:
    code, text, threads, _, _ = CASES[name]
    (row,) = (each for each in TRITON_DEFECTS if each.name == name)
    trace, out = launched(text, threads, known=(row,))
    assert trace.findings == ()
    assert [(each.code, each.help) for each in trace.warnings] == [(code, f"{row.says} ({row.source})")]
    assert out[0] == {"weak-load-before-cas": 64, "copies-unfenced": 0x38383838}.get(
        name, 0x38383838 if name.startswith("registers") else 7
    )


@pytest.mark.parametrize("name", CASES)
def test_the_version_decides(name: str) -> None:
    code, text, threads, last, mended = CASES[name]
    launched(text, threads, known=known_defects(last))
    for known in (known_defects(mended) if mended else (), ()):
        with pytest.raises(RefsimError) as caught:
            launched(text, threads, known=known)
        assert caught.value.code == code


def test_bits_that_depend_on_a_defect_are_open() -> None:
    trace, _ = launched(DISAGREEING, 32, known=known_defects("3.9.0"))
    assert [text.split(" at ")[0] for text in trace.inexact] == ["st.shared.b32"]
    assert launched(TWICE, 32, known=known_defects("3.6.0"))[0].inexact == ()
    with pytest.raises(RefsimError, match="race"):
        launched(DISAGREEING.replace("st.shared.b32 [%r2]", "st.global.b32 [%d1]"), 32, known=known_defects("3.9.0"))


def test_another_finding_at_the_same_place_is_none_of_the_compiler() -> None:
    written = UNFENCED.replace(COPIED, products.WRITE + products.SYNC)
    with pytest.raises(RefsimError, match="missing-proxy-fence"):
        launched(written, 128, known=known_defects("3.6.0"))
    multiplied = COPIED_REGISTERS.replace("mov.b32 %f0, %f1;", "add.f32 %f0, %f1, %f1;")
    with pytest.raises(RefsimError, match="unfenced-register"):
        launched(multiplied, 128, known=known_defects("3.6.0"))
    stored = SUMS.replace("ld.global.b32 %r3, [%d1];", "mov.b32 %r3, 0; @%p1 bra $again; st.global.b32 [%d1], 5;")
    with pytest.raises(RefsimError, match="race"):
        launched(stored, 64, known=known_defects("3.6.0"))


def test_what_is_off_is_not_looked_for() -> None:
    trace, _ = launched(SUMS, 64, known=known_defects("3.6.0"), off=("race",))
    assert trace.warnings == ()


def test_a_map_that_was_copied_without_a_meeting_of_the_warp() -> None:
    (row,) = (each for each in TRITON_DEFECTS if each.name == "map-copied-unsynchronised")
    body = "\n".join([maps.FETCH, maps.MEET, maps.ADDRESS, maps.COPY, maps.RIGHT_END])
    with maps.opened(body) as gpu, pytest.raises(RefsimError) as caught:
        maps.run(gpu)
    assert caught.value.code == "race"
    assert row.explains(caught.value, "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu")
    assert row in known_defects("3.8.0")
    assert row not in known_defects("3.9.0")


def test_gluon_places_its_own_fences() -> None:
    assert {row.name for row in known_defects("3.6.0")} - {
        row.name for row in known_defects("3.6.0", is_gluon=True)
    } == {"copies-unfenced", "lanes-disagree"}


@pytest.mark.parametrize("version", ["3.9.0", "3.10.1", "4.0", "3.9.0+git1234"])
def test_what_no_version_has_mended_yet(version: str) -> None:
    assert [row.name for row in known_defects(version)] == [
        "lanes-disagree",
        "registers-copied-behind-the-fence",
    ]


def test_a_program_that_meets_one_has_found_nothing_wrong() -> None:
    """In `refsim run` the kernel stays exact, the warning stands in the report."""
    session = GpuSession()
    out = session.memory.allocate(64, "test")
    module = session.load(TWICE, "triton")
    module.launch(LaunchRequest("k", 1, 32, [np.uint64(out)]), known=known_defects("3.6.0"))
    (record,) = session.kernels.values()
    assert (record.status, [each.code for each in record.warnings]) == (Fidelity.EXACT, ["barrier-misuse"])
    with pytest.raises(RefsimError, match="barrier-misuse"):
        module.launch(LaunchRequest("k", 1, 32, [np.uint64(out)]), known=known_defects("3.9.0"))


class Refusing:
    """A launcher whose kernel is found wrong."""

    def __init__(self, what: str) -> None:
        self.error = RefsimError(
            "missing-proxy-fence", what, "wgmma.mma_async.sync.aligned.m64n8k16 at PTX line 7", kind=Kind.FAULT
        )

    def launch(self, *_: Any, **__: Any) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("version", "what", "helped"),
    [
        ("3.6.0", "wrote there by cp.async.cg.shared.global at PTX line 3", True),
        ("3.6.0", "wrote there by st.shared.b32 at PTX line 3", False),
        ("3.9.0", "wrote there by cp.async.cg.shared.global at PTX line 3", False),
    ],
)
def test_a_kernel_of_an_adapter_says_whose_defect_it_is(version: str, what: str, helped: bool) -> None:
    kernel = TritonKernel("", "k", (), 128, 0, 1, False, (), version)
    with pytest.raises(RefsimError) as caught:
        kernel.launch(Refusing(what), 1)  # type: ignore[arg-type]
    assert bool(re.search("Triton before 3.7.1", caught.value.help)) == helped


def test_a_finding_without_a_row_stays_as_it_is() -> None:
    assert defect_of(RefsimError("race", "x"), "st.global", TRITON_DEFECTS) is None
    copied = RefsimError(
        "missing-proxy-fence", "reads 16 B; thread (0, 0, 0) wrote there by cp.async.cg.shared.global at PTX"
    )
    assert defect_of(copied, "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", TRITON_DEFECTS) is not None
    assert defect_of(copied, "cp.async.bulk.global.shared::cta.bulk_group", TRITON_DEFECTS) is None
