//! Sizes where kernels change what they do: nothing, one, powers of two, their neighbours, whole tiles.

use super::super::random::Random;

/// A size up to `most`, which is at least 1.
pub(super) fn size(random: &mut Random, most: i64) -> i64 {
    let near = |random: &mut Random, centre: i64| centre + random.between(-1, 1);
    let drawn = match random.below(10) {
        0 => random.between(1, 9),
        1 | 2 => {
            let power = 1 << random.between(0, i64::from(most.ilog2()));
            near(random, power)
        }
        3 => {
            let factor = *random.one_of(&[3, 5, 7, 9, 11, 13]);
            let power = 1 << random.between(0, i64::from(most.ilog2()));
            let product = factor * power;
            near(random, product)
        }
        4 => 8 * random.log_uniform(most / 8 + 1),
        5 => most - random.between(0, 3),
        // What a tile, or the lanes that share a row, take without a rest: there kernels leave out checks.
        6 | 7 => (8 << random.between(0, 6)) * random.between(1, 4),
        _ => random.log_uniform(most),
    };
    drawn.clamp(1, most)
}

/// Sizes of several axes whose product is `most` at the largest. Now and then one of them is 0.
pub(super) fn shape<const N: usize>(random: &mut Random, limits: [i64; N], most: i64) -> [i64; N] {
    let mut left = random.log_uniform(most);
    let mut order: Vec<usize> = (0..N).collect();
    for i in (1..N).rev() {
        order.swap(i, random.below(i + 1));
    }
    let mut shape = [1; N];
    for axis in order {
        shape[axis] = size(random, left.min(limits[axis]));
        left /= shape[axis];
    }
    if random.once_in(40) {
        shape[random.below(N)] = 0;
    }
    shape
}

/// Lengths of sequences with this total at the most. There are empty ones among them, and ones shorter than the taps reach.
pub(super) fn lengths(random: &mut Random, width: i64, most: i64) -> Vec<i64> {
    const MOST_SEQUENCES: usize = 200;
    let sequences = random.log_uniform(MOST_SEQUENCES as i64) - i64::from(random.once_in(20));
    // Long and short ones, or all of a kind.
    let longest = size(random, most.max(1));
    let mut left = most;
    let mut lengths = Vec::new();
    for _ in 0..sequences {
        let length = match random.below(6) {
            0 => 0,
            1 => random.between(1, width),
            _ => size(random, longest),
        };
        let length = length.min(left);
        left -= length;
        lengths.push(length);
    }
    lengths
}

/// Runs of equal index: increasing or not, with padding among them.
pub(super) fn runs(random: &mut Random, width: i64, seqlen: i64) -> Vec<(i64, i32)> {
    let longest = if random.once_in(2) { 2 * width } else { seqlen.max(1) };
    let increasing = random.once_in(2);
    let mut runs: Vec<(i64, i32)> = Vec::new();
    for number in 0..random.between(1, 12) {
        let index = match random.below(6) {
            0 => -1 - random.below(2) as i32,
            _ if increasing => number as i32,
            _ => random.below(4) as i32,
        };
        runs.push((size(random, longest), index));
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_stay_within_their_limits_and_reach_them() {
        let mut random = Random::new("sizes", "");
        for most in [1, 2, 7, 100, 4096] {
            let drawn: Vec<i64> = (0..2000).map(|_| size(&mut random, most)).collect();
            assert!(drawn.iter().all(|size| (1..=most).contains(size)));
            assert!(drawn.contains(&most) && drawn.contains(&1));
        }
        let shapes: Vec<_> = (0..2000).map(|_| shape(&mut random, [9, 4000, 4000], 5000)).collect();
        assert!(shapes.iter().all(|shape| shape[0] <= 9 && shape.iter().product::<i64>() <= 5000));
        assert!((0..3).all(|axis| shapes.iter().any(|shape| shape[axis] == 0)));
        assert!(shapes.iter().any(|shape| shape[1] > 2500) && shapes.iter().any(|shape| shape[2] > 2500));
    }

    #[test]
    fn sequences_are_empty_short_and_long() {
        let mut random = Random::new("lengths", "");
        let drawn: Vec<_> = (0..2000).map(|_| lengths(&mut random, 4, 300)).collect();
        assert!(drawn.iter().all(|lengths| lengths.iter().sum::<i64>() <= 300));
        assert!(drawn.iter().any(Vec::is_empty));
        for wanted in [0, 1, 3, 4, 300] {
            assert!(drawn.iter().any(|lengths| lengths.contains(&wanted)), "{wanted}");
        }
    }
}
