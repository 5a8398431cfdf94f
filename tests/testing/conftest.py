"""A device made of NumPy: entries are Python functions on views of one flat memory with guard bands around buffers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refsim.errors import Kind, RefsimError
from refsim.kernels import Buffer, Findings, Kernel, Promise
from refsim.testing import strategies as rst
from refsim.testing.recipes import Tensor

GUARD = 64
NOTHING = Findings()
BASE = 1 << 32


@dataclass
class FakeLauncher:
    entries: dict[str, Callable[..., None]]
    target: str = "numpy"
    memory: np.ndarray = field(default_factory=lambda: np.full(1 << 23, 0xA5, np.uint8))
    top: int = 0
    buffers: list[Buffer] = field(default_factory=list)
    seen: Findings = NOTHING
    sees_owners: bool = True

    def output(self, count: int, dtype: Any, *, name: str, misalign_bytes: int = 0) -> Buffer:
        start = -(-(self.top + GUARD) // 256) * 256 + misalign_bytes
        buffer = Buffer(name, BASE + start, int(count), np.dtype(dtype))
        self.top = start + buffer.count * buffer.dtype.itemsize + GUARD
        self.buffers.append(buffer)
        return buffer

    def upload(self, array: np.ndarray, *, name: str, misalign_bytes: int = 0, writable: bool = False) -> Buffer:
        buffer = self.output(array.size, array.dtype, name=name, misalign_bytes=misalign_bytes)
        self.view(buffer)[:] = array.reshape(-1)
        return buffer

    def view(self, buffer: Buffer, beyond: int = 0) -> np.ndarray:
        """The elements of a buffer, and `beyond` more: what a kernel with a wrong bound reaches."""
        start, count = buffer.address - BASE, buffer.count + beyond
        return np.ndarray((count,), buffer.dtype, self.memory.data, start)

    def launch(self, entry: str, grid: tuple, block: tuple, args: Any, shared_bytes: int = 0) -> None:
        self.entries[entry](self, *args)
        for buffer in self.buffers:
            start, end = buffer.address - BASE, buffer.address - BASE + buffer.count * buffer.dtype.itemsize
            for side, band in (("before", self.memory[start - 8 : start]), ("after", self.memory[end : end + 8])):
                if (band != 0xA5).any():
                    raise RefsimError("guard-violated", f"{entry} wrote {side} buffer {buffer.name!r}", kind=Kind.FAULT)

    def findings(self) -> Findings:
        return replace(self.seen, owner_of=self.owner_of if self.sees_owners else None)

    def owner_of(self, buffer: Buffer, index: int) -> dict[str, object]:
        return {"block": index // 32, "thread": index % 32, "address": buffer.address + index * buffer.dtype.itemsize}

    def read(self, buffer: Buffer) -> np.ndarray:
        return self.view(buffer).copy()


@dataclass
class FakeDevice:
    entries: dict[str, Callable[..., None]]
    seen: Findings = NOTHING
    sees_owners: bool = True
    name: str = "fake"
    target: str = "numpy"
    launches: int = 0
    is_simulated: bool = False

    def describe(self) -> dict[str, str]:
        return {"device": "NumPy", "target": self.target}

    def probing(self) -> "FakeDevice":
        return self

    @contextmanager
    def launcher(
        self, kernel_file: Path | None, *, count_banks: bool = False, follow_open: bool = False
    ) -> Iterator[FakeLauncher]:
        self.launches += 1
        seen = self.seen if count_banks else replace(self.seen, conflicts=())
        yield FakeLauncher(self.entries, self.target, seen=seen, sees_owners=self.sees_owners)


def halve(launcher: FakeLauncher, x: Buffer, n: np.uint64, y: Buffer) -> None:
    """The right kernel: y = x / 2 in float32, rounded to bf16 once, like the oracle."""
    with np.errstate(all="ignore"):
        half = launcher.view(x).view(ml_dtypes.bfloat16).astype(np.float32) / 2
        launcher.view(y)[:] = half.astype(ml_dtypes.bfloat16).view(np.uint16)


def _run(launcher: FakeLauncher, problem: Tensor) -> dict[str, np.ndarray]:
    x = launcher.upload(problem.codes(), name="x", misalign_bytes=problem.misalign_bytes)
    y = launcher.output(problem.n, np.uint16, name="y")
    launcher.launch("halve", (1,), (32,), [x, np.uint64(problem.n), y])
    return {"y": launcher.read(y)}


def _oracle(problem: Tensor) -> dict[str, np.ndarray]:
    with np.errstate(all="ignore"):
        half = problem.codes().view(ml_dtypes.bfloat16).astype(np.float32) / 2
        return {"y": half.astype(ml_dtypes.bfloat16).view(np.uint16)}


@pytest.fixture
def halve_kernel() -> Kernel:
    """y = x / 2 on bf16: a kernel of one line, so that what fails in these tests is the campaign."""
    return Kernel(
        "halve",
        _oracle,
        rst.tensors("bf16", max_size=3000),
        _run,
        {"y": "bf16"},
        recipe=Tensor,
        corpus=(Tensor(0, "bf16"), Tensor(9, "bf16", "bits")),
        promise=Promise.BITWISE,
        source="// FakeDevice runs a Python function",
        entries=("halve",),
    )


@pytest.fixture
def fake_device() -> Callable[..., FakeDevice]:
    """Makes a device that runs `entry` in place of halve."""
    return lambda entry=halve, *, sees_owners=True, **seen: FakeDevice({"halve": entry}, Findings(**seen), sees_owners)


@pytest.fixture
def numpy_device() -> Callable[..., FakeDevice]:
    """Makes a device that runs the given entries."""
    return FakeDevice


@pytest.fixture
def right_halve() -> Callable[..., None]:
    return halve
