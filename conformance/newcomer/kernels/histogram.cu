// How often each of 64 classes (the upper six bits of a byte) occurs.
constexpr unsigned kBins = 64;

extern "C" __global__ void histogram(const unsigned char* x, unsigned* counts, unsigned n) {
  __shared__ unsigned bins[kBins];
  for (unsigned bin = threadIdx.x; bin < kBins; bin += blockDim.x) bins[bin] = 0;
  __syncthreads();
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned threads = gridDim.x * blockDim.x;
  const unsigned words = n / 4;
  for (unsigned word = thread; word < words; word += threads) {
    const uchar4 four = reinterpret_cast<const uchar4*>(x)[word];
    atomicAdd(&bins[four.x >> 2], 1);
    atomicAdd(&bins[four.y >> 2], 1);
    atomicAdd(&bins[four.z >> 2], 1);
    atomicAdd(&bins[four.w >> 2], 1);
  }
  for (unsigned place = words * 4 + thread; place < n; place += threads) atomicAdd(&bins[x[place] >> 2], 1);
  __syncthreads();
  for (unsigned bin = threadIdx.x; bin < kBins; bin += blockDim.x) atomicAdd(&counts[bin], bins[bin]);
}
