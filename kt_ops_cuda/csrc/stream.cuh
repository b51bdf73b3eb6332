// Large matrices and grouped rows, more than 16 tokens: a persistent grid that multiplies by wgmma, weights as the A operand from
// registers (compute capability 9.0).
//
// A block owns tiles of 256 or 384 rows of the output and up to 48, 64 or 128 tokens, one after another.
// Four producer warps run ahead of the multiplying warpgroups through a ring of stages, across the ends
// of tiles too, so that memory never waits for an epilogue: weights come as bulk copies, rows of
// activations (gathered, if need be) as cp.async, swizzled for wgmma. A warpgroup multiplies two
// strips of 64 rows; its warps take strips 0 and 2, or 1 and 3, of a chunk, so that a gate and its up
// half end in the same thread. 16-bit weights exist in registers only.
//
// Work is handed out without a host: stream_plan.cuh.
#pragma once

#include "launch.h"
#include "matmul.cuh"
#include "stream_finish.cuh"
#include "stream_plan.cuh"
#include "wgmma.cuh"

namespace kt {
namespace stream {

constexpr int kMostShared = 227 * 1024;  // of a block on 9.0

template <int kFormat, int kTokens, int kGroups>
struct Stage {
    static constexpr int chunks = 2 * kGroups;
    static constexpr int rows = chunks * kChunkRows;
    static constexpr int consumers = kGroups * 128;
    static constexpr int threads = consumers + kProducers;
    static constexpr int x_half = kTokens * 128;         // kTokens rows of 64 values
    static constexpr int x_bytes = 2 * x_half;
    static constexpr int bytes = (x_bytes + chunks * Chunk<kFormat>::bytes + 1023) / 1024 * 1024;
    static constexpr int room = kMostShared - 2 * 1024;  // barriers, alignment
    static constexpr int count = room / bytes < 8 ? room / bytes : 8;
    // Of a multiplying and of a producing thread.
    static constexpr int registers = kGroups == 2 ? 232 : 160;
    static constexpr int producer_registers = kGroups == 2 ? 40 : 32;
};

// Where a warpgroup stands in the ring.
struct Cursor {
    int stage;
    uint32_t parity;
    template <int kCount>
    __device__ __forceinline__ void step() {
        if (++stage == kCount) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// The products of one piece of work, added to nothing, and what becomes of them.
template <typename T, int kFormat, int kTokens, int kGroups, int kN>
__device__ __forceinline__ void multiply_piece(const kt_matmul& p, const Work& work,
                                               const Tile& tile, int row_block, uint8_t* smem,
                                               const uint64_t* full, const uint64_t* empty,
                                               Cursor& at) {
    using C = Chunk<kFormat>;
    using S = Stage<kFormat, kTokens, kGroups>;
    using P = typename Pair<T>::type;
    // K steps of 16 whose operands are made at once, while the products of those before run. ptxas
    // keeps wgmma asynchronous only if nothing is in flight when the next ones start, hence the wait
    // for zero; the other warpgroup fills that gap.
        constexpr int kBatch = 2;
    constexpr int kBatches = 8 / kBatch;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int g = lane / 4;
    const int strip = warp % 2;
    const int chunk_at = S::x_bytes + warp / 2 * C::bytes;

    float sum[2][kN / 2];
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) sum[0][i] = sum[1][i] = 0.f;
    uint32_t a[2][2][kBatch][4];
    uint32_t words[2][4];
    uint32_t high[2][C::high_words];
    P scale[2][2];
    P offset[2][2];
    auto operands = [&](const uint8_t* chunk, int batch) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const int own = strip + m * 2;
            if (batch == 0) load_high<kFormat>(high[m], chunk, own, lane);
#pragma unroll
            for (int k = 0; k < kBatch; ++k) {
                const int step = batch * kBatch + k;
                if (step % C::steps_per_group == 0) {
                    const RowScales scales =
                        load_scales<kFormat>(chunk, own, step / C::steps_per_group, g);
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        scale[m][r] = Pair<T>::both(scales.scale[r]);
                        offset[m][r] = Pair<T>::both(scales.offset[r]);
                    }
                }
                if (step % C::steps_per_piece == 0) {
                    *reinterpret_cast<uint4*>(words[m]) = *reinterpret_cast<const uint4*>(
                        chunk + (step / C::steps_per_piece * 4 + own) * kPieceBytes + lane * 16);
                }
                scaled_operand<T, kFormat>(a[batch & 1][m][k],
                                           &words[m][step % C::steps_per_piece * C::words_per_step],
                                           high[m], step, scale[m], offset[m]);
            }
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int k = 0; k < kBatch; ++k) pin(a[batch & 1][m][k]);
        }
    };
    auto multiply = [&](uint32_t stage, int batch) {
        const int first = batch * kBatch;
        const uint64_t b = swizzled_operand(stage + first / 4 * S::x_half) + first % 4 * 2;
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
#pragma unroll
            for (int m = 0; m < 2; ++m) Wgmma<T, kN>::run(sum[m], a[batch & 1][m][k], b + k * 2);
        }
        wgmma_commit();
    };
    const uint8_t* stage = smem + at.stage * S::bytes;
    operands(stage + chunk_at, 0);
