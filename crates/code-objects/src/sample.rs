//! Which variants of a table a check builds, where all of them would take too long.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::build::Build;
use crate::snapshot::Snapshot;
use crate::variant::{Variant, width};

/// The names of what to build: every variant of the table's suites; and of each kernel, its narrow widths and its wide
/// ones apart, those that have most private memory, then most registers, in the snapshot. Those are the next to spill.
pub fn chosen(build: &Build, variants: &BTreeMap<String, Variant>, snapshot: &Snapshot) -> BTreeSet<String> {
    let of_suites = variants
        .values()
        .filter(|variant| !variant.suites.is_disjoint(&build.suites.iter().cloned().collect()));
    let mut chosen: BTreeSet<String> = of_suites.map(|variant| variant.name.clone()).collect();
    chosen.extend(fullest(build.fullest, variants.keys(), snapshot));
    chosen
}

fn fullest<'a>(
    count: usize,
    names: impl Iterator<Item = &'a String>,
    snapshot: &Snapshot,
) -> impl Iterator<Item = String> {
    let mut kernels: BTreeMap<(&str, Option<bool>), Vec<&String>> = BTreeMap::new();
    for name in names {
        kernels.entry((kernel(name), width(name).map(|width| width <= 4))).or_default().push(name);
    }
    let fullness = |name: &&String| {
        let facts = snapshot.rows.get(*name);
        Reverse(facts.map(|facts| (facts.private, facts.registers)))
    };
    kernels.into_values().flat_map(move |mut names| {
        // The order of names decides between equals: a check builds the same everywhere.
        names.sort_by_key(fullness);
        names.into_iter().take(count).cloned().collect::<Vec<_>>()
    })
}

/// The words of a name before its template arguments.
fn kernel(name: &str) -> &str {
    let end =
        name.split(' ').take_while(|word| !word.contains('=')).map(|word| word.len() + 1).sum::<usize>();
    name[..end.min(name.len())].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;

    #[test]
    fn the_fullest_of_each_kernel_are_chosen() {
        let rows = [
            ("forward X=f32 width=4 | a=1", 40, 0),
            ("forward X=f32 width=4 | a=2", 60, 0),
            ("forward X=f32 width=2 | a=3", 30, 8),
            ("forward X=f32 width=8 | a=4", 20, 0),
            ("gemm_tile gemm_mma T=f16", 128, 0),
            ("gemm_tile gemm_mma T=bf16", 127, 0),
            ("gemm_exact T=f16", 10, 0),
        ];
        let facts = |registers, private| Facts { registers, private, ..Facts::default() };
        let rows = rows.map(|(name, registers, private)| (name.to_string(), facts(registers, private)));
        let snapshot = Snapshot { compiler: String::new(), rows: rows.clone().into() };
        let names: Vec<String> = rows.into_iter().map(|(name, _)| name).collect();
        let chosen = |count| fullest(count, names.iter(), &snapshot).collect::<BTreeSet<_>>();
        let at = |places: &[usize]| places.iter().map(|at| names[*at].clone()).collect::<BTreeSet<_>>();
        assert_eq!(chosen(1), at(&[2, 3, 4, 6]));
        assert_eq!(chosen(2), at(&[1, 2, 3, 4, 5, 6]));
        assert_eq!(kernel("gemm_tile gemm_mma T=f16"), "gemm_tile gemm_mma");
    }
}
