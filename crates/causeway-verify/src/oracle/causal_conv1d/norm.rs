//! The norm of each head: what all channels of a head at one position have in common, and what it makes of each of them.

use causeway::causal_conv1d::HeadNorm;
use causeway::tensor::{DType, TensorRef};

use super::sequences::{Data, Pre, Window, refill};
use super::{activate, sigmoid};
use crate::oracle::bounds::{Approximate, Arithmetic};
use crate::oracle::loops::{Loops, map_all, vectorised};
use crate::oracle::real::Real;

/// Rounding of an inverse square root, in units of 2u: a square root and a division, or an approximation by hardware.
const ROOT_UNITS: f64 = 2.0;

/// 1 / √(Σ u² + eps) of every head at every position, and Σ dy·n where there is a dy.
pub(super) struct Norms<R> {
    norm: Norm,
    heads: usize,
    seqlen: usize,
    values: Vec<HeadAt<R>>,
}

/// The numbers of a norm, as the arithmetic has them.
#[derive(Debug, Clone, Copy)]
struct Norm {
    head_dim: usize,
    eps: f64,
    scale: f64,
}

/// A head at a position.
#[derive(Debug, Clone, Copy, Default)]
struct HeadAt<R> {
    /// 1 / √(Σ u² + eps), the largest that a backend's may be, and how far it may be off. An error that is infinite stands for a head of
    /// which nothing is known.
    inverse: R,
    largest: f64,
    error: f64,
    /// Σ dy·n of the head, and its error.
    projection: R,
    projection_error: f64,
}

/// Σ u² and Σ dy·u of a head at a position, as far as its channels have been added.
#[derive(Debug, Clone, Copy, Default)]
struct Sums<R> {
    squares: R,
    /// Σ of what the errors of u change the squares by, and Σ (|u| + e)².
    inherited: f64,
    magnitude: f64,
    projection: R,
    /// Σ |dy|, Σ |dy|·e, and Σ |dy|·(|u| + e).
    dy_magnitude: f64,
    projection_inherited: f64,
    projection_magnitude: f64,
    /// A channel is NaN whatever the order of the arithmetic.
    is_nan: bool,
    /// Something is not finite, or not known.
    is_lost: bool,
}

impl Norm {
    fn of(norm: &HeadNorm, dtype: DType) -> Self {
        let number = |number: f64| if dtype == DType::F64 { number } else { f64::from(number as f32) };
        Norm { head_dim: norm.head_dim as usize, eps: number(norm.eps), scale: number(norm.scale) }
    }
}

impl<R: Real> Norms<R> {
    /// Of a call, with dy in backward.
    pub fn of(
        norm: Option<&HeadNorm>,
        data: &Data<'_>,
        silu: bool,
        dy: Option<TensorRef<'_>>,
    ) -> Option<Self> {
        let norm = Norm::of(norm?, data.x.dtype());
        let heads = data.dim / norm.head_dim;
        let items = (0..data.batch * heads).collect();
        let work = |scratch: &mut Scratch<R>, item: usize| {
            let (row, first) = (item / heads, item % heads * norm.head_dim);
            vectorised(Head { data, norm, silu, dy, row, first, scratch })
        };
        let values = map_all(data.batch * data.dim * data.seqlen, items, work).concat();
        Some(Norms { norm, heads, seqlen: data.seqlen, values })
    }

    /// Of activations that are known, with their errors: `(batch, dim, seqlen)`.
    pub fn of_activations(
        norm: Option<&HeadNorm>,
        dtype: DType,
        [batch, dim, seqlen]: [usize; 3],
        activations: &[(R, f64)],
    ) -> Option<Self> {
        let norm = Norm::of(norm?, dtype);
        let (heads, arithmetic) = (dim / norm.head_dim, Arithmetic::of(dtype));
        let mut sums = vec![Sums::default(); batch * heads * seqlen];
        for (i, &(u, error)) in activations.iter().enumerate() {
            let (channel, t) = (i / seqlen, i % seqlen);
            sums[channel / norm.head_dim * seqlen + t].add(u, error, 0.0);
        }
        let values = sums.iter().map(|sums: &Sums<R>| sums.finish(norm, &arithmetic)).collect();
        Some(Norms { norm, heads, seqlen, values })
    }

