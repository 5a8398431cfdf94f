// What is stored as the scale is 1 / s with s rounded already: rounded twice, where the text says amax / 448.
// Meant: s = 448 / max(amax, 1e-12), q = satfinite(x * s), and amax / 448 rounded once. Launch: grid rows, block 32.
#include "quantiser.cuh"

extern "C" __global__ void scale_of_scale(const float* x, uint8_t* q, float* scales) {
    const float* row = x + 128 * blockIdx.x;
    float amax = 1e-12f;
    for (uint32_t i = threadIdx.x; i < 128; i += 32) amax = fmaxf(amax, fabsf(row[i]));
    amax = largest(amax);
    const float scale = __fdiv_rn(448.0f, amax);
    for (uint32_t i = threadIdx.x; i < 128; i += 32) q[128 * blockIdx.x + i] = saturated(__fmul_rn(row[i], scale));
#ifdef RIGHT
    if (threadIdx.x == 0) scales[blockIdx.x] = __fdiv_rn(amax, 448.0f);
#else
    if (threadIdx.x == 0) scales[blockIdx.x] = __fdiv_rn(1.0f, scale);
#endif
}
