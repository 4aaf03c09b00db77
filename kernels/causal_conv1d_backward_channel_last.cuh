// Causal conv1d backward where neighbouring channels are neighbours in memory.
//
//             dim →
//   t   ┌──────────────┬──────────────┬──
//   ↓   │ thread 0     │ thread 1     │       a thread owns `channels` neighbouring channels, one packet, and walks down a
//       │  segment 0   │  segment 0   │       segment of rows; a block has `lanes` × segments threads, and
//       ├──────────────┼──────────────┼──                 fewer than `lanes` idle ones
//       │ thread 32    │ thread 33    │
//
// At row t a thread has the window x[t-width+1 … t] and `width` unfinished sums of dx in registers. It computes pre and g once,
// adds g to dweight, dbias and the sums that g reaches, and stores the sum that is finished, dx[t-width+1]. A segment
// starts by reading the width-1 rows of x before it. Its first width-1 rows also contribute to the last width-1 rows of dx of
// the segment above. These halo contributions are left in shared memory; the thread of the segment above adds them when the block
// has finished. Only the block's last segment runs width-1 rows past its end.
//
// Rows come in chunks of ROWS, which the window's registers go round in, so that the register of every row in it is known at
// compile time. A ring prefetches `stages` chunks (causal_conv1d_backward_rings.cuh). Calls too small to fill the device have a
// kernel of their own (causal_conv1d_backward_short_last.cuh).
//
// Gates come through the ring too. The window holds products; the packets of x and B that they are made of wait in registers
// for the sum that is finished, which gives dx and dB. dC is stored as its row is computed.
//
// With a norm, the lanes of a head add its squares and dy·u by shuffles, row by row.
//
// A chunk is computed without masks if its rows and prefetches all lie inside the segment and its window in one sequence. Other
// chunks are masked.
//
// Cost per element: x, dy and dx once, and x once more for (width-1) / (rows of a segment) of the elements. Instructions, width
// 4, SiLU, 16 bit: 24.5 (pre 4, g 7, dweight and dbias 5, dx 4, conversion 2.5, memory 2); without SiLU 13.5.
// BackwardArguments, what the kernel is given, is written in backend/gpu/causal_conv1d/backward.rs.
#pragma once
#include "causal_conv1d_backward.cuh"
#include "causal_conv1d_backward_rings.cuh"

