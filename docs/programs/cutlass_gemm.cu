// A GEMM of CUTLASS for sm_90a, and host functions that make its parameters; CUTLASS itself is not part of refsim.
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
using namespace cute; using namespace cutlass; using namespace cutlass::layout;
using TileShape = Shape<_64, _64, _64>; using ClusterShape = Shape<_1, _1, _1>;
using Epilogue = epilogue::collective::CollectiveBuilder<arch::Sm90, arch::OpClassTensorOp, TileShape, ClusterShape,
    epilogue::collective::EpilogueTileAuto, float, float, half_t, RowMajor, 8, half_t, RowMajor, 8,
    epilogue::collective::EpilogueScheduleAuto>::CollectiveOp;
using Main = gemm::collective::CollectiveBuilder<arch::Sm90, arch::OpClassTensorOp, half_t, RowMajor, 8, half_t,
    ColumnMajor, 8, float, TileShape, ClusterShape,
    gemm::collective::StageCountAutoCarveout<sizeof(Epilogue::SharedStorage)>,
    gemm::collective::KernelScheduleAuto>::CollectiveOp;
using Gemm = gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Main, Epilogue>;

auto kernel = &cutlass::device_kernel<Gemm>;  // compiles the kernel
extern "C" int sizes(int* to) {
    to[0] = sizeof(Gemm::Params), to[1] = Gemm::SharedStorageSize, to[2] = Gemm::MaxThreadsPerBlock;
    return 0;
}
extern "C" int make(void* to, half_t* a, half_t* b, half_t* d, int m, int n, int k) {
    Gemm::Arguments given{gemm::GemmUniversalMode::kGemm, {m, n, k, 1}, {a, {k, _1{}, 0}, b, {k, _1{}, 0}},
                          {{1.0f, 0.0f}, d, {n, _1{}, 0}, d, {n, _1{}, 0}}};
    *(Gemm::Params*)to = Gemm::to_underlying_arguments(given, nullptr);
    return !Gemm::can_implement(given);
}
