// One block of a launch: barriers, one warp that copies, warpgroups that multiply.

#pragma once

#include "async.cuh"
#include "mainloop.cuh"
#include "scheduler.cuh"

namespace gemm {

template <class Tile, class Job, class... Of>
__device__ void multiply_blocks(const TensorMap& a, const TensorMap& b, const TensorMap& sfa, const TensorMap& d, const float* sfb,
                                const Problem& problem, const Of&... of) {
    extern __shared__ uint8_t dynamic[];
    const uint32_t base = up_to(shared_address(dynamic), 1024);
    const Seat<Tile> seat(Tile::kBlocks == 1 ? 0 : rank_in_cluster());

    if (threadIdx.x == 0) {
        for (uint32_t stage = 0; stage < Tile::kStages; ++stage) {
            barrier_init(base + Tile::kFull + 8 * stage, 1);
            barrier_init(base + Tile::kEmpty + 8 * stage, Tile::kMathWarps * seat.readers());
        }
        if constexpr (Job::kHandsOver) Job::init(base);
        publish_barriers();
        prefetch(&a), prefetch(&b), prefetch(&sfa), prefetch(&d);
    }
    __syncthreads();
    if constexpr (Tile::kBlocks > 1) meet_cluster();
    wait_for_earlier_grids();
    let_later_grids_begin();

    // Of a warp: by a shuffle the compiler sees that none parts here, and keeps what products need in uniform registers.
    const uint32_t first = __shfl_sync(0xffffffff, threadIdx.x, 0);
    if (first < 128) {
        if constexpr (Tile::kGroups > 1) fewer_registers<40>();
        if (first < 32 && elected()) copy_stages<Tile, Job>(base, a, b, sfa, problem, seat, of...);
        if constexpr (Job::kHandsOver)
            if (first == 32 && elected()) Job::hand_over(base, problem, of...);
    } else {
        if constexpr (Tile::kGroups > 1) more_registers<232>();
        multiply_tiles<Tile, Job>(base, d, sfb, problem, seat, of...);
    }
    // Nobody leaves while another block may still arrive here or copy to here.
    if constexpr (Tile::kBlocks > 1) {
        __syncwarp();
        meet_cluster();
    }
}

}  // namespace gemm
