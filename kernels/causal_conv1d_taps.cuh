// Masks of taps, one bit per position.
//
// A tap must not read across a boundary, which is the end of a sequence or a change of seq_idx. A thread has `Count` positions
// and a bit for each: bit EDGE + k says that a boundary lies right before position k. The EDGE = Halo - 1 positions before
// the thread's own have a bit too, since taps reach that far. A window that moves past a boundary is cleared of everything
// after it, so one bit serves all taps.
//
//   index    7  7  4  4  4
//   bits     0  0  1  0  0
//
// Bits cannot describe an index that comes back within a window (7 4 7): there a tap may read across both changes. comes_back
// finds such places.
#pragma once
#include "causal_conv1d.cuh"

namespace causeway {
namespace causal_conv1d {

// Positions before a thread's own that have a bit.
template <int Halo> constexpr int EDGE_OF = Halo > 0 ? Halo - 1 : 0;

// Bit k: position k carries another index than the one before it.
template <int Count> CAUSEWAY_DEVICE u32 index_changes(const i32 (&own)[Count], i32 previous) {
    u32 changes = (u32)(own[0] != previous);
#pragma unroll
    for (int k = 1; k < Count; ++k) changes |= (u32)(own[k] != own[k - 1]) << k;
    return changes;
}

// Bit k: position k is padding.
template <int Count> CAUSEWAY_DEVICE u32 padding_bits(const i32 (&own)[Count]) {
    u32 padding = 0;
#pragma unroll
    for (int k = 0; k < Count; ++k) padding |= ((u32)own[k] >> 31) << k;
    return padding;
}

// Whether two changes are so close that one window may hold the same index on both sides of them.
template <int Halo> CAUSEWAY_DEVICE bool comes_back(u32 changes) {
    u32 close = 0;
#pragma unroll
    for (int distance = 1; distance < Halo; ++distance) close |= changes & changes >> distance;
    return close != 0;
}

// Moves a window one position on. window[j] is what lies j positions back; `newest` becomes window[1]. At a boundary all of it
// is zero.
template <int Width> CAUSEWAY_DEVICE void roll(float (&window)[Width], float newest, bool boundary) {
#pragma unroll
    for (int j = Width - 1; j > 0; --j) window[j] = boundary ? 0.0f : j > 1 ? window[j - 1] : newest;
}

// The indices (seq_idx) of a thread's packets. A packet has `Count` positions; a thread's packets lie Lanes · Count apart. The
// Halo indices before the first lane's first packet are dealt out over the lanes, as `beyond`: one each, or several where there
// are fewer lanes.
template <int Halo, int Count, int Packets, int Lanes> class PieceIndices {
    static constexpr int SHARE = Halo > Lanes ? (Halo + Lanes - 1) / Lanes : 1;

public:
    // `start` is the first lane's first position. Access: bytes of a legal access to a thread's indices. Whole: a row is a
    // whole number of packets.
    template <int Access, bool Whole>
    CAUSEWAY_DEVICE void load_all(const i32* indices, i32 start, i32 lane, i32 seqlen) {
#pragma unroll
        for (int s = 0; s < SHARE; ++s) {
            beyond_[s] = at_position(indices, start - Halo + minimum(lane + s * Lanes, Halo > 0 ? Halo - 1 : 0), seqlen);
        }
#pragma unroll
        for (int i = 0; i < Packets; ++i) {
            const i32 t = start + (i * Lanes + lane) * Count;
            if (Whole || t + Count <= seqlen) {
                // A packet past the end of the row reads the row's last one.
                const i32* from = indices + (Whole ? minimum(t, seqlen - Count) : t);
#pragma unroll
                for (int k = 0; k < Count; k += Access / 4) {
                    const Packet<Access> packet = load<Access>(from + k);
#pragma unroll
                    for (int m = 0; m < Access / 4; ++m) own_[i][k + m] = (i32)packet.word[m];
                }
            } else {
#pragma unroll
                for (int k = 0; k < Count; ++k) own_[i][k] = at_position(indices, t + k, seqlen);
            }
        }
    }

    // True if any index is padding or differs from that of the lanes' first position. `group`: the wave's lane that is the first
    // of these lanes.
    CAUSEWAY_DEVICE bool differ(u32 group) const {
        const u32 index = shuffle((u32)own_[0][0], group);
        u32 differs[2] = {index & 0x80000000u, 0};
#pragma unroll
        for (int s = 0; s < SHARE; ++s) differs[1] |= (u32)beyond_[s] ^ index;
#pragma unroll
        for (int i = 0; i < Packets; ++i) {
#pragma unroll
            for (int k = 0; k < Count; ++k) differs[k % 2] |= (u32)own_[i][k] ^ index;
        }
        return (differs[0] | differs[1]) != 0;
    }

    // The boundary bits of each packet, as above, and its padding bits. False if an index comes back in one of the packets.
    // All lanes take part.
    CAUSEWAY_DEVICE bool find(u32 (&cuts)[Packets], u32 (&padding)[Packets], i32 lane, u32 group) const {
        constexpr int EDGE = EDGE_OF<Halo>;
        const u32 left = group + (u32)(lane + Lanes - 1) % Lanes;
        // In front of the first packet of the first lane.
        i32 before[Halo + 1];
        u32 before_changes = 0;
#pragma unroll
        for (int m = 0; m < Halo; ++m) {
            before[m] = (i32)shuffle((u32)beyond_[m / Lanes], group + (u32)(m % Lanes));
            if (m > 0) before_changes |= (u32)(before[m] != before[m - 1]) << (m - 1);
        }
        u32 last_given = 0;
        bool clear = true;
#pragma unroll
        for (int i = 0; i < Packets; ++i) {
            const bool last = i > 0 && lane == Lanes - 1, first = i == 0 && lane == 0;
            i32 previous = (i32)shuffle((u32)(last ? own_[i > 0 ? i - 1 : 0][Count - 1] : own_[i][Count - 1]), left);
            if (first && Halo > 0) previous = before[Halo > 0 ? Halo - 1 : 0];
            const u32 own = index_changes(own_[i], previous), given = own >> (Count - EDGE);
            u32 front = shuffle(last ? last_given : given, left);
            if (first) front = before_changes;
            last_given = given;
            cuts[i] = own << EDGE | front;
            padding[i] = padding_bits(own_[i]);
            clear = clear && !comes_back<Halo>(cuts[i]);
        }
        return clear;
    }

private:
    // The index at a position; beyond the row's ends, that of its first or last position.
    static CAUSEWAY_DEVICE i32 at_position(const i32* indices, i32 t, i32 seqlen) {
        return (i32)load<4>(indices + maximum(minimum(t, seqlen - 1), 0)).word[0];
    }

    i32 own_[Packets][Count], beyond_[SHARE];
};

}  // namespace causal_conv1d
}  // namespace causeway
