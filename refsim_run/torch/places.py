"""Put the simulated GPU into torch: functions that make or move tensors, torch.cuda, generators, gradients."""

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from refsim_run.memory import MOST_POISONED, host_bytes, is_of_program, poison_host
from refsim_run.seams import always, names_in
from refsim_run.session import current
from refsim_run.torch.cuda import ACCELERATOR, ANSWERS, WITHOUT_ANSWER, PointedMemory

CUDA = "cuda"
MOVED_OR_ROUNDED_ONCE = names_in("""
    abs add all allclose amax amin any arange argmax argmin as_strided as_tensor bitwise_and bitwise_not bitwise_or
    bitwise_xor bool broadcast_to bucketize cat ceil chunk clamp clone concat contiguous copy_ count_nonzero cpu cuda
    cummax cummin data data_ptr detach diag diagonal div double eq equal empty_like expand expand_as fill_ flatten flip
    float floor full_like gather ge gt half index_select int is_contiguous isclose isfinite isinf isnan item le
    logical_and logical_not logical_or long lt masked_fill masked_select max maximum min minimum movedim mul narrow ne
    neg nonzero numel ones_like pad permute ravel relu repeat repeat_interleave reshape roll round scatter select
    sign slice sort split sqrt squeeze stack sub swapaxes t take tile to tolist topk transpose tril triu true_divide
    trunc type type_as unbind unflatten unfold unique unsqueeze view view_as where zero_ zeros_like add_ sub_ mul_ div_
    __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ __truediv__ __rtruediv__ __itruediv__
    __getitem__ __setitem__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__ __xor__ __invert__ __neg__ __abs__
    __len__ __bool__ __int__ __float__ __index__ __format__ __repr__ __contains__ __get__ __set__ __delete__ __array__
    __deepcopy__ __reduce_ex__ assert_close bfloat16 size stride dim ndimension nelement element_size requires_grad_
    storage_offset untyped_storage register_hook is_floating_point is_complex is_signed get_device as_subclass
    retain_grad new_empty new_zeros new_ones new_full new_tensor resize_ set_ uniform_ normal_ random_ bernoulli_
    rand_like randn_like randint_like exponential_ log_normal_ cauchy_ geometric_ multinomial bernoulli result_type
    is_same_size broadcast_tensors meshgrid vstack hstack unfold tensor_split hsplit vsplit ne_ index_copy_ scatter_
    masked_fill_ clamp_ relu_ neg_ share_memory_ is_tensor numpy backward
""")
"""Functions of PyTorch, by name, whose results have the bits of a GPU's kernels although the host computes them.

They move or compare numbers, round a real result once, return facts, or draw random numbers, which no seed reproduces
across devices. `backward` stands for the function that began it.
"""


