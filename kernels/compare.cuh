// Whether two blocks of memory hold the same bits.
//
//   *different = 1    if any packet of `first` differs from the one in `second`; nothing is written otherwise
//
// A thread compares Unroll packets of 16 bytes, a block's width apart, and starts all its loads before the first comparison.
// Cost: 32 bytes and about six instructions per packet. All threads that write store the same value, so their order does
// not matter.
#pragma once
#include "arguments.cuh"
#include "vector.cuh"

namespace causeway {

template <int Threads, int Unroll> CAUSEWAY_DEVICE void compare_bits(const CompareArguments& a) {
    const u64 start = (u64)block_index<0>() * (Threads * Unroll) + thread_index();
    Packet<16> first[Unroll], second[Unroll];
#pragma unroll
    for (int k = 0; k < Unroll; ++k) {
        const u64 at = start + k * Threads;
        if (at >= a.packets) continue;
        first[k] = load<16>((const char*)a.first + at * 16);
        second[k] = load<16>((const char*)a.second + at * 16);
    }
    u32 difference = 0;
#pragma unroll
    for (int k = 0; k < Unroll; ++k) {
        if (start + k * Threads >= a.packets) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) difference |= first[k].word[i] ^ second[k].word[i];
    }
    if (difference != 0) *a.different = 1;
}

}  // namespace causeway
