"""What a suspicion is held against, and what is tried: witnesses, readings of outputs, groups of edits, where they run."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import strategies as st

import refsim.device
from refsim import ptx
from refsim.errors import Kind, RefsimError
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.testing import Bounded, Promise
from refsim.testing.changed_device import ChangedDevice
from refsim.testing.recipes import Tensor
from refsim.testing.suspects import Suspicion, Witness, suspects_of
from refsim.testing.suspects.budget import Budget
from refsim.testing.suspects.feeding import Diet
from refsim.testing.suspects.inquiry import betrayed
from refsim.testing.suspects.listing import ListedLine, PtxListing
from refsim.testing.suspects.suspicion import UNSAID, Instead
from refsim.testing.suspects.trials import SuspectRepair, _groups, _instead, _joined, repaired
from refsim.testing.suspects.witnesses import DRAWN, MOST_ELEMENTS, WANTED, witnesses_of

# ---- witnesses -------------------------------------------------------------------------------------------------------


def tensor(n: int) -> Tensor:
    return Tensor(n, "bf16", "bits")


def off_where(condition, right_halve):
    """A kernel that is wrong in its first element where a condition of the size holds."""

    def run(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        if n and condition(int(n)):
            launcher.view(y)[0] ^= 1

    return run


def test_known_problems_stand_in_order_and_slow_ones_are_left_out(halve_kernel, fake_device):
    failed = [Witness(tensor(n), n, failed=True) for n in range(1, WANTED + 3)]
    passed = [Witness(tensor(100 + n), n, failed=False) for n in range(1, WANTED + 3)]
    slow = Witness(tensor(99), MOST_ELEMENTS + 1, failed=True)
    again = Witness(tensor(0), 50, failed=True)
    device = fake_device()
    found = witnesses_of(halve_kernel, device, tensor(0), [slow, again, *passed[::-1], *failed], budget=Budget(9.0))
    assert found[0].problem == tensor(0)
    assert [each.problem for each in found[1:]] == [
        *(each.problem for each in failed[: -WANTED - 1 : -1]),
        *(each.problem for each in passed[:WANTED]),
    ]
    assert device.launches == 0


def test_witnesses_are_found_until_there_are_enough_of_both_kinds(halve_kernel, fake_device, right_halve):
    device = fake_device(off_where(lambda n: n % 2, right_halve))
    kernel = replace(halve_kernel, corpus=(tensor(2), tensor(3)))
    found = witnesses_of(kernel, device, tensor(3), [Witness(tensor(2), 0, failed=False)], budget=Budget(60.0))
    problems = [each.problem for each in found]
    assert [each.failed for each in found] == [each.n % 2 == 1 for each in problems]
    assert sum(each.failed for each in found) == WANTED + 1
    assert sum(not each.failed for each in found) == WANTED
    assert problems.count(tensor(3)) == problems.count(tensor(2)) == 1
    assert len(set(map(repr, problems))) == len(problems)
    assert device.launches < DRAWN


def test_no_witness_is_drawn_when_the_time_is_over(halve_kernel, fake_device):
    device = fake_device()
    assert [each.problem for each in witnesses_of(halve_kernel, device, tensor(3), (), budget=Budget(-1.0))] == [
        tensor(3)
    ]
    assert device.launches == 0


def test_a_fault_is_no_witness(halve_kernel, fake_device, right_halve):
    def faults(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        if n > 5:
            raise RefsimError("out-of-bounds", "lane 3 reads beyond x", kind=Kind.FAULT)

    kernel = replace(halve_kernel, corpus=tuple(map(tensor, (2, 9, 4))), problem=st.just(tensor(7)))
    found = witnesses_of(kernel, fake_device(faults), tensor(3), (), budget=Budget(60.0))
    assert [(each.problem.n, each.failed) for each in found[1:]] in ([(2, False), (4, False)], [(4, False), (2, False)])


# ---- outputs ---------------------------------------------------------------------------------------------------------

SIZES = (tensor(40), tensor(64), tensor(33))


def shifted(right_halve):
    def run(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        right = launcher.view(y).copy()
        launcher.view(y)[1:] = right[:-1]

    return run


def two_outputs(kernel, changed):
    """The kernel with a second output, which `changed` makes of the right one."""

    def run(launcher, problem):
        return kernel.run(launcher, problem) | {"z": changed(kernel.oracle(problem)["y"])}

    oracle = kernel.oracle
    return replace(
        kernel, run=run, oracle=lambda p: oracle(p) | {"z": oracle(p)["y"]}, outputs={"y": "bf16", "z": "bf16"}
    )


def test_a_reading_that_fits_every_wrong_output_is_named(halve_kernel, fake_device, right_halve):
    device = fake_device(shifted(right_halve))
    (found,) = betrayed(Diet(halve_kernel, device), SIZES)
    assert (found.suspect, found.places, found.problems) == ("off by one", ("output y",), 3)
    (found,) = betrayed(Diet(two_outputs(halve_kernel, lambda right: right), device), SIZES)
    assert found.places == ("output y",)
    (found,) = betrayed(Diet(two_outputs(halve_kernel, lambda right: np.roll(right, 1)), device), SIZES)
    assert found.places == ("output y", "output z")
    assert betrayed(Diet(two_outputs(halve_kernel, lambda right: right ^ 1), device), SIZES) == ()
    assert betrayed(Diet(halve_kernel, fake_device()), SIZES) == ()


def test_a_reading_must_fit_every_problem(halve_kernel, fake_device, right_halve):
    def once(launcher, x, n, y):
        (shifted(right_halve) if n == 40 else right_halve)(launcher, x, n, y)

    assert betrayed(Diet(halve_kernel, fake_device(once)), SIZES) == ()
    (found,) = betrayed(Diet(halve_kernel, fake_device(once)), SIZES[:1])
    assert found.problems == 1


def test_three_elements_are_too_few_for_a_shift(halve_kernel, fake_device, right_halve):
    device = fake_device(shifted(right_halve))
    few = [problem for problem in (tensor(4), tensor(5)) if len(set(halve_kernel.oracle(problem)["y"])) == problem.n]
    assert [len(betrayed(Diet(halve_kernel, device), [problem])) for problem in few] == [0, 1]


def test_a_payload_of_nan_counts_where_it_is_promised(halve_kernel, fake_device, right_halve):
    def flushes(launcher, x, n, y):
        right_halve(launcher, x, n, y)
        codes = launcher.view(y)
        codes[(codes & 0x7F80) == 0] &= 0x8000
        codes[(codes & 0x7FFF) > 0x7F80] = 0x7FA5

    problem = Tensor(4096, "bf16", "bits")
    any_payload = replace(halve_kernel, promise=Promise.BITWISE_EXCEPT_NAN_PAYLOAD)
    assert [each.suspect for each in betrayed(Diet(any_payload, fake_device(flushes)), [problem])] == [
        "flushed subnormals"
    ]
    assert betrayed(Diet(halve_kernel, fake_device(flushes)), [problem]) == ()


def test_values_with_bounds_have_no_codes_to_read(halve_kernel, fake_device, right_halve):
    kernel = two_outputs(halve_kernel, lambda right: np.roll(right, 1))
    oracle = kernel.oracle

    def bounded(problem):
        value = np.zeros(problem.n)
        return oracle(problem) | {"y": Bounded(value, value)}

    kernel = replace(kernel, oracle=bounded, promise=Promise.BOUNDED("derived"))
    (found,) = betrayed(Diet(kernel, fake_device()), SIZES)
    assert found.places == ("output z",)


# ---- the inquiry -----------------------------------------------------------------------------------------------------


def test_outputs_are_judged_where_there_is_no_code(halve_kernel, fake_device, right_halve):
    kernel = replace(halve_kernel, problem=st.integers(20, 60).map(tensor), corpus=())
    (found,) = suspects_of(kernel, fake_device(shifted(right_halve)), tensor(40), (), seconds=60.0)
    assert found.suspect == "off by one"
    assert found.problems == WANTED + 1
    unnamed = fake_device(off_where(lambda n: True, right_halve))
    assert suspects_of(kernel, unnamed, tensor(40), (), seconds=60.0) == ()


def test_two_problems_are_too_few_to_name_anything(halve_kernel, fake_device, right_halve):
    kernel = replace(halve_kernel, problem=st.just(tensor(41)), corpus=(tensor(40),))
    device = fake_device(shifted(right_halve))
    assert suspects_of(kernel, device, tensor(40), (), seconds=60.0) == ()
    assert suspects_of(replace(kernel, corpus=(tensor(42),)), device, tensor(40), (), seconds=60.0) != ()


@pytest.mark.parametrize(
    ("options", "places", "where", "proof"),
    [
        ({}, 1, "p0", "it gives exactly these bits in all 7 test cases"),
        ({"is_mended": True}, 3, "p0, p1, p2", "with this fixed all 7 test cases pass"),
        ({"by_size": True}, 4, "p0, p1, p2 and 1 more", "true of all 7 test cases"),
    ],
)
def test_a_suspicion_says_what_it_rests_on(options, places, where, proof):
    found = Suspicion("tail", "n is cut", tuple(f"p{each}" for each in range(places)), 7, **options)
    assert str(found) == f"tail: n is cut, {where} ({proof})"


def test_an_edit_names_both_values():
    edit = Instead("__NV_NOSAT", "__NV_SATFINITE")
    found = Suspicion("infinity", "", ("scale.cu:8",), 17, is_mended=True, instead=edit)
    proof = "with __NV_SATFINITE all 17 test cases pass"
    assert str(found) == f"infinity: __NV_NOSAT instead of __NV_SATFINITE at scale.cu:8 ({proof})"


# ---- edits -----------------------------------------------------------------------------------------------------------

PTX = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry _Z5scalePKfPfj(.param .u64 a, .param .u64 y, .param .u32 n)
{
  .reg .f32 %f<4>;
  .reg .b32 %r<4>;
  .reg .b64 %rd<8>;
  .reg .pred %p1;
  ld.param.u64 %rd1, [a];
  ld.param.u64 %rd2, [y];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x;
  setp.ge.u32 %p1, %r2, %r1;
  @%p1 bra DONE;
  mad.wide.u32 %rd3, %r2, 4, %rd1;
  mad.wide.u32 %rd4, %r2, 4, %rd2;
  ld.global.f32 %f1, [%rd3];
  fma.rn.f32 %f2, %f1, 0f3DCCCCCD, 0f3F99999A;
  st.global.f32 [%rd4], %f2;
DONE:
  ret;
}
.visible .entry _Z5otherv()
{
  ret;
}
"""


