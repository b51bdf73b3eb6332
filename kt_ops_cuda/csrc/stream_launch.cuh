// Launching stream.cuh for one dtype and format: by tile.
#pragma once

#include "stream.cuh"
#include "stream_choice.h"

namespace kt {
namespace stream {

template <typename T, int kFormat, int kTokens, int kGroups>
int launch(const kt_matmul& p, const DeviceFacts& facts, cudaStream_t stream) {
    using S = Stage<kFormat, kTokens, kGroups>;
    static_assert(S::count >= 2, "a ring of one stage stands still");
    return launch_kernel(stream_matmul<T, kFormat, kTokens, kGroups>,
                         dim3(grid_blocks(p, facts)), S::threads, S::count * S::bytes + 1024, p, 1,
                         p.dependent != 0, facts, stream);
}

template <typename T, int kFormat>
int by_shape(const kt_matmul& p, const DeviceFacts& facts, cudaStream_t stream) {
    if (p.tile_tokens > 64) return launch<T, kFormat, 128, 2>(p, facts, stream);
    return p.rows == 384 ? launch<T, kFormat, 48, 3>(p, facts, stream)
                         : launch<T, kFormat, 64, 2>(p, facts, stream);
}

}  // namespace stream
}  // namespace kt
