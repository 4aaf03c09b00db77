// Every difference between the vendors where memory is concerned: global and shared memory, asynchronous copies, and how blocks
// signal each other.
#pragma once
#include "portable.cuh"

namespace causeway {

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

#if defined(CAUSEWAY_NVIDIA)
namespace detail {
// Written: bypass L1, because stores of other multiprocessors in this launch do not reach it. Otherwise a read-only load.
template <bool Written, typename V> CAUSEWAY_DEVICE V get(const void* address) {
    if constexpr (Written) {
        return __ldcg((const V*)address);
    } else {
        return __ldg((const V*)address);
    }
}
}  // namespace detail
#endif

template <int Bytes, bool Written> CAUSEWAY_DEVICE Packet<Bytes> load_packet(const void* address) {
#if defined(CAUSEWAY_NVIDIA)
    Packet<Bytes> p;
    if constexpr (Bytes == 16) {
        const uint4 v = detail::get<Written, uint4>(address);
        p.word[0] = v.x, p.word[1] = v.y, p.word[2] = v.z, p.word[3] = v.w;
    } else if constexpr (Bytes == 8) {
        const uint2 v = detail::get<Written, uint2>(address);
        p.word[0] = v.x, p.word[1] = v.y;
    } else if constexpr (Bytes == 4) {
        p.word[0] = detail::get<Written, u32>(address);
    } else {
        p.word[0] = detail::get<Written, u16>(address);
    }
    return p;
#else
    return detail::packet<Bytes>(*(const CAUSEWAY_GLOBAL typename detail::Vector<Bytes>::type*)address);
#endif
}

// Reads memory that no thread of this launch writes. The address is a multiple of Bytes.
template <int Bytes> CAUSEWAY_DEVICE Packet<Bytes> load(const void* address) { return load_packet<Bytes, false>(address); }

// Reads memory that this thread, or a thread ordered before it, may write in this launch.
template <int Bytes> CAUSEWAY_DEVICE Packet<Bytes> load_mutable(const void* address) {
    return load_packet<Bytes, true>(address);
}

template <int Bytes> CAUSEWAY_DEVICE Packet<Bytes> zero_packet() {
    Packet<Bytes> packet;
#pragma unroll
    for (int i = 0; i < (Bytes < 4 ? 1 : Bytes / 4); ++i) packet.word[i] = 0;
    return packet;
}

// As load where `wanted`; else zeros, and the address is not touched. On NVIDIA it is predicated, so several of these are in flight
// together; with branches the first would be waited for before the second starts.
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
    return zero_packet<Bytes>();
#endif
}

// As load_if, and the compiler does not move it past a later store. It does so with loads of memory that the launch does not
// write, where registers are short. Packets of less than 8 bytes need few registers, so they are ordinary loads.
template <int Bytes> CAUSEWAY_DEVICE Packet<Bytes> load_before_stores(bool wanted, const void* address) {
#if defined(CAUSEWAY_NVIDIA)
    const u32 flag = wanted;
    Packet<Bytes> p;
    if constexpr (Bytes == 16) {
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %4, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0; "
                     "@p ld.global.v4.b32 {%0, %1, %2, %3}, [%5]; }"
                     : "=&r"(p.word[0]), "=&r"(p.word[1]), "=&r"(p.word[2]), "=&r"(p.word[3])
                     : "r"(flag), "l"(address)
                     : "memory");
        return p;
    } else if constexpr (Bytes == 8) {
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.b32 %0, 0; mov.b32 %1, 0; "
                     "@p ld.global.v2.b32 {%0, %1}, [%3]; }"
                     : "=&r"(p.word[0]), "=&r"(p.word[1])
                     : "r"(flag), "l"(address)
                     : "memory");
        return p;
    }
#endif
    return load_if<Bytes>(wanted, address);
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

// As store where `flag` is not 0, which may be a bit of a mask. On NVIDIA it is predicated, and the value is computed either way: the compiler
// would sink the arithmetic into a branch, and its loads with it.
template <int Bytes> CAUSEWAY_DEVICE void store_flagged(u32 flag, void* address, const Packet<Bytes>& p) {
#if defined(CAUSEWAY_NVIDIA)
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
    if (flag != 0) store<Bytes>(address, p);
#endif
}

