// small_m.cuh for float16 activations; a file of its own so that builds can run side by side.
#include "small_m.cuh"

namespace kt {

int run_small_m_f16(const kt_matmul& p, const DeviceFacts& facts, cudaStream_t stream) {
    return small::by_format<half>(p, facts, stream);
}

}  // namespace kt
