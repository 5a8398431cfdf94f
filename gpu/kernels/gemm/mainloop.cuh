// The copies of A, B and the scales of A into the stages of shared memory, and the products that consume them.

#pragma once

#include "async.cuh"
#include "epilogue.cuh"
#include "scheduler.cuh"
#include "wgmma.cuh"

namespace gemm {

// One thread. The blocks of a cluster that share a tile copy a slice of it each, for all of them.
// Here and below a Job says which tiles there are (Tiles; with `true` whole warps take them), and what becomes of their sums,
// with what `of` brings.
template <class Tile, class Job, class... Of>
__device__ void copy_stages(uint32_t base, const TensorMap& a, const TensorMap& b, const TensorMap& sfa, const Problem& problem,
                            const Seat<Tile>& seat, const Of&... of) {
    uint32_t blocks = (problem.k + kBlockK - 1) / kBlockK;
    using Tiles = typename Job::template Tiles<false>;
    Tiles tiles(base, problem, seat, of...);
    Ring<Tile::kStages> ring;
    for (typename Tiles::At place; tiles.take(place);) {
        if constexpr (Job::kInParts) blocks = place.blocks;
        for (uint32_t k = 0; k < blocks; ++k, ring.step()) {
            const uint32_t full = base + Tile::kFull + 8 * ring.stage;
            const uint32_t row_a = seat.n * Tile::kSliceA, row_b = seat.m * Tile::kSliceB;
            const uint32_t to_a = base + Tile::kA + ring.stage * Tile::kBytesA + row_a * kBlockK;
            const uint32_t to_b = base + Tile::kB + ring.stage * Tile::kBytesB + row_b * kBlockK;
            wait(base + Tile::kEmpty + 8 * ring.stage, ring.parity ^ 1);
            expect(full, Tile::kBytesStage);
            load_box(base + Tile::kSFA + ring.stage * up_to(Tile::kBytesScales, 128), &sfa, full,
                     Tile::kSwapped ? place.n : place.m, place.in_scales() + place.first() + k);
            load_box_for<Tile::kAcross>(seat.mask_a(), to_a, &a, full, (place.first() + k) * kBlockK, place.in_a() + row_a);
            load_box_for<Tile::kDown>(seat.mask_b(), to_b, &b, full, (place.first() + k) * kBlockK, place.in_b() + row_b);
        }
    }
}

// The scales of B for one tile: the block of its first column and those behind it, one float for each step of K. Where B is
// swapped with A, the rows of a tile are in one block.
template <class Tile>
struct ColumnScales {
    const float* rows[Tile::kScales];
    uint32_t first;  // steps of columns before the next block begins

