//! Bytes that a call has to move: every tensor that it reads, and every one that it writes, once.

use causeway::Arrangement;
use causeway::causal_conv1d::{Backward, Forward};
use causeway::error::Result;
use causeway::operation::Operation;

use super::case::{Conv1d, Problem, Update, VarlenStates};
use super::gemm::Gemm;

impl Problem {
    /// Bytes that one of the problem's calls reads and writes, each once; 0 for a call that it does not have.
    ///
    /// Calls have the names of [`Timing::operation`](super::Timing::operation).
    ///
    /// # Errors
    /// If a tensor of the problem cannot be arranged in memory.
    pub fn moved_bytes(&self, call: &str) -> Result<u64> {
        match self {
            Problem::Conv1d(conv1d) | Problem::Parity(conv1d) => conv1d.moved(call),
            Problem::Update(update) => update.moved(),
            Problem::VarlenStates(states) => states.moved(),
            Problem::Gemm(gemm) => Ok(gemm.moved(call)),
        }
    }
}

fn bytes(arrangement: &Arrangement) -> u64 {
    arrangement.shape.element_count().unwrap_or(0) as u64 * arrangement.dtype.size() as u64
}

impl Conv1d {
    fn moved(&self, call: &str) -> Result<u64> {
        let is_backward = call == "conv1d-backward";
        let arguments = if is_backward { Backward::ARGUMENTS } else { Forward::ARGUMENTS };
        let reads = |input: &str| arguments.iter().any(|argument| argument.name == input);
        let mut total = 0;
        let mut count = |name: &'static str, arrangement: Arrangement| {
            if reads(name) {
                total += bytes(&arrangement);
            }
            Ok(())
        };
        self.inputs(&mut count)?;
        match is_backward {
            true => self.backward_results(&mut count).map(drop)?,
            false => self.forward_results(&mut count).map(drop)?,
        }
        Ok(total)
    }
}

impl Update {
    fn moved(&self) -> Result<u64> {
        // Of the rows that indices do not select, none is touched.
        let part = self.batch as f64 / self.rows().max(1) as f64;
        let mut total = 0;
        let mut count = |name: &'static str, arrangement: Arrangement| {
            let bytes = bytes(&arrangement);
            total += if name == "conv_state" { (bytes as f64 * part) as u64 } else { bytes };
            Ok(())
        };
        self.inputs(&mut count)?;
        self.results(&mut count)?;
        Ok(total)
    }
}

impl VarlenStates {
    fn moved(&self) -> Result<u64> {
        let mut kept = 0;
        self.results(|_, arrangement| {
            kept = bytes(&arrangement);
            Ok(())
        })?;
        let mut total = kept;
        self.inputs(|name, arrangement| {
            let bytes = bytes(&arrangement);
            total += if name == "x" { bytes.min(kept) } else { bytes };
            Ok(())
        })?;
        Ok(total)
    }
}

impl Gemm {
    fn moved(&self, call: &str) -> u64 {
        let (a, b, c) = (self.m * self.k, self.k * self.n, self.m * self.n);
        let elements = match call {
            // Two products, each of which reads its operands.
            "gemm-grad-ab" => 2 * (a + b + c),
            _ => a + b + c,
        };
        elements as u64 * self.dtype.size() as u64
    }
}
