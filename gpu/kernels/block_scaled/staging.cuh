// Rows of codes on their way through registers into rows of 128 bytes in shared memory, whose chunks of 16 are swizzled.

#pragma once

#include "formats.cuh"

namespace block_scaled {

enum : uint32_t {
    kThreads = 128,
    kTile = 64,  // rows of A, and of B, of a block
    kRowBytes = 128,
    kChunk = 16,
    kChunks = kRowBytes / kChunk,
    kMine = kTile * kChunks / kThreads,  // chunks of an operand that a thread copies
    kRowsApart = kThreads / kChunks,     // from one of them to the next
};

inline __device__ uint32_t shared_address(const void* generic) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(generic));
}
inline __device__ uint32_t place(uint32_t row, uint32_t chunk) {
    return row * kRowBytes + (chunk ^ row % kChunks) * kChunk;
}

// The part of an operand that a thread brings: a chunk in each of kMine rows. Nothing is read beyond its rows or beyond K.
template <uint32_t BITS, bool DENSE>
struct Fetched {
    enum : uint32_t { kElements = DENSE ? kChunk * 8 / BITS : kChunk };
    uint4 chunks[kMine];

    __device__ void fetch(const Operand& of, uint32_t top, uint32_t k0, uint32_t k) {
        const uint32_t at = k0 + threadIdx.x % kChunks * kElements;
#pragma unroll
        for (uint32_t i = 0; i < kMine; ++i) {
            const uint32_t row = top + threadIdx.x / kChunks + i * kRowsApart;
            chunks[i] = make_uint4(0, 0, 0, 0);
            if (row >= of.rows || at >= k) continue;
            const uint8_t* from = of.codes + size_t(row) * of.pitch + at / 8 * BITS;
            if (kElements == 16 || k - at < kElements)  // K is a multiple of 16
                chunks[i] = sixteen<BITS>(from);
            else
                chunks[i] = *reinterpret_cast<const uint4*>(from);
        }
    }
    __device__ void store(uint8_t* to) const {
#pragma unroll
        for (uint32_t i = 0; i < kMine; ++i) {
            const uint32_t row = threadIdx.x / kChunks + i * kRowsApart;
            *reinterpret_cast<uint4*>(to + place(row, threadIdx.x % kChunks)) = DENSE ? chunks[i] : in_bytes<BITS>(chunks[i]);
        }
    }
};

}  // namespace block_scaled
