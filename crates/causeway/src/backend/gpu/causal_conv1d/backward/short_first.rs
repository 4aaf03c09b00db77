//! The backward planner where neighbouring positions are neighbours in memory and a thread has one packet of a row: small calls, and rows
//! that fill the tiles of walking waves badly.
//!
//! In `short_first` whole waves work on one channel; in `rows_first` they lie along memory, over the rows of several. One model chooses
//! between them and cuts the call:
//!
//! ```text
//! time   = Σ rounds of blocks (start + the longer of work and waits + 3/4 of the shorter) + what it takes to add sums
//! start  = what a round of blocks pays at its start and at its end
//! work   = steps of all waves on the fullest multiprocessor · what one takes there
//! waits  = steps of a thread · the latency of memory
//! ```

use super::super::{Constants, PACKET, View, kernel, weight_access};
use super::{BackwardArguments, Launch, LaunchBounds, Planner};
use crate::backend::gpu::candidates::{self, Kept};
use crate::causal_conv1d::{Activation, Sizes};

kernel!(SHORT_FIRST, "backward_short_first", "backward_short_first", BackwardArguments);
kernel!(ROWS_FIRST, "backward_rows_first", "backward_rows_first", BackwardArguments);

impl Planner<'_> {
    /// A packet per thread, along the rows of a channel or of several side by side. `bytes`: the widest packet for which the rows of all
    /// tensors have the same residue.
    pub(super) fn short_first(&self, bytes: u32, ragged: bool) -> Option<Launch> {
        let Sizes { batch, dim, width, .. } = *self.sizes;
        if bytes != PACKET || width > 4 || self.has_boundaries() || i32::try_from(dim).is_err() {
            return None;
        }
        let wave = u64::from(self.facts.wave_size);
        let packets = View::of(&self.op.x).packets_of_row(2, ragged);
        if !walks_badly(packets, wave, ragged) && self.elements_per_multiprocessor() > SMALL {
            return None;
        }
        (batch as u64).checked_mul(packets)?;
        let call = Call {
            batch: batch as u64,
            dim: dim as u64,
            packets,
            slow: ragged && self.element() == 2 && self.op.activation == Activation::Silu,
            wave,
            // In `rows_first` a wave's last lane only computes gradients for the lane before it.
            lanes: wave - u64::from(width > 1),
            multiprocessors: u64::from(self.facts.multiprocessors.max(1)),
            threads: resident_threads(ragged, self.meets_states()),
        };
        match call.cut() {
            Cut::Channels(cut) => self.short_first_launch(&call, cut, ragged),
            Cut::Rows(cut) => self.rows_first_launch(&call, cut, ragged),
        }
    }

    fn short_first_launch(&self, call: &Call, cut: Channels, ragged: bool) -> Option<Launch> {
        let Channels { own, channels, groups, parts } = cut;
        let threads = (own * channels) as u32;
        let sums = channels * self.sums_per_channel();
        let tile = Constants::new("Tile")
            .int("threads", threads)
            .int("channels", channels)
            .flag("ragged", ragged)
            .flag("split", parts > 1)
            .int("weight_bytes", weight_access(&self.op.weight, 1, 1));
        let bounds = LaunchBounds::new(threads, call.resident(own * channels) as u32);
        Some(Launch {
            // Sums of each wave, and a flag.
            shared_bytes: threads / self.facts.wave_size * self.sums_per_channel() as u32 * 4 + 4,
            sums,
            channel_groups: u32::try_from(groups).ok()?,
            parts: u32::try_from(parts).ok()?,
            pieces: u32::try_from(call.packets).ok()?,
            piece: PACKET / self.element(),
            ..Launch::new(&SHORT_FIRST, tile, bounds)
        })
        .filter(|launch| self.is_launchable(launch))
    }

    fn rows_first_launch(&self, call: &Call, cut: Rows, ragged: bool) -> Option<Launch> {
        let Rows { channels, groups, parts } = cut;
        let sums = self.sums_per_channel();
        // As many threads for each sum as there are, and no more than have something to add.
        let slices =
            (u64::from(ROWS_BLOCK) / (channels * sums)).clamp(1, call.packets.min(call.wave)).ilog2();
        let places = call.places();
        let tile = Constants::new("Tile")
            .int("threads", ROWS_BLOCK)
            .flag("ragged", ragged)
            .flag("split", parts > 1)
            .int("weight_bytes", weight_access(&self.op.weight, 1, 1));
        Some(Launch {
            // Sums of each thread and of each channel, and a flag.
            shared_bytes: u32::try_from((places + channels) * sums * 4 + 4).ok()?,
            sums: channels * sums,
            channel_groups: u32::try_from(groups).ok()?,
            parts: u32::try_from(parts).ok()?,
            pieces: u32::try_from(call.packets).ok()?,
            piece: PACKET / self.element(),
            tile_channels: u32::try_from(channels).ok()?,
            slices: 1 << slices,
            ..Launch::new(&ROWS_FIRST, tile, LaunchBounds::new(ROWS_BLOCK, ROWS_RESIDENT as u32))
        })
        .filter(|launch| self.is_launchable(launch))
    }
}