@dataclass(frozen=True)
class Size:
    n: int


def scale(launcher: Launcher, problem: Size) -> Outputs:
    x, y = launcher.upload(values(problem), name="x"), launcher.output(problem.n, np.float32, name="y")
    launcher.launch("scale", 1, 128, [x, y, np.uint32(problem.n)])
    return {"y": launcher.read(y)}


def values(problem: Size) -> np.ndarray:
    return np.random.default_rng(problem.n).standard_normal(problem.n).astype(np.float32)


def rounded_twice(problem: Size) -> Outputs:
    return {"y": values(problem) * np.float32(0.1) + np.float32(1.2)}


SCALE = Kernel("scale", rounded_twice, st.builds(Size, st.integers(1, 128)), scale, {"y": "f32"}, recipe=Size, ptx=PTX)
PROBLEMS = (Size(128), Size(1), Size(77))


def test_an_entry_that_run_calls_by_its_name_in_cuda_is_mended() -> None:
    (found,) = repaired(SCALE, "sm_90a", PROBLEMS, budget=Budget(60.0))
    assert (found.suspect, found.places, found.problems, found.is_mended) == (
        "contraction",
        (f"PTX line {1 + PTX[: PTX.index('fma.')].count(chr(10))}",),
        3,
        True,
    )


