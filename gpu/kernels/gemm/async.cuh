// mbarriers, tensor maps and clusters: one function for each instruction, on 32-bit shared addresses.

#pragma once

#include <stdint.h>

namespace gemm {

// A tensor map as the driver encodes it; `prefetch` and the copies take its generic address.
struct alignas(64) TensorMap {
    uint64_t opaque[16];
};

inline __device__ uint32_t shared_address(const void* generic) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(generic));
}

inline __device__ float load_shared(uint32_t address) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
}

inline __device__ void load_shared(uint32_t address, float& first, float& second) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(first), "=f"(second) : "r"(address) : "memory");
}
inline __device__ uint4 load_shared_16(uint32_t address) {
    uint4 of;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(of.x), "=r"(of.y), "=r"(of.z), "=r"(of.w) : "r"(address) : "memory");
    return of;
}
inline __device__ void store_shared_16(uint32_t address, const uint4& of) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(of.x), "r"(of.y), "r"(of.z), "r"(of.w) : "memory");
}

// Read here and not where it is looked at.
inline __device__ int32_t load_now(const int32_t* from) {
    int32_t value;
    asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(value) : "l"(from));
    return value;
}

// One more has arrived, and what its warp wrote before is seen by those who arrive later; how many came before. `last` puts
// the counter back to 0.
inline __device__ uint32_t arrive_last(uint32_t* counter, uint32_t last) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
    return before;
}

// Whether this thread is the one of its warp that speaks for it.
inline __device__ bool elected() {
    uint32_t is;
    asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.u32 %0, 1, 0, p;\n\t}" : "=r"(is));
    return is != 0;
}

template <int COUNT>
__device__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- mbarriers
inline __device__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
inline __device__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

inline __device__ void expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
inline __device__ void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// The address of the same shared memory of another block of the cluster, or of this one.
inline __device__ uint32_t address_at(uint32_t address, uint32_t rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
// At a barrier of a block of the cluster. A release for the cluster would wait for all stores of this thread, of which nobody
// there reads any; its loads come before.
inline __device__ void arrive_at(uint32_t there) {
    asm volatile("mbarrier.arrive.release.cta.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
}

// Until the phase of this parity is complete.
inline __device__ void wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n\t.reg .pred done;\n\tagain:\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
        "@!done bra again;\n\t}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
// The same by a whole warp: by a vote the compiler sees that its threads go on together.
inline __device__ void wait_together(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile(
            "{\n\t.reg .pred done;\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, done;\n\t}"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (!__all_sync(0xffffffff, done));
}

// ---- barriers of some warps of a block; __syncthreads uses barrier 0
template <uint32_t THREADS>
__device__ void meet(uint32_t barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(THREADS) : "memory");
}

// ---- tensor maps
inline __device__ void prefetch(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// A box from column x, row y on, into the shared memory of this block, or of all blocks of `mask`.
inline __device__ void load_box(uint32_t to, const TensorMap* map, uint32_t barrier, uint32_t x, uint32_t y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(barrier)
        : "memory");
}
template <uint32_t BLOCKS>
__device__ void load_box_for(uint16_t mask, uint32_t to, const TensorMap* map, uint32_t barrier, uint32_t x, uint32_t y) {
    if constexpr (BLOCKS == 1)
        load_box(to, map, barrier, x, y);
    else
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
            "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
            "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(mask)
            : "memory");
}
inline __device__ void store_box(const TensorMap* map, uint32_t from, uint32_t x, uint32_t y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x),
                 "r"(y), "r"(from)
                 : "memory");
}
inline __device__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until all but the newest NEWEST groups of this thread have read their shared memory.
template <int NEWEST>
__device__ void wait_for_reads() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(NEWEST) : "memory");
}
// What this thread wrote to shared memory by plain stores is seen by copies and tensor cores that come after.
inline __device__ void publish_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- clusters
inline __device__ uint32_t rank_in_cluster() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
inline __device__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// ---- programmatic serialisation
inline __device__ void wait_for_earlier_grids() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
inline __device__ void let_later_grids_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace gemm
