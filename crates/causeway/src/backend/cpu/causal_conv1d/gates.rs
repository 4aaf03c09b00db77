//! The gates around the convolution: tensors of the shape of x that multiply what taps read, and what the activation gives.
//!
//! Along the channels they are rows beside those of x; along the sequence a tile is multiplied at a time.

use super::blocks::{GROUP, MAX_PAIR, Tail};
use super::sequences::{Piece, Sequences};
use super::tensors::Source;
use crate::backend::cpu::simd::{Lanes, Number, Part, Simd};
use crate::tensor::TensorRef;

/// What a task along the channels works in for its gates. Kernels without gates have none, and spend no time on it.
pub(super) struct GateBuffers<T: Number> {
    pub b_tail: Tail<T>,
    pub c_tail: Tail<T>,
    /// Factors of what is no position of x.
    pub ones: [T; GROUP],
}

impl<T: Number> GateBuffers<T> {
    pub fn new() -> Box<Self> {
        Box::new(GateBuffers { b_tail: Tail::new(), c_tail: Tail::new(), ones: [T::from_f64(1.0); GROUP] })
    }
}

/// B or C of a call.
#[derive(Clone, Copy)]
pub(super) struct Gate<T> {
    factors: Source<T, 3>,
    /// Products are rounded to `T`, as a kernel of their own would write them.
    round: bool,
}

impl<T: Number> Gate<T> {
    pub fn new(view: Option<&TensorRef<'_>>, round: bool) -> Option<Self> {
        view.map(|view| Gate { factors: Source::new(view), round })
    }

    /// What a separate kernel would have written of a value.
    #[inline(always)]
    fn kept(&self, value: T::Accumulator) -> T::Accumulator {
        if self.round { T::narrow(value).widen() } else { value }
    }

    /// What separate kernels would have written of a pair.
    #[inline(always)]
    pub fn kept_pair<S>(&self, simd: S, pair: [S::Vector; 2]) -> [S::Vector; 2]
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        if !self.round {
            return pair;
        }
        let mut memory = [T::ZERO; MAX_PAIR];
        // SAFETY: the array is at least a pair.
        unsafe {
            T::store_pair::<false>(simd, memory.as_mut_ptr(), pair);
            T::load_pair(simd, memory.as_ptr())
        }
    }

    /// A pair times the factors at an address.
    ///
    /// # Safety
    /// There is a pair of factors.
    #[inline(always)]
    pub unsafe fn times_pair<S>(&self, simd: S, factors: *const T, pair: [S::Vector; 2]) -> [S::Vector; 2]
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        // SAFETY: the caller's promise.
        let factors = unsafe { T::load_pair(simd, factors) };
        self.kept_pair(simd, [simd.mul(factors[0], pair[0]), simd.mul(factors[1], pair[1])])
    }

    /// The factors of a position's channels, from the first one on.
    pub fn row(&self, batch: i64, channel: i64, position: i64) -> *const T {
        self.factors.at([batch, channel, position])
    }

    /// The factors of what a piece's convolution sees at a position: ones for what is no position of x.
    pub fn row_of_history(
        &self,
        sequences: &Sequences,
        piece: &Piece,
        (channel, position): (i64, i64),
        ones: &[T; GROUP],
    ) -> *const T {
        let inside = (piece.from..piece.to).contains(&position);
        if inside || piece.includes(sequences, position) {
            self.row(piece.batch, channel, position)
        } else {
            ones.as_ptr()
        }
    }

    /// A value times the factor of its position.
    ///
    /// # Safety
    /// The index lies in x.
    #[inline(always)]
    pub unsafe fn times(&self, index: [i64; 3], value: T::Accumulator) -> T::Accumulator {
        // SAFETY: the caller's promise; a gate has the shape of x.
        self.kept(unsafe { *self.factors.at(index) }.widen() * value)
    }

    /// Rounds values that a separate kernel would have written before this gate reads them.
    #[inline(always)]
    pub fn enter(&self, values: &mut [T::Accumulator]) {
        if self.round {
            values.iter_mut().for_each(|value| *value = T::narrow(*value).widen());
        }
    }

    /// Multiplies values with the factors from `index` on, along an axis.
    ///
    /// # Safety
    /// So many indices from there on lie in x.
    #[inline(always)]
    pub unsafe fn multiply<S>(&self, simd: S, index: [i64; 3], axis: usize, values: &mut [T::Accumulator])
    where
        S: Simd<Scalar = T::Accumulator>,
        T: Lanes<S>,
    {
        simd.apart(Multiply { gate: self, source: self.factors.at(index), axis, values });
    }
}

/// What [`Gate::multiply`] was called with, and its caller's promise.
struct Multiply<'a, T: Number> {
    gate: &'a Gate<T>,
    source: *const T,
    axis: usize,
    values: &'a mut [T::Accumulator],
}

impl<S, T> Part<S> for Multiply<'_, T>
where
    S: Simd<Scalar = T::Accumulator>,
    T: Lanes<S>,
{
    #[inline(always)]
    #[allow(clippy::needless_range_loop)]
    fn run(self, simd: S) {
        let Multiply { gate, source, axis, values } = self;
        // A copy, which values that are stored do not change.
        let gate = *gate;
        let stride = gate.factors.strides[axis];
        let mut done = 0;
        if stride == 1 {
            let mut kept = [T::ZERO; MAX_PAIR];
            while done + S::LANES <= values.len() {
                // SAFETY: the promise; a gate has the shape of x, these are a whole vector, and the array more.
                unsafe {
                    let values = values.as_mut_ptr().add(done);
                    let mut product = simd.mul(simd.load(values), T::load(simd, source.add(done)));
                    if gate.round {
                        T::store(simd, kept.as_mut_ptr(), product);
                        product = T::load(simd, kept.as_ptr());
                    }
                    simd.store(values, product);
                }
                done += S::LANES;
            }
        }
        for i in done..values.len() {
            // SAFETY: as above.
            let factor = unsafe { *source.wrapping_offset(stride.wrapping_mul(i as isize)) }.widen();
            values[i] = gate.kept(values[i] * factor);
        }
    }
}
