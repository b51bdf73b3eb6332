// One token's attention in one launch: norm and rotation of the heads, the cache, the softmax.
//
// A block takes `chunk` rows of one key head's cache and up to 8 of the query heads that read it. Blocks of
// a key head leave what they found in `partial`, and the last one to arrive merges it.
#include "kt_decode.h"
#include "launch.h"
#include "vector.cuh"

namespace kt {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kGroup = 8;  // query heads of a block
constexpr int kTile = 64;  // rows of the cache read at once

template <typename T>
struct PairOf;
template <>
struct PairOf<half> {
    using type = half2;
};
template <>
struct PairOf<__nv_bfloat16> {
    using type = __nv_bfloat162;
};

// Scores of a row of shared memory: of a chunk, and later one for every block of a key head.
__host__ __device__ inline int score_width(const kt_attend& p) {
    const int blocks = (p.room + p.chunk - 1) / p.chunk;
    return p.chunk > blocks ? p.chunk : blocks;
}

// Writes the normalised, rotated and scaled head to shared memory. One warp.
template <typename T, int kDim>
__device__ void prepare(const T* from, const T* weight, const T* cosine, const T* sine, int rotary,
                        float eps, float scale, float* to) {
    const int lane = threadIdx.x % 32;
    float values[kDim / 32];
    float squares = 0.f;
#pragma unroll
    for (int j = 0; j < kDim / 32; ++j) {
        values[j] = static_cast<float>(from[lane + 32 * j]);
        squares = fmaf(values[j], values[j], squares);
    }
    if (weight != nullptr) {
        const float factor = rsqrtf(lanes_sum<32>(squares) / kDim + eps);
#pragma unroll
        for (int j = 0; j < kDim / 32; ++j)
            values[j] *= factor * static_cast<float>(weight[lane + 32 * j]);
    }
#pragma unroll
    for (int j = 0; j < kDim / 32; ++j) to[lane + 32 * j] = values[j];
    __syncwarp();
    const int half_width = rotary / 2;
    for (int i = lane; i < half_width; i += 32) {
        const float a = to[i];
        const float b = to[i + half_width];
        to[i] = a * static_cast<float>(cosine[i]) - b * static_cast<float>(sine[i]);
        to[i + half_width] = b * static_cast<float>(cosine[i + half_width]) +
                             a * static_cast<float>(sine[i + half_width]);
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kDim / 32; ++j) to[lane + 32 * j] *= scale;
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads) attend(const __grid_constant__ kt_attend p) {
    constexpr int kLanes = kDim / 8;               // that share a row of keys
    constexpr int kRows = 32 / kLanes;             // of keys a warp reads at once
    constexpr int kParts = kThreads / (kDim / 2);  // of the rows, in the sum of values
    constexpr int kKeyLoads = kTile / (kWarps * kRows);
    constexpr int kValueLoads = kTile / kParts;
    using Pair = typename PairOf<T>::type;
    extern __shared__ float shared[];
    const int width = score_width(p);
    float* query = shared;                     // kGroup x kDim
    float* scores = query + kGroup * kDim;     // kGroup x width
    float* sums = scores + kGroup * width;     // kParts x kGroup x kDim
    float* largest = sums + kParts * kGroup * kDim;
    float* total = largest + kGroup;
    __shared__ __align__(16) T new_key[kDim];
    __shared__ bool last;

    const int thread = threadIdx.x;
    const int lane = thread % 32;
    const int warp = thread / 32;
    const int head = blockIdx.y;
    const int group = p.q_heads / p.kv_heads;
    const int first_query = head * group + blockIdx.z * kGroup;
    const int queries = min(kGroup, group - static_cast<int>(blockIdx.z) * kGroup);

    // Position and cache were complete before the kernel ahead of this one could start (the header
    // says so), hence they are read beside it; q, k and v are its work.
    const int64_t position = *p.position;
    const int64_t start = p.window > 0 && position >= p.window ? position + 1 - p.window : 0;
    const int64_t begin = max(start, static_cast<int64_t>(blockIdx.x) * p.chunk);
    const int64_t end =
        min(position + 1, static_cast<int64_t>(blockIdx.x + 1) * static_cast<int64_t>(p.chunk));
    if (begin >= end || position >= p.room) return;
    const int count = static_cast<int>(end - begin);
    const int active = static_cast<int>(position / p.chunk - start / p.chunk) + 1;
    const bool owns_new = end == position + 1;
    T* keys = static_cast<T*>(p.keys) + head * p.head_stride;
    T* values = static_cast<T*>(p.values) + head * p.head_stride;
    const int key_column = lane % kLanes * 8;
    const int key_row = warp * kRows + lane / kLanes;
    const int value_column = thread % (kDim / 2) * 2;
    const int value_row = thread / (kDim / 2);
    uint4 key_words[kKeyLoads];
    Pair value_words[kValueLoads];
    const auto load_keys = [&](int base) {
#pragma unroll
        for (int i = 0; i < kKeyLoads; ++i) {
            const int64_t at = begin + min(base + key_row + i * kWarps * kRows, count - 1);
            key_words[i] = *reinterpret_cast<const uint4*>(keys + at * kDim + key_column);
        }
    };
    const auto load_values = [&](int base) {
#pragma unroll
        for (int i = 0; i < kValueLoads; ++i) {
            const int64_t at = begin + min(base + value_row + i * kParts, count - 1);
            value_words[i] = *reinterpret_cast<const Pair*>(values + at * kDim + value_column);
        }
    };
    load_keys(0);
    load_values(0);

    wait_for_previous_kernel();
    let_next_kernel_start();
    const T* cosine = static_cast<const T*>(p.cosine);
    const T* sine = static_cast<const T*>(p.sine);
    for (int g = warp; g < queries; g += kWarps) {
        prepare<T, kDim>(static_cast<const T*>(p.q) + (first_query + g) * kDim,
                         static_cast<const T*>(p.q_weight), cosine, sine, p.rotary, p.eps, p.scale,
                         query + g * kDim);
    }
    const T* new_value = static_cast<const T*>(p.v) + head * kDim;
    if (owns_new && warp == kWarps - 1) {
        float* raw = sums;  // free until the end
        prepare<T, kDim>(static_cast<const T*>(p.k) + head * kDim, static_cast<const T*>(p.k_weight),
                         cosine, sine, p.rotary, p.eps, 1.f, raw);
        __syncwarp();
        for (int c = lane; c < kDim; c += 32) {
            new_key[c] = narrow<T>(raw[c]);
            if (blockIdx.z == 0) {
                keys[position * kDim + c] = new_key[c];
                values[position * kDim + c] = new_value[c];
            }
        }
    }
    __syncthreads();

    {
        float q[kGroup][8];
#pragma unroll
        for (int g = 0; g < kGroup; ++g) {
#pragma unroll
            for (int j = 0; j < 8; ++j)
                q[g][j] = g < queries ? query[g * kDim + key_column + j] : 0.f;
        }
        for (int base = 0; base < count; base += kTile) {
            if (base != 0) load_keys(base);
#pragma unroll
            for (int i = 0; i < kKeyLoads; ++i) {
                const int row = base + key_row + i * kWarps * kRows;
                if (base + warp * kRows + i * kWarps * kRows >= count) break;  // the whole warp
                uint4 words = key_words[i];
                if (begin + row == position)
                    words = *reinterpret_cast<const uint4*>(new_key + key_column);
                float key[8];
                widen_8<T>(words, key);
                float dot[kGroup] = {};
#pragma unroll
                for (int g = 0; g < kGroup; ++g) {
#pragma unroll
                    for (int j = 0; j < 8; ++j) dot[g] = fmaf(q[g][j], key[j], dot[g]);
                }
#pragma unroll
                for (int g = 0; g < kGroup; ++g) dot[g] = lanes_sum<kLanes>(dot[g]);
                if (lane % kLanes == 0 && row < count) {
#pragma unroll
                    for (int g = 0; g < kGroup; ++g) {
                        if (g < queries) scores[g * width + row] = dot[g];
                    }
                }
            }
        }
    }
    __syncthreads();
    for (int g = warp; g < queries; g += kWarps) {
        float most = -INFINITY;
        for (int i = lane; i < count; i += 32) most = fmaxf(most, scores[g * width + i]);
        most = warp_max(most);
        float sum = 0.f;
        for (int i = lane; i < count; i += 32) {
            const float weight = __expf(scores[g * width + i] - most);
            scores[g * width + i] = weight;
            sum += weight;
        }
        sum = lanes_sum<32>(sum);
        if (lane == 0) {
            largest[g] = most;
            total[g] = sum;
        }
    }
    __syncthreads();
    {
        float sum[kGroup][2] = {};
        const Pair newest = *reinterpret_cast<const Pair*>(new_value + value_column);
        for (int base = 0; base < count; base += kTile) {
            if (base != 0) load_values(base);
#pragma unroll
            for (int i = 0; i < kValueLoads; ++i) {
                const int row = base + value_row + i * kParts;
                if (row >= count) break;
                const Pair found = begin + row == position ? newest : value_words[i];
                const float a = static_cast<float>(found.x);
                const float b = static_cast<float>(found.y);
#pragma unroll
                for (int g = 0; g < kGroup; ++g) {
                    const float weight = scores[g * width + row];
                    sum[g][0] = fmaf(weight, a, sum[g][0]);
                    sum[g][1] = fmaf(weight, b, sum[g][1]);
                }
            }
        }
#pragma unroll
        for (int g = 0; g < kGroup; ++g) {
            *reinterpret_cast<float2*>(sums + (value_row * kGroup + g) * kDim + value_column) =
                make_float2(sum[g][0], sum[g][1]);
        }
    }
    __syncthreads();
    T* y = static_cast<T*>(p.y) + first_query * kDim;
    const int blocks = gridDim.x;
    const int place = head * gridDim.z + blockIdx.z;
    // [place][block][query][2 + kDim]
    float* partial = p.partial + static_cast<int64_t>(place) * blocks * kGroup * (kDim + 2);
    for (int i = thread; i < queries * kDim; i += kThreads) {
        float sum = 0.f;
#pragma unroll
        for (int part = 0; part < kParts; ++part) sum += sums[part * kGroup * kDim + i];
        if (active == 1) {
            y[i] = narrow<T>(sum / total[i / kDim]);
        } else {
            partial[(blockIdx.x * kGroup + i / kDim) * (kDim + 2) + 2 + i % kDim] = sum;
        }
    }
    if (active == 1) return;
    if (thread < queries) {
        partial[(blockIdx.x * kGroup + thread) * (kDim + 2)] = largest[thread];
        partial[(blockIdx.x * kGroup + thread) * (kDim + 2) + 1] = total[thread];
    }
    __threadfence();
    __syncthreads();
    if (thread == 0) {
        last = atomicAdd(p.arrived + place, 1) == active - 1;
        if (last) p.arrived[place] = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    const float* first = partial + start / p.chunk * kGroup * (kDim + 2);
    for (int g = warp; g < queries; g += kWarps) {
        const float* found = first + g * (kDim + 2);
        float most = -INFINITY;
        for (int b = lane; b < active; b += 32)
            most = fmaxf(most, __ldcg(found + b * kGroup * (kDim + 2)));
        most = warp_max(most);
        float weights = 0.f;
        for (int b = lane; b < active; b += 32) {
            const float* at = found + b * kGroup * (kDim + 2);
            const float scale = __expf(__ldcg(at) - most);
            scores[g * width + b] = scale;
            weights = fmaf(scale, __ldcg(at + 1), weights);
        }
        weights = lanes_sum<32>(weights);
        if (lane == 0) total[g] = weights;
    }
    __syncthreads();
    for (int i = thread; i < queries * kDim; i += kThreads) {
        const int g = i / kDim;
        const float* found = first + g * (kDim + 2) + 2 + i % kDim;
        float sum = 0.f;
#pragma unroll 8
        for (int b = 0; b < active; ++b)
            sum = fmaf(scores[g * width + b], __ldcg(found + b * kGroup * (kDim + 2)), sum);
        y[i] = narrow<T>(sum / total[g]);
    }
}

template <typename T, int kDim>
int run(const kt_attend& p, const DeviceFacts& facts, cudaStream_t stream) {
    const int group = p.q_heads / p.kv_heads;
    const dim3 grid((p.room + p.chunk - 1) / p.chunk, p.kv_heads, (group + kGroup - 1) / kGroup);
    constexpr int kParts = kThreads / (kDim / 2);
    const int shared =
        (kGroup * kDim + kGroup * score_width(p) + kParts * kGroup * kDim + 2 * kGroup) * sizeof(float);
    return launch_kernel(attend<T, kDim>, grid, kThreads, shared, p, 1, true, facts, stream);
}

template <typename T>
int run_dim(const kt_attend& p, const DeviceFacts& facts, cudaStream_t stream) {
    switch (p.head_dim) {
        case 64:
            return run<T, 64>(p, facts, stream);
        case 128:
            return run<T, 128>(p, facts, stream);
        case 256:
            return run<T, 256>(p, facts, stream);
        default:
            return KT_BAD_SHAPE;
    }
}

}  // namespace
}  // namespace kt

extern "C" int kt_attend_run(const kt_attend* arguments, void* stream) {
    const kt_attend& p = *arguments;
    if (p.kv_heads <= 0 || p.q_heads <= 0 || p.q_heads % p.kv_heads != 0 || p.room <= 0 ||
        p.chunk <= 0 || p.rotary < 0 || p.rotary > p.head_dim || p.rotary % 2 != 0 ||
        p.head_stride % 8 != 0) {
        return KT_BAD_SHAPE;
    }
    kt::DeviceFacts facts;
    const int error = kt::device_facts(p.device, &facts);
    if (error != 0) return error;
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (p.dtype) {
        case KT_F16:
            return kt::run_dim<half>(p, facts, queue);
        case KT_BF16:
            return kt::run_dim<__nv_bfloat16>(p, facts, queue);
        default:
            return KT_BAD_DTYPE;
    }
}
