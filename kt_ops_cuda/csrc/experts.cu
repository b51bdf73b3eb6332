// Around the grouped matmuls of a layer of experts: sorting pairs by expert, and the weighted sum.
#include "epilogue.cuh"
#include "launch.h"

namespace kt {
namespace {

constexpr int kRouteThreads = 1024;
constexpr int kMaxExperts = 2048;

// One block sorts all (token, slot) pairs by expert, counting in shared memory. The order within an
// expert is whatever the atomics give; no row's result depends on it.
__global__ void __launch_bounds__(kRouteThreads) route(const __grid_constant__ kt_route p) {
    __shared__ int count[kMaxExperts];  // pairs of an expert, then the next free position
    __shared__ int warp_sum[2][kRouteThreads / 32];
    const int thread = threadIdx.x;
    const int lane = thread % 32;
    const int warp = thread / 32;
    wait_for_previous_kernel();
    for (int e = thread; e < p.experts; e += kRouteThreads) count[e] = 0;
    __syncthreads();
    for (int i = thread; i < p.pairs; i += kRouteThreads) {
        const int64_t expert = p.ids[i];
        if (expert >= 0 && expert < p.experts) {
            atomicAdd(&count[expert], 1);
        } else if (expert != -1) {
            *p.bad_id = 1;
        }
    }
    __syncthreads();
    // Two prefix sums over the experts at once: of pairs and of tiles. Each thread takes two.
    int pairs[2];
    int tiles[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const int e = thread * 2 + j;
        pairs[j] = e < p.experts ? count[e] : 0;
        tiles[j] = (pairs[j] + p.tile_tokens - 1) / p.tile_tokens;
    }
    int pair_scan = pairs[0] + pairs[1];
    int tile_scan = tiles[0] + tiles[1];
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int a = __shfl_up_sync(0xFFFFFFFFu, pair_scan, d);
        const int b = __shfl_up_sync(0xFFFFFFFFu, tile_scan, d);
        if (lane >= d) {
            pair_scan += a;
            tile_scan += b;
        }
    }
    if (lane == 31) {
        warp_sum[0][warp] = pair_scan;
        warp_sum[1][warp] = tile_scan;
    }
    __syncthreads();
    int pair_base = pair_scan - pairs[0] - pairs[1];
    int tile_base = tile_scan - tiles[0] - tiles[1];
    for (int w = 0; w < warp; ++w) {
        pair_base += warp_sum[0][w];
        tile_base += warp_sum[1][w];
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const int e = thread * 2 + j;
        if (e < p.experts) {
            for (int t = 0; t < tiles[j]; ++t) {
                const int start = t * p.tile_tokens;
                const int left = pairs[j] - start;
                reinterpret_cast<int4*>(p.tiles)[tile_base + t] =
                    make_int4(e, pair_base + start, left < p.tile_tokens ? left : p.tile_tokens, 0);
            }
            count[e] = pair_base;
        }
        pair_base += pairs[j];
        tile_base += tiles[j];
    }
    if (thread == kRouteThreads - 1) *p.tile_count = tile_base;
    let_next_kernel_start();
    __syncthreads();
    for (int i = thread; i < p.pairs; i += kRouteThreads) {
        const int64_t expert = p.ids[i];
        int position = -1;
        if (expert >= 0 && expert < p.experts) {
            position = atomicAdd(&count[expert], 1);
            p.rows_in[position] = i / p.top_k;
        }
        p.position[i] = position;
    }
}

// y[t] = sum over slots of weight[t, slot] * rows[position of (t, slot)]. A thread owns 8 columns.
template <typename T, typename W>
__global__ void __launch_bounds__(128) combine(const __grid_constant__ kt_combine p) {
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int token = blockIdx.y;
    const int column = (blockIdx.x * 128 + threadIdx.x) * 8;
    if (column >= p.columns) return;
    float sum[8] = {};
    for (int slot = 0; slot < p.top_k; ++slot) {
        const int pair = token * p.top_k + slot;
        int64_t position = pair;
        if (p.position != nullptr) {
            position = p.position[pair];
        } else {
            const int64_t expert = p.ids[pair];
            if (expert < 0 || expert >= p.experts) {
                if (expert != -1) *p.bad_id = 1;
                position = -1;
            }
        }
        if (position < 0) continue;
        const float weight = static_cast<float>(static_cast<const W*>(p.weights)[pair]);
        const uint4 words = *reinterpret_cast<const uint4*>(static_cast<const T*>(p.rows) +
                                                            position * p.columns + column);
        const T* values = reinterpret_cast<const T*>(&words);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[j] = fmaf(weight, static_cast<float>(values[j]), sum[j]);
    }
    T out[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) out[j] = narrow<T>(sum[j]);
    *reinterpret_cast<uint4*>(static_cast<T*>(p.y) + static_cast<int64_t>(token) * p.columns +
                              column) = *reinterpret_cast<const uint4*>(out);
}

template <typename T>
int run_combine(const kt_combine& p, const DeviceFacts& facts, cudaStream_t stream) {
    const dim3 grid((p.columns / 8 + 127) / 128, p.tokens);
    switch (p.weights_dtype) {
        case KT_F16:
            return launch_kernel(combine<T, half>, grid, 128, 0, p, 1, true, facts, stream);
        case KT_BF16:
            return launch_kernel(combine<T, __nv_bfloat16>, grid, 128, 0, p, 1, true, facts,
                                 stream);
        case KT_F32:
            return launch_kernel(combine<T, float>, grid, 128, 0, p, 1, true, facts, stream);
        default:
            return KT_BAD_DTYPE;
    }
}

}  // namespace
}  // namespace kt

extern "C" {

int kt_route_run(const kt_route* arguments, void* stream) {
    const kt_route& p = *arguments;
    if (p.experts <= 0 || p.experts > kt::kMaxExperts || p.pairs < 0 || p.top_k <= 0 ||
        p.tile_tokens <= 0) {
        return KT_BAD_SHAPE;
    }
    kt::DeviceFacts facts;
    const int error = kt::device_facts(p.device, &facts);
    if (error != 0) return error;
    return kt::launch_kernel(kt::route, dim3(1), kt::kRouteThreads, 0, p, 1, true, facts,
                             static_cast<cudaStream_t>(stream));
}

int kt_combine_run(const kt_combine* arguments, void* stream) {
    const kt_combine& p = *arguments;
    if (p.columns <= 0 || p.columns % 8 != 0 || p.tokens < 0 || p.top_k <= 0) return KT_BAD_SHAPE;
    if (p.tokens == 0) return 0;
    kt::DeviceFacts facts;
    const int error = kt::device_facts(p.device, &facts);
    if (error != 0) return error;
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (p.dtype) {
        case KT_F16:
            return kt::run_combine<half>(p, facts, queue);
        case KT_BF16:
            return kt::run_combine<__nv_bfloat16>(p, facts, queue);
        default:
            return KT_BAD_DTYPE;
    }
}

}  // extern "C"
