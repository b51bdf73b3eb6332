// The product of activations and a matrix stored as Q8_0. C linkage, raw pointers and a stream: nothing
// here knows torch. Pointers and sizes are checked by the caller, in Python.

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kValues = 32, kBytes = 34, kWarps = 4;

// One warp computes one output of one token; lane i holds value i of each block.
__global__ void multiply(const float *x, const uint8_t *w, float *y, int64_t in, int64_t out)
{
  const int64_t j = blockIdx.x * int64_t{kWarps} + threadIdx.y, i = blockIdx.y;
  const int lane = threadIdx.x;
  if (j >= out) return;
  const uint8_t *row = w + j * (in / kValues * kBytes);
  float sum = 0;
  for (int64_t k = lane; k < in; k += kValues, row += kBytes) {
    const __half scale = *reinterpret_cast<const __half *>(row);  // 34 bytes: aligned to two
    sum += __half2float(scale) * static_cast<float>(static_cast<int8_t>(row[2 + lane])) * x[i * in + k];
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
  if (lane == 0) y[i * out + j] = sum;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// The interface's version; a library left over from another one is then refused.
EXPORT int kt_plugin_template_abi(void) { return 1; }

// y[n][out] = x[n][in] * w[out][in] on `stream`; in is a multiple of 32, n at most 65535. Returns CUDA's
// error of the launch, 0 for none.
EXPORT int kt_plugin_template_linear(
  const float *x, const uint8_t *w, float *y, int64_t n, int64_t in, int64_t out, void *stream)
{
  if (n == 0 || out == 0) return 0;
  const dim3 grid(static_cast<unsigned>((out + kWarps - 1) / kWarps), static_cast<unsigned>(n));
  multiply<<<grid, dim3(32, kWarps), 0, static_cast<cudaStream_t>(stream)>>>(x, w, y, in, out);
  return static_cast<int>(cudaGetLastError());
}
