//! Sixteen rows of sixteen numbers, transposed in registers.

use std::arch::x86_64::*;

/// Swaps rows and columns.
///
/// Four rounds, each with 16 shuffles: neighbours are paired, pairs of pairs are, then the four 128-bit lanes of
/// the rows change places twice.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn transpose(rows: [__m512i; 16]) -> [__m512i; 16] {
    // pairs[4q + j], lane l: rows 4q + 2(j/2) and the next one, columns 4l + 2(j%2) and the next one, interleaved.
    let mut pairs = rows;
    for pair in 0..8 {
        let (upper, lower) = (rows[2 * pair], rows[2 * pair + 1]);
        pairs[2 * pair] = _mm512_unpacklo_epi32(upper, lower);
        pairs[2 * pair + 1] = _mm512_unpackhi_epi32(upper, lower);
    }
    // quads[4q + j], lane l: rows 4q to 4q + 3 of column 4l + j.
    let mut quads = rows;
    for q in (0..16).step_by(4) {
        quads[q] = _mm512_unpacklo_epi64(pairs[q], pairs[q + 2]);
        quads[q + 1] = _mm512_unpackhi_epi64(pairs[q], pairs[q + 2]);
        quads[q + 2] = _mm512_unpacklo_epi64(pairs[q + 1], pairs[q + 3]);
        quads[q + 3] = _mm512_unpackhi_epi64(pairs[q + 1], pairs[q + 3]);
    }
    let mut columns = rows;
    for j in 0..4 {
        // Lanes 0 and 2, or 1 and 3, of rows 0 to 7 and of rows 8 to 15.
        let top_even = _mm512_shuffle_i32x4::<0b10_00_10_00>(quads[j], quads[4 + j]);
        let top_odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(quads[j], quads[4 + j]);
        let bottom_even = _mm512_shuffle_i32x4::<0b10_00_10_00>(quads[8 + j], quads[12 + j]);
        let bottom_odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(quads[8 + j], quads[12 + j]);
        columns[j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(top_even, bottom_even);
        columns[4 + j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(top_odd, bottom_odd);
        columns[8 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(top_even, bottom_even);
        columns[12 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(top_odd, bottom_odd);
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_columns() {
        if !is_x86_feature_detected!("avx512f") {
            return;
        }
        let matrix: [[u32; 16]; 16] =
            std::array::from_fn(|row| std::array::from_fn(|column| (16 * row + column) as u32));
        let mut columns = [[0u32; 16]; 16];
        // SAFETY: the processor has AVX-512; each row holds sixteen numbers.
        unsafe {
            let rows = transpose(matrix.map(|row| _mm512_loadu_si512(row.as_ptr().cast())));
            for (to, row) in columns.iter_mut().zip(rows) {
                _mm512_storeu_si512(to.as_mut_ptr().cast(), row);
            }
        }
        for (row, values) in columns.iter().enumerate() {
            let expected: [u32; 16] = std::array::from_fn(|column| (16 * column + row) as u32);
            assert_eq!(*values, expected, "row {row}");
        }
    }
}
