// Four-bit weights as AWQ packs them, to half: (q - zero) * scale, one rounding.
#include <cuda_fp16.h>

constexpr unsigned kGroup = 32;

// words [rows][columns / 8]: nibble i of a word is column 2 i of its eight, from nibble 4 on 2 (i - 4) + 1.
// zeros [rows / 32][columns / 8] in the same order, scales [rows / 32][columns]. A thread has one word.
extern "C" __global__ void awq_dequantize(const unsigned* words, const unsigned* zeros, const __half* scales, __half* w,
                                          unsigned rows, unsigned columns) {
  const unsigned at = blockIdx.x * blockDim.x + threadIdx.x, across = columns / 8;
  if (at >= rows * across) return;
  const unsigned row = at / across, word = at % across, group = row / kGroup;
  const unsigned codes = words[at], points = zeros[group * across + word];
  for (unsigned i = 0; i < 8; ++i) {
    const unsigned column = word * 8 + (i % 4 * 2 + i / 4);
    const int q = codes >> 4 * i & 0xf, zero = points >> 4 * i & 0xf;
    w[row * columns + column] = __hmul(__int2half_rn(q - zero), scales[group * columns + column]);
  }
}
