// The accumulator of a product of warpgroups, m64n24: a thread has two columns of rows r and r + 8 for each eight columns
// of N in turn. The store takes all columns of row r first, as if its layout were made for another width.
// Meant: the 64 x 24 accumulator, registers to rows and columns. Launch: grid 1, block 128.
#include <cuda/std/cstdint>
using cuda::std::uint32_t;
enum : uint32_t { kColumns = 24, kRegisters = kColumns / 2 };

extern "C" __global__ void accumulator_columns(const float* registers, float* y) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (uint32_t i = 0; i < kRegisters; ++i) {
#ifdef RIGHT
        const uint32_t half = i / 2 % 2, atom = i / 4;
#else
        const uint32_t half = i / (kRegisters / 2), atom = i / 2 % (kColumns / 8);
#endif
        const uint32_t row = 16 * warp + lane / 4 + 8 * half, column = 8 * atom + lane % 4 * 2 + i % 2;
        y[kColumns * row + column] = registers[kRegisters * threadIdx.x + i];
    }
}
