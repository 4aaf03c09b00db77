//! Draws rows of each operation out of everything that its description allows.
//!
//! A row is drawn in two steps. Its *options* are what a kernel is compiled for: dtypes, width, layouts, which tensors
//! are given. Its *sizes* are the rest, so that calls of one kernel can be drawn by drawing sizes again.

use causeway::causal_conv1d::{GATES, HeadNorm};
use causeway::{Arrangement, Device};
use toml::{Table, Value};

use super::super::gemm::MatrixLayout;
use super::super::layout::Layout;
use super::super::memory::{Memory, Placement, Role};
use super::super::random::Random;
use super::super::{Conv1d, Values};
use super::row::{Row, integers};
use super::sizes;

/// The operations that calls are drawn of, by the name of their list in a suite.
pub const OPERATIONS: [&str; 5] = ["conv1d", "conv1d-update", "conv1d-varlen-states", "gemm", "parity"];

/// What calls are drawn from.
#[derive(Debug, Clone)]
pub struct Space {
    /// Of [`OPERATIONS`].
    pub operations: Vec<&'static str>,
    /// True where f64 is computed.
    pub has_f64: bool,
    /// Most elements of x; a product makes 16 times as many multiplications at most.
    pub elements: i64,
}

/// Elements of x at the most, of which most calls have few. On a simulator as many as the planners' kernels for filled
/// devices need on a device of four multiprocessors, on a GPU as many as they need there.
const ELEMENTS_ON_A_CPU: i64 = 1 << 16;
const ELEMENTS_IN_A_SIMULATOR: i64 = 1 << 18;
const ELEMENTS_ON_A_GPU: i64 = 1 << 23;

impl Space {
    /// All that a device computes, in sizes that it is done with soon.
    pub fn of(device: &Device) -> Self {
        let elements = match device {
            Device::Gpu(_) => ELEMENTS_ON_A_GPU,
            Device::Simulated(_) => ELEMENTS_IN_A_SIMULATOR,
            _ => ELEMENTS_ON_A_CPU,
        };
        Space { operations: OPERATIONS.to_vec(), has_f64: matches!(device, Device::Cpu(_)), elements }
    }

