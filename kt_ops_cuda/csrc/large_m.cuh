// More than 16 tokens: wgmma with the weights as the A operand from registers (compute capability 9.0).
//
// A block owns 128 rows of the output (two warpgroups of 64) and kTokens tokens, and a share of K
// when split. Two producer warps bring the tokens' activations with cp.async into tiles swizzled for
// wgmma, and the weight chunks with bulk copies; the warpgroups turn 4- or 8-bit values into fp16 or
// bf16 registers (scale and offset applied) while the previous products run, so 16-bit weights exist
// in registers only.
#pragma once

#include "launch.h"
#include "matmul.cuh"
#include "wgmma.cuh"

namespace kt {
namespace large {

constexpr int kConsumers = 256;
constexpr int kRows = 128;
constexpr int kMostShared = 227 * 1024;  // of a block on 9.0
constexpr int kRedStride = kRows + 4;       // floats

// Producer warps: with 32 or 64 tokens two blocks share a multiprocessor and its registers.
template <int kTokens>
struct Shape {
    static constexpr int producers = kTokens <= 64 ? 2 : 4;
    static constexpr int threads = kConsumers + producers * 32;
    static constexpr int blocks = kTokens <= 64 ? 2 : 1;
};

template <int kFormat, int kTokens>
struct Stage {
    static constexpr int x_half = kTokens * 128;  // kTokens rows of 64 values
    static constexpr int x_bytes = 2 * x_half;
    static constexpr int bytes = (x_bytes + 2 * Chunk<kFormat>::bytes + 1023) / 1024 * 1024;
    // As many as fit beside another block, each of which costs a further kilobyte, and 1 for alignment.
    static constexpr int room = (kMostShared + 1024) / Shape<kTokens>::blocks - 3 * 1024;
    static constexpr int count = room / bytes < 5 ? room / bytes : 5;
    // Stages a producer keeps in flight before it reports one; one more is being multiplied, and one
    // has its operands prepared.
    static constexpr int lag = count >= 4 ? 2 : 1;
};

template <typename T, int kFormat, int kTokens>
__global__ void __launch_bounds__(Shape<kTokens>::threads, Shape<kTokens>::blocks)
    large_m(const __grid_constant__ kt_matmul p) {
#if KT_WGMMA
    using C = Chunk<kFormat>;
    using S = Stage<kFormat, kTokens>;
    constexpr int kProducers = Shape<kTokens>::producers;
    constexpr int kFinishers = kTokens == 256 ? kConsumers : Shape<kTokens>::threads;

    extern __shared__ uint8_t unaligned[];
    __shared__ uint64_t full[S::count];
    __shared__ uint64_t empty[S::count];
    uint8_t* smem = unaligned + ((1024 - (smem_address(unaligned) & 1023)) & 1023);

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int split = p.split;
    const int split_shift = __ffs(split) - 1;  // a power of two
    const int rank = blockIdx.x & (split - 1);
    const int row_pair = blockIdx.x >> split_shift;
    constexpr int stages = S::count;
    constexpr int kLag = S::lag;
    static_assert(stages >= kLag + 2, "a producer would wait for itself");

    const bool grouped = waits_for_groups(p);
    if (grouped) wait_for_previous_kernel();
    const Tile tile = block_tile(p, blockIdx.y, kTokens);
    if (tile.count == 0) return;

    if (threadIdx.x == 0) {
#pragma unroll
        for (int s = 0; s < stages; ++s) {
            barrier_init(smem_address(&full[s]), kProducers + 1);
            barrier_init(smem_address(&empty[s]), kConsumers / 32);
        }
        barrier_init_fence();
    }
    __syncthreads();

    const int steps = (p.in_features + kChunkDepth - 1) / kChunkDepth;
    const int first = steps * rank >> split_shift;
    const int count = (steps * (rank + 1) >> split_shift) - first;
    const int row_blocks = (p.out_features + kChunkRows - 1) / kChunkRows;
    const int blocks = row_pair * 2 + 1 < row_blocks ? 2 : 1;
    const uint8_t* chunks = static_cast<const uint8_t*>(p.weights) +
                            tile.expert * p.expert_bytes +
                            (static_cast<int64_t>(row_pair) * 2 * steps + first) * C::bytes;
    auto fetch_weights = [&](int step, int s) {
        const uint32_t barrier = smem_address(&full[s]);
        const uint32_t target = smem_address(smem) + s * S::bytes + S::x_bytes;
        barrier_arrive_expect(barrier, blocks * C::bytes);
        for (int i = 0; i < blocks; ++i) {
            copy_bulk(target + i * C::bytes,
                      chunks + (static_cast<int64_t>(i) * steps + step) * C::bytes, C::bytes,
                      barrier);
        }
    };
    if (threadIdx.x == kConsumers) {
        for (int step = 0; step < count && step < stages; ++step) fetch_weights(step, step);
    }
    let_next_kernel_start();
    if (!grouped) wait_for_previous_kernel();

    if (warp >= kConsumers / 32) {
        if constexpr (kTokens == 256) give_registers<56>();
        const int producer = warp - kConsumers / 32;
        const int piece = lane % 16;  // 16 bytes of a row's 256
        const int row0 = producer * 2 + lane / 16;
        constexpr int kRowStep = 2 * kProducers;
        // Where each of this lane's rows starts, in units of 16 bytes. Behind the tile's last row the
        // first is read again: what comes of it is in columns that nobody writes out.
        const uint32_t x_stride = static_cast<uint32_t>(p.x_stride / 8);
        const int base_row = first_row(p, tile);
        uint32_t offset[kTokens / kRowStep];
#pragma unroll
        for (int i = 0; i < kTokens / kRowStep; ++i) {
            const int row = row0 + i * kRowStep;
            const int token = row < tile.count ? row : 0;
            offset[i] = (p.rows_in == nullptr ? base_row + token : p.rows_in[tile.start + token]) *
                            x_stride +
                        piece;
        }
        const uint32_t half_at = piece / 8 * S::x_half + row0 * 128;
        constexpr int kPatterns = 8 / kRowStep;  // rows of a lane repeat modulo 8
        uint32_t swizzled[kPatterns];
#pragma unroll
        for (int i = 0; i < kPatterns; ++i) {
            swizzled[i] = half_at + ((piece % 8 ^ ((row0 + i * kRowStep) & 7)) << 4);
        }
        int s = 0;
        uint32_t parity = 1;
#pragma unroll 1
        for (int step = 0; step < count; ++step) {
            const uint32_t base = smem_address(smem) + s * S::bytes;
            if (step >= stages) barrier_wait(smem_address(&empty[s]), parity);
            if (threadIdx.x == kConsumers && step >= stages) fetch_weights(step, s);
            const int depth = (first + step) * kChunkDepth;
            const bool inside = depth + piece * 8 < p.in_features;
            const uint4* x = static_cast<const uint4*>(p.x) + (inside ? depth / 8 : 0);
#pragma unroll
            for (int i = 0; i < kTokens / kRowStep; ++i) {
                copy_16(base + swizzled[i % kPatterns] + i * kRowStep * 128, x + offset[i],
                        inside ? 16 : 0);
            }
            copy_commit();
            if (step >= kLag) {
                copy_wait<kLag>();
                fence_async_proxy();
                __syncwarp();
                const int ready = s >= kLag ? s - kLag : s - kLag + stages;
                if (lane == 0) barrier_arrive(smem_address(&full[ready]));
            }
            if (++s == stages) {
                s = 0;
                parity ^= 1;
            }
        }
        copy_wait<0>();
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
            for (int step = count > kLag ? count - kLag : 0; step < count; ++step) {
                barrier_arrive(smem_address(&full[step % stages]));
            }
        }
        if constexpr (kFinishers == kConsumers) return;
    } else {
        if constexpr (kTokens == 256) take_registers<224>();
        using P = typename Pair<T>::type;
        const int group_of_warps = warp / 4;
        const int m = warp % 4;
        const int g = lane / 4;
        float sum[kTokens / 2];
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) sum[i] = 0.f;
        // The operands of one half chunk are made while the products of the other half run. ptxas
        // keeps wgmma asynchronous only if nothing is in flight when the next ones start, hence the
        // wait for zero; the other warpgroup fills that gap.
        uint32_t a[2][4][4];
        P scale[2];
        P offset[2];
        auto operands = [&](const uint8_t* chunk, int half) {
            uint32_t words[4];
            uint32_t high[C::high_words];
            load_high<kFormat>(high, chunk, m, lane);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const int at = half * 4 + k;
                if (at % C::steps_per_group == 0) {
                    const RowScales scales =
                        load_scales<kFormat>(chunk, m, at / C::steps_per_group, g);
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        scale[r] = Pair<T>::both(scales.scale[r]);
                        offset[r] = Pair<T>::both(scales.offset[r]);
                    }
                }
                if (at % C::steps_per_piece == 0) {
                    *reinterpret_cast<uint4*>(words) = *reinterpret_cast<const uint4*>(
                        chunk + (at / C::steps_per_piece * 4 + m) * kPieceBytes + lane * 16);
                }
                scaled_operand<T, kFormat>(a[half][k],
                                           &words[at % C::steps_per_piece * C::words_per_step],
                                           high, at, scale, offset);
            }
#pragma unroll
            for (int k = 0; k < 4; ++k) pin(a[half][k]);
        };
        auto multiply = [&](uint32_t stage, int half) {
            const uint64_t b = swizzled_operand(stage + half * S::x_half);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; ++k) Wgmma<T, kTokens>::run(sum, a[half][k], b + k * 2);
            wgmma_commit();
        };
        const uint8_t* stage = smem;
        const int chunk_at = S::x_bytes + group_of_warps * C::bytes;
        int s = 0;
        uint32_t parity = 0;
        if (count > 0) {
            barrier_wait(smem_address(&full[0]), 0);
            operands(stage + chunk_at, 0);
        }
