// Up to 16 tokens at once: the weights are read exactly once, at the memory's speed.
//
// A block of four warps owns 64 rows of the output and a share of K; with a split, the blocks of one
// cluster share K further. Each warp streams its own chunks through a private ring in shared memory
// (the copy engine fills it on 9.0 and later, cp.async before), so the loop has no block-wide barrier.
// Weights are the A operand of mma m16n8k16, so few tokens pad to 8, not to 16. Quantised integers go
// into the product as they are; scale and offset are applied to sums of 32 or 128 values, the offset
// through sums of x that one extra product with ones gives. Nothing is rounded before the output.
#pragma once

#include "launch.h"
#include "matmul.cuh"
#include "small_m_choice.h"

namespace kt {
namespace small {

constexpr int kXPitch = kChunkDepth * 2 + 16;  // bytes; the padding spreads rows over the banks

// One step of a warp: a chunk for each 64 rows, then the activations of all tokens.
template <int kFormat, int kTokenTiles, int kChunks>
struct Stage {
    static constexpr int x_at = kChunks * Chunk<kFormat>::bytes;
    static constexpr int bytes = (x_at + kTokenTiles * 8 * kXPitch + 127) / 128 * 128;
};

template <typename T, int kFormat, int kTokenTiles, int kChunks, int kWarps, int kStages>
__global__ void __launch_bounds__(kWarps * 32) small_m(const __grid_constant__ kt_matmul p) {
    using C = Chunk<kFormat>;
    using R = Raw<T, kProductBits<kFormat>>;
    constexpr int kThreads = kWarps * 32;
    constexpr int kTokens = kTokenTiles * 8;
    constexpr int kRows = kChunks * kChunkRows;
    constexpr int kTiles = kChunks * 4;
    constexpr int kRedStride = kRows + 4;  // floats
    constexpr int kXAt = Stage<kFormat, kTokenTiles, kChunks>::x_at;
    constexpr int kStage = Stage<kFormat, kTokenTiles, kChunks>::bytes;
    constexpr int kRing = kStages * kStage;
    static_assert(kTokens * kRedStride * 4 <= kStage, "the sums reuse a stage");

    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ uint64_t barriers[kWarps][kStages];
    __shared__ uint64_t received_barrier;

    // The shuffle tells the compiler that the warp's number, and all that follows from it, is uniform.
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
    const int lane = threadIdx.x % 32;
    const int g = lane / 4;
    const int split = p.split;
    const int split_shift = __ffs(split) - 1;  // a power of two
    const int rank = blockIdx.x & (split - 1);
    const int row_block = blockIdx.x >> split_shift;  // of kRows rows
    const int row_chunks = (p.out_features + kChunkRows - 1) / kChunkRows;
    const int chunk_count = kChunks == 1 || row_block * kChunks + 1 < row_chunks ? kChunks : 1;
    uint8_t* ring = smem + warp * kRing;
    const uint32_t ring_at = smem_address(ring);
    const uint32_t barriers_at = smem_address(&barriers[warp][0]);
    const uint32_t received_at = smem_address(smem + kWarps * kRing);
    const uint32_t received_barrier_at = smem_address(&received_barrier);

    // Grouped launches learn their weights from the kernel before.
    const bool grouped = waits_for_groups(p);
    if (grouped) wait_for_previous_kernel();
    const Tile tile = block_tile(p, blockIdx.y, kTokens);
    if (tile.count == 0) return;  // the whole cluster: its blocks differ in blockIdx.x only

    const int steps = (p.in_features + kChunkDepth - 1) / kChunkDepth;
    const int worker = rank * kWarps + warp;
    constexpr int kWarpShift = kWarps == 8 ? 3 : 2;
    static_assert(1 << kWarpShift == kWarps, "work is divided by shifts");
    const int first = steps * worker >> (split_shift + kWarpShift);
    const int count = (steps * (worker + 1) >> (split_shift + kWarpShift)) - first;
    const uint8_t* chunks = static_cast<const uint8_t*>(p.weights) +
                            tile.expert * p.expert_bytes +
                            (static_cast<int64_t>(row_block) * kChunks * steps + first) * C::bytes;

    if (lane == 0) {
#pragma unroll
        for (int s = 0; s < kStages; ++s) barrier_init(barriers_at + s * 8, KT_HOPPER ? 33 : 32);
        if (split > 1 && warp == 0) barrier_init(received_barrier_at, 1);
        barrier_init_fence();
    }
    __syncwarp();

    auto fetch_weights = [&](int step, int s) {
        const uint32_t target = ring_at + s * kStage;
        const uint8_t* source = chunks + static_cast<int64_t>(step) * C::bytes;
#if KT_HOPPER
        if (lane == 0) barrier_arrive_expect(barriers_at + s * 8, chunk_count * C::bytes);
#endif
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
            if (c > 0 && c >= chunk_count) break;
#if KT_HOPPER
            if (lane == 0) {
                copy_bulk(target + c * C::bytes, source, C::bytes, barriers_at + s * 8);
            }
#else
#pragma unroll
            for (int i = 0; i < C::bytes; i += 512) {
                if (i + 512 <= C::bytes || i + lane * 16 < C::bytes) {
                    copy_16(target + c * C::bytes + i + lane * 16, source + i + lane * 16, 16);
                }
            }
#endif
            source += static_cast<int64_t>(steps) * C::bytes;
        }
    };
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
        if (s < count) fetch_weights(s, s);
    }
    let_next_kernel_start();
#if KT_HOPPER
    if (split > 1) {
        if (threadIdx.x == 0) {
            const int units = tile.count << units_shift<kRows>(p);
            const int own = (units - rank + split - 1) >> split_shift;
            barrier_arrive_expect(received_barrier_at,
                                  (own << split_shift) * (p.activation != KT_NONE ? 32 : 16));
        }
        __syncwarp();
        cluster_arrive_relaxed();
    }
#endif

