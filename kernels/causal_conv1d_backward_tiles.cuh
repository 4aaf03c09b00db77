// Channel-first backward: cuts rows into pieces, and fetches the tiles of a piece into the ring.
#pragma once
#include "causal_conv1d_backward_masks.cuh"
#include "causal_conv1d_backward_rings.cuh"

namespace causeway {
namespace causal_conv1d {

// `Tile` is described at ChannelFirstMasks.
template <class Problem, class Tile> class ChannelFirstTiles : protected ChannelFirstMasks<Problem, Tile> {
protected:
    using Base = ChannelFirstMasks<Problem, Tile>;
    using typename Base::X;
    using Base::a, Base::channel, Base::jobs, Base::lane, Base::seqlen, Base::tiles;
    using Base::BYTES, Base::COUNT, Base::PACKETS, Base::RAGGED, Base::SIZE, Base::PER_PACKET, Base::TILE_POSITIONS;
    using Base::WHOLE_ROWS;
    static constexpr int THREADS = Tile::threads, UNROLL = Tile::unroll;
    static constexpr int TENSORS = 2 + Problem::B + Problem::C;
    using Ring = TileRing<BYTES, PACKETS, Tile::stages, THREADS, UNROLL, Problem::seq_idx ? COUNT : 0, TENSORS>;
    static constexpr auto B_TENSOR = Ring::FIRST_GATE, C_TENSOR = Problem::B ? Ring::SECOND_GATE : Ring::FIRST_GATE;

    CAUSEWAY_DEVICE explicit ChannelFirstTiles(const BackwardArguments& a) : Base(a) {}

    // Piece number `job` of the channel's rows; an empty piece if there is no such number.
    CAUSEWAY_DEVICE RowPiece piece(i32 job) const {
        RowPiece out;
        const bool exists = job < jobs;
        out.entry = !exists ? 0 : WHOLE_ROWS ? job : (i32)quotient((u32)job, a.pieces_divisor);
        out.begin = WHOLE_ROWS || !exists ? 0 : (job - out.entry * (i32)a.pieces) * (i32)a.piece;
        out.shift = RAGGED ? (i32)((u64)(x_channel + out.entry * a.x.entry * SIZE) & (BYTES - 1)) / SIZE : 0;
        const i32 row_end = seqlen + out.shift;
        out.end = !exists ? 0 : WHOLE_ROWS ? row_end : minimum(row_end, out.begin + (i32)a.piece);
        return out;
    }

    CAUSEWAY_DEVICE void fetch_piece() {
        const RowPiece next = piece(fetch_job);
        fetch_shift = next.shift;
        fetch_end = next.end;
        fetch_x = x_channel + (next.entry * a.x.entry - next.shift) * SIZE;
        fetch_dy = dy_channel + (next.entry * a.dy.entry - next.shift) * SIZE;
        if constexpr (Problem::B) fetch_b = b_channel + (next.entry * a.b.entry - next.shift) * SIZE;
        if constexpr (Problem::C) fetch_c = c_channel + (next.entry * a.c.entry - next.shift) * SIZE;
        fetch_tile = tiles;
        fetch_u = next.begin + (tiles - 1) * TILE_POSITIONS + lane * COUNT;
        if constexpr (Problem::seq_idx) fetch_indices = a.seq_idx + next.entry * a.seq_idx_strides.first - next.shift;
    }

    // Fetches the next tile of this lane's rows, which is tile `slot` of a step, into a stage; zeros past the last row.
    CAUSEWAY_DEVICE void fetch(Ring& ring, int stage, int slot) {
#pragma unroll
        for (int p = 0; p < PACKETS; ++p) {
            const int offset = p * PER_PACKET - slot * TILE_POSITIONS;  // from the step's first packet
            const i32 at = fetch_u + offset;
            const char* x = fetch_x + (i64)fetch_u * SIZE + offset * SIZE;
            const char* dy = fetch_dy + (i64)fetch_u * SIZE + offset * SIZE;
            if constexpr (RAGGED) {
                const bool wanted = at < fetch_end && at + PER_PACKET > fetch_shift;
                const bool whole = at >= fetch_shift && at + PER_PACKET <= seqlen + fetch_shift;
                if (wanted && !whole && outside(x, dy, offset)) {
                    ring.put(stage, Ring::X_TENSOR, p, gather(x, at));
                    ring.put(stage, Ring::DY_TENSOR, p, gather(dy, at));
                    if constexpr (Problem::B) ring.put(stage, B_TENSOR, p, gather(in_step(fetch_b, offset), at));
                    if constexpr (Problem::C) ring.put(stage, C_TENSOR, p, gather(in_step(fetch_c, offset), at));
                } else {
                    ring.fetch(stage, Ring::X_TENSOR, p, x, wanted);
                    ring.fetch(stage, Ring::DY_TENSOR, p, dy, wanted);
                    fetch_gates(ring, stage, p, offset, wanted);
                }
            } else {
                const bool wanted = Tile::full ? fetch_end != 0 : at < fetch_end;
                ring.fetch(stage, Ring::X_TENSOR, p, x, wanted);
                ring.fetch(stage, Ring::DY_TENSOR, p, dy, wanted);
                fetch_gates(ring, stage, p, offset, wanted);
            }
        }
        if constexpr (Problem::seq_idx) {
            const i32 at = fetch_u - slot * TILE_POSITIONS;
            if ((Tile::full && !RAGGED) || (at >= fetch_shift && at + COUNT <= seqlen + fetch_shift)) {
                constexpr int ACCESS = Tile::index_bytes;
#pragma unroll
                for (int k = 0; k < COUNT; k += ACCESS / 4) {
                    ring.template fetch_indices<ACCESS>(stage, k, fetch_indices + fetch_u + (k - slot * TILE_POSITIONS));
                }
            } else {
                // Beyond the row's ends, the index of its first or last position.
#pragma unroll
                for (int k = 0; k < COUNT; ++k) {
                    const i32 in_row = maximum(minimum(at + k, seqlen - 1 + fetch_shift), fetch_shift);
                    ring.template fetch_indices<4>(stage, k, fetch_indices + in_row);
                }
            }
        }
        ring.commit();
        if (slot < UNROLL - 1) return;
        fetch_u -= UNROLL * TILE_POSITIONS;
        fetch_tile -= UNROLL;
        if (fetch_tile == 0) {
            fetch_job += job_step;
            fetch_piece();
        }
    }

    // The packet of a row, `offset` positions from the first one of the step.
    CAUSEWAY_DEVICE const char* in_step(const char* row, int offset) const {
        return row + (i64)fetch_u * SIZE + offset * SIZE;
    }

    CAUSEWAY_DEVICE void fetch_gates(Ring& ring, int stage, int p, int offset, bool wanted) const {
        if constexpr (Problem::B) ring.fetch(stage, B_TENSOR, p, in_step(fetch_b, offset), wanted);
        if constexpr (Problem::C) ring.fetch(stage, C_TENSOR, p, in_step(fetch_c, offset), wanted);
    }

    // True if the packet at `x`, at `dy` or of a gate reaches outside its tensor's memory.
    CAUSEWAY_DEVICE bool outside(const char* x, const char* dy, int offset) const {
        if constexpr (Problem::B) {
            const i64 b = (i64)(u64)in_step(fetch_b, offset);
            if (b < a.b_begin || b + BYTES > a.b_end) return true;
        }
        if constexpr (Problem::C) {
            const i64 c = (i64)(u64)in_step(fetch_c, offset);
            if (c < a.c_begin || c + BYTES > a.c_end) return true;
        }
        return (i64)(u64)x < a.x_begin || (i64)(u64)x + BYTES > a.x_end || (i64)(u64)dy < a.dy_begin ||
               (i64)(u64)dy + BYTES > a.dy_end;
    }

    // The packet at u = `at`, read by elements; zero outside the row.
    CAUSEWAY_DEVICE Packet<BYTES> gather(const char* address, i32 at) const {
        float values[PER_PACKET];
#pragma unroll
        for (int i = 0; i < PER_PACKET; ++i) {
            const i32 t = at + i - fetch_shift;
            values[i] = t >= 0 && t < seqlen ? load_element((const X*)address + i) : 0.0f;
        }
        return pack<X, BYTES>(values);
    }

    i32 job_step;
    const char *x_channel, *dy_channel;
    const char *fetch_x, *fetch_dy;
    const char *b_channel, *c_channel, *fetch_b, *fetch_c;
    const i32* fetch_indices;
    i32 fetch_job, fetch_tile, fetch_u, fetch_shift, fetch_end;  // fetch_tile counts down to 0
};

}  // namespace causal_conv1d
}  // namespace causeway
