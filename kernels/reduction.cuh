// Sums that several blocks share, in a fixed order.
//
// Every part writes its addends to a place of its own in the workspace, then counts itself. The block that arrives
// last adds them in the order of the parts. So there is one launch, nothing to zero before it, and the same bits
// come out whatever order the blocks run in.
//
//   workspace   group 0: [part 0: count floats][part 1] … | group 1: …
//   counters    one per group
//
// Cost: 4 · count bytes written and read per part; one barrier of latency, about a microsecond, when parts > 1.
#pragma once
#include "vector.cuh"

namespace causeway {

CAUSEWAY_DEVICE float read_shared(u32 offset) { return as_float(load_shared<4>(offset).word[0]); }
CAUSEWAY_DEVICE void write_shared(u32 offset, float value) { store_shared<4>(offset, Packet<4>{{as_bits(value)}}); }

// The value of the lane whose number differs in the bits of `mask`.
CAUSEWAY_DEVICE float shuffle_xor(float value, u32 mask CAUSEWAY_AND_SITE) {
#if defined(CAUSEWAY_HOST)
    return shuffle(value, lane_index() ^ mask, site);
#else
    return shuffle(value, lane_index() ^ mask);
#endif
}

// Adds the blocks' addends. All threads of all `parts` blocks of a group call it; addend(i) is this block's i-th
// addend, i < count, in shared memory that was complete before a barrier; total(i, sum) receives the results, once.
// `flag` is the offset of 4 bytes of shared memory that addend() does not read.
template <int Threads, typename Addend, typename Total>
CAUSEWAY_DEVICE void sum_over_blocks(float* workspace, u32* counters, u32 group, u32 part, u32 parts, int count,
                                     u32 flag, Addend addend, Total total) {
    const int thread = (int)thread_index();
    if (parts == 1) {
        for (int i = thread; i < count; i += Threads) total(i, addend(i));
        return;
    }
    float* const sums = workspace + (u64)group * parts * (u64)count;
    for (int i = thread; i < count; i += Threads) {
        store<4>(sums + (u64)part * count + i, Packet<4>{{as_bits(addend(i))}});
    }
    if (!last_block_to_arrive(counters + group, parts, flag)) return;
    for (int i = thread; i < count; i += Threads) {
        constexpr u32 AHEAD = 16;  // loads under way at once
        float sum = 0.0f;
        for (u32 p = 0; p < parts; p += AHEAD) {
            Packet<4> values[AHEAD];
#pragma unroll
            for (u32 k = 0; k < AHEAD; ++k) {
                if (p + k < parts) values[k] = load_mutable<4>(sums + (u64)(p + k) * count + i);
            }
#pragma unroll
            for (u32 k = 0; k < AHEAD; ++k) {
                if (p + k < parts) sum += as_float(values[k].word[0]);
            }
        }
        total(i, sum);
    }
}

}  // namespace causeway
