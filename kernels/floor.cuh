// The floor: passes that move what a convolution moves and compute next to nothing.
//
//   copy   to = first                    what forward reads and writes
//   add    to = first + second           what backward reads and writes; as 32-bit integers, whatever the dtype
//
// A thread moves Unroll packets of 16 bytes, a block's width apart, and starts all its loads before the first store. Cost: 16
// bytes and about two instructions per packet and tensor.
#pragma once
#include "arguments.cuh"
#include "vector.cuh"

namespace causeway {

template <int Threads, int Unroll, bool Add> CAUSEWAY_DEVICE void floor_pass(const FloorArguments& a) {
    const u64 start = (u64)block_index<0>() * (Threads * Unroll) + thread_index();
    Packet<16> first[Unroll], second[Unroll];
#pragma unroll
    for (int k = 0; k < Unroll; ++k) {
        const u64 at = start + k * Threads;
        if (at >= a.packets) continue;
        first[k] = load<16>((const char*)a.first + at * 16);
        if constexpr (Add) second[k] = load<16>((const char*)a.second + at * 16);
    }
#pragma unroll
    for (int k = 0; k < Unroll; ++k) {
        const u64 at = start + k * Threads;
        if (at >= a.packets) continue;
        if constexpr (Add) {
#pragma unroll
            for (int i = 0; i < 4; ++i) first[k].word[i] += second[k].word[i];
        }
        store<16>((char*)a.to + at * 16, first[k]);
    }
}

}  // namespace causeway
