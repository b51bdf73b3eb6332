// The C entry points.
#include <atomic>

#include "launch.h"
#include "stream_choice.h"

#ifndef KT_BUILD
#define KT_BUILD "unknown"
#endif

namespace kt {
namespace {

constexpr int kMaxDevices = 64;
std::atomic<int> known[kMaxDevices];  // 0: not read yet
DeviceFacts cache[kMaxDevices];

}  // namespace

int device_facts(int device, DeviceFacts* facts) {
    if (device < 0 || device >= kMaxDevices) return cudaErrorInvalidDevice;
    cudaError_t error = cudaSetDevice(device);
    if (error == cudaSuccess && known[device].load(std::memory_order_acquire) == 0) {
        DeviceFacts read = {};
        int major = 0;
        int minor = 0;
        error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
        if (error == cudaSuccess)
            error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
        if (error == cudaSuccess)
            error = cudaDeviceGetAttribute(&read.multiprocessors, cudaDevAttrMultiProcessorCount,
                                           device);
        if (error == cudaSuccess)
            error = cudaDeviceGetAttribute(&read.shared_bytes,
                                           cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
        read.capability = major * 10 + minor;
        if (error == cudaSuccess) {
            cache[device] = read;  // racing threads write the same values
            known[device].store(1, std::memory_order_release);
        }
    }
    if (error != cudaSuccess) {
        cudaGetLastError();
        return error;
    }
    *facts = cache[device];
    return 0;
}

// Facts of the arguments' device, and the kernel's tile and grid where the caller left them open.
static int resolve(kt_matmul& p, DeviceFacts* facts) {
    const int error = device_facts(p.device, facts);
    if (error != 0) return error;
    if (facts->capability < 80) return KT_NO_CODE;
    if (p.tile_tokens == 0) {
        p.tile_tokens = kt_matmul_tile(p.tokens, p.device);
        // Making operands costs these formats so much that it pays to make them for 64 at once.
        const bool slow = p.format == KT_Q5_K || p.format == KT_Q6_K || p.format == KT_IQ4_XS ||
                          p.format == KT_MXFP4;
        const bool plain = p.format == KT_W4_G128 || p.format == KT_W4_G128_OFFSET;
        const bool persistent = stream::serves(p);
        if (facts->capability == 90 && p.tile_tokens == 32 &&
            (slow || (persistent && p.out_features >= 8192))) {
            p.tile_tokens = 64;
        } else if (p.tile_tokens == 64 && plain && !persistent && p.out_features <= 4096) {
            p.tile_tokens = 32;  // few rows: two tiles that share K by clusters fill the device better
        }
        // Tiles of 256 gain once there are enough of them to fill the device.
        const int64_t pairs = (p.out_features + 127) / 128;
        if (p.tile_tokens == 256 && pairs * ((p.tokens + 255) / 256) * 2 <= facts->multiprocessors) {
            p.tile_tokens = 128;
        }
    }
    switch (p.tile_tokens) {
        case 8:
        case 16:
        case 32:
            return 0;
        case 48:
        case 64:
        case 128:
        case 256:
            if (facts->capability != 90) return KT_NO_CODE;
            return stream::serves(p) ? stream::choose(p, *facts) : 0;
        default:
            return KT_BAD_TILE;
    }
}

}  // namespace kt

extern "C" {

int kt_abi(void) { return KT_OPS_CUDA_ABI; }

int kt_struct_size(int which) {
    const int sizes[] = {sizeof(kt_matmul), sizeof(kt_route), sizeof(kt_combine),
                         sizeof(kt_dequantize)};
    return which >= 0 && which < 4 ? sizes[which] : 0;
}

const char* kt_build(void) { return KT_BUILD; }

const char* kt_error_string(int code) {
    switch (code) {
        case KT_BAD_FORMAT:
            return "the packed weight format is not known to this library";
        case KT_BAD_DTYPE:
            return "activations must be float16 or bfloat16";
        case KT_BAD_SHAPE:
            return "the shape is outside what a launch can cover";
        case KT_BAD_TILE:
            return "no kernel has this tile, split or number of stages";
        case KT_NO_CODE:
            return "the library holds no code for this device";
        default:
            return cudaGetErrorString(static_cast<cudaError_t>(code < 0 ? -code : code));
    }
}

int kt_device_count(void) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        cudaGetLastError();
        return -static_cast<int>(error);
    }
    return count;
}

int kt_device_capability(int device) {
    int major = 0;
    int minor = 0;
    cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (error != cudaSuccess) {
        cudaGetLastError();
        return -static_cast<int>(error);
    }
    return major * 10 + minor;
}

int kt_matmul_tile(int32_t tokens, int32_t device) {
    kt::DeviceFacts facts;
    const int error = kt::device_facts(device, &facts);
    if (error != 0) return -error;
    if (tokens <= 8) return 8;
    if (tokens <= 16) return 16;
    if (tokens <= 32 || facts.capability != 90) return 32;
    if (tokens <= 64) return 64;
    return tokens <= 256 ? 128 : 256;
}

int kt_matmul_run(const kt_matmul* arguments, void* stream) {
    kt_matmul p = *arguments;
    if (p.tokens < 0 || p.in_features <= 0 || p.out_features <= 0 || (p.in_features & 7) != 0 ||
        (p.x_stride & 7) != 0 || (reinterpret_cast<uintptr_t>(p.x) & 15) != 0) {
        return KT_BAD_SHAPE;
    }
    if (p.tokens == 0) return 0;
    kt::DeviceFacts facts;
    const int error = kt::resolve(p, &facts);
    if (error != 0) return error;
    if (p.dtype != KT_F16 && p.dtype != KT_BF16) return KT_BAD_DTYPE;
    const bool half = p.dtype == KT_F16;
    const auto queue = static_cast<cudaStream_t>(stream);
    if (p.tile_tokens < 48) {
        return half ? kt::run_small_m_f16(p, facts, queue) : kt::run_small_m_bf16(p, facts, queue);
    }
    if (!kt::stream::serves(p)) {
        return half ? kt::run_large_m_f16(p, facts, queue) : kt::run_large_m_bf16(p, facts, queue);
    }
    if (p.split != 1 && p.scratch == nullptr) return KT_BAD_SHAPE;
    return half ? kt::run_stream_f16(p, facts, queue) : kt::run_stream_bf16(p, facts, queue);
}

int64_t kt_matmul_scratch(const kt_matmul* arguments) {
    kt_matmul p = *arguments;
    if (p.tokens <= 0) return 0;
    kt::DeviceFacts facts;
    const int error = kt::resolve(p, &facts);
    if (error != 0) return error < 0 ? error : -error;
    return p.tile_tokens < 48 || !kt::stream::serves(p) ? 0 : kt::stream::scratch_bytes(p, facts);
}

}  // extern "C"
