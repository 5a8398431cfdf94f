// Converts patterns with the host code of NVIDIA's own headers: patterns on stdin, results on stdout.
// usage: convert NAME...   each NAME is answered over all of stdin; results are 16-bit words, one per pattern (or pair).
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_fp4.h"
#include "cuda_fp6.h"
#include "cuda_fp8.h"

namespace {

using Convert = std::function<uint16_t(uint64_t)>;

struct Function {
  int source_bytes;
  Convert convert;
};

std::map<std::string, Function> functions;

template <class To, class From>
To reinterpret(From from) {
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

float as_float(uint64_t pattern) { return reinterpret<float>(static_cast<uint32_t>(pattern)); }
double as_double(uint64_t pattern) { return reinterpret<double>(pattern); }
__half_raw as_half(uint64_t pattern) {
  __half_raw raw;
  raw.x = static_cast<unsigned short>(pattern);
  return raw;
}
__nv_bfloat16_raw as_bfloat(uint64_t pattern) {
  __nv_bfloat16_raw raw;
  raw.x = static_cast<unsigned short>(pattern);
  return raw;
}
float2 as_float2(uint64_t pattern) {
  float2 pair;
  pair.x = as_float(pattern);
  pair.y = as_float(pattern >> 32);
  return pair;
}

void add_fp8(const std::string& format, __nv_fp8_interpretation_t kind) {
  for (__nv_saturation_t saturation : {__NV_SATFINITE, __NV_NOSAT}) {
    const std::string stem = std::string("cuda.") + (saturation == __NV_SATFINITE ? "satfinite." : "nosat.") + format;
    functions[stem + ".f32"] = {4, [=](uint64_t p) { return __nv_cvt_float_to_fp8(as_float(p), saturation, kind); }};
    functions[stem + ".f64"] = {8, [=](uint64_t p) { return __nv_cvt_double_to_fp8(as_double(p), saturation, kind); }};
    functions[stem + ".f16"] = {2, [=](uint64_t p) { return __nv_cvt_halfraw_to_fp8(as_half(p), saturation, kind); }};
    functions[stem + ".bf16"] = {2, [=](uint64_t p) { return __nv_cvt_bfloat16raw_to_fp8(as_bfloat(p), saturation, kind); }};
  }
  functions["pair." + format] = {8, [=](uint64_t p) { return __nv_cvt_float2_to_fp8x2(as_float2(p), __NV_SATFINITE, kind); }};
  functions["decode." + format] = {2, [=](uint64_t p) { return __nv_cvt_fp8_to_halfraw(p, kind).x; }};
}

void add_fp6(const std::string& format, __nv_fp6_interpretation_t kind) {
  for (cudaRoundMode mode : {cudaRoundNearest, cudaRoundZero}) {
    const std::string stem = std::string("cuda.satfinite.") + (mode == cudaRoundZero ? "rz." : "") + format;
    functions[stem + ".f32"] = {4, [=](uint64_t p) { return __nv_cvt_float_to_fp6(as_float(p), kind, mode); }};
    functions[stem + ".f64"] = {8, [=](uint64_t p) { return __nv_cvt_double_to_fp6(as_double(p), kind, mode); }};
    functions[stem + ".f16"] = {2, [=](uint64_t p) { return __nv_cvt_halfraw_to_fp6(as_half(p), kind, mode); }};
    functions[stem + ".bf16"] = {2, [=](uint64_t p) { return __nv_cvt_bfloat16raw_to_fp6(as_bfloat(p), kind, mode); }};
  }
  functions["pair." + format] = {8, [=](uint64_t p) { return __nv_cvt_float2_to_fp6x2(as_float2(p), kind, cudaRoundNearest); }};
  functions["decode." + format] = {2, [=](uint64_t p) { return __nv_cvt_fp6_to_halfraw(p, kind).x; }};
}

void add_fp4() {
  for (cudaRoundMode mode : {cudaRoundNearest, cudaRoundZero}) {
    const std::string stem = std::string("cuda.satfinite.") + (mode == cudaRoundZero ? "rz." : "") + "e2m1";
    functions[stem + ".f32"] = {4, [=](uint64_t p) { return __nv_cvt_float_to_fp4(as_float(p), __NV_E2M1, mode); }};
    functions[stem + ".f64"] = {8, [=](uint64_t p) { return __nv_cvt_double_to_fp4(as_double(p), __NV_E2M1, mode); }};
    functions[stem + ".f16"] = {2, [=](uint64_t p) { return __nv_cvt_halfraw_to_fp4(as_half(p), __NV_E2M1, mode); }};
    functions[stem + ".bf16"] = {2, [=](uint64_t p) { return __nv_cvt_bfloat16raw_to_fp4(as_bfloat(p), __NV_E2M1, mode); }};
  }
  functions["pair.e2m1"] = {8, [](uint64_t p) { return __nv_cvt_float2_to_fp4x2(as_float2(p), __NV_E2M1, cudaRoundNearest); }};
  functions["decode.e2m1"] = {2, [](uint64_t p) { return __nv_cvt_fp4_to_halfraw(p, __NV_E2M1).x; }};
}

void add_scales() {
  for (__nv_saturation_t saturation : {__NV_SATFINITE, __NV_NOSAT}) {
    for (cudaRoundMode mode : {cudaRoundZero, cudaRoundPosInf}) {
      const std::string stem = std::string("cuda.") + (saturation == __NV_SATFINITE ? "satfinite." : "nosat.") +
                               (mode == cudaRoundZero ? "rz" : "rp") + ".e8m0";
      functions[stem + ".f32"] = {4, [=](uint64_t p) { return __nv_cvt_float_to_e8m0(as_float(p), saturation, mode); }};
      functions[stem + ".f64"] = {8, [=](uint64_t p) { return __nv_cvt_double_to_e8m0(as_double(p), saturation, mode); }};
      functions[stem + ".bf16"] = {2, [=](uint64_t p) { return __nv_cvt_bfloat16raw_to_e8m0(as_bfloat(p), saturation, mode); }};
    }
  }
  functions["pair.e8m0"] = {8, [](uint64_t p) { return __nv_cvt_float2_to_e8m0x2(as_float2(p), __NV_SATFINITE, cudaRoundPosInf); }};
  functions["decode.e8m0"] = {2, [](uint64_t p) { return __nv_cvt_e8m0_to_bf16raw(p).x; }};
}

void add_constructors() {
  functions["cuda.constructor.e4m3.f32"] = {4, [](uint64_t p) { return __nv_fp8_e4m3(as_float(p)).__x; }};
  functions["cuda.constructor.e5m2.f32"] = {4, [](uint64_t p) { return __nv_fp8_e5m2(as_float(p)).__x; }};
  functions["cuda.constructor.e2m3.f32"] = {4, [](uint64_t p) { return __nv_fp6_e2m3(as_float(p)).__x; }};
  functions["cuda.constructor.e3m2.f32"] = {4, [](uint64_t p) { return __nv_fp6_e3m2(as_float(p)).__x; }};
  functions["cuda.constructor.e2m1.f32"] = {4, [](uint64_t p) { return __nv_fp4_e2m1(as_float(p)).__x; }};
  functions["cuda.constructor.e8m0.f32"] = {4, [](uint64_t p) { return __nv_fp8_e8m0(as_float(p)).__x; }};
}

}  // namespace

int main(int count, char** names) {
  add_fp8("e4m3", __NV_E4M3);
  add_fp8("e5m2", __NV_E5M2);
  add_fp6("e2m3", __NV_E2M3);
  add_fp6("e3m2", __NV_E3M2);
  add_fp4();
  add_scales();
  add_constructors();

  std::vector<unsigned char> input;
  unsigned char block[1 << 16];
  for (size_t got; (got = std::fread(block, 1, sizeof block, stdin)) > 0;) input.insert(input.end(), block, block + got);

  for (int i = 1; i < count; ++i) {
    const auto found = functions.find(names[i]);
    if (found == functions.end()) {
      std::fprintf(stderr, "no function is called %s\n", names[i]);
      return 2;
    }
    const Function& function = found->second;
    std::vector<uint16_t> results(input.size() / function.source_bytes);
    for (size_t at = 0; at < results.size(); ++at) {
      uint64_t pattern = 0;
      std::memcpy(&pattern, &input[at * function.source_bytes], function.source_bytes);
      results[at] = function.convert(pattern);
    }
    std::fwrite(results.data(), sizeof results[0], results.size(), stdout);
  }
  return 0;
}
