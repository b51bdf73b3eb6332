// Facts about a device, read once, and the one way a kernel is launched.
#pragma once

#include <cuda_runtime.h>

#include "kt_ops_cuda.h"

namespace kt {

struct DeviceFacts {
    int capability;       // major * 10 + minor
    int multiprocessors;
    int shared_bytes;     // most a block may have
};

// Fills `facts` and makes `device` current. Returns a cudaError_t.
int device_facts(int device, DeviceFacts* facts);

int run_small_m_f16(const kt_matmul& p, const DeviceFacts& facts, cudaStream_t stream);
int run_small_m_bf16(const kt_matmul& p, const DeviceFacts& facts, cudaStream_t stream);
int run_large_m_f16(const kt_matmul& p, const DeviceFacts& facts, cudaStream_t stream);
int run_large_m_bf16(const kt_matmul& p, const DeviceFacts& facts, cudaStream_t stream);
int run_stream_f16(const kt_matmul& p, const DeviceFacts& facts, cudaStream_t stream);
int run_stream_bf16(const kt_matmul& p, const DeviceFacts& facts, cudaStream_t stream);

// Launches `kernel(p)` as clusters of `split` blocks, with `shared` bytes of dynamic shared memory.
// `dependent` lets it start before the kernel ahead of it in the stream has ended.
template <typename Parameters>
int launch_kernel(void (*kernel)(Parameters), dim3 grid, int threads, int shared, const Parameters& p,
                  int split, bool dependent, const DeviceFacts& facts, cudaStream_t stream) {
    if (grid.x == 0 || grid.y == 0) return 0;
    if (shared > facts.shared_bytes || grid.y > 65535) return KT_BAD_SHAPE;
    cudaError_t error = cudaSuccess;
    if (shared > 40 * 1024) {
        error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    }
    if (error != cudaSuccess) {
        cudaGetLastError();
        return error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction
                   ? KT_NO_CODE
                   : error;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    cudaLaunchAttribute attributes[2];
    config.attrs = attributes;
    if (facts.capability >= 90) {
        if (split > 1) {
            attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
            attributes[config.numAttrs].val.clusterDim.x = split;
            attributes[config.numAttrs].val.clusterDim.y = 1;
            attributes[config.numAttrs].val.clusterDim.z = 1;
            ++config.numAttrs;
        }
        if (dependent) {
            attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
            attributes[config.numAttrs].val.programmaticStreamSerializationAllowed = 1;
            ++config.numAttrs;
        }
    }
    error = cudaLaunchKernelEx(&config, kernel, p);
    if (error != cudaSuccess) cudaGetLastError();  // a refused launch must not haunt the next call
    return error;
}

}  // namespace kt