    // Rows of x behind the tile's last are never loaded; they stay zero from here on.
#pragma unroll 1
    for (int i = tile.count * (kXPitch / 16) + lane; i < kTokens * (kXPitch / 16); i += 32) {
#pragma unroll
        for (int s = 0; s < kStages; ++s) {
            *reinterpret_cast<uint4*>(ring + s * kStage + kXAt + i * 16) =
                make_uint4(0, 0, 0, 0);
        }
    }
    // A lane brings 16 bytes of every second token's row. Where rows follow one another, all this is
    // known before the wait, behind which every instruction counts.
    const int piece = lane % 16;
    const int base_row = first_row(p, tile);
    const uint32_t x_stride = static_cast<uint32_t>(p.x_stride / 8);  // in units of 16 bytes
    uint32_t x_offset[kTokenTiles * 4];
#pragma unroll
    for (int j = 0; j < kTokenTiles * 4; ++j) {
        const int token = j * 2 + lane / 16;
        x_offset[j] = token < tile.count ? (base_row + token) * x_stride + piece : kNoRow;
    }
    if (!grouped) wait_for_previous_kernel();
    if (p.rows_in != nullptr) {
#pragma unroll
        for (int j = 0; j < kTokenTiles * 4; ++j) {
            const int token = j * 2 + lane / 16;
            if (token < tile.count) {
                x_offset[j] = p.rows_in[tile.start + token] * x_stride + piece;
            }
        }
    }
    auto fetch_x = [&](int step, int s) {
        const uint32_t target = ring_at + s * kStage + kXAt + lane / 16 * kXPitch + piece * 16;
        const int depth = (first + step) * kChunkDepth;
        const bool inside = depth + piece * 8 < p.in_features;  // in_features is a multiple of 8
        const uint4* base = static_cast<const uint4*>(p.x) + (inside ? depth / 8 : 0);
#pragma unroll
        for (int j = 0; j < kTokenTiles * 4; ++j) {
            if (x_offset[j] != kNoRow) {
                copy_16(target + j * 2 * kXPitch, base + x_offset[j], inside ? 16 : 0);
            }
        }
        barrier_arrive_on_copies(barriers_at + s * 8);
    };
    __syncwarp();
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
        if (s < count) fetch_x(s, s);
    }

    float sum[kTiles][kTokenTiles][4] = {};
    int s = 0;
    uint32_t parity = 0;
#pragma unroll 1
    for (int step = 0; step < count; ++step) {
        const uint8_t* chunk = ring + s * kStage;
        const uint32_t x = ring_at + s * kStage + kXAt + lane % 8 * kXPitch + lane / 8 * 16;
        barrier_wait(barriers_at + s * 8, parity);

        // The tiles of 16 rows and the sums of x are independent chains of products.
        float product[kTiles][kTokenTiles][4];
        float x_sum[kTokenTiles][4];
        uint32_t words[kTiles][4];
        uint32_t high[kTiles][C::high_words];
        uint32_t b[kTokenTiles][4];
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            if (k % C::steps_per_group == 0) {
#pragma unroll
                for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
                    for (int c = 0; c < 4; ++c) {
                        x_sum[n][c] = 0.f;
#pragma unroll
                        for (int m = 0; m < kTiles; ++m) product[m][n][c] = 0.f;
                    }
                }
            }
            if (k % C::steps_per_piece == 0) {
#pragma unroll
                for (int m = 0; m < kTiles; ++m) {
                    *reinterpret_cast<uint4*>(words[m]) = *reinterpret_cast<const uint4*>(
                        chunk + m / 4 * C::bytes +
                        (k / C::steps_per_piece * 4 + m % 4) * kPieceBytes + lane * 16);
                }
            }
            if (k == 0) {
#pragma unroll
                for (int m = 0; m < kTiles; ++m) {
                    load_high<kFormat>(high[m], chunk + m / 4 * C::bytes, m % 4, lane);
                }
            }
            // B operand: x[token = lane / 4][k]; one ldmatrix brings two k steps.
            if (k % 2 == 0) {
#pragma unroll
                for (int n = 0; n < kTokenTiles; ++n) {
                    load_matrix_x4(b[n], x + n * 8 * kXPitch + k * 32);
                }
            }
            constexpr uint32_t kOne = Raw<T, 4>::bias != 0.f ? 0x3F803F80u : 0x3C003C00u;
            const uint32_t ones[4] = {kOne, kOne, kOne, kOne};
