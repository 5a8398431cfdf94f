"""A program of CuPy: the products of all rows of a matrix, by a template of CUDA. It runs with a GPU as it does without one."""

import cupy as cp
import numpy as np

ROWS, COLUMNS = 24, 40

module = cp.RawModule(
    code="""
    template <typename T>
    __global__ void gram(const T *x, T *y, int rows, int columns) {
        extern __shared__ unsigned char raw[];
        T *row = reinterpret_cast<T *>(raw);
        for (int i = threadIdx.x; i < columns; i += blockDim.x)
            row[i] = x[blockIdx.x * columns + i];
        __syncthreads();
        for (int other = threadIdx.x; other < rows; other += blockDim.x) {
            T sum = 0;
            for (int i = 0; i < columns; ++i)
                sum = fma(row[i], x[other * columns + i], sum);
            y[blockIdx.x * rows + other] = sum;
        }
    }
    """,
    name_expressions=("gram<float>", "gram<double>"),
)

host = np.random.default_rng(1).standard_normal((ROWS, COLUMNS))
for dtype, name in ((cp.float32, "gram<float>"), (cp.float64, "gram<double>")):
    x = cp.asarray(host, dtype=dtype)
    y = cp.empty((ROWS, ROWS), dtype)
    module.get_function(name)(
        (ROWS,), (32,), (x, y, np.int32(ROWS), np.int32(COLUMNS)), shared_mem=COLUMNS * x.itemsize
    )
    codes = cp.asnumpy(y).view(f"u{x.itemsize}")
    is_largest = bool((cp.argmax(y, axis=1) == cp.arange(ROWS)).all())
    print(f"{name}: symmetric {bool((y == y.T).all())}, largest on the diagonal {is_largest}, ", end="")
    print(f"sum of codes {codes.sum(dtype=np.uint64)}")