/// Elements of x for each multiprocessor up to which waves that walk rows do not fill the device.
const SMALL: u64 = 32 << 10;

/// Whether rows of `packets` packets cost walking waves more than they hold. Measured on an H200 (docs/kernels/history/backward.md,
/// and for ragged rows backward-first.md).
fn walks_badly(packets: u64, wave: u64, ragged: bool) -> bool {
    // What a wave pays for a row, in percent of what its packets need: lanes without a packet, a quarter of a tile to enter the row, or a
    // whole one where it is ragged.
    let lanes = packets.next_power_of_two().clamp(wave / 4, wave);
    (packets.div_ceil(lanes) * 100 + if ragged { 100 } else { 25 }) * lanes / packets > 130
}

/// Threads of a multiprocessor that `short_first` is compiled for: 1024 leave each 64 registers, 640 leave 96. Ragged rows with states
/// need more than the 80 that 768 would leave on sm_75, sm_80 and sm_100.
fn resident_threads(ragged: bool, states: bool) -> u64 {
    if ragged && states { 640 } else { 1024 }
}

/// Most threads of a block of `short_first`.
const MOST_THREADS: u64 = 1024;

/// Threads of a block of `rows_first`, and blocks of a multiprocessor.
const ROWS_BLOCK: u32 = 256;
const ROWS_RESIDENT: u64 = 4;

/// Most packets of a row for `rows_first`, and blocks that share channels.
const ROWS_PACKETS: u64 = 64;
const ROWS_PARTS: u64 = 64;

/// Nanoseconds, fitted by tests/tune_conv1d.py to times on an H200; other devices have the same ones, scaled by the size of a wave, which
/// is not measured. What a round of blocks pays at its start and at its end.
const START: u64 = 590;
const START_OF_ROWS: u64 = 995;
/// From a request to its data.
const LATENCY: u64 = 530;
/// A step of 32 lanes: 16 bytes each of x, dy and dx. That of ragged rows in 16 bits with SiLU has more instructions.
const STEP: u64 = 42;
const RAGGED_STEP: u64 = 60;
const STEP_OF_ROWS: u64 = 34;
const RAGGED_STEP_OF_ROWS: u64 = 48;
/// To add the sums of several blocks, and of each of them.
const SHARED: u64 = 1530;
const SHARER: u64 = 18;

/// What a cut follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Call {
    batch: u64,
    dim: u64,
    /// Of a row.
    packets: u64,
    /// A step is bound by instructions: rows begin or end inside a packet of 16-bit elements, and there is an activation.
    slow: bool,
    /// Lanes of a wave, and those that have a packet of their own in `rows_first`.
    wave: u64,
    lanes: u64,
    multiprocessors: u64,
    /// Of a multiprocessor, in `short_first`.
    threads: u64,
}

