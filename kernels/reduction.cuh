// Sums that several blocks share, in a fixed order.
//
// As split-K does it, without atomics on floats. Each block of a group (a part) writes its partial sums to its own slot of the
// workspace and increments the counter. The block that arrives last adds them in the order of the parts. So one launch is
// enough, nothing has to be zeroed before it, and the bits are the same in whatever order blocks run.
//
// One block reads the addends of 16 parts in 0.4 microseconds. Where there are many, `team` parts are added first, by the last of
// them to arrive, whose sum takes the place of the team's first addend; the last team to arrive adds those sums.
//
//   workspace   group 0: [part 0: count floats][part 1] … | group 1: …
//   counters    one per group; with teams, for each group its own and then one per team
//
// Cost: 4 · count bytes written and read per part; about a microsecond of latency when parts > 1, and another with teams.
#pragma once
#include "vector.cuh"

namespace causeway {

CAUSEWAY_DEVICE float read_shared(u32 offset) { return as_float(load_shared<4>(offset).word[0]); }
CAUSEWAY_DEVICE void write_shared(u32 offset, float value) { store_shared<4>(offset, Packet<4>{{as_bits(value)}}); }

// Adds each of Count values over the lanes of a wave. Returns one of the sums; `index` says which, Count or more in
// lanes that hold none.
//
// As long as a lane has several values, it keeps half of them and passes on the others. So Count values cost about Count + 5
// shuffles instead of 5 · Count.
template <int Count> CAUSEWAY_DEVICE float wave_sums(const float (&values)[Count], int& index) {
    constexpr int PADDED = Count <= 1 ? 1 : Count <= 2 ? 2 : Count <= 4 ? 4 : 8;
    static_assert(Count <= 8, "at most 8 sums");
    float held[PADDED];
#pragma unroll
    for (int i = 0; i < PADDED; ++i) held[i] = i < Count ? values[i] : 0.0f;
    const u32 lane = lane_index();
    index = 0;
    constexpr int LEVELS = PADDED == 1 ? 0 : PADDED == 2 ? 1 : PADDED == 4 ? 2 : 3;
#pragma unroll
    for (int level = 0; level < LEVELS; ++level) {
        const int half = PADDED >> (level + 1);
        const u32 offset = WAVE_SIZE >> (level + 1);
        const bool upper = (lane & offset) != 0;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float low = held[i], high = held[half + i];
            held[i] = (upper ? high : low) + shuffle_xor(upper ? low : high, offset);
        }
        index += upper ? half : 0;
    }
    const bool holds = (lane & (WAVE_SIZE / PADDED - 1)) == 0;
#pragma unroll
    for (u32 rest = WAVE_SIZE / 2 / PADDED; rest > 0; rest /= 2) held[0] += shuffle_xor(held[0], rest);
    if (!holds) index = PADDED;
    return held[0];
}

