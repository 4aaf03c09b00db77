// Matrix products through matrix units: the tile kernel that all units without asynchronous matrix instructions share.
//
//   result[i,j] = Σ_r left[i,r] · right[r,j]          sums in f32, in the unit's own order
//
// A block computes a tile of the result. Tiles of the operands, `depth` terms deep, go through a ring of `stages` stages in
// shared memory. Each wave computes a rectangle of the tile by the unit's instructions, on fragments of SIZE × 16 elements.
//
//   left tile                   right tile                the tile's waves (here 2 down, 4 across)
//   rows × depth                columns × depth
//                                                         ┌────┬────┬────┬────┐
//   ┌──┬──┬──┬──┐ ▲             ┌──┬──┬──┬──┐ ▲           │ w0 │ w1 │ w2 │ w3 │
//   │c0│c1│c2│c3│ rows          │c0│c1│c2│c3│ columns     ├────┼────┼────┼────┤
//   └──┴──┴──┴──┘ ▼             └──┴──┴──┴──┘ ▼           │ w4 │ w5 │ w6 │ w7 │
//   chunks of 8 terms                                     └────┴────┴────┴────┘
//
// All three products are this kernel: operands are read along the axis that is dense in memory. Where the unit loads
// fragments from lines along either axis (NVIDIA's ldmatrix), a tile in shared memory has the lines that memory has;
// elsewhere its lines always run along the reduction, and an operand that does not is transposed in registers on the
// way. Chunks of a line are swizzled by the line's number, so that neighbouring lines lie in different banks.
//
// Terms past the end are zeros in both operands. Elements past the end of the outer axis may hold any value: they change no
// result that exists.
//
// Split-K: a small result leaves multiprocessors idle, so its reduction is cut into parts. Each part's block writes its sums to
// its own place in the workspace, and the block that arrives last adds them in the order of the parts. The bits are the same in
// whatever order blocks run.
//
// Cost per wave of the usual 64 × 32 outputs and 16 terms: 6 fragments from shared memory for 8 products of 16 × 16 × 16.
#pragma once
#include "gemm.cuh"

namespace causeway {
namespace gemm {

// ---- operand tiles in shared memory --------------------------------------------------------------------------------

// Where the chunks of a tile are, with lines of PerLine chunks.
template <int PerLine> CAUSEWAY_DEVICE u32 chunk_offset(int line, int chunk) {
    const int swizzle = PerLine >= 8 ? line & 7 : PerLine == 4 ? line >> 1 & 3 : PerLine == 2 ? line >> 2 & 1 : 0;
    return (u32)(line * PerLine + (chunk ^ swizzle)) * 16;
}

// Moves an operand's tiles to shared memory and keeps their lines as they are.
template <bool AlongReduction, int Bytes, int Outer, int Depth, int Threads> class DirectLoader {
    static constexpr int LINES = AlongReduction ? Outer : Depth;
    static constexpr int PER_LINE = (AlongReduction ? Depth : Outer) / CHUNK;
    static constexpr int LINE_STEP = Threads / PER_LINE, COUNT = LINES / LINE_STEP;
    static constexpr bool ASYNC = HAS_ASYNC_COPY && Bytes >= 4;
    static_assert(LINE_STEP * PER_LINE == Threads && COUNT * LINE_STEP == LINES, "threads share the chunks evenly");

public:
    CAUSEWAY_DEVICE DirectLoader(const Operand& operand, i64 first_outer, i64 outer_size, i64 first_term) {
        const i64 outer = first_outer + (AlongReduction ? line() : position());
        const i64 term = first_term + (AlongReduction ? position() : line());
        address_ = element_address(operand.data, outer * operand.outer_stride + term * operand.reduction_stride);
        outer_exist_ = outer_size - first_outer < Outer ? (int)(outer_size - first_outer) : Outer;
    }

    // Starts reading the next tile, of which `terms` terms exist, into the stage at `base`. store() completes it.
    CAUSEWAY_DEVICE void fetch(const Operand& operand, int terms, u32 base) {
        const int lines = AlongReduction ? outer_exist_ : terms;
        const int count = chunk_count((AlongReduction ? terms : outer_exist_) - position());
        const i64 line_stride = AlongReduction ? operand.outer_stride : operand.reduction_stride;
        const i64 stride = AlongReduction ? operand.reduction_stride : operand.outer_stride;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const char* const address = address_ + line_stride * (i * LINE_STEP * 2);
            const int exist = line() + i * LINE_STEP < lines ? count : 0;
            if constexpr (ASYNC) {
#pragma unroll
                for (int piece = 0; piece < 16 / Bytes; ++piece) {
                    const int bytes = exist * 2 - piece * Bytes;
                    async_copy_first<Bytes>(base + chunk_offset<PER_LINE>(line() + i * LINE_STEP, position() / CHUNK) +
                                                piece * Bytes,
                                            bytes > 0 ? (const void*)(address + piece * Bytes) : operand.data,
                                            bytes < 0 ? 0 : bytes > Bytes ? Bytes : bytes);
                }
            } else {
                chunks_[i] = load_chunk<Bytes>(address, stride, exist, 0);
            }
        }
        address_ += operand.reduction_stride * (Depth * 2);
    }

