// A tile in shared memory: rows of kChunks chunks of 16 bytes, swizzled so that eight rows at one place of K lie in
// eight different chunk columns of the banks; and how the threads of a team copy one from global memory.

#pragma once

#include "ptx.cuh"

namespace linear {

// What is added to a row's chunk numbers, by exclusive or.
template <uint32_t kChunks>
__device__ uint32_t swizzle_key(uint32_t row) {
    return kChunks >= 8 ? row % 8 : row / (8 / kChunks) % kChunks;
}

// Byte offset of a chunk in its tile. Of `chunk ^ n` it is this offset ^ (16 * n).
template <uint32_t kChunks>
__device__ uint32_t chunk_offset(uint32_t row, uint32_t chunk) {
    return row * (kChunks * kChunk) + (chunk ^ swizzle_key<kChunks>(row)) * kChunk;
}

// Rows of an operand in global memory, from the tile's first element on.
struct Rows {
    uint64_t address;
    uint64_t pitch;  // bytes from row to row
    uint32_t rows;   // that exist
    uint32_t bytes;  // of each that exist
    uint32_t width;  // the largest power of two up to 16 that divides the address of every row
};

inline __device__ uint32_t access_width(uint64_t address, uint64_t pitch) {
    const uint32_t low = static_cast<uint32_t>(address | pitch) | kChunk;
    return low & (0u - low);
}

// Four bytes from elements that no copy can move: `valid` of them, the rest zero.
template <uint32_t kElement>
__device__ uint32_t load_word(uint64_t from, uint32_t valid) {
    uint32_t word = 0;
#pragma unroll
    for (uint32_t at = 0; at < 4; at += kElement) {
        if (at >= valid) break;
        if constexpr (kElement == 2)
            word |= uint32_t{*reinterpret_cast<const uint16_t*>(from + at)} << (8 * at);
        else
            word |= uint32_t{*reinterpret_cast<const uint8_t*>(from + at)} << (8 * at);
    }
    return word;
}

// One thread's share of a tile: every kThreads-th chunk, or where addresses forbid chunks every kThreads-th word.
// kAligned: the width is 16. kWhole: the tile is all inside. Outside there are zeros.
template <uint32_t kRows, uint32_t kChunks, uint32_t kElement, uint32_t kThreads, bool kAligned, bool kWhole>
__device__ void copy_tile(uint32_t to, const Rows& from, uint32_t thread) {
    constexpr uint32_t kTotal = kRows * kChunks, kPass = kThreads / kChunks;  // rows that the threads copy at a time
    static_assert(kThreads % kChunks == 0, "a thread copies one chunk column");
    const auto inside = [&](uint32_t row, uint32_t at, uint32_t wanted) {
        return row < from.rows && at < from.bytes ? min(from.bytes - at, wanted) : 0;
    };
    if (kAligned || from.width == kChunk) {
        const uint32_t first = thread / kChunks, at = thread % kChunks * kChunk;
        const uint32_t place = chunk_offset<kChunks>(first, thread % kChunks);
        const uint64_t source = from.address + first * from.pitch + at;
#pragma unroll
        for (uint32_t row = 0; row < kRows; row += kPass) {
            if (row + kPass > kRows && row + first >= kRows) break;
            // The key of row + first is that of row by exclusive or with that of first: no bit of one is in the other.
            const uint32_t target = to + row * (kChunks * kChunk) + (place ^ (swizzle_key<kChunks>(row) * kChunk));
            if constexpr (kWhole) {
                copy_async(target, source + row * from.pitch);
            } else {
                const uint32_t valid = inside(row + first, at, kChunk);
                copy_async<kChunk>(target, valid ? source + row * from.pitch : from.address, valid);
            }
        }
    } else {
#pragma unroll 1
        for (uint32_t index = thread; index < kTotal * 4; index += kThreads) {
            const uint32_t row = index / (kChunks * 4), at = index % (kChunks * 4) * 4, valid = inside(row, at, 4);
            const uint32_t place = to + chunk_offset<kChunks>(row, at / kChunk) + at % kChunk;
            const uint64_t source = from.address + row * from.pitch + at;
            if (from.width >= 4)
                copy_async<4>(place, valid ? source : from.address, valid);
            else
                store_word(place, load_word<kElement>(source, valid));
        }
    }
}

}  // namespace linear
