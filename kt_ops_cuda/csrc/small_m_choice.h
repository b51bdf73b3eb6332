// Which variant of small_m.cuh serves a shape.
#pragma once

#include <cstdint>

#include "launch.h"

namespace kt {
namespace small {

constexpr int kChoiceRows = 64;    // of a chunk, as in formats.cuh
constexpr int kChoiceDepth = 128;

// Which variant runs, where the caller left it open. Measured on an H200 (benchmarks/cuda/NOTES.md):
// one wave of blocks, two warps of which share a scheduler, beats everything else, so the rows decide
// how many warps and how large a cluster share a block of rows.
inline void choose(kt_matmul& p, const DeviceFacts& facts, bool tuned) {
    const int steps = (p.in_features + kChoiceDepth - 1) / kChoiceDepth;
    const int row_chunks = (p.out_features + kChoiceRows - 1) / kChoiceRows;
    const int tiles =
        p.max_tiles > 0 ? p.max_tiles : (p.tokens + p.tile_tokens - 1) / p.tile_tokens;
    const int64_t blocks = static_cast<int64_t>(row_chunks) * tiles;
    const int units = facts.multiprocessors;
    int warps = 8, stages = 2, rows = 64, split = 1;
    if (p.tile_tokens == 8) {
        if (blocks > 2 * units) {
            warps = 4;
            split = 2;
        } else if (blocks > units) {
            split = 1;
        } else if (2 * blocks > units) {
            stages = 3;
        } else if (4 * blocks > units) {
            stages = 3;
            split = 2;
        } else {
            warps = 4;
            split = 8;
        }
    } else if (p.tile_tokens == 16) {
        if (blocks > units) {
            if (tuned) {
                rows = 128;
                warps = 4;
                split = 2;
            }
        } else if (2 * blocks <= units) {
            split = 2;
            if (4 * blocks <= units) {
                warps = 4;
                split = 8;
            }
        }
    } else {
        if (blocks > units) {
            warps = 4;
            split = 2;
        } else if (2 * blocks <= units) {
            split = 2;
            if (4 * blocks <= units) {
                warps = 4;
                split = 4;
            }
        }
    }
    if (blocks > 8 * units) {
        // Many waves: small blocks, so that several share a multiprocessor and hide each other's ends.
        warps = 4;
        stages = 2;
        rows = 64;
        split = 1;
    }
    if (!tuned) {
        stages = 2;
        if (p.tile_tokens == 32) warps = 4;
    }
    while (split > 1 && split * warps > steps) split /= 2;
    if (warps == 8 && steps < 8) {
        warps = 4;
        stages = 2;
    }
    if (facts.capability < 90) split = 1;
    if (p.warps == 0) p.warps = warps;
    if (p.stages == 0) p.stages = stages;
    if (p.rows == 0) p.rows = rows;
    if (p.split == 0) p.split = split;
}

}  // namespace small
}  // namespace kt
