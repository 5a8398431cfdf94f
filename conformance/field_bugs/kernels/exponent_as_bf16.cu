// An E8M0 scale becomes a float by shifting it into the exponent: code 0 is 0 instead of 2^-127, and 255 is infinite
// instead of NaN. Meant: y = x * 2^(code - 127), NaN for code 255; 32 numbers a scale. Launch: grid scales, block 32.
#include <cuda/std/cstdint>
using cuda::std::uint32_t;
using cuda::std::uint8_t;

extern "C" __global__ void exponent_as_bf16(const float* x, const uint8_t* scales, float* y) {
    const uint32_t code = scales[blockIdx.x], at = 32 * blockIdx.x + threadIdx.x;
#ifdef RIGHT
    const float scale = __uint_as_float(code == 0 ? 0x400000 : code == 255 ? 0x7fffffff : code << 23);
#else
    const float scale = __uint_as_float(code << 23);
#endif
    y[at] = __fmul_rn(x[at], scale);
}
