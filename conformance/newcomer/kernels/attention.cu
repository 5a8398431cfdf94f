// Attention over one head of 32 columns in f16: a warp takes 16 queries and walks the keys in tiles of 16, which cp.async
// brings while the tile before is multiplied. Online softmax by ex2.approx; o is float32.
#include <cuda_fp16.h>

constexpr unsigned kTile = 16, kDepth = 32;
constexpr float kScale = 0.17677669f * 1.44269504f;  // log2(e) / sqrt(32)

struct Tile {
  alignas(16) __half k[kTile * kDepth], v[kTile * kDepth];
};

// A row is four chunks of 16 bytes; chunks change places so that eight rows lie in eight banks of 16 bytes.
__device__ unsigned swizzled(unsigned row, unsigned chunk) { return row * kDepth + 8 * (chunk ^ (row / 2 % 4)); }

__device__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// Rows beyond the last are filled with zeros.
__device__ void copy_rows(__half* to, const __half* from, unsigned first, unsigned length) {
  for (unsigned part = threadIdx.x; part < kTile * 4; part += 32) {
    const unsigned row = part / 4, chunk = part % 4;
    const bool inside = first + row < length;
    const __half* source = from + (inside ? (first + row) * kDepth + 8 * chunk : 0);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to + swizzled(row, chunk))),
                 "l"(source), "r"(inside ? 16 : 0) : "memory");
  }
}

__device__ void fetch(Tile& tile, const __half* k, const __half* v, unsigned first, unsigned length) {
  copy_rows(tile.k, k, first, length);
  copy_rows(tile.v, v, first, length);
  asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ unsigned packed(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

extern "C" __global__ void attention(const __half* q, const __half* k, const __half* v, float* o, unsigned length,
                                     unsigned causal) {
  __shared__ Tile tiles[2];
  const unsigned lane = threadIdx.x, group = lane / 4, pair = 2 * (lane % 4);
  const unsigned first_query = blockIdx.x * kTile;

  unsigned a[2][4];  // queries: rows group and group + 8, columns pair, pair + 1 and 8 further
  for (unsigned step = 0; step < 2; ++step)
    for (unsigned part = 0; part < 4; ++part) {
      const unsigned row = first_query + group + 8 * (part % 2), column = 16 * step + pair + 8 * (part / 2);
      a[step][part] = row < length ? *reinterpret_cast<const unsigned*>(q + row * kDepth + column) : 0;
    }

  const unsigned end = causal ? min(length, first_query + kTile) : length;
  const unsigned steps = (end + kTile - 1) / kTile;
  float sums[4][4] = {}, top[2] = {-1e30f, -1e30f}, below[2] = {0.0f, 0.0f};
  fetch(tiles[0], k, v, 0, length);
  for (unsigned step = 0; step < steps; ++step) {
    const Tile& tile = tiles[step % 2];
    if (step + 1 < steps) fetch(tiles[(step + 1) % 2], k, v, (step + 1) * kTile, length);
    else asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncwarp();

    float s[2][4] = {};
    for (unsigned half = 0; half < 2; ++half)
      for (unsigned depth = 0; depth < 2; ++depth) {
        const unsigned row = 8 * half + lane % 8, chunk = 2 * depth + lane / 8 % 2;
        unsigned b0, b1;
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(b0), "=r"(b1)
                     : "r"(shared_address(tile.k + swizzled(row, chunk))) : "memory");
        multiply(s[half], a[depth], b0, b1);
      }

    for (unsigned side = 0; side < 2; ++side) {  // row group, then row group + 8
      float largest = top[side];
      for (unsigned half = 0; half < 2; ++half)
        for (unsigned place = 0; place < 2; ++place) {
          const unsigned key = step * kTile + 8 * half + pair + place, query = first_query + group + 8 * side;
          const bool seen = key < length && (!causal || key <= query);
          float& score = s[half][2 * side + place];
          score = seen ? score * kScale : -1e30f;
          largest = fmaxf(largest, score);
        }
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      const float kept = exp2f(top[side] - largest);
      float sum = 0.0f;
      for (unsigned half = 0; half < 2; ++half)
        for (unsigned place = 0; place < 2; ++place) {
          float& score = s[half][2 * side + place];
          score = score == -1e30f ? 0.0f : exp2f(score - largest);
          sum += score;
        }
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      below[side] = below[side] * kept + sum;
      top[side] = largest;
      for (unsigned column = 0; column < 4; ++column)
        for (unsigned place = 0; place < 2; ++place) sums[column][2 * side + place] *= kept;
    }

    const unsigned p[4] = {packed(s[0][0], s[0][1]), packed(s[0][2], s[0][3]), packed(s[1][0], s[1][1]),
                           packed(s[1][2], s[1][3])};
    for (unsigned column = 0; column < 4; ++column) {
      unsigned b0, b1;
      asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(b0), "=r"(b1)
                   : "r"(shared_address(tile.v + swizzled(lane % 16, column))) : "memory");
      multiply(sums[column], p, b0, b1);
    }
    __syncwarp();
  }

  for (unsigned side = 0; side < 2; ++side) {
    const unsigned row = first_query + group + 8 * side;
    if (row >= length) continue;
    for (unsigned column = 0; column < 4; ++column)
      for (unsigned place = 0; place < 2; ++place)
        o[row * kDepth + 8 * column + pair + place] = sums[column][2 * side + place] / below[side];
  }
}
