//! From a choice to a launch: what planners of every family do alike.

use bytemuck::Pod;

use super::choice::{Choice, Constants, KernelFunction, LaunchBounds};
use super::plan::{DeviceFacts, Plan, Vendor};
use crate::operation::Operation;

/// Widest access of one thread, in bytes.
pub(super) const PACKET: u32 = 16;

/// Bytes of a sector of memory.
pub(super) const SECTOR: u32 = 32;

/// The largest power of two, at most [`PACKET`], that divides the number.
pub(super) fn power_of_two_in(number: u64) -> u32 {
    1 << (number | u64::from(PACKET)).trailing_zeros()
}

/// Bytes up to which a launch is programmatic (programmatic dependent launch): it may begin while the one before it on the stream ends.
/// Blocks that come early fill the multiprocessors that are done first, so a grid
/// that would be spread evenly is not: what saves 0.3 µs of a small launch costs 2 µs of a large one
/// (docs/kernels/history/forward.md). Planners whose grids lose nothing by it request it regardless of size.
const MOST_PROGRAMMATIC_BYTES: u64 = 20_000_000;

/// The limit for launches whose blocks are all resident at once and fill the multiprocessors. Between 24 and 60 MB they gained up to
/// 0.4 µs; some of 80 MB and more lost (docs/kernels/history/backward-first.md, "Beginning early").
const MOST_PROGRAMMATIC_BYTES_IN_ONE_ROUND: u64 = 64_000_000;

/// Whether this device has programmatic dependent launch.
pub(super) fn has_programmatic_launch(facts: &DeviceFacts) -> bool {
    facts.vendor == Vendor::Nvidia && facts.compute_capability() >= 90
}

/// Bytes that a launch has to read and to write, each tensor once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Traffic {
    pub(super) read: u64,
    pub(super) written: u64,
}

impl Traffic {
    pub(super) fn of(operation: &impl Operation) -> Self {
        let (read, written) = operation.traffic();
        Traffic { read, written }
    }

    /// Whether such a launch is programmatic only where all of its blocks are resident at once.
    pub(super) fn is_mid_size(self) -> bool {
        (MOST_PROGRAMMATIC_BYTES + 1..=MOST_PROGRAMMATIC_BYTES_IN_ONE_ROUND)
            .contains(&(self.read + self.written))
    }
}

/// What a planner has chosen, as far as it does not depend on the bytes that a launch moves.
pub(super) struct Entry {
    pub(super) kernel: &'static KernelFunction,
    pub(super) bounds: LaunchBounds,
    pub(super) problem: Constants,
    pub(super) tile: Constants,
}

impl Entry {
    /// A launch of blocks of the size that the bounds have, with no scratch memory and no shared memory. It is programmatic if it
    /// moves little.
    #[inline]
    pub(super) fn plan(
        self,
        grid: [u32; 3],
        arguments: &impl Pod,
        traffic: Traffic,
        facts: &DeviceFacts,
    ) -> Plan {
        self.finish(grid, arguments, traffic, facts, false)
    }

    /// The same. `always`: programmatic whatever it moves, where the device can.
    #[inline]
    pub(super) fn finish(
        self,
        grid: [u32; 3],
        arguments: &impl Pod,
        traffic: Traffic,
        facts: &DeviceFacts,
        always: bool,
    ) -> Plan {
        let Entry { kernel, bounds, problem, tile } = self;
        let programmatic_launch = has_programmatic_launch(facts)
            && (always || traffic.read + traffic.written <= MOST_PROGRAMMATIC_BYTES);
        let choice = Choice::new(kernel, bounds, programmatic_launch, [Some(problem), Some(tile)]);
        Plan {
            grid,
            block: [bounds.threads, 1, 1],
            cluster: bounds.cluster,
            programmatic_launch,
            ..Plan::new(choice, bytemuck::bytes_of(arguments), traffic.read, traffic.written)
        }
    }
}

/// A launch of blocks side by side, of a kernel that has no `Problem`. It begins when the launch before it has ended.
pub(super) fn plan_of_tile(
    kernel: &'static KernelFunction,
    tile: Constants,
    [blocks, threads]: [u32; 2],
    arguments: &impl Pod,
    traffic: Traffic,
) -> Plan {
    let choice = Choice::new(kernel, LaunchBounds::new(threads, 1), false, [None, Some(tile)]);
    Plan {
        grid: [blocks, 1, 1],
        block: [threads, 1, 1],
        ..Plan::new(choice, bytemuck::bytes_of(arguments), traffic.read, traffic.written)
    }
}

/// The most blocks of `threads` threads along the first axis of a grid.
///
/// CUDA allows 2^31 - 1 blocks; HIP counts threads, in 32 bits. Kernels divide block numbers as 31-bit numbers.
pub(super) fn most_blocks(facts: &DeviceFacts, threads: u32) -> u64 {
    match facts.vendor {
        Vendor::Nvidia => i32::MAX as u64,
        Vendor::Amd => u64::from(u32::MAX / threads).min(i32::MAX as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::gpu::choice::ArgumentType;

    static KERNEL: KernelFunction = KernelFunction {
        header: "file.cuh",
        entry: "entry",
        argument: ArgumentType::Template("int", &[]),
        function: "body<Problem, Tile>",
    };

    #[test]
    fn small_launches_are_programmatic_from_hopper_on() {
        let is_programmatic = |vendor, architecture: &str, bytes| {
            let facts = DeviceFacts { vendor, architecture: architecture.to_string(), ..DeviceFacts::h200() };
            let (problem, tile) = (Constants::new("Problem"), Constants::new("Tile"));
            let entry = Entry { kernel: &KERNEL, bounds: LaunchBounds::new(64, 1), problem, tile };
            let plan = entry.plan([1, 1, 1], &0u32, Traffic { read: bytes, written: bytes }, &facts);
            assert_eq!(plan.programmatic_launch, plan.choice.source().contains("grid_dependency_wait"));
            plan.programmatic_launch
        };
        assert!(["sm_90a", "sm_100a", "sm_120"].iter().all(|sm| is_programmatic(
            Vendor::Nvidia,
            sm,
            MOST_PROGRAMMATIC_BYTES / 2
        )));
        assert!(!is_programmatic(Vendor::Nvidia, "sm_90a", MOST_PROGRAMMATIC_BYTES / 2 + 1));
        assert!(!["sm_75", "sm_80", "sm_89"].iter().any(|sm| is_programmatic(Vendor::Nvidia, sm, 1)));
        assert!(!is_programmatic(Vendor::Amd, "gfx942", 1));
    }

    #[test]
    fn the_widest_access_follows_addresses_and_strides() {
        assert_eq!(power_of_two_in(0), 16);
        assert_eq!(power_of_two_in(64), 16);
        assert_eq!(power_of_two_in(6), 2);
        assert_eq!(power_of_two_in(24), 8);
    }
}
