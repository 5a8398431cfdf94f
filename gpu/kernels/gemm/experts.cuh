// The GEMM of a mixture of experts: rows that nobody counts are neither computed nor written.

#pragma once

#include "epilogue.cuh"
#include "scheduler.cuh"

namespace gemm {

// Contiguous: A is one matrix, `rows` the expert of each of its rows, negative for none, and each tile has one expert, that of
// its first row. Masked: A and Y are `experts` matrices, and of each so many rows count.
struct Experts {
    const int32_t* rows;
    uint16_t* y;
    uint32_t pitch, experts;  // elements from row to row of Y
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

// Where tiles are handed over, behind all else in shared memory: 16 bytes each, and two barriers.
template <class Tile>
struct Handed {
    static constexpr uint32_t kSlots = 4, kPlaces = up_to(Tile::kEnd, 16), kFull = kPlaces + 16 * kSlots,
                              kEmpty = kFull + 8 * kSlots, kEnd = kEmpty + 8 * kSlots;
    uint32_t base;
    Ring<kSlots> ring;

    __device__ uint32_t place() const { return base + kPlaces + 16 * ring.stage; }
    __device__ uint32_t full() const { return base + kFull + 8 * ring.stage; }
    __device__ uint32_t empty() const { return base + kEmpty + 8 * ring.stage; }
};

// The tiles of rows that count, looked for by one thread, ahead of those that take them: behind a loop whose end depends on what
// memory holds the compiler keeps all in plain registers, descriptors of products too. The blocks of a cluster have the same rows
// of A, thus the same expert.
template <class Tile, bool MASKED>
struct ExpertTiles {
    static_assert(Tile::kDown == 1);
    static constexpr uint32_t kTokens = Tile::kSwapped ? Tile::N : Tile::M;
    static constexpr uint32_t kWeights = (Tile::kSwapped ? Tile::M : Tile::N) * Tile::kAcross;
    const Experts& experts;
    uint32_t together, next, step, expert = 0, before = 0, down, across;

    __device__ ExpertTiles(const Problem& problem, const Experts& experts)
        : experts(experts),
          together(problem.together),
          next(blockIdx.x / Tile::kBlocks),
          step(gridDim.x / Tile::kBlocks),
          down(tiles_of(MASKED ? __ldg(experts.rows) : Tile::kSwapped ? problem.n : problem.m)),
          across(((Tile::kSwapped ? problem.m : problem.n) + kWeights - 1) / kWeights) {}

    __device__ static uint32_t tiles_of(uint32_t rows) { return (rows + kTokens - 1) / kTokens; }

    // The expert, negative for none in the contiguous layout, and the first rows of tokens and weights; whether there is a tile.
    __device__ bool find(uint4& tile) {
        while (next - before >= down * across) {
            if (!MASKED || ++expert == experts.experts) return false;
            before += down * across;
            down = tiles_of(__ldg(experts.rows + expert));
        }
        const uint32_t number = next - before, whole = together * across;
        const uint32_t first = number / whole * together, rows = min(together, down - first), at = number % whole;
        tile.y = (first + at % rows) * kTokens;
        tile.z = at / rows * kWeights;
        tile.x = MASKED ? expert : __ldg(experts.rows + tile.y);
        next += step;
        return true;
    }

    // One thread.
    __device__ void hand_over(uint32_t base) {
        Handed<Tile> to{base, {}};
        for (uint4 tile{0, 0, 0, 1}; tile.w != 0;) {
            tile.w = find(tile);
            if (tile.w != 0 && static_cast<int32_t>(tile.x) < 0) continue;
            wait(to.empty(), to.ring.parity ^ 1);
            store_shared_16(to.place(), tile);
            arrive(to.full());
            to.ring.step();
        }
    }
};

// The tiles as they are handed over, with `WARPS` to whole warps, else to one thread. By a shuffle the compiler sees that they are
// the same for a warp.
template <class Tile, bool MASKED, bool WARPS>
struct TilesHandedOver {
    using At = PlaceOfExpert;
    Handed<Tile> from;
    uint32_t tokens, weights, blocks;
    Seat<Tile> seat;

    __device__ TilesHandedOver(uint32_t base, const Problem& problem, const Seat<Tile>& seat, const Experts&)
        : from{base, {}},
          tokens(Tile::kSwapped ? problem.n : problem.m),
          weights(Tile::kSwapped ? problem.m : problem.n),
          blocks((problem.k + kBlockK - 1) / kBlockK),
          seat(seat) {}

    __device__ static uint32_t same(uint32_t value) { return WARPS ? __shfl_sync(0xffffffff, value, 0) : value; }

    __device__ bool take(PlaceOfExpert& place) {
        if constexpr (WARPS)
            wait_together(from.full(), from.ring.parity);
        else
            wait(from.full(), from.ring.parity);
        const uint4 tile = load_shared_16(from.place());
        if (WARPS) __syncwarp();
        if (!WARPS || threadIdx.x % 32 == 0) arrive(from.empty());
        from.ring.step();
        if (same(tile.w) == 0) return false;
        const uint32_t expert = same(tile.x), token = same(tile.y), weight = same(tile.z), matrix = MASKED ? expert : 0;
        const uint32_t of_a = matrix * tokens, of_b = expert * weights;
        place.expert = expert;
        place.m = Tile::kSwapped ? weight : token;
        place.n = Tile::kSwapped ? token : weight + seat.n * Tile::N;
        place.a = place.m + (Tile::kSwapped ? of_b : of_a);
        place.b = place.n + (Tile::kSwapped ? of_a : of_b);
        place.scales = matrix * blocks, place.blocks = blocks;
        return true;
    }
};

// A box whose rows all count is stored by tensor map; of another the rows that count, one by one.
template <class Tile, bool MASKED>
struct CountedRows {
    static constexpr bool kAll = false, kTogether = false;
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
            said[box] = load_now(experts.rows + (MASKED ? place.expert : row));
        }
    }

    __device__ uint32_t counted(uint32_t box, uint32_t lane) const {
        const uint32_t row = first + row_of(box) + lane;
        const bool counts = MASKED ? row < static_cast<uint32_t>(said[box]) : said[box] >= 0;
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

template <class Tile, bool MASKED>
struct TilesOfExperts {
    static constexpr bool kInParts = true, kHandsOver = true;
    static constexpr uint32_t kDynamic = Handed<Tile>::kEnd + Tile::kDynamic - Tile::kEnd;
    template <bool WARPS>
    using Tiles = TilesHandedOver<Tile, MASKED, WARPS>;
    using Rows = CountedRows<Tile, MASKED>;

    __device__ static void init(uint32_t base) {
        for (Handed<Tile> each{base, {}}; each.ring.parity == 0; each.ring.step()) {
            barrier_init(each.full(), 1);
            barrier_init(each.empty(), 1 + Tile::kMathWarps);
        }
    }
    __device__ static void hand_over(uint32_t base, const Problem& problem, const Experts& experts) {
        ExpertTiles<Tile, MASKED>(problem, experts).hand_over(base);
    }
    template <class... Of>
    __device__ static bool complete(const Of&...) {
        return true;
    }
};

}  // namespace gemm
