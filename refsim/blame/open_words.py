"""Find the elements of an output that depend on unspecified bits: rerun the host's code with those bits inverted."""

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
    """Every read that the host made of a simulated launcher, in order, with a mask of its unspecified bits.

    The mask is None where the launcher does not know it. The note replaces the launcher's `read`.
    """

    launcher: SimLauncher
    reads: list[tuple[NDArray[Any], NDArray[np.uint8] | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.read = self.launcher.read
        self.launcher.read = self.noted  # type: ignore[method-assign]

    def noted(self, buffer: Buffer) -> NDArray[Any]:
        """Read a buffer as `SimLauncher.read` does, and remember the values and their mask."""
        values = self.read(buffer)
        self.reads.append((values.copy(), self.launcher.open_bits(buffer)))
        return values

    def open_words(self, run: Callable[[Launcher], Words], words: Words) -> dict[str, NDArray[np.bool_]] | None:
        """Return for each output a mask of the elements that depend on unspecified bits; None where unknown.

        `run` is the function that gave `words` before. It runs again on reads whose unspecified bits are all inverted;
        an element that changes depends on them.
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
            return None  # the host branches on what it reads, so anything may depend on it
        if other.keys() != words.keys() or any(other[name].shape != each.shape for name, each in words.items()):
            return None
        return {name: np.asarray(other[name] != each) for name, each in words.items()}


@dataclass
class _Replay:
    """A launcher that executes nothing: it returns the buffers of an earlier run, and the values given as `reads`."""

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
