// Channel-first backward: where a lane is in its row, and which of its taps count.
//
// With seq_idx or cu_seqlens each tile has a Check, read while the tile before is computed. It tells whether the tile lies
// in one sequence and carries one index; only if not, a lane works out the Places of its positions.
#pragma once
#include "causal_conv1d_backward.cuh"
#include "causal_conv1d_taps.cuh"

namespace causeway {
namespace causal_conv1d {

// A row, or a piece of one, that a group of lanes walks. `begin` and `end` are in u.
struct RowPiece {
    i32 row, shift, begin, end;
};

// Tile: threads of a block; bytes of a packet and packets per lane; lanes that walk a row together, a power of two;
// ragged (see above); whole_rows (rows are not cut into pieces); full (tiles do not reach past the end of a row); stages,
// tiles under way; unroll, tiles of a step, of which a piece has a whole number; waves_per_channel; weight_bytes as in
// load_parameters; index_bytes, the access that is legal for a lane's indices, which are neighbours along seqlen.
template <class Problem, class Tile> class ChannelFirstPlaces {
protected:
    using X = typename Problem::X;
    static constexpr int BYTES = Tile::bytes, PACKETS = Tile::packets, LANES = Tile::lanes;
    static constexpr bool RAGGED = Tile::ragged, WHOLE_ROWS = Tile::whole_rows;
    static constexpr int W = Problem::width, H = W - 1;
    static constexpr int SIZE = (int)sizeof(X);
    static constexpr int STEP = BYTES / SIZE;     // positions per packet
    static constexpr int COUNT = PACKETS * STEP;  // positions per lane
    static constexpr int TILE_POSITIONS = LANES * COUNT;
    static constexpr int GROUPS = (int)WAVE_SIZE / LANES;
    static constexpr bool PLACES = PACKED<Problem> || Problem::seq_idx;
    static constexpr bool ROW_STATES = Problem::initial_states && !PACKED<Problem>;
    static constexpr bool ROW_DFINAL = Problem::dfinal_states && !PACKED<Problem>;
    static constexpr bool PACKED_INITIAL = Problem::initial_states && PACKED<Problem> && H > 0;
    static constexpr bool PACKED_STATES = PACKED<Problem> && H > 0 && (Problem::initial_states || Problem::dfinal_states);
    static constexpr i32 FAR = 0x3fffffff;
    static constexpr int STATES_HELD = H > 0 ? (int)WAVE_SIZE / (2 * H) : 1;  // sequences whose states a wave holds
    // Groups of one wave must take the same path, so they walk whole rows.
    static_assert(GROUPS == 1 || WHOLE_ROWS, "only whole rows share a wave");
    static_assert(!Problem::seq_idx || LANES >= H, "each index before a tile has a lane");
    static_assert(2 * H <= (int)WAVE_SIZE, "each state of a sequence has a lane");
    static_assert(COUNT >= H, "halos come from the neighbouring lane alone");

    CAUSEWAY_DEVICE explicit ChannelFirstPlaces(const BackwardArguments& a)
        : a(a), seqlen((i32)a.seqlen), lane((i32)(lane_index() % LANES)),
          left_lane(lane_index() - lane + (lane + LANES - 1) % LANES),
          right_lane(lane_index() - lane + (lane + 1) % LANES) {}

    // ---- states of a row -------------------------------------------------------------------------------------------

    // The states of a row that is not packed. Those of the next row are under way while one is walked.
    struct RowStates {
        float initial[H + 1], dfinal[H + 1];
    };

    CAUSEWAY_DEVICE RowStates load_states(i32 job) const {
        RowStates out;
        const i64 row = WHOLE_ROWS ? job : (i32)a.pieces_divisor.quotient((u32)job);
#pragma unroll
        for (int k = 0; k < H; ++k) {
            out.initial[k] = ROW_STATES && job < jobs ? read<X>(a.initial_states, row, channel, k) : 0.0f;
            out.dfinal[k] = ROW_DFINAL && job < jobs ? read<X>(a.dfinal_states, row, channel, k) : 0.0f;
        }
        return out;
    }

    // x at t < 0 of the row: its initial states.
    CAUSEWAY_DEVICE float before_row(i32 t) const {
        float value = 0.0f;
        if constexpr (ROW_STATES) {
#pragma unroll
            for (int k = 0; k < H; ++k) value = t == k - H ? states.initial[k] : value;
        }
        return value;
    }

    // ---- which taps of the lane's positions count, and the states that its positions meet ---------------------------

    // A tile's indices, under way while another is computed: those of the lane's positions, and in `beyond` one of the H
    // before the tile (lanes from 0 on; the others have the last).
    struct Check {
        i32 own[Problem::seq_idx ? COUNT : 1], beyond;
    };

    using Mask = TapMask<H, COUNT>;

    // Of a lane's positions. Initial states stand before position `begins` from the lane's first one; a lane has those of
    // one sequence, unless sequences are very short.
    struct Places {
        Mask mask, right;  // of the lane, and of the one to its right
        u32 denied = 0;    // bit r: position begins + r carries another index than its sequence's initial states
        float initial[PACKED_INITIAL ? H : 1];
        float begun[PACKED_STATES ? COUNT : 1] = {};  // dfinal_states
        i32 begins = FAR;
        bool crowded = false;
    };

    // The index at a position; beyond the row's ends, that of its first or last position.
    CAUSEWAY_DEVICE i32 index_at(i32 t) const {
        return (i32)load<4>(index_row + maximum(minimum(t, seqlen - 1), 0)).word[0];
    }

    CAUSEWAY_DEVICE void start_check(Check& check, i32 tile) const {
        if constexpr (Problem::seq_idx) {
            const i32 begin = tile_begin(tile), first = begin + lane * COUNT;
            if ((Tile::full && !RAGGED) || (first >= 0 && first + COUNT <= seqlen)) {
                constexpr int INDICES = Tile::index_bytes / 4;
#pragma unroll
                for (int i = 0; i < COUNT / INDICES; ++i) {
                    const Packet<Tile::index_bytes> packet = load<Tile::index_bytes>(index_row + first + i * INDICES);
#pragma unroll
                    for (int k = 0; k < INDICES; ++k) check.own[i * INDICES + k] = (i32)packet.word[k];
                }
            } else {
#pragma unroll
                for (int v = 0; v < COUNT; ++v) check.own[v] = index_at(first + v);
            }
            check.beyond = index_at(begin - H + minimum(lane, H - 1));
        }
    }

    // True when a lane's share of a tile's Check carries the index of the tile after it, or of the row's end.
    CAUSEWAY_DEVICE bool continues(const Check& check) const {
        if constexpr (!Problem::seq_idx) return true;
        u32 differs[2] = {(u32)index_now & 0x80000000u, (u32)(check.beyond ^ index_now)};
#pragma unroll
        for (int v = 0; v < COUNT; ++v) differs[v % 2] |= (u32)(check.own[v] ^ index_now);
        return (differs[0] | differs[1]) == 0 && !right_mask.any();
    }

    // The Check of a row's last tile: nothing after it carries an index.
    CAUSEWAY_DEVICE bool start_row_check(Check& check, i32 tile) {
        if constexpr (!Problem::seq_idx) return true;
        start_check(check, tile);
        index_now = (i32)shuffle((u32)check.own[0], lane_index() - lane);
        return continues(check);
    }

    // True when a tile, the H positions before it and the H after it lie in one sequence and carry one index.
    CAUSEWAY_DEVICE bool one_sequence(bool lane_continues, i32 tile) const {
        bool same = true;
        if constexpr (Problem::seq_idx) same = wave_all(lane_continues);
        if constexpr (PACKED<Problem>) {
            const i32 begin = tile_begin(tile);
            same = same && sequence_start <= begin - H && sequence_end >= begin + TILE_POSITIONS + H;
        }
        return same;
    }

    // The lane's first position is `first`. All lanes take part, tile after tile.
    CAUSEWAY_DEVICE void find_places(Places& places, const Check& check, i32 tile, i32 first) {
        if constexpr (Problem::seq_idx) {
            i32 indices[H + COUNT];
            const u32 group = lane_index() - lane;
#pragma unroll
            for (int i = 0; i < H; ++i) {
                const i32 before = (i32)shuffle((u32)check.own[COUNT - H + i], left_lane);
                const i32 before_tile = (i32)shuffle((u32)check.beyond, group + i);
                indices[i] = lane == 0 ? before_tile : before;
            }
#pragma unroll
            for (int v = 0; v < COUNT; ++v) indices[H + v] = check.own[v];
            index_now = (i32)shuffle((u32)check.own[0], group);
            places.mask.differ(indices);
        }
        if constexpr (PACKED<Problem>) {
            const Mask changes = places.mask;
            // The sequences of the tile, from the last to the first.
            for (const i32 begin = tile_begin(tile);;) {
                places.mask.begin_at(sequence_start - first);
                if constexpr (PACKED_STATES) {
                    if (sequence_start < sequence_end) meet_states(places, begin, first);
                }
                if (sequence_start <= begin || sequence == 0) break;
                sequence_end = sequence_start;
                --sequence;
                sequence_start = start_of(sequence);
                if constexpr (PACKED_STATES) {
                    if (states_last - sequence >= STATES_HELD) hold_states(sequence);
                }
            }
            if constexpr (PACKED_INITIAL && Problem::seq_idx) {
#pragma unroll
                for (int v = 0; v < COUNT; ++v) {
#pragma unroll
                    for (int back = 0; back < H; ++back) {
                        if (places.begins == v - back && changes.cuts(v, back)) places.denied |= 1u << back;
                    }
                }
            }
        }
        places.right = places.mask.exchange(lane == 0, right_mask, right_lane);
        right_mask = lane == 0 ? places.mask.across() : Mask();
    }

    // What tap j of position v reads of its row; 0 across a boundary.
    template <bool Careful>
    CAUSEWAY_DEVICE float tap(const Places& places, const float (&values)[H + COUNT], int v, int j) const {
        if constexpr (Careful && PLACES) {
            // What stands at padding is selected away: 0 · NaN would be NaN.
            if (places.mask.cuts(v, j)) return 0.0f;
        }
        return values[H + v - j];
    }

    // Calls visit(r) where the lane's position v is the r-th of a sequence, and reads its initial states.
    template <typename Visit> CAUSEWAY_DEVICE void for_begun(const Places& places, int v, Visit visit) const {
#pragma unroll
        for (int r = 0; r < H; ++r) {
            bool reads = places.begins == v - r;
            if constexpr (Problem::seq_idx) reads = reads && !(places.denied >> r & 1);
            if (reads) visit(r);
        }
    }

    // What initial states add to pre at the r-th position of a sequence.
    CAUSEWAY_DEVICE void initial_shares(const Places& places, const float (&weight)[W], float (&share)[H + 1]) const {
#pragma unroll
        for (int r = 0; r < H; ++r) {
            share[r] = 0.0f;
#pragma unroll
            for (int j = r + 1; j < W; ++j) share[r] = multiply_add(weight[j], places.initial[H + r - j], share[r]);
        }
    }

    // What initial states add to the sums.
    CAUSEWAY_DEVICE void add_initial_sums(const Places& places, const float (&g)[COUNT + H], float (&sums)[W + 1]) const {
        float begun[H + 1];
        bool has[H + 1];
#pragma unroll
        for (int r = 0; r < H; ++r) has[r] = false;
#pragma unroll
        for (int v = 0; v < COUNT; ++v) {
            for_begun(places, v, [&](int r) {
                begun[r] = g[v];
                has[r] = true;
            });
        }
#pragma unroll
        for (int r = 0; r < H; ++r) {
#pragma unroll
            for (int j = r + 1; j < W; ++j) {
                if (has[r]) sums[j] = multiply_add(begun[r], places.initial[H + r - j], sums[j]);
            }
        }
    }

    // Whether g at position v + j reaches dx at position v.
    CAUSEWAY_DEVICE bool reaches(const Places& places, int v, int j) const {
        if constexpr (!PLACES) return true;
        return v + j < COUNT ? !places.mask.cuts(v + j, j) : !places.right.cuts(v + j - COUNT, j);
    }

    CAUSEWAY_DEVICE float final_state_gradient(const Places& places, i32 t, int v) const {
        float value = 0.0f;
        if constexpr (Problem::dfinal_states) {
            if constexpr (PACKED<Problem>) {
                value = places.begun[PACKED_STATES ? v : 0];
            } else {
                const bool in_row = t >= 0 && t < seqlen;
#pragma unroll
                for (int k = 0; k < H; ++k) value = in_row && seqlen - t == H - k ? states.dfinal[k] : value;
            }
            if constexpr (Problem::seq_idx) {
                if (places.mask.cuts(v, 0)) value = 0.0f;
            }
        }
        return value;
    }

    // ---- the walk's sequence, which all lanes are in ----------------------------------------------------------------

    CAUSEWAY_DEVICE i32 tile_begin(i32 tile) const { return computing.begin + tile * TILE_POSITIONS - computing.shift; }

    // Boundaries up to number `last`, one in each lane of the wave: a walk would wait for every single one.
    CAUSEWAY_DEVICE void hold_bounds(i32 last) {
        bounds_first = maximum(last - (i32)(WAVE_SIZE - 1), 0);
        held_bounds = boundaries<Problem, i32>(a)[minimum(bounds_first + (i32)lane_index(), (i32)a.sequences)];
    }

    CAUSEWAY_DEVICE i32 bound(i32 number) const { return (i32)shuffle((u32)held_bounds, (u32)(number - bounds_first)); }

    // Where a sequence starts. The first has nothing before it to tell apart, unless there are states.
    CAUSEWAY_DEVICE i32 start_of(i32 number) {
        if (number == 0 && !PACKED_INITIAL) return -FAR;
        if (number < bounds_first) hold_bounds(number);
        return bound(number);
    }

    // States of a sequence and those before it, raw: lane 2·H·i + k holds number k of the i-th, initial states first.
    CAUSEWAY_DEVICE void hold_states(i32 last) {
        states_last = last;
        const i32 back = (i32)lane_index() / (2 * H), k = (i32)lane_index() - back * 2 * H, number = last - back;
        const bool initial = k < H;
        const bool exists = number >= 0 && (initial ? Problem::initial_states : Problem::dfinal_states);
        const View& view = initial ? a.initial_states : a.dfinal_states;
        const X* const from = (const X*)view.data + offset_of(view, number, channel, initial ? k : k - H);
        held_states = load_if<SIZE>(exists, from).word[0];
    }

    CAUSEWAY_DEVICE float held_state(int k) const {
        return element<X, 0>(Packet<4>{{shuffle(held_states, (u32)((states_last - sequence) * 2 * H + k))}});
    }

    // A piece of a row begins, from its end: the sequence there, and what lies to its right.
    CAUSEWAY_DEVICE void enter_sequences() {
        right_mask = Mask();
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
                while (next < sequences && start < end + H) {
                    right_mask.begin_at(start - end);
                    start = bounds[++next];
                }
            }
        }
        if constexpr (Problem::seq_idx && !WHOLE_ROWS) {
            i32 indices[H + COUNT];
#pragma unroll
            for (int i = 0; i < H + COUNT; ++i) indices[i] = index_at(end - H + minimum(i, 2 * H - 1));
            right_mask.differ(indices);
            right_mask = right_mask.across();
        }
        if (lane > 0) right_mask = Mask();
    }

