// Which build of stream_format.cu serves a call.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "launch.h"

namespace kt {
namespace stream {

template <typename T, int kFormat>
int by_shape(const kt_matmul& p, const DeviceFacts& facts, cudaStream_t stream);

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

}  // namespace stream

int run_stream_f16(const kt_matmul& p, const DeviceFacts& facts, cudaStream_t stream) {
    return stream::by_format<half>(p, facts, stream);
}

int run_stream_bf16(const kt_matmul& p, const DeviceFacts& facts, cudaStream_t stream) {
    return stream::by_format<__nv_bfloat16>(p, facts, stream);
}

}  // namespace kt