#pragma unroll 1
    for (int step = 0; step < work.count; ++step) {
        const int own = at.stage;
        at.step<S::count>();
        const bool last = step + 1 == work.count;
        // After the last step this reads the same stage again, to no effect.
        const uint8_t* next = last ? stage : smem + at.stage * S::bytes;
#pragma unroll
        for (int batch = 0; batch < kBatches; ++batch) {
            multiply(smem_address(stage), batch);
            if (batch + 1 < kBatches) {
                operands(stage + chunk_at, batch + 1);
                if (batch + 2 == kBatches && !last) {
                    barrier_wait(smem_address(&full[at.stage]), at.parity);
                    fence_async_proxy();
                }
            } else {
                operands(next + chunk_at, 0);
            }
            wgmma_wait<0>();
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(smem_address(&empty[own]));
        stage = next;
    }
    finish<T, kN, kTokens, kGroups>(p, work, tile, row_block * S::rows + warp / 2 * kChunkRows,
                                    strip, sum);
}

template <typename T, int kFormat, int kTokens, int kGroups>
__global__ void __launch_bounds__(Stage<kFormat, kTokens, kGroups>::threads, 1)
    stream_matmul(const __grid_constant__ kt_matmul p) {
#if KT_WGMMA
    using C = Chunk<kFormat>;
    using S = Stage<kFormat, kTokens, kGroups>;
    extern __shared__ uint8_t unaligned[];
    __shared__ uint64_t full[S::count];
    __shared__ uint64_t empty[S::count];
    __shared__ int4 tiles[S::count];  // of the piece of work that starts in a stage
    uint8_t* smem = unaligned + ((1024 - (smem_address(unaligned) & 1023)) & 1023);

    if (threadIdx.x == 0) {
#pragma unroll
        for (int s = 0; s < S::count; ++s) {
            barrier_init(smem_address(&full[s]), kProducers + 1);
            barrier_init(smem_address(&empty[s]), S::consumers / 32);
        }
        barrier_init_fence();
    }
    __syncthreads();
    let_next_kernel_start();
    const bool grouped = waits_for_groups(p);
    if (grouped) wait_for_previous_kernel();

    const int steps = (p.in_features + kChunkDepth - 1) / kChunkDepth;
    const int row_chunks = (p.out_features + kChunkRows - 1) / kChunkRows;
    const int row_blocks = (row_chunks + S::chunks - 1) / S::chunks;
    const int token_tiles =
        p.tiles != nullptr ? *p.tile_count : (p.tokens + kTokens - 1) / kTokens;
    Schedule schedule(p.split, token_tiles * row_blocks, steps);
    // Work that follows one another shares tokens where experts differ, and weights where they do not.
    auto place = [&](int index, int& token_tile, int& row_block) {
        if (p.tiles != nullptr) {
            token_tile = index / row_blocks;
            row_block = index - token_tile * row_blocks;
        } else {
            row_block = index / token_tiles;
            token_tile = index - row_block * token_tiles;
        }
    };
    Work work;

    if (threadIdx.x >= S::consumers) {
        give_registers<S::producer_registers>();
        const int thread = threadIdx.x - S::consumers;
        const int piece = thread % 16;  // 16 bytes of a row's 256
        const int row0 = thread / 16;
        const uint32_t target =
            smem_address(smem) + piece / 8 * S::x_half + row0 * 128 + ((piece % 8 ^ row0) << 4);
        const uint32_t x_stride = static_cast<uint32_t>(p.x_stride / 8);  // in units of 16 bytes
        Cursor at = {0, 1};
        bool waited = grouped;
        bool full_round = false;  // whether stages have to be given back before they are used
#pragma unroll 1
        while (schedule.next(work)) {
            int token_tile, row_block;
            place(work.index, token_tile, row_block);
            const Tile tile = block_tile(p, token_tile, kTokens);
            const int left = row_chunks - row_block * S::chunks;
            const int chunks = left < S::chunks ? left : S::chunks;
            const uint8_t* weights =
                static_cast<const uint8_t*>(p.weights) + tile.expert * p.expert_bytes +
                (static_cast<int64_t>(row_block) * S::chunks * steps + work.first) * C::bytes;
            auto fetch_weights = [&](int step, int s) {
                const uint32_t barrier = smem_address(&full[s]);
                const uint32_t to = smem_address(smem) + s * S::bytes + S::x_bytes;
                if (step == 0) tiles[s] = make_int4(tile.expert, tile.start, tile.count, 0);
                barrier_arrive_expect(barrier, chunks * C::bytes);
                for (int i = 0; i < chunks; ++i) {
                    copy_bulk(to + i * C::bytes,
                              weights + (static_cast<int64_t>(i) * steps + step) * C::bytes,
                              C::bytes, barrier);
                }
            };
            int fetched = 0;
            if (!waited) {  // the first piece's weights are no other kernel's work
                fetched = work.count < S::count ? work.count : S::count;
                if (thread == 0) {
                    for (int step = 0; step < fetched; ++step) fetch_weights(step, step);
                }
                wait_for_previous_kernel();
                waited = true;
            }
            // Rows behind the tile's last are whatever was there: what comes of them is in columns
            // that nobody writes out. Within a pass of eight rows the first one stands in.
            const int base_row = first_row(p, tile);
            const int passes = (tile.count + 7) / 8;
            uint32_t offset[kTokens / 8];
#pragma unroll
            for (int i = 0; i < kTokens / 8; ++i) {
                const int token = row0 + i * 8 < tile.count ? row0 + i * 8 : 0;
                offset[i] =
                    (p.rows_in == nullptr ? base_row + token : p.rows_in[tile.start + token]) *
                        x_stride +
                    piece;
            }
#pragma unroll 1
            for (int step = 0; step < work.count; ++step) {
                if (full_round) barrier_wait(smem_address(&empty[at.stage]), at.parity);
                if (thread == 0 && step >= fetched) fetch_weights(step, at.stage);
                const int depth = (work.first + step) * kChunkDepth;
                const bool inside = depth + piece * 8 < p.in_features;
                const uint4* x = static_cast<const uint4*>(p.x) + (inside ? depth / 8 : 0);
                const uint32_t to = target + at.stage * S::bytes;
#pragma unroll
                for (int i = 0; i < kTokens / 8; ++i) {
                    if (i < passes) copy_16(to + i * 1024, x + offset[i], inside ? 16 : 0);
                }
                barrier_arrive_on_copies(smem_address(&full[at.stage]));
                at.step<S::count>();
                full_round |= at.stage == 0;
            }
        }
        copy_wait<0>();  // a thread may not leave while its copies land
    } else {
        take_registers<S::registers>();
        if (!grouped) wait_for_previous_kernel();
        Cursor at = {0, 0};
#pragma unroll 1
        while (schedule.next(work)) {
            int token_tile, row_block;
            place(work.index, token_tile, row_block);
            barrier_wait(smem_address(&full[at.stage]), at.parity);
            fence_async_proxy();
            const int4 stored = tiles[at.stage];
            const Tile tile = {stored.x, stored.y, stored.z};
#define KT_TOKENS(n)                                                                            \
    multiply_piece<T, kFormat, kTokens, kGroups, n>(p, work, tile, row_block, smem, full, empty, at)
            if constexpr (kTokens <= 64) {
                if (tile.count <= 16) {
                    KT_TOKENS(16);
                } else if (tile.count <= 32) {
                    KT_TOKENS(32);
                } else if (tile.count <= 48) {
                    KT_TOKENS(48);
                } else if constexpr (kTokens == 64) {
                    KT_TOKENS(64);
                }
            } else {
                if (tile.count <= 32) {
                    KT_TOKENS(32);
                } else if (tile.count <= 64) {
                    KT_TOKENS(64);
                } else if (tile.count <= 96) {
                    KT_TOKENS(96);
                } else {
                    KT_TOKENS(128);
                }
            }
#undef KT_TOKENS
        }
    }
#endif
}

}  // namespace stream
}  // namespace kt
