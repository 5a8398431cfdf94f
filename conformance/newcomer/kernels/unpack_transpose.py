"""A kernel as CuPy's RawKernel takes it: a string. E4M3 bytes, decoded by hand for chips that cannot, and transposed."""

SOURCE = r"""
// y[column][row] = gain * value(x[row][column]) + offset, product and sum each rounded.
__device__ float value(unsigned char code) {
  const bool fnuz = false;  // the FP8 of AMD's MI300: bias 8, and 0x80 is its NaN
  const int bias = fnuz ? 8 : 7;
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const bool is_nan = fnuz ? code == 0x80 : (code & 0x7f) == 0x7f;
  if (is_nan) return __int_as_float(0x7fffffff);
  const float magnitude = exponent ? __int_as_float((exponent - bias + 127) << 23 | mantissa << 20)
                                   : mantissa * __int_as_float((1 - bias - 3 + 127) << 23);
  return code & 0x80 ? -magnitude : magnitude;
}

// Tiles of 32 x 32; column c of row r stands in place c ^ r, so that neither direction has bank conflicts.
extern "C" __global__ void unpack_transpose(const unsigned char* x, float* y, float gain, float offset, int rows,
                                            int columns) {
  __shared__ float tile[32][32];
  const int lane = threadIdx.x;
  for (int r = threadIdx.y; r < 32; r += blockDim.y) {
    const int row = blockIdx.y * 32 + r, column = blockIdx.x * 32 + lane;
    if (row < rows && column < columns) tile[r][lane ^ r] = value(x[row * columns + column]);
  }
  __syncthreads();
  for (int c = threadIdx.y; c < 32; c += blockDim.y) {
    const int row = blockIdx.y * 32 + lane, column = blockIdx.x * 32 + c;
    if (row < rows && column < columns)
      y[column * rows + row] = __fadd_rn(__fmul_rn(gain, tile[lane][c ^ lane]), offset);
  }
}
"""
