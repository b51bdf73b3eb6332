// stream.cuh for one dtype (KT_STREAM_TYPE) and one format (KT_STREAM_FORMAT), both given by the build, so
// that many builds run side by side.
#include "stream_launch.cuh"

namespace kt {
namespace stream {

template int by_shape<KT_STREAM_TYPE, KT_STREAM_FORMAT>(const kt_matmul&, const DeviceFacts&,
                                                        cudaStream_t);

}  // namespace stream
}  // namespace kt