// The same where `wanted`.
template <int Bytes> CAUSEWAY_DEVICE void store_if(bool wanted, void* address, const Packet<Bytes>& p) {
    store_flagged<Bytes>(wanted, address, p);
}

// ---- shared memory -------------------------------------------------------------------------------------------------

#if defined(CAUSEWAY_HOST)
CAUSEWAY_DEVICE unsigned char* shared_address(u32 offset) { return causeway_simulator::shared_memory() + offset; }
#else
CAUSEWAY_DEVICE CAUSEWAY_SHARED unsigned char* shared_address(u32 offset) {
    return (CAUSEWAY_SHARED unsigned char*)causeway_shared_memory + offset;
}
#endif

// `further`: bytes from the offset on, which cost nothing where they are known at compile time.
template <int Bytes> CAUSEWAY_DEVICE Packet<Bytes> load_shared(u32 offset, int further = 0) {
#if defined(CAUSEWAY_NVIDIA)
    Packet<Bytes> p;
    const void* address = shared_address(offset) + further;
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
    return detail::packet<Bytes>(*(const CAUSEWAY_SHARED typename detail::Vector<Bytes>::type*)(shared_address(offset) + further));
#endif
}

template <int Bytes> CAUSEWAY_DEVICE void store_shared(u32 offset, const Packet<Bytes>& p) {
#if defined(CAUSEWAY_NVIDIA)
    store<Bytes>(shared_address(offset), p);
#else
    *(CAUSEWAY_SHARED typename detail::Vector<Bytes>::type*)shared_address(offset) = detail::vector<Bytes>(p);
#endif
}

// ---- asynchronous copies -------------------------------------------------------------------------------------------

// NVIDIA's devices from sm_80 on copy from global to shared memory without passing through registers (cp.async). Elsewhere
// PrefetchRing (vector.cuh) keeps what is prefetched in registers.
#if (defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 800) || defined(CAUSEWAY_ASYNC_COPY)
constexpr bool HAS_ASYNC_COPY = true;
#else
constexpr bool HAS_ASYNC_COPY = false;
#endif

// Starts a copy of Bytes (4, 8 or 16) to shared memory: the first `count` bytes are read, the others are zeros. Where count is 0 the address may
// lie outside the tensor. Only where HAS_ASYNC_COPY.
template <int Bytes> CAUSEWAY_DEVICE void async_copy_first(u32 shared_offset, const void* address, u32 count) {
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 800
    const u32 to = (u32)__cvta_generic_to_shared(causeway_shared_memory) + shared_offset;
    if constexpr (Bytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(address), "r"(count) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(address), "n"(Bytes), "r"(count)
                     : "memory");
    }
#elif defined(CAUSEWAY_HOST)
    causeway_simulator::start_copy(shared_offset, address, count, Bytes);
#endif
}

// The same for all of the bytes where `valid`, else none.
template <int Bytes> CAUSEWAY_DEVICE void async_copy(u32 shared_offset, const void* address, bool valid) {
    async_copy_first<Bytes>(shared_offset, address, valid ? Bytes : 0);
}

// Starts a copy of memory that other waves of the multiprocessor read too: it goes through the L1 cache.
template <int Bytes> CAUSEWAY_DEVICE void async_copy_near(u32 shared_offset, const void* address) {
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 800
    const u32 to = (u32)__cvta_generic_to_shared(causeway_shared_memory) + shared_offset;
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(address), "n"(Bytes) : "memory");
#else
    async_copy<Bytes>(shared_offset, address, true);
#endif
}

// Closes the group of copies that this thread has started since the last call.
CAUSEWAY_DEVICE void async_commit() {
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#elif defined(CAUSEWAY_HOST)
    causeway_simulator::close_copies();
#endif
}

// Waits until at most `Pending` of this thread's groups are in flight. The thread then sees its own copies, and others do not yet.
template <int Pending> CAUSEWAY_DEVICE void async_wait() {
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#elif defined(CAUSEWAY_HOST)
    causeway_simulator::await_copies(Pending);
#endif
}

// ---- blocks that run together --------------------------------------------------------------------------------------

// Clusters, NVIDIA from sm_90 on, and the simulator: their blocks start at the same time.
#if (defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 900) || defined(CAUSEWAY_HOST)
constexpr bool HAS_CLUSTERS = true;
#else
constexpr bool HAS_CLUSTERS = false;
#endif

