// Hopper's own instructions (sm_90a), one thin wrapper each: barriers in shared memory (mbarrier), the tensor memory accelerator
// (TMA), tensor cores for a warpgroup (wgmma), clusters.
//
// Addresses of shared memory are the 32-bit ones of its own window. No other target includes this file, and the
// simulator does not run what it holds.
#pragma once
#include "portable_memory.cuh"

namespace causeway {

// A driver's description of a matrix in memory: CUtensorMap, encoded by the host.
struct alignas(64) TensorMap { u64 opaque[16]; };

CAUSEWAY_DEVICE u32 shared_window() { return (u32)__cvta_generic_to_shared(causeway_shared_memory); }

// ---- barriers in shared memory -------------------------------------------------------------------------------------
// A phase ends when all arrivals and all announced bytes are in. A wait with parity 1 on a fresh barrier returns at once: it is
// for the phase before the first.

CAUSEWAY_DEVICE void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers known to TMA and to the cluster.
CAUSEWAY_DEVICE void barrier_init_publish() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

CAUSEWAY_DEVICE void barrier_arrive_expecting(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

CAUSEWAY_DEVICE void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the same barrier of block `rank` of the cluster. The default forms of arrival and wait are enough, since no data
// written by threads passes through this handshake. Release and acquire at cluster scope would flush caches each time, which cost
// 20 to 30 % of a large product.
CAUSEWAY_DEVICE void barrier_arrive_at(u32 barrier, u32 rank) {
    asm volatile("{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
                 "mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

CAUSEWAY_DEVICE void barrier_wait(u32 barrier, u32 parity) {
    u32 done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (done == 0);
}

// ---- TMA -----------------------------------------------------------------------------------------------------------
// Coordinates are elements; parts of a box that lie outside the matrix read as zeros and are not written.

CAUSEWAY_DEVICE void prefetch(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// Copies a box to shared memory; its bytes count towards the barrier.
CAUSEWAY_DEVICE void box_load(u32 to, const TensorMap* map, u32 barrier, i32 inner, i32 outer) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 ::"r"(to), "l"(map), "r"(barrier), "r"(inner), "r"(outer)
                 : "memory");
}

// The same into every block of the cluster whose bit is set, at the same place, counting at each one's own barrier.
CAUSEWAY_DEVICE void box_load_to(u16 blocks, u32 to, const TensorMap* map, u32 barrier, i32 inner, i32 outer) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(inner), "r"(outer), "h"(blocks)
                 : "memory");
}

CAUSEWAY_DEVICE void box_store(const TensorMap* map, u32 from, i32 inner, i32 outer) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from),
                 "r"(inner), "r"(outer)
                 : "memory");
}

CAUSEWAY_DEVICE void box_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until at most `Pending` of this thread's groups of stores still have to read shared memory.
template <int Pending> CAUSEWAY_DEVICE void box_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

// Makes this thread's writes to shared memory visible to TMA and the tensor cores.
CAUSEWAY_DEVICE void shared_writes_to_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- tensor cores --------------------------------------------------------------------------------------------------

CAUSEWAY_DEVICE void matrix_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
CAUSEWAY_DEVICE void matrix_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending> CAUSEWAY_DEVICE void matrix_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// The descriptor of a tile in shared memory for wgmma: 128-byte swizzle (1 in bits 62 and 63), base offset 0 since tiles begin at
// multiples of 1024 bytes.
//
//   reduction-major    rows of 64 terms, 128 bytes each. From 8 rows to the next 8 it is 1024 bytes, from 16 terms to the
//                      next 16 it is 32 bytes, within the row. The other distance is not used.
//   row-major          blocks of 64 rows (or columns of the result) by 64 terms, with a line of 128 bytes for each term. From 8
//                      terms to the next 8 it is 1024 bytes, from 16 to the next 16 it is 2048, from block to block 8192.
template <bool RowMajor> CAUSEWAY_DEVICE u64 matrix_descriptor(u32 address) {
    constexpr u64 BLOCK = RowMajor ? 8192 : 16, EIGHT = 1024;
    return (u64)((address & 0x3ffff) >> 4) | BLOCK >> 4 << 16 | EIGHT >> 4 << 32 | 1ull << 62;
}

