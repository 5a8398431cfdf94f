"""Kernels of other compilers for refsim: their code, and launches with the parameters that their host code adds."""

from typing import TYPE_CHECKING

__all__ = [
    "CupyKernel",
    "CuteKernel",
    "HostLibrary",
    "NumbaKernel",
    "TritonDescriptor",
    "TritonKernel",
    "from_cupy",
    "from_cute",
    "from_numba",
    "from_triton",
    "parameter_dtype",
    "struct",
]

if TYPE_CHECKING:
    from refsim.device.host_library import HostLibrary
    from refsim.testing.adapters.cupy_kernels import CupyKernel, from_cupy
    from refsim.testing.adapters.cute_kernels import CuteKernel, from_cute
    from refsim.testing.adapters.numba_kernels import NumbaKernel, from_numba
    from refsim.testing.adapters.structs import parameter_dtype, struct
    from refsim.testing.adapters.triton_descriptors import TritonDescriptor
    from refsim.testing.adapters.triton_kernels import TritonKernel, from_triton
else:
    from refsim.lazy import exports

    __getattr__, __dir__ = exports(
        __name__,
        {
            "refsim.device.host_library": ("HostLibrary",),
            "refsim.testing.adapters.cupy_kernels": ("CupyKernel", "from_cupy"),
            "refsim.testing.adapters.cute_kernels": ("CuteKernel", "from_cute"),
            "refsim.testing.adapters.numba_kernels": ("NumbaKernel", "from_numba"),
            "refsim.testing.adapters.structs": ("parameter_dtype", "struct"),
            "refsim.testing.adapters.triton_descriptors": ("TritonDescriptor",),
            "refsim.testing.adapters.triton_kernels": ("TritonKernel", "from_triton"),
        },
    )
    del exports
