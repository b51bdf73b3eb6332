// Shared by the two matmul kernels: which rows a block works on, and the sum over split K.
#pragma once

#include "epilogue.cuh"
#include "formats.cuh"

namespace kt {

struct Tile {
    int expert;
    int start;
    int count;
};

// Whether even the weights' place comes from the kernel before: rows are grouped by expert, and the
// groups are that kernel's own work.
__device__ __forceinline__ bool waits_for_groups(const kt_matmul& p) {
    return (p.tiles != nullptr || p.ids != nullptr) && p.early == 0;
}

// The tile of this block, or count 0 when there is nothing to do.
__device__ __forceinline__ Tile block_tile(const kt_matmul& p, int index, int tokens_per_tile) {
    if (p.ids != nullptr) {
        const int64_t expert = p.ids[index];
        return {static_cast<int>(expert), index, expert >= 0 && expert < p.experts ? 1 : 0};
    }
    if (p.tiles != nullptr) {
        if (index >= *p.tile_count) return {0, 0, 0};
        const int4 tile = reinterpret_cast<const int4*>(p.tiles)[index];
        return {tile.x, tile.y, tile.z};
    }
    const int start = index * tokens_per_tile;
    const int left = p.tokens - start;
    return {0, start, left < tokens_per_tile ? left : tokens_per_tile};
}

constexpr uint32_t kNoRow = 0xFFFFFFFFu;

// Row of x for a tile's first token; the others follow unless `rows_in` names each.
__device__ __forceinline__ int first_row(const kt_matmul& p, const Tile& tile) {
    return p.ids_per_token > 0 ? tile.start / p.ids_per_token : tile.start;
}

__device__ __forceinline__ int target_row(const kt_matmul& p, int position) {
    return p.rows_out == nullptr ? position : p.rows_out[position];
}

// What a thread finishes at once: four neighbouring rows of the packed weights for one token, and the
// four rows 32 further on when they are the gates' other halves.
struct Unit {
    float4 sum;
    float4 up;
};

__device__ __forceinline__ void add(float4& to, const float4& other) {
    to.x += other.x;
    to.y += other.y;
    to.z += other.z;
    to.w += other.w;
}

// Applies bias and activation to rows packed_row .. + 3 and writes them.
template <typename T>
__device__ __forceinline__ void write_unit(const kt_matmul& p, const Tile& tile, int token,
                                           int packed_row, const Unit& unit) {
    const bool gated = p.activation != KT_NONE;
    float values[4] = {unit.sum.x, unit.sum.y, unit.sum.z, unit.sum.w};
    float others[4] = {unit.up.x, unit.up.y, unit.up.z, unit.up.w};
    int column = packed_row;
    int columns = p.out_features;
    if (p.bias != nullptr) {
        const float* bias = p.bias + tile.expert * p.bias_stride + packed_row;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            values[j] += bias[j];
            if (gated) others[j] += bias[j + 32];
        }
    }
    if (gated) {
        column = packed_row / 64 * 32 + packed_row % 32;
        columns /= 2;
        // A row of y is written to its end (a multiple of 8): the product after this one reads it all.
        if (p.columns > 0) columns = p.columns;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            values[j] = activate(p.activation, values[j], others[j], p.alpha, p.limit);
        }
    }
    T narrowed[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) narrowed[j] = narrow<T>(values[j]);
    T* out = static_cast<T*>(p.y) +
             static_cast<int64_t>(target_row(p, tile.start + token)) * p.y_stride + column;
    if (column + 4 <= columns && (p.y_stride & 3) == 0) {
        *reinterpret_cast<uint2*>(out) = *reinterpret_cast<const uint2*>(narrowed);
    } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (column + j < columns) out[j] = narrowed[j];
        }
    }
}

// Units of a tile with `kRows` rows: per token kRows / 4, or half as many when gated.
template <int kRows>
__device__ __forceinline__ int units_shift(const kt_matmul& p) {
    static_assert(kRows == 64 || kRows == 128, "units are found by shifts");
    return (kRows == 128 ? 5 : 4) - (p.activation != KT_NONE ? 1 : 0);
}

// First row of a unit within the tile: gates are the first 32 rows of each 64.
__device__ __forceinline__ int unit_row(const kt_matmul& p, int quad) {
    return p.activation != KT_NONE ? quad / 8 * 64 + quad % 8 * 4 : quad * 4;
}

}  // namespace kt