// What a descriptor grows by from 16 terms to the next 16.
template <bool RowMajor> constexpr u64 NEXT_TERMS = (RowMajor ? 2048 : 32) >> 4;

// The operands of n / 2 sums of a thread, eight at a time, and what the instruction calls them.
#define CAUSEWAY_EIGHT_SUMS(i)                                                                                    \
    "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), "+f"(sums[i + 5]), \
        "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define CAUSEWAY_SUMS_8 CAUSEWAY_EIGHT_SUMS(0)
#define CAUSEWAY_SUMS_16 CAUSEWAY_SUMS_8, CAUSEWAY_EIGHT_SUMS(8)
#define CAUSEWAY_SUMS_24 CAUSEWAY_SUMS_16, CAUSEWAY_EIGHT_SUMS(16)
#define CAUSEWAY_SUMS_32 CAUSEWAY_SUMS_24, CAUSEWAY_EIGHT_SUMS(24)
#define CAUSEWAY_SUMS_40 CAUSEWAY_SUMS_32, CAUSEWAY_EIGHT_SUMS(32)
#define CAUSEWAY_SUMS_48 CAUSEWAY_SUMS_40, CAUSEWAY_EIGHT_SUMS(40)
#define CAUSEWAY_SUMS_56 CAUSEWAY_SUMS_48, CAUSEWAY_EIGHT_SUMS(48)
#define CAUSEWAY_SUMS_64 CAUSEWAY_SUMS_56, CAUSEWAY_EIGHT_SUMS(56)
#define CAUSEWAY_SUMS_72 CAUSEWAY_SUMS_64, CAUSEWAY_EIGHT_SUMS(64)
#define CAUSEWAY_SUMS_80 CAUSEWAY_SUMS_72, CAUSEWAY_EIGHT_SUMS(72)
#define CAUSEWAY_SUMS_88 CAUSEWAY_SUMS_80, CAUSEWAY_EIGHT_SUMS(80)
#define CAUSEWAY_SUMS_96 CAUSEWAY_SUMS_88, CAUSEWAY_EIGHT_SUMS(88)
#define CAUSEWAY_SUMS_104 CAUSEWAY_SUMS_96, CAUSEWAY_EIGHT_SUMS(96)
#define CAUSEWAY_SUMS_112 CAUSEWAY_SUMS_104, CAUSEWAY_EIGHT_SUMS(104)
#define CAUSEWAY_SUMS_120 CAUSEWAY_SUMS_112, CAUSEWAY_EIGHT_SUMS(112)
#define CAUSEWAY_SUMS_128 CAUSEWAY_SUMS_120, CAUSEWAY_EIGHT_SUMS(120)
#define CAUSEWAY_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define CAUSEWAY_NAMES_16 CAUSEWAY_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define CAUSEWAY_NAMES_24 CAUSEWAY_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define CAUSEWAY_NAMES_32 CAUSEWAY_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define CAUSEWAY_NAMES_40 CAUSEWAY_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define CAUSEWAY_NAMES_48 CAUSEWAY_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define CAUSEWAY_NAMES_56 CAUSEWAY_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define CAUSEWAY_NAMES_64 CAUSEWAY_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define CAUSEWAY_NAMES_72 CAUSEWAY_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define CAUSEWAY_NAMES_80 CAUSEWAY_NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define CAUSEWAY_NAMES_88 CAUSEWAY_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define CAUSEWAY_NAMES_96 CAUSEWAY_NAMES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define CAUSEWAY_NAMES_104 CAUSEWAY_NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define CAUSEWAY_NAMES_112 CAUSEWAY_NAMES_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define CAUSEWAY_NAMES_120 CAUSEWAY_NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define CAUSEWAY_NAMES_128 CAUSEWAY_NAMES_120 ", %120, %121, %122, %123, %124, %125, %126, %127"

// The product of a tile that is `columns` wide, which has `half` as many sums; then the numbers of the operands after them.
#define CAUSEWAY_WGMMA(columns, half, left, right, add, left_row_major, right_row_major)                        \
    if constexpr (Columns == columns) {                                                                         \
        if constexpr (Bf16) CAUSEWAY_WGMMA_OF("bf16", columns, half, left, right, add, left_row_major, right_row_major); \
        else CAUSEWAY_WGMMA_OF("f16", columns, half, left, right, add, left_row_major, right_row_major);        \
    }
