// Elements in packets: conversion between storage and f32, and a ring of prefetched packets.
#pragma once
#include "portable_memory.cuh"

namespace causeway {

template <typename A, typename B> constexpr bool SAME = false;
template <typename A> constexpr bool SAME<A, A> = true;

// Elements of type T in a packet of Bytes.
template <typename T, int Bytes> constexpr int ELEMENTS = Bytes / (int)sizeof(T);

// Element `Index` of a packet as f32.
template <typename T, int Index, int Bytes> CAUSEWAY_DEVICE float element(const Packet<Bytes>& packet) {
    if constexpr (SAME<T, float>) {
        return as_float(packet.word[Index]);
    } else if constexpr (SAME<T, f16>) {
        return Index % 2 == 0 ? low_f16(packet.word[Index / 2]) : high_f16(packet.word[Index / 2]);
    } else {
        static_assert(SAME<T, bf16>, "elements are float, f16 or bf16");
        return Index % 2 == 0 ? low_bf16(packet.word[Index / 2]) : high_bf16(packet.word[Index / 2]);
    }
}

// Two neighbours in one word of a packet of 16-bit elements.
template <typename T> CAUSEWAY_DEVICE u32 pair(float low, float high) {
    if constexpr (SAME<T, f16>) {
        return pair_f16(low, high);
    } else {
        static_assert(SAME<T, bf16>, "pairs are of 16-bit elements");
        return pair_bf16(low, high);
    }
}

// A packet's elements, as f32.
template <typename T, int Count, int Bytes>
CAUSEWAY_DEVICE void unpack(const Packet<Bytes>& packet, float (&values)[Count]) {
    static_assert(Count == ELEMENTS<T, Bytes>, "one value per element");
    if constexpr (SAME<T, float>) {
#pragma unroll
        for (int i = 0; i < Count; ++i) values[i] = as_float(packet.word[i]);
    } else if constexpr (Count == 1) {
        values[0] = element<T, 0>(packet);
    } else {
#pragma unroll
        for (int i = 0; i < Count / 2; ++i) {
            const u32 word = packet.word[i];
            values[2 * i] = SAME<T, f16> ? low_f16(word) : low_bf16(word);
            values[2 * i + 1] = SAME<T, f16> ? high_f16(word) : high_bf16(word);
        }
    }
}

// The packet of these values, rounded to T.
template <typename T, int Bytes, int Count> CAUSEWAY_DEVICE Packet<Bytes> pack(const float (&values)[Count]) {
    static_assert(Count == ELEMENTS<T, Bytes>, "one value per element");
    Packet<Bytes> packet;
    if constexpr (SAME<T, float>) {
#pragma unroll
        for (int i = 0; i < Count; ++i) packet.word[i] = as_bits(values[i]);
    } else if constexpr (Count == 1) {
        packet.word[0] = pair<T>(values[0], 0.0f);
    } else {
#pragma unroll
        for (int i = 0; i < Count / 2; ++i) packet.word[i] = pair<T>(values[2 * i], values[2 * i + 1]);
    }
    return packet;
}

// Word `index` of a packet, by selects: an index that the compiler does not know would move the packet to private memory.
CAUSEWAY_DEVICE u32 word_of(const Packet<16>& packet, i32 index) {
    const u32 low = (index & 1) != 0 ? packet.word[1] : packet.word[0], high = (index & 1) != 0 ? packet.word[3] : packet.word[2];
    return (index & 2) != 0 ? high : low;
}

// Writes elements from … to-1 of a packet, those of them that it has; `address` is the packet's. With WIDE_ENDS, those of 16 bits go by
// words, and the first and the last one alone where the other half of its word is not asked for.
template <typename T> CAUSEWAY_DEVICE void store_some(char* address, const Packet<16>& packet, i32 from, i32 to) {
    if constexpr (sizeof(T) == 4 || !WIDE_ENDS) {
        constexpr int SIZE = (int)sizeof(T), EACH = 4 / SIZE;
#pragma unroll
        for (int i = 0; i < 4 * EACH; ++i) {
            const u32 word = packet.word[i / EACH] >> (i % EACH * 16);
            store_if<SIZE>(i >= from && i < to, address + i * SIZE, Packet<SIZE>{{word}});
        }
    } else {
        from = from < 0 ? 0 : from;
        to = to > 8 ? 8 : to < from ? from : to;
        // Bit i: both elements of word i are asked for.
        const u32 whole = ~(~0u << (to >> 1)) & (~0u << ((from + 1) >> 1));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            store_flagged<4>(whole & 1u << i, address + i * 4, Packet<4>{{packet.word[i]}});
        }
        store_if<2>((from & 1) != 0 && from < to, address + from * 2, Packet<2>{{word_of(packet, from >> 1) >> 16}});
        store_if<2>((to & 1) != 0 && from < to, address + to * 2 - 2, Packet<2>{{word_of(packet, to >> 1)}});
    }
}

