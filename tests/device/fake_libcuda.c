/* A driver without a GPU, compiled with cuda.h: what it is handed is what a real one would be.
 *
 * An entry is called NAME_SIZE_SIZE..., by the sizes of its parameters. `echo` writes how it was launched to the address in
 * its first parameter: grid, block, shared bytes, number of attributes, each attribute (72 bytes), then every parameter.
 * `refuse` and `fault` have a status as their first number: that of the launch, and of everything after it.
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_SHARED (48 << 10)
#define MOST_SHARED (227 << 10)

typedef struct { char name[64]; int dynamic_shared, non_portable; } Function;

static int entered, retained, sticky;
#define NEEDS_CONTEXT do { if (!entered) return CUDA_ERROR_INVALID_CONTEXT; if (sticky) return (CUresult)sticky; } while (0)

CUresult cuInit(unsigned flags) { return getenv("FAKE_NO_GPU") ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { *version = 13000; return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { *count = 1; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int index) { *device = index; return index ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS; }
CUresult cuDeviceGetName(char *name, int size, CUdevice device) { snprintf(name, size, "Fake GPU"); return CUDA_SUCCESS; }
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) { *bytes = (size_t)1 << 30; return CUDA_SUCCESS; }

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9
           : attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 4 : 0;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { retained++; *context = (CUcontext)&retained; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRelease(CUdevice device) { retained--; return (CUresult)sticky; }
CUresult cuCtxPushCurrent(CUcontext context) { if (!retained) return CUDA_ERROR_INVALID_CONTEXT; entered++; return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent(CUcontext *context) { entered--; if (context) *context = (CUcontext)&retained; return CUDA_SUCCESS; }
CUresult cuCtxSynchronize(void) { NEEDS_CONTEXT; return CUDA_SUCCESS; }

CUresult cuMemAlloc(CUdeviceptr *address, size_t size) {
    NEEDS_CONTEXT;
    if (size > 1 << 20) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = (CUdeviceptr)aligned_alloc(256, (size + 255) / 256 * 256);
    return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr address) { NEEDS_CONTEXT; free((void *)address); return CUDA_SUCCESS; }
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t size) { NEEDS_CONTEXT; memcpy((void *)to, from, size); return CUDA_SUCCESS; }
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t size) { NEEDS_CONTEXT; memcpy(to, (void *)from, size); return CUDA_SUCCESS; }

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    NEEDS_CONTEXT;
    if (memcmp(image, "\177ELF", 4)) return CUDA_ERROR_INVALID_IMAGE;
    *module = (CUmodule)malloc(1);
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) { NEEDS_CONTEXT; free(module); return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    NEEDS_CONTEXT;
    Function *made = calloc(1, sizeof(Function));
    snprintf(made->name, sizeof made->name, "%s", name);
    made->dynamic_shared = DEFAULT_SHARED;
    *function = (CUfunction)made;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) { NEEDS_CONTEXT; *value = 0; return CUDA_SUCCESS; }
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    NEEDS_CONTEXT;
    Function *f = (Function *)function;
    if (attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) f->non_portable = value;
    else if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value <= MOST_SHARED) f->dynamic_shared = value;
    else return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared) {
    NEEDS_CONTEXT;
    *blocks = 2048 / threads;
    return CUDA_SUCCESS;
}

static char *put(char *to, const void *from, size_t size) { memcpy(to, from, size); return to + size; }

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    NEEDS_CONTEXT;
    Function *f = (Function *)function;
    if (extra || config->hStream || (int)config->sharedMemBytes > f->dynamic_shared) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            const CUlaunchAttributeValue *v = &config->attrs[i].value;
            if (v->clusterDim.x * v->clusterDim.y * v->clusterDim.z > 8 && !f->non_portable) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
        }
    const char *sizes = strchr(f->name, '_') + 1;
    if (!strncmp(f->name, "refuse", 6)) return (CUresult)atoi(sizes);
    if (!strncmp(f->name, "fault", 5)) { sticky = atoi(sizes); return CUDA_SUCCESS; }
    char *out = *(char **)parameters[0];
    out = put(out, &config->gridDimX, 12);
    out = put(out, &config->blockDimX, 12);
    out = put(out, &config->sharedMemBytes, 4);
    out = put(out, &config->numAttrs, 4);
    for (unsigned i = 0; i < config->numAttrs; i++) {
        int id = config->attrs[i].id;
        out = put(put(out, &id, 4), &config->attrs[i].value, sizeof config->attrs[i].value);
    }
    for (; sizes; sizes = strchr(sizes, '_') ? strchr(sizes, '_') + 1 : 0, parameters++) out = put(out, *parameters, atoi(sizes));
    return CUDA_SUCCESS;
}

/* Not what a driver makes: the arguments one behind the other, 64 bits each, so that 16 of them fit a map of rank 2. */
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *dims,
                                const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
    if ((size_t)map % 64) return CUDA_ERROR_MISALIGNED_ADDRESS;
    if (promotion == CU_TENSOR_MAP_L2_PROMOTION_L2_64B) return CUDA_ERROR_NOT_SUPPORTED;
    cuuint64_t said[16] = {type, rank, (cuuint64_t)address, dims[0], dims[1], strides[0], box[0], box[1], steps[0], steps[1],
                           interleave, swizzle, promotion, fill};
    memcpy(map, said, sizeof said);
    return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *dims,
                                 const cuuint64_t *strides, const int *lower, const int *upper, cuuint32_t channels,
                                 cuuint32_t pixels, const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                 CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    if ((size_t)map % 64 || rank != 4) return CUDA_ERROR_MISALIGNED_ADDRESS;
    int said[32] = {type, rank, (int)(size_t)address, (int)((size_t)address >> 32), dims[0], dims[1], dims[2], dims[3],
                    strides[0], strides[1], strides[2], lower[0], lower[1], upper[0], upper[1], channels, pixels,
                    steps[0], steps[1], steps[2], steps[3], interleave, swizzle, promotion, fill};
    memcpy(map, said, sizeof said);
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult status, const char **name) {
    *name = status == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
          : status == CUDA_ERROR_NO_DEVICE ? "CUDA_ERROR_NO_DEVICE"
          : status == CUDA_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : status == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES ? "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" : 0;
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGetErrorString(CUresult status, const char **text) {
    *text = status == CUDA_ERROR_ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "as the driver says";
    return CUDA_SUCCESS;
}

/* cuda.bindings asks for every call by its first name; the version that cuda.h means has a suffix. */
CUresult cuGetProcAddress(const char *name, void **address, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *found) {
    char longer[128];
    snprintf(longer, sizeof longer, "%s_v2", name);
    void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    *address = dlsym(self, longer);
    if (!*address) *address = dlsym(self, name);
    if (found) *found = *address ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *address ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
