// The end of a piece of work in stream.cuh: sums of other pieces, bias, activation, writing.
//
// Sums of a tile that several blocks share go through scratch memory in the order of registers, so
// that thread i of one block writes what thread i of another reads. A flag says that they are there: the
// launch's 64-bit ticket, which the reader overwrites with 0. Scratch memory may hold anything
// before, except that ticket; a graph's replays find the flags at 0.
#pragma once

#include "stream_plan.cuh"

namespace kt {
namespace stream {

__device__ __forceinline__ void raise_flag(uint64_t* flag, uint64_t ticket) {
#if KT_HOPPER
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(flag), "l"(ticket) : "memory");
#endif
}

__device__ __forceinline__ void take_flag(uint64_t* flag, uint64_t ticket) {
#if KT_HOPPER
    uint64_t seen;
    do {
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(flag) : "memory");
    } while (seen != ticket);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(flag), "l"(uint64_t{0}) : "memory");
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}

// Rows and columns of an 8 x 8 block of 16-bit values change places.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t word) {
    uint32_t out;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(word));
    return out;
}

template <typename T>
__device__ __forceinline__ uint32_t narrow_pair(float low, float high) {
    const T pair[2] = {narrow<T>(low), narrow<T>(high)};
    return *reinterpret_cast<const uint32_t*>(pair);
}

// All gates but GELU by erf and ReLU are gate * sigmoid(gate * (linear + cubic * gate^2)) * (up + added), within
// limits; one formula keeps the unrolled end of a tile short.
struct Gate {
    float linear, cubic, limit, added;
    bool erf, relu;

    __device__ __forceinline__ explicit Gate(const kt_matmul& p)
        : linear(1.f), cubic(0.f), limit(INFINITY), added(0.f),
          erf(p.activation == KT_GELU), relu(p.activation == KT_RELU) {
        if (p.activation == KT_GELU_TANH) {
            linear = 1.5957691216057308f;
            cubic = 0.071354816272f;
        } else if (p.activation == KT_SWIGLU_OAI) {
            linear = p.alpha;
            limit = p.limit;
            added = 1.f;
        }
    }

    __device__ __forceinline__ float operator()(float gate, float up) const {
        if (erf) return 0.5f * gate * (1.f + erff(gate * 0.70710678118654752f)) * up;
        // Comparisons rather than fminf and fmaxf, so that NaN stays NaN.
        if (relu) return (gate < 0.f ? 0.f : gate) * up;
        gate = gate > limit ? limit : gate;
        up = up > limit ? limit : (up < -limit ? -limit : up);
        const float inner = gate * fmaf(cubic * gate, gate, linear);
        return __fdividef(gate * (up + added), 1.f + __expf(-inner));
    }
};

// Adds the sums of the other pieces of this tile, or sends these. [low, high) are the blocks of eight
// tokens that are this piece's to write; empty if another does.
template <int kN, int kTokens, int kGroups>
__device__ __forceinline__ void exchange(const kt_matmul& p, const Work& work,
                                         float (&sum)[2][kN / 2], int& low, int& high) {
    constexpr int kBlocks = kN / 8;
    constexpr int kThreads = kGroups * 128;
    constexpr int kSlot = kThreads * kTokens;  // floats of a tile
    const int thread = threadIdx.x;
    const int own = blockIdx.x;
    const bool line = p.split < 0;
    // Block of the first part, and how many parts there are.
    int base = own - work.part;
    int parts = work.parts;
    if (line) {
        base = own;
        parts = 1;
        if (work.part == 0) {
            const int row_blocks =
                (p.out_features + kGroups * 128 - 1) / (kGroups * 128);
            const int steps = (p.in_features + kChunkDepth - 1) / kChunkDepth;
            const int units = row_blocks * ((p.tokens + kTokens - 1) / kTokens) * steps;
            const int end = (work.index + 1) * steps;
            while (own + parts < static_cast<int>(gridDim.x) &&
                   Schedule::share(units, own + parts) < end) {
                ++parts;
            }
        }
    }
    low = line ? 0 : (kBlocks * work.part + parts - 1) / parts;
    high = line ? (work.part == 0 ? kBlocks : 0) : (kBlocks * (work.part + 1) + parts - 1) / parts;
    auto* flags = static_cast<uint64_t*>(p.scratch);
    auto* slots = reinterpret_cast<float4*>(flags + gridDim.x * kMostParts);
    auto slot = [&](int block, int n, int m) {
        return slots + static_cast<int64_t>(block) * (kSlot / 4) + (n * 2 + m) * kThreads + thread;
    };
    if (!line || work.part != 0) {
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            if (n >= low && n < high) continue;
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                __stcg(slot(own, n, m), make_float4(sum[m][n * 4], sum[m][n * 4 + 1],
                                                    sum[m][n * 4 + 2], sum[m][n * 4 + 3]));
            }
        }
        consumers_sync<kThreads>();
        if (line) {
            if (thread == 0) raise_flag(flags + own * kMostParts, p.ticket);
            return;
        }
        const bool takes = (kBlocks * thread + parts - 1) / parts <
                           (kBlocks * (thread + 1) + parts - 1) / parts;
        if (thread < parts && thread != work.part && takes) {
            raise_flag(flags + own * kMostParts + thread, p.ticket);
        }
    }
    if (low >= high) return;
    if (line) {
        if (thread > 0 && thread < parts) take_flag(flags + (own + thread) * kMostParts, p.ticket);
    } else if (thread < parts && thread != work.part) {
        take_flag(flags + (base + thread) * kMostParts + work.part, p.ticket);
    }
    __syncwarp();
    consumers_sync<kThreads>();
