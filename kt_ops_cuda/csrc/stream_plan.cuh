// How tiles become pieces of work for a persistent grid, and who sums the pieces of a tile up.
//
// split >= 1: each tile is cut along K into that many pieces, and block b takes pieces b, b + grid, ...
// With more than one, all pieces of the launch run at once (one a block), and each finishes an equal
// share of the tile's tokens.
// split < 0: all K steps of all tiles form one line, cut into as many equal lengths as there are blocks
// ("stream-K"). A block that starts inside a tile sends its sums to the block that has the tile's start,
// which finishes it. It does so last, when those after it have long sent theirs.
#pragma once

#include "matmul.cuh"

namespace kt {
namespace stream {

constexpr int kProducers = 128;  // threads
constexpr int kMostParts = 16;   // of one tile when split >= 1

struct Work {
    int index;  // of the tile
    int first;  // K step
    int count;
    int part;   // of the tile's parts; with split < 0 0 finishes
    int parts;
};

struct Schedule {
    int split, steps, cursor, end;

    __device__ __forceinline__ Schedule(int split, int tiles, int steps)
        : split(split), steps(steps) {
        if (split < 0) {
            cursor = share(tiles * steps, blockIdx.x);
            end = share(tiles * steps, blockIdx.x + 1);
        } else {
            cursor = blockIdx.x;
            end = tiles * split;
        }
    }

    // Where block `index` starts on the line of K steps.
    __device__ __forceinline__ static int share(int units, int index) {
        return static_cast<int>(static_cast<int64_t>(units) * index / gridDim.x);
    }

    __device__ __forceinline__ bool next(Work& work) {
        if (cursor >= end) return false;
        if (split < 0) {
            work.index = cursor / steps;
            work.first = cursor - work.index * steps;
            work.count = end - cursor < steps - work.first ? end - cursor : steps - work.first;
            work.part = work.first == 0 ? 0 : 1;
            work.parts = work.count == steps ? 1 : 2;
            cursor += work.count;
        } else {
            work.index = cursor / split;
            work.part = cursor - work.index * split;
            work.parts = split;
            work.first = steps * work.part / split;
            work.count = steps * (work.part + 1) / split - work.first;
            cursor += gridDim.x;
        }
        return true;
    }
};

}  // namespace stream
}  // namespace kt
