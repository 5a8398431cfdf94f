// What codes and scales mean, as bf16: one multiplication makes a float of any narrow code, one the scaled value, one rounding.

#pragma once

#include "formats.cuh"

namespace block_scaled {

// A type of elements: what E5M2 calls infinities and NaN are numbers here, from 2^16 on.
template <uint32_t BITS, uint32_t MANTISSA, uint32_t BIAS>
struct Narrow {
    enum : uint32_t { kBits = BITS, kHigh = BITS == 4 ? 2 : 0 };  // e2m1 stands at bits 5 to 2 of its byte

    static __device__ float value(uint32_t byte) {
        const uint32_t code = byte >> kHigh & ((1u << BITS) - 1), magnitude = code & ((1u << (BITS - 1)) - 1);
        const float above = __uint_as_float((254 - BIAS) << 23);
        float of = __fmul_rn(__uint_as_float(magnitude << (23 - MANTISSA)), above);
        if (BITS == 8 && MANTISSA == 3 && magnitude == 0x7f) of = __uint_as_float(0x7fffffff);
        return __uint_as_float(__float_as_uint(of) | code >> (BITS - 1) << 31);
    }
};
using e4m3_type = Narrow<e4m3_bits, e4m3_mantissa, e4m3_bias>;
using e5m2_type = Narrow<e5m2_bits, e5m2_mantissa, e5m2_bias>;
using e2m3_type = Narrow<e2m3_bits, e2m3_mantissa, e2m3_bias>;
using e3m2_type = Narrow<e3m2_bits, e3m2_mantissa, e3m2_bias>;
using e2m1_type = Narrow<e2m1_bits, e2m1_mantissa, e2m1_bias>;

// Scales: those of E8M0 are powers of two from 2^-127 on, of UE4M3 the numbers of E4M3 with their sign.
struct ue8m0_type {
    static __device__ float value(uint32_t code) {
        return __uint_as_float(code == 0xff ? 0x7fffffff : max(code << 23, 0x400000u));
    }
};
using ue4m3_type = e4m3_type;

// Two neighbours along K, the first in the low half.
inline __device__ uint32_t pair(float first, float second) {
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
template <class Type>
__device__ uint32_t scaled_pair(uint32_t bytes, float scale) {
    return pair(__fmul_rn(Type::value(bytes & 0xff), scale), __fmul_rn(Type::value(bytes >> 8 & 0xff), scale));
}

}  // namespace block_scaled
