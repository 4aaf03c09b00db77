//! Sums over batch and seqlen: dweight and dbias.

use crate::oracle::bounds::{Approximate, Arithmetic, independent};
use crate::oracle::real::Real;

/// g at one position, and the error that a backend's may have where it enters the sums of dweight and dbias.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Gradient<R> {
    pub value: R,
    pub error: f64,
}

/// Sums that are formed side by side. Each has its terms in the order of the positions.
pub(super) const LANES: usize = 4;

/// Σ g·x of [`LANES`] taps, with what their bounds need.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LongSums<R> {
    value: [R; LANES],
    terms: [u64; LANES],
    /// Σ|term| and Σ term².
    magnitude: [f64; LANES],
    squares: [f64; LANES],
    /// Σ of the errors that g brings in, and of their squares.
    inherited: [f64; LANES],
    inherited_squares: [f64; LANES],
}

impl<R: Real> LongSums<R> {
    /// Adds `g · x(lane)`, of the lanes that count.
    #[inline(always)]
    pub fn add(&mut self, g: Gradient<R>, x: impl Fn(usize) -> R, counts: impl Fn(usize) -> bool) {
        for lane in 0..LANES {
            if counts(lane) {
                let term = g.value * x(lane);
                self.value[lane] = self.value[lane] + term;
                self.terms[lane] += 1;
                self.magnitude[lane] += term.value().abs();
                self.squares[lane] += term.value() * term.value();
                self.inherit(lane, g.error * x(lane).value().abs());
            } else if !g.value.value().is_finite() || g.error == f64::INFINITY {
                self.leave_unchecked(lane);
            }
        }
    }

    /// Adds to what an error brings in.
    #[inline(always)]
    fn inherit(&mut self, lane: usize, error: f64) {
        self.inherited[lane] += error;
        self.inherited_squares[lane] += error * error;
    }

    /// Adds what the errors of x bring in, of the lanes that count.
    #[inline(always)]
    pub fn add_errors(&mut self, g: R, x: impl Fn(usize) -> f64, counts: impl Fn(usize) -> bool) {
        for lane in (0..LANES).filter(|&lane| counts(lane)) {
            match x(lane) {
                0.0 => {}
                f64::INFINITY => self.leave_unchecked(lane),
                error => self.inherit(lane, g.value().abs() * error),
            }
        }
    }

    /// For a tap that does not count where its other factor is not finite: a backend may leave the term out, or multiply
    /// by a zero, which gives NaN.
    pub fn leave_unchecked(&mut self, lane: usize) {
        self.inherited[lane] = f64::INFINITY;
        self.inherited_squares[lane] = f64::INFINITY;
    }

    /// The sum of a lane, and the error that it may have before it is rounded to its dtype.
    pub fn finish(&self, lane: usize, arithmetic: &Arithmetic) -> Approximate {
        let terms = self.terms[lane] as usize;
        let mut error = arithmetic.long_sum(terms, self.magnitude[lane], self.squares[lane])
            + independent(self.inherited[lane], self.inherited_squares[lane]);
        let largest = self.magnitude[lane] + self.inherited[lane];
        if self.magnitude[lane].is_finite() && arithmetic.may_overflow(terms, largest) {
            // By what errors of g come to in the terms.
            error = f64::INFINITY;
        }
        Approximate { value: self.value[lane].value(), error }
    }
}
