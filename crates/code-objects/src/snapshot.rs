//! The committed tables: one file per target and compiler, a row per kernel variant.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::facts::{COLUMNS, Facts};

const COMPILER: &str = "# compiled by ";

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The compiler that made the code, and what disassembled it.
    pub compiler: String,
    /// Facts by the variants' names.
    pub rows: BTreeMap<String, Facts>,
}

/// Where the tables are.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots")
}

/// The file of one table.
pub fn path(name: &str) -> PathBuf {
    folder().join(format!("{name}.tsv"))
}

impl Snapshot {
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        let compiler = lines.next().and_then(|line| line.strip_prefix(COMPILER));
        let compiler = compiler.with_context(|| format!("line 1: expected {COMPILER:?} and its name"))?;
        ensure!(lines.next() == Some(head().as_str()), "line 2: expected {:?}", head());
        let mut rows = BTreeMap::new();
        for (number, line) in (3..).zip(lines) {
            let mut cells = line.split('\t');
            let kernel = cells.next().unwrap_or_default().to_string();
            let facts =
                Facts::from_cells(&cells.collect::<Vec<_>>()).with_context(|| format!("line {number}"))?;
            ensure!(rows.insert(kernel, facts).is_none(), "line {number}: the kernel has a row already");
        }
        Ok(Snapshot { compiler: compiler.to_string(), rows })
    }

    /// Writes the table of this name.
    pub fn write(&self, name: &str) -> Result<()> {
        let path = path(name);
        std::fs::write(&path, self.text()).with_context(|| format!("writing {}", path.display()))
    }

    /// The file's text: rows in the order of their names.
    pub fn text(&self) -> String {
        let mut text = format!("{COMPILER}{}\n{}\n", self.compiler, head());
        for (kernel, facts) in &self.rows {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{kernel}\t{}", facts.to_cells().join("\t"));
        }
        text
    }
}

fn head() -> String {
    format!("kernel\t{}", COLUMNS.join("\t"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        let amd = Facts {
            registers: 92,
            scalar: Some(40),
            accumulation: Some(16),
            shared: 32768,
            private: 4,
            private_accesses: 2,
            vector_spills: Some(1),
            scalar_spills: Some(0),
            wave: 64,
            matrix: ["v_mfma_f32_32x32x8_f16".to_string()].into(),
        };
        let nvidia = Facts { registers: 40, wave: 32, ..Facts::default() };
        let rows = [("b width=4".to_string(), amd), ("a".to_string(), nvidia)].into();
        Snapshot { compiler: "clang 19".to_string(), rows }
    }

    #[test]
    fn tables_come_back_as_they_were_written() {
        let snapshot = snapshot();
        assert_eq!(Snapshot::parse(&snapshot.text()).unwrap(), snapshot);
        assert!(snapshot.text().lines().nth(2).unwrap().starts_with("a\t40\t-\t-\t0\t0\t0\t-\t-\t32\t-"));
    }

    #[test]
    fn broken_tables_say_where() {
        let text = snapshot().text();
        for (from, to, expected) in [
            ("# compiled by", "#", "line 1"),
            ("registers", "register", "line 2"),
            ("a\t40", "a\tforty", "line 3: registers is \"forty\""),
            ("\t64\t", "\t-\t", "line 4: wave is missing"),
            ("b width=4", "a", "line 4: the kernel has a row already"),
            ("a\t40\t", "a\t40\t1\t", "11 columns, expected 10"),
        ] {
            let error = format!("{:#}", Snapshot::parse(&text.replacen(from, to, 1)).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_committed_tables_hold_nothing_that_is_never_allowed() {
        let builds = crate::build::builds().unwrap();
        for build in &builds {
            let table = Snapshot::read(&path(&build.name)).unwrap();
            assert!(table.rows.len() > 500, "{}: {} rows", build.name, table.rows.len());
            for (kernel, facts) in &table.rows {
                let found = crate::gate::rules(kernel, facts);
                assert!(found.is_empty(), "{} {kernel}: {found:?}", build.name);
            }
            assert!(
                build.suites.iter().all(|suite| causeway_verify::suite::Suite::open(suite).is_ok()),
                "{build:?}"
            );
        }
        let files = std::fs::read_dir(folder()).unwrap().count();
        assert_eq!(files, builds.len(), "a table for each row of builds.toml, and no other file");
    }
}
