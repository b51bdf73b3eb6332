// Thin wrappers over the PTX this library is built from. Nothing here knows about formats or shapes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace kt {

// Bulk copies, clusters and dependent launches exist from compute capability 9.0 on.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define KT_HOPPER 1
#else
#define KT_HOPPER 0
#endif

// wgmma needs machine code for exactly 9.0a.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define KT_WGMMA 1
#else
#define KT_WGMMA 0
#endif

__device__ __forceinline__ uint32_t smem_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarriers -------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine (and to the cluster).
__device__ __forceinline__ void barrier_init_fence() {
#if KT_HOPPER
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier)
                 : "memory");
}

// The arrival happens once all cp.async this thread issued before have landed.
__device__ __forceinline__ void barrier_arrive_on_copies(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done = 0;
    while (!done) {
#if KT_HOPPER
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
#else
        // 8.x knows the test only; it may be asked again at once.
        asm volatile(
            "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
#endif
    }
}

#if KT_HOPPER
__device__ __forceinline__ void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(
                     barrier),
                 "r"(bytes)
                 : "memory");
}

// Contiguous bytes from global to shared memory by the copy engine; 16-byte granular.
__device__ __forceinline__ void copy_bulk(uint32_t destination, const void* source, uint32_t bytes,
                                          uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            destination),
        "l"(source), "r"(bytes), "r"(barrier)
        : "memory");
}
#endif

// ---- 16-byte asynchronous copies ---------------------------------------------------------------

// Copies `bytes` (0..16) and fills the rest of the 16 with zeros.
__device__ __forceinline__ void copy_16(uint32_t destination, const void* source, uint32_t bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
                 "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int kPending>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Orders this thread's ordinary shared-memory writes before reads by the tensor cores.
__device__ __forceinline__ void fence_async_proxy() {
#if KT_HOPPER
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// ---- dependent launches --------------------------------------------------------------------------

// Blocks until the kernel before this one in the stream has finished and its writes are visible.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if KT_HOPPER
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel's blocks start; they wait in turn before they touch anything we write.
__device__ __forceinline__ void let_next_kernel_start() {
#if KT_HOPPER
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A block barrier for the first `kThreads` threads only.
template <int kThreads>
__device__ __forceinline__ void consumers_sync() {
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// ---- clusters ------------------------------------------------------------------------------------

__device__ __forceinline__ void cluster_sync() {
#if KT_HOPPER
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// The two halves of a cluster barrier that orders nothing but execution (and barriers made visible
// by barrier_init_fence). The release form costs a fence of the whole device.
__device__ __forceinline__ void cluster_arrive_relaxed() {
#if KT_HOPPER
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if KT_HOPPER
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t rank) {
    uint32_t remote = address;
#if KT_HOPPER
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
#endif
    return remote;
}

__device__ __forceinline__ float4 cluster_load(uint32_t address, uint32_t rank) {
    float4 value = make_float4(0.f, 0.f, 0.f, 0.f);
#if KT_HOPPER
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(cluster_address(address, rank))
                 : "memory");
#endif
    return value;
}

// Stores 16 bytes into another block's shared memory and counts them on that block's barrier.
__device__ __forceinline__ void cluster_store(uint32_t remote, float4 value,
                                              uint32_t remote_barrier) {
#if KT_HOPPER
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
            remote),
        "r"(__float_as_uint(value.x)), "r"(__float_as_uint(value.y)),
        "r"(__float_as_uint(value.z)), "r"(__float_as_uint(value.w)), "r"(remote_barrier)
        : "memory");
#endif
}

// ---- matrix instructions ---------------------------------------------------------------------------

__device__ __forceinline__ void load_matrix_x4(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// d (16 x 8, float) += a (16 x 16) * b (16 x 8).
template <typename T>
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1);

template <>
__device__ __forceinline__ void mma_16x8x16<half>(float (&d)[4], const uint32_t (&a)[4],
                                                  uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma_16x8x16<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4],
                                                           uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace kt
