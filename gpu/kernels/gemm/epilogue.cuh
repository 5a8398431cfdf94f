// From the sums of a tile to Y: rounded to bf16, through swizzled shared memory, stored by tensor map.

#pragma once

#include <stdint.h>

#include "async.cuh"
#include "scheduler.cuh"

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

// Two 8x8 matrices, each of whose columns becomes a row.
inline __device__ void store_transposed(uint32_t address, uint32_t a, uint32_t b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

// Which rows are stored: all that there are. TOGETHER: all warps of a warpgroup store the same tile.
template <class Tile, bool TOGETHER>
struct AllRows {
    static constexpr bool kAll = true, kTogether = TOGETHER;
    template <class... Of>
    __device__ explicit AllRows(const Of&...) {}
};

// Swapped: a warp has 16 columns of Y, of all rows of the tile.
template <class Tile, class Place, class Rows>
__device__ void store_swapped_tile(uint32_t base, const TensorMap& d, const Place& place, const float (&sum)[Tile::N / 2],
                                   uint32_t group, uint32_t warp, uint32_t lane, const Rows& rows) {
    const uint32_t staging = base + Tile::kD + (group * 4 + warp) * Tile::N * 32, x = place.m + group * kWave + warp * 16;
    if (lane == 0) wait_for_reads<0>();
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < Tile::N / 8; ++i) {
        const uint32_t row = 8 * i + lane % 8, chunk = lane / 8 % 2 ^ row / 4 % 2;
        store_transposed(staging + row * 32 + chunk * 16, pack(sum[4 * i], sum[4 * i + 1]), pack(sum[4 * i + 2], sum[4 * i + 3]));
    }
    publish_to_copies();
    __syncwarp();
#pragma unroll
    for (uint32_t box = 0; box < Tile::kBoxes; ++box) {
        const uint32_t from = staging + box * Tile::kBoxRows * 32;
        bool stored = false;
        if constexpr (!Rows::kAll) stored = rows.store_some(box, 1, from, x, place.in_b() - place.n, lane);
        if (lane == 0 && !stored) {
            store_box(&d, from, x, place.in_b() + box * Tile::kBoxRows);
            commit_stores();
        }
    }
}

// COLUMNS of a warp's 16 rows, from column `from` of its sums on, in swizzled pieces that are `pitch` bytes apart.
template <class Tile, uint32_t COLUMNS>
__device__ void stage_rows(uint32_t staging, uint32_t pitch, const float (&sum)[Tile::N / 2], uint32_t from, uint32_t lane) {
    constexpr uint32_t kRow = Tile::kPiece * 2, kChunks = kRow / 16;  // bytes of a row of a piece, 16-byte chunks in it
    const uint32_t row = lane % 16, swizzle = row * kRow / 128 % kChunks;
#pragma unroll
    for (uint32_t column = 0; column < COLUMNS; column += 16) {
        const uint32_t chunk = column % Tile::kPiece / 8 + lane / 16, i = (from + column) / 2;
        store_matrices(staging + column / Tile::kPiece * pitch + row * kRow + (chunk ^ swizzle) * 16, pack(sum[i], sum[i + 1]),
                       pack(sum[i + 2], sum[i + 3]), pack(sum[i + 4], sum[i + 5]), pack(sum[i + 6], sum[i + 7]));
    }
}

// Everything that a warpgroup has is staged at once. One thread stores it in boxes of 64 rows, those of one wave while the next
// is staged.
template <class Tile, class Place>
__device__ void store_all(uint32_t base, const TensorMap& d, const Place& place, const float (&sum)[Tile::kWaves][Tile::N / 2],
                          uint32_t group, uint32_t warp, uint32_t lane) {
    constexpr uint32_t kRow = Tile::kPiece * 2, kBox = kWave * kRow;
    const uint32_t staging = base + Tile::kD + group * kWave * Tile::kStaged * 2, barrier = 2 + group;
    const bool stores = warp == 0 && lane == 0;
    if (stores) wait_for_reads<0>();
    meet<128>(barrier);
#pragma unroll
    for (uint32_t wave = 0; wave < Tile::kWaves; ++wave) {
        const uint32_t from = staging + wave * kWave * Tile::N * 2;
        stage_rows<Tile, Tile::N>(from + warp * 16 * kRow, kBox, sum[wave], 0, lane);
        publish_to_copies();
        meet<128>(barrier);
        if (stores) {
#pragma unroll
            for (uint32_t column = 0; column < Tile::N; column += Tile::kPiece)
                store_box(&d, from + column / Tile::kPiece * kBox, place.n + column, place.in_a() + Tile::row(group, wave));
            commit_stores();
        }
    }
}

// Else each warp has 16 rows of staging of its own, in pieces as wide as a swizzled row, and stores them itself.
template <class Tile, class Place, class Rows>
__device__ void store_tile(uint32_t base, const TensorMap& d, const Place& place, const float (&sum)[Tile::kWaves][Tile::N / 2],
                           uint32_t group, uint32_t warp, uint32_t lane, const Rows& rows) {
    if constexpr (Tile::kSwapped) return store_swapped_tile<Tile>(base, d, place, sum[0], group, warp, lane, rows);
    if constexpr (Tile::kStagesAll && Rows::kTogether) return store_all<Tile>(base, d, place, sum, group, warp, lane);
    constexpr uint32_t kBox = 16 * Tile::kPiece * 2, kStaged = least(Tile::kStaged, Tile::N);
    const uint32_t staging = base + Tile::kD + (group * 4 + warp) * 16 * Tile::kStaged * 2;
#pragma unroll
    for (uint32_t wave = 0; wave < Tile::kWaves; ++wave) {
#pragma unroll
        for (uint32_t from = 0; from < Tile::N; from += kStaged) {
            if (lane == 0) wait_for_reads<0>();
            __syncwarp();
            stage_rows<Tile, kStaged>(staging, kBox, sum[wave], from, lane);
            publish_to_copies();
            __syncwarp();
            bool stored = false;
            if constexpr (!Rows::kAll)
                stored = rows.store_some(wave, kStaged / Tile::kPiece, staging, place.n + from, place.in_a() - place.m, lane);
            if (lane == 0 && !stored) {
                const uint32_t y = place.in_a() + Tile::row(group, wave) + warp * 16;
#pragma unroll
                for (uint32_t column = 0; column < kStaged; column += Tile::kPiece)
                    store_box(&d, staging + column / Tile::kPiece * kBox, place.n + from + column, y);
                commit_stores();
            }
        }
    }
}

// All of Y, each tile by one block. The tiles are the same whether whole warps take them or one thread.
template <class Tile>
struct WholeTiles {
    static constexpr bool kInParts = false, kHandsOver = false;
    template <bool>
    using Tiles = gemm::Tiles<Tile>;
    using Rows = AllRows<Tile, true>;
};

}  // namespace gemm