#pragma unroll 1
    for (int other = 0; other < parts; ++other) {
        if (base + other == own) continue;
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            if (n < low || n >= high) continue;
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                const float4 v = __ldcg(slot(base + other, n, m));
                sum[m][n * 4] += v.x;
                sum[m][n * 4 + 1] += v.y;
                sum[m][n * 4 + 2] += v.z;
                sum[m][n * 4 + 3] += v.w;
            }
        }
    }
}

// `row` is the first of the chunk, `strip` of this warp's 16 rows in it; the other strip is 32 further.
template <typename T, int kN, int kTokens, int kGroups>
__device__ __forceinline__ void finish(const kt_matmul& p, const Work& work, const Tile& tile,
                                       int row, int strip, float (&sum)[2][kN / 2]) {
    int low = 0;
    int high = kN / 8;
    if (work.parts > 1) {
        exchange<kN, kTokens, kGroups>(p, work, sum, low, high);
        if (low >= high) return;
    }
    if (row >= p.out_features) return;
    const int lane = threadIdx.x % 32;
    const bool gated = p.activation != KT_NONE;
    const Gate gate(p);
    float bias[2][2] = {};
    if (p.bias != nullptr) {
        const float* from =
            p.bias + tile.expert * p.bias_stride + row + strip * 16 + lane / 4;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int h = 0; h < 2; ++h) bias[m][h] = from[m * 32 + h * 8];
        }
    }
    int columns = p.out_features;
    int column = row + strip * 16 + lane % 4 * 2;
    if (gated) {
        columns = p.columns > 0 ? p.columns : p.out_features / 2;
        column = row / 2 + strip * 16 + lane % 4 * 2;
    }
    const bool even = (p.y_stride & 1) == 0 && (reinterpret_cast<uintptr_t>(p.y) & 3) == 0;
    T* y = static_cast<T*>(p.y);
    auto write = [&](T* to, int at, uint32_t word) {
        if (even && at + 2 <= columns) {
            *reinterpret_cast<uint32_t*>(to + at) = word;
        } else {
            const T* pair = reinterpret_cast<const T*>(&word);
            if (at < columns) to[at] = pair[0];
            if (at + 1 < columns) to[at + 1] = pair[1];
        }
    };
#pragma unroll
    for (int n = 0; n < kN / 8; ++n) {
        if (n < low || n >= high || n * 8 >= tile.count) continue;  // the same for the whole warp
        const int token = n * 8 + lane / 4;
        const bool valid = token < tile.count;
        T* to = y + static_cast<int64_t>(target_row(p, tile.start + (valid ? token : 0))) *
                        p.y_stride;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float v[2][2];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
#pragma unroll
                for (int c = 0; c < 2; ++c) v[m][c] = sum[m][n * 4 + h * 2 + c] + bias[m][h];
            }
            if (gated) {
                const uint32_t word = transpose_8x8(
                    narrow_pair<T>(gate(v[0][0], v[1][0]), gate(v[0][1], v[1][1])));
                if (valid) write(to, column + h * 8, word);
            } else {
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    const uint32_t word = transpose_8x8(narrow_pair<T>(v[m][0], v[m][1]));
                    if (valid) write(to, column + m * 32 + h * 8, word);
                }
            }
        }
    }
}

}  // namespace stream
}  // namespace kt
