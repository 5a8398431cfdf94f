// tcgen05.mma with scales by block: a block of four warps has 128 x 128 of D, which lies in tensor memory.
//
// One thread of warp 0 copies by tensor maps and in bulk. Warp 1 waits for stages, makes ones of the scales that pad the last
// blocks of K, and one thread of it multiplies; then all four store D. A stage is 128 bytes of each row and the scales of those elements.

#pragma once

#include "../gemm/async.cuh"
#include "formats.cuh"
#include "tensor_core.cuh"

namespace block_scaled {

enum : uint32_t {
    kThreads = 128,
    kTile = 128,  // rows of A, and of B, of a block
    kSteps = 4,   // of 32 bytes
    kStages = 2,
    kOperandBytes = kTile * 128,
    kMostScaleBytes = kSteps * kTileBytes,
    kStageBytes = 2 * (kOperandBytes + kMostScaleBytes),
    kDynamic = kStages * kStageBytes,
    kColumns = 256,       // of tensor memory: D, then the scales of each stage
    kScaleColumns = 32,   // of a stage
    kTileColumns = 4,     // of a tile of scales
};

struct Barriers {
    uint64_t full[kStages], empty[kStages], done;
};

// Where a stage's rows of A and of B and its scales lie.
struct Stage {
    uint32_t a, b, sfa, sfb;
    __device__ explicit Stage(uint32_t shared, uint32_t number) {
        a = shared + number % kStages * kStageBytes;
        b = a + kOperandBytes;
        sfa = b + kOperandBytes;
        sfb = sfa + kMostScaleBytes;
    }
};

// Tiles of scales along K that a matrix has, and those of a stage.
template <class Entry>
struct Groups {
    enum : uint32_t { kOfStage = kSteps * Entry::kScales / kTileBlocks };
    uint32_t all;
    __device__ explicit Groups(uint32_t k) : all((k / Entry::kBlock + kTileBlocks - 1) / kTileBlocks) {}
    __device__ uint32_t of(uint32_t stage) const { return min(uint32_t{kOfStage}, all - stage * kOfStage); }
};

inline __device__ uint32_t at(const uint64_t& barrier) { return gemm::shared_address(&barrier); }

inline __device__ void copy_bytes(uint32_t to, const uint8_t* from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}

template <class Entry>
__device__ void copy_stages(const gemm::TensorMap* a, const gemm::TensorMap* b, const uint8_t* sfa, const uint8_t* sfb,
                            const Barriers& barriers, uint32_t shared, uint32_t stages, Groups<Entry> groups) {
    for (uint32_t i = 0; i < stages; ++i) {
        const Stage stage(shared, i);
        const uint32_t full = at(barriers.full[i % kStages]), bytes = groups.of(i) * kTileBytes;
        gemm::wait(at(barriers.empty[i % kStages]), i / kStages % 2 ^ 1);
        gemm::expect(full, kTile * Entry::kCountedBytes + 2 * bytes);
        gemm::load_box(stage.a, a, full, i * Entry::kBoxElements, blockIdx.y * kTile);
        gemm::load_box(stage.b, b, full, i * Entry::kBoxElements, blockIdx.x * kTile);
        const size_t first = i * Groups<Entry>::kOfStage;
        copy_bytes(stage.sfa, sfa + (size_t(blockIdx.y) * groups.all + first) * kTileBytes, bytes, full);
        copy_bytes(stage.sfb, sfb + (size_t(blockIdx.x) * groups.all + first) * kTileBytes, bytes, full);
    }
}

// Where an instruction has several blocks and K ends within one: what pads the scales of the last stage becomes one, before it
// is copied to tensor memory. By a warp.
template <class Entry>
__device__ void mask_pads(const Stage& stage, uint32_t groups, uint32_t blocks) {
    if (Entry::kScales == 1 || blocks % kTileBlocks == 0) return;
    const uint32_t tile = (groups - 1) * kTileBytes;
    const uint32_t kept = (1u << 8 * (blocks % kTileBlocks)) - 1, ones = Entry::kOne * 0x01010101u & ~kept;
    for (uint32_t i = threadIdx.x % 32 * 16; i < 2 * kTileBytes; i += 32 * 16) {
        const uint32_t where = (i < kTileBytes ? stage.sfa : stage.sfb) + tile + i % kTileBytes;
        uint4 words = gemm::load_shared_16(where);
        words.x = (words.x & kept) | ones;
        words.y = (words.y & kept) | ones;
        words.z = (words.z & kept) | ones;
        words.w = (words.w & kept) | ones;
        gemm::store_shared_16(where, words);
    }
    gemm::publish_to_copies();
    __syncwarp();
}

template <class Entry>
__device__ void multiply_stage(const Stage& stage, uint32_t groups, uint32_t tensor, uint32_t sfa, uint32_t left, bool adds) {
    const uint32_t sfb = sfa + kScaleColumns / 2;
    for (uint32_t group = 0; group < groups; ++group) {
        copy_scales(sfa + group * kTileColumns, stage.sfa + group * kTileBytes);
        copy_scales(sfb + group * kTileColumns, stage.sfb + group * kTileBytes);
    }
#pragma unroll
    for (uint32_t step = 0; step < kSteps; ++step) {
        if (step * Entry::kStep >= left) break;
        const uint32_t scale = step * Entry::kScales, column = scale / kTileBlocks * kTileColumns;
        const uint32_t id = scale % kTileBlocks, word = Entry::kDescriptor | id << 4 | id << 29;
        Entry::multiply(tensor, rows_descriptor(stage.a + step * 32), rows_descriptor(stage.b + step * 32), word, sfa + column,
                        sfb + column, adds || step != 0);
    }
}

// By a warp, of which one thread asks for all products.
template <class Entry>
__device__ void multiply_stages(const Barriers& barriers, uint32_t shared, uint32_t stages, Groups<Entry> groups, uint32_t tensor,
                                uint32_t k) {
    for (uint32_t i = 0; i < stages; ++i) {
        const Stage stage(shared, i);
        gemm::wait(at(barriers.full[i % kStages]), i / kStages % 2);
        if (i + 1 == stages) mask_pads<Entry>(stage, groups.of(i), k / Entry::kBlock);
        if (threadIdx.x % 32 == 0) {
            multiply_stage<Entry>(stage, groups.of(i), tensor, tensor + kTile + i % kStages * kScaleColumns,
                                  k - i * Entry::kStageElements, i != 0);
            commit(at(i + 1 == stages ? barriers.done : barriers.empty[i % kStages]));
        }
    }
}

// Each thread has a row of D, and stores four neighbours at once where rows begin at multiples of 16 bytes.
inline __device__ void store(float* d, uint32_t tensor, float scale, const Problem& problem) {
    const uint32_t row = blockIdx.y * kTile + threadIdx.x, left = blockIdx.x * kTile;
    const uint32_t lanes = tensor + (threadIdx.x / 32 << 21);
    const bool aligned = (problem.pitch_d * sizeof(float) | reinterpret_cast<uintptr_t>(d)) % sizeof(float4) == 0;
    for (uint32_t start = 0; start < kTile && left + start < problem.n; start += 32) {
        float of[32];
        load_columns(of, lanes + start);
        if (row >= problem.m) continue;
        const uint32_t first = left + start;
        float* to = d + size_t(row) * problem.pitch_d + first;
#pragma unroll
        for (uint32_t i = 0; i < 32; ++i) of[i] = __fmul_rn(scale, of[i]);
#pragma unroll
        for (uint32_t i = 0; i < 32; i += 4)
            if (aligned && first + i + 4 <= problem.n)
                *reinterpret_cast<float4*>(to + i) = make_float4(of[i], of[i + 1], of[i + 2], of[i + 3]);
            else
                for (uint32_t j = i; j < i + 4 && first + j < problem.n; ++j) to[j] = of[j];
    }
}

template <class Entry>
__device__ void multiply_tile(const gemm::TensorMap* a, const gemm::TensorMap* b, const uint8_t* sfa, const uint8_t* sfb, float* d,
                              float scale, const Problem& problem) {
    extern __shared__ __align__(1024) uint8_t dynamic[];
    __shared__ Barriers barriers;
    __shared__ uint32_t slot;
    const uint32_t warp = threadIdx.x / 32, shared = gemm::shared_address(dynamic);
    const uint32_t stages = (problem.k + Entry::kStageElements - 1) / Entry::kStageElements;
    const Groups<Entry> groups(problem.k);
    if (warp == 0) allocate<kColumns>(gemm::shared_address(&slot));
    if (threadIdx.x == 32) {
        for (uint32_t i = 0; i < kStages; ++i) {
            gemm::barrier_init(at(barriers.full[i]), 1);
            gemm::barrier_init(at(barriers.empty[i]), 1);
        }
        gemm::barrier_init(at(barriers.done), 1);
    }
    __syncthreads();
    const uint32_t tensor = *const_cast<volatile uint32_t*>(&slot);
    if (threadIdx.x == 0) copy_stages<Entry>(a, b, sfa, sfb, barriers, shared, stages, groups);
    if (warp == 1) multiply_stages<Entry>(barriers, shared, stages, groups, tensor, problem.k);
    __syncwarp();
    wait_for_products(at(barriers.done), 0);
    store(d, tensor, scale, problem);
    __syncthreads();
    if (warp == 0) give_back<kColumns>(tensor);
}

}  // namespace block_scaled
