// Eight 16-bit values as one 16-byte load, and sums across a warp.
#pragma once

#include "epilogue.cuh"

namespace kt {

template <typename T>
__device__ __forceinline__ void widen_8(const uint4& words, float (&to)[8]) {
    const T* values = reinterpret_cast<const T*>(&words);
#pragma unroll
    for (int j = 0; j < 8; ++j) to[j] = static_cast<float>(values[j]);
}

template <typename T>
__device__ __forceinline__ void load_8(const T* from, float (&to)[8]) {
    widen_8<T>(*reinterpret_cast<const uint4*>(from), to);
}

template <typename T>
__device__ __forceinline__ void store_8(T* to, const float (&from)[8]) {
    uint4 words;
    T* values = reinterpret_cast<T*>(&words);
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = narrow<T>(from[j]);
    *reinterpret_cast<uint4*>(to) = words;
}

template <int kLanes>
__device__ __forceinline__ float lanes_sum(float value) {
#pragma unroll
    for (int d = kLanes / 2; d > 0; d /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, d);
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, d));
    return value;
}

}  // namespace kt
