// What happens to a finished sum: bias, activation, rounding.
#pragma once

#include "kt_ops_cuda.h"
#include "ptx.cuh"

namespace kt {

__device__ __forceinline__ float activate(int kind, float gate, float up, float alpha,
                                          float limit) {
    switch (kind) {
        case KT_GELU:
            return 0.5f * gate * (1.f + erff(gate * 0.70710678118654752f)) * up;
        case KT_GELU_TANH: {
            const float inner = 0.79788456080286536f * (gate + 0.044715f * gate * gate * gate);
            return 0.5f * gate * (1.f + tanhf(inner)) * up;
        }
        case KT_SWIGLU_OAI: {
            // Comparisons rather than fminf, so that NaN stays NaN.
            gate = gate > limit ? limit : gate;
            up = up > limit ? limit : (up < -limit ? -limit : up);
            return (up + 1.f) * gate / (1.f + __expf(-alpha * gate));
        }
        case KT_RELU:
            return (gate < 0.f ? 0.f : gate) * up;
        default:
            return gate / (1.f + __expf(-gate)) * up;
    }
}

template <typename T>
__device__ __forceinline__ T narrow(float value);
template <>
__device__ __forceinline__ half narrow<half>(float value) {
    return __float2half_rn(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
    return __float2bfloat16_rn(value);
}

}  // namespace kt
