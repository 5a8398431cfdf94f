// wgmma of bf16: a warpgroup has 64 x 64 of D. Codes of A become bf16 in the registers that an instruction takes, those of B on
// their way to shared memory.
//
// A stage is K = 128: rows of 128 bytes of A, and of B two tiles of 64 columns in bf16. The next stage's codes are on their way
// into registers while this one is multiplied.

#pragma once

#include "../gemm/wgmma.cuh"
#include "staging.cuh"
#include "values.cuh"

namespace block_scaled {

enum : uint32_t {
    kStageElements = 128,
    kSteps = kStageElements / 16,
    kHalfBytes = kTile * kRowBytes,  // of 64 columns of B
};

// The word with the scale of a chunk, which is sixteen elements of one block, and the scale.
template <class Entry>
__device__ uint32_t chunk_word(const Operand& of, uint32_t row, uint32_t k0, uint32_t chunk, uint32_t k) {
    const uint32_t group = (k0 + chunk * kChunk) / Entry::kBlock / kTileBlocks;
    return row < of.rows ? scale_word<Entry::kOne>(of.scales, row, group, k / Entry::kBlock) : 0;
}
template <class Entry>
__device__ float chunk_scale(uint32_t word, uint32_t chunk) {
    return Entry::Stored::value(word >> 8 * (chunk * kChunk / Entry::kBlock % kTileBlocks) & 0xff);
}

// The chunks of B that this thread brings, as bf16: two chunks for each.
template <class Entry>
__device__ void store_scaled(uint8_t* to, const typename Entry::FetchedB& of, const Operand& b, uint32_t left, uint32_t k0, uint32_t k) {
    using Type = typename Entry::B;
    const uint32_t chunk = threadIdx.x % kChunks;
    uint8_t* half = to + chunk / 4 * kHalfBytes;
#pragma unroll
    for (uint32_t i = 0; i < kMine; ++i) {
        const uint32_t row = threadIdx.x / kChunks + i * kRowsApart;
        const float scale = chunk_scale<Entry>(chunk_word<Entry>(b, left + row, k0, chunk, k), chunk);
        const uint4 bytes = in_bytes<Type::kBits>(of.chunks[i]);
        const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
        for (uint32_t part = 0; part < 2; ++part) {
            const uint32_t low = words[2 * part], high = words[2 * part + 1];
            *reinterpret_cast<uint4*>(half + place(row, chunk % 4 * 2 + part)) =
                make_uint4(scaled_pair<Type>(low, scale), scaled_pair<Type>(low >> 16, scale), scaled_pair<Type>(high, scale),
                           scaled_pair<Type>(high >> 16, scale));
        }
    }
}

// A's registers of every step: rows g and g + 8 of the warp's sixteen, columns 2 t and 2 t + 8.
template <class Entry>
__device__ void load_scaled(uint32_t (&to)[kSteps][4], const uint8_t* from, const Operand& a, uint32_t top, uint32_t k0, uint32_t k) {
    constexpr uint32_t kOfWord = kTileBlocks * Entry::kBlock / kChunk;  // steps that a word of scales serves
    const uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (uint32_t below = 0; below < 2; ++below) {
        const uint32_t row = first + below * 8;
        const uint8_t* codes = from + lane % 4 * 2;
        uint32_t word;
#pragma unroll
        for (uint32_t step = 0; step < kSteps; ++step) {
            if (step % kOfWord == 0) word = chunk_word<Entry>(a, top + row, k0, step, k);
            const float scale = chunk_scale<Entry>(word, step);
#pragma unroll
            for (uint32_t right = 0; right < 2; ++right) {
                const uint16_t two = *reinterpret_cast<const uint16_t*>(codes + place(row, step) + right * 8);
                to[step][below + 2 * right] = scaled_pair<typename Entry::A>(two, scale);
            }
        }
    }
}

using Sums = float[kTile / 2];

inline __device__ void multiply(Sums& d, const uint32_t (&a)[4], uint64_t b, uint32_t add) {
    asm volatile(
        "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %37, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" GEMM_R3 "}, {%32, %33, %34, %35}, %36, add, 1, 1, 0;\n\t}"
        : GEMM_V3
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// Two neighbours in a row, and the same eight rows below, of each eight columns.
inline __device__ void store(const Sums& sums, float* d, float scale, const Problem& problem, uint32_t top, uint32_t left) {
    const uint32_t lane = threadIdx.x % 32, first = top + threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (uint32_t i = 0; i < kTile / 2; ++i) {
        const uint32_t row = first + i % 4 / 2 * 8, column = left + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (row < problem.m && column < problem.n) d[size_t(row) * problem.pitch_d + column] = __fmul_rn(scale, sums[i]);
    }
}

template <class Entry>
__device__ void multiply_tile(const Operand& a, const Operand& b, float* d, float scale, const Problem& problem) {
    __shared__ __align__(1024) uint8_t stage_a[kTile * kRowBytes], stage_b[2 * kHalfBytes];
    const uint32_t top = blockIdx.y * kTile, left = blockIdx.x * kTile, of_b = shared_address(stage_b);
    Sums sums;
    typename Entry::FetchedA next_a;
    typename Entry::FetchedB next_b;
    next_a.fetch(a, top, 0, problem.k);
    next_b.fetch(b, left, 0, problem.k);
    for (uint32_t k0 = 0; k0 < problem.k; k0 += kStageElements) {
        __syncthreads();  // every warp's products have read the stage before
        next_a.store(stage_a);
        store_scaled<Entry>(stage_b, next_b, b, left, k0, problem.k);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (k0 + kStageElements < problem.k) {
            next_a.fetch(a, top, k0 + kStageElements, problem.k);
            next_b.fetch(b, left, k0 + kStageElements, problem.k);
        }
        uint32_t of_a[kSteps][4];
        load_scaled<Entry>(of_a, stage_a, a, top, k0, problem.k);
#pragma unroll
        for (uint32_t i = 0; i < kSteps * 4; ++i) asm volatile("" : "+r"(of_a[i / 4][i % 4])::"memory");
        gemm::hold(sums);
        gemm::fence_registers();
#pragma unroll
        for (uint32_t step = 0; step < kSteps; ++step)  // beyond K codes are zero, and change no sum
            multiply(sums, of_a[step], gemm::descriptor(of_b + step / 4 * kHalfBytes + step % 4 * 32), k0 + step != 0);
        gemm::commit_products();
        gemm::wait_for_products<0>();
        gemm::hold(sums);
    }
    store(sums, d, scale, problem, top, left);
}

}  // namespace block_scaled
