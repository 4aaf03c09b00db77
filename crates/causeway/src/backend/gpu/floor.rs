//! Plans of the passes that a benchmark measures kernels against: see kernels/floor.cuh.

use super::choice::{ArgumentType, Constants, KernelFunction};
use super::device_struct::device_struct;
use super::launch::{self, Traffic, plan_of_tile};
use super::plan::Plan;

/// Threads of a block.
const THREADS: u32 = 256;

/// Bytes of one access.
const PACKET: u64 = launch::PACKET as u64;

/// Packets per thread that are worth trying: which is fastest depends on the size.
pub const UNROLLS: [u32; 3] = [1, 2, 4];

device_struct! {
    /// What floor_pass is given.
    struct FloorArguments in "" {
        first: u64 as "const void*",
        second: u64 as "const void*",
        to: u64 as "void*",
        packets: u64,
    }
}

static KERNEL: KernelFunction = KernelFunction {
    header: "floor.cuh",
    entry: "floor_pass",
    argument: ArgumentType::Struct(&FloorArguments::DEVICE),
    function: "floor_pass<Tile::threads, Tile::unroll, Tile::add>",
};

/// A pass over `bytes` of device memory, rounded up to 16: `to = first`, or `to = first + second`, as 32-bit
/// integers. Addresses are multiples of 16. `unroll` is one of [`UNROLLS`].
pub fn plan(first: u64, second: Option<u64>, to: u64, bytes: u64, unroll: u32) -> Plan {
    let packets = bytes.div_ceil(PACKET);
    let add = second.is_some();
    let arguments = FloorArguments { first, second: second.unwrap_or(0), to, packets };
    let tile = Constants::new("Tile").int("threads", THREADS).int("unroll", unroll).flag("add", add);
    let blocks = packets.div_ceil(u64::from(THREADS * unroll)) as u32;
    let written = packets * PACKET;
    let traffic = Traffic { read: (1 + u64::from(add)) * written, written };
    plan_of_tile(&KERNEL, tile, [blocks, THREADS], &arguments, traffic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_has_a_thread() {
        for unroll in UNROLLS {
            for bytes in [1, 16, 4096, 4097, 1 << 20] {
                let plan = plan(0, Some(1 << 30), 1 << 31, bytes, unroll);
                let threads = u64::from(plan.grid[0]) * u64::from(THREADS * unroll);
                assert!(
                    threads * PACKET >= bytes && (threads - u64::from(THREADS * unroll)) * PACKET < bytes
                );
                assert_eq!(plan.read_bytes, 2 * plan.written_bytes);
            }
        }
    }
}
