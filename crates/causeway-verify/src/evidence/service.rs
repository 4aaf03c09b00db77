//! A run of `serve`: what other programs asked for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Requests that a server answered and refused.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// `tensors` or `text`.
    pub protocol: String,
    /// Largest frame that was taken, in bytes.
    pub max_frame: u32,
    /// What was answered, by operation.
    pub operations: BTreeMap<String, OperationCount>,
    /// What was refused, by the stable code of the error.
    pub refused: BTreeMap<String, u64>,
}

/// The requests of one operation that were answered with results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct OperationCount {
    /// How many.
    pub answered: u64,
    /// Seconds of all together on the device, without copies to and from it.
    pub seconds: f64,
    /// The longest of them.
    pub longest: f64,
}

impl Service {
    /// Requests that were answered with results.
    pub fn answered(&self) -> u64 {
        self.operations.values().map(|count| count.answered).sum()
    }

    /// Counts an answer.
    pub fn note_answer(&mut self, operation: &str, seconds: f64) {
        // Looked up first: a name is allocated once, not with every request.
        if !self.operations.contains_key(operation) {
            self.operations.insert(operation.to_string(), OperationCount::default());
        }
        if let Some(count) = self.operations.get_mut(operation) {
            count.answered += 1;
            count.seconds += seconds;
            count.longest = count.longest.max(seconds);
        }
    }

    /// Counts a refusal.
    pub fn note_refusal(&mut self, code: &str) {
        *self.refused.entry(code.to_string()).or_default() += 1;
    }
}
