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

/// Up to a few hundred positions in whole packets of any dtype: rows of one tile or of several, the last of them full or not.
pub(super) fn packets(random: &mut Random, most: i64) -> i64 {
    (8 * random.between(1, 40)).min(most.max(1))
}

/// Batch, dim and seqlen of hundreds to thousands of entries of a few positions each: kernels make long rows of them.
pub(super) fn many_entries(random: &mut Random, most: i64) -> [i64; 3] {
    let seqlen = random.between(1, most.clamp(1, 4));
    let batch = 128 * random.log_uniform(64) + random.between(-9, 9);
    let batch = batch.min((most / seqlen).max(1));
    let left = (most / (batch * seqlen)).max(1);
    [batch, size(random, left), seqlen]
}

/// Batch, dim and seqlen of a call that fills a device with rows of any few hundred channels: of half of the elements that there may be, or
/// of all.
pub(super) fn wide_rows(random: &mut Random, most: i64) -> [i64; 3] {
    let dim = random.between(65, 420).min(most);
    let rows = (most / dim / random.between(1, 2)).max(1);
    let batch = random.between(1, 4).min(rows);
    let seqlen = rows / batch;
    // Rows that lie apart, and entries that lie as they would without.
    let step = if random.once_in(2) && seqlen > 8 { 8 } else { 1 };
    [batch, dim, seqlen / step * step]
}

/// Sizes of several axes whose product is `most` at the largest. Now and then one of them is 0.
pub(super) fn shape<const N: usize>(random: &mut Random, limits: [i64; N], most: i64) -> [i64; N] {
    // In half of the shapes no axis takes so much that little is left to the others.
    let even = random.once_in(2);
    let mut left = random.log_uniform(most);
    let mut order: Vec<usize> = (0..N).collect();
    for i in (1..N).rev() {
        order.swap(i, random.below(i + 1));
    }
    let mut shape = [1; N];
    for (number, axis) in order.into_iter().enumerate() {
        let part = (left as f64).powf(1.3 / (N - number) as f64) as i64;
        let most = if even { part.clamp(1, left) } else { left };
        shape[axis] = size(random, most.min(limits[axis]));
        left /= shape[axis];
    }
    if random.once_in(40) {
        shape[random.below(N)] = 0;
    }
    shape
}

/// The most pieces that a row is cut into.
const MOST_PIECES: usize = 200;

/// Lengths of sequences with this total at the most. There are empty ones among them, and ones shorter than the taps reach.
pub(super) fn lengths(random: &mut Random, width: i64, most: i64) -> Vec<i64> {
    if random.once_in(3) {
        return beside_edges(random, width, most);
    }
    let sequences = random.log_uniform(MOST_PIECES as i64) - i64::from(random.once_in(20));
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
    let seqlen = seqlen.max(1);
    let lengths = match random.below(4) {
        0 | 1 => beside_edges(random, width, seqlen),
        anywhere => {
            let longest = if anywhere == 2 { 2 * width } else { seqlen };
            (0..random.between(1, 12)).map(|_| size(random, longest)).collect()
        }
    };
    let increasing = random.once_in(2);
    let index = |(number, length)| match random.below(6) {
        0 => (length, -1 - random.below(2) as i32),
        _ if increasing => (length, number as i32),
        _ => (length, random.below(4) as i32),
    };
    lengths.into_iter().enumerate().map(index).collect()
}

/// Lengths of pieces that end beside the edges of tiles, at most as far from them as the taps reach. There threads ask others for
/// what lies before their tile. An edge is a multiple of a power of two, and has one end at the most: where ends crowd, kernels take
/// another path.
fn beside_edges(random: &mut Random, width: i64, most: i64) -> Vec<i64> {
    let largest = (most / 8).clamp(1, 64).ilog2();
    let tile = 8 << random.between(0, i64::from(largest));
    let (mut edge, mut end, mut lengths) = (0, 0, Vec::new());
    while end < most && lengths.len() < MOST_PIECES {
        edge += tile * random.between(1, 2);
        let reach = random.between(0, width);
        let next = (edge + random.between(-reach, reach)).max(end + 1).min(most);
        lengths.push(next - end);
        end = next;
    }
    lengths
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

    /// Shapes of at most so many elements, few and many; none is empty, or has more.
    fn drawn(draw: fn(&mut Random, i64) -> [i64; 3]) -> [(i64, Vec<[i64; 3]>); 4] {
        let mut random = Random::new("rooms", "");
        [1, 100, 1 << 18, 1 << 23].map(|most| {
            let drawn: Vec<_> = (0..2000).map(|_| draw(&mut random, most)).collect();
            assert!(drawn.iter().all(|shape| shape.iter().all(|size| *size > 0)));
            assert!(drawn.iter().all(|shape| shape.iter().product::<i64>() <= most));
            (most, drawn)
        })
    }

    #[test]
    fn entries_are_many_and_short() {
        for (most, drawn) in drawn(many_entries) {
            assert!((1..=most.min(4)).all(|seqlen| drawn.iter().any(|shape| shape[2] == seqlen)));
            assert!(drawn.iter().any(|shape| shape[0] >= most.min(8000)));
        }
    }

    #[test]
    fn wide_rows_have_a_quarter_of_the_elements_or_more() {
        for (most, drawn) in drawn(wide_rows) {
            assert!(drawn.iter().all(|shape| shape.iter().product::<i64>() >= most / 4));
            assert!(most < 1 << 18 || (0..8).all(|rest| drawn.iter().any(|shape| shape[1] % 8 == rest)));
        }
    }

    #[test]
    fn sequences_meet_on_both_sides_of_the_edges_of_tiles() {
        let mut random = Random::new("edges", "");
        let mut beside = [0; 64];
        for _ in 0..2000 {
            let lengths = beside_edges(&mut random, 8, 500);
            assert!(lengths.iter().all(|length| *length > 0) && lengths.iter().sum::<i64>() <= 500);
            let ends = lengths.iter().scan(0, |end, length| {
                *end += length;
                Some(*end)
            });
            ends.filter(|end| *end < 500).for_each(|end| beside[(end % 64) as usize] += 1);
        }
        // Each place around an edge, and no place between edges as often as the edge.
        assert!((0..8).all(|far| beside[far] > 0 && beside[63 - far] > 0));
        assert!(beside[0] > 2 * beside[12], "{beside:?}");
    }

    #[test]
    fn runs_have_positions_and_changes() {
        let mut random = Random::new("runs", "");
        for seqlen in [0, 1, 7, 300] {
            let drawn: Vec<_> = (0..500).map(|_| runs(&mut random, 4, seqlen)).collect();
            assert!(drawn.iter().all(|runs| !runs.is_empty() && runs.iter().all(|(length, _)| *length > 0)));
            assert!(drawn.iter().any(|runs| runs.iter().any(|(_, index)| *index < 0)));
        }
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