class Places:
    """Decides which tensors are on the GPU and moves tensors: `kind` is their class, made for the imported torch."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.device = torch.device(CUDA, 0)
        self.kind = _kind(self, torch)
        self.move, self.host = torch.Tensor.to, torch.device("cpu")

    def is_asked(self, device: Any) -> bool:
        """Return whether a device, as PyTorch takes one, is the GPU; RuntimeError for cuda:1 and higher."""
        found = self.torch.device(device)
        if found.type == CUDA and found.index not in (None, 0):
            raise RuntimeError("CUDA error: invalid device ordinal: one GPU is simulated")
        return bool(found.type == CUDA)

    def is_there(self, value: Any) -> bool:
        return isinstance(value, self.kind)

    def put(self, found: Any, but: Sequence[int] = ()) -> Any:
        """Mark tensors that a function returned as on the GPU, except objects whose id is in `but`; return `found`."""
        if isinstance(found, self.torch.Tensor):
            if id(found) not in but:
                if isinstance(found, self.torch.nn.Parameter):
                    found._is_param = True  # isinstance(found, Parameter) of every class of tensors
                found.__class__ = self.kind
        elif isinstance(found, tuple | list):
            for each in found:
                self.put(each, but)
        return found

    def take(self, tensor: Any) -> None:
        """Mark a tensor as no longer on the GPU."""
        if self.is_there(tensor):
            is_parameter = isinstance(tensor, self.torch.nn.Parameter)
            tensor.__class__ = self.torch.nn.Parameter if is_parameter else self.torch.Tensor

    def plain(self, tensor: Any) -> Any:
        """Return a host tensor that shares the memory."""
        with self.torch._C.DisableTorchFunctionSubclass():
            return tensor.as_subclass(self.torch.Tensor)

    def moved(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the tensor moved and converted, as Tensor.to does."""
        is_copy = kwargs.pop("copy", False)
        other = kwargs.pop("other", args[0] if args else None)
        if isinstance(other, self.torch.Tensor):
            device, kind, layout = other.device, other.dtype, None
        else:
            device, kind, _, layout = self.torch._C._nn._parse_to(*args, **kwargs)
        goes = self.is_there(tensor) if device is None else self.is_asked(device)
        if device is not None and device.type not in (CUDA, "cpu"):
            return self.move(tensor, *args, **kwargs)
        moves = goes != self.is_there(tensor)
        source = self.plain(tensor) if self.is_there(tensor) else tensor
        more = {} if layout is None else {"memory_format": layout}
        found = self.move(source, kind or source.dtype, copy=is_copy or moves, **more)
        if found is source:
            return tensor
        if moves and not goes and source.is_contiguous() and source.device == self.host:
            size = source.numel() * source.element_size()
            current().memory.read_by_host(host_bytes(source.data_ptr(), size), f"a tensor of {size} B")
        return self.put(found) if goes else found

    def called(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function with a tensor on the GPU among its arguments; its results are on the GPU."""
        name = getattr(function, "__name__", "")
        with self.torch._C.DisableTorchFunctionSubclass(), watched(function, args, kwargs):
            was = args[0].untyped_storage().nbytes() if name == "resize_" else 0
            found = function(*args, **kwargs)
            if name == "resize_" and found.untyped_storage().nbytes() > was:
                begin_unwritten(found, self.torch, was)
        if name not in MOVED_OR_ROUNDED_ONCE and _has_fractions(found):
            current().answered_by_host(f"torch.{name}")
        return self.put(found, [id(each) for each in (*args, *kwargs.values())])


def _has_fractions(found: Any) -> bool:
    if isinstance(found, tuple | list):
        return any(map(_has_fractions, found))
    kind = getattr(found, "dtype", None)
    return kind is not None and bool(kind.is_floating_point or kind.is_complex)


def _kind(places: Places, torch: Any) -> Any:
    """Return the class of tensors on the GPU."""

    base: Any = torch.Tensor

    class Tensor(base):  # type: ignore[misc]
        """A PyTorch tensor on the simulated GPU."""

        device = property(lambda self: places.device)
        is_cuda = property(lambda self: True)
        is_cpu = property(lambda self: False)

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return places.called(func, args, kwargs or {})

        @property
        def __cuda_array_interface__(self) -> Any:
            raise current().unsupported("torch.Tensor.__cuda_array_interface__", "its memory is the host's")

        def data_ptr(self) -> int:
            return PointedMemory.of(current()).address(places.plain(self), torch)

        get_device = always(0)

        def pin_memory(self, *args: Any) -> Any:
            raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")

        def numpy(self, *, force: bool = False) -> Any:
            """Return a NumPy array if `force` is set; TypeError otherwise, as for a tensor on a GPU."""
            if not force:
                raise TypeError(
                    "can't convert cuda:0 device type tensor to numpy. "
                    "Use Tensor.cpu() to copy the tensor to host memory first."
                )
            return self.detach().cpu().numpy()

        def __array__(self, *args: Any, **kwargs: Any) -> Any:
            return self.numpy()

        def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
            raise current().unsupported("torch.Tensor.__dlpack__", "its memory is the host's")

        def __reduce_ex__(self, proto: Any) -> Any:
            return places.plain(self).detach().requires_grad_(self.requires_grad).__reduce_ex__(proto)

        def __repr__(self, *, tensor_contents: Any = None) -> str:
            with torch._C.DisableTorchFunctionSubclass():
                said = str(torch._tensor_str._str(self, tensor_contents=tensor_contents))
            return said.replace("Tensor(", "tensor(", 1)

    return Tensor


def placed(places: Places, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch that makes tensors, extended so that `device` may be the GPU."""

    name = getattr(function, "__name__", "call")

    def call(*args: Any, **kwargs: Any) -> Any:
        """Make a tensor; one without contents holds the poison of memory that nobody wrote."""
        device = kwargs.get("device")
        if kwargs.get("pin_memory"):
            del kwargs["pin_memory"]  # host memory is never paged out here
        if device is None:
            found, but = function(*args, **kwargs), []
            goes = bool(args) and places.is_there(args[0])
        else:
            goes, but = places.is_asked(device), [id(each) for each in args]
            with places.torch._C.DisableTorchFunctionSubclass():
                found = function(*args, **{**kwargs, "device": places.host if goes else device})
        if name in _EMPTY and (goes or is_of_program(sys._getframe(1))):
            begin_unwritten(places.plain(found), places.torch, is_watched=goes)
        return places.put(found, but) if goes else found

    call.__name__ = call.__qualname__ = name
    call.__doc__ = function.__doc__
    call.__wrapped__ = function  # type: ignore[attr-defined]
    return call


_EMPTY = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
_LIKE = ("empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like")
_NEW = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")


def take_place(torch: Any) -> None:
    """Make the simulated GPU torch's device cuda:0; `torch` was just imported."""
    places = Places(torch)
    _makers(torch, places)
    _tensors(torch, places)
    for name, answer in ANSWERS.items():
        setattr(torch.cuda, name, answer)
    for name in WITHOUT_ANSWER:
        setattr(torch.cuda, name, _refusal(f"torch.cuda.{name}"))
    torch.cuda._lazy_init = _refusal("a function of torch.cuda")
    if hasattr(torch, "accelerator"):  # since 2.6
        for name, answer in ACCELERATOR.items():
            setattr(torch.accelerator, name, answer)
        torch.accelerator.current_accelerator = lambda *args, **kwargs: torch.device(CUDA)
    torch.Generator = _generator(torch, places)
    _autocast(torch)
    _backward(torch, places)


def _makers(torch: Any, places: Places) -> None:
    """Replace torch's functions that make tensors, also under set_default_device and `with torch.device("cuda")`."""
    known: Any = importlib.import_module("torch.utils._device")
    usual, wrapped = set(known._device_constructors()), {}
    for module in (torch, torch.fft):
        for name, function in list(vars(module).items()):
            if callable(function) and (function in usual or (module is torch and name in _LIKE)):
                wrapped[function] = placed(places, function)
                setattr(module, name, wrapped[function])
    torch.normal = placed(places, torch.normal)

    def asked(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in usual and given.get("device") is None:
            return wrapped.get(func, func)(*args, **{**given, "device": self.device})
        return func(*args, **given)

    known.DeviceContext.__torch_function__ = asked


def _tensors(torch: Any, places: Places) -> None:
    """Replace the methods of tensors that move them or make new ones, and the setter of `data`."""
    kind = torch.Tensor

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        return places.moved(self, *args, **kwargs)

    kind.to = to  # a function, which becomes a method of tensors
    kind.cuda = lambda self, *args, **kwargs: places.moved(self, places.device)
    kind.cpu = lambda self, *args, **kwargs: places.moved(self, places.host)
    kind.pin_memory = lambda self, device=None: self.clone()
    kind.is_pinned = lambda self, device=None: False
    for name in _NEW:
        setattr(kind, name, placed(places, getattr(kind, name)))
    theirs = kind.data

    def replace(self: Any, value: Any) -> None:
        theirs.__set__(self, value)
        (places.put if places.is_there(value) else places.take)(self)

    kind.data = property(theirs.__get__, replace)


def _generator(torch: Any, places: Places) -> type:
    """Return a generator class that draws its numbers on the host, for any device."""

    base: Any = torch._C.Generator

    class Generator(base):  # type: ignore[misc]
        def __new__(cls, device: Any = "cpu") -> Any:
            places.is_asked(device)
            return super().__new__(cls, "cpu")

    return Generator


def _autocast(torch: Any) -> None:
    """Refuse autocast for cuda: the host computes here, and its mixed precision differs from a GPU's."""
    theirs = torch.amp.autocast_mode.autocast.__init__

    def begin(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:
        if device_type == CUDA and enabled:
            raise current().unsupported("torch.autocast of cuda", "the host computes, whose mixed precision is another")
        theirs(self, device_type, dtype, enabled, cache_enabled)

    torch.amp.autocast_mode.autocast.__init__ = begin


def _backward(torch: Any, places: Places) -> None:
    """Put gradients given to a function's backward on the GPU where the function saved tensors on the GPU."""
    function: Any = torch.autograd.function.BackwardCFunction
    theirs = function.apply

    def apply(self: Any, *args: Any) -> Any:
        if any(map(places.is_there, self.saved_tensors)):
            places.put(list(args))
        return theirs(self, *args)

    function.apply = apply


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise current().unsupported(name)

    return refuse


# ---- which bytes of tensors on the GPU the program has not written --------------------------------------------------------


def begin_unwritten(tensor: Any, torch: Any, start: int = 0, *, is_watched: bool = True) -> None:
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
    given = [each for each in _tensors_in((*args, *kwargs.values()) if marks else ()) if _host(each) in marks]
    versions = [None if each.is_inference() else each._version for each in given]
    yield
    for each, version in zip(given, versions, strict=True):
        if version is None or each._version != version:
            part = each[args[1]] if function.__name__ == "__setitem__" and each is args[0] else each
            _wrote(part if _host(part) == _host(each) else each)


def _tensors_in(values: Any) -> Iterator[Any]:
    for each in values:
        if isinstance(each, tuple | list):
            yield from _tensors_in(each)
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