#pragma unroll 1
        for (int step = 0; step < count; ++step) {
            multiply(smem_address(stage), 0);
            operands(stage + chunk_at, 1);
            const int next = s + 1 == stages ? 0 : s + 1;
            const uint32_t next_parity = s + 1 == stages ? parity ^ 1 : parity;
            const bool last = step + 1 == count;
            if (!last) barrier_wait(smem_address(&full[next]), next_parity);
            wgmma_wait<0>();
            multiply(smem_address(stage), 1);
            // After the last step this reads the same stage again, to no effect.
            const uint8_t* next_stage = last ? stage : smem + next * S::bytes;
            operands(next_stage + chunk_at, 0);
            wgmma_wait<0>();
            __syncwarp();
            if (lane == 0) barrier_arrive(smem_address(&empty[s]));
            stage = next_stage;
            s = next;
            parity = next_parity;
        }

        // Every stage has been read once all consumers are here; the sums take their place.
        consumers_sync<kConsumers>();
        float* partial = reinterpret_cast<float*>(smem);
        const int own_row = warp * 16 + g;
#pragma unroll
        for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const int token = n * 8 + lane % 4 * 2 + (c & 1);
                partial[token * kRedStride + own_row + (c >> 1) * 8] = sum[n * 4 + c];
            }
        }
    }
    // Producers help to finish, unless they gave their registers away and are gone; an exited thread
    // holds up no barrier of the cluster.
    if (split > 1) {
        cluster_sync();
    } else if constexpr (kFinishers == kConsumers) {
        consumers_sync<kConsumers>();
    } else {
        __syncthreads();
    }
    // Each block of the cluster finishes an equal share of the units.
    const float* partial = reinterpret_cast<const float*>(smem);
    const int shift = units_shift<kRows>(p);
    const int units = tile.count << shift;
    const bool gated = p.activation != KT_NONE;
    const uint32_t partial_at = smem_address(partial);
    auto cluster_sum = [&](int at) {
        if (split == 1) return *reinterpret_cast<const float4*>(partial + at);
        float4 v = cluster_load(partial_at + at * 4, 0);
        for (int r = 1; r < split; ++r) add(v, cluster_load(partial_at + at * 4, r));
        return v;
    };
    for (int i = (units * rank >> split_shift) + threadIdx.x; i < units * (rank + 1) >> split_shift;
         i += kFinishers) {
        const int token = i >> shift;
        const int row = unit_row(p, i & ((1 << shift) - 1));
        const Unit unit = {cluster_sum(token * kRedStride + row),
                           gated ? cluster_sum(token * kRedStride + row + 32)
                                 : make_float4(0, 0, 0, 0)};
        write_unit<T>(p, tile, token, row_pair * kRows + row, unit);
    }
    if (split > 1) {  // no block may leave while another reads its sums
        cluster_arrive_relaxed();
        cluster_wait();
    }
