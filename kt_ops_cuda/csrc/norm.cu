// Root mean square norms and routers: one pass over a row of activations.
#include "kt_decode.h"
#include "launch.h"
#include "vector.cuh"

namespace kt {
namespace {

constexpr int kNormThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kNormThreads) norm(const __grid_constant__ kt_norm p) {
    __shared__ float warp_sum[kNormThreads / 32];
    const int thread = threadIdx.x;
    const T* weight = static_cast<const T*>(p.weight);
    wait_for_previous_kernel();
    let_next_kernel_start();
    const T* x = static_cast<const T*>(p.x) + blockIdx.x * p.x_stride;
    const T* residual = static_cast<const T*>(p.residual) + blockIdx.x * p.residual_stride;
    const int64_t row = static_cast<int64_t>(blockIdx.x) * p.columns;
    float squares = 0.f;
    for (int c = thread * 8; c < p.columns; c += kNormThreads * 8) {
        float values[8];
        load_8(x + c, values);
        if (p.residual != nullptr) {
            float more[8];
            load_8(residual + c, more);
            // Rounded as it is stored: what is normalised is what the next layer adds to.
#pragma unroll
            for (int j = 0; j < 8; ++j)
                values[j] = static_cast<float>(narrow<T>(values[j] + more[j]));
            store_8(static_cast<T*>(p.sum) + row + c, values);
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) squares = fmaf(values[j], values[j], squares);
    }
    squares = lanes_sum<32>(squares);
    if (thread % 32 == 0) warp_sum[thread / 32] = squares;
    __syncthreads();
    squares = 0.f;
#pragma unroll
    for (int w = 0; w < kNormThreads / 32; ++w) squares += warp_sum[w];
    const float scale = rsqrtf(squares / p.columns + p.eps);
    for (int c = thread * 8; c < p.columns; c += kNormThreads * 8) {
        float values[8];
        float factors[8];
        load_8(p.residual != nullptr ? static_cast<const T*>(p.sum) + row + c : x + c, values);
        load_8(weight + c, factors);
#pragma unroll
        for (int j = 0; j < 8; ++j) values[j] = values[j] * scale * (p.offset + factors[j]);
        store_8(static_cast<T*>(p.y) + row + c, values);
    }
}

constexpr int kRouterWarps = 8;
constexpr int kMostRouted = 1024;

template <typename T>
__global__ void __launch_bounds__(kRouterWarps * 32) router_logits(
    const __grid_constant__ kt_router p) {
    const int lane = threadIdx.x % 32;
    const int expert = blockIdx.x * kRouterWarps + threadIdx.x / 32;
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (expert >= p.experts) return;
    const T* x = static_cast<const T*>(p.x) + blockIdx.y * p.x_stride;
    const T* weight = static_cast<const T*>(p.weight) + static_cast<int64_t>(expert) * p.hidden;
    float sum = 0.f;
#pragma unroll 4
    for (int c = lane * 8; c < p.hidden; c += 256) {
        float a[8];
        float b[8];
        load_8(weight + c, a);
        load_8(x + c, b);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum = fmaf(a[j], b[j], sum);
    }
    sum = lanes_sum<32>(sum);
    if (lane == 0) p.logits[static_cast<int64_t>(blockIdx.y) * p.experts + expert] = sum;
}

// One warp chooses for one token.
template <typename T>
__global__ void __launch_bounds__(32) router_choice(const __grid_constant__ kt_router p) {
    __shared__ float logits[kMostRouted];
    __shared__ float chosen[kMostRouted];
    const int lane = threadIdx.x;
    wait_for_previous_kernel();
    let_next_kernel_start();
    const float* from = p.logits + static_cast<int64_t>(blockIdx.x) * p.experts;
    float largest = -INFINITY;
    for (int e = lane; e < p.experts; e += 32) {
        logits[e] = from[e];
        largest = fmaxf(largest, logits[e]);
    }
    largest = warp_max(largest);
    float total = 0.f;
    for (int e = lane; e < p.experts; e += 32) total += __expf(logits[e] - largest);
    total = lanes_sum<32>(total);
    float sum = 0.f;
    for (int slot = 0; slot < p.top_k; ++slot) {
        // NaN logits never win, so a broken row still names experts that exist.
        float best = -INFINITY;
        int winner = kMostRouted;
        for (int e = lane; e < p.experts; e += 32) {
            if (logits[e] > best) {
                best = logits[e];
                winner = e;
            }
        }
#pragma unroll
        for (int d = 16; d > 0; d /= 2) {
            const float other = __shfl_xor_sync(0xFFFFFFFFu, best, d);
            const int index = __shfl_xor_sync(0xFFFFFFFFu, winner, d);
            if (other > best || (other == best && index < winner)) {
                best = other;
                winner = index;
            }
        }
        // Fewer than top_k numbers in the row: -1 adds nothing, and its NaN weight says why.
        const float score = winner < kMostRouted ? __expf(best - largest) / total : NAN;
        sum += score;
        if (lane == 0) {
            p.ids[static_cast<int64_t>(blockIdx.x) * p.top_k + slot] =
                winner < kMostRouted ? winner : -1;
            chosen[slot] = score;
            if (winner < kMostRouted) logits[winner] = -INFINITY;
        }
        __syncwarp();
    }
    const float scale = p.normalize ? 1.f / sum : 1.f;
    for (int slot = lane; slot < p.top_k; slot += 32) {
        static_cast<T*>(p.scores)[static_cast<int64_t>(blockIdx.x) * p.top_k + slot] =
            narrow<T>(chosen[slot] * scale);
    }
}

template <typename T>
int run_router(const kt_router& p, const DeviceFacts& facts, cudaStream_t stream) {
    const dim3 grid((p.experts + kRouterWarps - 1) / kRouterWarps, p.tokens);
    const int error = launch_kernel(router_logits<T>, grid, kRouterWarps * 32, 0, p, 1, true, facts,
                                    stream);
    if (error != 0) return error;
    return launch_kernel(router_choice<T>, dim3(p.tokens), 32, 0, p, 1, true, facts, stream);
}

}  // namespace
}  // namespace kt

