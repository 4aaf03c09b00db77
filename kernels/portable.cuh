// Every difference between the vendors, and nothing else.
//
// One source is compiled by NVRTC for NVIDIA, by HIPRTC or clang for AMD, and by clang as host C++ for the
// simulator. It includes no vendor header: what it needs is here, as intrinsics, builtins or a line of PTX.
//
// The host passes two macros: CAUSEWAY_WAVE_SIZE (threads in lockstep, 32 or 64; NVIDIA may leave it out) and, for
// the simulator only, CAUSEWAY_HOST_SIMULATION.
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

// CAUSEWAY_CLUSTER_KERNEL(threads, blocks, cluster), only where HAS_CLUSTERS: likewise, and `cluster` blocks that follow
// each other run at the same time and reach each other's shared memory.
// CAUSEWAY_KERNEL(threads, blocks): an entry point launched with exactly `threads` threads per block, of which at
// least `blocks` blocks should fit on one multiprocessor (a cap on registers; AMD compilers choose by themselves).
#if defined(CAUSEWAY_NVIDIA)
#define CAUSEWAY_DEVICE __device__ __forceinline__
#define CAUSEWAY_KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define CAUSEWAY_CLUSTER_KERNEL(threads, blocks, cluster) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) __cluster_dims__(cluster, 1, 1)
#elif defined(CAUSEWAY_AMD)
#define CAUSEWAY_DEVICE inline __attribute__((device, always_inline))
#define CAUSEWAY_KERNEL(threads, blocks) \
    extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(threads, threads))) void
#else
#define CAUSEWAY_DEVICE inline __attribute__((always_inline))
#define CAUSEWAY_KERNEL(threads, blocks) extern "C" void
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
unsigned thread_index();
unsigned block_index(int axis);
unsigned char* shared_memory();
void block_barrier(int site);
void wave_barrier(int site);
unsigned shuffle(unsigned value, unsigned source_lane, int site);
unsigned count(bool predicate, int site);
}  // namespace causeway_simulator
#define CAUSEWAY_SITE int site = __builtin_LINE()
#define CAUSEWAY_AND_SITE , int site = __builtin_LINE()
#else
#define CAUSEWAY_SITE
#define CAUSEWAY_AND_SITE
#endif

#if defined(CAUSEWAY_NVIDIA)
extern __shared__ __align__(16) unsigned char causeway_shared_memory[];
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
    causeway_simulator::block_barrier(site);
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
    causeway_simulator::wave_barrier(site);
#endif
}

// The value that lane `source` of the wave passes; every lane of the wave takes part.
CAUSEWAY_DEVICE u32 shuffle(u32 value, u32 source CAUSEWAY_AND_SITE) {
#if defined(CAUSEWAY_NVIDIA)
    return __shfl_sync(0xffffffffu, value, source);
#elif defined(CAUSEWAY_AMD)
    return (u32)__builtin_amdgcn_ds_bpermute((int)(source << 2), (int)value);
#else
    return causeway_simulator::shuffle(value, source, site);
#endif
}

// Lanes of the wave where the predicate holds; every lane takes part, and every lane gets the count.
CAUSEWAY_DEVICE u32 wave_count(bool predicate CAUSEWAY_AND_SITE) {
#if defined(CAUSEWAY_NVIDIA)
    return __popc(__ballot_sync(0xffffffffu, predicate));
#elif defined(CAUSEWAY_AMD)
#if CAUSEWAY_WAVE_SIZE == 64
    return __builtin_popcountll(__builtin_amdgcn_ballot_w64(predicate));
#else
    return __builtin_popcount(__builtin_amdgcn_ballot_w32(predicate));
#endif
#else
    return causeway_simulator::count(predicate, site);
#endif
}

// True in every lane when the predicate holds in every lane; every lane of the wave takes part.
CAUSEWAY_DEVICE bool wave_all(bool predicate CAUSEWAY_AND_SITE) {
#if defined(CAUSEWAY_NVIDIA)
    return __all_sync(0xffffffffu, predicate);
#elif defined(CAUSEWAY_AMD)
    return wave_count(!predicate) == 0;
#else
    return causeway_simulator::count(!predicate, site) == 0;
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
#if defined(CAUSEWAY_HOST)
    return as_float(shuffle(as_bits(value), source, site));
#else
    return as_float(shuffle(as_bits(value), source));
#endif
}