namespace causeway {
namespace causal_conv1d {

//   struct Tile {
//       static constexpr int threads;        of a block
//       static constexpr int lanes;          threads along dim
//       static constexpr int access;         of a packet; fewer bytes where rows begin at their multiples alone, and are copied in lines
//       static constexpr int channels;       of a packet
//       static constexpr int rows;           of a chunk, `width` at least
//       static constexpr int stages;         of the ring
//       static constexpr int cluster;        blocks that share channels, where they are a cluster; else 1
//       static constexpr int weight_bytes;   see load_parameters
//       static constexpr int head_lanes;     with a norm: threads of a head, which lie side by side in a wave
//   };
template <class Problem, class Tile> class ChannelLastBackward {
    using X = typename Problem::X;
    static constexpr int THREADS = Tile::threads, LANES = Tile::lanes, CHANNELS = Tile::channels;
    static constexpr int WIDTH = Problem::width, HALO = WIDTH - 1;
    static constexpr int ROWS = Tile::rows;
    // Registers that the window goes round in: a chunk has them all once, or several times.
    static constexpr int PERIOD = ROWS % WIDTH == 0 ? WIDTH : ROWS;
    static constexpr int BYTES = CHANNELS * (int)sizeof(X);
    static constexpr bool IN_LINES = Tile::access < BYTES;
    static_assert(!IN_LINES || LANES == (int)WAVE_SIZE, "a wave has a line");
    static constexpr bool HAS_BOUNDARIES = PACKED<Problem> || Problem::seq_idx;
    // Tensors of the ring: x, dy, and then the gates.
    static constexpr int B_TENSOR = 2, C_TENSOR = Problem::B ? 3 : 2, TENSORS = 2 + Problem::B + Problem::C;
    using Ring = typename RingOfRows<IN_LINES, BYTES, Tile::access, ROWS, Tile::stages, THREADS, TENSORS>::Type;
    // Whether chunks inside of a segment may copy rows past its end, which costs no instruction. With options it costs registers.
    static constexpr bool MASKS_COPIES = Ring::ASYNC && !HAS_BOUNDARIES && !Problem::norm && !Problem::B && !Problem::C;
    using Row = RowAccess<BYTES, Tile::access>;

    // Sums of the block's channels; segments whose sums a wave adds; lines of sums in shared memory that are left then.
    static constexpr int BLOCK_CHANNELS = LANES * CHANNELS;
    static constexpr int BLOCK_SUMS = BLOCK_CHANNELS * SUMS_OF<Problem>;
    static constexpr int SEGMENTS = THREADS / LANES;  // threads that are left over are idle
    static constexpr int SHARERS = LANES < (int)WAVE_SIZE && (int)WAVE_SIZE % LANES == 0 ? (int)WAVE_SIZE / LANES : 1;
    static constexpr int LINES = SEGMENTS / SHARERS;
    // Shared memory: the ring, in whose place the sums and a flag lie after the walk; then the shares of rows above.
    static constexpr u32 FLAG_AT = LINES * BLOCK_SUMS * 4;
    // Then, for a segment in which a sequence ends, dfinal_states of that sequence.
    static constexpr bool HOLDS_STATES = PACKED<Problem> && HALO > 0 && Problem::dfinal_states;
    static constexpr u32 SHARES_AT = Ring::SHARED_BYTES > FLAG_AT + 16 ? Ring::SHARED_BYTES : FLAG_AT + 16;

    static constexpr u32 DFINAL_AT = SHARES_AT + (u32)HALO * CHANNELS * THREADS * 4;
    // Then, where the blocks of a group are a cluster, what they send.
    static constexpr int CLUSTER = Tile::cluster;
    using SentSums = ClusterSums<CLUSTER, THREADS, BLOCK_SUMS>;
    static constexpr u32 SENT_AT = (DFINAL_AT + (HOLDS_STATES ? HALO * THREADS * BYTES : 0) + 7) / 8 * 8;

public:
    CAUSEWAY_DEVICE explicit ChannelLastBackward(const BackwardArguments& a) : a(a) {}

    CAUSEWAY_DEVICE void run(u32 block) {
        // Blocks of a cluster have numbers one after the other.
        const u32 part = CLUSTER > 1 ? block % CLUSTER : quotient(block, a.groups_divisor);
        const u32 group = CLUSTER > 1 ? block / CLUSTER : block - part * a.channel_groups;
        if constexpr (CLUSTER > 1) SentSums(SENT_AT).open();
        const u32 thread = thread_index(), line = thread / LANES;
        const u32 segment = part * SEGMENTS + line;
        channel = ((i64)group * LANES + thread % LANES) * CHANNELS;
        if constexpr (IN_LINES) channel = (i64)group * BLOCK_CHANNELS + number_in_block(thread % LANES, 0);
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
            for (int j = 0; j <= WIDTH; ++j) sums[j][c] = 0.0f;
        }
        bool active = line < (u32)SEGMENTS && segment < (u32)a.batch * a.pieces;
        if constexpr (IN_LINES) {
            // Lanes past the last channel help to copy.
            line_end = minimum(a.dim, ((i64)group + 1) * BLOCK_CHANNELS);
            rest = (i32)(line_end - channel) * (i32)sizeof(X);
        } else {
            active = active && channel < a.dim;
        }
        if (active) {
            enter(segment, line);
            walk();
        }
        block_barrier();  // all threads have left the ring and written their shares
        if (active && !runs_over) finish_last_rows();
        reduce(group, part);
    }

private:
    CAUSEWAY_DEVICE void enter(u32 segment, u32 line) {
        entry = (i32)quotient(segment, a.pieces_divisor);
        first = (i32)((segment - (u32)entry * a.pieces) * a.piece);
        const i32 seqlen = (i32)a.seqlen;
        last = seqlen - first < (i32)a.piece ? seqlen : first + (i32)a.piece;
        shares_above = line > 0 && first > 0;
        runs_over = last == seqlen || line == SEGMENTS - 1;
        fetch_end = !runs_over ? last : seqlen - last < HALO ? seqlen : last + HALO;
        x = opaque((const char*)a.x.data + (entry * a.x.entry + channel) * (i64)sizeof(X));
        dy = opaque((const char*)a.dy.data + (entry * a.dy.entry + channel) * (i64)sizeof(X));
        dx = (char*)a.dx.data + (entry * a.dx.entry + channel) * (i64)sizeof(X);
        if constexpr (Problem::B) b = opaque(first_row(a.b));
        if constexpr (Problem::C) gate = opaque(first_row(a.c));
        if constexpr (Problem::dB) db = first_row(a.db);
        if constexpr (Problem::dC) dc = first_row(a.dc);
    }

