// From the sums of a tile to Y: rounded to bf16, through swizzled shared memory, stored by tensor map.

#pragma once

#include <stdint.h>

#include "async.cuh"
#include "tile.cuh"

namespace gemm {

// Two elements rounded to nearest even, the first in the low half.
inline __device__ uint32_t pack(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Four 8x8 matrices: each lane gives the address of one of their rows.
inline __device__ void store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}

// Each warp has 16 rows of staging of its own, in pieces as wide as a swizzled row, and stores them itself.
template <class Tile>
__device__ void store_tile(uint32_t base, const TensorMap& d, const Place& place, const float (&sum)[Tile::kWaves][Tile::N / 2],
                           uint32_t group, uint32_t warp, uint32_t lane) {
    constexpr uint32_t kRow = Tile::kPiece * 2, kChunks = kRow / 16;  // bytes of a row of a piece, 16-byte chunks in it
    const uint32_t staging = base + Tile::kD + (group * 4 + warp) * 16 * Tile::kStaged * 2;
    const uint32_t row = lane % 16, swizzle = row * kRow / 128 % kChunks;
#pragma unroll
    for (uint32_t wave = 0; wave < Tile::kWaves; ++wave) {
#pragma unroll
        for (uint32_t from = 0; from < Tile::N; from += Tile::kStaged) {
            if (lane == 0) wait_for_reads<0>();
            __syncwarp();
#pragma unroll
            for (uint32_t column = 0; column < Tile::kStaged; column += 16) {
                const uint32_t chunk = column % Tile::kPiece / 8 + lane / 16;
                const uint32_t piece = staging + column / Tile::kPiece * 16 * kRow;
                const float(&own)[Tile::N / 2] = sum[wave];
                const uint32_t i = (from + column) / 2;
                store_matrices(piece + row * kRow + (chunk ^ swizzle) * 16, pack(own[i], own[i + 1]),
                               pack(own[i + 2], own[i + 3]), pack(own[i + 4], own[i + 5]), pack(own[i + 6], own[i + 7]));
            }
            publish_to_copies();
            __syncwarp();
            if (lane == 0) {
                const uint32_t y = place.m + (group * Tile::kWaves + wave) * kWave + warp * 16;
#pragma unroll
                for (uint32_t column = 0; column < Tile::kStaged; column += Tile::kPiece)
                    store_box(&d, staging + column / Tile::kPiece * 16 * kRow, place.n + from + column, y);
                commit_stores();
            }
        }
    }
}

}  // namespace gemm