// A mailbox: 8 bytes of a block's shared memory, at a multiple of 8, that count the bytes which the blocks of its cluster
// send it. All threads of all blocks call, in this order:
//
//   open_mailbox(mailbox)           before anything else
//   await_mailboxes(mailbox, bytes, announces)  before the first send and after a block_barrier: all mailboxes are open.
//                                   The one thread that announces says that `bytes` will be sent to this block
//   send(block, offset, value, mailbox)    writes to the shared memory of block `block` of the cluster
//   receive(mailbox)                returns when all bytes have arrived and can be read
//
// There is no fence and no further barrier, so nothing waits for a block's stores to global memory. Only where HAS_CLUSTERS.
CAUSEWAY_DEVICE void open_mailbox(u32 mailbox CAUSEWAY_AND_SITE) {
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 900
    if (thread_index() == 0) {
        const u32 at = (u32)__cvta_generic_to_shared(causeway_shared_memory) + mailbox;
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#elif defined(CAUSEWAY_HOST)
    causeway_simulator::open_mailbox(mailbox, site);
#endif
}

CAUSEWAY_DEVICE void await_mailboxes(u32 mailbox, u32 bytes, bool announces CAUSEWAY_AND_SITE) {
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 900
    // Bytes that arrive before they are announced are counted too; the phase cannot end before this arrival.
    if (announces) {
        const u32 at = (u32)__cvta_generic_to_shared(causeway_shared_memory) + mailbox;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
    }
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#elif defined(CAUSEWAY_HOST)
    causeway_simulator::await_mailboxes(mailbox, bytes, announces, site);
#endif
}

CAUSEWAY_DEVICE void send(u32 block, u32 offset, u32 value, u32 mailbox CAUSEWAY_AND_SITE) {
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 900
    const u32 base = (u32)__cvta_generic_to_shared(causeway_shared_memory);
    asm volatile("{ .reg .b32 to, box; mapa.shared::cluster.u32 to, %0, %2; mapa.shared::cluster.u32 box, %1, %2; "
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %3, [box]; }" ::"r"(base + offset),
                 "r"(base + mailbox), "r"(block), "r"(value)
                 : "memory");
#elif defined(CAUSEWAY_HOST)
    causeway_simulator::send(block, offset, value, mailbox, site);
#endif
}

CAUSEWAY_DEVICE void receive(u32 mailbox CAUSEWAY_AND_SITE) {
#if defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 900
    const u32 at = (u32)__cvta_generic_to_shared(causeway_shared_memory) + mailbox;
    asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0; "
                 "@!done bra again; }" ::"r"(at)
                 : "memory");
#elif defined(CAUSEWAY_HOST)
    causeway_simulator::receive(mailbox, site);
#endif
}

// ---- the last to arrive --------------------------------------------------------------------------------------------

// Counts one of `all` arrivals and returns how many came before it. Through load_mutable, the last to arrive sees what the others
// wrote before they arrived. The counter is 0 before the first arrival and again after the last.
CAUSEWAY_DEVICE u32 count_arrival(u32* counter, u32 all) {
    u32 before;
#if defined(CAUSEWAY_HOST)
    before = __atomic_fetch_add(counter, 1u, __ATOMIC_ACQ_REL);
    if (before == all - 1) *counter = 0;
#elif defined(CAUSEWAY_AMD)
    before = __builtin_amdgcn_atomic_inc32((CAUSEWAY_GLOBAL u32*)counter, all - 1, __ATOMIC_ACQ_REL, "agent");
#elif __CUDA_ARCH__ >= 700
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(all - 1) : "memory");
#endif
    return before;
}

// Counts the blocks of a group as they finish. True in all threads of the last block to arrive, which sees what the others wrote,
// as above. `flag_offset`: 4 bytes of shared memory that are free for this.
CAUSEWAY_DEVICE bool last_block_to_arrive(u32* counter, u32 blocks, u32 flag_offset CAUSEWAY_AND_SITE) {
#if defined(CAUSEWAY_HOST)
    causeway_simulator::meet_block(site);
    if (thread_index() == 0) store_shared<4>(flag_offset, Packet<4>{{count_arrival(counter, blocks) == blocks - 1}});
    causeway_simulator::meet_block(site);
    return load_shared<4>(flag_offset).word[0] != 0;
#else
#if defined(CAUSEWAY_AMD)
    // A fence is for a wave's own stores: the barrier does not push those of other waves to the L2 cache.
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
#endif
    block_barrier();
    if (thread_index() == 0) store_shared<4>(flag_offset, Packet<4>{{count_arrival(counter, blocks) == blocks - 1}});
    block_barrier();
    const bool last = load_shared<4>(flag_offset).word[0] != 0;
#if defined(CAUSEWAY_AMD)
    if (last) __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
#endif
    return last;
#endif
}

