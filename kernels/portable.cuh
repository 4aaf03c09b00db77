// Every difference between the vendors, and nothing else: threads and arithmetic here, memory in portable_memory.cuh.
//
// One source is compiled by NVRTC for NVIDIA, by HIPRTC or clang for AMD, and by clang as host C++ for the
// simulator. It includes no vendor header: what it needs is here, as intrinsics, builtins or a line of PTX.
//
// The host passes CAUSEWAY_WAVE_SIZE (threads in lockstep, 32 or 64; NVIDIA may leave it out). The simulator alone
// defines CAUSEWAY_HOST_SIMULATION, CAUSEWAY_ASYNC_COPY for devices that have such copies, and CAUSEWAY_UNITS_FLUSH for
// those whose matrix units flush subnormal numbers.
//
// Blocks are one-dimensional. Shared memory is the launch's dynamic shared memory, addressed by byte offset:
// no target then sees a generic pointer to it, which some AMD targets reject.
#pragma once

#if defined(CAUSEWAY_HOST_SIMULATION)
#define CAUSEWAY_HOST 1
#elif defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define CAUSEWAY_NVIDIA 1
#elif defined(__AMDGCN__)
#define CAUSEWAY_AMD 1
#else
#error "not a CUDA, HIP or simulator compilation"
#endif

#if !defined(CAUSEWAY_WAVE_SIZE)
#if defined(CAUSEWAY_NVIDIA)
#define CAUSEWAY_WAVE_SIZE 32
#else
#error "define CAUSEWAY_WAVE_SIZE as 32 or 64"
#endif
#endif

// CAUSEWAY_KERNEL(threads, blocks): an entry point launched with exactly `threads` threads per block. At least `blocks` blocks
// should fit on one multiprocessor, which caps registers (AMD compilers choose by themselves).
// CAUSEWAY_CLUSTER_KERNEL(threads, blocks, cluster), only where HAS_CLUSTERS: likewise, and each `cluster` neighbouring blocks run
// at the same time and reach each other's shared memory.
// CAUSEWAY_MFMA_KERNEL(threads): likewise, for CDNA's matrix units. With two waves on a SIMD a wave has at most 256 registers. The
// compiler then lets matrix instructions work on ordinary registers, where otherwise it moves sums to accumulation registers and
// back in each step.
#if defined(CAUSEWAY_NVIDIA)
#define CAUSEWAY_DEVICE __device__ __forceinline__
#define CAUSEWAY_KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define CAUSEWAY_CLUSTER_KERNEL(threads, blocks, cluster) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) __cluster_dims__(cluster, 1, 1)
#elif defined(CAUSEWAY_AMD)
#define CAUSEWAY_DEVICE inline __attribute__((device, always_inline))
#define CAUSEWAY_KERNEL(threads, blocks) \
    extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(threads, threads))) void
#define CAUSEWAY_MFMA_KERNEL(threads) CAUSEWAY_KERNEL(threads, 2) __attribute__((amdgpu_waves_per_eu(2)))
#else
// The simulator's compiler does not optimise, and takes three times as long where it has to inline everything.
#define CAUSEWAY_DEVICE inline
// Several kernels share a translation unit in the simulator, each in a namespace of its own.
#define CAUSEWAY_KERNEL(threads, blocks) void
#define CAUSEWAY_CLUSTER_KERNEL(threads, blocks, cluster) void
#define CAUSEWAY_MFMA_KERNEL(threads) void
#endif

namespace causeway {

using i32 = int;
using i64 = long long;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr u32 WAVE_SIZE = CAUSEWAY_WAVE_SIZE;
static_assert(WAVE_SIZE == 32 || WAVE_SIZE == 64, "waves have 32 or 64 threads");

// Storage types of the 16-bit floats; arithmetic is done in f32.
struct f16 { u16 bits; };
struct bf16 { u16 bits; };

// Bytes that move in one access.
template <int Bytes> struct Packet {
    static_assert(Bytes == 2 || Bytes == 4 || Bytes == 8 || Bytes == 16, "accesses are 2, 4, 8 or 16 bytes wide");
    u32 word[Bytes < 4 ? 1 : Bytes / 4];
};

}  // namespace causeway

