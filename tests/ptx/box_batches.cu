// Four blocks, two to a cluster, copy boxes in and out by the same instructions, and some of them make a mistake.

#include <stdint.h>

using u32 = uint32_t;
using u64 = uint64_t;

struct alignas(64) TensorMap {
    u64 opaque[16];
};

extern __shared__ __align__(1024) unsigned char region[];

__device__ u32 shared(const void* generic) { return static_cast<u32>(__cvta_generic_to_shared(generic)); }
__device__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

enum Mistake : u32 { NONE, ONE_PLACE, EARLY_WRITE, NO_FENCE, NO_WAIT, EARLY_REFILL, TOO_FEW, NO_BLOCK, ASKED_TWICE, BELOW };

extern "C" __global__ void __cluster_dims__(2, 1, 1) tiles(const __grid_constant__ TensorMap in, const __grid_constant__ TensorMap out,
                                                           u32 mistake, u32 shares) {
    __shared__ u64 bar;
    const u32 block = blockIdx.x, rank = block % 2, lane = threadIdx.x, b = shared(&bar), to = shared(region);
    if (lane == 0) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&in) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&out) : "memory");
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(b) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    meet_cluster();
    for (u32 round = 0; round < 2; ++round) {
        if (lane == 0) {
            const u32 bytes = mistake == TOO_FEW && block == 2 ? 1008 : 1024;
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
        }
        if (shares) meet_cluster();
        if (lane == 0 && shares) {
            const u32 first = mistake == ASKED_TWICE && block == 1 ? 0 : rank;
            const uint16_t mask = mistake == NO_BLOCK && block == 3 ? 0 : 3;
            asm volatile(
                "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], "
                "[%4], %5;" ::"r"(to + 512 * first), "l"(&in), "r"(0), "r"(16 * round + 8 * (block / 2) + 4 * rank), "r"(b), "h"(mask) : "memory");
        } else if (lane == 0) {
            for (u32 part = 0; part < 2; ++part)
                asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                                 to + 512 * part), "l"(&in), "r"(0), "r"(32 * round + 8 * block + 4 * part), "r"(b) : "memory");
        }
        if (mistake == EARLY_WRITE && block == 3 && lane == 33) *reinterpret_cast<u32*>(region) = 1;
        u32 done = mistake == NO_WAIT && block == 1 && round == 1;
        while (!done)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(done) : "r"(b), "r"(round) : "memory");
        for (u32 i = lane; i < 256; i += 64) reinterpret_cast<u32*>(region)[i] += 1;
        if (!(mistake == NO_FENCE && block == 2)) asm volatile("fence.proxy.async;" ::: "memory");
        __syncthreads();
        if (lane == 0) {
            const u32 place = mistake == ONE_PLACE && block == 3 ? 1 : block;
            const int row = mistake == BELOW && block == 2 ? -4 : 32 * round + 8 * place;
            for (u32 part = 0; part < 2; ++part)
                asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&out), "r"(0),
                             "r"(row + 4 * static_cast<int>(part)), "r"(to + 512 * part) : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            if (!(mistake == EARLY_REFILL && block == 1)) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        }
        __syncthreads();
        if (shares) meet_cluster();
    }
    if (lane == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    meet_cluster();
}
