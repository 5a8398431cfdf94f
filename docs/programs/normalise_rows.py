"""A program of PyCUDA: each row of a matrix divided by its largest magnitude. It runs with a GPU as it does without one."""

import numpy as np
import pycuda.autoinit
import pycuda.driver as cuda
from pycuda.compiler import SourceModule

ROWS, COLUMNS = 6, 96

module = SourceModule(
    """
    __global__ void normalise_rows(const float *x, float *y, int columns) {
        __shared__ float largest[32];
        const float *row = x + blockIdx.x * columns;
        float mine = 0.f;
        for (int i = threadIdx.x; i < columns; i += blockDim.x)
            mine = fmaxf(mine, fabsf(row[i]));
        largest[threadIdx.x] = mine;
        __syncthreads();
        for (int step = blockDim.x / 2; step > 0; step /= 2) {
            if (threadIdx.x < step)
                largest[threadIdx.x] = fmaxf(largest[threadIdx.x], largest[threadIdx.x + step]);
            __syncthreads();
        }
        for (int i = threadIdx.x; i < columns; i += blockDim.x)
            y[blockIdx.x * columns + i] = row[i] / largest[0];
    }
    """
)
normalise_rows = module.get_function("normalise_rows")

x = np.random.default_rng(1).standard_normal((ROWS, COLUMNS), np.float32)
y = np.empty_like(x)
normalise_rows(cuda.In(x), cuda.Out(y), np.int32(COLUMNS), grid=(ROWS, 1), block=(32, 1, 1))

wanted = x / np.abs(x).max(axis=1, keepdims=True)
codes = y.view(np.uint32)
differing = np.count_nonzero(codes != wanted.view(np.uint32))
print(
    f"{pycuda.autoinit.device.name()}: {differing} of {y.size} elements differ, sum of codes {codes.sum(dtype=np.uint64)}"
)