    CAUSEWAY_DEVICE void store(u32 base) const {
        if constexpr (!ASYNC) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                store_shared(base + chunk_offset<PER_LINE>(line() + i * LINE_STEP, position() / CHUNK), chunks_[i]);
            }
        }
    }

private:
    static CAUSEWAY_DEVICE int line() { return (int)thread_index() / PER_LINE; }
    static CAUSEWAY_DEVICE int position() { return (int)thread_index() % PER_LINE * CHUNK; }

    const char* address_;
    int outer_exist_;
    Packet<16> chunks_[ASYNC ? 1 : COUNT];
};

// Transposes on the way: lines run along the outer axis in memory and along the reduction in shared memory. A thread reads EACH
// neighbours of 8 lines, which make EACH chunks along the reduction.
template <int Bytes, int Outer, int Depth, int Threads> class TransposingLoader {
    static constexpr int EACH = Bytes == 2 ? 1 : 2;
    static constexpr int ACROSS = Outer / EACH, PER_LINE = Depth / CHUNK;
    static constexpr int CHUNK_STEP = Threads / ACROSS, COUNT = PER_LINE / CHUNK_STEP;
    // With fewer chunks than threads, the last threads have none.
    static constexpr bool ALL = CHUNK_STEP <= PER_LINE;
    static constexpr int HELD = ALL ? COUNT : 1;
    static_assert(CHUNK_STEP * ACROSS == Threads, "threads share the chunks evenly");

public:
    CAUSEWAY_DEVICE TransposingLoader(const Operand& operand, i64 first_outer, i64 outer_size, i64 first_term) {
        address_ = element_address(operand.data, (first_outer + outer()) * operand.outer_stride +
                                                     (first_term + chunk() * CHUNK) * operand.reduction_stride);
        const i64 exist = outer_size - first_outer - outer();
        outer_exist_ = exist < 0 ? 0 : exist < EACH ? (int)exist : EACH;
    }

    CAUSEWAY_DEVICE void fetch(const Operand& operand, int terms, u32) {
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            const int first = (chunk() + i * CHUNK_STEP) * CHUNK;
            const char* address = address_ + operand.reduction_stride * (i * CHUNK_STEP * CHUNK * 2);
#pragma unroll
            for (int k = 0; k < CHUNK; ++k) {
                const int exist = first + k < terms && (ALL || first < Depth) ? outer_exist_ : 0;
                u32 word = 0;
                if (EACH == 2 && exist == 2) {
                    word = load<4>(address).word[0];
                } else if (exist > 0) {
                    word = load<2>(address).word[0];
                }
                words_[i][k] = word;
                address += operand.reduction_stride * 2;
            }
        }
        address_ += operand.reduction_stride * (Depth * 2);
    }

    CAUSEWAY_DEVICE void store(u32 base) const {
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            if (!ALL && chunk() >= PER_LINE) continue;
#pragma unroll
            for (int e = 0; e < EACH; ++e) {
                Packet<16> packet;
#pragma unroll
                for (int w = 0; w < CHUNK / 2; ++w) {
                    const u32 low = words_[i][2 * w], high = words_[i][2 * w + 1];
                    packet.word[w] = e == 0 ? (low & 0xffffu) | high << 16 : low >> 16 | (high & 0xffff0000u);
                }
                store_shared(base + chunk_offset<PER_LINE>(outer() + e, chunk() + i * CHUNK_STEP), packet);
            }
        }
    }

private:
    static CAUSEWAY_DEVICE int outer() { return (int)thread_index() % ACROSS * EACH; }
    static CAUSEWAY_DEVICE int chunk() { return (int)thread_index() / ACROSS; }

    const char* address_;
    int outer_exist_;
    u32 words_[HELD][CHUNK];
};