// ---- the simulator's side ------------------------------------------------------------------------------------------
#if defined(CAUSEWAY_HOST)
// Implemented by whoever runs the kernels on a CPU. `site` is the source line of the call: threads that meet at
// different sites have diverged.
namespace causeway_simulator {
struct Site {
    const char* file;
    int line;
};
unsigned thread_index();
unsigned block_index(int axis);
unsigned char* shared_memory();
void meet_block(Site site);
void meet_wave(Site site);
unsigned exchange(unsigned value, unsigned source_lane, Site site);
unsigned exchange_within(unsigned value, unsigned lanes, unsigned distance, Site site);
unsigned votes(bool predicate, Site site);
void start_copy(unsigned shared_offset, const void* from, unsigned count, unsigned bytes);  // zeros after count
void close_copies();
void await_copies(unsigned pending);
void open_mailbox(unsigned mailbox, Site site);
void await_mailboxes(unsigned mailbox, unsigned bytes, bool announces, Site site);
void send(unsigned block, unsigned shared_offset, unsigned value, unsigned mailbox, Site site);
void receive(unsigned mailbox, Site site);
}  // namespace causeway_simulator
#define CAUSEWAY_SITE causeway_simulator::Site site = {__builtin_FILE(), __builtin_LINE()}
#define CAUSEWAY_AND_SITE , CAUSEWAY_SITE
#define CAUSEWAY_PASS_SITE , site
#else
#define CAUSEWAY_SITE
#define CAUSEWAY_AND_SITE
#define CAUSEWAY_PASS_SITE
#endif

// TMA's swizzle counts from multiples of 1024 bytes.
#if defined(CAUSEWAY_NVIDIA)
extern __shared__ __align__(1024) unsigned char causeway_shared_memory[];
#elif defined(CAUSEWAY_AMD)
extern __attribute__((shared)) __attribute__((aligned(16))) unsigned char causeway_shared_memory[];
#endif

