// Packed chunks back to fp16 or bf16 rows, for a library's matmul on large batches.
#include "launch.h"
#include "matmul.cuh"

namespace kt {
namespace {

// A block of four warps turns one chunk into 64 x 128 values: each warp a tile of 16 rows, whose lanes
// hold pairs of columns, by way of shared memory so that rows are written 256 bytes at a time.
template <typename T, int kFormat>
__global__ void __launch_bounds__(128) dequantize(const __grid_constant__ kt_dequantize p) {
    using C = Chunk<kFormat>;
    using R = Raw<T, kProductBits<kFormat>>;
    constexpr int kPitch = kChunkDepth + 8;
    __shared__ __align__(16) T rows[kChunkRows][kPitch];
    const int m = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int g = lane / 4;
    const int t = lane % 4;
    const int steps = (p.in_features + kChunkDepth - 1) / kChunkDepth;
    const uint8_t* chunk = static_cast<const uint8_t*>(p.weights) +
                           (static_cast<int64_t>(blockIdx.y) * steps + blockIdx.x) * C::bytes;
    uint32_t high[C::high_words];
    load_high<kFormat>(high, chunk, m, lane);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        const RowScales scales = load_scales<kFormat>(chunk, m, k / C::steps_per_group, g);
        uint32_t words[4];
        *reinterpret_cast<uint4*>(words) = *reinterpret_cast<const uint4*>(
            chunk + (k / C::steps_per_piece * 4 + m) * kPieceBytes + lane * 16);
        uint32_t a[4];
        raw_operand<T, kFormat>(a, &words[k % C::steps_per_piece * C::words_per_step], high, k);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int h = i & 1;
            const float unscale = h == 0 ? R::unscale0 : R::unscale1;
            const T* q = reinterpret_cast<const T*>(&a[i]);
            const int column = k * 16 + (i >> 1) * 8 + t * 2;
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const float value = static_cast<float>(q[e]) * unscale - R::bias;
                rows[m * 16 + h * 8 + g][column + e] =
                    narrow<T>(fmaf(value, scales.scale[h], scales.offset[h]));
            }
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kChunkRows * kChunkDepth / 8; i += 128) {
        const int row = blockIdx.y * kChunkRows + i / 16;
        const int column = blockIdx.x * kChunkDepth + i % 16 * 8;
        if (row < p.out_features && column < p.in_features) {  // in_features is a multiple of 8
            *reinterpret_cast<uint4*>(static_cast<T*>(p.y) +
                                      static_cast<int64_t>(row) * p.in_features + column) =
                *reinterpret_cast<const uint4*>(&rows[i / 16][i % 16 * 8]);
        }
    }
}

template <typename T, int kFormat>
int launch(const kt_dequantize& p, const DeviceFacts& facts, cudaStream_t stream) {
    const dim3 grid((p.in_features + kChunkDepth - 1) / kChunkDepth,
                    (p.out_features + kChunkRows - 1) / kChunkRows);
    return launch_kernel(dequantize<T, kFormat>, grid, 128, 0, p, 1, false, facts, stream);
}

template <typename T>
int by_format(const kt_dequantize& p, const DeviceFacts& facts, cudaStream_t stream) {
    switch (p.format) {
#define KT_CASE(format) \
    case format:        \
        return launch<T, format>(p, facts, stream);
        KT_CASE(KT_W4_G128)
        KT_CASE(KT_W4_G128_OFFSET)
        KT_CASE(KT_W4_G32_OFFSET)
        KT_CASE(KT_Q4_K)
        KT_CASE(KT_W8_G128)
        KT_CASE(KT_W8_G32)
        KT_CASE(KT_Q5_K)
        KT_CASE(KT_Q6_K)
        KT_CASE(KT_IQ4_XS)
        KT_CASE(KT_MXFP4)
#undef KT_CASE
        default:
            return KT_BAD_FORMAT;
    }
}

}  // namespace
}  // namespace kt

extern "C" int kt_dequantize_run(const kt_dequantize* arguments, void* stream) {
    const kt_dequantize& p = *arguments;
    if (p.in_features <= 0 || p.in_features % 8 != 0 || p.out_features <= 0) return KT_BAD_SHAPE;
    kt::DeviceFacts facts;
    const int error = kt::device_facts(p.device, &facts);
    if (error != 0) return error;
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (p.dtype) {
        case KT_F16:
            return kt::by_format<half>(p, facts, queue);
        case KT_BF16:
            return kt::by_format<__nv_bfloat16>(p, facts, queue);
        default:
            return KT_BAD_DTYPE;
    }
}