// The same value, of which the compiler no longer knows where it came from. It then keeps the value in registers
// where it would rather compute it again at every use. An address is for load() and async_copy(), which say that they
// access global memory.
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

// ---- global memory -------------------------------------------------------------------------------------------------

#if !defined(CAUSEWAY_NVIDIA)
namespace detail {
template <int Bytes> struct Vector;
template <> struct Vector<2> { typedef u16 type; };
template <> struct Vector<4> { typedef u32 type; };
template <> struct Vector<8> { typedef u32 type __attribute__((ext_vector_type(2))); };
template <> struct Vector<16> { typedef u32 type __attribute__((ext_vector_type(4))); };

template <int Bytes> CAUSEWAY_DEVICE Packet<Bytes> packet(typename Vector<Bytes>::type v) {
    Packet<Bytes> p;
    if constexpr (Bytes <= 4) {
        p.word[0] = v;
    } else {
        for (int i = 0; i < Bytes / 4; ++i) p.word[i] = v[i];
    }
    return p;
}

template <int Bytes> CAUSEWAY_DEVICE typename Vector<Bytes>::type vector(const Packet<Bytes>& p) {
    typename Vector<Bytes>::type v;
    if constexpr (Bytes <= 4) {
        v = (typename Vector<Bytes>::type)p.word[0];
    } else {
        for (int i = 0; i < Bytes / 4; ++i) v[i] = p.word[i];
    }
    return v;
}
}  // namespace detail
#endif

// Global addresses reach the kernel inside an argument block, so AMD compilers have to be told what they are.
#if defined(CAUSEWAY_AMD)
#define CAUSEWAY_GLOBAL __attribute__((address_space(1)))
#define CAUSEWAY_SHARED __attribute__((address_space(3)))
#else
#define CAUSEWAY_GLOBAL
#define CAUSEWAY_SHARED
#endif

// Reads memory that no thread of this launch writes. The address is a multiple of Bytes.
template <int Bytes> CAUSEWAY_DEVICE Packet<Bytes> load(const void* address) {
#if defined(CAUSEWAY_NVIDIA)
    Packet<Bytes> p;
    if constexpr (Bytes == 16) {
        uint4 v = __ldg((const uint4*)address);
        p.word[0] = v.x, p.word[1] = v.y, p.word[2] = v.z, p.word[3] = v.w;
    } else if constexpr (Bytes == 8) {
        uint2 v = __ldg((const uint2*)address);
        p.word[0] = v.x, p.word[1] = v.y;
    } else if constexpr (Bytes == 4) {
        p.word[0] = __ldg((const u32*)address);
    } else {
        p.word[0] = __ldg((const u16*)address);
    }
    return p;
#else
    return detail::packet<Bytes>(*(const CAUSEWAY_GLOBAL typename detail::Vector<Bytes>::type*)address);
#endif
}

// Reads memory that this thread, or a thread ordered before it, may write in this launch.
template <int Bytes> CAUSEWAY_DEVICE Packet<Bytes> load_mutable(const void* address) {
#if defined(CAUSEWAY_NVIDIA)
    Packet<Bytes> p;
    if constexpr (Bytes == 16) {
        uint4 v = __ldcg((const uint4*)address);
        p.word[0] = v.x, p.word[1] = v.y, p.word[2] = v.z, p.word[3] = v.w;
    } else if constexpr (Bytes == 8) {
        uint2 v = __ldcg((const uint2*)address);
        p.word[0] = v.x, p.word[1] = v.y;
    } else if constexpr (Bytes == 4) {
        p.word[0] = __ldcg((const u32*)address);
    } else {
        p.word[0] = __ldcg((const u16*)address);
    }
    return p;
#else
    return detail::packet<Bytes>(*(const CAUSEWAY_GLOBAL typename detail::Vector<Bytes>::type*)address);
#endif
}