    /// One of the operations, those with most kernels most often.
    pub(super) fn operation(&self, random: &mut Random) -> &'static str {
        let operation = match random.below(40) {
            0..24 => "conv1d",
            24..31 => "gemm",
            31..35 => "conv1d-update",
            35..39 => "conv1d-varlen-states",
            _ => "parity",
        };
        match self.operations.contains(&operation) {
            true => operation,
            false => self.operations[random.below(self.operations.len())],
        }
    }

    /// A row of this operation, with this name.
    pub(super) fn draw(&self, random: &mut Random, operation: &'static str, name: &str) -> Row {
        let table = match operation {
            "conv1d" => self.conv1d(random),
            "conv1d-update" => self.update(random),
            "conv1d-varlen-states" => self.varlen_states(random),
            "parity" => self.parity(random),
            _ => self.gemm(random),
        };
        let row = Row { operation, table };
        self.with_new_sizes(random, &row, name)
    }

    /// The same options under another name, at other sizes, with other values and in other memory.
    pub(super) fn with_new_sizes(&self, random: &mut Random, row: &Row, name: &str) -> Row {
        let mut row = row.clone();
        row.table.insert("name".into(), name.into());
        match row.operation {
            "conv1d" => self.conv1d_sizes(random, &mut row),
            "conv1d-update" => self.update_sizes(random, &mut row),
            "conv1d-varlen-states" => self.varlen_states_sizes(random, &mut row),
            "parity" => self.parity_sizes(random, &mut row),
            _ => self.gemm_sizes(random, &mut row),
        }
        draw_memory(random, &mut row);
        row
    }

    /// Dtypes and activation: what all convolutions have.
    fn common(&self, random: &mut Random) -> Table {
        let mut table = Table::new();
        let dtype = match random.below(if self.has_f64 { 8 } else { 7 }) {
            0 | 1 => "f32",
            2..4 => "f16",
            4..7 => "bf16",
            _ => "f64",
        };
        table.insert("dtype".into(), dtype.into());
        let weight_dtype = match dtype {
            "f64" => "f64",
            _ if random.once_in(2) => dtype,
            _ => random.one_of(&["f32", "f16", "bf16"]),
        };
        table.insert("weight_dtype".into(), weight_dtype.into());
        table.insert("activation".into(), (*random.one_of(&["none", "silu", "silu"])).into());
        table.insert("layout".into(), layout(random).name().into());
        flags(random, &mut table, &["bias"], 2);
        table.insert("width".into(), width(random).into());
        table
    }

    fn conv1d(&self, random: &mut Random) -> Table {
        let mut table = self.common(random);
        if matches!(table["weight_dtype"].as_str(), Some("f16" | "bf16")) && random.once_in(3) {
            table.insert("dweight_dtype".into(), "f32".into());
        }
        if random.once_in(6) {
            table.insert("output_layout".into(), layout(random).name().into());
        }
        let (states, others) = conv1d_flags();
        flags(random, &mut table, &others, 6);
        if random.once_in(6) {
            norm(random, &mut table);
        } else {
            gates(random, &mut table);
        }
        // As heads of q and k mostly are.
        let rarity = if table.contains_key("norm") { 3 } else { 8 };
        flags(random, &mut table, &["together"], rarity);
        plain_last(random, &mut table);
        // Half of the calls are plain; the others have what tells sequences apart in every combination.
        if random.once_in(2) {
            flags(random, &mut table, &states, 2);
            if random.once_in(2) {
                table.insert("seq_idx".into(), Value::Array(Vec::new()));
            }
            if random.once_in(3) {
                let mut packed = Table::new();
                packed.insert("dtype".into(), (*random.one_of(&["i32", "i64"])).into());
                table.insert("cu_seqlens".into(), packed.into());
            }
        }
        let omit = Conv1d::omissible().into_iter().filter(|_| random.once_in(12));
        let omit: Vec<Value> = omit.map(Value::from).collect();
        if !omit.is_empty() {
            table.insert("omit".into(), omit.into());
        }
        table
    }

    /// Most elements of x of a row with these options. The taps of a wide convolution are so many times the work.
    pub(super) fn most_elements(&self, row: &Row) -> i64 {
        match (row.operation, row.integers("width").first()) {
            ("conv1d", Some(&width)) => (self.elements * 8 / width.max(8)).max(1),
            ("conv1d-update", Some(&width)) => (self.elements / 4 / width.max(4)).max(1),
            ("parity", Some(&width)) => (self.elements / 8 / width.max(8)).max(1),
            ("conv1d-varlen-states", _) => (self.elements / 4).max(1),
            _ => self.elements,
        }
    }

    fn conv1d_sizes(&self, random: &mut Random, row: &mut Row) {
        let width = row.integers("width")[0];
        let elements = self.most_elements(row);
        let most_batch = if random.once_in(8) { 4096 } else { 16 };
        let tells_apart = ["seq_idx", "cu_seqlens"].iter().any(|key| row.table.contains_key(*key));
        let [batch, dim, seqlen] = if random.once_in(16) {
            sizes::many_entries(random, elements)
        } else if random.once_in(16) {
            sizes::wide_rows(random, elements)
        } else if tells_apart && random.once_in(2) {
            // Sequences should meet in several tiles of a row.
            let seqlen = sizes::packets(random, elements);
            let [batch, dim] = sizes::shape(random, [most_batch, i64::MAX], elements / seqlen);
            [batch, dim, seqlen]
        } else {
            sizes::shape(random, [most_batch, i64::MAX, i64::MAX], elements)
        };
        if let Some(Value::Table(packed)) = row.table.get_mut("cu_seqlens") {
            packed.insert("lengths".into(), integers(&sizes::lengths(random, width, batch * seqlen)));
        }
        let dim = draw_heads(random, row, dim, elements / (batch * seqlen).max(1));
        row.table.insert("shape".into(), integers(&[batch, dim, seqlen]));
        self.draw_runs(random, row);
        row.table.insert("values".into(), values(random, row.table.contains_key("seq_idx")).name().into());
        *row = row.clone().made_consistent();
    }

    /// Draws the runs of seq_idx, if the row has it. Kernels do not depend on them.
    pub(super) fn draw_runs(&self, random: &mut Random, row: &mut Row) {
        if !row.table.contains_key("seq_idx") {
            return;
        }
        let runs = sizes::runs(random, row.integers("width")[0], row.integers("shape")[2]).into_iter();
        let runs = runs.map(|(length, index)| integers(&[length, i64::from(index)])).collect();
        row.table.insert("seq_idx".into(), Value::Array(runs));
    }

    fn update(&self, random: &mut Random) -> Table {
        let mut table = self.common(random);
        flags(random, &mut table, &["cache_seqlens", "conv_state_indices"], 2);
        flags(random, &mut table, &["together"], 8);
        if random.once_in(6) {
            norm(random, &mut table);
        } else {
            gates(random, &mut table);
        }
        plain_last(random, &mut table);
        table
    }

    fn update_sizes(&self, random: &mut Random, row: &mut Row) {
        let width = row.integers("width")[0];
        let elements = self.most_elements(row);
        let [batch, dim, seqlen] = sizes::shape(random, [512, i64::MAX, 64], elements);
        let dim = draw_heads(random, row, dim, elements / (batch * seqlen).max(1));
        let shape = if random.once_in(2) { vec![batch, dim] } else { vec![batch, dim, seqlen] };
        let spare = match random.below(4) {
            0 | 1 => 0,
            2 => random.between(1, 4),
            _ => random.between(1, 3 * width + 8),
        };
        row.table.insert("shape".into(), integers(&shape));
        row.table.insert("state_len".into(), (width - 1 + spare).into());
        row.table.insert("values".into(), values(random, false).name().into());
    }

    fn varlen_states(&self, random: &mut Random) -> Table {
        let mut table = Table::new();
        table.insert("dtype".into(), (*random.one_of(&["f32", "f16", "bf16"])).into());
        table.insert("layout".into(), layout(random).name().into());
        let mut packed = Table::new();
        packed.insert("dtype".into(), (*random.one_of(&["i32", "i64"])).into());
        table.insert("cu_seqlens".into(), packed.into());
        table
    }

    fn varlen_states_sizes(&self, random: &mut Random, row: &mut Row) {
        let [dim, total] = sizes::shape(random, [i64::MAX; 2], self.most_elements(row));
        let longest = width(random);
        let state_len = if random.once_in(20) { 0 } else { random.between(1, longest) };
        if let Some(Value::Table(packed)) = row.table.get_mut("cu_seqlens") {
            packed.insert("lengths".into(), integers(&sizes::lengths(random, state_len, total)));
        }
        row.table.insert("dim".into(), dim.into());
        row.table.insert("state_len".into(), state_len.into());
    }

    fn parity(&self, random: &mut Random) -> Table {
        let mut table = self.common(random);
        // It goes through every layout itself.
        table.remove("layout");
        flags(random, &mut table, &conv1d_flags().1, 4);
        table
    }

    fn parity_sizes(&self, random: &mut Random, row: &mut Row) {
        let shape = sizes::shape(random, [6, i64::MAX, 300], self.most_elements(row));
        row.table.insert("shape".into(), integers(&shape.map(|size| size.max(1))));
        row.table.insert("values".into(), values(random, false).name().into());
    }

    fn gemm(&self, random: &mut Random) -> Table {
        let mut table = Table::new();
        table.insert("dtype".into(), (*random.one_of(&["f16", "bf16"])).into());
        table.insert("algorithm".into(), (*random.one_of(&["fast", "fast", "exact"])).into());
        let layout = |random: &mut Random| match random.below(4) {
            0 | 1 => MatrixLayout::RowMajor,
            2 => MatrixLayout::ColumnMajor,
            _ => *random.one_of(&MatrixLayout::ALL),
        };
        table.insert("layout".into(), layout(random).name().into());
        table.insert("output_layout".into(), layout(random).name().into());
        flags(random, &mut table, &["together"], 3);
        table
    }

    fn gemm_sizes(&self, random: &mut Random, row: &mut Row) {
        let shape = sizes::shape(random, [4096; 3], self.elements * 16);
        row.table.insert("shape".into(), integers(&shape));
        row.table.insert("values".into(), values(random, false).name().into());
    }
}

