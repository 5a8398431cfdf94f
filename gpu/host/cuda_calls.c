/* What a user's host function asks of CUDA, answered without a GPU: attributes of a device, and tensor maps.
 *
 * The library of the user is built with `nvcc -shared -Xcompiler -fPIC -cudart none`, so that it takes these functions.
 * refsim_answers hands over the two functions that answer. A call that is not here is refused when the library is loaded; calls
 * that need a GPU are here, so that libraries with such calls load, and refuse: refsim_refused names the first one.
 */
#include <cuda_runtime_api.h>
#include <string.h>

typedef int (*Attribute)(int number);
typedef int (*Encode)(void* map, int type, unsigned rank, void* address, const void* dims, const void* strides, const void* box,
                      const void* steps, int interleave, int swizzle, int promotion, int fill);

static Attribute attribute;
static Encode encode;
static const char* chip = "";
static const char* needs_a_gpu;

const char* refsim_refused(void) { return needs_a_gpu; }
static cudaError_t refuse(const char* name) {
    if (!needs_a_gpu) needs_a_gpu = name;
    return cudaErrorNotSupported;
}
#define REFUSE(name, ...) \
    cudaError_t name(__VA_ARGS__) { return refuse(#name); }

void refsim_answers(Attribute of_device, Encode of_map, const char* name) {
    attribute = of_device;
    encode = of_map;
    chip = name;
    needs_a_gpu = 0;
}

int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address, const void* dims, const void* strides, const void* box,
                           const void* steps, int interleave, int swizzle, int promotion, int fill) {
    return encode(map, type, rank, address, dims, strides, box, steps, interleave, swizzle, promotion, fill);
}

static cudaError_t found(const char* name, void** function, enum cudaDriverEntryPointQueryResult* status) {
    const int is_known = strcmp(name, "cuTensorMapEncodeTiled") == 0;
    *function = is_known ? (void*)cuTensorMapEncodeTiled : 0;
    if (status) *status = is_known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult* status) {
    (void)flags;
    return found(name, function, status);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult* status) {
    (void)version, (void)flags;
    return found(name, function, status);
}

cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr number, int device) {
    *value = attribute(number);
    return device == 0 && *value >= 0 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* known, int device) {
    if (device != 0) return cudaErrorInvalidDevice;
    memset(known, 0, sizeof *known);
    strncpy(known->name, chip, sizeof known->name - 1);
    known->major = attribute(cudaDevAttrComputeCapabilityMajor);
    known->minor = attribute(cudaDevAttrComputeCapabilityMinor);
    known->multiProcessorCount = attribute(cudaDevAttrMultiProcessorCount);
    known->warpSize = attribute(cudaDevAttrWarpSize);
    known->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
    known->maxThreadsPerMultiProcessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
    known->maxBlocksPerMultiProcessor = attribute(cudaDevAttrMaxBlocksPerMultiprocessor);
    known->regsPerBlock = attribute(cudaDevAttrMaxRegistersPerBlock);
    known->regsPerMultiprocessor = attribute(cudaDevAttrMaxRegistersPerMultiprocessor);
    known->sharedMemPerBlock = attribute(cudaDevAttrMaxSharedMemoryPerBlock);
    known->sharedMemPerBlockOptin = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    known->sharedMemPerMultiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    for (int axis = 0; axis < 3; ++axis) {
        known->maxThreadsDim[axis] = attribute(cudaDevAttrMaxBlockDimX + axis);
        known->maxGridSize[axis] = attribute(cudaDevAttrMaxGridDimX + axis);
    }
    known->unifiedAddressing = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaPeekAtLastError(void) { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t code) { return code == cudaSuccess ? "no error" : "an error that refsim answered"; }
const char* cudaGetErrorName(cudaError_t code) { return code == cudaSuccess ? "cudaSuccess" : "cudaError"; }
int cuGetErrorString(int code, const char** text) { return *text = cudaGetErrorString(code), 0; }
int cuGetErrorName(int code, const char** text) { return *text = cudaGetErrorName(code), 0; }
cudaError_t cudaFuncSetAttribute(const void* function, enum cudaFuncAttribute number, int value) {
    return (void)function, (void)number, (void)value, cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads, size_t shared) {
    return (void)function, (void)threads, (void)shared, *blocks = 1, cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int threads, size_t shared,
                                                                   unsigned flags) {
    return (void)flags, cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}

/* What nvcc adds to a file with kernels: the kernels are registered, and none is launched from the host. */
void** __cudaRegisterFatBinary(void* binary) { static void* handle; return (void)binary, &handle; }
void __cudaRegisterFatBinaryEnd(void** handle) { (void)handle; }
void __cudaUnregisterFatBinary(void** handle) { (void)handle; }
void __cudaRegisterFunction(void** handle, const char* host, char* name, const char* device, int limit, void* thread, void* block,
                            void* block_size, void* grid_size, int* warp) {
    (void)handle, (void)host, (void)name, (void)device, (void)limit, (void)thread, (void)block, (void)block_size, (void)grid_size,
        (void)warp;
}
void __cudaRegisterVar(void** handle, char* host, char* device, const char* name, int external, size_t size, int constant, int global) {
    (void)handle, (void)host, (void)device, (void)name, (void)external, (void)size, (void)constant, (void)global;
}
char __cudaInitModule(void** handle) { return (void)handle, 1; }
REFUSE(__cudaPopCallConfiguration, void* grid, void* block, size_t* shared, void* stream)
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
    return (void)grid, (void)block, (void)shared, (void)stream, refuse("a launch <<<...>>>"), 1;
}
REFUSE(cudaLaunchKernel, const void* function, dim3 grid, dim3 block, void** values, size_t shared, cudaStream_t stream)
REFUSE(cudaLaunchCooperativeKernel, const void* function, dim3 grid, dim3 block, void** values, size_t shared, cudaStream_t stream)
REFUSE(cudaLaunchKernelExC, const cudaLaunchConfig_t* with, const void* function, void** values)
cudaError_t __cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** values, size_t shared, cudaStream_t stream) {
    return cudaLaunchKernel(kernel, grid, block, values, shared, stream);
}
cudaError_t __cudaGetKernel(void** kernel, const void* function) { return *kernel = (void*)function, cudaSuccess; }