#define CAUSEWAY_WGMMA_OF(type, columns, half, left, right, add, left_row_major, right_row_major)                     \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #add ", 0; wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." \
                 type "." type " {" CAUSEWAY_NAMES_##half "}, %" #left ", %" #right ", p, 1, 1, %" #left_row_major    \
                 ", %" #right_row_major "; }"                                                                         \
                 : CAUSEWAY_SUMS_##half                                                                               \
                 : "l"(left_tile), "l"(right_tile), "r"(accumulate), "n"((int)LeftRowMajor), "n"((int)RightRowMajor))

// sums += left · right over 16 terms, for 64 rows and Columns columns; the sums begin at zero unless `accumulate`. The
// warpgroup issues it together and may not touch the sums before matrix_wait.
template <int Columns, bool Bf16, bool LeftRowMajor, bool RightRowMajor>
CAUSEWAY_DEVICE void matrix_multiply_add(float (&sums)[Columns / 2], u64 left_tile, u64 right_tile, int accumulate) {
    static_assert(Columns % 16 == 0 && Columns <= 256 && Columns != 208, "the widths of the planner's tiles");
    CAUSEWAY_WGMMA(16, 8, 8, 9, 10, 11, 12)
    CAUSEWAY_WGMMA(32, 16, 16, 17, 18, 19, 20)
    CAUSEWAY_WGMMA(48, 24, 24, 25, 26, 27, 28)
    CAUSEWAY_WGMMA(64, 32, 32, 33, 34, 35, 36)
    CAUSEWAY_WGMMA(80, 40, 40, 41, 42, 43, 44)
    CAUSEWAY_WGMMA(96, 48, 48, 49, 50, 51, 52)
    CAUSEWAY_WGMMA(112, 56, 56, 57, 58, 59, 60)
    CAUSEWAY_WGMMA(128, 64, 64, 65, 66, 67, 68)
    CAUSEWAY_WGMMA(144, 72, 72, 73, 74, 75, 76)
    CAUSEWAY_WGMMA(160, 80, 80, 81, 82, 83, 84)
    CAUSEWAY_WGMMA(176, 88, 88, 89, 90, 91, 92)
    CAUSEWAY_WGMMA(192, 96, 96, 97, 98, 99, 100)
    CAUSEWAY_WGMMA(224, 112, 112, 113, 114, 115, 116)
    CAUSEWAY_WGMMA(240, 120, 120, 121, 122, 123, 124)
    CAUSEWAY_WGMMA(256, 128, 128, 129, 130, 131, 132)
}

// Stores four 8 × 8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8; of column l % 8, if they are
// stored transposed.
template <bool Transposed> CAUSEWAY_DEVICE void matrix_store(u32 address, u32 a, u32 b, u32 c, u32 d) {
    if constexpr (Transposed) {
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c),
                     "r"(d)
                     : "memory");
    } else {
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
                     : "memory");
    }
}

// ---- clusters and launches -----------------------------------------------------------------------------------------

CAUSEWAY_DEVICE u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Orders no memory: what barrier_init_publish has published needs none.
CAUSEWAY_DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
CAUSEWAY_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
CAUSEWAY_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Four floats of the shared memory of block `rank` of the cluster.
CAUSEWAY_DEVICE float4 load_of_block(u32 address, u32 rank) {
    float4 v;
    asm volatile("{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %4, %5; "
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote]; }"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address), "r"(rank)
                 : "memory");
    return v;
}

// Threads of the block that take part in named barrier `id` meet.
CAUSEWAY_DEVICE void named_barrier(u32 id, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Counts warps, of any blocks, as they finish a piece of work. True in all lanes of the last one to arrive. Through load_mutable it
// sees everything that the others wrote before they arrived. The counter is 0 before the first arrival and again after the
// last.
CAUSEWAY_DEVICE bool last_warp_to_arrive(u32* counter, u32 warps) {
    u32 before = 0;
    wave_barrier();
    if (lane_index() == 0) before = count_arrival(counter, warps);
    // A vote: the compiler knows that its result is the same in all lanes. It does not order memory.
    const bool is_last = __any_sync(0xffffffffu, lane_index() == 0 && before == warps - 1);
    wave_barrier();
    return is_last;
}

}  // namespace causeway
