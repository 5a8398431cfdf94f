// The sum of n float32 in an order that does not depend on the grid: `chunk` elements a block, then the blocks' sums.
constexpr unsigned kThreads = 128;

// Thread t adds elements t, t + 128, ... in ascending order; then halves of the block are added, far ones first.
extern "C" __global__ void __launch_bounds__(kThreads) reduction(const float* x, float* sums, unsigned n, unsigned chunk) {
  __shared__ float partial[kThreads];
  const unsigned first = blockIdx.x * chunk;
  const unsigned last = min(first + chunk, n);
  float sum = 0.0f;
  for (unsigned place = first + threadIdx.x; place < last; place += kThreads) sum += x[place];
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}
