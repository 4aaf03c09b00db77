//! Plan of the comparison that repeats are checked with: see kernels/compare.cuh.

use bytemuck::{Pod, Zeroable};

use super::choice::Choice;
use super::plan::Plan;

/// Threads of a block.
const THREADS: u32 = 256;

/// Packets per thread.
const UNROLL: u32 = 2;

/// Bytes of one access.
const PACKET: u64 = 16;

/// `CompareArguments` of compare.cuh.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Arguments {
    first: u64,
    second: u64,
    different: u64,
    packets: u64,
}

/// Sets the u32 at `different` to 1 if `bytes` of device memory at two addresses differ in any bit, and leaves it alone
/// otherwise. Addresses of the two are multiples of 16, and so is `bytes`. None if there is nothing to compare.
pub fn plan(first: u64, second: u64, bytes: u64, different: u64) -> Option<Plan> {
    let packets = bytes / PACKET;
    if packets == 0 {
        return None;
    }
    let arguments = Arguments { first, second, different, packets };
    let text = format!(
        "CAUSEWAY_KERNEL({THREADS}, 1) compare_bits(const causeway::CompareArguments a) {{\n    \
         causeway::compare_bits<{THREADS}, {UNROLL}>(a);\n}}\n"
    );
    let choice = Choice::of_text("compare.cuh", "compare_bits", text);
    Some(Plan {
        grid: [packets.div_ceil(u64::from(THREADS * UNROLL)) as u32, 1, 1],
        block: [THREADS, 1, 1],
        ..Plan::new(choice, bytemuck::bytes_of(&arguments), 2 * bytes, 0)
    })
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
