// Channel-first backward: where a lane is in its row, and which of its taps count.
//
// With seq_idx or cu_seqlens each tile has a Check, read while the tile before is computed. It tells whether the tile lies
// in one sequence and carries one index; only if not, a lane works out the Places of its positions.
#pragma once
#include "causal_conv1d_backward.cuh"

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
    // Groups of one wave must take the same path, so they walk whole rows.
    static_assert(GROUPS == 1 || WHOLE_ROWS, "only whole rows share a wave");
    static_assert(!Problem::seq_idx || LANES >= 2 * H, "each index beside a tile has a lane");
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

    // ---- which sequence a position is in, and the index it carries -------------------------------------------------

    // Places of a tile, under way while the tile before is computed: the sequence of the position H before it; the
    // indices of the lane's positions; and in `beyond` one of the H before the tile (lanes from 0 on) or after it (lanes
    // from H on).
    struct Check {
        Span<i32> span;
        bool one_span;
        i32 own[Problem::seq_idx ? COUNT : 1], beyond;
    };

    // Of a lane's positions and the H to their right; indices also of the H to their left.
    struct Places {
        i32 indices[PLACES ? 2 * H + COUNT : 1];
        i32 reach[PLACES ? COUNT + H : 1];
        i32 left[PLACES ? COUNT : 1];
        i32 sequence[PLACES ? COUNT : 1];
        i32 first_index[PLACES ? COUNT : 1];
    };

    // The index at a position; beyond the row's ends, that of its first or last position.
    CAUSEWAY_DEVICE i32 index_at(i32 t) const {
        return (i32)load<4>(index_row + maximum(minimum(t, seqlen - 1), 0)).word[0];
    }

    CAUSEWAY_DEVICE void find_places(Places& places, const Check& check, i32 first) const {
        if constexpr (Problem::seq_idx) {
            const u32 group = lane_index() - lane;
#pragma unroll
            for (int v = 0; v < COUNT; ++v) places.indices[H + v] = check.own[v];
#pragma unroll
            for (int i = 0; i < H; ++i) {
                const i32 before = (i32)shuffle((u32)check.own[COUNT - H + i], left_lane);
                const i32 before_tile = (i32)shuffle((u32)check.beyond, group + i);
                places.indices[i] = lane == 0 ? before_tile : before;
                const i32 after = (i32)shuffle((u32)check.own[i], right_lane);
                const i32 after_tile = (i32)shuffle((u32)check.beyond, group + H + i);
                places.indices[H + COUNT + i] = lane == LANES - 1 ? after_tile : after;
            }
        }
        if constexpr (PACKED<Problem>) {
            Span<i32> span = check.span;
#pragma unroll
            for (int i = 0; i < COUNT + H; ++i) {
                const i32 t = first + i;
                boundaries<Problem, i32>(a).advance(span, t);
                places.reach[i] = t - span.start;
                if (i < COUNT) {
                    places.left[i] = span.end - t;
                    places.sequence[i] = span.sequence;
                    if constexpr (Problem::seq_idx) places.first_index[i] = index_at(span.start);
                }
            }
        }
    }

    // What tap j of position v reads of its row; 0 across a boundary.
    template <bool Careful>
    CAUSEWAY_DEVICE float tap(const Places& places, const float (&values)[H + COUNT], int v, int j) const {
        if constexpr (Careful && PACKED<Problem>) {
            if (j > places.reach[v]) return 0.0f;
        }
        if constexpr (Careful && Problem::seq_idx) {
            // What stands at padding is selected away: 0 · NaN would be NaN.
            const i32 own = places.indices[H + v];
            if (own < 0 || places.indices[H + v - j] != own) return 0.0f;
        }
        return values[H + v - j];
    }

    // Calls visit(v, j, value) for every tap j of the lane's positions v that reads initial states across a boundary
    // inside the row. The states of a sequence are fetched together, and lanes seldom have more than one sequence.
    template <typename Visit> CAUSEWAY_DEVICE void for_initial_taps(const Places& places, Visit visit) const {
        constexpr i32 NONE = 0x7fffffff;
        for (i32 previous = -1;;) {
            i32 sequence = NONE, first_index = 0;
#pragma unroll
            for (int v = COUNT - 1; v >= 0; --v) {
                const bool near_start = places.reach[v] >= 0 && places.reach[v] < H;
                if (near_start && places.sequence[v] > previous) {
                    sequence = places.sequence[v];
                    if constexpr (Problem::seq_idx) first_index = places.first_index[v];
                }
            }
            if (sequence == NONE) return;
            float states[H + 1];
#pragma unroll
            for (int k = 0; k < H; ++k) states[k] = read<X>(a.initial_states, sequence, channel, k);
#pragma unroll
            for (int v = 0; v < COUNT; ++v) {
                bool reads = places.sequence[v] == sequence;
                if constexpr (Problem::seq_idx) reads = reads && places.indices[H + v] == first_index;
#pragma unroll
                for (int reach = 0; reach < H; ++reach) {
                    if (!reads || places.reach[v] != reach) continue;
#pragma unroll
                    for (int j = reach + 1; j < W; ++j) visit(v, j, states[H + reach - j]);
                }
            }
            previous = sequence;
        }
    }

    CAUSEWAY_DEVICE float final_state_gradient(const Places& places, i32 t, int v) const {
        float value = 0.0f;
        if constexpr (Problem::dfinal_states) {
            const bool in_row = t >= 0 && t < seqlen;
            if constexpr (PACKED<Problem>) {
                const i32 left = places.left[v];
                if (in_row && left > 0 && left <= H) {
                    value = read<X>(a.dfinal_states, places.sequence[v], channel, H - left);
                }
            } else {
#pragma unroll
                for (int k = 0; k < H; ++k) value = in_row && seqlen - t == H - k ? states.dfinal[k] : value;
            }
            if constexpr (Problem::seq_idx) {
                if (places.indices[H + v] < 0) value = 0.0f;
            }
        }
        return value;
    }

    CAUSEWAY_DEVICE void start_check(Check& check, i32 tile) {
        const i32 begin = computing.begin + tile * TILE_POSITIONS - computing.shift, end = begin + TILE_POSITIONS;
        check.one_span = true;
        if constexpr (PACKED<Problem>) {
            const i32 from = maximum(minimum(begin - H, seqlen - 1), 0);
            if (from < last_span.start || from >= last_span.end) last_span = sequence_at<Problem, i32>(a, 0, from);
            check.span = last_span;
            check.one_span = begin >= H && end + H <= last_span.end;
        }
        if constexpr (Problem::seq_idx) {
            const i32 first = begin + lane * COUNT;
            if (first >= 0 && first + COUNT <= seqlen) {
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
            check.beyond = lane < 2 * H ? index_at(lane < H ? begin - H + lane : end + lane - H) : 0;
        }
    }

    // True when a tile and the H positions on both its sides lie in one sequence, away from where dfinal_states is
    // added, and carry one index.
    CAUSEWAY_DEVICE bool one_sequence(const Check& check) const {
        bool same = check.one_span;
        if constexpr (Problem::seq_idx) {
            const i32 reference = (i32)shuffle((u32)check.own[0], lane_index() - lane);
            same = same && reference >= 0 && (lane >= 2 * H || check.beyond == reference);
#pragma unroll
            for (int v = 0; v < COUNT; ++v) same = same && check.own[v] == reference;
        }
        return wave_all(same);
    }

    const BackwardArguments& a;
    const i32 seqlen, lane;
    const u32 left_lane, right_lane;
    i64 channel;
    i32 jobs;  // pieces of rows of a channel
    RowPiece computing;
    Span<i32> last_span = {0, 0, 0};
    const i32* index_row;  // seq_idx of the row
    RowStates states, states_ahead;
};

}  // namespace causal_conv1d
}  // namespace causeway
