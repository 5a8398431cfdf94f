// The kernel of `refsim doctor`: 256 floats become e4m3 and bf16, by the instructions or by what NVIDIA's headers do instead.
//
// It includes what kernels include, so that a folder of headers that is not complete shows.

#include <cooperative_groups.h>
#include <cuda/std/cstdint>
#include <cuda_bf16.h>
#include <cuda_fp8.h>

extern "C" __global__ void doctor_encode(const float* in, cuda::std::uint8_t* e4m3, cuda::std::uint16_t* bf16) {
    const auto i = cooperative_groups::this_grid().thread_rank();
    e4m3[i] = __nv_cvt_float_to_fp8(in[i], __NV_SATFINITE, __NV_E4M3);
    bf16[i] = __bfloat16_as_ushort(__float2bfloat16_rn(in[i]));
}
