"""pycuda.reduction on the simulated GPU: a loop around C++ expressions, run by one block of threads.

The order of sums differs from PyCUDA's: the report counts reductions of floating-point numbers.
"""

from typing import Any

import numpy as np

from refsim_run.complex_numbers import including_complex
from refsim_run.pycuda.arrays import GPUArray
from refsim_run.pycuda.compiler import SourceModule
from refsim_run.pycuda.driver import mem_alloc
from refsim_run.pycuda.elementwise import declared_types, scalars
from refsim_run.pycuda.tools import dtype_to_ctype
from refsim_run.seams import refusing
from refsim_run.session import current

__getattr__ = refusing("pycuda.reduction")
_THREADS = 512


class PycudaReduction:
    """Applies `map_expr` to each i, then combines pairs (a, b) by `reduce_expr`, beginning with `neutral`;
    `arguments` are C++ declarations."""

    def __init__(
        self,
        dtype_out: Any,
        neutral: Any,
        reduce_expr: str,
        map_expr: str | None = None,
        arguments: str | None = None,
        name: str = "reduce_kernel",
        keep: bool = False,
        options: Any = None,
        preamble: str = "",
        allocator: Any = mem_alloc,
    ) -> None:
        """Compile the kernel; `arguments` is by default one array `in` of the output's type."""
        self.dtype_out, self.name, self.allocator = np.dtype(dtype_out), name, allocator
        kind = dtype_to_ctype(self.dtype_out)
        heads = f"const {kind} *in" if arguments is None else arguments
        self.arguments = declared_types(heads)
        source = "\n".join((
            preamble,
            f"typedef {kind} out_type;",
            f"__device__ out_type reduced(out_type a, out_type b) {{\n#line 1 \"{name}\"\nreturn ({reduce_expr}); }}",
            f"__global__ void {name}(out_type *out, {heads}, unsigned n) {{",
            f"__shared__ out_type sums[{_THREADS}]; out_type sum = {neutral};",
            f"for (unsigned i = threadIdx.x; i < n; i += {_THREADS})",
            f"#line 1 \"{name}\"",
            f"sum = reduced(sum, ({map_expr or 'in[i]'}));",
            "sums[threadIdx.x] = sum; __syncthreads();",
            f"for (unsigned half = {_THREADS // 2}; half; half >>= 1) {{",
            "if (threadIdx.x < half) sums[threadIdx.x] = reduced(sums[threadIdx.x], sums[threadIdx.x + half]);",
            "__syncthreads(); }",
            "if (!threadIdx.x) *out = sums[0]; }",
        ))  # fmt: skip
        self._function = SourceModule(including_complex(source), options=options, keep=keep).get_function(name)

    def __call__(self, *args: Any, stream: Any = None, out: Any = None, allocator: Any = None, **more: Any) -> GPUArray:
        """Return the reduced value as an array with no axes, or in `out`."""
        if any(value is not None for value in more.values()):
            raise current().unsupported("pycuda.reduction.ReductionKernel", f"with {', '.join(more)}")
        given, arrays = scalars(self.arguments, args)
        made = GPUArray((), self.dtype_out, allocator or self.allocator) if out is None else out
        if self.dtype_out.kind in "fc":
            current().answered_by_host(f"pycuda.reduction.ReductionKernel {self.name}, in an order of its own")
        self._function(made, *given, np.uint32(arrays[0].size), grid=(1, 1), block=(_THREADS, 1, 1), stream=stream)
        return made


ReductionKernel = PycudaReduction