// ---- blocks that keep together -------------------------------------------------------------------------------------

// Keeps blocks that go through memory side by side at about the same place of it. Each calls begin(n), with n = 0 … steps - 1, before
// its step n, and waits there while the average block has begun fewer than n - Lead steps. Nothing but speed depends on it, so a block
// that has waited some fifty microseconds, because others cannot run, waits no more until they have caught up. The counter is 0 before
// the launch and after it; blocks · steps fits 32 bits.
template <u32 Lead> class Pace {
public:
    CAUSEWAY_DEVICE Pace(u32* counter, u32 blocks, u32 steps) : counter_(counter), blocks_(blocks), all_(blocks * steps) {}

    CAUSEWAY_DEVICE void begin(u32 step) {
        if (thread_index() != 0) return;
#if defined(CAUSEWAY_HOST)
        // The simulator may run one block after the other.
        if (__atomic_fetch_add(counter_, 1u, __ATOMIC_RELAXED) == all_ - 1) *counter_ = 0;
#elif defined(CAUSEWAY_NVIDIA) && __CUDA_ARCH__ >= 700
        const u32 enough = step > Lead ? (step - Lead) * blocks_ : 0;
        // What the last count gave is often enough. A look at memory takes about half a microsecond.
        while (begun_ < enough && looks_ < 100) {
            asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(begun_) : "l"(counter_) : "memory");
            ++looks_;
        }
        if (begun_ >= enough) looks_ = 0;
        asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(begun_) : "l"(counter_), "r"(all_ - 1) : "memory");
#endif
    }

private:
    u32* counter_;
    u32 blocks_, all_;
    u32 begun_ = 0, looks_ = 0;
};

// ---- flags between GPUs --------------------------------------------------------------------------------------------

// Waits until a flag in memory that several GPUs reach has a value: all threads of the block then see, through load_mutable, what was
// written before it was set. The kernel ends with an error if that takes ten minutes, or on AMD some minutes: a GPU whose process has
// died sets no flag.
CAUSEWAY_DEVICE void await_flag(u32* flag, u32 value CAUSEWAY_AND_SITE) {
#if defined(CAUSEWAY_HOST)
    // One launch runs at a time: nobody would set it.
    if (*flag != value) __builtin_trap();
    causeway_simulator::meet_block(site);
#else
    if (thread_index() == 0) {
#if defined(CAUSEWAY_AMD)
        // A look takes about a microsecond.
        for (u32 looks = 0; __atomic_load_n((CAUSEWAY_GLOBAL u32*)flag, __ATOMIC_ACQUIRE) != value; ++looks) {
            __builtin_amdgcn_s_sleep(1);
            if (looks == 600000000u) __builtin_trap();
        }
#elif __CUDA_ARCH__ >= 700
        u64 start = 0, now = 0;
        for (u32 found;;) {
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(flag) : "memory");
            if (found == value) break;
            __nanosleep(64);
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
            if (start == 0) start = now;
            if (now - start > 600000000000ull) __trap();
        }
#endif
    }
    block_barrier();
#if defined(CAUSEWAY_AMD)
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "");
#endif
#endif
}

// Sets such a flag after all reads and writes of the block's threads.
CAUSEWAY_DEVICE void set_flag(u32* flag, u32 value CAUSEWAY_AND_SITE) {
#if defined(CAUSEWAY_HOST)
    causeway_simulator::meet_block(site);
    if (thread_index() == 0) *flag = value;
#else
#if defined(CAUSEWAY_AMD)
    // A fence is for a wave's own stores, as above.
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");
#endif
    block_barrier();
    if (thread_index() == 0) {
#if defined(CAUSEWAY_AMD)
        __atomic_store_n((CAUSEWAY_GLOBAL u32*)flag, value, __ATOMIC_RELEASE);
#elif __CUDA_ARCH__ >= 700
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
#endif
    }
#endif
}

}  // namespace causeway
