// The order in which the blocks take their tiles.

#pragma once

#include "tile.cuh"

namespace gemm {

// M, N and K of Y [M, N] = A [M, K] B [N, K]; how many rows of tiles are taken together, so that their A stays in L2.
struct Problem {
    uint32_t m, n, k, together;
};

// One tile: its first row of A and its first row of B, here and in their tensor maps; the row in that of the scales of A for
// block 0 of K; its first block of K.
struct Place {
    uint32_t m, n;
    __device__ uint32_t in_a() const { return m; }
    __device__ uint32_t in_b() const { return n; }
    __device__ uint32_t in_scales() const { return 0; }
    __device__ uint32_t first() const { return 0; }
};

// Where a block sits in its cluster.
template <class Tile>
struct Seat {
    uint32_t m, n;
    __device__ explicit Seat(uint32_t rank) : m(rank % Tile::kDown), n(rank / Tile::kDown) {}
    __device__ uint32_t rank(uint32_t m, uint32_t n) const { return m + n * Tile::kDown; }
    // Whether this block copies A for those beside it, and B for those below it.
    __device__ bool copies_a() const { return n == 0; }
    __device__ bool copies_b() const { return m == 0; }
    // The blocks whose warps read what this one copies.
    __device__ uint32_t readers() const {
        return 1 + (copies_a() ? Tile::kAcross - 1 : 0) + (copies_b() ? Tile::kDown - 1 : 0);
    }
    // The blocks that have this one's rows of A, and those that have its rows of B.
    __device__ uint16_t mask_a() const {
        uint32_t mask = 0;
#pragma unroll
        for (uint32_t i = 0; i < Tile::kAcross; ++i) mask |= 1u << i * Tile::kDown;
        return mask << m;
    }
    __device__ uint16_t mask_b() const { return ((1u << Tile::kDown) - 1) << n * Tile::kDown; }
};

// The tiles of one block: clusters take units of DOWN x ACROSS tiles in turn.
template <class Tile>
struct Tiles {
    using At = Place;
    uint32_t down, across, together, next, step;
    Seat<Tile> seat;

    __device__ Tiles(uint32_t, const Problem& problem, const Seat<Tile>& seat)
        : down((problem.m + Tile::M * Tile::kDown - 1) / (Tile::M * Tile::kDown)),
          across((problem.n + Tile::N * Tile::kAcross - 1) / (Tile::N * Tile::kAcross)),
          together(problem.together),
          next(blockIdx.x / Tile::kBlocks),
          step(gridDim.x / Tile::kBlocks),
          seat(seat) {}

    // One beyond the edge is computed on zeros and clipped.
    __device__ void locate(Place& place, uint32_t number) const {
        const uint32_t whole = together * across, first = number / whole * together, rows = min(together, down - first);
        const uint32_t at = number % whole;
        place.m = ((first + at % rows) * Tile::kDown + seat.m) * Tile::M;
        place.n = (at / rows * Tile::kAcross + seat.n) * Tile::N;
    }

    __device__ bool take(Place& place) {
        if (next >= down * across) return false;
        locate(place, next);
        next += step;
        return true;
    }
};

}  // namespace gemm