// Adds the blocks' addends. All threads of all a.parts blocks of a group call it. addend(i, values) gives this block's
// addends i … i + Vector - 1 of `count`, a multiple of Vector, from shared memory that was complete before a barrier;
// total(i, values) receives the results, once. `flag` is the offset of 4 bytes of shared memory that addend() does not
// read. The workspace is aligned to 16 bytes. Ahead: loads in flight. With Vector 1 there are usually few parts, and more loads
// would only cost registers. (Untried: more loads for channel-last groups with an odd number of lanes of one channel, which have
// many parts.)
template <int Threads, int Vector, u32 Ahead = (Vector == 1 ? 4 : 16), class Arguments, typename Addend, typename Total>
CAUSEWAY_DEVICE void sum_over_blocks(const Arguments& a, u32 group, u32 part, int count, u32 flag, Addend addend, Total total) {
    constexpr int BYTES = Vector * 4;
    const int first = (int)thread_index() * Vector;
    const u32 parts = a.parts, team = a.team;
    float* const sums = a.workspace + (u64)group * parts * (u64)count;
    for (int i = first; i < count; i += Threads * Vector) {
        float values[Vector];
        addend(i, values);
        if (parts == 1) {
            total(i, values);
        } else {
            Packet<BYTES> packet;
#pragma unroll
            for (int k = 0; k < Vector; ++k) packet.word[k] = as_bits(values[k]);
            store(sums + (u64)part * count + i, packet);
        }
    }
    if (parts == 1) return;
    // From part `begin` on `addends` places are added, `pitch` floats apart: all parts, or those of a team and then the teams' sums.
    u32* counter = a.counters + group;
    u32 begin = 0, addends = parts, teams = 0;
    u64 pitch = (u64)count;
    if (team != 0) {
        const u32 own = part / team;
        teams = (parts + team - 1) / team;
        begin = own * team;
        addends = parts - begin < team ? parts - begin : team;
        counter = a.counters + group * (teams + 1) + 1 + own;
    }
#pragma unroll 1
    while (last_block_to_arrive(counter, addends, flag)) {
        for (int i = first; i < count; i += Threads * Vector) {
            float values[Vector] = {};
            const float* next = sums + (u64)begin * count + i;
            for (u32 p = 0; p < addends; p += Ahead) {
                Packet<BYTES> packets[Ahead];
#pragma unroll
                for (u32 k = 0; k < Ahead; ++k) {
                    packets[k] = zero_packet<BYTES>();
                    if (p + k < addends) packets[k] = load_mutable<BYTES>(next);
                    next += pitch;
                }
#pragma unroll
                for (u32 k = 0; k < Ahead; ++k) {
#pragma unroll
                    for (int v = 0; v < Vector; ++v) values[v] += as_float(packets[k].word[v]);
                }
            }
            if (teams == 0) {
                total(i, values);
            } else {
                Packet<BYTES> packet;
#pragma unroll
                for (int k = 0; k < Vector; ++k) packet.word[k] = as_bits(values[k]);
                store(sums + (u64)begin * count + i, packet);
            }
        }
        if (teams == 0) return;
        counter = a.counters + group * (teams + 1);
        begin = 0;
        pitch *= team;
        addends = teams;
        teams = 0;
    }
}

// As sum_over_blocks, for blocks that form a cluster: they exchange sums through shared memory, without a workspace. Each block finishes one
// slice of the sums. Every block sends it its addends, itself too.
//
//   open()      before anything else, by all threads
//   add(…)      by all threads, after a block_barrier: block_sum(i) gives this block's sum i of `Count`, and total(i, sum) receives sums
//
// Shared memory: BYTES from `at` on, a multiple of 8, that nothing else uses from open() to the kernel's end: blocks send as soon as they have
// something.
template <int Blocks, int Threads, int Count> class ClusterSums {
    static constexpr int SLICE = (Count + Blocks - 1) / Blocks, MAILBOX_BYTES = 16;

public:
    static constexpr u32 BYTES = MAILBOX_BYTES + Blocks * SLICE * 4;

    CAUSEWAY_DEVICE explicit ClusterSums(u32 at) : at(at) {}

    CAUSEWAY_DEVICE void open() const { open_mailbox(at); }

    template <typename Sum, typename Total> CAUSEWAY_DEVICE void add(u32 part, Sum block_sum, Total total) const {
        const int thread = (int)thread_index(), rest = Count - (int)part * SLICE, own = rest < 0 ? 0 : rest < SLICE ? rest : SLICE;
        // The last thread announces: in small blocks it has no sum to send.
        await_mailboxes(at, (u32)(own * Blocks * 4), thread == Threads - 1);
#pragma unroll
        for (int start = 0; start < Count; start += Threads) {
            const int i = start + thread, to = i / SLICE;
            const u32 place = at + MAILBOX_BYTES + ((int)part * SLICE + i - to * SLICE) * 4;
            if (i < Count) send((u32)to, place, as_bits(block_sum(i)), at);
        }
#pragma unroll
        for (int start = 0; start < SLICE; start += Threads) {
            const int i = start + thread;
            if (i >= own) return;
            receive(at);
            float sum = 0.0f;
#pragma unroll
            for (int p = 0; p < Blocks; ++p) sum += read_shared(at + MAILBOX_BYTES + (p * SLICE + i) * 4);
            total((int)part * SLICE + i, sum);
        }
    }

private:
    u32 at;
};

}  // namespace causeway
