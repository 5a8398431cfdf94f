"""The sweep over barriers: what is needed is caught, what is not is named with the reason."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.kernels import Kernel
from refsim.testing.barrier_sweep import NEVER_RUN, NO_DIFFERENCE, only, sweep, weaker, without
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
from refsim.testing.recipes import Launch, Tensor

quantiser = load_kernel_file(bundled_kernels())

# y[i] = x[63 - i] through shared memory: one barrier is needed, one is not, one is never reached.
TURN = """
extern "C" __global__ void turn(const unsigned* x, unsigned n, unsigned* y) {
    __shared__ unsigned tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();  // needed
    y[threadIdx.x] = tile[63 - threadIdx.x];
    __syncthreads();  // not needed
    if (n > 1000) {
        __syncthreads();  // not reached
        y[threadIdx.x] = 0;
    }
}
"""


def run(launcher, problem):
    x = launcher.upload(problem.codes(), name="x")
    y = launcher.output(64, np.uint32, name="y")
    launcher.launch("turn", (1,), (64,), [x, np.uint32(problem.n), y])
    return {"y": launcher.read(y)}


def turned(problem):
    return {"y": problem.codes()[::-1]}


@pytest.fixture
def turn(tmp_path: Path) -> Kernel:
    file = tmp_path / "turn.cu"
    file.write_text(TURN, "utf-8")
    return Kernel("turn", turned, None, run, {"y": ""}, recipe=Tensor, file=file, entries=("turn",))


def test_every_barrier_is_taken_away_and_judged(turn):
    seen = []
    removals = sweep(turn, [Tensor(64, "f32", "bits", 1)], on_removal=seen.append)
    assert tuple(seen) == removals
    assert [(removal.location, removal.caught) for removal in removals] == [
        ("turn.cu:5", True),
        ("turn.cu:7", False),
        ("turn.cu:9", False),
    ]
    assert removals[0].finding.startswith(("[race]", "[uninitialised]"))
    assert [removal.finding for removal in removals[1:]] == [NO_DIFFERENCE, NEVER_RUN]
    needed, spare, _ = map(str, removals)
    assert needed.startswith("caught  turn: bar.sync of turn.cu:5, PTX line ")
    assert "turn.cu:6" in needed  # the read that came too early
    assert spare.startswith("missed  turn: bar.sync of turn.cu:7")


def test_barriers_of_the_quantiser_are_all_needed():
    """Two blocks, so that the scope of the atomic that joins them is needed too."""
    two = Launch(threads=64, blocks=2)
    problems = [quantiser.Amax(Tensor(2049, wide, "bits", 3), two) for wide in quantiser.WIDE]
    removals = sweep(quantiser.FP8_AMAX, problems)
    assert {removal.entry for removal in removals} == set(quantiser.FP8_AMAX.entries)
    assert all(removal.caught for removal in removals), "\n".join(map(str, removals))


def test_a_kernel_that_fails_anyway_is_refused(turn):
    wrong = replace(turn, oracle=lambda problem: {"y": problem.codes()})
    with pytest.raises(RefsimError, match="kernel-fails"):
        sweep(wrong, [Tensor(64, "f32", "bits", 1)])


def test_a_kernel_without_a_file_is_refused(turn):
    with pytest.raises(RefsimError, match="no-kernel-file"):
        sweep(replace(turn, file=None, call=print), [])


def test_one_statement_goes_and_labels_stay_before_what_stood_behind_them():
    text = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k() { .reg .pred %p; .reg .b32 %r;
FIRST: mov.u32 %r, 1; setp.eq.u32 %p, %r, 0; @%p bar.sync 0;
LAST: ret; }
"""
    program = ptx.load(text)
    entry = program.module.functions["k"]
    barrier = entry.statements[2]

    def shape(changed):
        function = changed.module.functions["k"]
        heads = {name.partition("@")[0]: place for name, place in function.labels.items()}
        return [(each.opcode, len(each.operands), each.guard is not None) for each in function.statements], heads

    before, behind = [("mov.u32", 2, False), ("setp.eq.u32", 3, False)], [("ret", 0, False)]
    assert shape(without(program, "k", barrier)) == ([*before, *behind], {"FIRST": 0, "LAST": 2})
    weaker_one = without(program, "k", barrier, "barrier.sync")
    assert shape(weaker_one) == ([*before, ("barrier.sync", 1, True), *behind], {"FIRST": 0, "LAST": 3})
    trapping = without(program, "k", barrier, "trap")
    assert shape(trapping) == ([*before, ("trap", 0, False), *behind], {"FIRST": 0, "LAST": 3})
    assert program.module.functions["k"] is entry
    assert len(entry.statements) == 4


@pytest.mark.parametrize(
    ("opcode", "instead"),
    [
        ("bar.sync", ("",)),
        ("cp.async.wait_group", ("",)),
        ("membar.gl", ("", "membar.cta")),
        ("membar.cta", ("",)),
        ("fence.acq_rel.sys", ("", "fence.acq_rel.cta")),
        ("fence.proxy.alias", ()),
        ("ld.acquire.gpu.global.u32", ("ld.relaxed.gpu.global.u32", "ld.acquire.cta.global.u32")),
        ("st.release.cta.shared.u32", ("st.relaxed.cta.shared.u32",)),
        ("st.relaxed.sys.u64", ("st.relaxed.cta.u64", "st.u64")),
        ("ld.volatile.shared.u32", ("ld.shared.u32",)),
        (
            "atom.add.acq_rel.gpu.u32",
            ("atom.add.acquire.gpu.u32", "atom.add.release.gpu.u32", "atom.add.acq_rel.cta.u32"),
        ),
        ("red.global.add.u32", ("red.cta.global.add.u32",)),
        ("atom.shared.add.u32", ()),
        ("ld.global.u32", ()),
        ("ld.mmio.relaxed.sys.global.u32", ()),
        ("add.u32", ()),
        ("redux.sync.add.s32", ()),
    ],
)
def test_what_orders_less_than_an_instruction(opcode, instead):
    assert weaker(opcode) == instead


def test_an_entry_alone_keeps_its_lines():
    """Braces in comments and strings, and those of a scope at the start of a line, close no entry."""
    one = '.visible .entry one(\n  .param .u64 a\n)\n{\n{\nret; // }\n}\n.file 1 "}"\n}'
    two = ".weak .entry two()\n{\nret;\n}"
    text = f'.version 9.0\n{one}\n{two}\n.file 1 "x.cu"\n'
    assert only(text, "one") == f".version 9.0\n{one}\n" + "\n" * 3 + "\n" + '.file 1 "x.cu"\n'
    assert only(text, "two") == ".version 9.0\n" + "\n" * 8 + f"\n{two}\n" + '.file 1 "x.cu"\n'