// As load, where `wanted`; else zeros, and the address is not touched. Loads are issued in the order in which they are
// written, and what is made of them follows: behind a branch, the first would be waited for before the second starts.
template <int Bytes> CAUSEWAY_DEVICE Packet<Bytes> load_if(bool wanted, const void* address) {
#if defined(CAUSEWAY_NVIDIA)
    const u32 flag = wanted;
    Packet<Bytes> p;
    if constexpr (Bytes == 16) {
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %4, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0; "
                     "@p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%5]; }"
                     : "=&r"(p.word[0]), "=&r"(p.word[1]), "=&r"(p.word[2]), "=&r"(p.word[3])
                     : "r"(flag), "l"(address));
    } else if constexpr (Bytes == 8) {
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.b32 %0, 0; mov.b32 %1, 0; "
                     "@p ld.global.nc.v2.b32 {%0, %1}, [%3]; }"
                     : "=&r"(p.word[0]), "=&r"(p.word[1])
                     : "r"(flag), "l"(address));
    } else if constexpr (Bytes == 4) {
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; mov.b32 %0, 0; @p ld.global.nc.b32 %0, [%2]; }"
                     : "=&r"(p.word[0])
                     : "r"(flag), "l"(address));
    } else {
        asm volatile("{ .reg .pred p; .reg .b16 v; setp.ne.u32 p, %1, 0; mov.b16 v, 0; @p ld.global.nc.b16 v, [%2]; "
                     "cvt.u32.u16 %0, v; }"
                     : "=&r"(p.word[0])
                     : "r"(flag), "l"(address));
    }
    return p;
#else
    if (wanted) return load<Bytes>(address);
    Packet<Bytes> zero;
    for (int i = 0; i < (Bytes < 4 ? 1 : Bytes / 4); ++i) zero.word[i] = 0;
    return zero;
#endif
}

// The address is a multiple of Bytes.
template <int Bytes> CAUSEWAY_DEVICE void store(void* address, const Packet<Bytes>& p) {
#if defined(CAUSEWAY_NVIDIA)
    if constexpr (Bytes == 16) {
        *(uint4*)address = make_uint4(p.word[0], p.word[1], p.word[2], p.word[3]);
    } else if constexpr (Bytes == 8) {
        *(uint2*)address = make_uint2(p.word[0], p.word[1]);
    } else if constexpr (Bytes == 4) {
        *(u32*)address = p.word[0];
    } else {
        *(u16*)address = (u16)p.word[0];
    }
#else
    *(CAUSEWAY_GLOBAL typename detail::Vector<Bytes>::type*)address = detail::vector<Bytes>(p);
#endif
}

// As store, where `wanted`. The value is computed either way: a branch around the store would draw the arithmetic in and
// break the schedule.
template <int Bytes> CAUSEWAY_DEVICE void store_if(bool wanted, void* address, const Packet<Bytes>& p) {
#if defined(CAUSEWAY_NVIDIA)
    const u32 flag = wanted;
    if constexpr (Bytes == 16) {
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.v4.b32 [%1], {%2, %3, %4, %5}; }" ::"r"(flag),
                     "l"(address), "r"(p.word[0]), "r"(p.word[1]), "r"(p.word[2]), "r"(p.word[3])
                     : "memory");
    } else if constexpr (Bytes == 8) {
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.v2.b32 [%1], {%2, %3}; }" ::"r"(flag),
                     "l"(address), "r"(p.word[0]), "r"(p.word[1])
                     : "memory");
    } else if constexpr (Bytes == 4) {
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.b32 [%1], %2; }" ::"r"(flag), "l"(address),
                     "r"(p.word[0])
                     : "memory");
    } else {
        asm volatile("{ .reg .pred p; .reg .b16 low; setp.ne.u32 p, %0, 0; cvt.u16.u32 low, %2; "
                     "@p st.global.b16 [%1], low; }" ::"r"(flag),
                     "l"(address), "r"(p.word[0])
                     : "memory");
    }
#else
    if (wanted) store<Bytes>(address, p);
#endif
}

// ---- shared memory -------------------------------------------------------------------------------------------------