/// Flags of a convolution that [`Space::common`] does not draw: those of states, and the others.
fn conv1d_flags() -> (Vec<&'static str>, Vec<&'static str>) {
    let others = Conv1d::flags().filter(|flag| *flag != "bias" && !GATES.contains(flag));
    others.partition(|flag| Conv1d::is_state(flag))
}

/// Every fourth call has gates, mostly both, and some of them round what they give.
fn gates(random: &mut Random, table: &mut Table) {
    if !random.once_in(4) {
        return;
    }
    match random.below(5) {
        0 => flags(random, table, &GATES[..1], 1),
        1 => flags(random, table, &GATES[1..], 1),
        _ => flags(random, table, &GATES, 1),
    }
    flags(random, table, &["round_products"], 2);
}

/// A norm, which goes with neither gates nor a residual.
fn norm(random: &mut Random, table: &mut Table) {
    table.remove("residual");
    let eps = *random.one_of(&[1e-6, 1e-6, 1e-5, 1e-12, 0.5]);
    // How many channels a head has is drawn with the sizes.
    let norm = HeadNorm { eps, scale: *random.one_of(&[1.0, 0.125, -3.0]), ..HeadNorm::new(1) };
    table.insert("norm".into(), norm.to_string().into());
}

/// Of calls that are made together, half of those with norms have none in the last, as v of q, k and v.
fn plain_last(random: &mut Random, table: &mut Table) {
    if table.contains_key("norm") && table.contains_key("together") {
        flags(random, table, &["plain_last"], 2);
    }
}

