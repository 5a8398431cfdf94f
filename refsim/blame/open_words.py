"""Which words of an output hang on bits that arithmetic left open: the host's part of a run again, with those bits turned."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.device.sim import SimLauncher
from refsim.errors import RefsimError
from refsim.kernels import Buffer, Launcher

Words = Mapping[str, NDArray[Any]]


@dataclass
class ReadNote:
    """What the host read of a simulated launcher, in order, with a mask of the open bits of each; None where nobody can tell."""

    launcher: SimLauncher
    reads: list[tuple[NDArray[Any], NDArray[np.uint8] | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.read = self.launcher.read
        self.launcher.read = self.noted  # type: ignore[method-assign]

    def noted(self, buffer: Buffer) -> NDArray[Any]:
        """`SimLauncher.read`, remembered."""
        values = self.read(buffer)
        self.reads.append((values.copy(), self.launcher.open_bits(buffer)))
        return values

    def open_words(self, run: Callable[[Launcher], Words], words: Words) -> dict[str, NDArray[np.bool_]] | None:
        """For each output which of its words hang on open bits; None where nobody can tell.

        `run` is what gave `words` before. A word is open that comes out otherwise when all open bits of all reads are turned:
        of a copy that is every word with an open bit, of a host's own arithmetic what that makes of them.
        """
        masks = [mask for _, mask in self.reads if mask is not None]
        if len(masks) < len(self.reads):
            return None
        if not any(mask.any() for mask in masks):
            return {name: np.zeros(each.shape, np.bool_) for name, each in words.items()}
        turned = (
            (values.view(np.uint8) ^ mask).view(values.dtype)
            for values, mask in ((values, mask) for values, mask in self.reads if mask is not None)
        )
        try:
            other = run(_Replay(self.launcher.target, iter(self.launcher.buffers), turned))
        except (RefsimError, StopIteration):
            return None  # the host decides by what it reads: anything may hang on it
        if other.keys() != words.keys() or any(other[name].shape != each.shape for name, each in words.items()):
            return None
        return {name: np.asarray(other[name] != each) for name, each in words.items()}


@dataclass
class _Replay:
    """A launcher that executes nothing: it gives the buffers of a run again, and what is to be read of them."""

    target: str
    buffers: Iterator[Buffer]
    reads: Iterator[NDArray[Any]]

    def upload(self, array: NDArray[Any], **how: Any) -> Buffer:
        return next(self.buffers)

    def output(self, count: int, dtype: Any, **how: Any) -> Buffer:
        return next(self.buffers)

    def launch(self, *given: Any, **how: Any) -> None:
        pass

    def read(self, buffer: Buffer) -> NDArray[Any]:
        return next(self.reads)

    def __getattr__(self, name: str) -> Any:
        raise RefsimError("unsupported-feature", f"a host function asks for {name}")
