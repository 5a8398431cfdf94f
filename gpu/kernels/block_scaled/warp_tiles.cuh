// mma.sync with scales by block: a block of four warps has 64 x 64 of D, a warp 32 x 32.
//
// A step of the instruction is 32 bytes of a row: K = 32 in bytes, K = 64 in nibbles. A stage is four steps. The next stage's
// codes are on their way into registers while this one is multiplied.

#pragma once

#include "staging.cuh"

namespace block_scaled {

enum : uint32_t { kWarpTile = 32, kSteps = 4 };

inline __device__ void load_matrices(uint32_t (&d)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(address)
                 : "memory");
}

// Lanes 2 r and 2 r + 1 of each four hold the scales of the 16 rows r of A, lane c those of the 8 columns c of B: so the
// thread-id of an instruction is the number of its rows, or of its columns.
template <class Entry>
struct StageScales {
    enum : uint32_t { kWords = kSteps * Entry::kScales / kTileBlocks };
    uint32_t a[kWords], b[kWords];

    __device__ StageScales(const Operand& of_a, const Operand& of_b, uint32_t row, uint32_t column, uint32_t k0, uint32_t k) {
        const uint32_t lane = threadIdx.x % 32, blocks = k / Entry::kBlock;
        row += lane / 2 % 2 * 16 + lane % 2 * 8 + lane / 4;
        column += lane % 4 * 8 + lane / 4;
#pragma unroll
        for (uint32_t word = 0; word < kWords; ++word) {
            const uint32_t group = k0 / Entry::kBlock / kTileBlocks + word;
            a[word] = row < of_a.rows ? scale_word<Entry::kOne>(of_a.scales, row, group, blocks) : 0;
            b[word] = column < of_b.rows ? scale_word<Entry::kOne>(of_b.scales, column, group, blocks) : 0;
        }
    }
};

using Sums = float[2][4][4];  // 16 rows, 8 columns, the registers of a product

// The products of a step, each 16 rows by 8 columns: where their scales stand is part of the instruction.
template <class Entry, uint32_t STEP, uint32_t NUMBER = 0>
__device__ void multiply_step(Sums& sums, const uint32_t (&a)[2][4], const uint32_t (&b)[2][4], const StageScales<Entry>& scales) {
    constexpr uint32_t kRows = NUMBER / 4, kColumns = NUMBER % 4, kScale = STEP * Entry::kScales;
    const uint32_t* half = b[kColumns / 2] + kColumns % 2 * 2;
    Entry::template multiply<kScale % kTileBlocks, kRows, kColumns>(sums[kRows][kColumns], a[kRows], half[0], half[1],
                                                                    scales.a[kScale / kTileBlocks], scales.b[kScale / kTileBlocks]);
    if constexpr (NUMBER + 1 < 8) multiply_step<Entry, STEP, NUMBER + 1>(sums, a, b, scales);
}

// Steps in the order of K, as long as any of the `left` elements are in one.
template <class Entry, uint32_t STEP = 0>
__device__ void multiply_stage(Sums& sums, uint32_t a, uint32_t b, const StageScales<Entry>& scales, uint32_t left) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t row = warp / 2 * kWarpTile + lane % 16, column = warp % 2 * kWarpTile + lane % 8 + lane / 16 * 8;
    if (STEP * Entry::kStep >= left) return;
    uint32_t x[2][4], y[2][4];
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
        load_matrices(x[half], a + place(row + half * 16, 2 * STEP + lane / 16));
        load_matrices(y[half], b + place(column + half * 16, 2 * STEP + lane / 8 % 2));
    }
    multiply_step<Entry, STEP>(sums, x, y, scales);
    if constexpr (STEP + 1 < kSteps) multiply_stage<Entry, STEP + 1>(sums, a, b, scales, left);
}

// D of the warp, scaled: a thread has two neighbours in a row, and the same eight rows below.
inline __device__ void store(const Sums& sums, float* d, float scale, const Problem& problem, uint32_t row, uint32_t column) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < 32; ++i) {
        const uint32_t at = i % 4, r = row + i / 16 * 16 + at / 2 * 8 + lane / 4;
        const uint32_t c = column + i / 4 % 4 * 8 + lane % 4 * 2 + at % 2;
        if (r < problem.m && c < problem.n) d[size_t(r) * problem.pitch_d + c] = __fmul_rn(scale, sums[i / 16][i / 4 % 4][at]);
    }
}

template <class Entry>
__device__ void multiply_tile(const Operand& a, const Operand& b, float* d, float scale, const Problem& problem) {
    __shared__ __align__(1024) uint8_t stage_a[kTile * kRowBytes], stage_b[kTile * kRowBytes];
    const uint32_t warp = threadIdx.x / 32, top = blockIdx.y * kTile, left = blockIdx.x * kTile;
    const uint32_t row = top + warp / 2 * kWarpTile, column = left + warp % 2 * kWarpTile;
    Sums sums = {};
    typename Entry::A next_a;
    typename Entry::B next_b;
    next_a.fetch(a, top, 0, problem.k);
    next_b.fetch(b, left, 0, problem.k);
    for (uint32_t k0 = 0; k0 < problem.k; k0 += kSteps * Entry::kStep) {
        __syncthreads();  // the stage before has been read
        next_a.store(stage_a);
        next_b.store(stage_b);
        __syncthreads();
        const StageScales<Entry> scales(a, b, row, column, k0, problem.k);
        const uint32_t next = k0 + kSteps * Entry::kStep;
        if (next < problem.k) {
            next_a.fetch(a, top, next, problem.k);
            next_b.fetch(b, left, next, problem.k);
        }
        multiply_stage<Entry>(sums, shared_address(stage_a), shared_address(stage_b), scales, problem.k - k0);
    }
    store(sums, d, scale, problem, row, column);
}

}  // namespace block_scaled