fn flags(random: &mut Random, table: &mut Table, keys: &[&str], rarity: usize) {
    for &key in keys {
        if random.once_in(rarity) {
            table.insert(key.into(), true.into());
        }
    }
}

/// Heads of a row with a norm: how many channels the row then has, at most `most` where it had fewer.
fn draw_heads(random: &mut Random, row: &mut Row, dim: i64, most: i64) -> i64 {
    let Some(mut norm) = row.norm() else { return dim };
    let usual = *random.one_of(&[1, 2, 3, 8, 16, 20, 32, 64, 64, 96, 128, 128, 256, 256]);
    norm.head_dim = match random.below(8) {
        0 => dim.max(1),
        _ => usual.min(dim.max(most).max(1)),
    };
    row.table.insert("norm".into(), norm.to_string().into());
    (dim + norm.head_dim - 1) / norm.head_dim * norm.head_dim
}

fn width(random: &mut Random) -> i64 {
    match random.below(16) {
        0..10 => random.between(1, 5),
        10..14 => random.between(6, 8),
        14 => random.between(9, 40),
        _ => random.between(9, 256),
    }
}

fn layout(random: &mut Random) -> Layout {
    match random.below(8) {
        0..3 => Layout::ChannelFirst,
        3..6 => Layout::ChannelLast,
        _ => *random.one_of(&Layout::ALL),
    }
}

fn values(random: &mut Random, has_seq_idx: bool) -> Values {
    match random.below(10) {
        0 if has_seq_idx => Values::NanPadding,
        1 => Values::NonFiniteAnywhere,
        2 => *random.one_of(&[Values::Subnormal, Values::Overflow, Values::NonFinite]),
        3 => *random.one_of(&[Values::Zeros, Values::Spread]),
        _ => Values::Uniform,
    }
}

/// Puts some of the row's tensors elsewhere than its layouts do, or none.
fn draw_memory(random: &mut Random, row: &mut Row) {
    row.table.remove("memory");
    if !random.once_in(3) {
        return;
    }
    let Ok(tensors) = row.case().map_err(drop).and_then(|case| case.problem.tensors().map_err(drop)) else {
        return;
    };
    let mut memory = Memory::default();
    for (name, role, arrangement) in tensors {
        if random.once_in(4) {
            let placement = if random.once_in(3) {
                part_of_rows(random, &arrangement)
            } else {
                placement(random, arrangement.shape.len(), role)
            };
            memory.0.insert(name.to_string(), placement);
        }
    }
    if !memory.0.is_empty()
        && let Ok(value) = Value::try_from(&memory)
    {
        row.table.insert("memory".into(), value);
    }
}

/// As a part of the rows of a wider tensor lies, like x in a projection that holds more than x.
fn part_of_rows(random: &mut Random, arrangement: &Arrangement) -> Placement {
    let rank = arrangement.shape.len();
    let mut order: Vec<usize> = (0..rank).collect();
    order.sort_by_key(|&axis| std::cmp::Reverse(arrangement.strides[axis].abs()));
    let mut gaps = vec![0; rank];
    if let [.., row, _] = order[..] {
        gaps[row] = *random.one_of(&[1, 2, 3, 4, 8, 16, 40, 200]);
    }
    Placement { order, gaps, ..Placement::default() }
}

fn placement(random: &mut Random, rank: usize, role: Role) -> Placement {
    let mut placement = Placement::default();
    if random.once_in(2) {
        placement.offset = *random.one_of(&[1, 2, 3, 4, 7, 8, 16]);
    }
    let mut order: Vec<usize> = (0..rank).collect();
    match random.below(3) {
        0 => {}
        // Channels or columns innermost.
        1 => order.swap(rank - 1, rank.saturating_sub(2)),
        _ => (1..rank).rev().for_each(|i| order.swap(i, random.below(i + 1))),
    }
    if random.once_in(2) {
        // Between rows rather than between neighbours, which no wide access could take.
        let innermost = order[rank - 1];
        let gap = |axis: usize, random: &mut Random| match axis {
            _ if axis == innermost && !random.once_in(8) => 0,
            _ => *random.one_of(&[0, 1, 2, 3, 4, 5, 8, 16, 24, 64]),
        };
        placement.gaps = (0..rank).map(|axis| gap(axis, random)).collect();
    }
    placement.order = order;
    placement.reversed = (0..rank).filter(|_| random.once_in(12)).collect();
    if random.once_in(2) {
        placement.single = Some(*random.one_of(&[-1, 0, 1, 3, 1 << 20, 1 << 33, -(1 << 33)]));
    }
    if role == Role::Input && random.once_in(6) {
        placement.broadcast = vec![random.below(rank)];
    }
    placement
}
