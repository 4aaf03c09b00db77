//! What planners of every family write: structs of constants for a kernel's template arguments, entries, and plans to
//! fill in.

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
/// (docs/kernels/history/forward.md). Planners of grids that have no other way to lie let these begin early whatever they move.
const EARLY: u64 = 20_000_000;

/// Whether this device's launches may begin while the one before them is at work.
fn knows_early(facts: &DeviceFacts) -> bool {
    let number = facts.architecture.trim_start_matches("sm_").trim_end_matches(char::is_alphabetic);
    facts.vendor == Vendor::Nvidia && number.parse().is_ok_and(|number: u32| number >= 90)
}

/// Bytes that a launch has to read and to write, each tensor once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Traffic {
    pub(super) read: u64,
    pub(super) written: u64,
}

impl Traffic {
    /// Whether such a launch begins early.
    fn begins_early(self, facts: &DeviceFacts) -> bool {
        knows_early(facts) && self.read + self.written <= EARLY
    }
}

/// How an entry of blocks of `threads` threads begins: `resident` of them should fit on a multiprocessor, and `cluster` of
/// them run together.
pub(super) fn kernel_macro(threads: u32, resident: u32, cluster: u32) -> String {
    if cluster > 1 {
        format!("CAUSEWAY_CLUSTER_KERNEL({threads}, {resident}, {cluster})")
    } else {
        format!("CAUSEWAY_KERNEL({threads}, {resident})")
    }
}

/// The one entry of a program, whose body is a function of device code that is compiled for two structs of constants.
pub(super) struct Entry<'a> {
    /// File in `kernels/` that holds the function.
    pub(super) header: &'static str,
    pub(super) name: &'static str,
    /// What a [`kernel_macro`] says.
    pub(super) kernel: String,
    pub(super) problem: Constants,
    pub(super) tile: Constants,
    /// The type of the argument, and the function, both within the namespace `causeway`.
    pub(super) argument: &'a str,
    pub(super) function: &'a str,
}

impl Entry<'_> {
    /// The text that is compiled after the header.
    fn text(self, begins_early: bool) -> String {
        let Entry { name, kernel, argument, function, .. } = self;
        let (problem, tile) = (self.problem.finish(), self.tile.finish());
        // Only there: waiting costs each of the thousands of blocks of a large launch something too.
        let wait = if begins_early { "    causeway::follow_previous_launch();\n" } else { "" };
        format!(
            "{problem}{tile}{kernel} {name}(const causeway::{argument} arguments) {{\n{wait}    \
             causeway::{function}(arguments);\n}}\n"
        )
    }

    /// A launch of one block of one thread, with no scratch memory and no shared memory.
    pub(super) fn plan(self, arguments: &impl Pod, traffic: Traffic, facts: &DeviceFacts) -> Plan {
        self.finish(arguments, traffic, traffic.begins_early(facts))
    }

    /// The same that begins early whatever it moves, where the device can: its blocks lie no worse for it.
    pub(super) fn plan_early(self, arguments: &impl Pod, traffic: Traffic, facts: &DeviceFacts) -> Plan {
        self.finish(arguments, traffic, knows_early(facts))
    }

    fn finish(self, arguments: &impl Pod, traffic: Traffic, begins_early: bool) -> Plan {
        Plan {
            header: self.header,
            entry: self.name,
            instantiation: self.text(begins_early),
            grid: [1, 1, 1],
            block: [1, 1, 1],
            cluster: 1,
            shared_bytes: 0,
            workspace_bytes: 0,
            counters: 0,
            arguments: bytemuck::bytes_of(arguments).to_vec(),
            workspace_at: None,
            counters_at: None,
            tensor_maps: Vec::new(),
            begins_early,
            read_bytes: traffic.read,
            written_bytes: traffic.written,
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
            let entry = Entry {
                header: "file.cuh",
                name: "entry",
                kernel: kernel_macro(64, 1, 1),
                problem: Constants::new("Problem").int("width", 4),
                tile: Constants::new("Tile"),
                argument: "Arguments",
                function: "body<Problem, Tile>",
            };
            let plan = entry.plan(&0u32, Traffic { read: bytes, written: bytes }, &facts);
            let wait = if plan.begins_early { "    causeway::follow_previous_launch();\n" } else { "" };
            let text = format!(
                "struct Problem {{\n    static constexpr int width = 4;\n}};\nstruct Tile {{\n}};\n\
                 CAUSEWAY_KERNEL(64, 1) entry(const causeway::Arguments arguments) {{\n{wait}    \
                 causeway::body<Problem, Tile>(arguments);\n}}\n"
            );
            assert_eq!(plan.instantiation, text);
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