    // The states of the walk's sequence, as far as a tile and this lane's positions in it, from `first` on, meet them.
    CAUSEWAY_DEVICE void meet_states(Places& places, i32 begin, i32 first) const {
        if constexpr (Problem::dfinal_states) {
            if (sequence_end < begin + TILE_POSITIONS + H) {
#pragma unroll
                for (int k = 0; k < H; ++k) {
                    const float state = held_state(H + k);
                    // Those of a sequence shorter than this are dinitial_states'.
                    if (sequence_end - sequence_start < H - k) continue;
#pragma unroll
                    for (int v = 0; v < COUNT; ++v) {
                        places.begun[v] = sequence_end - first == v + H - k ? state : places.begun[v];
                    }
                }
            }
        }
        if constexpr (PACKED_INITIAL) {
            if (sequence_start > begin - H) {
                const i32 begins = sequence_start - first;
                const bool near = begins > -H && begins < COUNT;
                places.crowded = places.crowded || (near && (places.begins != FAR || sequence_end - sequence_start < H));
                places.begins = near ? begins : places.begins;
#pragma unroll
                for (int k = 0; k < H; ++k) {
                    const float state = held_state(k);
                    places.initial[k] = near ? state : places.initial[k];
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
    i32 index_now;                               // at the start of the tile that was computed last
    i32 sequence, sequence_start, sequence_end;  // the last one that reaches into the tile
    i32 bounds_first, held_bounds;               // boundaries from a number on, one in each lane
    i32 states_last;                             // states of sequences up to a number, one in each lane
    u32 held_states;
    Mask right_mask;                             // of what lies right of the tile, in the first lane
    const i32* index_row;  // seq_idx of the row
    RowStates states, states_ahead;
};

}  // namespace causal_conv1d
}  // namespace causeway