@pytest.mark.parametrize("guilty", [0, 1, 2])
def test_of_lines_that_are_edited_together_the_exact_ones_are_not_named(guilty: int) -> None:
    steps = ["mul.rz.f32 %f1, %f1, 0f40000000;", "mul.rz.f32 %f1, %f1, 0f40000000;"]
    steps.insert(guilty, "add.rz.f32 %f1, %f1, 0f3F99999A;")
    text = PTX.replace("fma.rn.f32 %f2, %f1, 0f3DCCCCCD, 0f3F99999A", "\n  ".join((*steps, "mov.f32 %f2, %f1")))

    def oracle(problem: Size) -> Outputs:
        y = values(problem)
        for step in steps:
            y = y * np.float32(2) if "mul" in step else y + np.float32(1.2)
        return {"y": y}

    (found,) = repaired(replace(SCALE, ptx=text, oracle=oracle), "sm_90a", PROBLEMS, budget=Budget(60.0))
    assert found.instead == Instead("add.rz.f32", "add.rn.f32")
    assert found.places == (f"PTX line {1 + text[: text.index('add.rz')].count(chr(10))}",)


def test_what_the_simulator_does_not_show_is_not_mended() -> None:
    right = replace(
        SCALE,
        ptx=PTX.replace("fma.rn.f32 %f2, %f1, 0f3DCCCCCD, ", "mul.f32 %f3, %f1, 0f3DCCCCCD;\n  add.f32 %f2, %f3, "),
    )
    assert repaired(right, "sm_90a", PROBLEMS, budget=Budget(60.0)) == ()


