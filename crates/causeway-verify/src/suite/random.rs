//! Numbers for the inputs of cases: the same on every machine.

/// The generator SplitMix64 (G. L. Steele Jr., D. Lea and C. H. Flood, "Fast splittable pseudorandom number
/// generators", 2014).
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator for one tensor of one case.
    pub fn new(case: &str, tensor: &str) -> Self {
        // FNV-1a over both names.
        let bytes = case.bytes().chain([0]).chain(tensor.bytes());
        let state = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Random { state }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mixed(self.state)
    }

    /// Uniform in (-1, 1), symmetric about zero: an odd multiple of 2⁻⁵³.
    pub fn uniform(&mut self) -> f64 {
        odd_multiple(self.next())
    }

    /// What [`Random::uniform`] would give after `count` other numbers.
    pub fn uniform_after(&self, count: usize) -> f64 {
        odd_multiple(mixed(self.state.wrapping_add(STEP.wrapping_mul(count as u64 + 1))))
    }

    /// Uniform in `0..bound`; 0 if the bound is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

/// Choices, for calls that are drawn at random.
impl Random {
    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Uniform in `least..=most`; `least` if there is nothing between.
    pub fn between(&mut self, least: i64, most: i64) -> i64 {
        least + self.below((most - least + 1).max(1) as usize) as i64
    }

    /// One of several.
    ///
    /// # Panics
    /// If there are none.
    pub fn one_of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// Between 1 and `most`, each factor of two as likely as any other.
    pub fn log_uniform(&mut self, most: i64) -> i64 {
        let exponent = (self.uniform() + 1.0) / 2.0 * (most.max(1) as f64).log2();
        (exponent.exp2() as i64).clamp(1, most.max(1))
    }
}

/// What the state advances by.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn odd_multiple(bits: u64) -> f64 {
    let odd = (bits >> 11) as i64 * 2 + 1 - (1 << 53);
    odd as f64 * 0.5f64.powi(53)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_fills_the_open_interval() {
        let mut random = Random::new("case", "x");
        let values: Vec<f64> = (0..100_000).map(|_| random.uniform()).collect();
        let mean = values.iter().sum::<f64>() / 1e5;
        let square = values.iter().map(|v| v * v).sum::<f64>() / 1e5;
        assert!(values.iter().all(|v| v.abs() < 1.0 && *v != 0.0));
        assert!(mean.abs() < 0.01 && (square - 1.0 / 3.0).abs() < 0.01, "{mean} {square}");
    }

    #[test]
    fn any_number_of_a_stream_can_be_had_by_itself() {
        let mut random = Random::new("case", "x");
        let start = random.clone();
        for i in 0..1000 {
            assert_eq!(start.uniform_after(i), random.uniform());
        }
    }

    #[test]
    fn tensors_and_cases_have_streams_of_their_own() {
        let first = |case, tensor| Random::new(case, tensor).uniform();
        assert_eq!(first("a", "x"), first("a", "x"));
        assert_ne!(first("a", "x"), first("a", "dy"));
        assert_ne!(first("a", "x"), first("b", "x"));
    }
}