    // Where a lane has its channel c among those of the block.
    static CAUSEWAY_DEVICE u32 number_in_block(u32 lane, int c) {
        constexpr int PIECE = Row::PIECE / (int)sizeof(X);
        return (c / PIECE * LANES + lane) * PIECE + c % PIECE;
    }

    // Lanes at the end of a line may have channels that are not there; they read those of another.
    CAUSEWAY_DEVICE i64 channel_of(int c) const {
        if constexpr (!IN_LINES) return channel + c;
        return minimum(channel + number_in_block(0, c), a.dim - 1);
    }

    CAUSEWAY_DEVICE char* first_row(const Memory& view) const {
        return (char*)view.data + (entry * view.entry + channel) * (i64)sizeof(X);
    }

    CAUSEWAY_DEVICE void walk() {
        const i32 end = runs_over ? last + HALO : last;
        Packet<BYTES> before[HALO + 1];
#pragma unroll
        for (int j = 1; j <= HALO; ++j) {
            if (first - j >= 0) before[j] = Row::load(x + (i64)(first - j) * a.x_pitch);
        }
        Packet<BYTES> before_gate[HALO + 1];
        if constexpr (Problem::B) {
#pragma unroll
            for (int j = 1; j <= HALO; ++j) {
                if (first - j >= 0) before_gate[j] = Row::load(b + (i64)(first - j) * a.b_pitch);
            }
        }
        Ring ring = make_ring();
#pragma unroll
        for (int s = 0; s < Ring::AHEAD; ++s) fetch_chunk(ring, first + s * ROWS, false);
        load_weights();
        if constexpr (HAS_BOUNDARIES) enter_boundaries();
        if constexpr (HOLDS_STATES) hold_states();
#pragma unroll
        for (int j = 1; j <= HALO; ++j) {
            const i32 start = PACKED<Problem> ? sequence_now.start : 0;
            if (first - j >= start) {
                if constexpr (Problem::B) {
                    unpack_product<Problem>(before[j], before_gate[j], window[(PERIOD - j) % PERIOD]);
                } else {
                    unpack<X>(before[j], window[(PERIOD - j) % PERIOD]);
                }
            } else {
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) {
                    window[(PERIOD - j) % PERIOD][c] =
                        initial(PACKED<Problem> ? sequence_now.sequence : entry, c, HALO + first - j - start);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < PERIOD; ++i) {
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) unfinished[i][c] = 0.0f;
        }

        // The last rows of an entry have their share of dfinal_states.
        const i32 plain_end = Problem::dfinal_states ? minimum(last, (i32)a.seqlen - HALO) : last;
        for (i32 t = first; t < end; t += ROWS) {
            if constexpr (HAS_BOUNDARIES) load_indices(t);
            const bool inside = t > first && (MASKS_COPIES ? t + ROWS <= plain_end : t + (Ring::AHEAD + 1) * ROWS <= fetch_end);
            if (inside && (!HAS_BOUNDARIES || one_sequence(t))) {
                // With eight channels, what the compiler derives of t for both kinds of chunks at once is some registers too many.
                chunk<true>(ring, CHANNELS > 4 ? opaque(t) : t);
            } else {
                chunk<false>(ring, t);
            }
            if constexpr (HAS_BOUNDARIES) shift_indices();
        }
        if constexpr (Ring::ASYNC) async_wait<0>();
    }

    CAUSEWAY_DEVICE const char* x_at(i32 t) const { return x + (i64)t * a.x_pitch; }
    CAUSEWAY_DEVICE const char* dy_at(i32 t) const { return dy + (i64)t * a.dy_pitch; }
    CAUSEWAY_DEVICE const char* b_at(i32 t) const { return b + (i64)t * a.b_pitch; }
    CAUSEWAY_DEVICE const char* gate_at(i32 t) const { return gate + (i64)t * a.c_pitch; }

