// Two blocks of a cluster multiply; each copies half of every stage to both. A block that is done with a stage tells the other one
// by relaxed arrivals: only the tensor core has read it.
//
// Targets: sm_90a

#include <stdint.h>

using u32 = uint32_t;
using u64 = uint64_t;
constexpr u32 kStages = 2, kHalf = 1024, kStage = 2 * kHalf;

__device__ u32 address(const void* generic) { return static_cast<u32>(__cvta_generic_to_shared(generic)); }
__device__ void wait(u32 bar, u32 parity) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}
// Orders no memory: what has been made visible to the cluster before is visible behind it.
__device__ void meet_cluster_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

enum Arrival { kOfWarps, kOfOneThread, kBeforeTheWait, kOfLanes };
enum Look { kNever, kBefore, kMeanwhile, kBehind };

__device__ void tell(u32 bar, u32 rank, bool is_relaxed) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(bar), "r"(rank));
    if (is_relaxed)
        asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
    else
        asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
}

// A stage is handed back: by one lane of each warp and relaxed, or without a scope by such lanes or by one thread for all warps.
// A warp that looked at it meets before: products alone are the warpgroup's, whoever waited for them.
template <Look kLook, Arrival kArrival>
__device__ void hand_back(u32 empty) {
    if constexpr (kArrival == kOfOneThread) {
        if (threadIdx.x < 2) tell(empty, threadIdx.x, false);
    } else if constexpr (kArrival == kOfLanes) {
        if (threadIdx.x % 32 < 2) tell(empty, threadIdx.x % 32, false);
    } else {
        if constexpr (kLook != kNever) __syncwarp();
        if (threadIdx.x % 32 < 2) tell(empty, threadIdx.x % 32, true);
    }
}

__device__ void look(u32 at) {
    u32 got;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(got) : "r"(at + 4 * threadIdx.x) : "memory");
    if (got != 0x38383838) asm volatile("trap;");
}

// c[128 threads][4] += stage by stage, A and B the same 64 x 32 and 8 x 32 codes of each stage.
template <Look kLook, Arrival kArrival = kOfWarps>
__device__ void ring(const unsigned char* codes, float* c, u32 turns) {
    __shared__ alignas(1024) unsigned char tile[kStages * kStage];
    __shared__ alignas(8) u64 bars[2 * kStages];
    u32 rank, full = address(bars), empty = full + 8 * kStages, base = address(tile);
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < kStages; ++s) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full + 8 * s) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(empty + 8 * s), "r"(kArrival == kOfOneThread ? 2 : 8)
                         : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    meet_cluster_relaxed();
    if (threadIdx.x >= 128) {
        if (threadIdx.x == 128) {
            for (u32 t = 0; t < turns; ++t) {
                const u32 s = t % kStages, lap = t / kStages;
                wait(empty + 8 * s, (lap & 1) ^ 1);
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full + 8 * s), "r"(kStage) : "memory");
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(
                                 base + s * kStage + rank * kHalf),
                             "l"(codes + t * kStage + rank * kHalf), "r"(kHalf), "r"(full + 8 * s), "h"((unsigned short)3)
                             : "memory");
            }
        }
    } else {
        float d0 = 0, d1 = 0, d2 = 0, d3 = 0, s0 = 0, s1 = 0, s2 = 0, s3 = 0;
        for (u32 t = 0; t < turns; ++t) {
            const u32 s = t % kStages, lap = t / kStages;
            wait(full + 8 * s, lap & 1);
            if constexpr (kLook == kBefore) look(base + s * kStage);
            const u64 word = (((base + s * kStage) & 0x3FFFF) >> 4) | (u64(64) << 16) | (u64(8) << 32);
            asm volatile("wgmma.fence.sync.aligned;" : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)::"memory");
            asm volatile("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, %4, %4, 1, 1, 1;"
                         : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "l"(word) : "memory");
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            if constexpr (kArrival == kBeforeTheWait) hand_back<kLook, kArrival>(empty + 8 * s);
            if constexpr (kLook == kMeanwhile) look(base + s * kStage);
            asm volatile("wgmma.wait_group.sync.aligned 0;" : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)::"memory");
            s0 += d0, s1 += d1, s2 += d2, s3 += d3;
            d0 = d1 = d2 = d3 = 0;
            if constexpr (kLook == kBehind) {
                look(base + s * kStage);
                if constexpr (kArrival == kOfLanes) __syncwarp();
            }
            if constexpr (kArrival != kBeforeTheWait) hand_back<kLook, kArrival>(empty + 8 * s);
        }
        float* mine = c + (rank * 128 + threadIdx.x) * 4;
        mine[0] = s0, mine[1] = s1, mine[2] = s2, mine[3] = s3;
    }
    meet_cluster();
}

extern "C" __global__ void __launch_bounds__(160) relaxed_ring(const unsigned char* codes, float* c, u32 turns) {
    ring<kNever>(codes, c, turns);
}
extern "C" __global__ void __launch_bounds__(160) looking_ring(const unsigned char* codes, float* c, u32 turns) {
    ring<kBehind>(codes, c, turns);
}
extern "C" __global__ void __launch_bounds__(160) early_ring(const unsigned char* codes, float* c, u32 turns) {
    ring<kBefore>(codes, c, turns);
}
extern "C" __global__ void __launch_bounds__(160) ring_of_one(const unsigned char* codes, float* c, u32 turns) {
    ring<kNever, kOfOneThread>(codes, c, turns);
}
extern "C" __global__ void __launch_bounds__(160) hasty_ring(const unsigned char* codes, float* c, u32 turns) {
    ring<kNever, kBeforeTheWait>(codes, c, turns);
}
extern "C" __global__ void __launch_bounds__(160) looking_ring_of_one(const unsigned char* codes, float* c, u32 turns) {
    ring<kBehind, kOfOneThread>(codes, c, turns);
}
extern "C" __global__ void __launch_bounds__(160) early_ring_of_one(const unsigned char* codes, float* c, u32 turns) {
    ring<kBefore, kOfOneThread>(codes, c, turns);
}
extern "C" __global__ void __launch_bounds__(160) late_ring_of_one(const unsigned char* codes, float* c, u32 turns) {
    ring<kMeanwhile, kOfOneThread>(codes, c, turns);
}
extern "C" __global__ void __launch_bounds__(160) early_ring_of_lanes(const unsigned char* codes, float* c, u32 turns) {
    ring<kBefore, kOfLanes>(codes, c, turns);
}
extern "C" __global__ void __launch_bounds__(160) looking_ring_of_lanes(const unsigned char* codes, float* c, u32 turns) {
    ring<kBehind, kOfLanes>(codes, c, turns);
}
