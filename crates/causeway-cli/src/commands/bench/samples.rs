//! Times of repeated calls, and what can be said from them.

use serde::{Deserialize, Serialize};

/// Seconds per call: the middle, and how far the rest lies from it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Summary {
    pub calls: usize,
    pub median: f64,
    /// A fifth of the calls were faster than this.
    pub p20: f64,
    /// A fifth of the calls were slower than this.
    pub p80: f64,
}

impl Summary {
    /// Of at least one sample.
    pub fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Summary {
            calls: sorted.len(),
            median: quantile(&sorted, 0.5),
            p20: quantile(&sorted, 0.2),
            p80: quantile(&sorted, 0.8),
        }
    }
}

/// Linear interpolation between the two nearest order statistics.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let position = part * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    below + (above - below) * position.fract()
}

/// How much two medians of the same thing differ: what a smaller difference cannot mean.
pub(super) fn noise(first: &[f64], second: &[f64]) -> f64 {
    (Summary::of(first).median / Summary::of(second).median).ln().abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!((summary.calls, summary.median), (4, 2.5));
        assert!((summary.p20 - 1.6).abs() < 1e-12 && (summary.p80 - 3.4).abs() < 1e-12);
        assert_eq!(Summary::of(&[7.0]), Summary { calls: 1, median: 7.0, p20: 7.0, p80: 7.0 });
    }

    #[test]
    fn noise_is_zero_for_equal_series_and_symmetric() {
        assert_eq!(noise(&[1.0, 2.0], &[2.0, 1.0]), 0.0);
        assert!((noise(&[1.1], &[1.0]) - noise(&[1.0], &[1.1])).abs() < 1e-12);
    }
}
