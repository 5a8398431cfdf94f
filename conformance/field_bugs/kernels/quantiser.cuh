// What the quantisers have in common: a warp for a row of 128 numbers, four for each lane.
#pragma once
#include <cuda/std/cstdint>
#include <cuda_fp8.h>
using cuda::std::uint32_t;
using cuda::std::uint8_t;

inline __device__ float largest(float amax) {
    for (uint32_t other = 16; other > 0; other /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffff, amax, other));
    return amax;
}

inline __device__ uint8_t saturated(float value) { return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3); }
