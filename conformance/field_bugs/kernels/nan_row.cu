// fmaxf drops NaN: a row that holds one gets the scale of the others, and nobody who looks at scales sees it.
// Meant: the scale of a row with a NaN is NaN. Launch: grid rows, block 32.
#include "quantiser.cuh"

inline __device__ float larger(float a, float b) {
    float c;
#ifdef RIGHT
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
#else
    asm("max.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
#endif
    return c;
}

extern "C" __global__ void nan_row(const float* x, float* scales) {
    float amax = 1e-12f;
    for (uint32_t i = threadIdx.x; i < 128; i += 32) amax = larger(amax, fabsf(x[128 * blockIdx.x + i]));
    for (uint32_t other = 16; other > 0; other /= 2) amax = larger(amax, __shfl_xor_sync(0xffffffff, amax, other));
    if (threadIdx.x == 0) scales[blockIdx.x] = __fdiv_rn(amax, 448.0f);
}
