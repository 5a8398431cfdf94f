// Accumulators are scaled while the product that writes them is in flight. A mov in place of the multiplication would be no
// fault: ptxas removes it. Launch: grid 1, block 128.
#include "products.cuh"

extern "C" __global__ void __launch_bounds__(128)
    accumulator_in_flight(const __nv_bfloat16* a, const __nv_bfloat16* b, float* y) {
    __shared__ __align__(128) unsigned char of_a[2048], of_b[256];
    fill(of_a, a, 64);
    fill(of_b, b, 8);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float d[4] = {}, kept[4];
    multiply(d, descriptor(of_a), descriptor(of_b));
    commit();
#ifdef RIGHT
    wait(d);
#endif
    for (uint32_t i = 0; i < 4; ++i) asm volatile("mul.f32 %0, %1, 0f3F000000;" : "=f"(kept[i]) : "f"(d[i]));
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    store(y, kept);
}
