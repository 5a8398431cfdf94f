// Y = (A scaled 1x128) (B scaled 128x128)^T: E4M3 operands, float32 scales, bf16 result.
//
//   a    [M, K] codes, K-major, by tensor map: boxes of 128 columns, 128-byte swizzle
//   b    [N, K] codes, likewise
//   sfa  [ceil(K / 128), M] float32, by tensor map
//   sfb  [ceil(N / 128), ceil(K / 128)] float32
//   d    [M, N] bf16, by tensor map: boxes of 16 rows and Tile::kPiece columns, swizzled by their width
//
// For each 128 columns of K the tensor core gives P, four wgmma from +0; Y = bf16(F), F = fma(fl(sfa * sfb), P, F) in the
// order of K, from +0. One warpgroup copies by tensor maps, the others multiply.

#include "gemm/async.cuh"
#include "gemm/epilogue.cuh"
#include "gemm/mainloop.cuh"
#include "gemm/tile.cuh"

using namespace gemm;

template <uint32_t M, uint32_t N, uint32_t STAGES, uint32_t GROUPS, uint32_t DOWN, uint32_t ACROSS, uint32_t STAGED, uint32_t AHEAD>
__global__ void __launch_bounds__(128 * (GROUPS + 1), 1)
fp8_gemm_1d2d(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap sfa,
              const __grid_constant__ TensorMap d, const __grid_constant__ TensorMap ahead, const float* __restrict__ sfb,
              const Problem problem) {
    using Tile = gemm::Tile<M, N, STAGES, GROUPS, DOWN, ACROSS, STAGED, AHEAD>;
    extern __shared__ uint8_t dynamic[];
    const uint32_t base = up_to(shared_address(dynamic), 1024);
    const Seat<Tile> seat(Tile::kBlocks == 1 ? 0 : rank_in_cluster());

    if (threadIdx.x == 0) {
        for (uint32_t stage = 0; stage < STAGES; ++stage) {
            barrier_init(base + Tile::kFull + 8 * stage, 1);
            barrier_init(base + Tile::kEmpty + 8 * stage, Tile::kReleases);
        }
        publish_barriers();
        prefetch(&a), prefetch(&b), prefetch(&sfa), prefetch(&d);
    }
    __syncthreads();
    if constexpr (Tile::kBlocks > 1) meet_cluster();

    wait_for_earlier_grids();
    let_later_grids_begin();

    if (threadIdx.x < 128) {
        if constexpr (GROUPS > 1) fewer_registers<40>();
        if (threadIdx.x < 32 && elected()) copy_stages<Tile>(base, a, b, sfa, problem, seat);
    } else {
        if constexpr (GROUPS > 1) more_registers<232>();
        multiply_tiles<Tile>(base, d, sfb, problem, seat);
    }
    // Nobody leaves while the other block may still arrive here.
    if constexpr (Tile::kBlocks > 1) {
        __syncwarp();
        meet_cluster();
    }
}
