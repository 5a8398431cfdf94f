"""Which bytes of tensors on the GPU the program has not written: all of an empty tensor, until operations write it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from refsim.standins.memory import MOST_POISONED, host_bytes, poison_host
from refsim.standins.session import current


def begin(tensor: Any, torch: Any, start: int = 0, *, is_watched: bool = True) -> None:
    """Poison the memory of a host tensor from a byte on, and mark it as unwritten if operations on it are watched."""
    memory, host = current().memory, _host(tensor)
    size = tensor.untyped_storage().nbytes() if host else 0
    if 0 < size <= MOST_POISONED:
        poison_host(host_bytes(host, size)[start:])
        memory.marks = {at: row for at, row in memory.marks.items() if at != host and not row[0]()}
        if is_watched:
            ended = torch.multiprocessing.reductions.StorageWeakRef(tensor.untyped_storage()).expired
            memory.marks[host] = (ended, np.arange(size) >= start)


@contextmanager
def watched(function: Any, args: Any, kwargs: Any) -> Iterator[None]:
    """Mark what an operation writes: tensors whose version changes, or the part that an assignment names."""
    marks = current().memory.marks
    given = [each for each in _tensors((*args, *kwargs.values()) if marks else ()) if _host(each) in marks]
    versions = [None if each.is_inference() else each._version for each in given]
    yield
    for each, version in zip(given, versions, strict=True):
        if version is None or each._version != version:
            part = each[args[1]] if function.__name__ == "__setitem__" and each is args[0] else each
            _wrote(part if _host(part) == _host(each) else each)


def _tensors(values: Any) -> Iterator[Any]:
    for each in values:
        if isinstance(each, tuple | list):
            yield from _tensors(each)
        elif hasattr(each, "untyped_storage"):
            yield each


def _host(tensor: Any) -> int:
    """Return where the memory of a tensor begins on the host; 0 for a tensor without memory, such as a sparse one."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except RuntimeError:
        return 0


def _wrote(tensor: Any) -> None:
    """Mark the bytes of a tensor's elements as written."""
    marks, size = current().memory.marks_of(_host(tensor), tensor.untyped_storage().nbytes()), tensor.element_size()
    if marks is not None:
        strides = [size * step for step in tensor.stride()]
        np.ndarray((*tensor.shape, size), np.bool_, marks, size * tensor.storage_offset(), (*strides, 1))[...] = False
