// A swizzle made for 16-bit numbers moves chunks of 8 elements; of FP8 these are 8 bytes, and half of the destinations of
// a 16-byte copy are misaligned. Meant: the tile of 8 x 128 codes, copied through shared memory. Launch: grid 1, block 64.
#include <cuda/std/cstdint>
using cuda::std::uint32_t;
using cuda::std::uint8_t;
#ifdef RIGHT
enum : uint32_t { kLog2Chunk = 4 };
#else
enum : uint32_t { kLog2Chunk = 3 };
#endif

extern "C" __global__ void chunk_of_half(const uint8_t* x, uint8_t* y) {
    __shared__ __align__(128) uint8_t tile[8 * 128 + 16];
    const uint32_t at = 16 * threadIdx.x;
    const auto place = [](uint32_t byte) { return byte ^ (byte >> 7 & 7) << kLog2Chunk; };
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(tile + place(at)));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(x + at) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    for (uint32_t i = 0; i < 16; ++i) y[at + i] = tile[place(at + i)];
}
