// Causal depthwise conv1d, forward, x[b, t, c] with stride 1 along dim.
//
//            dim →  lane 0   lane 1   …   lanes-1
//   t0-(width-1)  [ packet ][ packet ]            the halo: read again by this thread, from a cache
//        …
//   t0            [ packet ][ packet ]     …      one packet of neighbouring channels per thread and row
//   t0+1          [ packet ][ packet ]     …
//        …                                        a thread owns `rows` rows, a block `segments` times as many
//   t0+rows-1     [ packet ][ packet ]     …
//
// A thread starts all its loads, then walks down its rows with the last `width` of them in registers. No shared
// memory, no barrier. Per element, width 4, bf16: 4 FMA, 1 to unpack, 0.5 to pack, 5 for SiLU, about 1 for addresses
// and parameters.
//
//   struct Tile {
//       static constexpr int bytes = 16;         of a packet; every row and state of x, y, residual allows it
//       static constexpr int lanes = 32;         threads along dim
//       static constexpr int segments = 4;       threads along seqlen
//       static constexpr int rows = 8;           positions per thread
//       static constexpr int weight_bytes = 16;  see load_parameters
//   };
#pragma once
#include "causal_conv1d_forward.cuh"

namespace causeway {
namespace causal_conv1d {

template <class Problem, class Tile> CAUSEWAY_DEVICE void forward_channel_last(const ForwardArguments& a) {
    using X = typename Problem::X;
    constexpr int WIDTH = Problem::width, HALO = WIDTH - 1, ROWS = Tile::rows, BYTES = Tile::bytes;
    constexpr int CHANNELS = ELEMENTS<X, BYTES>;
    constexpr int THREADS = Tile::lanes * Tile::segments;

    const i64 batch = layered_block(a.batches_per_layer);
    if (batch >= a.batch) return;
    u32 block = block_index<0>();
    if constexpr (Problem::final_states) {
        if (block < a.state_blocks) return write_final_states<Problem, THREADS>(a, batch);
        block -= a.state_blocks;
    }
    const u32 row_block = a.tile_divisor.quotient(block);
    const u32 channel_block = block - row_block * a.tile_divisor.value;
    const u32 lane = thread_index() % Tile::lanes, segment = thread_index() / Tile::lanes;
    const i32 channel = (i32)((channel_block * Tile::lanes + lane) * CHANNELS);
    const i32 seqlen = (i32)a.seqlen;
    const i32 first = (i32)((row_block * Tile::segments + segment) * ROWS);
    if (channel >= (i32)a.dim || first >= seqlen) return;

    // Addresses of row `first`; rows around it are a 32-bit number of bytes away.
    const char* x = (const char*)at<X>(a.x, batch * a.x_strides.batch + channel + first * a.x_strides.seqlen);
    const i32 x_step = (i32)(a.x_strides.seqlen * sizeof(X));
    char* y = (char*)at<X>(a.y, batch * a.y_strides.batch + channel + first * a.y_strides.seqlen);
    const i32 y_step = (i32)(a.y_strides.seqlen * sizeof(X));

    Packet<BYTES> packets[HALO + ROWS];
#pragma unroll
    for (int i = 0; i < HALO + ROWS; ++i) {
        const i32 t = first - HALO + i;
        const bool inside = i < HALO ? t >= 0 : t < seqlen;
        packets[i] = inside ? load<BYTES>(x + (i64)(i - HALO) * x_step) : zero_packet<BYTES>();
    }
    Packet<BYTES> residual[Problem::residual ? ROWS : 1];
    if constexpr (Problem::residual) {
        const char* from = (const char*)at<X>(a.residual, batch * a.residual_strides.batch + channel +
                                                              first * a.residual_strides.seqlen);
        const i32 step = (i32)(a.residual_strides.seqlen * sizeof(X));
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            residual[i] = first + i < seqlen ? load<BYTES>(from + (i64)i * step) : zero_packet<BYTES>();
        }
    }

