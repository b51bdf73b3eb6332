// wgmma m64nNk16: A from registers, B from shared memory (K-major, 128-byte swizzle), float sums.
// One specialisation per N and dtype. The macros build the long register lists, eight at a time.
#pragma once

#include "ptx.cuh"

namespace kt {

__device__ __forceinline__ void wgmma_fence() {
#if KT_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void wgmma_commit() {
#if KT_WGMMA
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
#if KT_WGMMA
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}

// Moves registers between warpgroups: each of a block's warpgroups calls one of the two, once.
template <int kCount>
__device__ __forceinline__ void take_registers() {
#if KT_WGMMA
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

template <int kCount>
__device__ __forceinline__ void give_registers() {
#if KT_WGMMA
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

// Keeps the compiler from computing an operand later than here: a wgmma's registers must be written
// before the fence, or ptxas runs every wgmma to its end before the next.
__device__ __forceinline__ void pin(uint32_t (&a)[4]) {
    asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

// Rows of 128 bytes, groups of 8 rows 1024 bytes apart, bytes swizzled within such a group.
__device__ __forceinline__ uint64_t swizzled_operand(uint32_t address) {
    return static_cast<uint64_t>((address & 0x3FFFFu) >> 4) | (1ull << 16) |
           (static_cast<uint64_t>(1024 >> 4) << 32) | (1ull << 62);
}

// "%0, ... %7" and so on: the sums of N columns, N / 2 of them.
#define KT_P8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define KT_P16 KT_P8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define KT_P24 KT_P16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define KT_P32 KT_P24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define KT_P40 KT_P32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define KT_P48 KT_P40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define KT_P56 KT_P48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define KT_P64 KT_P56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define KT_P72 KT_P64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define KT_P80 KT_P72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define KT_P88 KT_P80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define KT_P96 KT_P88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define KT_P104 KT_P96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define KT_P112 KT_P104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define KT_P120 KT_P112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define KT_P128 KT_P120 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define KT_D8(i)                                                                             \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define KT_D16(i) KT_D8(i), KT_D8(i + 8)
#define KT_D24(i) KT_D16(i), KT_D8(i + 16)
#define KT_D32(i) KT_D16(i), KT_D16(i + 16)
#define KT_D48(i) KT_D32(i), KT_D16(i + 32)
#define KT_D64(i) KT_D32(i), KT_D32(i + 32)
#define KT_D128(i) KT_D64(i), KT_D64(i + 64)

template <typename T, int kN>
struct Wgmma;

#if KT_WGMMA
#define KT_WGMMA_RUN(n, type, sums, operands)                                                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " {" KT_P##sums \
                 "}, " operands ", 1, 1, 1, 0;"                                                \
                 : KT_D##sums(0)                                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#else
#define KT_WGMMA_RUN(n, type, sums, operands)
#endif

#define KT_WGMMA_CASE(n, cpp, type, sums, operands)                                            \
    template <>                                                                                \
    struct Wgmma<cpp, n> {                                                                     \
        __device__ __forceinline__ static void run(float (&d)[sums], const uint32_t (&a)[4],   \
                                                   uint64_t b) {                               \
            KT_WGMMA_RUN(n, type, sums, operands)                                              \
        }                                                                                      \
    };
#define KT_WGMMA_N(n, sums, operands)                \
    KT_WGMMA_CASE(n, half, f16, sums, operands)      \
    KT_WGMMA_CASE(n, __nv_bfloat16, bf16, sums, operands)

KT_WGMMA_N(16, 8, "{%8, %9, %10, %11}, %12")
KT_WGMMA_N(32, 16, "{%16, %17, %18, %19}, %20")
KT_WGMMA_N(48, 24, "{%24, %25, %26, %27}, %28")
KT_WGMMA_N(64, 32, "{%32, %33, %34, %35}, %36")
KT_WGMMA_N(96, 48, "{%48, %49, %50, %51}, %52")
KT_WGMMA_N(128, 64, "{%64, %65, %66, %67}, %68")
KT_WGMMA_N(256, 128, "{%128, %129, %130, %131}, %132")

#undef KT_WGMMA_N
#undef KT_WGMMA_CASE
#undef KT_WGMMA_RUN

}  // namespace kt
