// stream.cuh for bfloat16 activations; a file of its own so that builds can run side by side.
#include "stream_launch.cuh"

namespace kt {

int run_stream_bf16(const kt_matmul& p, const DeviceFacts& facts, cudaStream_t stream) {
    return stream::by_format<__nv_bfloat16>(p, facts, stream);
}

}  // namespace kt