extern "C" {

int kt_norm_run(const kt_norm* arguments, void* stream) {
    const kt_norm& p = *arguments;
    if (p.rows < 0 || p.columns <= 0 || p.columns % 8 != 0 || p.x_stride % 8 != 0 ||
        p.residual_stride % 8 != 0) {
        return KT_BAD_SHAPE;
    }
    if (p.rows == 0) return 0;
    kt::DeviceFacts facts;
    const int error = kt::device_facts(p.device, &facts);
    if (error != 0) return error;
    const auto queue = static_cast<cudaStream_t>(stream);
    const dim3 grid(p.rows);
    switch (p.dtype) {
        case KT_F16:
            return kt::launch_kernel(kt::norm<half>, grid, kt::kNormThreads, 0, p, 1, true, facts,
                                     queue);
        case KT_BF16:
            return kt::launch_kernel(kt::norm<__nv_bfloat16>, grid, kt::kNormThreads, 0, p, 1, true,
                                     facts, queue);
        default:
            return KT_BAD_DTYPE;
    }
}

int kt_router_run(const kt_router* arguments, void* stream) {
    const kt_router& p = *arguments;
    if (p.tokens < 0 || p.hidden <= 0 || p.hidden % 8 != 0 || p.x_stride % 8 != 0 ||
        p.experts <= 0 || p.experts > kt::kMostRouted || p.top_k <= 0 || p.top_k > p.experts) {
        return KT_BAD_SHAPE;
    }
    if (p.tokens == 0) return 0;
    kt::DeviceFacts facts;
    const int error = kt::device_facts(p.device, &facts);
    if (error != 0) return error;
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (p.dtype) {
        case KT_F16:
            return kt::run_router<half>(p, facts, queue);
        case KT_BF16:
            return kt::run_router<__nv_bfloat16>(p, facts, queue);
        default:
            return KT_BAD_DTYPE;
    }
}

int kt_decode_struct_size(int which) {
    const int sizes[] = {sizeof(kt_norm), sizeof(kt_attend), sizeof(kt_router)};
    return which >= 0 && which < 3 ? sizes[which] : 0;
}

}  // extern "C"
