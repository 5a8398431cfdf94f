"""Triton's tensor descriptors: the parameters that its host code passes for one, as a tensor map or as numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, get_args

import numpy as np

from refsim.errors import RefsimError
from refsim.integers import is_whole
from refsim.kernels import Buffer
from refsim.layouts import tensor_map
from refsim.layouts.tma import DATA_TYPES, NAN_REQUEST, SWIZZLE_MODES, ZEROS
from refsim.render.cards import FieldsCard

Padding = Literal["zero", "nan"]
_OF_DRIVER = {8: 10, 9: 8, 10: 9}
"""The driver's number of an element type, by Triton's number (the one of tensormap.replace), where the two differ."""
_TF32 = "tfloat32"
_MOST_EXTENT, _MOST_STRIDE = (1 << 31) - 1, (1 << 63) - 1


@dataclass(frozen=True, repr=False)
class TritonDescriptor(FieldsCard):
    """A tensor in a Buffer, like Triton's TensorDescriptor of a PyTorch tensor: TritonDescriptor(x, (heads, 64, 32)).

    `shape` and `strides` (dense if left out) count elements, outermost first; the innermost stride is 1. `padding` is
    the value of a box outside the tensor. The block belongs to the signature: "tensordesc<fp16[1,64,32]>". Raises
    RefsimError bad-descriptor. Source: Triton, tools/tensor_descriptor.py and the launcher of its NVIDIA backend.
    """

    base: Buffer
    shape: Sequence[int]
    strides: Sequence[int] | None = None
    padding: Padding = "zero"
    round_f32_to_tf32: bool = False

    def __post_init__(self) -> None:
        """Raise RefsimError bad-descriptor for a field of a wrong type or range."""
        if not isinstance(self.base, Buffer):
            what = f"base {self.base!r:.40}"
            raise RefsimError("bad-descriptor", what, help="a buffer that upload or output returned")
        if not _are_whole(self.shape, 1, _MOST_EXTENT) or not _are_whole(self.steps, 0, _MOST_STRIDE):
            raise self._misfit()
        if not 1 <= len(self.shape) <= 5 or len(self.steps) != len(self.shape) or self.steps[-1] != 1:
            raise self._misfit()
        if not isinstance(self.padding, str) or self.padding not in get_args(Padding):
            raise RefsimError("bad-descriptor", f"padding {self.padding!r:.40}", rule=f"one of {get_args(Padding)}")
        if not isinstance(self.round_f32_to_tf32, bool):
            what = f"round_f32_to_tf32 {self.round_f32_to_tf32!r:.40}"
            raise RefsimError("bad-descriptor", what, rule="True or False")

    def _misfit(self) -> RefsimError:
        rule = "1 to 5 extents from 1 to 2^31 - 1, as many strides in elements, the last of them 1"
        return RefsimError("bad-descriptor", f"shape {self.shape!r:.60} with strides {self.strides!r:.60}", rule=rule)

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the strides in elements, dense if none were given."""
        if self.strides is None:
            return tuple(prod(map(int, self.shape[axis + 1 :])) for axis in range(len(self.shape)))
        if not _are_whole(self.strides, 0, _MOST_STRIDE):
            raise self._misfit()
        return tuple(map(int, self.strides))


def _are_whole(values: object, least: int, most: int) -> bool:
    """Return whether `values` is a list of whole numbers from `least` to `most`."""
    is_list = isinstance(values, Sequence) or (isinstance(values, np.ndarray) and values.ndim == 1)
    return is_list and all(is_whole(value, least, most) for value in values)  # type: ignore[attr-defined]


def is_descriptor(kind: str) -> bool:
    """Return whether a Triton type is a tensor descriptor: tensordesc<fp16[64,32]>."""
    return kind.startswith("tensordesc")


def parameter_count(kind: str, is_mapped: bool) -> int:
    """Return how many parameters an argument becomes; a descriptor is a map, or base and flags, extents and strides."""
    if not is_descriptor(kind):
        return 1
    rank = kind.partition("[")[2].partition("]")[0].count(",") + 1
    return 1 + 2 * rank if is_mapped else 3 + 4 * rank


def descriptor_values(kind: str, argument: Any, said: Mapping[str, Any] | None) -> list[Any]:
    """Return the parameters of a descriptor: a tensor map if Triton `said` how, else address, extents and strides.

    Extents and strides follow once more, for the kernel's own arithmetic.
    """
    if not isinstance(argument, TritonDescriptor):
        what = f"{type(argument).__name__} for {kind}"
        raise RefsimError("bad-descriptor", what, help="give TritonDescriptor(buffer, shape)")
    extents, steps = [np.int32(extent) for extent in argument.shape], [np.int64(step) for step in argument.steps]
    if said is not None:
        return [_mapped(kind, argument, said), *extents, *steps]
    flags = [np.bool_(argument.padding == "nan"), np.bool_(argument.round_f32_to_tf32)]
    return [argument.base, *map(np.int64, argument.shape), *steps, *flags, *extents, *steps]


def _mapped(kind: str, argument: TritonDescriptor, said: Mapping[str, Any]) -> Any:
    """Return the tensor map of a descriptor, by Triton's metadata `said`."""
    box = said["block_size"]
    if said.get("is_im2col") or len(box) != len(argument.shape):
        what = "boxes of im2col" if said.get("is_im2col") else f"a tensor of {len(argument.shape)} dimensions"
        raise RefsimError("bad-argument", f"{what} for {kind}")
    number = _OF_DRIVER.get(said["elem_type"], said["elem_type"])
    element = _TF32 if argument.round_f32_to_tf32 else next(row.name for row in DATA_TYPES if row.code == number)
    *outer, inner = map(int, argument.shape)
    return tensor_map(
        element,
        (inner * 2 if said["fp4_padded"] else inner, *reversed(outer)),
        tuple(reversed(box)),
        strides=tuple(said["elem_size"] * step for step in reversed(argument.steps[:-1])),
        address=argument.base.address,
        swizzle=SWIZZLE_MODES[said["swizzle"]],
        l2_promotion="128B",
        oob_fill=NAN_REQUEST if argument.padding == "nan" else ZEROS,
    )
