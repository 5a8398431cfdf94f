// The next operand is written into the stage that a product in flight still reads: a missing wait in a pipeline.
// Launch: grid 1, block 128.
#include "products.cuh"

extern "C" __global__ void __launch_bounds__(128)
    operands_refilled(const __nv_bfloat16* a, const __nv_bfloat16* b, float* y) {
    __shared__ __align__(128) unsigned char of_a[2048], of_b[256];
    fill(of_b, b, 8);
    float d[4] = {};
    for (uint32_t step = 0; step < 2; ++step) {
        fill(of_a, a + 1024 * step, 64);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        multiply(d, descriptor(of_a), descriptor(of_b));
        commit();
#ifdef RIGHT
        wait(d);
        __syncthreads();
#endif
    }
    wait(d);
    store(y, d);
}
