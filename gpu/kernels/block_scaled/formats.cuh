// Elements and scales as memory holds them, and how many of both a tile has.

#pragma once

#include <stdint.h>

namespace block_scaled {

// Enumerators, because a constexpr variable may leave a .global of its own in the PTX.
enum : uint32_t {
    // bits of an element, by its name in PTX
    e4m3_bits = 8, e5m2_bits = 8, e2m3_bits = 6, e3m2_bits = 6, e2m1_bits = 4,
    // its bits of mantissa, and the bias of its exponent
    e4m3_mantissa = 3, e5m2_mantissa = 2, e2m3_mantissa = 3, e3m2_mantissa = 2, e2m1_mantissa = 1,
    e4m3_bias = 7, e5m2_bias = 15, e2m3_bias = 1, e3m2_bias = 3, e2m1_bias = 1,
    // its code in an instruction descriptor, beside FP8 and FP6
    e4m3_code = 0, e5m2_code = 1, e2m3_code = 3, e3m2_code = 4, e2m1_code = 5, ue8m0_code = 1, ue4m3_code = 0,
    // elements that share a scale, by its name in PTX, and the code of one
    ue8m0_block = 32, ue4m3_block = 16,
    ue8m0_one = 0x7f, ue4m3_one = 0x38,
};
enum : uint32_t { kTileRows = 128, kTileBlocks = 4, kTileBytes = kTileRows * kTileBlocks };  // of shuffled scales

// Rows of an operand: dense codes, each row from a multiple of 16 bytes on; their scales, shuffled as tiles of 128 x 4.
struct Operand {
    const uint8_t* codes;
    const uint8_t* scales;
    uint32_t rows, pitch;
};
struct Problem {
    uint32_t m, n, k, pitch_d;
};

// The four scales of a row from block 4 * `group` on; those beyond `blocks` are one, whatever lies in the pads.
template <uint32_t ONE>
__device__ uint32_t scale_word(const uint8_t* scales, uint32_t row, uint32_t group, uint32_t blocks) {
    constexpr uint32_t kOnes = ONE * 0x01010101u;
    const uint32_t first = group * kTileBlocks, groups = (blocks + kTileBlocks - 1) / kTileBlocks;
    if (first >= blocks) return kOnes;
    const size_t tile = size_t(row / kTileRows) * groups + group;
    const uint32_t within = row % 32 * 16 + row % kTileRows / 32 * 4;
    const uint32_t word = *reinterpret_cast<const uint32_t*>(scales + tile * kTileBytes + within);
    if (blocks - first >= kTileBlocks) return word;
    const uint32_t kept = (1u << 8 * (blocks - first)) - 1;
    return (word & kept) | (kOnes & ~kept);
}

// Sixteen elements of BITS as memory holds them, in the lowest bytes.
template <uint32_t BITS>
__device__ uint4 sixteen(const uint8_t* from) {
    if constexpr (BITS == 8) return *reinterpret_cast<const uint4*>(from);
    const uint32_t* words = reinterpret_cast<const uint32_t*>(from);
    if constexpr (BITS == 6) return make_uint4(words[0], words[1], words[2], 0);
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    return make_uint4(two.x, two.y, 0, 0);
}

// Four elements of 6 bits, or of 4, each into a byte of its own: at its low end, e2m1 at bits 5 to 2 as mma reads it.
inline __device__ uint32_t bytes_of_sixes(uint32_t packed) {
    return (packed & 0x3f) | (packed << 2 & 0x3f00) | (packed << 4 & 0x3f0000) | (packed << 6 & 0x3f000000);
}
inline __device__ uint32_t bytes_of_fours(uint32_t packed) {
    return ((packed & 0xf) | (packed << 4 & 0xf00) | (packed << 8 & 0xf0000) | (packed << 12 & 0xf000000)) << 2;
}
template <uint32_t BITS>
__device__ uint4 in_bytes(const uint4& of) {
    if constexpr (BITS == 8) return of;
    if constexpr (BITS == 6)
        return make_uint4(bytes_of_sixes(of.x), bytes_of_sixes(of.x >> 24 | of.y << 8),
                          bytes_of_sixes(of.y >> 16 | of.z << 16), bytes_of_sixes(of.z >> 8));
    return make_uint4(bytes_of_fours(of.x), bytes_of_fours(of.x >> 16), bytes_of_fours(of.y), bytes_of_fours(of.y >> 16));
}

}  // namespace block_scaled
