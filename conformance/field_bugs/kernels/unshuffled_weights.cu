// FP8 weights lie shuffled within every 16 x 16 tile, as a lane's eight bytes of two B fragments: lane 4g + t has, of columns
// g and g + 8, the k of 2t, 2t + 1, 2t + 8, 2t + 9. The mistake stands in the host, which uploads them as the checkpoint has
// them. Meant: Y[b, o] = the chain of fmaf over K in float32, in bf16; multiples of 16. Launch: grid output / 32, block 32.
#include <cuda/std/cstdint>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
using cuda::std::uint32_t;
using cuda::std::uint8_t;

inline __device__ uint32_t place(uint32_t column, uint32_t k) {  // of a tile's 256 bytes
    const uint32_t t = k % 8 / 2, lane = column % 8 * 4 + t, byte = column / 8 * 4 + k / 8 * 2 + k % 2;
    return 8 * lane + byte;
}

extern "C" __global__ void unshuffled_weights(const __nv_bfloat16* x, const uint8_t* w, __nv_bfloat16* y, uint32_t batch,
                                              uint32_t output, uint32_t reduction) {
    const uint32_t column = blockIdx.x * 32 + threadIdx.x;
    if (column >= output) return;
    for (uint32_t row = 0; row < batch; ++row) {
        float sum = 0.0f;
        for (uint32_t k = 0; k < reduction; ++k) {
            const uint8_t* tile = w + (column / 16 * (reduction / 16) + k / 16) * 256;
            __nv_fp8_e4m3 code;
            code.__x = tile[place(column % 16, k % 16)];
            sum = __fmaf_rn(__bfloat162float(x[row * reduction + k]), static_cast<float>(code), sum);
        }
        y[row * output + column] = __float2bfloat16_rn(sum);
    }
}
