// Which variant of stream.cuh serves a shape, its grid and its scratch memory.
#pragma once

#include <cstdint>

#include "launch.h"

namespace kt {
namespace stream {

constexpr int kFlagsPerBlock = 16;  // kMostParts of stream_plan.cuh

inline int64_t pieces_of(const kt_matmul& p, int64_t& units) {
    const int steps = (p.in_features + 127) / 128;
    const int row_blocks = (p.out_features + p.rows - 1) / p.rows;
    const int64_t tiles =
        p.max_tiles > 0 ? p.max_tiles : (p.tokens + p.tile_tokens - 1) / p.tile_tokens;
    units = tiles * row_blocks * steps;
    return tiles * row_blocks * (p.split > 0 ? p.split : 1);
}

// Blocks of the grid: at most as many as run at once.
inline int grid_blocks(const kt_matmul& p, const DeviceFacts& facts) {
    int64_t units;
    const int64_t pieces = pieces_of(p, units);
    const int64_t most = static_cast<int64_t>(facts.multiprocessors) * (p.rows == 128 ? 2 : 1);
    const int64_t wanted = p.split < 0 ? units : pieces;
    return static_cast<int>(wanted < most ? wanted : most);
}

inline int64_t scratch_bytes(const kt_matmul& p, const DeviceFacts& facts) {
    if (p.split == 1) return 0;
    return static_cast<int64_t>(grid_blocks(p, facts)) *
           (kFlagsPerBlock * 8 + static_cast<int64_t>(p.rows) * p.tile_tokens * 4);
}

// Fills in what the caller left open. Returns 0 or KT_BAD_*.
inline int choose(kt_matmul& p, const DeviceFacts& facts) {
    const int units = facts.multiprocessors;
    if (p.rows == 0) p.rows = 256;
    const int64_t row_blocks = (p.out_features + p.rows - 1) / p.rows;
    const int64_t tiles = row_blocks * ((p.tokens + p.tile_tokens - 1) / p.tile_tokens);
    const bool grouped = p.tiles != nullptr;
    if (p.split == 0) {
        p.split = 1;
        if (!grouped) {
            p.split = tiles * 2 <= units ? static_cast<int>(units / tiles) : -1;
            if (p.split > kFlagsPerBlock) p.split = kFlagsPerBlock;
        }
    }
    if (p.split < -1 || p.split > kFlagsPerBlock || (grouped && p.split != 1)) return KT_BAD_TILE;
    const int steps = (p.in_features + 127) / 128;
    if (p.split > steps) p.split = steps;
    const int64_t most = static_cast<int64_t>(units) * (p.rows == 128 ? 2 : 1);
    if (p.split > 1 && tiles * p.split > most) return KT_BAD_TILE;
    return 0;
}

}  // namespace stream
}  // namespace kt