/// Whole waves have packets of one channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Channels {
    /// Threads of a channel in a block.
    own: u64,
    /// Channels of a block, groups of them, and blocks of a group.
    channels: u64,
    groups: u64,
    parts: u64,
}

/// Waves lie along memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rows {
    /// Channels of a block, groups of them, and blocks of a group.
    channels: u64,
    groups: u64,
    parts: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Channels(Channels),
    Rows(Rows),
}

impl Call {
    /// The cut that takes least by the model.
    fn cut(self) -> Cut {
        thread_local! {
            static CUTS: Kept<Call, Cut> = const { Kept::new() };
        }
        CUTS.with(|cuts| {
            cuts.get(self, || {
                let timed = self.cuts().map(|cut| (self.time(cut), cut));
                candidates::least(timed).expect("one wave for each channel is always possible")
            })
        })
    }

    fn cuts(self) -> impl Iterator<Item = Cut> {
        /// Waves of a channel.
        const WAVES: [u64; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];
        let units = self.batch * self.packets;
        let sizes = WAVES.into_iter().map(move |waves| waves * self.wave);
        // The last of them has a thread for each packet.
        let enough = WAVES.into_iter().filter(move |waves| waves * self.wave < units).count();
        let sizes = sizes.take_while(move |&own| own <= MOST_THREADS.min(self.threads)).take(enough + 1);
        let channels = sizes.flat_map(move |own| {
            // No more threads than it takes for as many steps.
            let own = units.div_ceil(units.div_ceil(own)).next_multiple_of(self.wave);
            let channels = (2 * self.wave / own).max(1);
            let groups = self.dim.div_ceil(channels);
            let resident = self.resident(own * channels);
            let cut = move |parts| Cut::Channels(Channels { own, channels, groups, parts });
            self.shares(groups, resident, units / own).map(cut)
        });
        let side_by_side = self.places() / self.packets;
        let rows = (self.packets <= ROWS_PACKETS && side_by_side > 0).then(move || {
            let groups = self.dim.div_ceil(side_by_side);
            let cut = move |parts| Cut::Rows(Rows { channels: side_by_side, groups, parts });
            let most = self.batch.min(ROWS_PARTS);
            self.shares(groups, ROWS_RESIDENT, most).map(cut)
        });
        channels.chain(rows.into_iter().flatten())
    }

    /// Blocks of so many threads that a multiprocessor has at a time, in `short_first`.
    fn resident(self, threads: u64) -> u64 {
        (self.threads / threads).clamp(1, 16)
    }

    /// Threads of a block that have a packet of their own, in `rows_first`.
    fn places(self) -> u64 {
        u64::from(ROWS_BLOCK) / self.wave * self.lanes
    }

    /// Blocks of a group: one, or as many as fill one round of the device, or two.
    fn shares(self, groups: u64, resident: u64, most: u64) -> impl Iterator<Item = u64> {
        let filling =
            move |rounds: u64| (rounds * self.multiprocessors * resident / groups).clamp(1, most.max(1));
        let (one_round, two_rounds) = (filling(1), filling(2));
        let more =
            [(one_round, 1), (two_rounds, one_round)].into_iter().filter(|(parts, before)| parts > before);
        std::iter::once(1).chain(more.map(|(parts, _)| parts))
    }

