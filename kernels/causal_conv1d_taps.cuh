// Which taps of neighbouring positions do not count, since they reach into another sequence, or another index of seq_idx.
//
// Bit k·Halo + back-1 of the mask of a packet of `Count` positions: position k must not read the one `back` before it. Bit
// Halo·Count + k: position k is padding, and all of its bits are set. With a width of 4 and 8 positions that is 32 bits.
//
//   index     7    7    4    4    4    4 …      Halo = 3, the tap 1 back is the rightmost bit
//   bits     000  000  111  110  100  000
#pragma once
#include "causal_conv1d.cuh"

namespace causeway {
namespace causal_conv1d {

template <int Halo, int Count> class TapMask {
    template <bool Wide, int = 0> struct Choose { typedef u32 type; };
    template <int Any> struct Choose<true, Any> { typedef u64 type; };
    using Word = typename Choose<((Halo + 1) * Count > 32)>::type;
    static_assert((Halo + 1) * Count <= 64, "the bits of a packet fit a word");

public:
    // Changes of index, and padding: indices of the Halo positions before the packet, and of its own.
    CAUSEWAY_DEVICE void differ(const i32 (&indices)[Halo + Count]) {
#pragma unroll
        for (int k = 0; k < Count; ++k) {
#pragma unroll
            for (int back = 1; back <= Halo; ++back) {
                word_ |= indices[Halo + k - back] != indices[Halo + k] ? bit(k, back) : 0;
            }
            word_ |= indices[Halo + k] < 0 ? all(k) : 0;
        }
    }

    // A sequence begins at position k, which may lie before or after the packet.
    CAUSEWAY_DEVICE void begin_at(i32 k) {
        const i32 near = k > -Halo && k < Count ? k : -Halo;
        word_ |= across_bits() << Halo * maximum(near, 0) >> Halo * maximum(-near, 0) & (padding_bit(0) - 1);
    }

    // Position k reads nothing.
    CAUSEWAY_DEVICE void cut_all(int k) { word_ |= all(k); }

    // True if position k must not read the one `back` before it; for back 0, if it is padding.
    CAUSEWAY_DEVICE bool cuts(int k, int back) const { return (word_ & (back == 0 ? padding_bit(k) : bit(k, back))) != 0; }

    // True if a position, or position k, is not plain.
    CAUSEWAY_DEVICE bool any() const { return word_ != 0; }
    CAUSEWAY_DEVICE bool any(int k) const { return (word_ & all(k)) != 0; }

    // Only the taps that reach in front of the packet.
    CAUSEWAY_DEVICE TapMask across() const {
        TapMask out;
        out.word_ = word_ & across_bits();
        return out;
    }

    // The mask of the lane `source`; `other` is what this lane gives away instead of its own.
    CAUSEWAY_DEVICE TapMask exchange(bool instead, const TapMask& other, u32 source) const {
        const Word given = instead ? other.word_ : word_;
        TapMask out;
        out.word_ = shuffle((u32)given, source);
        if constexpr (sizeof(Word) == 8) out.word_ |= (Word)shuffle((u32)(given >> 16 >> 16), source) << 16 << 16;
        return out;
    }

private:
    static CAUSEWAY_DEVICE constexpr Word bit(int k, int back) { return (Word)1 << (k * Halo + back - 1); }
    static CAUSEWAY_DEVICE constexpr Word padding_bit(int k) { return (Word)1 << (Halo * Count + k); }
    static CAUSEWAY_DEVICE constexpr Word all(int k) { return (((Word)1 << Halo) - 1) << k * Halo | padding_bit(k); }
    static CAUSEWAY_DEVICE constexpr Word across_bits() {
        Word bits = 0;
        for (int k = 0; k < Halo; ++k) {
            for (int back = k + 1; back <= Halo; ++back) bits |= bit(k, back);
        }
        return bits;
    }

    Word word_ = 0;
};

// The masks of a thread's packets. Wanted: there is something to tell apart, and one mask serves all rows of a thread.
template <int Halo, int Count, int Packets, bool Wanted> class TapMasks {
public:
    static constexpr bool MASKED = Wanted && Halo > 0 && (Halo + 1) * Count <= 32;

    // Of the packets at `first` and every Step positions further: changes of index, and padding.
    template <int Step> CAUSEWAY_DEVICE void mask_changes(const i32* indices, i32 first, i32 seqlen) {
#pragma unroll
        for (int i = 0; i < Packets; ++i) {
            i32 window[Halo + Count];
#pragma unroll
            for (int m = 0; m < Halo + Count; ++m) {
                // What lies before the row carries its first index.
                const i32 t = minimum(maximum(first + i * Step + m - Halo, 0), seqlen - 1);
                window[m] = (i32)load<4>(indices + t).word[0];
            }
            masks_[i].differ(window);
        }
    }

    // True if a position of the thread, or of a packet, or position k of that, is not plain.
    CAUSEWAY_DEVICE bool any() const {
        bool any = false;
#pragma unroll
        for (int i = 0; i < Packets; ++i) any = any || masks_[i].any();
        return any;
    }
    CAUSEWAY_DEVICE bool any(int packet) const { return masks_[packet].any(); }
    CAUSEWAY_DEVICE bool any(int packet, int k) const { return masks_[packet].any(k); }
    CAUSEWAY_DEVICE bool counts(int packet, int k, int back) const { return !masks_[packet].cuts(k, back); }
    CAUSEWAY_DEVICE bool padding(int packet, int k) const { return masks_[packet].cuts(k, 0); }

private:
    TapMask<MASKED ? Halo : 1, MASKED ? Count : 1> masks_[Packets];
};

}  // namespace causal_conv1d
}  // namespace causeway