#pragma unroll
            for (int n = 0; n < kTokenTiles; ++n) {
                mma_16x8x16<T>(x_sum[n], ones, b[n][k % 2 * 2], b[n][k % 2 * 2 + 1]);
            }
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
                uint32_t a[4];
                raw_operand<T, kFormat>(a, &words[m][k % C::steps_per_piece * C::words_per_step],
                                        high[m], k);
#pragma unroll
                for (int n = 0; n < kTokenTiles; ++n) {
                    mma_16x8x16<T>(product[m][n], a, b[n][k % 2 * 2], b[n][k % 2 * 2 + 1]);
                }
            }
            if ((k + 1) % C::steps_per_group == 0) {
#pragma unroll
                for (int m = 0; m < kTiles; ++m) {
                    const RowScales scales =
                        load_scales<kFormat>(chunk + m / 4 * C::bytes, m % 4, k / C::steps_per_group, g);
                    const float scale0 = scales.scale[0] * R::unscale0;
                    const float scale1 = scales.scale[1] * R::unscale1;
                    const float offset0 = scales.offset[0] - R::bias * scales.scale[0];
                    const float offset1 = scales.offset[1] - R::bias * scales.scale[1];
#pragma unroll
                    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
                        for (int c = 0; c < 2; ++c) {
                            sum[m][n][c] = fmaf(product[m][n][c], scale0,
                                                fmaf(offset0, x_sum[n][c], sum[m][n][c]));
                            sum[m][n][c + 2] =
                                fmaf(product[m][n][c + 2], scale1,
                                     fmaf(offset1, x_sum[n][c], sum[m][n][c + 2]));
                        }
                    }
                }
            }
        }
        __syncwarp();
        if (step + kStages < count) {
            fetch_weights(step + kStages, s);
            fetch_x(step + kStages, s);
        }
        if (++s == kStages) {
            s = 0;
            parity ^= 1;
        }
    }

    // Partial sums of the warp, then of the block, then of the cluster.
    float* mine = reinterpret_cast<float*>(ring);
    const int t = lane % 4;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const int token = n * 8 + t * 2 + (c & 1);
                mine[token * kRedStride + m * 16 + g + (c >> 1) * 8] = sum[m][n][c];
            }
        }
    }
    __syncthreads();

    // Sums over the block's warps; with a split, each block of the cluster finishes an equal share of
    // the units and is sent the others' sums for them, counted by a barrier it waits on.
    const int shift = units_shift<kRows>(p);
    const int units = tile.count << shift;
    const bool gated = p.activation != KT_NONE;
    auto block_sum = [&](int at) {
        float4 v = *reinterpret_cast<const float4*>(reinterpret_cast<float*>(smem) + at);
#pragma unroll
        for (int w = 1; w < kWarps; ++w) {
            add(v, *reinterpret_cast<const float4*>(reinterpret_cast<float*>(smem + w * kRing) + at));
        }
        return v;
    };
    if (split > 1) cluster_wait();  // every block's barrier is ready
    const int slots = (units + split - 1) >> split_shift;
    for (int i = threadIdx.x; i < units; i += kThreads) {
        const int token = i >> shift;
        const int row = unit_row(p, i & ((1 << shift) - 1));
        Unit unit;
        unit.sum = block_sum(token * kRedStride + row);
        unit.up = gated ? block_sum(token * kRedStride + row + 32) : make_float4(0, 0, 0, 0);
        if (split == 1) {
            write_unit<T>(p, tile, token, row_block * kRows + row, unit);
        } else {
            const int owner = i & (split - 1);
            const int slot = (rank * slots + (i >> split_shift)) << (gated ? 1 : 0);
            const uint32_t target = cluster_address(received_at + slot * 16, owner);
            const uint32_t barrier = cluster_address(received_barrier_at, owner);
            cluster_store(target, unit.sum, barrier);
            if (gated) cluster_store(target + 16, unit.up, barrier);
        }
    }
    if (split > 1) {
        barrier_wait(received_barrier_at, 0);
        const float4* received = reinterpret_cast<const float4*>(smem + kWarps * kRing);
        for (int i = threadIdx.x * split + rank; i < units; i += kThreads * split) {
            Unit unit = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
            for (int r = 0; r < split; ++r) {
                const int slot = (r * slots + (i >> split_shift)) << (gated ? 1 : 0);
                add(unit.sum, received[slot]);
                if (gated) add(unit.up, received[slot + 1]);
            }
            write_unit<T>(p, tile, i >> shift,
                          row_block * kRows + unit_row(p, i & ((1 << shift) - 1)), unit);
        }
    }
}

