//! A call that was drawn, as the row of a suite that it is.

use causeway::causal_conv1d::HeadNorm;
use toml::{Table, Value};

use super::super::case::{Case, Ceilings};
use super::super::rows;

/// What one row of a suite says, and of which operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// `conv1d`, `conv1d-update`, `conv1d-varlen-states`, `gemm` or `parity`: the name of the suite's list.
    pub operation: &'static str,
    /// Keys and values.
    pub table: Table,
}

impl Row {
    /// The case that the row describes.
    ///
    /// # Errors
    /// What is wrong with the row, as a suite would say it.
    pub fn case(&self) -> Result<Case, String> {
        let mut cases = rows::cases(self.operation, None, &self.table, &|_| Ceilings::default())?;
        cases.pop().ok_or_else(|| "the row has no case".to_string())
    }

    /// The text of a suite that has this row alone.
    pub fn to_suite(&self) -> String {
        let name = self.table.get("name").and_then(Value::as_str).unwrap_or("row");
        format!("name = \"{name}\"\nabout = \"A call that was drawn at random.\"\n\n{}", self.to_entry())
    }

    /// The row as an entry of a suite.
    pub fn to_entry(&self) -> String {
        let mut lines = vec![format!("[[{}]]", self.operation)];
        lines.extend(self.table.iter().map(|(key, value)| format!("{key} = {value}")));
        lines.join("\n") + "\n"
    }

    /// The numbers of a list, or the one number, that a key holds.
    pub(super) fn integers(&self, key: &str) -> Vec<i64> {
        match self.table.get(key) {
            Some(Value::Array(items)) => items.iter().filter_map(Value::as_integer).collect(),
            Some(value) => value.as_integer().into_iter().collect(),
            None => Vec::new(),
        }
    }

    /// The norm that the row has.
    pub(super) fn norm(&self) -> Option<HeadNorm> {
        self.table.get("norm")?.as_str()?.parse().ok()
    }

    /// What the other keys say of each other: boundaries pack all sequences into one row, and a state holds the taps.
    pub(super) fn made_consistent(mut self) -> Self {
        let lengths = self.table.get("cu_seqlens").and_then(|packed| packed.get("lengths"));
        let lengths = lengths.and_then(Value::as_array);
        if let (Some(lengths), &[_, dim, _]) = (lengths, &*self.integers("shape")) {
            let total: i64 = lengths.iter().filter_map(Value::as_integer).sum();
            self.table.insert("shape".into(), integers(&[1, dim, total]));
        }
        if let (&[width], &[state_len]) = (&*self.integers("width"), &*self.integers("state_len")) {
            self.table.insert("state_len".into(), state_len.max(width - 1).into());
        }
        self
    }
}

/// A list of numbers.
pub(super) fn integers(values: &[i64]) -> Value {
    Value::Array(values.iter().map(|&value| value.into()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Suite;

    #[test]
    fn a_row_is_a_suite() {
        let text = "name = \"a\"\nshape = [1, 3, 5]\nwidth = 4\ndtype = \"bf16\"\nlayout = \"channel-last\"\n\
                    activation = \"silu\"\nseq_idx = [[2, 0], [1, -1]]\n\
                    memory = { x = { order = [1, 0, 2], offset = 3 } }\n\
                    cu_seqlens = { lengths = [2, 0, 3], dtype = \"i32\" }\n";
        let row = Row { operation: "conv1d", table: toml::from_str(text).unwrap() };
        let suite = Suite::parse("row.toml", &row.to_suite()).unwrap();
        assert_eq!(suite.cases, [row.case().unwrap()]);
    }
}
