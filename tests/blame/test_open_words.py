"""Which words of an output hang on open bits: of memory, and of what a host makes of it."""

import numpy as np
import pytest

from conformance.blamed.planted import HEAD
from refsim.blame.running import ReadNote
from refsim.device.sim import SimDevice
from refsim.errors import RefsimError

OPEN = (
    HEAD
    + """
.visible .entry open(.param .u64 x, .param .u64 y)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .f32 %f<6>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.f32 %f1, [%rd4];
    mul.f32 %f2, %f1, %f1;
    add.f32 %f3, %f2, %f1;
    atom.global.add.f32 %f4, [%rd2], %f1;
    st.global.f32 [%rd5+16], %f2;
    st.global.f32 [%rd5+32], %f3;
    st.global.f32 [%rd5+48], %f4;
    // guarded
    ret;
}
"""
)
DECIDED = OPEN.replace("// guarded", "setp.gt.f32 %p1, %f3, 0f40000000;\n    @%p1 st.global.f32 [%rd5+64], %f1;")


def run(launcher):
    x = launcher.upload(np.arange(4, dtype=np.float32) + 0.5, name="x")
    y = launcher.upload(np.zeros(32, np.float32), name="y", writable=True)
    launcher.launch("open", 1, 4, [x, y])
    return {"y": launcher.read(y)}


def words(made):
    def as_words(launcher):
        return {name: each.view(np.uint32) for name, each in made(launcher).items()}

    return as_words


def opened(text, made=run):
    with SimDevice("sm_90a").loaded(text, "open", follow_open=True) as launcher:
        note, as_words = ReadNote(launcher), words(made)
        return note.open_words(as_words, as_words(launcher))


def test_sums_of_atomics_what_they_find_and_fused_sums_are_open_and_products_are_not():
    assert np.flatnonzero(opened(OPEN)["y"]).tolist() == [0, *range(8, 16)]


def test_where_nothing_is_open_no_word_is():
    fixed = OPEN.replace("mul.f32", "mul.rn.f32").replace("atom.global.add.f32 %f4, [%rd2], %f1", "mov.f32 %f4, %f1")
    assert not opened(fixed)["y"].any()


def test_where_open_bits_decide_nobody_can_tell():
    assert opened(DECIDED) is None


def test_a_host_that_adds_up_opens_its_sum():
    def added(launcher):
        y = run(launcher)["y"]
        return {"sums": np.array([y[:8].sum(dtype=np.float32), y[4:8].sum(dtype=np.float32)])}

    assert opened(OPEN, added)["sums"].tolist() == [True, False]


def test_a_host_that_asks_for_more_than_memory_cannot_be_followed():
    def refused(launcher):
        made = run(launcher)
        launcher.findings()
        return made

    def another_shape(launcher):
        y = run(launcher)["y"]
        return {"y": y[: 1 + int(y[0] == 8)]}

    assert opened(OPEN, refused) is None
    assert opened(OPEN, another_shape) is None


def test_a_launch_that_is_too_large_to_be_followed_opens_everything():
    def large(launcher):
        x = launcher.upload(np.zeros(4100 * 4, np.float32), name="x")
        y = launcher.upload(np.zeros(4200 * 4, np.float32), name="y", writable=True)
        launcher.launch("open", 33, 128, [x, y])
        return {"y": launcher.read(y)}

    assert opened(OPEN, large) is None


def test_of_a_launcher_that_follows_nothing_no_mask_is_known():
    with SimDevice("sm_90a").loaded(OPEN, "open") as launcher:
        y = launcher.upload(np.zeros(4, np.float32), name="y", writable=True)
        assert launcher.open_bits(y) is None


def test_what_is_no_memory_of_the_launcher_is_refused():
    with (
        SimDevice("sm_90a").loaded(OPEN, "open", follow_open=True) as one,
        SimDevice("sm_90a").loaded(OPEN, "o") as other,
    ):
        y = other.upload(np.zeros(4, np.float32), name="y")
        with pytest.raises(RefsimError):
            one.open_bits(y)