#endif
}

// How many blocks share a tile along K, measured on an H200 (benchmarks/cuda/NOTES.md). One wave of
// blocks is worth most; clusters of 4 and 8 leave places empty, since a cluster stays within one GPC.
inline int choose_split(int64_t blocks, int steps, int per_unit, const DeviceFacts& facts) {
    const int units = facts.multiprocessors;
    int split = 1;
    if (per_unit == 1) {
        if (blocks * 4 <= units / 2) {
            split = 4;
        } else if (blocks * 2 <= units || (blocks > units && blocks * 2 <= 3 * units)) {
            split = 2;
        }
    } else if (blocks > 4 * units) {
        split = 1;
    } else if (blocks > units) {
        split = steps >= 56 ? 4 : 2;
    } else {
        while (split < 8 && blocks * split * 2 <= 2 * units &&
               (steps >= 14 * split || blocks * split < units - units / 8)) {
            split *= 2;
        }
    }
    while (split > 1 && split * 2 > steps) split /= 2;
    return split;
}

template <typename T, int kFormat, int kTokens>
int launch(const kt_matmul& arguments, const DeviceFacts& facts, cudaStream_t stream) {
    using S = Stage<kFormat, kTokens>;
    kt_matmul p = arguments;
    const int steps = (p.in_features + kChunkDepth - 1) / kChunkDepth;
    const int row_pairs = (p.out_features + kRows - 1) / kRows;
    const int tiles = p.max_tiles > 0 ? p.max_tiles : (p.tokens + kTokens - 1) / kTokens;
    constexpr int per_unit = Shape<kTokens>::blocks;
    if (p.split == 0) p.split = choose_split(row_pairs * static_cast<int64_t>(tiles), steps, per_unit, facts);
    if (p.split > 8 || (p.split & (p.split - 1)) != 0) return KT_BAD_TILE;
    int shared = S::count * S::bytes;
    const int sums = kTokens * kRedStride * 4;
    if (shared < sums) shared = sums;
    return launch_kernel(large_m<T, kFormat, kTokens>, dim3(row_pairs * p.split, tiles),
                         Shape<kTokens>::threads, shared + 1024, p, p.split,
                         p.dependent != 0, facts, stream);
}