// Sets the first `count` elements of a packet in shared memory to zero.
template <typename T> CAUSEWAY_DEVICE void clear_first(u32 shared_offset, i32 count) {
    constexpr int EACH = 4 / (int)sizeof(T);  // of a word
    Packet<16> packet = load_shared<16>(shared_offset);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const u32 word = packet.word[i], upper = EACH == 2 ? word & 0xffff0000u : 0;
        packet.word[i] = count <= i * EACH ? word : count < (i + 1) * EACH ? upper : 0;
    }
    store_shared<16>(shared_offset, packet);
}

// Whether all of the bytes from … from+size-1 lie in the memory between two addresses.
CAUSEWAY_DEVICE bool lies_in(const char* from, i64 size, i64 begin, i64 end) {
    return (u64)from - (u64)begin <= (u64)(end - begin - size) && end - begin >= size;
}

template <typename T> CAUSEWAY_DEVICE float load_element(const T* address) {
    return element<T, 0>(load<sizeof(T)>(address));
}

// As load_element, for memory that this launch also writes.
template <typename T> CAUSEWAY_DEVICE float load_mutable_element(const T* address) {
    return element<T, 0>(load_mutable<sizeof(T)>(address));
}

template <typename T> CAUSEWAY_DEVICE void store_element(T* address, float value) {
    const float values[1] = {value};
    store<sizeof(T)>(address, pack<T, sizeof(T)>(values));
}

// `Count` contiguous elements as f32, by accesses of Bytes. The address is a multiple of Bytes, and a whole number of accesses
// makes up the elements. Written: as load_mutable, for memory that this launch also writes.
template <typename T, int Bytes, bool Written = false, int Count>
CAUSEWAY_DEVICE void load_run(const T* address, float (&values)[Count]) {
    constexpr int STEP = ELEMENTS<T, Bytes>;
    static_assert(Count % STEP == 0, "whole accesses only");
#pragma unroll
    for (int i = 0; i < Count / STEP; ++i) {
        float part[STEP];
        unpack<T>(load_packet<Bytes, Written>(address + i * STEP), part);
#pragma unroll
        for (int k = 0; k < STEP; ++k) values[i * STEP + k] = part[k];
    }
}

template <typename T, int Bytes, int Count>
CAUSEWAY_DEVICE void store_run(T* address, const float (&values)[Count]) {
    constexpr int STEP = ELEMENTS<T, Bytes>;
    static_assert(Count % STEP == 0, "whole accesses only");
#pragma unroll
    for (int i = 0; i < Count / STEP; ++i) {
        float part[STEP];
#pragma unroll
        for (int k = 0; k < STEP; ++k) part[k] = values[i * STEP + k];
        store<Bytes>(address + i * STEP, pack<T, Bytes>(part));
    }
}

// `Slots` prefetched packets per thread. The thread that fetched a packet reads it back, so no barrier is needed.
//
//   with async copies: slot s of thread i lies in shared memory at  base + (s · threads + i) · Bytes
//   without:           in registers; slot numbers must then be compile-time constants (unrolled loops)
//
// fetch() the packets of one step, then commit(); wait<n>() before read() leaves the last n steps in flight.
template <int Bytes, int Slots> class PrefetchRing {
public:
    // Bytes of shared memory that a block of `threads` threads needs.
    static constexpr CAUSEWAY_DEVICE u32 shared_bytes(u32 threads) { return HAS_ASYNC_COPY ? Slots * threads * Bytes : 0; }

    CAUSEWAY_DEVICE PrefetchRing(u32 base, u32 threads, u32 thread)
        : offset_(base + thread * Bytes), slot_bytes_(threads * Bytes) {}

    // Packets that are not `valid` read as zero; their address is not touched.
    CAUSEWAY_DEVICE void fetch(int slot, const void* address, bool valid) {
        if constexpr (HAS_ASYNC_COPY) {
            async_copy<Bytes>(offset_ + slot * slot_bytes_, address, valid);
        } else if (valid) {
            ahead_[slot] = load<Bytes>(address);
        } else {
            ahead_[slot] = zero_packet<Bytes>();
        }
    }

    CAUSEWAY_DEVICE void commit() { async_commit(); }

    template <int Pending> CAUSEWAY_DEVICE void wait() { async_wait<Pending>(); }

    CAUSEWAY_DEVICE Packet<Bytes> read(int slot) const {
        if constexpr (HAS_ASYNC_COPY) {
            return load_shared<Bytes>(offset_ + slot * slot_bytes_);
        } else {
            return ahead_[slot];
        }
    }

private:
    u32 offset_;
    u32 slot_bytes_;
    Packet<Bytes> ahead_[HAS_ASYNC_COPY ? 1 : Slots];
};

}  // namespace causeway
