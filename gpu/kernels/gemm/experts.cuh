// The GEMM of a mixture of experts: rows that nobody counts are neither computed nor written.

#pragma once

#include "epilogue.cuh"
#include "scheduler.cuh"

namespace gemm {

// A is one matrix, `rows` the expert of each of its rows, negative for none, and each tile has one expert, that of its first
// row; or with `masked` A and Y are `experts` matrices, and of each so many rows count.
struct Experts {
    const int32_t* rows;
    uint16_t* y;
    uint32_t pitch, experts, masked;  // elements from row to row of Y
};

struct PlaceOfExpert : Place {
    uint32_t expert, a, b, scales, blocks;
    __device__ uint32_t in_a() const { return a; }
    __device__ uint32_t in_b() const { return b; }
    __device__ uint32_t in_scales() const { return scales; }
    __device__ uint64_t scales_of_b(const Problem& problem, bool swapped) const {
        return uint64_t{expert} * (((swapped ? problem.m : problem.n) + 127) / 128) * blocks;
    }
};

// The tiles of rows that count. The blocks of a cluster have the same rows of A, thus the same expert.
template <class Tile>
struct ExpertTiles {
    static_assert(Tile::kDown == 1);
    using At = PlaceOfExpert;
    static constexpr uint32_t kTokens = Tile::kSwapped ? Tile::N : Tile::M;
    static constexpr uint32_t kWeights = (Tile::kSwapped ? Tile::M : Tile::N) * Tile::kAcross;
    const Experts& experts;
    uint32_t tokens, weights, together, blocks, next, step, expert = 0, before = 0, down, across;
    Seat<Tile> seat;

    __device__ ExpertTiles(const Problem& problem, const Seat<Tile>& seat, const Experts& experts)
        : experts(experts),
          tokens(Tile::kSwapped ? problem.n : problem.m),
          weights(Tile::kSwapped ? problem.m : problem.n),
          together(problem.together),
          blocks((problem.k + kBlockK - 1) / kBlockK),
          next(blockIdx.x / Tile::kBlocks),
          step(gridDim.x / Tile::kBlocks),
          down(tiles_of(experts.masked ? __ldg(experts.rows) : tokens)),
          across((weights + kWeights - 1) / kWeights),
          seat(seat) {}

    __device__ static uint32_t tiles_of(uint32_t rows) { return (rows + kTokens - 1) / kTokens; }

    __device__ bool take(PlaceOfExpert& place) {
        for (;; next += step) {
            while (next - before >= down * across) {
                if (!experts.masked || ++expert == experts.experts) return false;
                before += down * across;
                down = tiles_of(__ldg(experts.rows + expert));
            }
            const uint32_t number = next - before, whole = together * across;
            const uint32_t first = number / whole * together, rows = min(together, down - first), at = number % whole;
            const uint32_t token = (first + at % rows) * kTokens, weight = at / rows * kWeights;
            place.expert = experts.masked ? expert : __ldg(experts.rows + token);
            if (static_cast<int32_t>(place.expert) < 0) continue;
            const uint32_t matrix = experts.masked ? expert : 0, of_a = matrix * tokens, of_b = place.expert * weights;
            place.m = Tile::kSwapped ? weight : token;
            place.n = Tile::kSwapped ? token : weight + seat.n * Tile::N;
            place.a = place.m + (Tile::kSwapped ? of_b : of_a);
            place.b = place.n + (Tile::kSwapped ? of_a : of_b);
            place.scales = matrix * blocks, place.blocks = blocks;
            next += step;
            return true;
        }
    }
};

// A box whose rows all count is stored by tensor map; of another the rows that count, one by one.
template <class Tile>
struct CountedRows {
    static constexpr bool kAll = false;
    const Experts& experts;
    uint32_t width, tokens, first;  // columns of Y, rows of one matrix; the first row of the warp's boxes
    int32_t said[Tile::kBoxes];     // of row lane % kBoxRows of each box: read early, looked at when the sums are there

    __device__ static uint32_t row_of(uint32_t box) { return box * (Tile::kSwapped ? Tile::kBoxRows : kWave); }

    __device__ CountedRows(const Problem& problem, const PlaceOfExpert& place, uint32_t group, uint32_t warp, uint32_t lane,
                           const Experts& experts)
        : experts(experts),
          width(Tile::kSwapped ? problem.m : problem.n),
          tokens(Tile::kSwapped ? problem.n : problem.m),
          first(Tile::kSwapped ? place.n : place.m + group * Tile::kWaves * kWave + warp * 16) {
#pragma unroll
        for (uint32_t box = 0; box < Tile::kBoxes; ++box) {
            const uint32_t row = min(first + row_of(box) + lane % Tile::kBoxRows, tokens - 1);
            said[box] = load_now(experts.rows + (experts.masked ? place.expert : row));
        }
    }

    __device__ uint32_t counted(uint32_t box, uint32_t lane) const {
        const uint32_t row = first + row_of(box) + lane;
        const bool counts = experts.masked ? row < static_cast<uint32_t>(said[box]) : said[box] >= 0;
        return __ballot_sync(0xffffffff, lane < Tile::kBoxRows && row < tokens && counts);
    }

    // Whether the warp has stored the box, of `pieces` pieces, because some of its rows do not count. `y`: the row of Y that
    // the matrix begins with.
    __device__ bool store_some(uint32_t box, uint32_t pieces, uint32_t staging, uint32_t x, uint32_t y, uint32_t lane) const {
        constexpr uint32_t kRow = Tile::kPiece * 2, kChunks = kRow / 16;
        const uint32_t rows = counted(box, lane);
        if (rows == (1u << Tile::kBoxRows) - 1) return false;
#pragma unroll 1
        for (uint32_t i = lane; i < pieces * Tile::kBoxRows * kChunks; i += 32) {
            const uint32_t chunk = i % kChunks, row = i / kChunks % Tile::kBoxRows, piece = i / kChunks / Tile::kBoxRows;
            const uint32_t column = x + piece * Tile::kPiece + chunk * 8, swizzle = row * kRow / 128 % kChunks;
            if (rows >> row & 1 && column < width) {
                const uint32_t from = staging + (piece * Tile::kBoxRows + row) * kRow + (chunk ^ swizzle) * 16;
                const uint64_t to = uint64_t{y + first + row_of(box) + row} * experts.pitch + column;
                *reinterpret_cast<uint4*>(experts.y + to) = load_shared_16(from);
            }
        }
        return true;
    }
};

template <class Tile>
struct TilesOfExperts {
    static constexpr bool kInParts = true;
    using Tiles = ExpertTiles<Tile>;
    using Rows = CountedRows<Tile>;
    template <class... Of>
    __device__ static bool complete(const Of&...) {
        return true;
    }
};

}  // namespace gemm