    // Indices of the rows, where a row before the start carries that of the start.
    i32 index[Problem::seq_idx ? HALO + ROWS : 1];
    const i32* indices = nullptr;
    if constexpr (Problem::seq_idx) {
        indices = at<i32>(a.seq_idx, batch * a.seq_idx_strides.first);
#pragma unroll
        for (int i = 0; i < HALO + ROWS; ++i) {
            const i32 t = minimum(maximum(first - HALO + i, 0), seqlen - 1);
            index[i] = (i32)load<4>(indices + t * a.seq_idx_strides.second).word[0];
        }
    }
    const Boundaries<Problem::cu_seqlens, i32> boundaries{a.cu_seqlens, a.cu_seqlens_stride, (i32)a.sequences, seqlen};
    Span<i32> span{(i32)batch, 0, seqlen};
    if constexpr (Problem::cu_seqlens != 0) span = boundaries.find(first);

    float taps[CHANNELS][WIDTH], bias[CHANNELS];
    load_parameters<Problem, CHANNELS, Tile::weight_bytes>(a.weight, a.weight_strides, a.bias, a.bias_stride, channel,
                                                           taps, bias);

    // Row i of the walk lies in slot i % width of the window.
    float window[WIDTH][CHANNELS];
#pragma unroll
    for (int i = 0; i < HALO; ++i) {
        unpack<X>(packets[i], window[i]);
        if constexpr (Problem::initial_states && Problem::cu_seqlens == 0) {
            const i32 column = first + i;  // of the initial states, if the row lies before the start
            if (column < HALO) {
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) {
                    window[i][c] = load_element(at<X>(
                        a.initial_states, batch * a.initial_strides.batch + (channel + c) * a.initial_strides.dim +
                                              column * a.initial_strides.seqlen));
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const i32 t = first + i;
        unpack<X>(packets[HALO + i], window[(HALO + i) % WIDTH]);
        float sum[CHANNELS];
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) sum[c] = bias[c];

        // valid[w]: tap w reads a position of the output's own sequence and index.
        bool valid[WIDTH];
#pragma unroll
        for (int w = 0; w < WIDTH; ++w) valid[w] = true;
        if constexpr (Problem::cu_seqlens != 0) {
            boundaries.advance(span, t);
            const i32 age = t - span.start;
#pragma unroll
            for (int w = 0; w < HALO; ++w) valid[w] = HALO - w <= age;
            if constexpr (Problem::initial_states) {
                if (age < HALO && age >= 0 && t < seqlen) {
                    bool same = true;
                    if constexpr (Problem::seq_idx) {
                        same = (i32)load<4>(indices + span.start * a.seq_idx_strides.second).word[0] == index[HALO + i];
                    }
                    const X* states = at<X>(a.initial_states, span.sequence * a.initial_strides.batch +
                                                                  channel * a.initial_strides.dim);
#pragma unroll
                    for (int w = 0; w < HALO; ++w) {
                        if (valid[w] || !same) continue;
#pragma unroll
                        for (int c = 0; c < CHANNELS; ++c) {
                            const float state = load_element(states + c * a.initial_strides.dim +
                                                             (w + age) * a.initial_strides.seqlen);
                            sum[c] = multiply_add(taps[c][w], state, sum[c]);
                        }
                    }
                }
            }
        }
        if constexpr (Problem::seq_idx) {
#pragma unroll
            for (int w = 0; w < HALO; ++w) valid[w] = valid[w] && index[i + w] == index[HALO + i];
        }
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
            for (int w = 0; w < WIDTH; ++w) {
                const float next = multiply_add(taps[c][w], window[(i + w) % WIDTH][c], sum[c]);
                sum[c] = valid[w] ? next : sum[c];
            }
            sum[c] = activate<Problem>(sum[c]);
            if constexpr (Problem::seq_idx) sum[c] = index[HALO + i] < 0 ? 0.0f : sum[c];
        }
        if constexpr (Problem::residual) {
            float add[CHANNELS];
            unpack<X>(residual[i], add);
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) sum[c] += add[c];
        }
        if (t < seqlen) store<BYTES>(y + (i64)i * y_step, pack<X, BYTES>(sum));
    }
}

}  // namespace causal_conv1d
}  // namespace causeway
