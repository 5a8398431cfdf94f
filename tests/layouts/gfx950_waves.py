"""What a wave of gfx950 has: its program, its registers, memory, and what is on its way to them.

Source: LLVM, AMDGPU user guide (the text of a kernel, its arguments); AMD CDNA4 ISA.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim import layouts

LANES, POISON = 64, 0xDEADBEEF
KERNARG, BASE, PAGE = 0x1000, 0x100000, 0x1000
Words = NDArray[np.uint32]
Place = Callable[[NDArray[Any], NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]]


class KernelFault(Exception):  # noqa: N818
    """The kernel does what it must not."""


@dataclass(frozen=True)
class Instruction:
    opcode: str
    operands: tuple[str, ...]
    modifiers: dict[str, str]

    def number(self, name: str) -> int:
        return int(self.modifiers.get(name, "0"), 0)

    def flags(self, name: str) -> list[int]:
        return [int(each) for each in self.modifiers.get(name, "[0,0,0]").strip("[]").split(",")]


@dataclass(frozen=True)
class Program:
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    ids: int  # the scalar register of the first workgroup id


def parsed(assembly: str, entry: str) -> Program:
    """The instructions from the entry to the end of the function, without the preloading of arguments."""
    body = assembly[assembly.index(f"\n{entry}:") : assembly.index(f".size\t{entry}")]
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in (raw.split(";")[0].strip() for raw in body.splitlines()):
        if line.endswith(":"):
            labels[line[:-1]] = len(found)
        elif line and not line.startswith("."):
            opcode, _, rest = line.partition(" ") if " " in line.split("\t")[0] else line.partition("\t")
            found.append(_instruction(opcode, rest))
    count = re.search(r"\.amdhsa_user_sgpr_count (\d+)", assembly)
    assert count is not None
    return Program(tuple(found), labels, int(count[1]))


def _instruction(opcode: str, rest: str) -> Instruction:
    modifiers = dict(re.findall(r"([a-z_0-9]+):(\[[^\]]*\]|0x[0-9a-f]+|-?\d+)(?![\d:]*\])", rest))
    plain = re.sub(r"\b[a-z_0-9]+:(\[[^\]]*\]|0x[0-9a-f]+|-?\d+)(?![\d:]*\])", "", rest)
    return Instruction(
        re.sub("_e(32|64)$", "", opcode), tuple(x.strip() for x in plain.split(",") if x.strip()), modifiers
    )


@dataclass(frozen=True)
class Maps:
    """Which lane holds what of an MFMA: `operand`, `scale` and `result` as fragments of those names, `byte` what OPSEL chooses,
    `low_first`: the order of two FP4 codes in a byte."""

    operand: Callable[[str], Any] = layouts.fragment
    scale: Callable[[str], Any] = layouts.fragment
    result: Callable[[str], Any] = layouts.fragment
    byte: Callable[[int, int], int] = lambda low, high: low + 2 * high
    low_first: bool = True


@dataclass(frozen=True)
class Held:
    """A map of one's own: (lane, value) to (row, column)."""

    coord: Place
    values: int


def every(lanes: int, values: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.arange(lanes)[:, None], np.arange(values)[None, :]


@dataclass
class Memory:
    """Bytes that are there, from `base` on."""

    bytes: NDArray[np.uint8]
    there: NDArray[np.bool_]
    base: int = 0

    def at(self, addresses: NDArray[Any], size: int) -> NDArray[np.int64]:
        found = addresses.astype(np.int64)[..., None] - self.base + np.arange(size)
        if found.min() < 0 or found.max() >= len(self.bytes):
            raise KernelFault(f"address {int(addresses.min()):#x} to {int(addresses.max()):#x}")
        return found

    def load(self, addresses: NDArray[Any], size: int) -> NDArray[np.uint8]:
        at = self.at(addresses, size)
        if not self.there[at].all():
            raise KernelFault(f"bytes that nobody wrote, at {int(addresses.min()):#x} to {int(addresses.max()):#x}")
        return self.bytes[at]

    def store(self, addresses: NDArray[Any], content: NDArray[np.uint8], *, new: bool) -> None:
        at = self.at(addresses, content.shape[-1])
        if not new and not self.there[at].all():
            raise KernelFault("a store outside the buffers")
        self.bytes[at], self.there[at] = content, True


@dataclass
class Machine:
    """The memory that the waves of a workgroup share."""

    program: Program
    memory: Memory
    maps: Maps
    lds: Memory = field(default_factory=lambda: Memory(np.zeros(1 << 16, np.uint8), np.zeros(1 << 16, np.bool_)))


@dataclass
class Wave:
    """Registers and what is on its way to them."""

    machine: Machine
    scalars: Words
    banks: dict[str, Words]
    at: int = 0
    scc: int = 0
    queues: dict[str, list[tuple[Callable[[], None], frozenset[str]]]] = field(
        default_factory=lambda: {"vmcnt": [], "lgkmcnt": []}
    )

    # -- operands

    def names(self, operand: str) -> list[tuple[str, int]]:
        match = re.fullmatch(r"([vas])(?:(\d+)|\[(\d+):(\d+)\])", operand)
        if match is None:
            return []
        first, last = (int(match[2]),) * 2 if match[2] else (int(match[3]), int(match[4]))
        return [(match[1], each) for each in range(first, last + 1)]

    def words(self, operand: str) -> Words:
        """The registers of an operand (n, lanes), or a constant."""
        names = self.names(operand)
        if not names:
            number = int(operand, 0)
            return np.full((1, LANES), number & 0xFFFFFFFF, np.uint32)
        self._arrived(names)
        return np.stack([self._register(bank, index) for bank, index in names])

    def wide(self, operand: str) -> NDArray[np.uint64]:
        words = self.words(operand).astype(np.uint64)
        if len(words) == 1:  # a constant, with its sign
            return words[0] if int(words[0, 0]) < 1 << 31 else words[0] | np.uint64(0xFFFFFFFF << 32)
        return words[0] | words[1] << np.uint64(32)

    def _register(self, bank: str, index: int) -> Words:
        return np.full(LANES, self.scalars[index]) if bank == "s" else self.banks[bank][index]

    def _arrived(self, names: Sequence[tuple[str, int]]) -> None:
        late = {f"{bank}{index}" for bank, index in names}
        for queue in self.queues.values():
            if any(late & waited for _, waited in queue):
                raise KernelFault(f"instruction {self.at}: {sorted(late)} has not arrived")

    def put(self, operand: str, words: NDArray[Any]) -> None:
        names = self.names(operand)
        self._arrived(names)
        for (bank, index), value in zip(names, words, strict=True):
            if bank == "s":
                self.scalars[index] = np.ravel(value)[0]
            else:
                self.banks[bank][index] = value

    def put_wide(self, operand: str, value: NDArray[np.uint64]) -> None:
        self.put(operand, np.stack([value & np.uint64(0xFFFFFFFF), value >> np.uint64(32)]).astype(np.uint32))

    def put_bytes(self, operand: str, content: NDArray[np.uint8]) -> None:
        self.put(operand, np.ascontiguousarray(content).view(np.uint32).T)

    # -- what is on its way

    def later(self, counter: str, effect: Callable[[], None], operand: str = "") -> None:
        names = frozenset(f"{bank}{index}" for bank, index in self.names(operand))
        self.queues[counter].append((effect, names))

    def wait(self, counter: str, left: int) -> None:
        while len(self.queues[counter]) > left:
            effect, _ = self.queues[counter].pop(0)
            effect()
