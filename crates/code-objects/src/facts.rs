//! What a code object says about its kernel, as a row of a table.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

/// Names of the columns after the kernel's.
pub const COLUMNS: [&str; 10] = [
    "registers",
    "scalar",
    "accumulation",
    "shared",
    "private",
    "private_accesses",
    "vector_spills",
    "scalar_spills",
    "wave",
    "matrix",
];

/// Facts of one kernel of one code object. None: this vendor's objects do not have the number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Vector registers of a thread.
    pub registers: u32,
    /// Scalar registers of a wave.
    pub scalar: Option<u32>,
    /// Of the vector registers, those that only matrix instructions and moves reach.
    pub accumulation: Option<u32>,
    /// Bytes of shared memory of a block: the object's own and the launch's.
    pub shared: u32,
    /// Bytes of private memory of a thread: spilled registers, and arrays that found no registers.
    pub private: u32,
    /// Instructions that reach it: none where a compiler reserved a place and then found a register.
    pub private_accesses: u32,
    /// Vector registers that were spilled.
    pub vector_spills: Option<u32>,
    /// Scalar registers that were spilled, into lanes of vector registers as long as there are any.
    pub scalar_spills: Option<u32>,
    /// Threads that run in lockstep.
    pub wave: u32,
    /// The matrix instructions that it has.
    pub matrix: BTreeSet<String>,
}

impl Facts {
    /// The numbers of which more is worse, with their columns' names.
    pub fn costs(&self) -> [(&'static str, Option<u32>); 8] {
        [
            (COLUMNS[0], Some(self.registers)),
            (COLUMNS[1], self.scalar),
            (COLUMNS[2], self.accumulation),
            (COLUMNS[3], Some(self.shared)),
            (COLUMNS[4], Some(self.private)),
            (COLUMNS[5], Some(self.private_accesses)),
            (COLUMNS[6], self.vector_spills),
            (COLUMNS[7], self.scalar_spills),
        ]
    }

    /// The row, without the kernel's name.
    pub fn to_cells(&self) -> Vec<String> {
        let number = |cost: Option<u32>| cost.map_or_else(|| "-".to_string(), |number| number.to_string());
        let mut cells: Vec<String> = self.costs().into_iter().map(|(_, cost)| number(cost)).collect();
        cells.push(self.wave.to_string());
        let matrix: Vec<&str> = self.matrix.iter().map(String::as_str).collect();
        cells.push(if matrix.is_empty() { "-".to_string() } else { matrix.join(",") });
        cells
    }

    /// The row back.
    pub fn from_cells(cells: &[&str]) -> Result<Self> {
        ensure!(cells.len() == COLUMNS.len(), "{} columns, expected {}", cells.len(), COLUMNS.len());
        let optional = |at: usize| match cells[at] {
            "-" => Ok(None),
            cell => cell.parse().map(Some).with_context(|| format!("{} is {cell:?}", COLUMNS[at])),
        };
        let number = |at: usize| optional(at)?.with_context(|| format!("{} is missing", COLUMNS[at]));
        let matrix = match cells[9] {
            "-" => BTreeSet::new(),
            list => list.split(',').map(str::to_string).collect(),
        };
        Ok(Facts {
            registers: number(0)?,
            scalar: optional(1)?,
            accumulation: optional(2)?,
            shared: number(3)?,
            private: number(4)?,
            private_accesses: number(5)?,
            vector_spills: optional(6)?,
            scalar_spills: optional(7)?,
            wave: number(8)?,
            matrix,
        })
    }
}