    CAUSEWAY_DEVICE Ring make_ring() const {
        if constexpr (IN_LINES) {
            const i32 before = (i32)lane_index() * Row::PIECE;
            return Ring(rest + before, [&](int tensor) -> typename Ring::Line {
                if (Problem::B && tensor == B_TENSOR) return {b_at(first) - before, a.b_pitch};
                if (Problem::C && tensor == C_TENSOR) return {gate_at(first) - before, a.c_pitch};
                if (tensor == 1) return {dy_at(first) - before, a.dy_pitch};
                return {x_at(first) - before, a.x_pitch};
            });
        } else {
            return Ring();
        }
    }

    // Fetches the chunk at t. Inside: all of its rows are there.
    CAUSEWAY_DEVICE void fetch_chunk(Ring& ring, i32 t, bool inside) const {
        if constexpr (IN_LINES) {
            if (t + ROWS <= fetch_end && t + ROWS < (i32)a.seqlen) {
                ring.template fetch<true>(t, fetch_end);
            } else {
                ring.template fetch<false>(t, fetch_end);
            }
        } else {
#pragma unroll
            for (int p = 0; p < ROWS; ++p) fetch_row(ring, p, t + p, inside);
        }
        ring.fetched();
    }

    CAUSEWAY_DEVICE void fetch_row(Ring& ring, int p, i32 t, bool inside) const {
        if constexpr (!IN_LINES) {
            const bool exists = inside || t < fetch_end;
            ring.fetch(p, x_at(t), dy_at(t), exists);
            if constexpr (Problem::B) ring.fetch_gate(p, B_TENSOR, b_at(t), exists);
            if constexpr (Problem::C) ring.fetch_gate(p, C_TENSOR, gate_at(t), exists);
        }
    }

