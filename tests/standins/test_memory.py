"""Device memory that comes and goes: what is given back is used again, what is not is told, copies stay within allocations."""

import re
from pathlib import Path

import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim.ptx import GlobalMemory
from refsim.standins.memory import DeviceMemory


def bytes_of(values):
    return np.asarray(values, np.uint8)


def test_what_is_freed_is_used_again_and_is_poison_then():
    memory = GlobalMemory()
    first, second = (memory.allocate(4096, name, initial=b"\1" * 4096) for name in ("first", "second"))
    assert memory.free(first) == 4096
    assert memory.named("first") is None
    again = memory.allocate(4096, "again")
    assert again == first
    assert not memory.written(again, 4096).any()
    assert memory.read(second, 4096).tolist() == [1] * 4096
    assert [region.name for region in memory.space.regions] == ["again", "second"]


def test_a_smaller_buffer_in_a_hole_is_zero_behind_what_is_given():
    memory = GlobalMemory()
    first = memory.allocate(4096, "first", initial=b"\7" * 4096)
    memory.allocate(16, "wall")
    memory.free(first)
    small = memory.allocate(64, "small", initial=b"\1\2")
    assert small == first
    assert memory.read(small, 64).tolist() == [1, 2, *[0] * 62]
    assert memory.written(small, 64).all()


def test_a_hole_that_is_too_small_is_left():
    memory = GlobalMemory()
    first = memory.allocate(256, "first")
    wall = memory.allocate(16, "wall")
    memory.free(first)
    assert memory.allocate(2048, "large") > wall


@pytest.mark.parametrize("offset", [1, 255, 5000])
def test_only_the_beginning_of_a_buffer_is_freed(offset):
    memory = GlobalMemory()
    address = memory.allocate(256, "buffer")
    with pytest.raises(RefsimError, match="bad-free"):
        memory.free(address + offset)
    memory.free(address)
    with pytest.raises(RefsimError, match="bad-free"):
        memory.free(address)


def test_a_copy_brings_unwritten_bytes_with_it():
    memory = DeviceMemory()
    source, to = memory.allocate(8, "test"), memory.allocate(8, "test", bytes_of(range(8)))
    memory.write(source, bytes_of([9, 9]))
    memory.copy(to, source, 4)
    assert memory.memory.written(to, 8).tolist() == [True, True, False, False, True, True, True, True]
    assert memory.read(to, 8)[[0, 1, 4]].tolist() == [9, 9, 4]


@pytest.mark.parametrize("act", [
    lambda memory, at: memory.read(at, 9),
    lambda memory, at: memory.write(at + 4, bytes_of(range(5))),
    lambda memory, at: memory.fill(at, b"ab", 5),
    lambda memory, at: memory.copy(at, at + 8, 1),
    lambda memory, at: memory.read(12345, 1),
])  # fmt: skip
def test_a_copy_leaves_no_allocation(act):
    memory = DeviceMemory()
    address = memory.allocate(8, "test", bytes_of(range(8)))
    with pytest.raises(RefsimError, match="bad-copy"):
        act(memory, address)
    assert memory.read(address, 8).tolist() == list(range(8))


def test_what_is_held_is_told_by_its_line():
    memory = DeviceMemory()
    kept = [memory.allocate(100, "test") for _ in range(2)]
    memory.free(memory.allocate(1000, "test"))
    (held,) = memory.held()
    assert (held.package, held.count, held.bytes, memory.peak_bytes) == ("test", 2, 200, 1200)
    assert re.fullmatch(rf"{Path(__file__).name}:\d+", held.place)
    for address in kept:
        memory.free(address)
    assert memory.held() == []
    with pytest.raises(RefsimError, match="bad-free"):
        memory.free(kept[0])


def test_host_memory_is_on_the_device_for_as_long_as_it_is_mapped():
    memory, array = DeviceMemory(), np.arange(6, dtype=np.uint8)
    with memory.mapped([(0x7F0000000104, array)], "test") as (address,):
        assert address % 256 == 4
        assert memory.read(address, 6).tolist() == list(range(6))
        region = memory.memory.space.region_at(address - memory.memory.space.base)
        memory.memory.space.note_stored(region)  # as a kernel does
        memory.memory.write(address, bytes_of([7]))
    assert array.tolist() == [7, 1, 2, 3, 4, 5]
    assert not memory.holds(address)