    __device__ ColumnScales(const float* sfb, const Problem& problem, uint32_t column) {
        const uint32_t pitch = (problem.k + kBlockK - 1) / kBlockK;
        const uint32_t last = ((Tile::kSwapped ? problem.m : problem.n) - 1) / 128;
        first = (128 - column % 128) / Tile::kStep;
#pragma unroll
        for (uint32_t i = 0; i < Tile::kScales; ++i) rows[i] = sfb + uint64_t{min(column / 128 + i, last)} * pitch;
    }
    __device__ void move(uint64_t scales) {
#pragma unroll
        for (uint32_t i = 0; i < Tile::kScales; ++i) rows[i] += scales;
    }
    __device__ void read(float (&scales)[Tile::kScales], uint32_t k) const {
#pragma unroll
        for (uint32_t i = 0; i < Tile::kScales; ++i) scales[i] = __ldg(rows[i] + k);
    }
    // Which of the scales the columns of a step have. A tile begins at a multiple of kStep, so the first step of a block
    // of scales is the same for all threads, and what cannot be is left out.
    __device__ float choose(const float (&of)[Tile::kScales], uint32_t step) const {
        constexpr uint32_t kWhole = 128 / Tile::kStep;
        float chosen = of[0];
        if (Tile::kScales > 1 && step > 0) chosen = step < first ? of[0] : of[1 % Tile::kScales];
        if (Tile::kScales > 1 && step >= kWhole) chosen = of[1 % Tile::kScales];
        if (Tile::kScales > 2 && step > kWhole) chosen = step < first + kWhole ? of[1 % Tile::kScales] : of[2 % Tile::kScales];
        return chosen;
    }
};

// Everything that a step of K needs besides its product.
template <class Tile>
struct Scales {
    float rows[Tile::kSwapped ? Tile::N / 4 : 2];  // of A: the thread's row and the one 8 below, or the thread's columns
    float columns[Tile::kScales];                  // of B
};

// Swapped: a scale for each of the thread's columns, each for two rows.
template <class Tile>
__device__ void promote_swapped(float (&sum)[Tile::N / 2], const float (&product)[Tile::N / 2], const Scales<Tile>& scales) {
#pragma unroll
    for (uint32_t i = 0; i < Tile::N / 8; ++i) {
        const float left = __fmul_rn(scales.rows[2 * i], scales.columns[0]);
        const float right = __fmul_rn(scales.rows[2 * i + 1], scales.columns[0]);
        sum[4 * i] = __fmaf_rn(left, product[4 * i], sum[4 * i]);
        sum[4 * i + 1] = __fmaf_rn(right, product[4 * i + 1], sum[4 * i + 1]);
        sum[4 * i + 2] = __fmaf_rn(left, product[4 * i + 2], sum[4 * i + 2]);
        sum[4 * i + 3] = __fmaf_rn(right, product[4 * i + 3], sum[4 * i + 3]);
    }
}

template <class Tile>
__device__ void promote(float (&sum)[Tile::N / 2], const float (&product)[Tile::N / 2], const Scales<Tile>& scales,
                        const ColumnScales<Tile>& columns) {
    if constexpr (Tile::kSwapped) return promote_swapped<Tile>(sum, product, scales);
    float upper[Tile::kScales], lower[Tile::kScales];
#pragma unroll
    for (uint32_t i = 0; i < Tile::kScales; ++i) {
        upper[i] = __fmul_rn(scales.rows[0], scales.columns[i]);
        lower[i] = __fmul_rn(scales.rows[1], scales.columns[i]);
    }
    float up, low;
#pragma unroll
    for (uint32_t i = 0; i < Tile::N / 8; ++i) {
        if (i % (Tile::kStep / 8) == 0) {
            up = columns.choose(upper, i / (Tile::kStep / 8));
            low = columns.choose(lower, i / (Tile::kStep / 8));
        }
        sum[4 * i] = __fmaf_rn(up, product[4 * i], sum[4 * i]);
        sum[4 * i + 1] = __fmaf_rn(up, product[4 * i + 1], sum[4 * i + 1]);
        sum[4 * i + 2] = __fmaf_rn(low, product[4 * i + 2], sum[4 * i + 2]);
        sum[4 * i + 3] = __fmaf_rn(low, product[4 * i + 3], sum[4 * i + 3]);
    }
}

// The products of a warpgroup: one stage after the other, each in kWaves times 64 rows.
template <class Tile>
struct Consumer {
    uint32_t base, group, warp, lane;
    Seat<Tile> seat;
    Ring<Tile::kStages> ring, behind;

    // Until the stage is there; the scales of the thread's rows, or of its columns.
    __device__ void wait_for_stage(Scales<Tile> (&scales)[Tile::kWaves]) {
        wait(base + Tile::kFull + 8 * ring.stage, ring.parity);
        if constexpr (Tile::kSwapped) {
            const uint32_t pairs = base + Tile::kSFA + ring.stage * up_to(Tile::kBytesScales, 128) + lane % 4 * 8;
#pragma unroll
            for (uint32_t i = 0; i < Tile::N / 8; ++i)
                load_shared(pairs + 32 * i, scales[0].rows[2 * i], scales[0].rows[2 * i + 1]);
            return;
        }
        const uint32_t row = group * Tile::kWaves * kWave + warp * 16 + lane / 4;
        const uint32_t at = base + Tile::kSFA + ring.stage * up_to(Tile::kBytesScales, 128) + 4 * row;
#pragma unroll
        for (uint32_t wave = 0; wave < Tile::kWaves; ++wave) {
            scales[wave].rows[0] = load_shared(at + wave * kWave * 4);
            scales[wave].rows[1] = load_shared(at + wave * kWave * 4 + 32);
        }
    }

    __device__ void start(float (&product)[Tile::N / 2], uint32_t wave) {
        const uint32_t row = (group * Tile::kWaves + wave) * kWave;
        const uint64_t a = descriptor(base + Tile::kA + ring.stage * Tile::kBytesA + row * kBlockK);
        const uint64_t b = descriptor(base + Tile::kB + ring.stage * Tile::kBytesB);
        hold(product);
        fence_registers();
#pragma unroll
        for (uint32_t step = 0; step < kBlockK / 32; ++step)
            Wgmma<Tile::N>::multiply(product, a + 2 * step, b + 2 * step, step);
        commit_products();
        hold(product);
    }

