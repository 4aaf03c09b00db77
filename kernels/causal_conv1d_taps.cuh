// Which taps of neighbouring positions do not count, since they reach into another index of seq_idx.
//
// A thread has `Packets` packets of `Count` positions. Bit k·Halo + back-1 of a packet's mask: position k must not read the
// one `back` before it. Bit Halo·Count + k: position k is padding. With a width of 4 and 8 positions that is 32 bits.
//
//   index     7    7    4    4    4    4 …      Halo = 3, the tap 1 back is the rightmost bit
//   bits     000  000  111  110  100  000
#pragma once
#include "causal_conv1d.cuh"

namespace causeway {
namespace causal_conv1d {

// Wanted: there is something to tell apart, and one mask serves all rows of a thread.
template <int Halo, int Count, int Packets, bool Wanted> class TapMasks {
public:
    static constexpr bool MASKED = Wanted && Halo > 0 && (Halo + 1) * Count <= 32;

    CAUSEWAY_DEVICE TapMasks() {
#pragma unroll
        for (int i = 0; i < Packets; ++i) masks_[i] = 0;
    }

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
#pragma unroll
            for (int k = 0; k < Count; ++k) {
#pragma unroll
                for (int back = 1; back <= Halo; ++back) {
                    masks_[i] |= window[Halo + k - back] != window[Halo + k] ? bit(k, back) : 0;
                }
                masks_[i] |= window[Halo + k] < 0 ? padding_bit(k) : 0;
            }
        }
    }

    // True if a position of the thread, or of a packet, or position k of that, is not plain.
    CAUSEWAY_DEVICE bool any() const {
        u32 all = 0;
#pragma unroll
        for (int i = 0; i < Packets; ++i) all |= masks_[i];
        return all != 0;
    }
    CAUSEWAY_DEVICE bool any(int packet) const { return masks_[packet] != 0; }
    CAUSEWAY_DEVICE bool any(int packet, int k) const {
        return (masks_[packet] & (((1u << Halo) - 1) << (k * Halo) | padding_bit(k))) != 0;
    }
    CAUSEWAY_DEVICE bool counts(int packet, int k, int back) const { return (masks_[packet] & bit(k, back)) == 0; }
    CAUSEWAY_DEVICE bool padding(int packet, int k) const { return (masks_[packet] & padding_bit(k)) != 0; }

private:
    static CAUSEWAY_DEVICE constexpr u32 bit(int k, int back) { return 1u << (k * Halo + back - 1); }
    static CAUSEWAY_DEVICE constexpr u32 padding_bit(int k) { return 1u << (Halo * Count + k); }

    u32 masks_[Packets];
};

}  // namespace causal_conv1d
}  // namespace causeway