/* What host code around the parameters calls: memory, streams, events, questions about a loaded kernel. */
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return (void)stream, cudaSuccess; }
REFUSE(cudaMalloc, void** to, size_t size)
REFUSE(cudaMallocAsync, void** to, size_t size, cudaStream_t stream)
REFUSE(cudaMallocHost, void** to, size_t size)
REFUSE(cudaMallocManaged, void** to, size_t size, unsigned flags)
REFUSE(cudaFree, void* memory)
REFUSE(cudaFreeAsync, void* memory, cudaStream_t stream)
REFUSE(cudaFreeHost, void* memory)
REFUSE(cudaMemGetInfo, size_t* left, size_t* all)
REFUSE(cudaMemcpy, void* to, const void* from, size_t size, enum cudaMemcpyKind kind)
REFUSE(cudaMemcpyAsync, void* to, const void* from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream)
REFUSE(cudaMemcpyToSymbol, const void* symbol, const void* from, size_t size, size_t offset, enum cudaMemcpyKind kind)
REFUSE(cudaMemset, void* to, int value, size_t size)
REFUSE(cudaMemsetAsync, void* to, int value, size_t size, cudaStream_t stream)
REFUSE(cudaPointerGetAttributes, struct cudaPointerAttributes* known, const void* pointer)
REFUSE(cudaStreamCreate, cudaStream_t* stream)
REFUSE(cudaStreamCreateWithFlags, cudaStream_t* stream, unsigned flags)
REFUSE(cudaStreamDestroy, cudaStream_t stream)
REFUSE(cudaStreamQuery, cudaStream_t stream)
REFUSE(cudaStreamWaitEvent, cudaStream_t stream, cudaEvent_t event, unsigned flags)
REFUSE(cudaEventCreate, cudaEvent_t* event)
REFUSE(cudaEventCreateWithFlags, cudaEvent_t* event, unsigned flags)
REFUSE(cudaEventDestroy, cudaEvent_t event)
REFUSE(cudaEventRecord, cudaEvent_t event, cudaStream_t stream)
REFUSE(cudaEventSynchronize, cudaEvent_t event)
REFUSE(cudaEventElapsedTime, float* milliseconds, cudaEvent_t start, cudaEvent_t end)
REFUSE(cudaFuncGetAttributes, struct cudaFuncAttributes* known, const void* function)
REFUSE(cudaOccupancyMaxActiveClusters, int* clusters, const void* function, const cudaLaunchConfig_t* with)
