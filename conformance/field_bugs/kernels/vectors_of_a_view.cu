// Numbers are loaded 16 bytes at a time, whatever the address: a view that begins in the middle of a vector faults.
// Meant: y = 2 x. Launch: grid ceil(n / 128), block 32.
#include <cuda/std/cstdint>
using cuda::std::uint32_t;
using cuda::std::uint64_t;

extern "C" __global__ void vectors_of_a_view(const float* x, float* y, uint32_t n) {
    const uint32_t first = 128 * blockIdx.x + 4 * threadIdx.x;
#ifdef RIGHT
    const bool whole = first + 4 <= n && reinterpret_cast<uint64_t>(x) % 16 == 0;
#else
    const bool whole = first + 4 <= n;
#endif
    const float4 four = whole ? *reinterpret_cast<const float4*>(x + first) : float4{};
    for (uint32_t i = 0; i < 4 && first + i < n; ++i)
        y[first + i] = 2 * (whole ? reinterpret_cast<const float*>(&four)[i] : x[first + i]);
}
