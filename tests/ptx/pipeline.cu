// Y = X W^T in bf16 for up to 16 rows of X: a block of four warps makes 64 columns of Y, K in tiles of 128 that arrive
// through three stages of shared memory. Tests change single words of this text and of the PTX made from it.
using u32 = unsigned;
using u16 = unsigned short;

constexpr int TILE = 128, STAGES = 3, COLUMNS = 64, ROWS = 16;
constexpr int ROW_BYTES = TILE * 2, X_BYTES = ROWS * ROW_BYTES, STAGE_BYTES = X_BYTES + COLUMNS * ROW_BYTES;

// 16-byte chunks of a row change places with the row's number, so that eight rows of one column lie in eight banks.
static __device__ __forceinline__ u32 place(int row, int chunk) {
  return row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
}

static __device__ __forceinline__ void copy(u32 to, const void *from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void load_matrices(u32 (&d)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(from) : "memory");
}

extern "C" __global__ void linear(const u16 *x, const u16 *w, u16 *y, int rows, int depth, int columns) {
  extern __shared__ __align__(128) unsigned char stages[];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, first = blockIdx.x * COLUMNS;
  const int tiles = depth / TILE;
  const u32 base = static_cast<u32>(__cvta_generic_to_shared(stages));

  auto start = [&](int tile) {
    const u32 stage = base + tile % STAGES * STAGE_BYTES;
    for (int chunk = thread; chunk < ROWS * TILE / 8; chunk += 128) {
      const int row = chunk / (TILE / 8), at = chunk % (TILE / 8), exists = row < rows;
      copy(stage + place(row, at), x + (exists ? row : 0) * (size_t)depth + tile * TILE + at * 8, exists ? 16 : 0);
    }
    for (int chunk = thread; chunk < COLUMNS * TILE / 8; chunk += 128) {
      const int row = chunk / (TILE / 8), at = chunk % (TILE / 8);
      copy(stage + X_BYTES + place(row, at), w + (first + row) * (size_t)depth + tile * TILE + at * 8, 16);
    }
  };

  float sums[2][4] = {};
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (stage < tiles) start(stage);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  for (int tile = 0; tile < tiles; ++tile) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    if (tile + STAGES - 1 < tiles) start(tile + STAGES - 1);
    asm volatile("cp.async.commit_group;" ::: "memory");
    const u32 stage = base + tile % STAGES * STAGE_BYTES;
    for (int step = 0; step < TILE / 16; ++step) {
      u32 a[4], b[4];
      load_matrices(a, stage + place(lane % 16, step * 2 + lane / 16));
      load_matrices(b, stage + X_BYTES + place(warp * 16 + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
      for (int half = 0; half < 2; ++half)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(sums[half][0]), "+f"(sums[half][1]), "+f"(sums[half][2]), "+f"(sums[half][3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[2 * half]), "r"(b[2 * half + 1]));
    }
  }
  for (int half = 0; half < 2; ++half)
    for (int below = 0; below < 2; ++below) {
      const int row = lane / 4 + 8 * below, column = first + warp * 16 + half * 8 + lane % 4 * 2;
      u32 pair;
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(sums[half][2 * below + 1]), "f"(sums[half][2 * below]));
      if (row < rows) *reinterpret_cast<u32 *>(y + row * (size_t)columns + column) = pair;
    }
}
