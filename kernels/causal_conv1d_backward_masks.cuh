// Channel-first backward: which taps of a lane's positions are masked, and which states its positions meet.
//
// With seq_idx or cu_seqlens a wave checks for each tile whether it lies in one sequence and carries one index. Only if it does
// not, each lane computes the Masks of its positions.
#pragma once
#include "causal_conv1d_backward.cuh"
#include "causal_conv1d_taps.cuh"

namespace causeway {
namespace causal_conv1d {

// A row of a batch entry, or a piece of one, that a group of lanes walks. `begin` and `end` count positions from the shifted start
// of the row (u).
struct RowPiece {
    i32 entry, shift, begin, end;
};

//   struct Tile {
//       static constexpr int threads;            of a block
//       static constexpr int bytes, packets;     of a packet; per lane
//       static constexpr int lanes;              that walk a row together: a power of two, at most a wave
//       static constexpr bool ragged;            see causal_conv1d_backward_channel_first.cuh
//       static constexpr bool whole_rows;        rows are not cut into pieces
//       static constexpr bool full;              no tile reaches past the end of its row (a lane may still have no row)
//       static constexpr int stages;             tiles in flight
//       static constexpr int unroll;             tiles of a step; a piece is a whole number of steps
//       static constexpr int waves_per_channel;
//       static constexpr int weight_bytes;       see load_parameters
//       static constexpr int index_bytes;        of a legal access to a lane's indices
//   };
template <class Problem, class Tile> class ChannelFirstMasks {
protected:
    using X = typename Problem::X;
    static constexpr int BYTES = Tile::bytes, PACKETS = Tile::packets, LANES = Tile::lanes;
    static constexpr bool RAGGED = Tile::ragged, WHOLE_ROWS = Tile::whole_rows;
    static constexpr int WIDTH = Problem::width, HALO = WIDTH - 1;
    static constexpr int SIZE = (int)sizeof(X);
    static constexpr int PER_PACKET = BYTES / SIZE;     // positions per packet
    static constexpr int COUNT = PACKETS * PER_PACKET;  // positions per lane
    static constexpr int TILE_POSITIONS = LANES * COUNT;
    static constexpr int GROUPS = (int)WAVE_SIZE / LANES;
    static constexpr bool HAS_BOUNDARIES = PACKED<Problem> || Problem::seq_idx;
    static constexpr bool ROW_STATES = Problem::initial_states && !PACKED<Problem>;
    static constexpr bool ROW_DFINAL = Problem::dfinal_states && !PACKED<Problem>;
    static constexpr bool PACKED_INITIAL = Problem::initial_states && PACKED<Problem> && HALO > 0;
    static constexpr bool PACKED_STATES = PACKED<Problem> && HALO > 0 && (Problem::initial_states || Problem::dfinal_states);
    static constexpr int BEFORE = HALO > 4 ? 8 : 4;  // indices before a tile that are read: the halo, in whole 16 bytes
    static constexpr int EDGE = EDGE_OF<HALO>;
    static constexpr i32 FAR = 0x3fffffff;
    static constexpr int STATES_HELD = HALO > 0 ? (int)WAVE_SIZE / HALO : 1;  // sequences whose states a wave holds
    // Groups of one wave must take the same path, so they walk whole rows.
    static_assert(GROUPS == 1 || WHOLE_ROWS, "only whole rows share a wave");
    static_assert(!Problem::seq_idx || LANES >= HALO, "each index before a tile has a lane");
    static_assert(HALO <= (int)WAVE_SIZE, "each state of a sequence has a lane");
    static_assert(COUNT >= HALO, "halos come from the neighbouring lane alone");

    CAUSEWAY_DEVICE explicit ChannelFirstMasks(const BackwardArguments& a)
        : a(a), seqlen((i32)a.seqlen), lane((i32)(lane_index() % LANES)),
          left_lane(lane_index() - lane + (lane + LANES - 1) % LANES),
          right_lane(lane_index() - lane + (lane + 1) % LANES) {}

    // ---- states of a row -------------------------------------------------------------------------------------------

    // The states of a row without cu_seqlens. Those of the next row are in flight while one is walked.
    struct RowStates {
        float initial[HALO + 1], dfinal[HALO + 1];
    };

    CAUSEWAY_DEVICE RowStates load_states(i32 job) const {
        RowStates out;
        const i64 entry = WHOLE_ROWS ? job : (i32)quotient((u32)job, a.pieces_divisor);
#pragma unroll
        for (int k = 0; k < HALO; ++k) {
            out.initial[k] = ROW_STATES && job < jobs ? read<X>(a.initial_states, entry, channel, k) : 0.0f;
            out.dfinal[k] = ROW_DFINAL && job < jobs ? read<X>(a.dfinal_states, entry, channel, k) : 0.0f;
        }
        return out;
    }

    // x at t < 0 of the row: its initial states.
    CAUSEWAY_DEVICE float before_row(i32 t) const {
        float value = 0.0f;
        if constexpr (ROW_STATES) {
#pragma unroll
            for (int k = 0; k < HALO; ++k) value = t == k - HALO ? states.initial[k] : value;
        }
        return value;
    }

    // ---- masks of the lane's positions, and the states that these meet ----------------------------------------------

    // A tile's indices: those of the lane's positions; and the last ones of the lane's positions in the tile before, to the left.
    struct Indices {
        i32 own[Problem::seq_idx ? COUNT : 1], before[Problem::seq_idx ? BEFORE : 1];
    };

    // The masks of a lane's positions. Any boundary that a tap crosses masks it, and likewise a gradient on its way to dx.
    //
    // Three kinds of tiles cannot be described so: those in which an index comes back within a window (5 7 5); those of packed
    // sequences with initial states and seq_idx, since initial states carry an index too; and those with padding, whose selects
    // would cost all masked tiles 4 % of a call. They are `exact`: indices are compared tap by tap.
    //
    // A lane holds the initial states of one sequence, which begins at the lane's position `begins`. If more than one sequence
    // would need that, sequences are very short, and the tile is `crowded`.
    struct Masks {
        u32 cuts = 0;     // bit EDGE + k: a boundary before position k ≥ -EDGE; if exact, of cu_seqlens alone
        u32 stays = 0;    // likewise: a boundary that gradients do not cross to the lane, or tile, on the left
        u32 padding = 0;  // bit k: position k is padding
        bool exact = false, padded = false;  // the same in all lanes of the wave
        float initial[PACKED_INITIAL ? HALO : 1];
        float begun[PACKED_STATES ? COUNT : 1] = {};  // dfinal_states: what dx starts from
        i32 begins = FAR;
        bool crowded = false;
    };

    // What an exact tile needs besides.
    struct Exact {
        i32 indices[Problem::seq_idx ? HALO + COUNT + HALO : 1];  // from position -HALO on
        u32 denied = 0;  // bit r: position begins + r carries another index than its sequence's initial states
    };

    // The bits of `cuts` of `count` positions from `from` on.
    static CAUSEWAY_DEVICE constexpr u32 cut_bits(int from, int count) { return ((1u << count) - 1u) << (EDGE + from); }

    static CAUSEWAY_DEVICE u32 cut_before(i32 k) {
        const u32 bit = (u32)(k + EDGE);
        return bit < 32 ? 1u << bit : 0;
    }

    // The index at a position; beyond the row's ends, that of its first or last position.
    CAUSEWAY_DEVICE i32 index_at(i32 t) const {
        return (i32)load<4>(row_indices + maximum(minimum(t, seqlen - 1), 0)).word[0];
    }

    // Reads the indices of the tile in `slot` of the ring.
    template <class Ring> CAUSEWAY_DEVICE void read_indices(Indices& indices, const Ring& ring, int slot) const {
        if constexpr (Problem::seq_idx) {
#pragma unroll
            for (int k = 0; k < COUNT; k += 4) ring.read_indices(slot, k, indices.own + k);
#pragma unroll
            for (int k = 0; k < BEFORE; k += 4) ring.read_next_indices(slot, COUNT - BEFORE + k, indices.before + k);
        }
    }

    // True when the positions of a tile carry one index, the HALO positions before it carry one index, and none is padding. If the
    // two indices differ, the tile begins at an `edge`.
    CAUSEWAY_DEVICE bool one_index(const Indices& indices, i32 tile) {
        const u32 group = lane_index() - lane;
        // The row's last tile is the first that is walked: no index is known from the tile to its right.
        if (tile == tiles - 1) index_now = shuffle((u32)indices.own[0], group);
        edge = false;
        if (wave_all(all_carry(indices, index_now, index_now, tile))) return !right_exact;
        index_now = shuffle((u32)indices.own[0], group);
        const u32 before = (u32)indices.before[BEFORE - 1];
        edge = HALO > 0 && tile > 0 && !wave_all(lane < LANES - 1 || before == index_now);
        return wave_all(all_carry(indices, index_now, before, tile)) && !right_exact;
    }

    // True when the lane's indices in a tile are all `index`, and those it has of the HALO positions before the tile are `before`.
    CAUSEWAY_DEVICE bool all_carry(const Indices& indices, u32 index, u32 before, i32 tile) const {
        u32 differs[2] = {index & 0x80000000u, 0};
#pragma unroll
        for (int v = 0; v < COUNT; ++v) differs[v % 2] |= (u32)indices.own[v] ^ index;
        if (tile > 0) {
#pragma unroll
            for (int i = 0; i < HALO; ++i) {
                if (lane == LANES - 1) differs[i % 2] |= (u32)indices.before[BEFORE - HALO + i] ^ before;
            }
        } else if constexpr (!WHOLE_ROWS) {
            differs[1] |= (u32)index_before_piece ^ index;
        }
        return (differs[0] | differs[1]) == 0;
    }

    // True when a tile needs no masks: it and the HALO positions before it lie in one sequence, and one_index holds. With
    // dfinal_states the HALO positions after it have to lie in the sequence, too.
    CAUSEWAY_DEVICE bool one_sequence(const Indices& indices, i32 tile) {
        bool same = true;
        if constexpr (Problem::seq_idx) same = one_index(indices, tile);
        if constexpr (PACKED<Problem>) {
            const i32 begin = tile_begin(tile);
            same = same && sequence_start <= begin - HALO;
            same = same && sequence_end >= begin + TILE_POSITIONS + (Problem::dfinal_states ? HALO : 0);
        }
        return same;
    }

    // Computes the masks of a tile. `first` is the lane's first position. All lanes take part, and tiles come in order.
    CAUSEWAY_DEVICE void find_masks(Masks& masks, const Indices& indices, i32 tile, i32 first) {
        u32 changes = 0;
        if constexpr (Problem::seq_idx) changes = find_changes(masks, indices, tile);
        if constexpr (PACKED<Problem>) {
            // The sequences of the tile, from the last to the first.
            for (const i32 begin = tile_begin(tile);;) {
                if (sequence_start - first < COUNT) masks.cuts |= cut_before(sequence_start - first);
                if constexpr (PACKED_STATES) {
                    if (sequence_start < sequence_end) meet_states(masks, begin, first);
                }
                if (sequence_start < begin || sequence == 0) break;
                sequence_end = sequence_start;
                --sequence;
                sequence_start = start_of(sequence);
                if constexpr (PACKED_STATES) {
                    if (states_last - sequence >= STATES_HELD) hold_states(sequence);
                }
                if (sequence_end <= begin) break;
            }
        }
        if constexpr (Problem::seq_idx) {
            const bool back = !wave_all(!comes_back<HALO>(changes));
            masks.exact = PACKED_INITIAL || back || right_exact || masks.padded;
            right_exact = back;
            changes |= masks.padding << EDGE;
            if (back) changes = 0;
            masks.stays = masks.cuts | changes;
            if (!masks.exact) masks.cuts |= changes;
        } else {
            masks.stays = masks.cuts;
        }
    }

    // The bits of `cuts` where the index changes; and padding.
    CAUSEWAY_DEVICE u32 find_changes(Masks& masks, const Indices& indices, i32 tile) {
        const u32 group = lane_index() - lane;
        i32 previous = (i32)shuffle((u32)(lane == LANES - 1 ? indices.before[BEFORE - 1] : indices.own[COUNT - 1]), left_lane);
        // Positions before the row carry its first index.
        i32 before_piece = indices.own[0];
        if constexpr (!WHOLE_ROWS) before_piece = (i32)shuffle((u32)index_before_piece, group + EDGE);
        if (tile == 0 && lane == 0) previous = before_piece;
        const u32 own = index_changes(indices.own, previous);
        // Positions before the lane's.
        u32 given = own >> (COUNT - EDGE), before_tile = 0;
#pragma unroll
        for (int i = 0; i < EDGE; ++i) {
            const int at = BEFORE - EDGE + i;
            before_tile |= (u32)(indices.before[at] != indices.before[at - 1]) << i;
        }
        if (lane == LANES - 1) given = before_tile;
        u32 before = shuffle(given, left_lane);
        if (tile == 0) {
            u32 before_row = 0;
            if constexpr (!WHOLE_ROWS) {
#pragma unroll
                for (int i = 0; i < EDGE; ++i) {
                    const u32 later = shuffle((u32)index_before_piece, group + i + 1);
                    before_row |= (u32)(later != shuffle((u32)index_before_piece, group + i)) << i;
                }
            }
            if (lane == 0) before = before_row;
        }
        u32 sign = 0;
#pragma unroll
        for (int v = 0; v < COUNT; ++v) sign |= (u32)indices.own[v];
        masks.padded = !wave_all((sign & 0x80000000u) == 0);
        if (masks.padded) masks.padding = padding_bits(indices.own);
        return own << EDGE | before;
    }

    // Loads the lane's indices and those around them, and finds which of its positions must not read initial states.
    CAUSEWAY_DEVICE void find_exact(Exact& exact, const Masks& masks, i32 first) const {
#pragma unroll
        for (int i = 0; i < HALO + COUNT + HALO; ++i) exact.indices[i] = index_at(first - HALO + i);
        if constexpr (PACKED_INITIAL) {
#pragma unroll
            for (int v = 0; v < COUNT; ++v) {
#pragma unroll
                for (int back = 0; back < HALO; ++back) {
                    const bool differs = exact.indices[HALO + v] < 0 || exact.indices[HALO + v] != exact.indices[HALO + v - back];
                    if (masks.begins == v - back && differs) exact.denied |= 1u << back;
                }
            }
        }
    }

    // Whether a boundary keeps the gradient at position v from leaving the lane to the left. Where an index comes back, seq_idx keeps
    // none: the receiving lane compares indices.
    CAUSEWAY_DEVICE bool stays(const Masks& masks, int v) const {
        return HAS_BOUNDARIES && (masks.stays & cut_bits(0, v + 1)) != 0;
    }

    // Whether the tap between position v and the one `back` before it is masked; back 0: whether position v is padding.
    CAUSEWAY_DEVICE bool cuts(const Masks& masks, int v, int back) const {
        if (back == 0) return (masks.padding >> v & 1) != 0;
        return (masks.cuts & cut_bits(v - back + 1, back)) != 0;
    }

    CAUSEWAY_DEVICE bool cuts(const Masks& masks, const Exact& exact, int v, int back) const {
        const i32 index = exact.indices[HALO + v];
        return cuts(masks, v, back) || index < 0 || exact.indices[HALO + v - back] != index;
    }

    // What tap j of position v reads in an exact tile: x, or its sequence's initial states, or 0 if the tap is masked.
    CAUSEWAY_DEVICE float exact_tap(const Masks& masks, const Exact& exact, const float (&values)[HALO + COUNT], int v,
                                    int j) const {
        float value = j > 0 && cuts(masks, exact, v, j) ? 0.0f : values[HALO + v - j];
        if constexpr (PACKED_INITIAL) {
#pragma unroll
            for (int k = 0; k < HALO; ++k) {
                const int r = j - HALO + k;  // positions since the sequence's first
                if (r >= 0 && masks.begins == v - r && (exact.denied >> r & 1) == 0) value = masks.initial[k];
            }
        }
        return value;
    }

    // Moves a window one position on, as roll() does. At a boundary the initial states take the window's place.
    CAUSEWAY_DEVICE void roll_taps(const Masks& masks, float (&window)[WIDTH], float newest, int v) const {
        const bool boundary = cuts(masks, v, 1);
#pragma unroll
        for (int j = HALO; j > 0; --j) {
            const float behind = PACKED_INITIAL ? masks.initial[PACKED_INITIAL ? HALO - j : 0] : 0.0f;
            window[j] = boundary ? behind : j > 1 ? window[j - 1] : newest;
        }
    }

    CAUSEWAY_DEVICE float final_state_gradient(const Masks& masks, i32 t, int v) const {
        float value = 0.0f;
        if constexpr (Problem::dfinal_states) {
            if constexpr (PACKED<Problem>) {
                value = masks.begun[PACKED_STATES ? v : 0];
            } else {
                const bool in_row = t >= 0 && t < seqlen;
#pragma unroll
                for (int k = 0; k < HALO; ++k) value = in_row && seqlen - t == HALO - k ? states.dfinal[k] : value;
            }
            if constexpr (Problem::seq_idx) {
                if (cuts(masks, v, 0)) value = 0.0f;
            }
        }
        return value;
    }

    // ---- the walk's sequence, which all lanes are in ----------------------------------------------------------------

    CAUSEWAY_DEVICE i32 tile_begin(i32 tile) const { return computing.begin + tile * TILE_POSITIONS - computing.shift; }

    // Loads boundaries up to number `last`, one into each lane of the wave. Loaded one by one, the walk would wait for each.
    CAUSEWAY_DEVICE void hold_bounds(i32 last) {
        bounds_first = maximum(last - (i32)(WAVE_SIZE - 1), 0);
        held_bounds = boundaries<Problem, i32>(a)[minimum(bounds_first + (i32)lane_index(), (i32)a.sequences)];
    }

    CAUSEWAY_DEVICE i32 bound(i32 number) const { return (i32)shuffle((u32)held_bounds, (u32)(number - bounds_first)); }

    // Where a sequence starts. Without initial states the first one needs no boundary, so it starts infinitely far away.
    CAUSEWAY_DEVICE i32 start_of(i32 number) {
        if (number == 0 && !PACKED_INITIAL) return -FAR;
        if (number < bounds_first) hold_bounds(number);
        return bound(number);
    }

    // Loads the states of sequence `last` and of those before it, as they are in memory: lane HALO·i + k holds state k of sequence
    // last - i.
    CAUSEWAY_DEVICE void hold_states(i32 last) {
        states_last = last;
        const i32 back = (i32)lane_index() / HALO, k = (i32)lane_index() - back * HALO, number = last - back;
        const auto hold = [&](const Memory& view) {
            return load_if<SIZE>(number >= 0, (const X*)view.data + offset_of(view, number, channel, k)).word[0];
        };
        if constexpr (Problem::initial_states) held_initial = hold(a.initial_states);
        if constexpr (Problem::dfinal_states) held_dfinal = hold(a.dfinal_states);
    }

    CAUSEWAY_DEVICE float held_state(u32 held, int k) const {
        return element<X, 0>(Packet<4>{{shuffle(held, (u32)((states_last - sequence) * HALO + k))}});
    }

    // Begins a piece, at its right end: finds the sequence there, and the boundaries among the HALO positions to its right.
    CAUSEWAY_DEVICE void enter_sequences() {
        right_exact = false, right_cuts = 0;
        const i32 end = WHOLE_ROWS ? seqlen : minimum(computing.end - computing.shift, seqlen);
        if constexpr (PACKED<Problem>) {
            const i32 sequences = (i32)a.sequences;
            const auto bounds = boundaries<Problem, i32>(a);
            if (sequences < (i32)WAVE_SIZE) {
                const bool starts = (i32)lane_index() < sequences && held_bounds < end;
                sequence = maximum((i32)wave_count(starts), 1) - 1;
            } else {
                sequence = bounds.find_by_wave(end - 1).sequence;
                hold_bounds(sequence + 1);
            }
            if constexpr (PACKED_STATES) hold_states(sequence);
            sequence_start = start_of(sequence);
            i32 next = sequence + 1, start = maximum(bound(next), end);
            sequence_end = next == sequences && !Problem::dfinal_states ? FAR : start;
            if constexpr (!WHOLE_ROWS) {
                while (next < sequences && start < end + HALO) {
                    right_cuts |= 1u << (start - end);
                    start = maximum(bounds[++next], end);
                }
            }
        }
        if constexpr (Problem::seq_idx && !WHOLE_ROWS) {
            u32 changes = 0;
#pragma unroll
            for (int i = -EDGE; i < HALO; ++i) changes |= (u32)(index_at(end + i) != index_at(end + i - 1)) << (EDGE + i);
            right_exact = comes_back<HALO>(changes);
            if (!right_exact) right_cuts |= changes >> EDGE;
            const i32 begin = computing.begin - computing.shift;
            index_before_piece = index_at(begin - HALO + minimum(lane, HALO - 1));
        }
    }

    // Puts the states of the walk's sequence into the masks of those lanes whose positions, from `first` on, meet them.
    CAUSEWAY_DEVICE void meet_states(Masks& masks, i32 begin, i32 first) const {
        if constexpr (Problem::dfinal_states) {
            if (sequence_end < begin + TILE_POSITIONS + HALO) {
#pragma unroll
                for (int k = 0; k < HALO; ++k) {
                    const float state = held_state(held_dfinal, k);
                    // In a shorter sequence this one belongs to dinitial_states.
                    if (sequence_end - sequence_start < HALO - k) continue;
#pragma unroll
                    for (int v = 0; v < COUNT; ++v) {
                        masks.begun[v] = sequence_end - first == v + HALO - k ? state : masks.begun[v];
                    }
                }
            }
        }
        if constexpr (PACKED_INITIAL) {
            if (sequence_start > begin - HALO) {
                const i32 begins = sequence_start - first;
                const bool near = begins > -HALO && begins < COUNT;
                masks.crowded = masks.crowded || (near && (masks.begins != FAR || sequence_end - sequence_start < HALO));
                masks.begins = near ? begins : masks.begins;
#pragma unroll
                for (int k = 0; k < HALO; ++k) {
                    const float state = held_state(held_initial, k);
                    masks.initial[k] = near ? state : masks.initial[k];
                }
            }
        }
    }

    const BackwardArguments& a;
    const i32 seqlen, lane;
    const u32 left_lane, right_lane;
    i64 channel;
    i32 jobs;  // pieces of rows of a channel
    RowPiece computing;
    i32 tiles;                                   // of a piece
    u32 index_now;                               // at the start of the tile that was computed last
    i32 index_before_piece;                      // one of the HALO positions before a piece that begins inside its row
    i32 sequence, sequence_start, sequence_end;  // the last sequence that reaches into the tile
    i32 bounds_first, held_bounds;               // boundaries from number bounds_first on, one in each lane
    i32 states_last;                             // the last sequence whose states are held, below
    u32 held_initial, held_dfinal;
    u32 right_cuts;                              // bit k: a boundary before the k-th position after the piece
    bool right_exact;                            // an index comes back around the right end of the tile
    bool edge;                                   // the tile needs no masks but begins at a boundary
    const i32* row_indices;  // seq_idx of the row
    RowStates states, states_ahead;
};

}  // namespace causal_conv1d
}  // namespace causeway
