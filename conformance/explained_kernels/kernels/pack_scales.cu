// E8M0 scales of (rows, blocks) into tiles of 128 x 4, 32 x 4 x 4 inside, as tcgen05 reads them; pads are zeros.
#include <cuda_runtime.h>

// A thread has one word: the four blocks of a row.
extern "C" __global__ void pack_scales(const unsigned char* scales, unsigned* packed, unsigned rows, unsigned blocks) {
  const unsigned across = (blocks + 3) / 4, down = (rows + 127) / 128;
  const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= down * 128 * across) return;
  const unsigned row = at / across, span = at % across;
  unsigned word = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned block = span * 4 + i;
    const unsigned code = row < rows && block < blocks ? scales[row * blocks + block] : 0;
    word |= code << 8 * i;
  }
  const unsigned tile = row / 128 * across + span, inside = row % 32 * 4 + row % 128 / 32;
  packed[tile * 128 + inside] = word;
}