template <typename T, int kFormat>
int by_tokens(const kt_matmul& p, const DeviceFacts& facts, cudaStream_t stream) {
    switch (p.tile_tokens) {
        case 64:
            return launch<T, kFormat, 64>(p, facts, stream);
        case 128:
            return launch<T, kFormat, 128>(p, facts, stream);
        case 256:
            // Three stages must fit, which the chunks of more than 4 bits do not allow.
            if constexpr (Stage<kFormat, 256>::count >= 3) {
                return launch<T, kFormat, 256>(p, facts, stream);
            }
            return launch<T, kFormat, 128>(p, facts, stream);
        default:
            return KT_BAD_TILE;
    }
}

template <typename T>
int by_format(const kt_matmul& p, const DeviceFacts& facts, cudaStream_t stream) {
    switch (p.format) {
        case KT_W4_G128:
            return by_tokens<T, KT_W4_G128>(p, facts, stream);
        case KT_W4_G128_OFFSET:
            return by_tokens<T, KT_W4_G128_OFFSET>(p, facts, stream);
        case KT_W4_G32_OFFSET:
            return by_tokens<T, KT_W4_G32_OFFSET>(p, facts, stream);
        case KT_Q4_K:
            return by_tokens<T, KT_Q4_K>(p, facts, stream);
        case KT_W8_G128:
            return by_tokens<T, KT_W8_G128>(p, facts, stream);
        case KT_W8_G32:
            return by_tokens<T, KT_W8_G32>(p, facts, stream);
        case KT_Q5_K:
            return by_tokens<T, KT_Q5_K>(p, facts, stream);
        case KT_Q6_K:
            return by_tokens<T, KT_Q6_K>(p, facts, stream);
        case KT_IQ4_XS:
            return by_tokens<T, KT_IQ4_XS>(p, facts, stream);
        case KT_MXFP4:
            return by_tokens<T, KT_MXFP4>(p, facts, stream);
        default:
            return KT_BAD_FORMAT;
    }
}

}  // namespace large
}  // namespace kt
