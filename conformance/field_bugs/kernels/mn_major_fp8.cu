// B of an FP8 product is asked for along N, by the immediate that 16-bit operands have for it: wgmma takes FP8 along K alone.
// Launch: grid 1, block 128.
#include "products.cuh"

extern "C" __global__ void __launch_bounds__(128) mn_major_fp8(const uint32_t* a, const uint32_t* b, float* y) {
    __shared__ __align__(128) uint32_t of_a[512], of_b[64];
    for (uint32_t i = threadIdx.x; i < 512; i += 128) of_a[i] = a[i];
    if (threadIdx.x < 64) of_b[threadIdx.x] = b[threadIdx.x];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float d[4] = {};
    asm volatile("wgmma.fence.sync.aligned;\n"
#ifdef RIGHT
                 "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, %4, %5, 1, 1, 1;"
#else
                 "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 1;"
#endif
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(descriptor(of_a)), "l"(descriptor(of_b))
                 : "memory");
    commit();
    wait(d);
    store(y, d);
}