    fn at(&self, row: usize, channel: usize, t: usize) -> &HeadAt<R> {
        &self.values[(row * self.heads + channel / self.norm.head_dim) * self.seqlen + t]
    }

    /// What the norm makes of u at a position of a row, and the error before it is rounded.
    #[inline(always)]
    pub fn divided(
        &self,
        arithmetic: &Arithmetic,
        (row, channel, t): (usize, usize, usize),
        (u, error): (R, f64),
    ) -> (R, f64) {
        let head = self.at(row, channel, t);
        let (scale, magnitude) = (self.norm.scale, u.value().abs());
        // u comes last: if it is subnormal, what a product with it loses would be multiplied by the inverse.
        let value = R::new(scale) * head.inverse * u;
        if value.value().is_nan() && head.error == 0.0 {
            return (value, 0.0);
        }
        // A backend may multiply in any order.
        let overflows = arithmetic.may_overflow(3, scale.abs() * (magnitude + error).max(head.largest));
        if head.error == f64::INFINITY || !error.is_finite() || overflows {
            return (value, f64::INFINITY);
        }
        let inherited = scale.abs() * (head.largest * error + magnitude * head.error);
        let underflow =
            arithmetic.rounding(0.0) * (1.0 + scale.abs() * (1.0 + head.largest) + head.largest + magnitude);
        (value, inherited + 2.0 * arithmetic.rounding(value.value()) + underflow)
    }

    /// The gradient of u at a position, from dy there.
    #[inline(always)]
    pub fn gradient(
        &self,
        arithmetic: &Arithmetic,
        (row, channel, t): (usize, usize, usize),
        (u, error): (R, f64),
        dy: f64,
    ) -> (R, f64) {
        let head = self.at(row, channel, t);
        let (scale, magnitude) = (self.norm.scale, u.value().abs());
        let n = u * head.inverse;
        let rest = R::new(dy) - n * head.projection;
        let value = R::new(scale) * head.inverse * rest;
        if value.value().is_nan() && head.error == 0.0 {
            return (value, 0.0);
        }
        let projection = head.projection.value().abs() + head.projection_error;
        let largest = (magnitude + error) * head.largest;
        let most = (dy.abs() + largest * projection).max(1.0) * scale.abs().max(1.0) * head.largest.max(1.0);
        let lost = [head.error, head.projection_error, error].contains(&f64::INFINITY);
        if lost
            || !value.value().is_finite()
            || arithmetic.may_overflow(8, most * (magnitude + error).max(1.0))
        {
            return (value, f64::INFINITY);
        }
        // n, its product with the projection, and the difference, each with its rounding.
        let n_error = head.largest * error + magnitude * head.error + arithmetic.rounding(n.value());
        let product = n.value().abs() * projection;
        let rest_error = n_error * projection
            + n.value().abs() * head.projection_error
            + 2.0 * arithmetic.rounding(product)
            + arithmetic.rounding(dy.abs() + product);
        let underflow =
            arithmetic.rounding(0.0) * (2.0 + scale.abs() * (1.0 + head.largest) + rest.value().abs());
        let inherited = scale.abs() * (head.largest * rest_error + head.error * rest.value().abs());
        (value, inherited + 2.0 * arithmetic.rounding(value.value()) + underflow)
    }
}

/// Memory that one head after the other uses.
#[derive(Default)]
struct Scratch<R> {
    x: Vec<f64>,
    dy: Vec<f64>,
    window: Window<R>,
    pre: Pre<R>,
    sums: Vec<Sums<R>>,
}

/// A head in one row of the batch, from channel `first` on.
struct Head<'a, 'd, R> {
    data: &'a Data<'d>,
    norm: Norm,
    silu: bool,
    dy: Option<TensorRef<'a>>,
    row: usize,
    first: usize,
    scratch: &'a mut Scratch<R>,
}

impl<R: Real> Loops for Head<'_, '_, R> {
    /// Of every position.
    type Output = Vec<HeadAt<R>>;

