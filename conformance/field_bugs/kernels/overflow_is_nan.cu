// The cast does not saturate: what is beyond 448 by a rounding becomes NaN.
// Meant: a scale of the host's for each row, q = satfinite(x * s). Launch: grid rows, block 32.
#include "quantiser.cuh"

extern "C" __global__ void overflow_is_nan(const float* x, const float* scales, uint8_t* q) {
    const uint32_t first = 128 * blockIdx.x;
    for (uint32_t i = threadIdx.x; i < 128; i += 32) {
        const float value = __fmul_rn(x[first + i], scales[blockIdx.x]);
#ifdef RIGHT
        q[first + i] = saturated(value);
#else
        q[first + i] = __nv_cvt_float_to_fp8(value, __NV_NOSAT, __NV_E4M3);
#endif
    }
}
