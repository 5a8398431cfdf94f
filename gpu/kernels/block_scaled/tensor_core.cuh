// Tensor memory and the products of tcgen05: one function for each instruction, on 32-bit shared and tensor addresses.

#pragma once

#include <stdint.h>

namespace block_scaled {

// `columns` of tensor memory; where they begin is written to shared memory. By a whole warp, as is giving them back.
template <uint32_t COLUMNS>
__device__ void allocate(uint32_t slot) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(slot), "n"(COLUMNS) : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
}
template <uint32_t COLUMNS>
__device__ void give_back(uint32_t tensor) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(tensor), "n"(COLUMNS) : "memory");
}
// One arrival at an mbarrier when all that this thread has asked for so far is done.
inline __device__ void commit(uint32_t barrier) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier) : "memory");
}

// Until the products are done that a commit counts. The wait is relaxed: it is the fence that puts loads of tensor memory behind it.
// Where threads meet at a barrier, nothing else has to stand there.
inline __device__ void wait_for_products(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n\t.reg .pred done;\n\tagain:\n\t"
        "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 done, [%0], %1;\n\t"
        "@!done bra again;\n\ttcgen05.fence::after_thread_sync;\n\t}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// 128 rows of 128 bytes, swizzled, eight rows after eight rows; a step of K is 32 bytes further.
inline __device__ uint64_t rows_descriptor(uint32_t address) {
    constexpr uint64_t kSwizzle128 = uint64_t{2} << 61, kVersion = uint64_t{1} << 46, kEightRows = uint64_t{1024 >> 4} << 32;
    return kSwizzle128 | kVersion | kEightRows | uint64_t{1} << 16 | (address & 0x3ffff) >> 4;
}
// 32 rows of 16 bytes, one after another.
inline __device__ uint64_t scales_descriptor(uint32_t address) {
    constexpr uint64_t kVersion = uint64_t{1} << 46, kEightRows = uint64_t{128 >> 4} << 32;
    return kVersion | kEightRows | (address & 0x3ffff) >> 4;
}
// A tile of 128 x 4 scales to four columns: every warp's lanes get all 512 bytes.
inline __device__ void copy_scales(uint32_t tensor, uint32_t from) {
    asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(tensor), "l"(scales_descriptor(from)) : "memory");
}
// 32 columns of the lane of this thread.
inline __device__ void load_columns(float (&to)[32], uint32_t tensor) {
    uint32_t r[32];
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x32.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];\n\t"
        "tcgen05.wait::ld.sync.aligned;"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]), "=r"(r[8]),
          "=r"(r[9]), "=r"(r[10]), "=r"(r[11]), "=r"(r[12]), "=r"(r[13]), "=r"(r[14]), "=r"(r[15]), "=r"(r[16]), "=r"(r[17]),
          "=r"(r[18]), "=r"(r[19]), "=r"(r[20]), "=r"(r[21]), "=r"(r[22]), "=r"(r[23]), "=r"(r[24]), "=r"(r[25]), "=r"(r[26]),
          "=r"(r[27]), "=r"(r[28]), "=r"(r[29]), "=r"(r[30]), "=r"(r[31])
        : "r"(tensor)
        : "memory");
#pragma unroll
    for (uint32_t i = 0; i < 32; ++i) to[i] = __uint_as_float(r[i]);
}

}  // namespace block_scaled
