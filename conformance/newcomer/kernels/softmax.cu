// Softmax of rows of float32, `stride` elements apart; a block of four warps a row. Exponentials are ex2.approx.
constexpr unsigned kWarps = 4;
constexpr float kLog2e = 1.44269504f;

__device__ float over_block(float value, float* shared, bool largest) {
  for (unsigned offset = 16; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(~0u, value, offset);
    value = largest ? fmaxf(value, other) : value + other;
  }
  __syncthreads();  // nobody reads the last result any more
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float all = shared[0];
  for (unsigned warp = 1; warp < kWarps; ++warp) all = largest ? fmaxf(all, shared[warp]) : all + shared[warp];
  return all;
}

extern "C" __global__ void __launch_bounds__(32 * kWarps)
    softmax(const float* x, float* y, unsigned columns, unsigned stride) {
  __shared__ float shared[kWarps];
  const float* mine = x + blockIdx.x * stride;
  float top = __int_as_float(0xff800000);
  for (unsigned column = threadIdx.x; column < columns; column += blockDim.x) top = fmaxf(top, mine[column]);
  top = over_block(top, shared, true);
  float sum = 0.0f;
  for (unsigned column = threadIdx.x; column < columns; column += blockDim.x)
    sum += exp2f((mine[column] - top) * kLog2e);
  sum = over_block(sum, shared, false);
  for (unsigned column = threadIdx.x; column < columns; column += blockDim.x)
    y[blockIdx.x * columns + column] = exp2f((mine[column] - top) * kLog2e) / sum;
}
