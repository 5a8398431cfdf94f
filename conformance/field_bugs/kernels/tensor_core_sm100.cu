// A product of a tensor core of sm_100, each macro a contract that generated code was suspected of: the commit is not
// waited for (UNAWAITED), the columns are not given back (KEPT), no proxy fence stands before the product (UNFENCED).
// Launch: grid 1, block 128.
#include "tensor_memory.cuh"

extern "C" __global__ void __launch_bounds__(128) tensor_core_sm100(const uint32_t* a, const uint32_t* b, uint32_t* y) {
    __shared__ __align__(1024) uint32_t of_a[1024], of_b[64];
    __shared__ uint64_t barrier;
    __shared__ uint32_t slot;
    if (threadIdx.x < 32) allocate(&slot);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)) : "memory");
    for (uint32_t i = threadIdx.x; i < 1024; i += 128) of_a[i] = a[i];
    if (threadIdx.x < 64) of_b[threadIdx.x] = b[threadIdx.x];
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#ifndef UNFENCED
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
    const uint32_t columns = slot;
    if (threadIdx.x == 0) {
        multiply(columns, of_a, of_b);
        commit(&barrier);
    }
#ifndef UNAWAITED
    wait(&barrier, 0);
#endif
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    uint32_t d[8];
    load(d, columns);
    for (uint32_t i = 0; i < 8; ++i) y[8 * threadIdx.x + i] = d[i];
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
#ifndef KEPT
    if (threadIdx.x < 32) release(columns);
#endif
}