    /// Nanoseconds by the model, but those that all calls have in common.
    fn time(self, cut: Cut) -> u64 {
        let (start, step, blocks, parts, resident, waves, steps) = match cut {
            Cut::Channels(Channels { own, channels, groups, parts }) => {
                let units = self.batch * self.packets;
                let waves = channels * units.div_ceil(parts).div_ceil(self.wave);
                let resident = self.resident(own * channels);
                let step = if self.slow { RAGGED_STEP } else { STEP };
                (START, step, groups * parts, parts, resident, waves, units.div_ceil(own * parts))
            }
            Cut::Rows(Rows { groups, parts, .. }) => {
                let steps = self.batch.div_ceil(parts);
                let step = if self.slow { RAGGED_STEP_OF_ROWS } else { STEP_OF_ROWS };
                let waves = u64::from(ROWS_BLOCK) / self.wave * steps;
                (START_OF_ROWS, step, groups * parts, parts, ROWS_RESIDENT, waves, steps)
            }
        };
        // `blocks` of a multiprocessor at a time.
        let round = |blocks: u64| {
            let work = (blocks * waves).saturating_mul(step * self.wave / 32);
            let waits = steps.saturating_mul(LATENCY);
            start.saturating_add(work.max(waits)).saturating_add(work.min(waits) / 4 * 3)
        };
        let places = self.multiprocessors * resident;
        let (full, rest) = (blocks / places, blocks % places);
        let last = if rest > 0 { round(rest.div_ceil(self.multiprocessors)) } else { 0 };
        let sums = if parts > 1 { SHARED + SHARER * parts } else { 0 };
        round(resident).saturating_mul(full).saturating_add(last).saturating_add(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(batch: u64, dim: u64, packets: u64) -> Call {
        let (wave, lanes, multiprocessors, threads) = (32, 31, 132, 1024);
        Call { batch, dim, packets, slow: false, wave, lanes, multiprocessors, threads }
    }

    #[test]
    fn every_cut_fits_its_block_and_covers_every_channel() {
        let mut sides = [0; 2];
        for wave in [32, 64] {
            for (batch, dim, packets) in [
                (1, 1, 1),
                (7, 1312, 11),
                (1745, 1904, 3),
                (70_000, 8, 5),
                (1, 70_001, 9),
                (3, 96, 2_000_000),
            ] {
                let lanes = wave - 1;
                for (slow, threads) in [(false, 1024), (true, 640)] {
                    let call = Call { slow, threads, wave, lanes, ..call(batch, dim, packets) };
                    for cut in call.cuts() {
                        assert!(call.time(cut) > 0);
                        match cut {
                            Cut::Channels(Channels { own, channels, groups, parts }) => {
                                sides[0] += 1;
                                assert!(own % wave == 0 && own * channels <= call.threads, "{cut:?}");
                                let units = batch * packets;
                                assert!(own <= units.next_multiple_of(wave), "{cut:?}");
                                assert!(parts <= (units / own).max(1), "{cut:?}");
                                assert!(channels == 1 || own == wave, "{cut:?}");
                                assert!(groups * channels >= dim && parts >= 1, "{cut:?}");
                            }
                            Cut::Rows(Rows { channels, groups, parts }) => {
                                sides[1] += 1;
                                assert!(groups * channels >= dim && (1..=batch).contains(&parts), "{cut:?}");
                                assert!(channels * packets <= 256 / wave * lanes, "{cut:?}");
                            }
                        }
                    }
                }
            }
        }
        assert!(sides.iter().all(|&count| count > 20), "{sides:?}");
    }

    #[test]
    fn blocks_have_no_more_threads_than_packets_take() {
        // 77 packets of a channel: one step of three waves.
        let cut = call(7, 1312, 11).cut();
        assert_eq!(cut, Cut::Channels(Channels { own: 96, channels: 1, groups: 1312, parts: 1 }));
        // 140 packets, as the ragged rows of 10 × 1078 × 101 have: two steps of 96, or one of 160.
        let Cut::Channels(Channels { own, parts: 1, .. }) = call(10, 1078, 14).cut() else { panic!() };
        assert!([96, 160].contains(&own), "{own}");
        assert_eq!(
            call(4, 130, 36).cut(),
            Cut::Channels(Channels { own: 160, channels: 1, groups: 130, parts: 1 })
        );
    }

    #[test]
    fn short_rows_of_many_entries_lie_side_by_side() {
        assert!(matches!(call(1745, 1904, 3).cut(), Cut::Rows(_)));
        assert!(matches!(call(12, 144, 36).cut(), Cut::Channels(_)));
    }
}