template <typename T, int kFormat, int kTokenTiles, int kChunks, int kWarps, int kStages>
int launch(const kt_matmul& arguments, const DeviceFacts& facts, cudaStream_t stream) {
    constexpr int kTokens = kTokenTiles * 8;
    kt_matmul p = arguments;
    const int row_chunks = (p.out_features + kChunkRows - 1) / kChunkRows;
    const int row_blocks = (row_chunks + kChunks - 1) / kChunks;
    const int tiles = p.max_tiles > 0 ? p.max_tiles : (p.tokens + kTokens - 1) / kTokens;
    if (facts.capability < 90) p.split = 1;
    if (p.split > 8 || (p.split & (p.split - 1)) != 0) return KT_BAD_TILE;
    int shared = kWarps * kStages * Stage<kFormat, kTokenTiles, kChunks>::bytes;
    // Room for the sums the cluster sends; a share may be one unit more than its part.
    if (p.split > 1) shared += (kTokens * 16 * kChunks + 2 * p.split) * 16;
    return launch_kernel(small_m<T, kFormat, kTokenTiles, kChunks, kWarps, kStages>,
                         dim3(row_blocks * p.split, tiles), kWarps * 32, shared, p, p.split,
                         p.dependent != 0, facts, stream);
}

template <typename T, int kFormat>
int by_shape(const kt_matmul& arguments, const DeviceFacts& facts, cudaStream_t stream) {
    // The formats that matter most get the variants that gain the last tenths.
    constexpr bool kTuned = kFormat == KT_W4_G128 || kFormat == KT_Q4_K;
    kt_matmul p = arguments;
    choose(p, facts, kTuned);
#define KT_CASE(tokens, chunks, w, s)                                                          \
    if (p.tile_tokens == tokens * 8 && p.rows == chunks * 64 && p.warps == w && p.stages == s) \
        return launch<T, kFormat, tokens, chunks, w, s>(p, facts, stream);
    KT_CASE(1, 1, 4, 2)
    KT_CASE(1, 1, 8, 2)
    KT_CASE(2, 1, 4, 2)
    KT_CASE(2, 1, 8, 2)
    KT_CASE(4, 1, 4, 2)
    if constexpr (kTuned) {
        KT_CASE(1, 1, 8, 3)
        KT_CASE(2, 2, 4, 2)
        KT_CASE(4, 1, 8, 2)
    }
#undef KT_CASE
    return KT_BAD_TILE;
}

template <typename T>
int by_format(const kt_matmul& p, const DeviceFacts& facts, cudaStream_t stream) {
    switch (p.format) {
        case KT_W4_G128:
            return by_shape<T, KT_W4_G128>(p, facts, stream);
        case KT_W4_G128_OFFSET:
            return by_shape<T, KT_W4_G128_OFFSET>(p, facts, stream);
        case KT_W4_G32_OFFSET:
            return by_shape<T, KT_W4_G32_OFFSET>(p, facts, stream);
        case KT_Q4_K:
            return by_shape<T, KT_Q4_K>(p, facts, stream);
        case KT_W8_G128:
            return by_shape<T, KT_W8_G128>(p, facts, stream);
        case KT_W8_G32:
            return by_shape<T, KT_W8_G32>(p, facts, stream);
        case KT_Q5_K:
            return by_shape<T, KT_Q5_K>(p, facts, stream);
        case KT_Q6_K:
            return by_shape<T, KT_Q6_K>(p, facts, stream);
        case KT_IQ4_XS:
            return by_shape<T, KT_IQ4_XS>(p, facts, stream);
        case KT_MXFP4:
            return by_shape<T, KT_MXFP4>(p, facts, stream);
        default:
            return KT_BAD_FORMAT;
    }
}

}  // namespace small
}  // namespace kt
