//! Plan of the comparison that repeats are checked with: see kernels/compare.cuh.

use super::choice::{ArgumentType, Constants, KernelFunction};
use super::device_struct::device_struct;
use super::launch::{self, Traffic, plan_of_tile};
use super::plan::Plan;

/// Threads of a block.
const THREADS: u32 = 256;

/// Packets per thread.
const UNROLL: u32 = 2;

/// Bytes of one access.
const PACKET: u64 = launch::PACKET as u64;

device_struct! {
    /// What compare_bits is given.
    struct CompareArguments in "" {
        first: u64 as "const void*",
        second: u64 as "const void*",
        different: u64 as "u32*",
        packets: u64,
    }
}

static KERNEL: KernelFunction = KernelFunction {
    header: "compare.cuh",
    entry: "compare_bits",
    argument: ArgumentType::Struct(&CompareArguments::DEVICE),
    function: "compare_bits<Tile::threads, Tile::unroll>",
};

/// Sets the u32 at `different` to 1 if `bytes` of device memory at two addresses differ in any bit, and leaves it alone
/// otherwise. Addresses of the two are multiples of 16, and so is `bytes`. None if there is nothing to compare.
pub fn plan(first: u64, second: u64, bytes: u64, different: u64) -> Option<Plan> {
    let packets = bytes / PACKET;
    if packets == 0 {
        return None;
    }
    let arguments = CompareArguments { first, second, different, packets };
    let tile = Constants::new("Tile").int("threads", THREADS).int("unroll", UNROLL);
    let blocks = packets.div_ceil(u64::from(THREADS * UNROLL)) as u32;
    let traffic = Traffic { read: 2 * bytes, written: 0 };
    Some(plan_of_tile(&KERNEL, tile, [blocks, THREADS], &arguments, traffic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_has_a_thread() {
        for bytes in [16, 64, 8192, 8256, 1 << 33] {
            let plan = plan(0, 1 << 40, bytes, 1 << 41).unwrap();
            let reach = u64::from(plan.grid[0]) * u64::from(THREADS * UNROLL) * PACKET;
            assert!(reach >= bytes && reach - bytes < u64::from(THREADS * UNROLL) * PACKET);
        }
        assert_eq!(plan(0, 0, 0, 0), None);
    }
}
