//! What planners of every family write: structs of constants for a kernel's template arguments, and plans to fill in.

use bytemuck::Pod;

use super::plan::{DeviceFacts, Plan, Vendor};
use crate::tensor::DType;

/// Widest access of one thread, in bytes.
pub(super) const PACKET: u32 = 16;

/// The largest power of two, at most [`PACKET`], that divides the number.
pub(super) fn power_of_two_in(number: u64) -> u32 {
    1 << (number | u64::from(PACKET)).trailing_zeros()
}

/// The element type in device code.
fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "causeway::f16",
        DType::BF16 => "causeway::bf16",
        _ => "float",
    }
}

/// A C++ struct of constants: what a kernel is compiled for.
pub(super) struct Constants {
    pub(super) text: String,
}

impl Constants {
    pub(super) fn new(name: &str) -> Self {
        Constants { text: format!("struct {name} {{\n") }
    }

    pub(super) fn dtype(mut self, name: &str, dtype: DType) -> Self {
        self.text += &format!("    using {name} = {};\n", type_name(dtype));
        self
    }

    pub(super) fn int(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.text += &format!("    static constexpr int {name} = {value};\n");
        self
    }

    pub(super) fn flag(mut self, name: &str, value: bool) -> Self {
        self.text += &format!("    static constexpr bool {name} = {value};\n");
        self
    }

    pub(super) fn finish(self) -> String {
        self.text + "};\n"
    }
}

/// Bytes up to which a launch begins early. Blocks that come early fill the multiprocessors that are done first, so a grid
/// that would be spread evenly is not: what saves 0.3 µs of a small launch costs 2 µs of a large one
/// (docs/kernels/forward.md).
const EARLY: u64 = 20_000_000;

/// Whether this device's launches may begin while the one before them is at work.
fn knows_early(facts: &DeviceFacts) -> bool {
    let number = facts.architecture.trim_start_matches("sm_").trim_end_matches(char::is_alphabetic);
    facts.vendor == Vendor::Nvidia && number.parse().is_ok_and(|number: u32| number >= 90)
}

/// A plan with no scratch memory and no shared memory; [`Plan::moves`] completes it. The text of its entry is one statement
/// between braces, each on a line of its own.
pub(super) fn plain_plan(
    header: &'static str,
    entry: &'static str,
    instantiation: String,
    arguments: &impl Pod,
) -> Plan {
    Plan {
        header,
        instantiation,
        entry,
        grid: [1, 1, 1],
        block: [1, 1, 1],
        shared_bytes: 0,
        workspace_bytes: 0,
        counters: 0,
        arguments: bytemuck::bytes_of(arguments).to_vec(),
        workspace_at: None,
        counters_at: None,
        tensor_maps: Vec::new(),
        begins_early: false,
        read_bytes: 0,
        written_bytes: 0,
    }
}

impl Plan {
    /// What a launch of a [`plain_plan`] has to read and to write, each tensor once.
    pub(super) fn moves(&mut self, read: u64, written: u64, facts: &DeviceFacts) {
        self.read_bytes = read;
        self.written_bytes = written;
        self.begins_early = knows_early(facts) && read + written <= EARLY;
        if self.begins_early {
            // Only there: waiting costs each of the thousands of blocks of a large launch something too.
            let body = self.instantiation.rfind("{\n").expect("an entry has a body") + 2;
            self.instantiation.insert_str(body, "    causeway::follow_previous_launch();\n");
        }
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

    #[test]
    fn small_launches_begin_early_from_hopper_on() {
        let early = |vendor, architecture: &str, bytes| {
            let facts = DeviceFacts { vendor, architecture: architecture.to_string(), ..DeviceFacts::h200() };
            let mut plan = plain_plan("", "", "entry() {\n    body();\n}\n".to_string(), &0u32);
            plan.moves(bytes, bytes, &facts);
            let waits =
                plan.instantiation.contains("{\n    causeway::follow_previous_launch();\n    body();\n}");
            assert_eq!(waits, plan.begins_early, "{plan}");
            plan.begins_early
        };
        assert!(["sm_90a", "sm_100a", "sm_120"].iter().all(|sm| early(Vendor::Nvidia, sm, EARLY / 2)));
        assert!(!early(Vendor::Nvidia, "sm_90a", EARLY / 2 + 1));
        assert!(!["sm_75", "sm_80", "sm_89"].iter().any(|sm| early(Vendor::Nvidia, sm, 1)));
        assert!(!early(Vendor::Amd, "gfx942", 1));
    }

    #[test]
    fn the_widest_access_follows_addresses_and_strides() {
        assert_eq!(power_of_two_in(0), 16);
        assert_eq!(power_of_two_in(64), 16);
        assert_eq!(power_of_two_in(6), 2);
        assert_eq!(power_of_two_in(24), 8);
    }
}
