"""Device memory that comes and goes: what is given back is used again, what is not is told, copies stay within allocations."""

import re
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import refsim
import refsim_run
from refsim.errors import RefsimError
from refsim.ptx import GlobalMemory
from refsim.ptx.memory import global_memory
from refsim.ptx.memory.space import LARGE_BYTES, PAGE
from refsim_run.memory import DeviceMemory, caller


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
    with pytest.raises(RefsimError, match="bad-address"):
        memory.free(address + offset)
    memory.free(address)
    with pytest.raises(RefsimError, match="bad-address"):
        memory.free(address)


def test_a_copy_brings_unwritten_bytes_with_it():
    memory = DeviceMemory()
    source, to = memory.allocate(8, "test"), memory.allocate(8, "test", bytes_of(range(8)))
    memory.write(source, bytes_of([9, 9]))
    memory.copy(to, source, 4)
    assert memory.memory.written(to, 8).tolist() == [True, True, False, False, True, True, True, True]
    assert memory.read(to, 8)[[0, 1, 4]].tolist() == [9, 9, 4]


def test_an_array_of_a_large_buffer_has_its_contents() -> None:
    """Its pages get their contents when the array is made: also those below the first element of a negative stride."""
    memory = DeviceMemory()
    address = memory.allocate(LARGE_BYTES, "test", np.broadcast_to(np.uint8(7), LARGE_BYTES))
    rows = memory.array(address + 9 * PAGE - 2, (3, 4), np.uint8, (-PAGE, 1))
    assert (rows == 7).all()
    rows[:] = 5
    assert memory.read(address + 7 * PAGE - 3, 6).tolist() == [7, 5, 5, 5, 5, 7]


@pytest.mark.parametrize(
    "act",
    [
        lambda memory, at: memory.read(at, 9),
        lambda memory, at: memory.write(at + 4, bytes_of(range(5))),
        lambda memory, at: memory.fill(at, b"ab", 5),
        lambda memory, at: memory.copy(at, at + 8, 1),
        lambda memory, at: memory.read(12345, 1),
    ],
)
def test_a_copy_leaves_no_allocation(act):
    memory = DeviceMemory()
    address = memory.allocate(8, "test", bytes_of(range(8)))
    with pytest.raises(RefsimError, match="bad-address"):
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
    with pytest.raises(RefsimError, match="bad-address"):
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


def test_memory_that_lies_idle_is_not_used_again_and_is_told_by_its_name():
    memory = GlobalMemory()
    first, second, other, last = (memory.allocate(64, name) for name in ("first", "second", "other", "last"))
    memory.free(first, idle=True)
    assert memory.allocate(64, "third") > last
    memory.free(other)
    assert memory.allocate(64, "fourth") == other  # and not where the first lies idle
    assert memory.space.describe(first - memory.space.base + 4, 4) == "byte 4 of first (64 B), which was freed"
    assert memory.space.describe(first - memory.space.base + 64, 4) == "below every global buffer"
    assert memory.space.describe(second - memory.space.base + 64, 4) == "0 B past the end of second (64 B)"


def test_the_oldest_that_lies_idle_is_used_again_when_there_is_much(monkeypatch):
    monkeypatch.setattr(global_memory, "IDLE", 2)
    memory = GlobalMemory()
    addresses = [memory.allocate(512, f"buffer {number}") for number in range(4)]
    for address in addresses[:2]:
        memory.free(address, idle=True)
    assert memory.allocate(512, "new") > addresses[3]
    memory.free(addresses[2], idle=True)
    assert memory.allocate(512, "newer") == addresses[0]
    monkeypatch.setattr(global_memory, "IDLE_BYTES", 1023)
    memory.free(addresses[3], idle=True)
    assert [each.name for each in memory.space.freed] == ["buffer 3"]


def told_by(act):
    """What a memory tells while something is done to 8 bytes of it: whether it is wrong, the code, the place."""
    found = []
    memory = DeviceMemory(lambda error, is_wrong=True: found.append((is_wrong, error.code, error.where)))
    address = memory.allocate(8, "test")
    try:
        act(memory, address)
    except RefsimError as error:
        assert found[-1] == (True, error.code, error.where)
    return [(is_wrong, code, where.partition(":")[0]) for is_wrong, code, where in found]


@pytest.mark.parametrize(
    ("act", "wanted"),
    [
        (lambda memory, at: (memory.free(at), memory.free(at)), [(True, "bad-address")]),
        (lambda memory, at: memory.free(at + 1), [(True, "bad-address")]),
        (lambda memory, at: memory.write(at, bytes_of(range(9))), [(True, "bad-address")]),
        (lambda memory, at: (memory.write(at, bytes_of(range(7))), memory.read(at, 8)), [(False, "uninitialised")]),
        (lambda memory, at: (memory.write(at, bytes_of(range(7))), memory.read(at, 7)), []),
    ],
)
def test_what_the_program_does_wrong_is_told_with_its_line(act, wanted):
    assert told_by(act) == [(*each, Path(__file__).name) for each in wanted]


def test_a_free_of_freed_memory_says_what_it_was():
    memory = DeviceMemory()
    address = memory.allocate(8, "test")
    memory.free(address)
    with pytest.raises(RefsimError, match=r"byte 0 of allocation 1 of test \(8 B\), which was freed"):
        memory.free(address)


def test_held_bytes_are_those_of_later_allocations():
    memory = DeviceMemory()
    first = memory.allocate(8, "test")
    memory.allocate(16, "test")
    memory.free(first)
    assert (memory.held_since(1), memory.held_since(0), memory.held_since(2)) == (16, 16, 0)


@pytest.mark.parametrize("package", [np, refsim, refsim_run], ids=lambda package: package.__name__)
def test_the_line_is_that_of_the_program_and_not_of_what_is_installed(package):
    sorted_by = compile("def call(act): return act()", f"{package.__path__[0]}/installed.py", "exec")
    names = {}
    exec(sorted_by, names)
    assert re.fullmatch(rf"{Path(__file__).name}:\d+", names["call"](caller))


def test_threads_take_turns():
    memory, found = DeviceMemory(), []

    def use(number):
        for size in range(1, 40):
            address = memory.allocate(1000 * size, "test")
            memory.write(address, np.full(1000 * size, number, np.uint8))
            found.append((memory.read(address, 1000 * size) == number).all())
            memory.free(address)

    threads = [Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(found), all(found), memory.live) == (156, True, {})


def test_what_is_freed_while_memory_is_in_use_goes_afterwards():
    memory = DeviceMemory()
    address = memory.allocate(8, "test", bytes_of(range(8)))
    with memory.alone():
        memory.free(address)
        assert (memory.live, memory.holds(address)) == ({}, True)
    assert not memory.holds(address)


def test_a_child_tells_of_nothing_that_is_its_parents():
    memory = DeviceMemory()
    old = memory.allocate(8, "test")
    memory.forget()
    assert (memory.held(), memory.total_bytes, memory.count - memory.forgotten) == ([], 0, 0)
    memory.allocate(16, "test")
    memory.free(old)
    assert [held.bytes for held in memory.held()] == [16]