def test_an_edit_must_mend_every_problem() -> None:
    """Half of the sizes want another constant, which no edit brings."""

    def oracle(problem: Size) -> Outputs:
        return {"y": rounded_twice(problem)["y"] + np.float32(problem.n == 77)}

    assert repaired(replace(SCALE, oracle=oracle), "sm_90a", PROBLEMS, budget=Budget(60.0)) == ()
    assert len(repaired(replace(SCALE, oracle=oracle), "sm_90a", PROBLEMS[:2], budget=Budget(60.0))) == 1


def test_a_source_is_edited_among_its_headers(tmp_path) -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC is not installed: pip install 'refsim[sim]'")
    (tmp_path / "own.cuh").write_text("#include <cuda_fp8.h>\n__device__ float tenth(float x) { return x / 10.0f; }\n")
    text = """#include "own.cuh"
extern "C" __global__ void scale(const float* x, float* y, unsigned n) {
  if (threadIdx.x < n) y[threadIdx.x] = __nv_cvt_float_to_e8m0(tenth(x[threadIdx.x]), __NV_SATFINITE, cudaRoundZero);
}
"""
    (tmp_path / "wrong.cu").write_text(text)
    (tmp_path / "right.cu").write_text(text.replace("cudaRoundZero", "cudaRoundPosInf"))
    device = refsim.device.open("sim:eager", "sm_90a")

    def oracle(problem: Size) -> Outputs:
        with device.launcher(tmp_path / "right.cu") as launcher:
            return scale(launcher, problem)

    kernel = replace(SCALE, ptx=None, file=tmp_path / "wrong.cu", oracle=oracle)
    (found,) = repaired(kernel, "sm_90a", PROBLEMS, budget=Budget(60.0))
    assert (found.suspect, found.places) == ("scale rule", ("wrong.cu:3",))


def line(at: int, opcode: str, place: str) -> ListedLine:
    return ListedLine(at, "", opcode, (), "", 0, place)


def groups(*lines: ListedLine) -> list[tuple[int, ...]]:
    return [tuple(each.at for each, _ in group) for group in _groups([(each, {each.at: ""}) for each in lines])]