#if defined(CAUSEWAY_HOST)
CAUSEWAY_DEVICE unsigned char* shared_address(u32 offset) { return causeway_simulator::shared_memory() + offset; }
#else
CAUSEWAY_DEVICE CAUSEWAY_SHARED unsigned char* shared_address(u32 offset) {
    return (CAUSEWAY_SHARED unsigned char*)causeway_shared_memory + offset;
}
#endif

template <int Bytes> CAUSEWAY_DEVICE Packet<Bytes> load_shared(u32 offset) {
#if defined(CAUSEWAY_NVIDIA)
    Packet<Bytes> p;
    const void* address = shared_address(offset);
    if constexpr (Bytes == 16) {
        uint4 v = *(const uint4*)address;
        p.word[0] = v.x, p.word[1] = v.y, p.word[2] = v.z, p.word[3] = v.w;
    } else if constexpr (Bytes == 8) {
        uint2 v = *(const uint2*)address;
        p.word[0] = v.x, p.word[1] = v.y;
    } else if constexpr (Bytes == 4) {
        p.word[0] = *(const u32*)address;
    } else {
        p.word[0] = *(const u16*)address;
    }
    return p;
#else
    return detail::packet<Bytes>(*(const CAUSEWAY_SHARED typename detail::Vector<Bytes>::type*)shared_address(offset));
#endif
}

template <int Bytes> CAUSEWAY_DEVICE void store_shared(u32 offset, const Packet<Bytes>& p) {
#if defined(CAUSEWAY_NVIDIA)
    store<Bytes>(shared_address(offset), p);
#else
    *(CAUSEWAY_SHARED typename detail::Vector<Bytes>::type*)shared_address(offset) = detail::vector<Bytes>(p);
#endif
}

// ---- copies that run ahead -----------------------------------------------------------------------------------------

// NVIDIA's from sm_80 copy from global to shared memory without passing registers. Where there is no such
// instruction, PrefetchRing (vector.cuh) keeps what runs ahead in registers.
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 800
constexpr bool HAS_ASYNC_COPY = true;
#else
constexpr bool HAS_ASYNC_COPY = false;
#endif

// Starts a copy of Bytes (4, 8 or 16) to shared memory, or of zeros when not `valid`; the address must be legal then
// too, but is not read. Only where HAS_ASYNC_COPY.
template <int Bytes> CAUSEWAY_DEVICE void async_copy(u32 shared_offset, const void* address, bool valid) {
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 800
    const u32 to = (u32)__cvta_generic_to_shared(causeway_shared_memory) + shared_offset;
    const u32 bytes = valid ? Bytes : 0;
    if constexpr (Bytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(address), "r"(bytes) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(address), "n"(Bytes), "r"(bytes)
                     : "memory");
    }
#endif
}

