"""Put the simulated GPU into torch: functions that make or move tensors, torch.cuda, generators, gradients."""

import importlib
from collections.abc import Callable
from typing import Any

from refsim.standins.session import current
from refsim.standins.torch.cuda import ACCELERATOR, ANSWERS, WITHOUT_ANSWER
from refsim.standins.torch.tensors import CUDA, Places, placed

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
