// Threads write the operands into shared memory and a barrier follows, but no proxy fence: the tensor core takes another
// way to memory and may find what was there before. Launch: grid 1, block 128.
#include "products.cuh"

extern "C" __global__ void __launch_bounds__(128) proxy_fence(const __nv_bfloat16* a, const __nv_bfloat16* b, float* y) {
    __shared__ __align__(128) unsigned char of_a[2048], of_b[256];
    fill(of_a, a, 64);
    fill(of_b, b, 8);
#ifdef RIGHT
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
    float d[4] = {};
    multiply(d, descriptor(of_a), descriptor(of_b));
    commit();
    wait(d);
    store(y, d);
}