// Closes the group of copies that this thread has started since the last call.
CAUSEWAY_DEVICE void async_commit() {
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `Pending` of this thread's groups are still under way; it then sees its own copies.
template <int Pending> CAUSEWAY_DEVICE void async_wait() {
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#endif
}

// ---- arithmetic ----------------------------------------------------------------------------------------------------

// a · b + c, rounded once.
CAUSEWAY_DEVICE float multiply_add(float a, float b, float c) {
#if defined(CAUSEWAY_NVIDIA)
    return __fmaf_rn(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
}

// x, or the bound that it lies beyond; NaN becomes one of the bounds.
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
#elif defined(CAUSEWAY_AMD)
    return __builtin_amdgcn_exp2f(x);
#else
    return __builtin_exp2f(x);
#endif
}

// 1/x within 1 unit in the last place; subnormal results may be zero.
CAUSEWAY_DEVICE float reciprocal_fast(float x) {
#if defined(CAUSEWAY_NVIDIA)
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#elif defined(CAUSEWAY_AMD)
    return __builtin_amdgcn_rcpf(x);
#else
    return 1.0f / x;
#endif
}

// tanh(x) with a relative error up to 2^-11 where the hardware has it (NVIDIA), else through exp2_fast.
CAUSEWAY_DEVICE float tanh_fast(float x) {
#if defined(CAUSEWAY_NVIDIA)
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return multiply_add(-2.0f, reciprocal_fast(1.0f + exp2_fast(x * 2.88539008177793f)), 1.0f);
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
    return (u32)__builtin_bit_cast(u16, (_Float16)low) | (u32)__builtin_bit_cast(u16, (_Float16)high) << 16;
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

// ---- blocks that run together --------------------------------------------------------------------------------------

// NVIDIA's from sm_90 start the blocks of a cluster at the same time.
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 900
constexpr bool HAS_CLUSTERS = true;
#else
constexpr bool HAS_CLUSTERS = false;
#endif

// A mailbox: 8 bytes of a block's shared memory, at a multiple of 8, that count the bytes which the blocks of its cluster
// send it. All threads of all blocks call, in this order:
//
//   open_mailbox(mailbox, bytes)    before anything else: `bytes` will be sent to this block
//   await_mailboxes()               before the first send: all mailboxes are open
//   send(block, offset, value, mailbox)    writes to the shared memory of block `block` of the cluster
//   receive(mailbox)                returns when all bytes have arrived and can be read
//
// No fence and no further barrier: nothing waits for what a block has still under way to global memory. Only where
// HAS_CLUSTERS.
CAUSEWAY_DEVICE void open_mailbox(u32 mailbox, u32 bytes) {
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 900
    if (thread_index() == 0) {
        const u32 at = (u32)__cvta_generic_to_shared(causeway_shared_memory) + mailbox;
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
    }
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}

CAUSEWAY_DEVICE void await_mailboxes() {
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

CAUSEWAY_DEVICE void send(u32 block, u32 offset, u32 value, u32 mailbox) {
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 900
    const u32 base = (u32)__cvta_generic_to_shared(causeway_shared_memory);
    asm volatile("{ .reg .b32 to, box; mapa.shared::cluster.u32 to, %0, %2; mapa.shared::cluster.u32 box, %1, %2; "
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %3, [box]; }" ::"r"(base + offset),
                 "r"(base + mailbox), "r"(block), "r"(value)
                 : "memory");
#endif
}

CAUSEWAY_DEVICE void receive(u32 mailbox) {
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 900
    const u32 at = (u32)__cvta_generic_to_shared(causeway_shared_memory) + mailbox;
    asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0; "
                 "@!done bra again; }" ::"r"(at)
                 : "memory");
#endif
}

// ---- blocks that wait for nobody -----------------------------------------------------------------------------------

// Counts the blocks of a group as they finish. True in all threads of the block that arrives last, which then sees
// everything that the others wrote before they arrived, through load_mutable. The counter is 0 before the first
// arrival and again after the last. `flag_offset`: 4 bytes of shared memory that are free for this.
CAUSEWAY_DEVICE bool last_block_to_arrive(u32* counter, u32 blocks, u32 flag_offset CAUSEWAY_AND_SITE) {
#if defined(CAUSEWAY_HOST)
    causeway_simulator::block_barrier(site);
    if (thread_index() == 0) {
        const u32 before = *counter;
        *counter = before + 1 == blocks ? 0 : before + 1;
        store_shared<4>(flag_offset, Packet<4>{{before + 1 == blocks}});
    }
    causeway_simulator::block_barrier(site);
    return load_shared<4>(flag_offset).word[0] != 0;
#else
#if defined(CAUSEWAY_AMD)
    // A wave's own stores only: the barrier does not push those of other waves to the device's cache.
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
#endif
    block_barrier();
    if (thread_index() == 0) {
        u32 before;
#if defined(CAUSEWAY_NVIDIA)
#if __CUDA_ARCH__ >= 700
        asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                     : "=r"(before)
                     : "l"(counter), "r"(blocks - 1)
                     : "memory");
#endif
#else
        before = __builtin_amdgcn_atomic_inc32((CAUSEWAY_GLOBAL u32*)counter, blocks - 1, __ATOMIC_ACQ_REL, "agent");
#endif
        store_shared<4>(flag_offset, Packet<4>{{before == blocks - 1 ? 1u : 0u}});
    }
    block_barrier();
    const bool last = load_shared<4>(flag_offset).word[0] != 0;
#if defined(CAUSEWAY_AMD)
    if (last) __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
#endif
    return last;
#endif
}

}  // namespace causeway