    // Those that copy into the stage may fill it again.
    __device__ void release() {
        __syncwarp();
        const uint32_t empty = base + Tile::kEmpty + 8 * behind.stage;
        if (lane == 0) arrive(empty);
        if (lane < Tile::kDown && lane != seat.m) arrive_at(empty, seat.rank(lane, seat.n));
        if (lane < Tile::kAcross && lane != seat.n) arrive_at(empty, seat.rank(seat.m, lane));
        behind.step();
    }
};

// One product in flight: what the next step needs is fetched while the tensor core works.
template <class Tile>
__device__ void multiply_in_turn(float (&sum)[Tile::kWaves][Tile::N / 2], Consumer<Tile>& consumer,
                                 const ColumnScales<Tile>& columns, uint32_t blocks) {
    float product[Tile::N / 2], next[Tile::kScales];
    Scales<Tile> scales[Tile::kWaves];
    columns.read(next, 0);
    consumer.wait_for_stage(scales);
    for (uint32_t k = 0; k < blocks; ++k) {
        Scales<Tile> now[Tile::kWaves];
#pragma unroll
        for (uint32_t wave = 0; wave < Tile::kWaves; ++wave) {
            now[wave].rows[0] = scales[wave].rows[0];
            now[wave].rows[1] = scales[wave].rows[1];
#pragma unroll
            for (uint32_t i = 0; i < Tile::kScales; ++i) now[wave].columns[i] = next[i];
        }
#pragma unroll
        for (uint32_t wave = 0; wave < Tile::kWaves; ++wave) {
            consumer.start(product, wave);
            if (wave + 1 == Tile::kWaves) {
                consumer.ring.step();
                if (k + 1 < blocks) {
                    columns.read(next, k + 1);
                    consumer.wait_for_stage(scales);
                }
            }
            wait_for_products<0>();
            hold(product);
            if (wave + 1 == Tile::kWaves) consumer.release();
            promote<Tile>(sum[wave], product, now[wave], columns);
        }
    }
}

// Two products in flight: one is promoted while the other is computed.
template <class Tile>
__device__ void multiply_in_pairs(float (&sum)[Tile::N / 2], Consumer<Tile>& consumer, const ColumnScales<Tile>& columns,
                                  uint32_t blocks) {
    float product[2][Tile::N / 2];
    Scales<Tile> scales[2][1];
    const auto start = [&](uint32_t k, uint32_t which) {
        columns.read(scales[which][0].columns, k);
        consumer.wait_for_stage(scales[which]);
        consumer.start(product[which], 0);
        consumer.ring.step();
    };
    const auto finish = [&](uint32_t which) {
        hold(product[which]);
        consumer.release();
        promote<Tile>(sum, product[which], scales[which][0], columns);
        // Else few sums are put off until these registers are in flight again, and copied before.
        if constexpr (Tile::kSwapped) hold(sum);
    };
    uint32_t k = 0;
    start(0, 0);
    for (; k + 2 < blocks; k += 2) {
        start(k + 1, 1);
        wait_for_products<1>();
        finish(0);
        start(k + 2, 0);
        wait_for_products<1>();
        finish(1);
    }
    if (k + 1 < blocks) {
        start(k + 1, 1);
        wait_for_products<1>();
        finish(0);
        wait_for_products<0>();
        finish(1);
    } else {
        wait_for_products<0>();
        finish(0);
    }
}

template <class Tile, class Job, class... Of>
__device__ void multiply_tiles(uint32_t base, const TensorMap& d, const float* sfb, const Problem& problem, const Seat<Tile>& seat,
                               const Of&... of) {
    uint32_t blocks = (problem.k + kBlockK - 1) / kBlockK;
    // By a shuffle the compiler sees that these are the same for a warp.
    const uint32_t group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0) - 1;
    const uint32_t warp = __shfl_sync(0xffffffff, threadIdx.x / 32 % 4, 0);
    Consumer<Tile> consumer{base, group, warp, threadIdx.x % 32, seat, {}, {}};
    using Tiles = typename Job::template Tiles<true>;
    Tiles tiles(base, problem, seat, of...);
    for (typename Tiles::At place; tiles.take(place);) {
        ColumnScales<Tile> columns(sfb, problem, Tile::kSwapped ? place.m : place.n);
        if constexpr (Job::kInParts) columns.move(place.scales_of_b(problem, Tile::kSwapped)), blocks = place.blocks;
        const typename Job::Rows rows(problem, place, group, warp, threadIdx.x % 32, of...);
        float sum[Tile::kWaves][Tile::N / 2] = {};
        if constexpr (Tile::kDouble)
            multiply_in_pairs<Tile>(sum[0], consumer, columns, blocks);
        else
            multiply_in_turn<Tile>(sum, consumer, columns, blocks);
        if constexpr (Job::kInParts)
            if (!Job::complete(sum, place, group * 4 + warp, threadIdx.x % 32, of...)) continue;
        store_tile<Tile>(base, d, place, sum, group, warp, threadIdx.x % 32, rows);
    }
    if (threadIdx.x % 32 == 0) wait_for_reads<0>();
}

}  // namespace gemm