namespace detail {
template <bool Direct, bool AlongReduction, int Bytes, int Outer, int Depth, int Threads> struct LoaderChoice {
    using type = DirectLoader<AlongReduction, Bytes, Outer, Depth, Threads>;
};
template <bool AlongReduction, int Bytes, int Outer, int Depth, int Threads>
struct LoaderChoice<false, AlongReduction, Bytes, Outer, Depth, Threads> {
    using type = TransposingLoader<Bytes, Outer, Depth, Threads>;
};
}  // namespace detail

// ---- the product ---------------------------------------------------------------------------------------------------

// `Problem` is as for the exact kernel; results are stored by accesses of up to 16 bytes.
//
//   struct Tile {
//       static constexpr int rows = 128, columns = 128, depth = 32;
//       static constexpr int threads = 256, waves_down = 2, waves_across = 4, stages = 4;
//   };
//
// `Unit` is a matrix unit: gemm_mma.cuh, gemm_mfma.cuh, gemm_mfma_gfx90a.cuh or gemm_wmma.cuh.
//
//   struct Unit {
//       static constexpr int SIZE;                 rows of a fragment, and of a product
//       static constexpr int SUMS;                 of a product, per lane
//       static constexpr bool LOADS_ALONG_OUTER;   fragments from lines along the outer axis too
//       static constexpr bool PAIRS;               sums 2i and 2i+1 are neighbours in a row
//       static constexpr bool CHOOSES;             between two units by what the fragments hold; see below
//       struct Fragment;
//       template <int PerLine, bool AlongReduction> static Fragment load(u32 base, int outer, int term);
//       static void multiply_add(const Fragment& left, const Fragment& right, float (&sums)[SUMS]);
//       static int row(int sum), column(int sum);  of this lane's sums within a product
//   };
//
// One that chooses has the units Fast and Any, with the same fragments and sums, instead of multiply_add. A wave uses Fast
// up to the first step with fragments that fail fits(lefts, rights), and Any from then on: Fast need not cope with sums
// that Any left.
template <class Problem, class Tile, class Unit> class TileProduct {
    using T = typename Problem::T;
    static constexpr int THREADS = Tile::threads, DEPTH = Tile::depth, STAGES = Tile::stages, SIZE = Unit::SIZE;
    static constexpr int DOWN = Tile::rows / Tile::waves_down / SIZE;
    static constexpr int ACROSS = Tile::columns / Tile::waves_across / SIZE;
    static_assert(Tile::waves_down * Tile::waves_across * (int)WAVE_SIZE == THREADS, "every wave has a rectangle");
    static_assert(DOWN * SIZE * Tile::waves_down == Tile::rows && ACROSS * SIZE * Tile::waves_across == Tile::columns,
                  "fragments cover the tile");

    static constexpr bool LEFT_ALONG = Problem::left_along_reduction || !Unit::LOADS_ALONG_OUTER;
    static constexpr bool RIGHT_ALONG = Problem::right_along_reduction || !Unit::LOADS_ALONG_OUTER;
    static constexpr int LEFT_PER_LINE = (LEFT_ALONG ? DEPTH : Tile::rows) / CHUNK;
    static constexpr int RIGHT_PER_LINE = (RIGHT_ALONG ? DEPTH : Tile::columns) / CHUNK;
    using LeftLoader = typename detail::LoaderChoice<LEFT_ALONG == Problem::left_along_reduction,
                                                     Problem::left_along_reduction, Problem::left_bytes, Tile::rows,
                                                     DEPTH, THREADS>::type;
    using RightLoader = typename detail::LoaderChoice<RIGHT_ALONG == Problem::right_along_reduction,
                                                      Problem::right_along_reduction, Problem::right_bytes,
                                                      Tile::columns, DEPTH, THREADS>::type;
    static constexpr u32 LEFT_BYTES = Tile::rows * DEPTH * 2, STAGE_BYTES = LEFT_BYTES + Tile::columns * DEPTH * 2;
    // Results in shared memory, on the way to whole rows: a chunk of padding keeps rows off each other's banks.
    static constexpr u32 RESULT_PITCH = Tile::columns * 2 + 16;

public:
    static CAUSEWAY_DEVICE void run(const Arguments& a) {
        const u64 tile = tile_index(a);
        TileOrigin origin;
        if (!tile_origin<Tile::rows, Tile::columns>(a, tile, origin)) return;
        const u32 part = block_index<2>();
        const i64 first = (i64)part * a.part;
        const i64 terms = a.reduction - first < a.part ? a.reduction - first : a.part;

        float sums[DOWN][ACROSS][Unit::SUMS];
        clear(sums);
        accumulate(a, origin, first, terms, sums);
        if (a.parts > 1 && !add_parts(a, tile, part, sums)) return;
        write(a, origin, sums);
    }

private:
    static CAUSEWAY_DEVICE int first_row() { return (int)(thread_index() / WAVE_SIZE) / Tile::waves_across * (DOWN * SIZE); }
    static CAUSEWAY_DEVICE int first_column() {
        return (int)(thread_index() / WAVE_SIZE) % Tile::waves_across * (ACROSS * SIZE);
    }

    static CAUSEWAY_DEVICE void clear(float (&sums)[DOWN][ACROSS][Unit::SUMS]) {
#pragma unroll
        for (int i = 0; i < DOWN; ++i) {
#pragma unroll
            for (int j = 0; j < ACROSS; ++j) {
#pragma unroll
                for (int k = 0; k < Unit::SUMS; ++k) sums[i][j][k] = 0.0f;
            }
        }
    }

    // Where one of this lane's sums goes on its way out.
    static CAUSEWAY_DEVICE u32 result_offset(int i, int j, int sum) {
        return (u32)(first_row() + i * SIZE + Unit::row(sum)) * RESULT_PITCH +
               (u32)(first_column() + j * SIZE + Unit::column(sum)) * 2;
    }

    // Adds the products of `terms` terms from `first` on.
    static CAUSEWAY_DEVICE void accumulate(const Arguments& a, const TileOrigin& origin, i64 first, i64 terms,
                                           float (&sums)[DOWN][ACROSS][Unit::SUMS]) {
        LeftLoader left(a.left, origin.row, a.rows, first);
        RightLoader right(a.right, origin.column, a.columns, first);
        // Terms that have not been fetched yet; the stages that are being filled and used.
        i64 remaining = terms;
        u32 filled = 0, used = 0;
        const auto fetch = [&] {
            const int some = remaining < DEPTH ? (remaining > 0 ? (int)remaining : 0) : DEPTH;
            left.fetch(a.left, some, filled);
            right.fetch(a.right, some, filled + LEFT_BYTES);
            remaining -= DEPTH;
        };
        const auto store = [&] {
            left.store(filled);
            right.store(filled + LEFT_BYTES);
            filled = filled == (STAGES - 1) * STAGE_BYTES ? 0 : filled + STAGE_BYTES;
        };
#pragma unroll 1
        for (int stage = 0; stage < STAGES - 1; ++stage) {
            if (remaining > 0) {
                fetch();
                store();
            }
            async_commit();
        }
        bool more = false;
        const auto begin_step = [&] {
            // The stage to fill was read in the previous step. After this barrier no wave still reads it.
            async_wait<STAGES - 2>();
            block_barrier();
            more = remaining > 0;
            if (more) fetch();
            async_commit();
        };
        const auto end_step = [&] {
            used = used == (STAGES - 1) * STAGE_BYTES ? 0 : used + STAGE_BYTES;
            if (more) store();
        };
        if constexpr (Unit::CHOOSES) {
            // Two loops: in one, sums would move from unit to unit all the time.
            i64 done = 0;
#pragma unroll 1
            for (; done < terms; done += DEPTH) {
                begin_step();
                if (!step_fits(used)) break;
                add_step<typename Unit::Fast>(used, sums);
                end_step();
            }
#pragma unroll 1
            while (done < terms) {
                add_step<typename Unit::Any>(used, sums);
                end_step();
                done += DEPTH;
                if (done < terms) begin_step();
            }
        } else {
#pragma unroll 1
            for (i64 done = 0; done < terms; done += DEPTH) {
                begin_step();
                add_step<Unit>(used, sums);
                end_step();
            }
        }
    }

    template <class U> static CAUSEWAY_DEVICE void load_fragments(u32 stage, int term, typename U::Fragment (&lefts)[DOWN],
                                                                  typename U::Fragment (&rights)[ACROSS]) {
#pragma unroll
        for (int i = 0; i < DOWN; ++i) {
            lefts[i] = U::template load<LEFT_PER_LINE, LEFT_ALONG>(stage, first_row() + i * SIZE, term);
        }
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) {
            rights[j] = U::template load<RIGHT_PER_LINE, RIGHT_ALONG>(stage + LEFT_BYTES, first_column() + j * SIZE, term);
        }
    }

    // Adds the products of the step in this stage.
    template <class U> static CAUSEWAY_DEVICE void add_step(u32 stage, float (&sums)[DOWN][ACROSS][Unit::SUMS]) {
#pragma unroll
        for (int term = 0; term < DEPTH; term += 16) {
            typename U::Fragment lefts[DOWN], rights[ACROSS];
            load_fragments<U>(stage, term, lefts, rights);
#pragma unroll
            for (int i = 0; i < DOWN; ++i) {
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) U::multiply_add(lefts[i], rights[j], sums[i][j]);
            }
        }
    }

    // True if the fast unit may take all fragments of the wave in this stage.
    static CAUSEWAY_DEVICE bool step_fits(u32 stage) {
        bool fits = true;
#pragma unroll
        for (int term = 0; term < DEPTH; term += 16) {
            typename Unit::Fragment lefts[DOWN], rights[ACROSS];
            load_fragments<Unit>(stage, term, lefts, rights);
            fits = Unit::fits(lefts, rights) && fits;
        }
        return wave_all(fits);
    }

    // Leaves this part's sums in the workspace. In the block that arrives last, gets the sums of all parts and returns
    // true.
    static CAUSEWAY_DEVICE bool add_parts(const Arguments& a, u64 tile, u32 part,
                                          float (&sums)[DOWN][ACROSS][Unit::SUMS]) {
        constexpr u64 PART = (u64)Tile::rows * Tile::columns;
        // Four sums of every thread, then the next four.
        float* const parts = a.workspace + tile * a.parts * PART + thread_index() * 4;
#pragma unroll
        for (int i = 0; i < DOWN; ++i) {
#pragma unroll
            for (int j = 0; j < ACROSS; ++j) {
#pragma unroll
                for (int k = 0; k < Unit::SUMS; k += 4) {
                    Packet<16> four;
#pragma unroll
                    for (int e = 0; e < 4; ++e) four.word[e] = as_bits(sums[i][j][k + e]);
                    store(parts + part * PART + ((i * ACROSS + j) * Unit::SUMS + k) * THREADS, four);
                }
            }
        }
        if (!last_block_to_arrive(a.counters + tile, a.parts, 0)) return false;
        clear(sums);
#pragma unroll 1
        for (u32 p = 0; p < a.parts; ++p) {
#pragma unroll
            for (int i = 0; i < DOWN; ++i) {
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) {
#pragma unroll
                    for (int k = 0; k < Unit::SUMS; k += 4) {
                        const Packet<16> four =
                            load_mutable<16>(parts + p * PART + ((i * ACROSS + j) * Unit::SUMS + k) * THREADS);
#pragma unroll
                        for (int e = 0; e < 4; ++e) sums[i][j][k + e] += as_float(four.word[e]);
                    }
                }
            }
        }
        return true;
    }

    // Rounds the sums and writes them in whole rows, by way of shared memory.
    static CAUSEWAY_DEVICE void write(const Arguments& a, const TileOrigin& origin,
                                      const float (&sums)[DOWN][ACROSS][Unit::SUMS]) {
        block_barrier();
#pragma unroll
        for (int i = 0; i < DOWN; ++i) {
#pragma unroll
            for (int j = 0; j < ACROSS; ++j) {
#pragma unroll
                for (int k = 0; k < Unit::SUMS; k += 2) {
                    const u32 words = result_pair<T>(sums[i][j][k], sums[i][j][k + 1]);
                    if constexpr (Unit::PAIRS) {
                        store_shared<4>(result_offset(i, j, k), Packet<4>{{words}});
                    } else {
                        store_shared<2>(result_offset(i, j, k), Packet<2>{{words & 0xffffu}});
                        store_shared<2>(result_offset(i, j, k + 1), Packet<2>{{words >> 16}});
                    }
                }
            }
        }
        block_barrier();
        constexpr int PER_ROW = Tile::columns / CHUNK;
#pragma unroll 4
        for (int i = (int)thread_index(); i < Tile::rows * PER_ROW; i += THREADS) {
            const int row = i / PER_ROW, column = i % PER_ROW * CHUNK;
            const Packet<16> chunk = load_shared<16>((u32)row * RESULT_PITCH + (u32)column * 2);
            const i64 exist = origin.row + row < a.rows ? a.columns - origin.column - column : 0;
            store_results<Problem::result_bytes>(a, origin.row + row, origin.column + column, chunk.word,
                                                 chunk_count(exist));
        }
    }
};

}  // namespace gemm
}  // namespace causeway
