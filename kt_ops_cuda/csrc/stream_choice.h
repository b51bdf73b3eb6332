// Whether stream.cuh serves a shape, its tiles, its grid and its scratch memory.
#pragma once

#include <cstdint>

#include "launch.h"

namespace kt {
namespace stream {

constexpr int kFlagsPerBlock = 16;  // kMostParts of stream_plan.cuh

// Whether a persistent grid beats blocks that come and go (large_m.cuh): measured on an H200
// (benchmarks/cuda/NOTES.md). Small matrices gain more from sums that cross a cluster.
inline bool serves(const kt_matmul& p) {
    if (p.tiles != nullptr || p.split < 0 || p.rows >= 256) return true;
    return static_cast<int64_t>(p.in_features) * p.out_features >= 40'000'000 &&
           p.out_features >= 4096;
}

inline int tile_of(const kt_matmul& p) {
    return p.tile_tokens > 64 ? 128 : p.rows == 384 ? 48 : 64;
}

inline int64_t tiles_of(const kt_matmul& p) {
    const int tile = tile_of(p);
    const int64_t tiles = p.max_tiles > 0 ? p.max_tiles : (p.tokens + tile - 1) / tile;
    return tiles * ((p.out_features + p.rows - 1) / p.rows);
}

// Blocks of the grid: at most as many as run at once.
inline int grid_blocks(const kt_matmul& p, const DeviceFacts& facts) {
    const int steps = (p.in_features + 127) / 128;
    const int64_t pieces = tiles_of(p) * (p.split < 0 ? steps : p.split);
    return static_cast<int>(pieces < facts.multiprocessors ? pieces : facts.multiprocessors);
}

inline int64_t scratch_bytes(const kt_matmul& p, const DeviceFacts& facts) {
    if (p.split == 1) return 0;
    return static_cast<int64_t>(grid_blocks(p, facts)) *
           (kFlagsPerBlock * 8 + static_cast<int64_t>(p.rows) * tile_of(p) * 4);
}

// Fills in what the caller left open. Returns 0 or KT_BAD_*.
inline int choose(kt_matmul& p, const DeviceFacts& facts) {
    const bool grouped = p.tiles != nullptr;
    const int units = facts.multiprocessors;
    const int steps = (p.in_features + 127) / 128;
    if (p.rows == 0) p.rows = grouped && p.tile_tokens <= 48 ? 384 : 256;
    if (p.rows != 256 && (p.rows != 384 || p.tile_tokens > 48)) return KT_BAD_TILE;
    const int64_t tiles = tiles_of(p);
    if (p.split == 0) {
        if (grouped || (tiles <= units && tiles * 5 >= units * 4)) {
            p.split = 1;
        } else if (tiles * 2 <= units) {
            p.split = static_cast<int>(units / tiles);
            if (p.split > 12) p.split = 12;
            if (p.split > steps) p.split = steps;
        } else {
            p.split = -1;
        }
    }
    if (p.split < -1 || p.split > kFlagsPerBlock || p.split > steps || (grouped && p.split != 1)) {
        return KT_BAD_TILE;
    }
    return p.split > 1 && tiles * p.split > units ? KT_BAD_TILE : 0;
}

}  // namespace stream
}  // namespace kt