    CAUSEWAY_DEVICE void load_weights() {
        float weights[CHANNELS][WIDTH];
        if constexpr (IN_LINES) {
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) {
                float own[1][WIDTH], own_bias[1];
                load_parameters<Problem, 1, Tile::weight_bytes>(a.weight, a.weight_strides, a.bias, a.bias_stride, channel_of(c), own, own_bias);
                bias[c] = own_bias[0];
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) weights[c][j] = own[0][j];
            }
        } else {
            load_parameters<Problem, CHANNELS, Tile::weight_bytes>(a.weight, a.weight_strides, a.bias,
                                                                   a.bias_stride, channel, weights, bias);
        }
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
            // Without opaque() the compiler keeps 16-bit weights packed, and unpacks them again in every row.
            for (int j = 0; j < WIDTH; ++j) weight[j][c] = opaque(weights[c][WIDTH - 1 - j]);
        }
    }

    // Element k of a sequence's initial states; 0 where there are none.
    CAUSEWAY_DEVICE float initial(i64 sequence, int c, int k) const {
        if constexpr (!Problem::initial_states) return 0.0f;
        return read<X>(a.initial_states, sequence, channel_of(c), k);
    }

    // ROWS rows from t on. Inside: every row and store lies in the segment, and every tap in one sequence, so that nothing is masked but
    // copies of rows that lie past its end.
    template <bool Inside> CAUSEWAY_DEVICE void chunk(Ring& ring, i32 t) {
        // Copies to shared memory are issued together, before the chunk's reads. Alternating them with reads costs extra
        // instructions, and each read would wait for the copy before it.
        ring.template wait<Ring::AHEAD>();
        if constexpr (Ring::ASYNC) fetch_chunk(ring, t + Ring::AHEAD * ROWS, Inside && !MASKS_COPIES);
#pragma unroll
        for (int p = 0; p < ROWS; ++p) {
            const Packet<BYTES> x_packet = ring.read(p, 0), dy_packet = ring.read(p, 1);
            Packet<BYTES> b_packet, c_packet;
            if constexpr (Problem::B) b_packet = ring.read(p, B_TENSOR);
            if constexpr (Problem::C) c_packet = ring.read(p, C_TENSOR);
            if constexpr (!Ring::ASYNC) fetch_row(ring, p, t + ROWS + p, Inside);
            if (!Inside && t + p >= last + HALO) continue;
            float d[CHANNELS];
            if constexpr (Problem::B) {
                unpack_product<Problem>(x_packet, b_packet, window[p % PERIOD]);
                factors[p % PERIOD][0] = x_packet;
                factors[p % PERIOD][1] = b_packet;
            } else {
                unpack<X>(x_packet, window[p % PERIOD]);
            }
            unpack<X>(dy_packet, d);
            if constexpr (Problem::C) unpack<X>(c_packet, row_gate);
            if constexpr (Inside) {
                unmasked_row(p, d);
            } else {
                masked_row(t + p, p, d);
            }
            if constexpr (Problem::dC) {
                if (Inside || t + p < last) store(dc + (i64)(t + p) * a.dc_pitch, row_dc);
            }
            const i32 finished = t + p - HALO;
            if (Inside || (finished >= first && finished < last)) {
                if constexpr (!Problem::B) {
                    store(dx + (i64)finished * a.dx_pitch, unfinished[(p + PERIOD - HALO) % PERIOD]);
                } else {
                    const Packet<BYTES>(&own)[2] = factors[(p + PERIOD - HALO) % PERIOD];
                    store_products(finished, unfinished[(p + PERIOD - HALO) % PERIOD], own[0], own[1]);
                }
            } else if (finished < first && shares_above) {
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) write_shared(share_at(thread_index(), p, c), unfinished[(p + PERIOD - HALO) % PERIOD][c]);
            }
        }
        ring.was_read();
    }

    CAUSEWAY_DEVICE void store(char* address, const float (&values)[CHANNELS]) const { Row::template store<X>(address, values, rest); }

    // Stores a row of dx and of dB, from the gradient of the product and what it was made of.
    CAUSEWAY_DEVICE void store_products(i32 t, const float (&sum)[CHANNELS], const Packet<BYTES>& x_packet,
                                        const Packet<BYTES>& b_packet) const {
        float dx_row[CHANNELS], db_row[CHANNELS];
        gradients_of_factors<Problem>(sum, x_packet, b_packet, dx_row, db_row);
        store(dx + (i64)t * a.dx_pitch, dx_row);
        if constexpr (Problem::dB) store(db + (i64)t * a.db_pitch, db_row);
    }

    // Where a thread leaves its share of dx[first - HALO + i].
    static CAUSEWAY_DEVICE u32 share_at(u32 thread, int i, int c) {
        return SHARES_AT + ((u32)(i * CHANNELS + c) * THREADS + thread) * 4;
    }

    // Stores the last HALO rows of dx of a segment, with the shares from the segment below. Such a segment is a whole number of
    // chunks, so rows are in the same registers as at its start.
    CAUSEWAY_DEVICE void finish_last_rows() const {
#pragma unroll
        for (int i = 0; i < HALO; ++i) {
            float sums_of_row[CHANNELS];
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) {
                sums_of_row[c] = unfinished[(PERIOD - HALO + i) % PERIOD][c] + read_shared(share_at(thread_index() + LANES, i, c));
            }
            if constexpr (!Problem::B) {
                store(dx + (i64)(last - HALO + i) * a.dx_pitch, sums_of_row);
            } else {
                const i32 t = last - HALO + i;
                const bool counts = position_index<Problem>(a, entry, t) >= 0;
                const Packet<BYTES> x_packet = Row::load_if(counts, x_at(t));
                const Packet<BYTES> b_packet = Row::load_if(counts, b_at(t));
                store_products(t, sums_of_row, x_packet, b_packet);
            }
        }
    }

    // The head of this thread's channels in a row, of which pre(c) is the sum of taps. All lanes of a head have the same rows.
    template <class Pre> CAUSEWAY_DEVICE HeadAt head_of(const Pre& pre, const float (&d)[CHANNELS]) const {
        float squares = 0.0f, projection = 0.0f;
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
            const float u = activate<Problem>(pre(c));
            squares = multiply_add(u, u, squares);
            projection = multiply_add(d[c], u, projection);
        }
        add_within<Tile::head_lanes>(squares, projection);
        const float inverse = inverse_root(squares + as_float(a.norm.eps));
        return {inverse, projection * inverse};
    }

    CAUSEWAY_DEVICE void unmasked_row(int p, const float (&d)[CHANNELS]) {
        HeadAt head{};
        if constexpr (Problem::norm) {
            head = head_of([&](int c) {
                float pre = bias[c];
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) pre = multiply_add(weight[j][c], window[(p + PERIOD - j) % PERIOD][c], pre);
                return pre;
            }, d);
        }
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
            float pre = bias[c], forward_pre = bias[c];
            if constexpr (Problem::silu || Problem::norm) {
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) pre = multiply_add(weight[j][c], window[(p + PERIOD - j) % PERIOD][c], pre);
            }
            if constexpr (Problem::dC) {
#pragma unroll
                for (int j = WIDTH - 1; j >= 0; --j) {
                    forward_pre = multiply_add(weight[j][c], window[(p + PERIOD - j) % PERIOD][c], forward_pre);
                }
            }
            float g;
            if constexpr (Problem::C) {
                g = gated_gradient<Problem>(pre, forward_pre, d[c], row_gate[c], row_dc[c]);
            } else if constexpr (Problem::norm) {
                g = head.template gradient<Problem>(a, pre, d[c]);
            } else {
                g = activation_gradient<Problem::silu>(pre, d[c]);
            }
            if constexpr (Problem::dbias) sums[WIDTH][c] += g;
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                sums[j][c] = multiply_add(g, window[(p + PERIOD - j) % PERIOD][c], sums[j][c]);
                float& sum = unfinished[(p + PERIOD - j) % PERIOD][c];
                sum = j == 0 ? weight[0][c] * g : multiply_add(weight[j][c], g, sum);
            }
        }
    }

    CAUSEWAY_DEVICE void masked_row(i32 t, int p, const float (&d)[CHANNELS]) {
        Span<i32> sequence = {entry, 0, (i32)a.seqlen};
        i32 index = 0;
        if constexpr (PACKED<Problem>) {
            if (t >= sequence_now.end) enter_sequence(t, p);
            sequence = sequence_now;
        }
        if constexpr (Problem::seq_idx) index = indices[HALO + p];
        const i32 reach = t - sequence.start;  // rows of its sequence before this one
        const i32 left = sequence.end - t;
        if constexpr (Problem::B && Problem::seq_idx) {
            // Padding gives and takes nothing, whatever it holds.
            if (index < 0) factors[p % PERIOD][0] = factors[p % PERIOD][1] = zero_packet<BYTES>();
        }
        float begun[CHANNELS];
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) begun[c] = 0.0f;
        if constexpr (Problem::dfinal_states) {
            if (t < last && left > 0 && left <= HALO && index >= 0) {
                if (HOLDS_STATES && sequence.sequence == held_sequence) {
                    unpack<X>(load_shared<BYTES>(held_at(HALO - left)), begun);
                } else {
#pragma unroll
                    for (int c = 0; c < CHANNELS; ++c) {
                        begun[c] = read<X>(a.dfinal_states, sequence.sequence, channel_of(c), HALO - left);
                    }
                }
            }
        }
        const auto tap = [&](int c, int j) {
            const float value = window[(p + PERIOD - j) % PERIOD][c];
            if constexpr (!Problem::seq_idx) return value;
            // A select, since 0 · NaN would be NaN.
            return index < 0 || indices[HALO + p - j] != index ? 0.0f : value;
        };
        HeadAt head{};
        if constexpr (Problem::norm) {
            head = head_of([&](int c) {
                float pre = bias[c];
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) pre = multiply_add(weight[j][c], tap(c, j), pre);
                return pre;
            }, d);
        }
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
            float taps[WIDTH];
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) taps[j] = tap(c, j);
            float pre = bias[c], forward_pre = bias[c];
            if constexpr (Problem::silu || Problem::norm) {
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) pre = multiply_add(weight[j][c], taps[j], pre);
            }
            if constexpr (Problem::dC) {
#pragma unroll
                for (int j = WIDTH - 1; j >= 0; --j) forward_pre = multiply_add(weight[j][c], taps[j], forward_pre);
            }
            float g;
            if constexpr (Problem::C) {
                g = gated_gradient<Problem>(pre, forward_pre, d[c], row_gate[c], row_dc[c]);
            } else if constexpr (Problem::norm) {
                g = head.template gradient<Problem>(a, pre, d[c]);
            } else {
                g = activation_gradient<Problem::silu>(pre, d[c]);
            }
            // Past the end of the entry pre may overflow, and with dy = 0 the product would be NaN.
            if (index < 0 || ((Problem::silu || Problem::norm) && t >= (i32)a.seqlen)) g = 0.0f;
            if (Problem::dC && index < 0) row_dc[c] = 0.0f;
            if (t < last) {
                if constexpr (Problem::dbias) sums[WIDTH][c] += g;
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) sums[j][c] = multiply_add(g, taps[j], sums[j][c]);
            }
            unfinished[p % PERIOD][c] = multiply_add(weight[0][c], g, begun[c]);
