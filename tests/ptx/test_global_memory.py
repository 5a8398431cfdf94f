"""Device memory: declared zeros cost nothing, snapshots keep what was written, growth loses nothing."""

import subprocess
import sys

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.memory.snapshot import PAGE

# Each thread adds its number to a word of its own, 4 KB from that of the thread before it, at the end of the array.
HUGE = """.version 9.0
.target sm_90a
.address_size 64
.global .align 4 .b8 g[1000000000];
.visible .entry k(.param .u64 out)
{
    .reg .b32 %r<4>; .reg .b64 %d<6>;
    ld.param.u64 %d1, [out]; mov.u64 %d2, g; cvta.global.u64 %d2, %d2; mov.u32 %r1, %tid.x;
    mul.wide.u32 %d3, %r1, 4096; add.s64 %d4, %d2, %d3; add.s64 %d4, %d4, 999000000;
    ld.global.u32 %r2, [%d4]; add.u32 %r2, %r2, %r1; st.global.u32 [%d4], %r2;
    mul.wide.u32 %d3, %r1, 4; add.s64 %d1, %d1, %d3; st.global.u32 [%d1], %r2; ret;
}
"""
MEASURE = f"""
import resource, numpy as np
from refsim import ptx
from refsim.device.sim import SimLauncher
program = ptx.load('''{HUGE}''')
out = np.zeros(63, np.uint32)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
program.launch("k", 1, 63, [out])
launcher = SimLauncher(program, 3)
buffer = launcher.output(63, np.uint32, name="out")
launcher.launch("k", 1, 63, [buffer])
assert (out == np.arange(63)).all() and (launcher.read(buffer) == np.arange(63)).all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.ci("a process of its own with a large launch")
def test_a_declared_gigabyte_costs_what_is_touched():
    """A launch alone, then one under three schedules, in a process of its own: ru_maxrss counts KiB on Linux."""
    pytest.importorskip("resource", reason="peak memory is measured by getrusage")
    ran = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    unit = 1024 if sys.platform != "darwin" else 1
    assert int(ran.stdout) * unit < 200 << 20


def test_zeros_behind_what_is_given_count_as_written():
    memory = ptx.GlobalMemory()
    address = memory.allocate(64, "table", initial=b"\1\2")
    assert memory.read(address, 64).tolist() == [1, 2, *[0] * 62]
    assert memory.written(address, 64).all()
    poisoned = memory.allocate(64, "output")
    assert (memory.read(poisoned, 64) == 0xA5).all()
    assert not memory.written(poisoned, 64).any()


def test_growth_keeps_contents_and_who_wrote_what():
    memory = ptx.GlobalMemory()
    memory.track_writers()
    first = memory.allocate(5000, "first", initial=np.arange(5000, dtype=np.uint8))
    second = memory.allocate(100, "second")
    memory.write(second, np.full(10, 7, np.uint8))
    memory.space.writer[first - memory.space.base] = (9 << 40) + 5
    for number in range(3):
        memory.allocate(3 * PAGE << number, f"more {number}", initial=b"")
    assert (memory.read(first, 5000) == np.arange(5000, dtype=np.uint8)).all()
    assert memory.written(second, 100).tolist() == [True] * 10 + [False] * 90
    assert (memory.read(second + 10, 90) == 0xA5).all()
    assert (memory.writer(first), memory.writing_line(first), memory.writer(first + 1)) == (5, 9, -1)


def test_a_snapshot_puts_back_every_page():
    memory = ptx.GlobalMemory()
    zeros = memory.allocate(3 * PAGE, "zeros", initial=b"")
    output = memory.allocate(2 * PAGE, "output")
    before = memory.snapshot()
    later = memory.allocate(16, "later", initial=b"\7" * 16)
    memory.write(zeros + PAGE, np.array([3], np.uint8))
    memory.write(output, np.array([4], np.uint8))
    assert memory.first_difference(before) == zeros + PAGE - memory.space.base
    memory.restore(before)
    assert memory.first_difference(before) is None
    assert memory.read(zeros + PAGE, 1)[0] == 0
    assert memory.read(output, 1)[0] == 0xA5
    assert not memory.written(output, 1)[0]
    assert (memory.read(later, 16) == 7).all()


@pytest.mark.parametrize("size", [1, PAGE, 3 * PAGE + 5])
def test_a_difference_is_what_somebody_wrote(size):
    memory = ptx.GlobalMemory()
    output = memory.allocate(size, "output")
    position = output - memory.space.base + size - 1
    before = memory.snapshot()
    memory.space.bytes[position] ^= 1
    assert memory.first_difference(before) is None, "nobody wrote that byte"
    memory.write(output + size - 1, np.array([0xA5], np.uint8))
    assert memory.first_difference(before) == position, "written now, and not then"
    then = memory.snapshot()
    memory.write(output + size - 1, np.array([1], np.uint8))
    assert memory.first_difference(then) == position


def test_an_access_to_several_buffers_asks_only_for_what_nobody_wrote():
    text = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 table)
{
    .reg .b32 %r<4>; .reg .b64 %d<6>;
    ld.param.u64 %d1, [table]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 8; add.s64 %d3, %d1, %d2;
    ld.global.u64 %d4, [%d3]; ld.global.u32 %r2, [%d4]; st.global.u32 [%d4], %r2; ret;
}
"""
    memory = ptx.GlobalMemory()
    zeros, given = memory.allocate(64, "zeros", initial=b""), memory.allocate(64, "given", initial=b"\5" * 64)
    unread = memory.allocate(64, "unread")
    pointers = np.array([zeros, given], np.uint64)
    ptx.load(text).launch("k", 1, 2, [pointers], memory=memory)
    with pytest.raises(RefsimError, match="unread"):
        ptx.load(text).launch("k", 1, 3, [np.array([zeros, given, unread], np.uint64)], memory=memory)


def test_the_latest_buffer_of_a_name_is_found():
    memory = ptx.GlobalMemory()
    assert memory.named("x") is None
    memory.allocate(8, "x")
    address = memory.allocate(8, "x")
    region = memory.named("x")
    assert region is not None
    assert region.start == address - memory.space.base
