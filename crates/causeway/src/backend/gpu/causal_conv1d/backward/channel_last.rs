//! The backward planner where neighbouring channels are neighbours in memory: long segments that threads walk down, or,
//! in small calls, short ones.

use arrayvec::ArrayVec;

use super::super::{Constants, View, head_lanes, kernel, takes_more_registers, weight_access};
use super::tiles::{self, LastCall};
use super::{BackwardArguments, Launch, Planner};
use crate::causal_conv1d::Sizes;

kernel!(CHANNEL_LAST, "backward_channel_last", "backward_channel_last", BackwardArguments);
kernel!(SHORT_LAST, "backward_short_last", "backward_short_last", BackwardArguments);

impl Planner<'_> {
    pub(super) fn channel_last(&self) -> Option<Launch> {
        let Sizes { batch, dim, seqlen, width, .. } = *self.sizes;
        let element = self.element();
        let streams: ArrayVec<View<'_>, 7> = self.all_streams().collect();
        let row_fits = |view: &View<'_>| i32::try_from(view.step_bytes(2)).is_ok();
        // A single channel is better walked along its positions.
        if (dim == 1 && seqlen > 1) || !streams.iter().all(|view| view.is_dense(1) && row_fits(view)) {
            return None;
        }
        if !self.fits_32_bits() {
            return None;
        }
        let rows = if width < 3 { 4 } else { width as u32 };
        let legal = streams.iter().map(|view| view.access(1)).min()? / element;
        let legal = legal.min(1 << (dim as u64).trailing_zeros().min(3));
        let elements_each = self.elements_per_multiprocessor();
        let plain = !self.is_gated() && self.op.norm.is_none() && !self.beside;
        let short = plain && tiles::is_short_last(width, elements_each, self.has_boundaries());
        if let Some(short) = short.then(|| self.short_last(legal)).flatten() {
            return Some(short);
        }
        let call = LastCall {
            width,
            elements: elements_each,
            bytes: legal * element,
            boundaries: self.has_boundaries(),
            gated: self.is_gated(),
            beside: self.beside,
            takes_more_registers: takes_more_registers(self.facts),
        };
        let tile = match &self.op.norm {
            Some(norm) => tiles::last_of_heads(&call, norm.head_dim, element, self.facts.wave_size),
            None => tiles::last(&call)?,
        };
        let channels = legal.min(tile.channels).min((tile.bytes / element).max(1));
        let across = (dim as u64).div_ceil(u64::from(channels));
        let lanes = across.next_power_of_two().min(u64::from(tile.lanes)) as u32;
        let head_lanes = head_lanes(self.op.norm.as_ref(), channels, lanes.min(self.facts.wave_size))?;
        let channel_groups = u32::try_from(across.div_ceil(u64::from(lanes))).ok()?;

        // Segments of about the length that lets the grid fill the device once.
        let segments_per_block = tile.threads / lanes;
        let resident = u64::from(self.facts.multiprocessors * tile.resident);
        let segments = (resident / u64::from(channel_groups)).max(1) * u64::from(segments_per_block);
        let pieces = (segments / batch as u64).clamp(1, seqlen as u64);
        let piece = (seqlen as u64).div_ceil(pieces).next_multiple_of(u64::from(rows));
        let pieces = (seqlen as u64).div_ceil(piece);
        let parts = (batch as u64 * pieces).div_ceil(u64::from(segments_per_block));

        let bytes = channels * element;
        let sums = u64::from(lanes * channels) * self.sums_per_channel();
        let sharers = (self.facts.wave_size / lanes).max(1);
        let lines = (segments_per_block / sharers).max(1);
        // The ring and, over it when it is done, sums and a flag; then what each segment leaves for the one above.
        let ring = if self.has_async_copy(bytes) {
            tile.stages * rows * self.fetched() * tile.threads * bytes
        } else {
            0
        };
        let shares = (width as u32 - 1) * channels * tile.threads * 4;
        let lines_bytes = lines * sums as u32 * 4 + 16;
        // dfinal_states of a sequence that ends in a segment.
        let holds_states = self.has_states(self.op.dfinal_states.is_some()) && self.boundaries().is_some();
        let held = if holds_states { (width as u32 - 1) * tile.threads * bytes } else { 0 };
        let shared_bytes = ring.max(lines_bytes) + shares + held;
        let tile_constants = Constants::new("Tile")
            .int("threads", tile.threads)
            .int("lanes", lanes)
            .int("channels", channels)
            .int("stages", tile.stages)
            .int("weight_bytes", weight_access(&self.op.weight, channels));
        let tile_constants = if self.op.norm.is_some() {
            tile_constants.int("head_lanes", head_lanes)
        } else {
            tile_constants
        };
        Some(Launch {
            kernel: &CHANNEL_LAST,
            tile: tile_constants,
            threads: tile.threads,
            resident: tile.resident,
            cluster: 1,
            early: false,
            shared_bytes,
            sums,
            channel_groups,
            parts: u32::try_from(parts).ok()?,
            pieces: u32::try_from(pieces).ok()?,
            piece: u32::try_from(piece).ok()?,
            tile_channels: 0,
            slices: 0,
        })
        .filter(|launch| self.is_launchable(launch))
    }

    /// Segments of a few rows, for a call too small to fill the device; packets of at most `legal` channels.
    fn short_last(&self, legal: u32) -> Option<Launch> {
        let Sizes { batch, dim, seqlen, .. } = *self.sizes;
        let (dim, all_rows) = (dim as u64, (batch * seqlen) as u64);
        let largest = self.largest_cluster();
        let clusters = largest > 1;
        let tile = tiles::short_last(dim, all_rows, largest);
        let channels = legal.min(tile.channels);
        let across = dim.div_ceil(u64::from(channels));
        let lanes = across.next_power_of_two().min(u64::from(tile.lanes)) as u32;
        let channel_groups = u32::try_from(across.div_ceil(u64::from(lanes))).ok()?;
        let pieces = (seqlen as u64).div_ceil(u64::from(tile.rows));
        let segments = batch as u64 * pieces;
        // As many blocks for a group as give each multiprocessor two.
        let wanted = (u64::from(self.facts.multiprocessors) * 2 / u64::from(channel_groups)).max(1);
        let cluster = if clusters { 1 << wanted.min(tile.most_blocks).min(segments).ilog2() } else { 1 };
        let per_block = segments.div_ceil(cluster) * u64::from(lanes);
        let threads = per_block.next_power_of_two().clamp(tile.threads.0, tile.threads.1) as u32;
        let parts = if clusters { cluster } else { segments.div_ceil(u64::from(threads / lanes)) };

        let sums = u64::from(lanes * channels) * self.sums_per_channel();
        let sent = if cluster > 1 { cluster * sums.div_ceil(cluster) } else { 0 };
        // A mailbox or a flag; sums that other blocks have sent; sums of each wave.
        let words = 4 + sent + u64::from(threads / self.facts.wave_size) * sums;
        Some(Launch {
            kernel: &SHORT_LAST,
            tile: Constants::new("Tile")
                .int("threads", threads)
                .int("lanes", lanes)
                .int("channels", channels)
                .int("rows", tile.rows)
                .int("cluster", cluster)
                .int("weight_bytes", weight_access(&self.op.weight, channels)),
            threads,
            resident: 1,
            cluster: cluster as u32,
            early: false,
            shared_bytes: words as u32 * 4,
            sums,
            channel_groups,
            parts: u32::try_from(parts).ok()?,
            pieces: u32::try_from(pieces).ok()?,
            piece: tile.rows,
            tile_channels: 0,
            slices: 0,
        })
        .filter(|launch| self.is_launchable(launch))
    }
}