#pragma unroll
            for (int j = 1; j < WIDTH; ++j) {
                bool reaches = true;
                if constexpr (PACKED<Problem>) reaches = j <= reach;
                if constexpr (Problem::seq_idx) reaches = reaches && indices[HALO + p - j] == index;
                float& sum = unfinished[(p + PERIOD - j) % PERIOD][c];
                if (reaches) sum = multiply_add(weight[j][c], g, sum);
            }
        }
    }

    // ---- boundaries: which sequence a row is in, and the index it carries ------------------------------------------

    CAUSEWAY_DEVICE i32 index_at(i32 t) const {
        // What stands before a sequence, initial_states or zeros, carries the index of its first row.
        const i32 start = PACKED<Problem> ? sequence_now.start : 0;
        return position_index<Problem>(a, entry, maximum(t, start));
    }

    CAUSEWAY_DEVICE void enter_boundaries() {
        if constexpr (PACKED<Problem>) {
            sequence_now = sequence_at<Problem, i32>(a, entry, first);
        }
        if constexpr (Problem::seq_idx) {
#pragma unroll
            for (int j = 1; j <= HALO; ++j) indices[HALO - j] = index_at(first - j);
#pragma unroll
            for (int p = 0; p < ROWS; ++p) next_indices[p] = first + p < fetch_end ? index_at(first + p) : -1;
        }
    }

    // Takes the indices of the chunk at t, which were fetched before, and fetches those of the next chunk.
    CAUSEWAY_DEVICE void load_indices(i32 t) {
        if constexpr (Problem::seq_idx) {
#pragma unroll
            for (int p = 0; p < ROWS; ++p) {
                indices[HALO + p] = next_indices[p];
                const i32 next = t + ROWS + p;
                next_indices[p] = next < fetch_end ? index_at(next) : -1;
            }
        }
    }

    CAUSEWAY_DEVICE void shift_indices() {
        if constexpr (Problem::seq_idx) {
#pragma unroll
            for (int j = 0; j < HALO; ++j) indices[j] = indices[ROWS + j];
        }
    }

    // True when the chunk at t needs no masks: it and the HALO rows before it carry one index and lie in one sequence, and
    // dfinal_states are added to none of its rows.
    CAUSEWAY_DEVICE bool one_sequence(i32 t) const {
        bool same = true;
        if constexpr (Problem::seq_idx) {
            same = indices[0] >= 0;
#pragma unroll
            for (int i = 1; i < HALO + ROWS; ++i) same = same && indices[i] == indices[0];
        }
        if constexpr (PACKED<Problem>) {
            const i32 end = t + ROWS + (Problem::dfinal_states ? HALO : 0);
            same = same && t - HALO >= sequence_now.start && end <= sequence_now.end;
        }
        return same;
    }

    // Enters the sequence that begins at row t. Its initial states take the place of the rows before it in the window, so that taps
    // need no mask. Where cu_seqlens does not ascend to seqlen, the last sequence goes on to the end.
    CAUSEWAY_DEVICE void enter_sequence(i32 t, int p) {
        boundaries<Problem, i32>(a).advance(sequence_now, t);
        if (t < sequence_now.end) {
            sequence_now.start = t;
        } else {
            sequence_now.end = (i32)a.seqlen;
        }
#pragma unroll
        for (int j = 1; j < WIDTH; ++j) {
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) {
                window[(p + PERIOD - j) % PERIOD][c] = initial(sequence_now.sequence, c, HALO - j);
            }
            if constexpr (Problem::seq_idx) indices[HALO + p - j] = indices[HALO + p];
        }
    }

    // Loads dfinal_states of the segment's first sequence into shared memory, if the sequence ends in the segment. Loaded row by
    // row, they would wait for the copies in flight.
    CAUSEWAY_DEVICE void hold_states() {
        const bool ends = sequence_now.end - HALO < last;
        held_sequence = ends ? sequence_now.sequence : -1;
        if (!ends) return;
        float values[HALO + 1][CHANNELS];
#pragma unroll
        for (int k = 0; k < HALO; ++k) {
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) values[k][c] = read<X>(a.dfinal_states, held_sequence, channel_of(c), k);
        }
