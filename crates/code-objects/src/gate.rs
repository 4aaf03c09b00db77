//! What may not get worse.

use crate::facts::Facts;
use crate::variant::{uses_matrix_units, width};

/// The widths up to which nothing may spill.
const NEVER_SPILLS: u32 = 4;

/// A cost may grow by this many percent of what the snapshot says.
const GROWTH: u64 = 10;

/// What is wrong with a kernel's code, given its row in the snapshot if there is one to compare with.
pub fn violations(name: &str, before: Option<&Facts>, now: &Facts) -> Vec<String> {
    let mut found = rules(name, now);
    let Some(before) = before else { return found };
    for ((column, old), (_, new)) in before.costs().into_iter().zip(now.costs()) {
        match (old, new) {
            (Some(old), Some(new)) if grew(old, new) => {
                found.push(format!("{column}: {new}, was {old}: more than {GROWTH} % above"));
            }
            (Some(_), None) | (None, Some(_)) => found.push(format!("{column}: {new:?}, was {old:?}")),
            _ => {}
        }
    }
    if before.wave != now.wave {
        found.push(format!("wave: {}, was {}", now.wave, before.wave));
    }
    let lost: Vec<&str> = before.matrix.difference(&now.matrix).map(String::as_str).collect();
    if !lost.is_empty() {
        found.push(format!("matrix: lost {}", lost.join(", ")));
    }
    found
}

/// True of a walk by heads of 32 threads with eight channels each, on AMD's devices with waves of 32. A thread has 256 registers there at the
/// most, and narrower packets would take more threads than a wave has.
fn is_full(name: &str, now: &Facts) -> bool {
    now.vector_spills.is_some()
        && now.wave == 32
        && name.contains(" channels=8 ")
        && name.contains(" head_lanes=32 ")
}

/// What holds for any code, whatever it was before.
pub fn rules(name: &str, now: &Facts) -> Vec<String> {
    let mut found = Vec::new();
    let narrow = width(name).is_some_and(|width| width <= NEVER_SPILLS) && !is_full(name, now);
    if narrow || name.starts_with("gemm_") {
        let spills = [("private_accesses", Some(now.private_accesses)), ("vector_spills", now.vector_spills)];
        for (column, count) in spills.into_iter().filter(|(_, count)| count.is_some_and(|count| count > 0)) {
            let why = if narrow { "widths up to 4 do not spill" } else { "products do not spill" };
            found.push(format!("{column}: {}, expected 0: {why}", count.unwrap_or_default()));
        }
    }
    if uses_matrix_units(name) && now.matrix.is_empty() {
        found.push("matrix: no matrix instruction".to_string());
    }
    found
}

/// Costs that are now more than the allowed growth below the snapshot.
pub fn gains(before: &Facts, now: &Facts) -> bool {
    before.costs().into_iter().zip(now.costs()).any(|((_, old), (_, new))| match (old, new) {
        (Some(old), Some(new)) => grew(new, old),
        _ => false,
    })
}

fn grew(old: u32, new: u32) -> bool {
    u64::from(new) * 100 > u64::from(old) * (100 + GROWTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NARROW: &str = "causal_conv1d_backward_channel_last X=f32 width=4 | (256, 2)";
    const PRODUCT: &str = "gemm_tile gemm_mfma T=f16 left_bytes=16 | (256, 2)";
    const WIDE: &str = "causal_conv1d_backward_channel_last X=f32 width=8 | (256, 2)";

    fn base() -> Facts {
        Facts {
            registers: 100,
            scalar: Some(50),
            accumulation: Some(0),
            shared: 1000,
            vector_spills: Some(0),
            scalar_spills: Some(0),
            wave: 64,
            matrix: ["v_mfma_f32_32x32x8_f16".to_string()].into(),
            ..Facts::default()
        }
    }

    #[test]
    fn what_stays_within_ten_percent_passes() {
        let now = Facts { registers: 110, scalar: Some(55), shared: 1100, ..base() };
        assert_eq!(violations(NARROW, Some(&base()), &now), Vec::<String>::new());
        assert!(!gains(&base(), &now) && !gains(&now, &base()));
        assert!(gains(&Facts { registers: 112, ..base() }, &base()));
    }

    #[test]
    fn each_loss_is_named_with_both_numbers() {
        let no_matrix = Facts { matrix: Default::default(), ..base() };
        let rows: [(&str, Facts, &[&str]); 9] = [
            (WIDE, Facts { registers: 111, ..base() }, &["registers: 111, was 100"]),
            (WIDE, Facts { scalar: Some(56), ..base() }, &["scalar: 56, was 50"]),
            (WIDE, Facts { shared: 1101, ..base() }, &["shared: 1101, was 1000"]),
            (WIDE, Facts { private: 4, ..base() }, &["private: 4, was 0"]),
            (WIDE, Facts { scalar_spills: Some(1), ..base() }, &["scalar_spills: 1, was 0"]),
            (WIDE, Facts { wave: 32, ..base() }, &["wave: 32, was 64"]),
            (WIDE, no_matrix.clone(), &["lost v_mfma_f32_32x32x8_f16"]),
            (PRODUCT, no_matrix, &["no matrix instruction", "lost v_mfma_f32_32x32x8_f16"]),
            (
                NARROW,
                Facts { private_accesses: 2, ..base() },
                &["widths up to 4", "private_accesses: 2, was 0"],
            ),
        ];
        for (name, now, expected) in rows {
            let found = violations(name, Some(&base()), &now);
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for (line, part) in found.iter().zip(expected) {
                assert!(line.contains(part), "{line:?} lacks {part:?}");
            }
        }
    }

    #[test]
    fn a_snapshot_excuses_no_spill_of_a_narrow_kernel_or_a_product() {
        let spilling = Facts { private: 8, private_accesses: 3, vector_spills: Some(2), ..base() };
        assert_eq!(violations(NARROW, Some(&spilling), &spilling).len(), 2);
        assert_eq!(violations(PRODUCT, Some(&spilling), &spilling).len(), 2);
        assert_eq!(violations(NARROW, None, &spilling).len(), 2);
        assert!(violations(WIDE, Some(&spilling), &spilling).is_empty());
    }

    #[test]
    fn heads_that_fill_a_wave_of_32_threads_may_spill_on_amd_alone() {
        let name =
            "causal_conv1d_backward_channel_last X=bf16 width=4 norm | channels=8 head_lanes=32 | (128, 2)";
        let spilling = Facts { private_accesses: 3, vector_spills: Some(2), wave: 32, ..base() };
        assert!(violations(name, None, &spilling).is_empty());
        let found = [
            violations(&name.replace("=32", "=16"), None, &spilling),
            violations(name, None, &Facts { wave: 64, ..spilling.clone() }),
            violations(name, None, &Facts { vector_spills: None, ..spilling }),
        ];
        assert_eq!(found.map(|found| found.len()), [2, 2, 1]);
    }
}
