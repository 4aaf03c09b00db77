//! Makes a row that fails smaller, as long as it fails.

use toml::Value;

use super::row::Row;

/// What the keys that a row needs are simplest as. The others can go.
const SIMPLEST: [(&str, &[&str]); 5] = [
    ("dtype", &["f32", "bf16", "f16"]),
    ("layout", &["channel-first", "row-major"]),
    ("activation", &["none"]),
    ("algorithm", &["exact"]),
    ("name", &[]),
];

/// The smallest row that was found for which `fails` holds, after asking it at most `attempts` times.
pub fn shrink(row: &Row, attempts: usize, mut fails: impl FnMut(&Row) -> bool) -> Row {
    let (mut smallest, mut left) = (row.clone(), attempts);
    'again: loop {
        for candidate in simpler(&smallest) {
            // Not every combination is a call.
            if candidate.case().is_err() {
                continue;
            }
            if left == 0 {
                return smallest;
            }
            left -= 1;
            if fails(&candidate) {
                smallest = candidate;
                continue 'again;
            }
        }
        return smallest;
    }
}

/// Rows that are one step simpler, the largest steps first.
fn simpler(row: &Row) -> Vec<Row> {
    let mut candidates = Vec::new();
    let mut add = |table: toml::Table| {
        let candidate = Row { operation: row.operation, table }.made_consistent();
        if candidate != *row {
            candidates.push(candidate);
        }
    };
    let required = |key: &str| SIMPLEST.iter().any(|(known, _)| *known == key);
    for key in row.table.keys().filter(|key| !required(key)) {
        let mut table = row.table.clone();
        table.remove(key);
        add(table);
    }
    for (key, choices) in SIMPLEST {
        let Some(now) = row.table.get(key).and_then(Value::as_str) else { continue };
        // Only towards the simplest, or two choices would follow each other for ever.
        let rank = choices.iter().position(|choice| *choice == now).unwrap_or(choices.len());
        for choice in &choices[..rank] {
            let mut table = row.table.clone();
            table.insert(key.into(), (*choice).into());
            add(table);
        }
    }
    for (key, value) in &row.table {
        for simpler in simpler_values(value) {
            let mut table = row.table.clone();
            table.insert(key.clone(), simpler);
            add(table);
        }
    }
    candidates
}

/// Values with one number made smaller, one part of a list gone, or one entry of a table gone.
fn simpler_values(value: &Value) -> Vec<Value> {
    match value {
        Value::Integer(number) => smaller(*number).into_iter().map(Value::Integer).collect(),
        Value::Array(items) => {
            let mut simpler = Vec::new();
            let mut part = items.len() / 2;
            while part > 0 {
                for begin in (0..items.len()).step_by(part) {
                    let mut rest = items.clone();
                    rest.drain(begin..(begin + part).min(items.len()));
                    simpler.push(Value::Array(rest));
                }
                part /= 2;
            }
            for (place, item) in items.iter().enumerate() {
                for item in simpler_values(item) {
                    let mut changed = items.clone();
                    changed[place] = item;
                    simpler.push(Value::Array(changed));
                }
            }
            simpler
        }
        Value::Table(entries) => {
            let mut simpler = Vec::new();
            for (key, value) in entries {
                let mut rest = entries.clone();
                rest.remove(key);
                simpler.push(Value::Table(rest));
                for value in simpler_values(value) {
                    let mut changed = entries.clone();
                    changed.insert(key.clone(), value);
                    simpler.push(Value::Table(changed));
                }
            }
            simpler
        }
        _ => Vec::new(),
    }
}

/// Numbers nearer to zero.
fn smaller(number: i64) -> Vec<i64> {
    let power = if number > 1 { 1i64 << (number - 1).ilog2() } else { 0 };
    let mut smaller = vec![0, 1, number / 2, power, number - number.signum()];
    smaller.retain(|candidate| candidate.abs() < number.abs());
    smaller.dedup();
    smaller
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_matter_goes() {
        let text = "name = \"a\"\nshape = [3, 40, 300]\nwidth = 7\ndtype = \"bf16\"\nlayout = \"every-third\"\n\
                    activation = \"silu\"\nbias = true\nresidual = true\nseq_idx = [[2, 0], [1, -1]]\n\
                    memory = { x = { order = [1, 0, 2], offset = 3 }, y = { offset = 1 } }\n";
        let row = Row { operation: "conv1d", table: toml::from_str(text).unwrap() };
        // A fault of width 5 and more at 33 positions and more, with padding, in tensors off alignment.
        let fails = |row: &Row| {
            row.integers("width")[0] >= 5
                && row.integers("shape")[2] >= 33
                && row.table.get("seq_idx").is_some_and(|runs| runs.to_string().contains("-1"))
                && row.table.get("memory").is_some_and(|memory| memory.to_string().contains("offset"))
        };
        let small = shrink(&row, 10_000, fails);
        assert!(fails(&small));
        let mut keys: Vec<_> = small.table.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["activation", "dtype", "layout", "memory", "name", "seq_idx", "shape", "width"]);
        assert_eq!(small.integers("shape"), [0, 0, 33]);
        assert_eq!(small.integers("width"), [5]);
        assert_eq!(small.table["dtype"].as_str(), Some("f32"));
        assert_eq!(small.table["seq_idx"].to_string(), "[[1, -1]]");
        assert_eq!(small.table["memory"].as_table().map(toml::Table::len), Some(1));
    }

    #[test]
    fn an_end_comes_without_progress() {
        let text = "name = \"a\"\nshape = [1, 1, 1]\nwidth = 1\ndtype = \"f16\"\nlayout = \"channel-first\"\n\
                    activation = \"none\"\n";
        let row = Row { operation: "conv1d", table: toml::from_str(text).unwrap() };
        let mut asked = 0;
        let same = shrink(&row, 5, |_| {
            asked += 1;
            false
        });
        assert_eq!((same, asked), (row, 5));
    }
}
