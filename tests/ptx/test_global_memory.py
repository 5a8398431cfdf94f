"""Device memory: declared zeros cost nothing, snapshots keep what was written, growth loses nothing."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.memory.space import LARGE_BYTES, PAGE, AccessError

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


ROWS, COLUMNS = 3 << 17, 1 << 13
OFFSETS = """
extern "C" __global__ void copy(const unsigned char* x, unsigned char* y, int rows, long long columns) {
  int row = rows - 1 - blockIdx.x;
#ifdef WRONG
  int at = row * (int)columns + threadIdx.x;
#else
  long long at = row * columns + threadIdx.x;
#endif
  y[at] = x[at] + 1;
}
"""
RUN = f"""
import resource, numpy as np
from pathlib import Path
from refsim import device
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with device.open("sim").launcher(Path("copy.cu")) as launcher:
    x = launcher.upload(np.broadcast_to(np.arange({COLUMNS}, dtype=np.uint8), ({ROWS}, {COLUMNS})), name="x")
    y = launcher.output({ROWS * COLUMNS}, np.uint8, name="y")
    z = launcher.upload(np.zeros({ROWS * COLUMNS}, np.uint8), name="z", writable=True)
    for buffer in (y, z):
        launcher.launch("copy", 2, 32, [x, buffer, np.int32({ROWS}), np.int64({COLUMNS})])
    got, zeros = (launcher.read(buffer).reshape({ROWS}, {COLUMNS}) for buffer in (y, z))
    assert (got[-2:, :32] == np.arange(1, 33)).all() and (zeros[-2:, :32] == np.arange(1, 33)).all()
    assert got[0, 0] == got[-3, 5] == got[-1, 32] == 0xA5 and not zeros[-3].any() and not zeros[-1, 32:].any()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.ci("a process of its own with buffers beyond 2 GiB")
@pytest.mark.parametrize("defines", ["", "#define WRONG\n"])
def test_buffers_beyond_2_gib_cost_what_is_touched(defines: str, tmp_path: Path) -> None:
    """A right and a wrong offset of 64 bits differ, in a process of its own: ru_maxrss counts KiB on Linux."""
    pytest.importorskip("resource", reason="peak memory is measured by getrusage")
    (tmp_path / "copy.cu").write_text(defines + OFFSETS)
    ran = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=False, cwd=tmp_path)
    if defines:
        assert "out-of-bounds" in ran.stderr
    else:
        assert ran.returncode == 0, ran.stderr
        assert int(ran.stdout) < 400 << 10


VIEWS = {
    "bytes": np.broadcast_to(np.arange(100, dtype=np.uint8), (LARGE_BYTES // 100 + 1, 100)),
    "words": np.broadcast_to(np.arange(7, dtype=np.uint32)[:, None], (7, LARGE_BYTES // 28 + 3)),
    "pairs": np.broadcast_to(np.float16(1.5), (LARGE_BYTES // 2 + 11,)),
    "zeros": np.zeros(LARGE_BYTES + 5, np.uint8),
    "mostly zeros": np.where(np.arange(LARGE_BYTES + 99) % (9 << 20) == 1234, np.uint8(7), np.uint8(0)),
    "numbers": np.arange(LARGE_BYTES // 4 + 1, dtype=np.uint32),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("offset", [0, 3 << 4])
def test_a_large_buffer_holds_what_was_uploaded(name: str, offset: int) -> None:
    given = VIEWS[name]
    memory = ptx.GlobalMemory()
    memory.allocate(100, "before", initial=b"x" * 100)
    address = memory.allocate(given.nbytes + 40, "x", initial=given, offset=offset)
    whole = np.concatenate([np.ascontiguousarray(given).reshape(-1).view(np.uint8), np.zeros(40, np.uint8)])
    assert (memory.read(address, len(whole)) == whole).all()
    assert memory.written(address, len(whole)).all()
    for low, high in ((PAGE - 7, PAGE + 9), (5, 3 * PAGE + 1), (LARGE_BYTES - 20, LARGE_BYTES + 5)):
        assert (memory.read(address + low, high - low) == whole[low:high]).all()
    before = memory.snapshot()
    positions = np.array([0, PAGE - 1, 5 * PAGE, LARGE_BYTES - 3]) + address - memory.space.base
    memory.space.check(positions, 1, store=False)
    assert (memory.space.bytes[positions] == whole[positions - address + memory.space.base]).all()
    assert memory.first_difference(before) is None
    memory.space.put(memory.space.region_at(int(positions[0])), positions[2:3], whole[:1] + np.uint8(99), 1)
    assert memory.first_difference(before) == positions[2]
    memory.restore(before)
    assert memory.first_difference(before) is None
    assert (memory.read(address, len(whole)) == whole).all()
    memory.write(address + 2 * PAGE, np.arange(9, dtype=np.uint8))
    whole[2 * PAGE : 2 * PAGE + 9] = np.arange(9)
    assert (memory.read(address, len(whole)) == whole).all()


def test_a_large_output_is_poison_until_it_is_written_and_its_place_is_used_again() -> None:
    memory = ptx.GlobalMemory()
    address = memory.allocate(LARGE_BYTES + 3 * PAGE, "y")
    memory.allocate(1, "behind")
    assert not memory.written(address, LARGE_BYTES).any()
    assert (memory.read(address, LARGE_BYTES) == 0xA5).all()
    assert (memory.read(address + PAGE, LARGE_BYTES) == 0xA5).all(), "which begins in a page that nobody touched"
    before = memory.snapshot()
    at = np.array([7 * PAGE]) + address - memory.space.base
    memory.space.check(at, 1, store=False)
    with pytest.raises(AccessError, match="never written"):
        memory.space.check_initialised(at, at, 1)
    memory.space.put(memory.space.region_at(int(at[0])), at, np.uint8([5]), 1)
    assert np.flatnonzero(memory.written(address, LARGE_BYTES)).tolist() == [7 * PAGE]
    assert memory.first_difference(before) == at[0]
    memory.free(address)
    zeros = memory.allocate(LARGE_BYTES, "z", initial=b"")
    assert zeros == address
    assert not memory.read(zeros, LARGE_BYTES).any()
    assert memory.written(zeros, LARGE_BYTES).all()
    again = memory.allocate(LARGE_BYTES, "w")
    assert (memory.read(again, LARGE_BYTES) == 0xA5).all()


def test_a_view_is_copied_when_it_is_uploaded() -> None:
    memory, base = ptx.GlobalMemory(), np.array([3], np.uint8)
    address = memory.allocate(LARGE_BYTES, "x", initial=np.broadcast_to(base, LARGE_BYTES))
    base[0] = 4
    assert (memory.read(address, LARGE_BYTES) == 3).all()


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
