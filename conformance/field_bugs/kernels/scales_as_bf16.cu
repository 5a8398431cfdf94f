// Scales of 16 bits are read as bf16 by a kernel whose text says FP16: 1.0 is 0.0078125.
// Meant: y = x * s, s in FP16. Launch: grid rows, block 32.
#include <cuda/std/cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
using cuda::std::uint32_t;
using cuda::std::uint16_t;

extern "C" __global__ void scales_as_bf16(const float* x, const uint16_t* scales, float* y) {
#ifdef RIGHT
    const float scale = __half2float(__ushort_as_half(scales[blockIdx.x]));
#else
    const float scale = __bfloat162float(__ushort_as_bfloat16(scales[blockIdx.x]));
#endif
    for (uint32_t i = threadIdx.x; i < 128; i += 32) y[128 * blockIdx.x + i] = __fmul_rn(x[128 * blockIdx.x + i], scale);
}
