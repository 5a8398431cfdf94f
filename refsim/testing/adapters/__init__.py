"""Kernels of other compilers for refsim: their code, and launches with the parameters that their host code adds."""

from typing import TYPE_CHECKING

from refsim.lazy import exports

if TYPE_CHECKING:
    from refsim.device.host_library import HostLibrary as HostLibrary
    from refsim.testing.adapters.cupy_kernels import CupyKernel as CupyKernel
    from refsim.testing.adapters.cupy_kernels import from_cupy as from_cupy
    from refsim.testing.adapters.cute_kernels import CuteKernel as CuteKernel
    from refsim.testing.adapters.cute_kernels import from_cute as from_cute
    from refsim.testing.adapters.numba_kernels import NumbaKernel as NumbaKernel
    from refsim.testing.adapters.numba_kernels import from_numba as from_numba
    from refsim.testing.adapters.structs import parameter_dtype as parameter_dtype
    from refsim.testing.adapters.structs import struct as struct
    from refsim.testing.adapters.triton_kernels import TritonDescriptor as TritonDescriptor
    from refsim.testing.adapters.triton_kernels import TritonKernel as TritonKernel
    from refsim.testing.adapters.triton_kernels import from_triton as from_triton
else:
    __getattr__, __dir__ = exports(__name__)
