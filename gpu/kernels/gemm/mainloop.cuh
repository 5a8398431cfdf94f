// The copies of A, B and the scales of A into the stages of shared memory, and the products that consume them.

#pragma once

#include "async.cuh"
#include "epilogue.cuh"
#include "scheduler.cuh"
#include "wgmma.cuh"

namespace gemm {

// One thread. The blocks of a cluster that share rows of A, or of B, get them from the first of these blocks.
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
            const uint32_t full = base + Tile::kFull + 8 * ring.stage, column = (place.first() + k) * kBlockK;
            const uint32_t to_a = base + Tile::kA + ring.stage * Tile::kBytesA, to_b = base + Tile::kB + ring.stage * Tile::kBytesB;
            const uint32_t to_scales = base + Tile::kSFA + ring.stage * up_to(Tile::kBytesScales, 128);
            wait(base + Tile::kEmpty + 8 * ring.stage, ring.parity ^ 1);
            expect(full, Tile::kBytesStage);
            if (seat.copies_a()) {
                load_box_for<Tile::kAcross>(seat.mask_a(), to_scales, &sfa, full, Tile::kSwapped ? place.n : place.m,
                                            place.in_scales() + place.first() + k);
                load_box_for<Tile::kAcross>(seat.mask_a(), to_a, &a, full, column, place.in_a());
            }
            if (seat.copies_b()) load_box_for<Tile::kDown>(seat.mask_b(), to_b, &b, full, column, place.in_b());
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
    // One step of K for each lane of the warp, from `k` on; behind the last the last again.
    __device__ void read_ahead(float (&scales)[Tile::kScales], uint32_t k, uint32_t blocks) const {
        read(scales, min(k + threadIdx.x % 32, blocks - 1));
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
    uint32_t empty;  // the barrier of the first stage to which this lane tells that the warp has read it; 0: none
    Ring<Tile::kStages> ring, behind;

    // Lanes 0 to 2: this block, the one that copies A, the one that copies B.
    __device__ Consumer(uint32_t base, uint32_t group, uint32_t warp, uint32_t lane, const Seat<Tile>& seat)
        : base(base), group(group), warp(warp), lane(lane), empty(lane == 0 ? base + Tile::kEmpty : 0) {
        if constexpr (Tile::kBlocks > 1) {
            if (lane == 0) empty = address_at(empty, seat.rank(seat.m, seat.n));
            if (lane == 1 && !seat.copies_a()) empty = address_at(base + Tile::kEmpty, seat.rank(seat.m, 0));
            if (lane == 2 && !seat.copies_b()) empty = address_at(base + Tile::kEmpty, seat.rank(0, seat.n));
        }
    }

    __device__ void wait_for_stage() const { wait(base + Tile::kFull + 8 * ring.stage, ring.parity); }

    // The scales of the thread's rows, or of its columns.
    __device__ void read(Scales<Tile>& scales, uint32_t wave) const {
        const uint32_t of = base + Tile::kSFA + ring.stage * up_to(Tile::kBytesScales, 128);
        if constexpr (Tile::kSwapped) {
#pragma unroll
            for (uint32_t i = 0; i < Tile::N / 8; ++i)
                load_shared(of + lane % 4 * 8 + 32 * i, scales.rows[2 * i], scales.rows[2 * i + 1]);
        } else {
            const uint32_t at = of + 4 * (Tile::row(group, 0) + warp * 16 + lane / 4);
            scales.rows[0] = load_shared(at + 4 * (Tile::row(0, wave)));
            scales.rows[1] = load_shared(at + 4 * (Tile::row(0, wave)) + 32);
        }
    }

    __device__ void start(float (&product)[Tile::N / 2], uint32_t wave) {
        const uint32_t a = first_descriptor(base + Tile::kA + Tile::row(group, 0) * kBlockK) +
                           (ring.stage * Tile::kBytesA + Tile::row(0, wave) * kBlockK) / 16;
        const uint32_t b = first_descriptor(base + Tile::kB) + ring.stage * Tile::kBytesB / 16;
        hold(product);
        fence_registers();
#pragma unroll
        for (uint32_t step = 0; step < kBlockK / 32; ++step)
            Wgmma<Tile::N>::multiply(product, kDescriptor | (a + 2 * step), kDescriptor | (b + 2 * step), step);
        commit_products();
        hold(product);
    }

    // Those that copy into the stage may fill it again.
    __device__ void release() {
        __syncwarp();
        if (empty != 0) {
            if constexpr (Tile::kBlocks > 1)
                arrive_at(empty + 8 * behind.stage);
            else
                arrive(empty + 8 * behind.stage);
        }
        behind.step();
    }
};

// One product in flight; it is promoted while that of the other warpgroup is computed. `ahead`: the scales of B of the first 32
// steps, one in each lane.
template <class Tile>
__device__ void multiply_in_turn(float (&sum)[Tile::kWaves][Tile::N / 2], Consumer<Tile>& consumer,
                                 const ColumnScales<Tile>& columns, float (&ahead)[Tile::kScales], uint32_t blocks) {
    float product[Tile::N / 2];
    for (uint32_t from = 0; from < blocks; from += 32) {
        float lanes[Tile::kScales];
#pragma unroll
        for (uint32_t i = 0; i < Tile::kScales; ++i) lanes[i] = ahead[i];
        columns.read_ahead(ahead, from + 32, blocks);
        const uint32_t steps = min(32u, blocks - from);
#pragma unroll 4
        for (uint32_t k = 0; k < steps; ++k) {
            Scales<Tile> scales;
            consumer.wait_for_stage();
#pragma unroll
            for (uint32_t wave = 0; wave < Tile::kWaves; ++wave) {
                consumer.read(scales, wave);
                consumer.start(product, wave);
                if (wave == 0) {
#pragma unroll
                    for (uint32_t i = 0; i < Tile::kScales; ++i) scales.columns[i] = __shfl_sync(0xffffffff, lanes[i], k);
                }
                wait_for_products<0>();
                hold(product);
                if (wave + 1 == Tile::kWaves) {
                    consumer.release();
                    consumer.ring.step();
                }
                promote<Tile>(sum[wave], product, scales, columns);
            }
        }
    }
}

// Two products in flight: one is promoted while the other is computed.
template <class Tile>
__device__ void multiply_in_pairs(float (&sum)[Tile::N / 2], Consumer<Tile>& consumer, const ColumnScales<Tile>& columns,
                                  uint32_t blocks) {
    float product[2][Tile::N / 2];
    Scales<Tile> scales[2];
    const auto start = [&](uint32_t k, uint32_t which) {
        columns.read(scales[which].columns, k);
        consumer.wait_for_stage();
        consumer.read(scales[which], 0);
        consumer.start(product[which], 0);
        consumer.ring.step();
    };
    const auto finish = [&](uint32_t which) {
        hold(product[which]);
        consumer.release();
        promote<Tile>(sum, product[which], scales[which], columns);
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
    const uint32_t lane = threadIdx.x % 32;
    // By a shuffle the compiler sees that these are the same for a warp.
    const uint32_t group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0) - 1;
    const uint32_t warp = __shfl_sync(0xffffffff, threadIdx.x / 32 % 4, 0);
    Consumer<Tile> consumer(base, group, warp, lane, seat);
    using Tiles = typename Job::template Tiles<true>;
    Tiles tiles(base, problem, seat, of...);
    typename Tiles::At place;
    // The next tile and its first scales of B are read before the sums of this one are stored.
    float ahead[Tile::kScales];
    const auto columns_of = [&](const typename Tiles::At& at) {
        ColumnScales<Tile> columns(sfb, problem, Tile::kSwapped ? at.m : at.n);
        if constexpr (Job::kInParts) columns.move(at.scales_of_b(problem, Tile::kSwapped)), blocks = at.blocks;
        if constexpr (!Tile::kDouble) columns.read_ahead(ahead, 0, blocks);
        return columns;
    };
    bool some = tiles.take(place);
    if (!some) return;
    for (ColumnScales<Tile> columns = columns_of(place); some;) {
        const typename Job::Rows rows(problem, place, group, warp, lane, of...);
        float sum[Tile::kWaves][Tile::N / 2] = {};
        if constexpr (Tile::kDouble) {
            multiply_in_pairs<Tile>(sum[0], consumer, columns, blocks);
        } else {
            meet<128 * Tile::kGroups>(1);  // orders nothing: else one warpgroup runs ahead, and both get their stages late
            multiply_in_turn<Tile>(sum, consumer, columns, ahead, blocks);
        }
        const typename Tiles::At at = place;
        bool complete = true;
        if constexpr (Job::kInParts) complete = Job::complete(sum, at, group * 4 + warp, lane, of...);
        some = tiles.take(place);
        if (some) columns = columns_of(place);
        if (complete) store_tile<Tile>(base, d, at, sum, group, warp, lane, rows);
    }
    if (lane == 0) wait_for_reads<0>();
}

}  // namespace gemm
