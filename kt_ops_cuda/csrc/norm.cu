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

// A warp makes one logit. The weight is a constant of the model: the first part of its row is fetched
// beside the kernel that makes x.
template <typename T>
__global__ void __launch_bounds__(kRouterWarps * 32) router_logits(
    const __grid_constant__ kt_router p) {
    constexpr int kEarly = 8;
    const int lane = threadIdx.x % 32;
    const int expert = min(static_cast<int>(blockIdx.x * kRouterWarps + threadIdx.x / 32),
                           p.experts - 1);
    const T* weight = static_cast<const T*>(p.weight) + static_cast<int64_t>(expert) * p.hidden;
    uint4 early[kEarly];
#pragma unroll
    for (int i = 0; i < kEarly; ++i) {
        const int c = lane * 8 + i * 256;
        early[i] = c < p.hidden ? *reinterpret_cast<const uint4*>(weight + c) : uint4{};
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    const T* x = static_cast<const T*>(p.x) + blockIdx.y * p.x_stride;
    float sum = 0.f;
    const auto add = [&](const uint4& words, int c) {
        float a[8];
        float b[8];
        widen_8<T>(words, a);
        load_8(x + c, b);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum = fmaf(a[j], b[j], sum);
    };
#pragma unroll
    for (int i = 0; i < kEarly; ++i) {
        const int c = lane * 8 + i * 256;
        if (c < p.hidden) add(early[i], c);
    }
#pragma unroll 4
    for (int c = lane * 8 + kEarly * 256; c < p.hidden; c += 256)
        add(*reinterpret_cast<const uint4*>(weight + c), c);
    sum = lanes_sum<32>(sum);
    if (lane == 0) p.logits[static_cast<int64_t>(blockIdx.y) * p.experts + expert] = sum;
}

// A key that orders like the float: of two numbers the larger has the larger key. NaN gets the least.
__device__ __forceinline__ uint32_t order_key(float value) {
    if (isnan(value)) return 0;
    const uint32_t bits = __float_as_uint(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// One warp chooses for one token. Lane l holds experts l, l + 32, …
template <typename T, int kHeld>
__global__ void __launch_bounds__(32) router_choice(const __grid_constant__ kt_router p) {
    const int lane = threadIdx.x;
    wait_for_previous_kernel();
    let_next_kernel_start();
    const float* from = p.logits + static_cast<int64_t>(blockIdx.x) * p.experts;
    float logits[kHeld];
    uint32_t keys[kHeld];
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const bool exists = lane + 32 * i < p.experts;
        logits[i] = exists ? from[lane + 32 * i] : -INFINITY;
        keys[i] = exists ? order_key(logits[i]) : 0;
        largest = fmaxf(largest, logits[i]);
    }
    largest = warp_max(largest);
    float total = 0.f;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) total += __expf(logits[i] - largest);
    total = lanes_sum<32>(total);
    float sum = 0.f;
    float own = 0.f;  // lane s keeps the score of slot s
    int64_t* ids = p.ids + static_cast<int64_t>(blockIdx.x) * p.top_k;
    T* scores = static_cast<T*>(p.scores) + static_cast<int64_t>(blockIdx.x) * p.top_k;
    for (int slot = 0; slot < p.top_k; ++slot) {
        uint32_t best = 0;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) best = max(best, keys[i]);
        const uint32_t most = __reduce_max_sync(0xFFFFFFFFu, best);
        // The first expert that has it; NaN never wins, so a broken row still names experts that exist.
        int mine = kMostRouted;
#pragma unroll
        for (int i = kHeld - 1; i >= 0; --i) {
            if (keys[i] == most && most != 0) mine = lane + 32 * i;
        }
        const int winner = static_cast<int>(
            __reduce_min_sync(0xFFFFFFFFu, static_cast<uint32_t>(mine)));
        const uint32_t bits = most & 0x80000000u ? most & 0x7FFFFFFFu : ~most;
        // Fewer than top_k numbers in the row: -1 adds nothing, and its NaN weight says why.
        const float score = most != 0 ? __expf(__uint_as_float(bits) - largest) / total : NAN;
        sum += score;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            if (lane + 32 * i == winner) keys[i] = 0;
        }
        if (slot == lane) {
            own = score;
            ids[slot] = most != 0 ? winner : -1;
        }
    }
    const float scale = p.normalize ? 1.f / sum : 1.f;
    if (lane < p.top_k) scores[lane] = narrow<T>(own * scale);
}

template <typename T>
int run_router(const kt_router& p, const DeviceFacts& facts, cudaStream_t stream) {
    const dim3 grid((p.experts + kRouterWarps - 1) / kRouterWarps, p.tokens);
    const int error = launch_kernel(router_logits<T>, grid, kRouterWarps * 32, 0, p, 1, true, facts,
                                    stream);
    if (error != 0) return error;
    const dim3 tokens(p.tokens);
    if (p.experts <= 128)
        return launch_kernel(router_choice<T, 4>, tokens, 32, 0, p, 1, true, facts, stream);
    if (p.experts <= 512)
        return launch_kernel(router_choice<T, 16>, tokens, 32, 0, p, 1, true, facts, stream);
    return launch_kernel(router_choice<T, 32>, tokens, 32, 0, p, 1, true, facts, stream);
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
        p.experts <= 0 || p.experts > kt::kMostRouted || p.top_k <= 0 || p.top_k > p.experts ||
        p.top_k > 32) {
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