#pragma unroll
        for (int k = 0; k < HALO; ++k) store_shared<BYTES>(held_at(k), pack<X, BYTES>(values[k]));
    }

    static CAUSEWAY_DEVICE u32 held_at(i32 k) { return DFINAL_AT + ((u32)k * THREADS + thread_index()) * BYTES; }

    // ---- sums over the block's segments, then over blocks ----------------------------------------------------------

    CAUSEWAY_DEVICE void reduce(u32 group, u32 part) {
        // Lanes of a wave that share channels add their sums first: always the same pairs, so always the same bits.
#pragma unroll
        for (u32 mask = LANES; SHARERS > 1 && mask < WAVE_SIZE; mask <<= 1) {
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
                for (int j = 0; j <= WIDTH; ++j) {
                    if (j < WIDTH || Problem::dbias) sums[j][c] += shuffle_xor(sums[j][c], mask);
                }
            }
        }
        const u32 thread = thread_index(), line = thread / LANES;
        if (line % SHARERS == 0 && line < (u32)SEGMENTS) {
            const u32 at = (line / SHARERS * BLOCK_SUMS + number_in_block(thread % LANES, 0)) * 4;
#pragma unroll
            for (int j = 0; j <= WIDTH; ++j) {
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) {
                    if (j < WIDTH || Problem::dbias) write_shared(at + (j * BLOCK_CHANNELS + number_in_block(0, c)) * 4, sums[j][c]);
                }
            }
        }
        block_barrier();
        const i64 first_channel = (i64)group * BLOCK_CHANNELS;
        if constexpr (CLUSTER > 1) {
            SentSums(SENT_AT).add(
                part,
                [](int i) {
                    float sum = 0.0f;
#pragma unroll 8
                    for (int line = 0; line < LINES; ++line) sum += read_shared((line * BLOCK_SUMS + i) * 4);
                    return sum;
                },
                [&](int i, float sum) {
                    const i64 c = first_channel + i % BLOCK_CHANNELS;
                    if (c < a.dim) write_sum<Problem>(a, c, i / BLOCK_CHANNELS, sum);
                });
            return;
        }
        // Several sums at a time; fewer where the walk needs few registers, so that this does not need more.
        constexpr int VECTOR = CHANNELS % 4 == 0 ? 4 : BLOCK_CHANNELS % 2 == 0 ? 2 : 1;
        sum_over_blocks<THREADS, VECTOR>(
            a, group, part, BLOCK_SUMS, FLAG_AT,
            [&](int i, float (&values)[VECTOR]) {
#pragma unroll
                for (int k = 0; k < VECTOR; ++k) values[k] = 0.0f;
#pragma unroll 4
                for (int line = 0; line < LINES; ++line) {
                    const Packet<VECTOR * 4> packet = load_shared<VECTOR * 4>((line * BLOCK_SUMS + i) * 4);
#pragma unroll
                    for (int k = 0; k < VECTOR; ++k) values[k] += as_float(packet.word[k]);
                }
            },
            [&](int i, const float (&values)[VECTOR]) {
#pragma unroll
                for (int k = 0; k < VECTOR; ++k) {
                    const i64 c = first_channel + i % BLOCK_CHANNELS + k;
                    if (c < a.dim) write_sum<Problem>(a, c, i / BLOCK_CHANNELS, values[k]);
                }
            });
    }

    const BackwardArguments& a;
    i64 channel, line_end;  // the thread's first one, and the one after the line's last
    i32 rest = 0;           // bytes between them
    i32 entry;
    i32 first, last, fetch_end;  // the segment's first row and the one after its last; the end of the rows that it reads
    bool shares_above, runs_over = true;
    const char *x, *dy, *b, *gate;  // gate: of C
    char *dx, *db, *dc;
    Packet<BYTES> factors[PERIOD][2];              // of x and B, of the rows in the window
    float row_gate[CHANNELS], row_dc[CHANNELS];    // C of a row, and its gradient
    float weight[WIDTH][CHANNELS], bias[CHANNELS];
    float window[PERIOD][CHANNELS];      // x[t-j] at (t-first-j) mod PERIOD
    float unfinished[PERIOD][CHANNELS];  // sums of dx[t-j], likewise
    float sums[WIDTH + 1][CHANNELS];    // dweight of tap j, then dbias
    i32 indices[HALO + ROWS], next_indices[ROWS];
    Span<i32> sequence_now;
    i32 held_sequence;  // whose dfinal_states are in shared memory
};

template <class Problem, class Tile>
CAUSEWAY_DEVICE void backward_channel_last(const BackwardArguments& a, u32 block = block_index<0>()) {
    run_or_states<ChannelLastBackward<Problem, Tile>, Problem, Tile::threads>(a, block);
}

}  // namespace causal_conv1d
}  // namespace causeway
