// Launching stream.cuh: by format, tile and share of K.
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
    if (p.tile_tokens == 64 && p.rows == 256) return launch<T, kFormat, 64, 2>(p, facts, stream);
    if (p.tile_tokens == 128 && p.rows == 256) return launch<T, kFormat, 128, 2>(p, facts, stream);
    if (p.tile_tokens == 64 && p.rows == 128) return launch<T, kFormat, 64, 1>(p, facts, stream);
#ifdef KT_FEW
    if (p.tile_tokens == 64 && p.rows == 384) return launch<T, kFormat, 64, 3>(p, facts, stream);
    if (p.tile_tokens == 48 && p.rows == 384) return launch<T, kFormat, 48, 3>(p, facts, stream);
    if (p.tile_tokens == 48 && p.rows == 512) return launch<T, kFormat, 48, 4>(p, facts, stream);
    if (p.tile_tokens == 48 && p.rows == 256) return launch<T, kFormat, 48, 2>(p, facts, stream);
#endif
    return KT_BAD_TILE;
}

template <typename T>
int by_format(const kt_matmul& p, const DeviceFacts& facts, cudaStream_t stream) {
    switch (p.format) {
        case KT_W4_G128:
            return by_shape<T, KT_W4_G128>(p, facts, stream);
#ifndef KT_FEW
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
#endif
        default:
            return KT_BAD_FORMAT;
    }
}

}  // namespace stream
}  // namespace kt
