// The entries that every block-scaled product has, each made by the BLOCK_SCALED of its kernel file. block_scaled_matmul.py reads
// these lines.
//
//   kind, K, scales    of the instruction with block scales: what it is called, elements along K, blocks that these are
//   A, B, scale        types by their names in PTX

#pragma once

//               name        kind         K  scales     A     B  scale
#define BLOCK_SCALED_ENTRIES                                           \
    BLOCK_SCALED(mxfp8,      mxf8f6f4,   32,  1,     e4m3, e4m3, ue8m0) \
    BLOCK_SCALED(mxfp8_e5m2, mxf8f6f4,   32,  1,     e5m2, e5m2, ue8m0) \
    BLOCK_SCALED(mxfp6_e2m3, mxf8f6f4,   32,  1,     e2m3, e2m3, ue8m0) \
    BLOCK_SCALED(mxfp6_e3m2, mxf8f6f4,   32,  1,     e3m2, e3m2, ue8m0) \
    BLOCK_SCALED(mxfp4,      mxf4,       64,  2,     e2m1, e2m1, ue8m0) \
    BLOCK_SCALED(nvfp4,      mxf4nvf4,   64,  4,     e2m1, e2m1, ue4m3) \
    BLOCK_SCALED(fp8_fp4,    mxf8f6f4,   32,  1,     e4m3, e2m1, ue8m0) \
    BLOCK_SCALED(fp6_fp8,    mxf8f6f4,   32,  1,     e2m3, e5m2, ue8m0)
