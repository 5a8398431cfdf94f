// The special functions that kernels promise the bits of: PTX's instructions by their names, never what a compiler makes of them.

#pragma once

#if __CUDA_FTZ  // NVRTC says so; nvcc has no such macro
#error "compiled with -ftz=true or --use_fast_math: subnormals would be flushed"
#endif

namespace special_functions {

// y = NAME(x). The .ftz of an instruction is its own: a subnormal operand is a zero of its sign, a subnormal result becomes one.
#define SPECIAL_FUNCTION(NAME, INSTRUCTION)                         \
    inline __device__ float NAME(float x) {                         \
        float y;                                                    \
        asm(INSTRUCTION " %0, %1;" : "=f"(y) : "f"(x));             \
        return y;                                                   \
    }
SPECIAL_FUNCTION(ex2, "ex2.approx.f32")
SPECIAL_FUNCTION(ex2_flushed, "ex2.approx.ftz.f32")
SPECIAL_FUNCTION(lg2_flushed, "lg2.approx.ftz.f32")
SPECIAL_FUNCTION(rcp_flushed, "rcp.approx.ftz.f32")
SPECIAL_FUNCTION(inverse_root, "rsqrt.approx.f32")
#undef SPECIAL_FUNCTION

inline __device__ float quotient(float x, float y) {
    float z;
    asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

}  // namespace special_functions
