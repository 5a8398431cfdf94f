// What quantisers that read vectors of 16 bytes share: wide elements, their largest, the codes of a vector.

#pragma once

#include <cuda/std/cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#if __CUDA_FTZ  // NVRTC says so; nvcc has no such macro
#error "compiled with -ftz=true or --use_fast_math: subnormals would be flushed"
#endif

namespace vectors {

using cuda::std::int32_t;
using cuda::std::uint16_t;
using cuda::std::uint32_t;
using cuda::std::uint64_t;
using cuda::std::uint8_t;
using cuda::std::uintptr_t;

// Enumerators, because a constexpr variable may leave a .global of its own in the PTX.
enum : int { kMaxBlock = 1024, kWarp = 32, kVectors = 4 };

// ---------------------------------------------------------------------------------------------------------------------
// Wide elements. Widening is exact.

// Wide<T> of an element T offers
//   kPerVector               elements in 16 bytes
//   bits(x)                  the pattern of one element
//   peak_bits(vector)        the largest magnitude of a vector as a float32 pattern; a NaN is beyond infinity
//   unpack(word, x)          the elements of a 32-bit word, the first in its low bits
template <class T>
struct Wide;

template <>
struct Wide<float> {
    enum : int { kPerVector = 4 };

    static __device__ uint32_t bits(float x) { return __float_as_uint(x); }
    static __device__ uint32_t peak_bits(uint4 v) {
        const uint32_t low = max(v.x & 0x7fffffffu, v.y & 0x7fffffffu);
        const uint32_t high = max(v.z & 0x7fffffffu, v.w & 0x7fffffffu);
        return max(low, high);
    }
    static __device__ void unpack(uint32_t word, float* x) { x[0] = __uint_as_float(word); }
};

// Pairs of halves: __hmax2_nan of magnitudes is a NaN where either is one.
template <class Pair>
__device__ uint32_t pair_peak(uint4 v) {
    const uint32_t kept = 0x7fff7fffu, a = v.x & kept, b = v.y & kept, c = v.z & kept, d = v.w & kept;
    const Pair low = __hmax2_nan(reinterpret_cast<const Pair&>(a), reinterpret_cast<const Pair&>(b));
    const Pair high = __hmax2_nan(reinterpret_cast<const Pair&>(c), reinterpret_cast<const Pair&>(d));
    const Pair peak = __hmax2_nan(low, high);
    return reinterpret_cast<const uint32_t&>(peak);
}

template <>
struct Wide<__nv_bfloat16> {
    enum : int { kPerVector = 8 };

    static __device__ uint32_t bits(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }
    static __device__ uint32_t peak_bits(uint4 v) {
        const uint32_t pair = pair_peak<__nv_bfloat162>(v);
        return max(pair << 16, pair & 0xffff0000u);
    }
    static __device__ void unpack(uint32_t word, float* x) {
        x[0] = __uint_as_float(word << 16);
        x[1] = __uint_as_float(word & 0xffff0000u);
    }
};

template <>
struct Wide<__half> {
    enum : int { kPerVector = 8 };

    static __device__ uint32_t bits(__half x) { return __half_as_ushort(x); }
    static __device__ uint32_t peak_bits(uint4 v) {
        const uint32_t pair = pair_peak<__half2>(v);
        const float2 both = __half22float2(reinterpret_cast<const __half2&>(pair));
        return max(__float_as_uint(both.x), __float_as_uint(both.y));
    }
    static __device__ void unpack(uint32_t word, float* x) {
        const float2 pair = __half22float2(reinterpret_cast<const __half2&>(word));
        x[0] = pair.x;
        x[1] = pair.y;
    }
};

template <class T>
__device__ void unpack_vector(uint4 v, float* x) {
    constexpr int kPerWord = Wide<T>::kPerVector / 4;
    Wide<T>::unpack(v.x, x);
    Wide<T>::unpack(v.y, x + kPerWord);
    Wide<T>::unpack(v.z, x + 2 * kPerWord);
    Wide<T>::unpack(v.w, x + 3 * kPerWord);
}

// Element by element, where a row ends or is not aligned.
template <class T>
__device__ uint4 load_part(const T* row, uint32_t column, uint32_t k) {
    constexpr int kPerVector = Wide<T>::kPerVector, kPerWord = kPerVector / 4;
    uint32_t word[4] = {};
#pragma unroll
    for (int i = 0; i < kPerVector; ++i)
        if (column + i < k) word[i / kPerWord] |= Wide<T>::bits(row[column + i]) << (32 / kPerWord * (i % kPerWord));
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Codes.

// The codes of one vector, the first element in the low bits.
template <int kBytes>
struct Codes {
    uint32_t word[(kBytes + 3) / 4];
};

inline __device__ void store_whole(uint8_t* to, const Codes<8>& codes) {
    *reinterpret_cast<uint2*>(to) = make_uint2(codes.word[0], codes.word[1]);
}
inline __device__ void store_whole(uint8_t* to, const Codes<4>& codes) { *reinterpret_cast<uint32_t*>(to) = codes.word[0]; }
inline __device__ void store_whole(uint8_t* to, const Codes<2>& codes) {
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(codes.word[0]);
}

// A byte is written where its first element is one of the row.
template <uint32_t kPerByte, int kBytes>
__device__ void store_part(uint8_t* row, uint32_t column, uint32_t k, const Codes<kBytes>& codes) {
#pragma unroll
    for (int i = 0; i < kBytes; ++i)
        if (column + i * kPerByte < k)
            row[column / kPerByte + i] = static_cast<uint8_t>(codes.word[i / 4] >> (8 * (i % 4)));
}

// ---------------------------------------------------------------------------------------------------------------------
// Lanes and rows.

// The largest of `kLanes` neighbouring lanes, known to all of them.
template <int kLanes>
__device__ uint32_t max_of_lanes(uint32_t value) {
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
        value = max(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

inline __device__ uint32_t ceil_div(uint32_t a, uint32_t b) { return a / b + (a % b != 0 ? 1u : 0u); }

// Whether every row of x begins at 16 bytes, and every row of q where the codes of a vector, kBytes, may be stored at once.
template <int kBytes, class T>
__device__ bool rows_are_aligned(const T* x, uint64_t x_pitch, const uint8_t* q, uint64_t q_pitch) {
    const uint64_t wide = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(x)) | x_pitch * sizeof(T);
    const uint64_t narrow = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(q)) | q_pitch;
    return wide % 16 == 0 && narrow % kBytes == 0;
}

}  // namespace vectors