    #[inline(always)]
    fn run(self) -> Self::Output {
        let Head { data, norm, silu, dy, row, first, scratch } = self;
        let (arithmetic, terms) = (&data.arithmetic, data.terms());
        data.read_rows(&mut scratch.x, &data.x, row, first, norm.head_dim);
        if let Some(dy) = &dy {
            data.read_rows(&mut scratch.dy, dy, row, first, norm.head_dim);
        }
        refill(&mut scratch.sums, data.seqlen, Sums::default());
        for i in 0..norm.head_dim {
            let own = i * data.seqlen..(i + 1) * data.seqlen;
            for sequence in data.of_row(row) {
                let x = &scratch.x[own.clone()];
                data.fill_window(&mut scratch.window, sequence, first + i, x, None);
                data.pre(sequence, first + i, &scratch.window, &mut scratch.pre);
                for (t, &pre) in scratch.pre.sums.iter().enumerate() {
                    let error = scratch.pre.error(t, terms, arithmetic);
                    let approximate = Approximate { value: pre.value(), error };
                    let sigmoid = silu.then(|| sigmoid((-pre).exp()));
                    let (u, evaluated) = activate(arithmetic, pre, approximate, sigmoid);
                    let error = if error == f64::INFINITY { error } else { evaluated };
                    let at = sequence.start + t;
                    let dy = dy.map_or(0.0, |_| scratch.dy[own.start + at]);
                    scratch.sums[at].add(u, error, dy);
                }
            }
        }
        scratch.sums.iter().map(|sums| sums.finish(norm, arithmetic)).collect()
    }
}

impl<R: Real> Sums<R> {
    #[inline(always)]
    fn add(&mut self, u: R, error: f64, dy: f64) {
        let magnitude = u.value().abs();
        self.is_nan |= u.value().is_nan() && error == 0.0 || dy.is_nan();
        self.is_lost |= !magnitude.is_finite() || !error.is_finite() || !dy.is_finite();
        self.squares = self.squares + u * u;
        self.inherited += (2.0 * magnitude + error) * error;
        self.magnitude += (magnitude + error) * (magnitude + error);
        self.projection = self.projection + R::new(dy) * u;
        self.dy_magnitude += dy.abs();
        self.projection_inherited += dy.abs() * error;
        self.projection_magnitude += dy.abs() * (magnitude + error);
    }

    /// The head's numbers, from all its channels.
    #[inline(always)]
    fn finish(&self, norm: Norm, arithmetic: &Arithmetic) -> HeadAt<R> {
        if self.is_nan {
            let nan = R::new(f64::NAN);
            return HeadAt { inverse: nan, projection: nan, ..HeadAt::default() };
        }
        let squares = self.squares + R::new(norm.eps);
        let inverse = R::new(1.0) / squares.sqrt();
        // Each square is rounded, and each sum, that with eps too.
        let terms = norm.head_dim + 2;
        let error = self.inherited + arithmetic.sum(terms, self.magnitude + norm.eps);
        // What is added to eps is no less than zero.
        let least_eps = norm.eps - arithmetic.sum(terms, norm.eps);
        let root = |squares: f64| 1.0 / squares.sqrt();
        let unit = 2.0 * ROOT_UNITS * arithmetic.relative();
        let exact = inverse.value();
        let largest = root((squares.value() - error).max(least_eps)) * (1.0 + unit);
        let smallest = root(squares.value() + error) * (1.0 - unit);
        let lost = self.is_lost || !(error.is_finite() && largest.is_finite());
        let projection = self.projection * inverse;
        // n and its product with dy are rounded, or the sum of dy·u times the root, and each sum.
        let projection_error = largest
            * (self.projection_inherited + arithmetic.sum(terms + 2, self.projection_magnitude))
            + (largest - exact).max(exact - smallest) * self.projection_magnitude
            + arithmetic.rounding(0.0) * (terms as f64 + self.dy_magnitude);
        let overflows = arithmetic.may_overflow(terms, self.projection_magnitude * largest.max(1.0));
        HeadAt {
            inverse,
            largest,
            error: if lost { f64::INFINITY } else { (largest - exact).max(exact - smallest) },
            projection,
            projection_error: if lost || overflows { f64::INFINITY } else { projection_error },
        }
    }
}
