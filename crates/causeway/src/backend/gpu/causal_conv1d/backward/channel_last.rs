//! The backward planner where neighbouring channels are neighbours in memory: segments that threads walk down.

use arrayvec::ArrayVec;

use super::super::{
    Constants, PACKET, View, common_residue, head_lanes, kernel, takes_more_registers, weight_access,
};
use super::tiles::{self, Alone, LastCall, LastSharing};
use super::{BackwardArguments, Launch, LaunchBounds, Planner};
use crate::backend::gpu::candidates;
use crate::causal_conv1d::Sizes;

kernel!(CHANNEL_LAST, "backward_channel_last", "backward_channel_last", BackwardArguments);

/// The lanes that have a line of rows that begin at any element, and the most bytes that each copies at once.
const LINE_LANES: u32 = 32;
const LINE_PACKET: u32 = 8;

/// Ways to share a call out that are compared: one tile, and three groupings of it; three where all blocks run at once.
const MOST_WAYS: usize = 7;

/// Elements of x for each multiprocessor in the calls with which joining entries to fill the device was measured.
const LARGE: u64 = 240 << 10;

impl Planner<'_> {
    pub(super) fn channel_last(&self) -> Option<Launch> {
        self.channel_last_with(true)
    }

    /// In lines: rows that begin at any element are copied by several lanes together. Where shared memory has no room for that, by each lane.
    fn channel_last_with(&self, in_lines: bool) -> Option<Launch> {
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
        let aligned = streams.iter().map(|view| view.access(1)).min()?;
        let legal = (aligned / element).min(1 << (dim as u64).trailing_zeros().min(3));
        let elements_each = self.elements_per_multiprocessor();
        let plain = !self.is_gated() && self.op.norm.is_none() && !self.beside;
        let short =
            plain && width <= 4 && elements_each <= self.most_short_elements(legal) && !self.has_boundaries();
        if let Some(short) = short.then(|| self.short_last(legal)).flatten() {
            return Some(short);
        }
        let tiled = self.op.norm.is_none() && !self.beside && !self.has_boundaries();
        if let Some(tiles) = tiled.then(|| self.tiles_last(legal)).flatten() {
            return Some(tiles);
        }
        let in_lines = in_lines
            && element == 2
            && legal <= 2
            && tiles::copies_lines(dim as u64, elements_each)
            && self.has_async_copy(LINE_PACKET)
            && self.facts.wave_size == LINE_LANES
            && self.op.norm.is_none()
            && common_residue(1, self.all_streams()) >= LINE_PACKET
            && self.read_streams().all(|view| self.may_be_read_in_lines(&view));
        let has_states = self.op.initial_states.is_some() || self.op.dfinal_states.is_some();
        let call = LastCall {
            width,
            elements: elements_each,
            bytes: if in_lines { PACKET } else { legal * element },
            boundaries: !self.joined && self.has_boundaries(),
            gated: self.is_gated(),
            beside: self.beside,
            states_beside_ring: has_states && !self.has_async_copy(legal * element),
            takes_more_registers: takes_more_registers(self.facts),
        };
        let tile = match &self.op.norm {
            Some(norm) => tiles::last_of_heads(&call, norm.head_dim, element, self.facts.wave_size),
            None => tiles::last(&call)?,
        };
        let wanted = tile.channels.min((tile.bytes / element).max(1));
        let channels = if in_lines { wanted } else { legal.min(wanted) };
        let bytes = channels * element;
        let across = (dim as u64).div_ceil(u64::from(channels));
        let lanes = match self.op.norm {
            Some(_) => across.next_power_of_two().min(u64::from(tile.lanes)) as u32,
            None if in_lines => tile.lanes,
            None if plain && !call.boundaries && bytes == 8 && elements_each < LARGE => {
                tiles::lanes(across, tiles::whole_groups(across).unwrap_or(tile.lanes), bytes)
            }
            None => tiles::lanes(across, tile.lanes, bytes),
        };
        let head_lanes = head_lanes(self.op.norm.as_ref(), channels, lanes.min(self.facts.wave_size))?;
        let plain = plain && !call.boundaries;
        let rows = tiles::last_rows(width, seqlen, plain);
        let sums = |lanes: u32| u64::from(lanes * channels) * self.sums_per_channel();
        let shared_bytes = |sharing: &LastSharing| {
            let LastSharing { tile, lanes, .. } = *sharing;
            let segments = tile.threads / lanes;
            // A packet more for each line.
            let packets = if in_lines { segments * (lanes + 1) } else { tile.threads };
            let row = packets * bytes * self.fetched();
            // The ring and, over it when it is done, sums and a flag; then what each segment leaves for the one above.
            let ring = if self.has_async_copy(bytes) { tile.stages * rows * row } else { 0 };
            let shares = (width as u32 - 1) * channels * tile.threads * 4;
            let lines_bytes = sharing.lines(self.facts.wave_size) * sums(lanes) as u32 * 4 + 16;
            // dfinal_states of a sequence that ends in a segment.
            let holds_states = self.has_states(self.op.dfinal_states.is_some()) && self.is_packed();
            let held = if holds_states { (width as u32 - 1) * tile.threads * bytes } else { 0 };
            let own = ring.max(lines_bytes) + shares + held;
            // What the blocks of a cluster send.
            match sharing.cluster() {
                1 => own,
                cluster => own.next_multiple_of(8) + tiles::sent_bytes(cluster, sums(lanes)),
            }
        };
        // Segments of about the length that lets the grid fill the device once.
        let cut = |sharing: LastSharing, batch: u64, seqlen: u64| {
            let LastSharing { tile, lanes, group_blocks } = sharing;
            let channel_groups = across.div_ceil(u64::from(lanes));
            let segments_per_block = u64::from(tile.threads / lanes);
            let resident = u64::from(self.facts.multiprocessors * tile.resident);
            let blocks = group_blocks.map_or((resident / channel_groups).max(1), u64::from);
            let pieces = (blocks * segments_per_block / batch).clamp(1, seqlen);
            let piece = seqlen.div_ceil(pieces).next_multiple_of(u64::from(rows));
            let pieces = seqlen.div_ceil(piece);
            let parts = (batch * pieces).div_ceil(segments_per_block);
            // None if the entries have more segments than the blocks of a group.
            let parts = if group_blocks.is_none() { parts } else { (parts <= blocks).then_some(blocks)? };
            Some(tiles::LastWalk {
                blocks: parts * channel_groups,
                resident,
                parts,
                pieces,
                piece,
                rows,
                narrow: in_lines || bytes < 8,
                alone: group_blocks
                    .map(|_| Alone { bytes: lanes * bytes, lines: sharing.lines(self.facts.wave_size) }),
            })
        };
        // The members of a larger launch have blocks of one size. Wide windows gained nothing, and with a norm nothing else was tried.
        let fixed = self.beside || self.op.norm.is_some() || width > 4;
        // Blocks for dinitial_states would be a second round. Narrower packets are untried.
        let may_be_at_once = plain
            && !in_lines
            && !fixed
            && self.op.dinitial_states.is_none()
            && bytes == 8
            && tile.bytes == 8
            && self.largest_cluster() > 1
            && 3 * u64::from(element) * elements_each <= tiles::MOST_AT_ONCE;
        let ways = || {
            let groupings = tile.groupings().map(|tile| LastSharing { tile, lanes, group_blocks: None });
            let at_once = || LastSharing::all_at_once(tile, across, self.facts.multiprocessors);
            let at_once = may_be_at_once.then(at_once).into_iter().flatten();
            let fits = |way: &LastSharing| shared_bytes(way) <= self.facts.shared_per_block;
            groupings.take(if fixed { 1 } else { usize::MAX }).chain(at_once).filter(fits)
        };
        let timed = |batch: u64, seqlen: u64, sequence: Option<u64>| {
            ways().filter_map(move |sharing| {
                let walk = cut(sharing, batch, seqlen)?;
                Some((walk.time(sequence), sharing, walk))
            })
        };
        let all: ArrayVec<_, MOST_WAYS> = timed(batch as u64, seqlen as u64, None).collect();
        let best = all.iter().map(|(time, ..)| *time).min()?;
        let (sharing, walk) =
            candidates::least(all.into_iter().map(|(time, sharing, walk)| (time, (sharing, walk))))?;
        // By more than the model is wrong by. In large calls, also where a tenth of the device is idle otherwise: fewer blocks are faster each,
        // but not by as much as the model says.
        let idles = |walk: &tiles::LastWalk| walk.blocks < walk.resident / 10 * 9;
        let fills = |walk: &tiles::LastWalk| !idles(walk) && walk.blocks <= walk.resident;
        let unfilled = elements_each >= LARGE && idles(&walk);
        let joins = batch > 1
            && timed(1, (batch * seqlen) as u64, Some(seqlen as u64)).any(|(joined, _, other)| {
                joined < best / 20 * 19 || unfilled && fills(&other) && joined < best / 20 * 21
            });

        let LastSharing { tile, lanes, .. } = sharing;
        let (shared_bytes, sums) = (shared_bytes(&sharing), sums(lanes));
        let channel_groups = u32::try_from(across.div_ceil(u64::from(lanes))).ok()?;
        let room = self.facts.shared_per_block.min(self.facts.shared_per_multiprocessor / tile.resident);
        if in_lines && shared_bytes + tiles::SHARED_RESERVED > room {
            return self.channel_last_with(false);
        }
        let constants = Constants::new("Tile")
            .int("threads", tile.threads)
            .int("lanes", lanes)
            .int("channels", channels)
            .int("access", bytes.min(legal * element))
            .int("rows", rows)
            .int("stages", tile.stages)
            .int("cluster", sharing.cluster())
            .int(
                "weight_bytes",
                weight_access(&self.op.weight, channels, if in_lines { 1 } else { channels }),
            );
        let constants =
            if self.op.norm.is_some() { constants.int("head_lanes", head_lanes) } else { constants };
        let bounds =
            LaunchBounds { cluster: sharing.cluster(), ..LaunchBounds::new(tile.threads, tile.resident) };
        Some(Launch {
            joins,
            shared_bytes,
            sums,
            channel_groups,
            parts: u32::try_from(walk.parts).ok()?,
            pieces: u32::try_from(walk.pieces).ok()?,
            piece: u32::try_from(walk.piece).ok()?,
            ..Launch::new(&CHANNEL_LAST, constants, bounds)
        })
        .filter(|launch| self.is_launchable(launch))
    }

    /// Whole packets and lanes without a channel read what lies beside a row: memory of the tensor, if its lowest address begins a packet
    /// and each row of an entry lies after the one before it.
    fn may_be_read_in_lines(&self, view: &View<'_>) -> bool {
        let row = self.sizes.dim as u64 * u64::from(self.element());
        view.span().0.is_multiple_of(u64::from(LINE_PACKET))
            && u64::try_from(view.step_bytes(2)).is_ok_and(|step| step >= row)
    }

    /// The sizes of the one entry that the entries of a batch are where they lie one after the other. A single position has no pitch.
    pub(super) fn joined_entries(&self) -> Option<Sizes> {
        let Sizes { batch, seqlen, .. } = *self.sizes;
        let follows = |view: View<'_>| Some(view.stride(0)) == view.stride(2).checked_mul(seqlen);
        let alone = !self.beside && self.op.norm.is_none() && self.op.seq_idx.is_none();
        (seqlen > 1 && alone && self.all_streams().all(follows)).then_some(Sizes {
            batch: 1,
            seqlen: batch * seqlen,
            ..*self.sizes
        })
    }
}