namespace causeway {

// ---- where a thread is ---------------------------------------------------------------------------------------------

CAUSEWAY_DEVICE u32 thread_index() {
#if defined(CAUSEWAY_NVIDIA)
    return threadIdx.x;
#elif defined(CAUSEWAY_AMD)
    return __builtin_amdgcn_workitem_id_x();
#else
    return causeway_simulator::thread_index();
#endif
}

// Position of the block along axis 0 (x), 1 (y) or 2 (z) of the grid.
template <int Axis> CAUSEWAY_DEVICE u32 block_index() {
#if defined(CAUSEWAY_NVIDIA)
    return Axis == 0 ? blockIdx.x : Axis == 1 ? blockIdx.y : blockIdx.z;
#elif defined(CAUSEWAY_AMD)
    return Axis == 0   ? __builtin_amdgcn_workgroup_id_x()
           : Axis == 1 ? __builtin_amdgcn_workgroup_id_y()
                       : __builtin_amdgcn_workgroup_id_z();
#else
    return causeway_simulator::block_index(Axis);
#endif
}

// The thread within its wave.
CAUSEWAY_DEVICE u32 lane_index() {
#if defined(CAUSEWAY_AMD)
#if CAUSEWAY_WAVE_SIZE == 64
    return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
#else
    return __builtin_amdgcn_mbcnt_lo(~0u, 0);
#endif
#else
    return thread_index() & (WAVE_SIZE - 1);
#endif
}

// ---- barriers and exchange within a wave ---------------------------------------------------------------------------

// All threads of the block meet; their shared-memory and global writes before are visible to the block after.
CAUSEWAY_DEVICE void block_barrier(CAUSEWAY_SITE) {
#if defined(CAUSEWAY_NVIDIA)
    __syncthreads();
#elif defined(CAUSEWAY_AMD)
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
#else
    causeway_simulator::meet_block(site);
#endif
}

// All threads of the wave meet; shared-memory writes before are visible to the wave after.
CAUSEWAY_DEVICE void wave_barrier(CAUSEWAY_SITE) {
#if defined(CAUSEWAY_NVIDIA)
    __syncwarp();
#elif defined(CAUSEWAY_AMD)
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
#else
    causeway_simulator::meet_wave(site);
#endif
}

// Programmatic dependent launch: the first statement of an entry that may begin while the launch before it on its stream still
// runs. Its blocks become resident and wait here until that launch is over and its writes are visible. Then the next launch may
// begin.
CAUSEWAY_DEVICE void grid_dependency_wait() {
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The value that lane `source` of the wave passes; every lane of the wave takes part.
CAUSEWAY_DEVICE u32 shuffle(u32 value, u32 source CAUSEWAY_AND_SITE) {
#if defined(CAUSEWAY_NVIDIA)
    return __shfl_sync(0xffffffffu, value, source);
#elif defined(CAUSEWAY_AMD)
    return (u32)__builtin_amdgcn_ds_bpermute((int)(source << 2), (int)value);
#else
    return causeway_simulator::exchange(value, source, site);
#endif
}

// The value that the lane whose number differs in the bits of `distance` passes; every lane of the wave takes part.
CAUSEWAY_DEVICE u32 shuffle_xor(u32 value, u32 distance CAUSEWAY_AND_SITE) {
#if defined(CAUSEWAY_NVIDIA)
    return __shfl_xor_sync(0xffffffffu, value, (int)distance);
#elif defined(CAUSEWAY_AMD)
    return shuffle(value, lane_index() ^ distance);
#else
    return causeway_simulator::exchange(value, lane_index() ^ distance, site);
#endif
}

// The value that lane `source` of the group of `Lanes` lanes passes to which a lane belongs; every lane of the wave takes part.
template <int Lanes> CAUSEWAY_DEVICE u32 shuffle_from(u32 value, u32 source CAUSEWAY_AND_SITE) {
#if defined(CAUSEWAY_NVIDIA)
    return __shfl_sync(0xffffffffu, value, source, Lanes);
#elif defined(CAUSEWAY_AMD)
    return shuffle(value, (lane_index() & ~(Lanes - 1u)) | source);
#else
    return causeway_simulator::exchange(value, (lane_index() & ~(Lanes - 1u)) | source, site);
#endif
}

// The value that the lane whose number differs in the bits of `distance` passes. Lanes exchange in groups of `Lanes`, a power of two,
// that lie beside each other; every lane of a group takes part, and groups of a wave need not meet. All calls in one kernel use the
// same `Lanes`.
template <int Lanes> CAUSEWAY_DEVICE u32 shuffle_within(u32 value, u32 distance CAUSEWAY_AND_SITE) {
#if defined(CAUSEWAY_NVIDIA)
    constexpr u32 GROUP = 0xffffffffu >> (32 - Lanes);
    return __shfl_xor_sync(GROUP << (lane_index() & ~(Lanes - 1u)), value, (int)distance);
#elif defined(CAUSEWAY_AMD)
    return (u32)__builtin_amdgcn_ds_bpermute((int)((lane_index() ^ distance) << 2), (int)value);
#else
    return causeway_simulator::exchange_within(value, Lanes, distance, site);
#endif
}

// Lanes of the wave where the predicate holds; every lane takes part, and every lane gets the count.
CAUSEWAY_DEVICE u32 wave_count(bool predicate CAUSEWAY_AND_SITE) {
#if defined(CAUSEWAY_NVIDIA)
    return __popc(__ballot_sync(0xffffffffu, predicate));
#elif defined(CAUSEWAY_AMD)
#if !__has_builtin(__builtin_amdgcn_ballot_w64)
    // Compilers of ROCm 5. 33 is "not equal"; the mask has 64 bits in both wave sizes.
    return __builtin_popcountll(__builtin_amdgcn_uicmp(predicate, 0u, 33));
#elif CAUSEWAY_WAVE_SIZE == 64
    return __builtin_popcountll(__builtin_amdgcn_ballot_w64(predicate));
#else
    return __builtin_popcount(__builtin_amdgcn_ballot_w32(predicate));
#endif
#else
    return causeway_simulator::votes(predicate, site);
#endif
}

// True in every lane when the predicate holds in every lane; every lane of the wave takes part.
CAUSEWAY_DEVICE bool wave_all(bool predicate CAUSEWAY_AND_SITE) {
#if defined(CAUSEWAY_NVIDIA)
    return __all_sync(0xffffffffu, predicate);
#elif defined(CAUSEWAY_AMD)
    return wave_count(!predicate) == 0;
#else
    return causeway_simulator::votes(!predicate, site) == 0;
#endif
}

// ---- bits ----------------------------------------------------------------------------------------------------------

CAUSEWAY_DEVICE float as_float(u32 bits) {
#if defined(CAUSEWAY_NVIDIA)
    return __uint_as_float(bits);
#else
    return __builtin_bit_cast(float, bits);
#endif
}

CAUSEWAY_DEVICE u32 as_bits(float value) {
#if defined(CAUSEWAY_NVIDIA)
    return __float_as_uint(value);
#else
    return __builtin_bit_cast(u32, value);
#endif
}

// Position of the lowest bit that is set; there is one.
CAUSEWAY_DEVICE u32 lowest_bit(u32 bits) {
#if defined(CAUSEWAY_NVIDIA)
    return (u32)__ffs((int)bits) - 1;
#else
    return (u32)__builtin_ctz(bits);
#endif
}

CAUSEWAY_DEVICE float shuffle(float value, u32 source CAUSEWAY_AND_SITE) {
    return as_float(shuffle(as_bits(value), source CAUSEWAY_PASS_SITE));
}

CAUSEWAY_DEVICE float shuffle_xor(float value, u32 distance CAUSEWAY_AND_SITE) {
    return as_float(shuffle_xor(as_bits(value), distance CAUSEWAY_PASS_SITE));
}

// The same value, with its origin hidden from the compiler. So the compiler keeps it in registers and does not compute it again
// at every use, and what is derived from it is not shared with what was derived before. The compiler also forgets that an
// address is one of global memory, but load() and async_copy() say so.
CAUSEWAY_DEVICE const char* opaque(const char* address) {
#if defined(CAUSEWAY_NVIDIA)
    asm("" : "+l"(address));
#endif
    return address;
}

CAUSEWAY_DEVICE float opaque(float value) {
#if defined(CAUSEWAY_NVIDIA)
    asm("" : "+f"(value));
#endif
    return value;
}

CAUSEWAY_DEVICE i32 opaque(i32 value) {
#if defined(CAUSEWAY_NVIDIA)
    asm("" : "+r"(value));
#endif
    return value;
}

// True: the ends of a row are stored as 4-byte words, and as single elements only where half of a word belongs to another row. AMD's
// compilers move a packet of which one word is chosen at run time to private memory, so there single elements are stored. The simulator
// covers both: true with waves of 32, false with 64.
#if defined(CAUSEWAY_NVIDIA)
constexpr bool WIDE_ENDS = true;
#elif defined(CAUSEWAY_AMD)
constexpr bool WIDE_ENDS = false;
#else
constexpr bool WIDE_ENDS = WAVE_SIZE == 32;
#endif

// ---- arithmetic ----------------------------------------------------------------------------------------------------

// a · b in one instruction, where the compiler would extend both first.
CAUSEWAY_DEVICE i64 multiply_wide(i32 a, i32 b) {
#if defined(CAUSEWAY_NVIDIA)
    i64 product;
    asm("mul.wide.s32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
#else
    return (i64)a * b;
#endif
}

// a + b, never contracted to a fused multiply-add. Whether a compiler contracts may depend on the code around it, and then two
// kernels would have different bits.
CAUSEWAY_DEVICE float add_rn(float a, float b) {
#if defined(CAUSEWAY_NVIDIA)
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
#else
#pragma clang fp contract(off)
    return a + b;
#endif
}

// a · b, rounded, whatever it is added to.
CAUSEWAY_DEVICE float multiply_rn(float a, float b) {
#if defined(CAUSEWAY_NVIDIA)
    return __fmul_rn(a, b);
#else
#pragma clang fp contract(off)
    return a * b;
#endif
}

// a · b + c, rounded once.
CAUSEWAY_DEVICE float multiply_add(float a, float b, float c) {
#if defined(CAUSEWAY_NVIDIA)
    return __fmaf_rn(a, b, c);
#else
// Clang may join two of these, of halves, into one v_dot2, which rounds otherwise and flushes subnormal numbers.
#pragma clang fp contract(off)
    return __builtin_fmaf(a, b, c);
#endif
}

// x, limited to the bounds; a NaN becomes one of them.
CAUSEWAY_DEVICE float clamp(float x, float low, float high) {
#if defined(CAUSEWAY_NVIDIA)
    return fminf(fmaxf(x, low), high);
#else
    return __builtin_fminf(__builtin_fmaxf(x, low), high);
#endif
}

// 2^x within 2 units in the last place; subnormal results may be zero.
CAUSEWAY_DEVICE float exp2_fast(float x) {
#if defined(CAUSEWAY_NVIDIA)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#elif defined(CAUSEWAY_AMD) && __has_builtin(__builtin_amdgcn_exp2f)
    return __builtin_amdgcn_exp2f(x);
#else
    return __builtin_exp2f(x);
#endif
}

// 1/x within 1 unit in the last place; subnormal results are zero, which silu_f32 relies on: AMD's instruction has none.
CAUSEWAY_DEVICE float reciprocal_fast(float x) {
#if defined(CAUSEWAY_NVIDIA)
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#elif defined(CAUSEWAY_AMD)
    return __builtin_amdgcn_rcpf(x);
#else
    const float y = 1.0f / x;
    return __builtin_fabsf(y) < 0x1p-126f ? 0.0f * y : y;
#endif
}

// 1/√x within 2 units in the last place, for a normal x; 0 for infinity.
CAUSEWAY_DEVICE float inverse_root(float x) {
#if defined(CAUSEWAY_NVIDIA)
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#elif defined(CAUSEWAY_AMD)
    return __builtin_amdgcn_rsqf(x);
#else
    return 1.0f / __builtin_sqrtf(x);
#endif
}

// ---- f16 and bf16 --------------------------------------------------------------------------------------------------
// Two values in one word, the first in the low half. To f32 it is exact; back, it rounds to nearest, ties to even.

CAUSEWAY_DEVICE float low_f16(u32 pair) {
#if defined(CAUSEWAY_NVIDIA)
    float y;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(y) : "r"(pair));
    return y;
#else
    return (float)__builtin_bit_cast(_Float16, (u16)pair);
#endif
}

CAUSEWAY_DEVICE float high_f16(u32 pair) {
#if defined(CAUSEWAY_NVIDIA)
    float y;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high; }" : "=f"(y) : "r"(pair));
    return y;
#else
    return (float)__builtin_bit_cast(_Float16, (u16)(pair >> 16));
#endif
}

CAUSEWAY_DEVICE float low_bf16(u32 pair) { return as_float(pair << 16); }
CAUSEWAY_DEVICE float high_bf16(u32 pair) { return as_float(pair & 0xffff0000u); }

CAUSEWAY_DEVICE u32 pair_f16(float low, float high) {
#if defined(CAUSEWAY_NVIDIA)
    u32 pair;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
    asm("{ .reg .b16 a, b; cvt.rn.f16.f32 a, %1; cvt.rn.f16.f32 b, %2; mov.b32 %0, {a, b}; }"
        : "=r"(pair)
        : "f"(low), "f"(high));
#endif
    return pair;
#else
    const u32 low_bits = __builtin_bit_cast(u16, (_Float16)low), high_bits = __builtin_bit_cast(u16, (_Float16)high);
#if defined(CAUSEWAY_AMD)
    // Clang would take v_pack_b32_f16, of which AMD does not say that it keeps subnormal numbers.
    return __builtin_amdgcn_perm(high_bits, low_bits, 0x05040100u);
#else
    return low_bits | high_bits << 16;
#endif
#endif
}

#if !defined(CAUSEWAY_NVIDIA) || __CUDA_ARCH__ < 800
namespace detail {
// The bits of a bf16, in the upper half of the word; the lower half is undefined.
CAUSEWAY_DEVICE u32 round_bf16(float value) {
    const u32 bits = as_bits(value);
    const u32 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    return value != value ? bits | 0x00400000u : rounded;
}
}  // namespace detail
#endif

CAUSEWAY_DEVICE u32 pair_bf16(float low, float high) {
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 800
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return detail::round_bf16(low) >> 16 | (detail::round_bf16(high) & 0xffff0000u);
#endif
}

}  // namespace causeway