def test_edits_are_grouped_by_line_by_opcode_and_as_unrolled_loops_have_them() -> None:
    adds = [line(at, "add", "k.cu:1") for at in range(12)]
    others = [line(20, "sub", "k.cu:1"), line(21, "sub", "k.cu:2")]
    found = groups(*adds, *others)
    every = tuple(range(12))
    assert found[:3] == [(*every, 20, 21), (*every, 20), (21,)]
    wanted = {every, (20,), every[:6], every[6:]}
    wanted |= {every[first::step] for step in (2, 3, 4) for first in range(step)}
    assert set(found[3:]) == wanted
    assert len(set(found)) == len(found)
    assert groups(adds[0]) == [(0,)]


def no_edits(listing: PtxListing, line: ListedLine) -> Iterator[dict[int, str]]:
    yield from ()


@pytest.mark.parametrize(
    ("opcodes", "said"),
    [
        (["mul.rn.f32"], Instead("fma.rn.f32", "mul.rn.f32")),
        (["mul.rn.f32", "add.rn.f32"], Instead("fma.rn.f32", "mul.rn.f32 and add.rn.f32")),
        (["fma.rn.f32", "fma.rn.f32"], UNSAID),
        (["mul.rn.f32", "mov.b32"], UNSAID),
        ([f"{name}.rn.ftz.sat.f32" for name in ("add", "sub", "mul", "div", "rcp")], UNSAID),
    ],
)
def test_instructions_are_named_if_they_are_few_and_differ(opcodes: list[str], said: Instead) -> None:
    listing = PtxListing(PTX, ptx.load(PTX, "sm_90a"), ["_Z5scalePKfPfj"])
    (fma,) = (each for each in listing.lines if each.name == "fma")
    assert _instead(listing, fma, {fma.at: fma.reading(*(f"{each} %f2, %f1, %f1" for each in opcodes))}) == said


def test_a_constant_in_a_register_is_named_by_its_value() -> None:
    text = PTX.replace("fma.rn.f32 %f2, %f1, 0f3DCCCCCD", "mov.f32 %f3, 0f3DCCCCCD;\n  fma.rn.f32 %f2, %f1, %f3")
    listing = PtxListing(text, ptx.load(text, "sm_90a"), ["_Z5scalePKfPfj"])
    (fma,) = (each for each in listing.lines if each.name == "fma")
    eighth = fma.renamed("fma.rn.f32", "%f2", "%f1", "0f3E000000", "0f3F99999A")
    assert _instead(listing, fma, {fma.at: eighth}) == Instead("fma.rn.f32 of 0.1", "fma.rn.f32 of 0.125")


def test_edits_that_want_one_line_exclude_each_other() -> None:
    listing = PtxListing(PTX, ptx.load(PTX, "sm_90a"), ["_Z5scalePKfPfj"])
    repair = SuspectRepair("tail", "it is cut", no_edits)
    first, second = (line(at, "add", f"k.cu:{at}") for at in (3, 4))
    assert list(_joined(listing, repair, [(first, {3: "a", 4: ""}), (second, {4: "b"})])) == []
    (joined,) = _joined(listing, repair, [(first, {3: "a"}), (second, {4: "b"})])
    assert joined.places == ("k.cu:3", "k.cu:4")
    with pytest.raises(RefsimError, match="found 'a'"):
        joined.mended()
    assert listing.edited({3: "a"}).split("\n")[3:5] == ["a", PTX.split("\n")[4]]


def test_edited_text_runs_as_it_is_told_to() -> None:
    device = ChangedDevice(ptx.load(PTX, "sm_90a"), schedules=3, seconds=7.0)
    with device.launcher(None, count_banks=True) as launcher:
        assert (launcher.schedules, launcher.seconds, launcher.count_banks) == (3, 7.0, True)
        scale(launcher, Size(8))
    assert device.entries == {"_Z5scalePKfPfj"}
    assert device.probing().schedules == 1
    assert device.probing().program is device.program
