"""Which entries a problem of a declared kernel launches, found without executing any."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.kernels import Buffer, Kernel, Struct

_FIRST, _APART = 1 << 32, 4096


@dataclass
class EntryNames:
    """A launcher that executes nothing: it notes entries, and the bytes of all buffers; what is read of them is zeros."""

    target: str
    entries: list[str] = field(default_factory=list)
    bytes: int = 0
    address: int = _FIRST

    def upload(self, array: NDArray[Any], *, name: str, **how: Any) -> Buffer:
        return self.output(np.size(array), np.asarray(array).dtype, name=name)

    def output(self, count: int, dtype: Any, *, name: str, **how: Any) -> Buffer:
        element = np.dtype(dtype)
        size = int(count) * element.itemsize
        made = Buffer(name, self.address, int(count), element)
        self.bytes += size
        self.address += -(-size // _APART) * _APART + _APART
        return made

    def launch(self, entry: str, *given: Any, **how: Any) -> None:
        self.entries.append(entry)

    def read(self, buffer: Buffer) -> NDArray[Any]:
        return np.zeros(buffer.count, buffer.dtype)

    def encode(self, tensor_map: object) -> Struct:
        return Struct(bytes(128), 64)


def covering(kernel: Kernel, target: str) -> tuple[int, ...]:
    """Numbers of problems of the kernel's corpus, one for each entry: of those that launch it the middle one by bytes."""
    launching: dict[str, list[tuple[int, int]]] = {}
    for number, problem in enumerate(kernel.corpus):
        launcher: Any = EntryNames(target)
        kernel.run(launcher, problem)
        for entry in launcher.entries:
            launching.setdefault(entry, []).append((launcher.bytes, number))
    return tuple(dict.fromkeys(_middle(found) for found in launching.values()))


def _middle(found: Sequence[tuple[int, int]]) -> int:
    return sorted(found)[len(found) // 2][1]
