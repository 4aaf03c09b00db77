//! Plans of the passes that a benchmark measures kernels against: see kernels/floor.cuh.

use bytemuck::{Pod, Zeroable};

use super::choice::Choice;
use super::plan::Plan;

/// Threads of a block.
const THREADS: u32 = 256;

/// Bytes of one access.
const PACKET: u64 = 16;

/// Packets per thread that are worth trying: which is fastest depends on the size.
pub const UNROLLS: [u32; 3] = [1, 2, 4];

/// `FloorArguments` of floor.cuh.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Arguments {
    first: u64,
    second: u64,
    to: u64,
    packets: u64,
}

/// A pass over `bytes` of device memory, rounded up to 16: `to = first`, or `to = first + second`, as 32-bit
/// integers. Addresses are multiples of 16. `unroll` is one of [`UNROLLS`].
pub fn plan(first: u64, second: Option<u64>, to: u64, bytes: u64, unroll: u32) -> Plan {
    let packets = bytes.div_ceil(PACKET);
    let add = second.is_some();
    let arguments = Arguments { first, second: second.unwrap_or(0), to, packets };
    let text = format!(
        "CAUSEWAY_KERNEL({THREADS}, 1) floor_pass(const causeway::FloorArguments a) {{\n    \
         causeway::floor_pass<{THREADS}, {unroll}, {add}>(a);\n}}\n"
    );
    let choice = Choice::of_text("floor.cuh", "floor_pass", text);
    let written = packets * PACKET;
    Plan {
        grid: [packets.div_ceil(u64::from(THREADS * unroll)) as u32, 1, 1],
        block: [THREADS, 1, 1],
        ..Plan::new(choice, bytemuck::bytes_of(&arguments), (1 + u64::from(add)) * written, written)
    }
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
