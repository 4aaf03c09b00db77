//! The operations as plain f64 loops over every tap, and bounds for what f32 sums may differ by.

use causeway::causal_conv1d::Activation;

use crate::random::Case;

/// The dense values of a case, in row-major order.
pub struct Values {
    pub x: Vec<f64>,
    pub weight: Vec<f64>,
    pub bias: Vec<f64>,
    pub initial_states: Vec<f64>,
    pub dfinal_states: Vec<f64>,
    pub residual: Vec<f64>,
    pub dy: Vec<f64>,
}

/// A result and how far from it a correct computation may be, before rounding to the output's dtype.
#[derive(Clone, Default)]
pub struct Bounded {
    pub value: Vec<f64>,
    pub error: Vec<f64>,
}

impl Bounded {
    fn zeros(count: usize) -> Self {
        Bounded { value: vec![0.0; count], error: vec![0.0; count] }
    }

    /// Adds a term of a sum of about `terms` terms whose own error is `error`.
    fn add(&mut self, at: usize, term: f64, error: f64, terms: f64, epsilon: f64) {
        self.value[at] += term;
        self.error[at] += error + (terms + 2.0) * epsilon * term.abs();
    }
}

/// Where a tap reads.
enum Tap {
    X(usize),
    State(usize),
}

pub struct Reference<'a> {
    case: &'a Case,
    values: &'a Values,
}

pub struct Gradients {
    pub dx: Bounded,
    pub dweight: Bounded,
    pub dbias: Bounded,
    pub dinitial_states: Bounded,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl<'a> Reference<'a> {
    pub fn new(case: &'a Case, values: &'a Values) -> Self {
        Reference { case, values }
    }

    /// Sequence, its start and its end.
    fn sequence(&self, b: usize, t: usize) -> (usize, usize, usize) {
        match &self.case.cu_seqlens {
            Some(bounds) => {
                let i = (0..bounds.len() - 1).find(|&i| bounds[i] <= t && t < bounds[i + 1]).unwrap();
                (i, bounds[i], bounds[i + 1])
            }
            None => (b, 0, self.case.seqlen),
        }
    }

    fn index(&self, b: usize, t: usize) -> i32 {
        self.case.seq_idx.as_ref().map_or(0, |index| index[b * self.case.seqlen + t])
    }

    /// What tap `w` of output `(b, c, t)` reads, if it counts.
    fn tap(&self, b: usize, c: usize, t: usize, w: usize) -> Option<Tap> {
        let Case { dim, seqlen, width, .. } = *self.case;
        let (sequence, start, _) = self.sequence(b, t);
        let index = self.index(b, t);
        if index < 0 {
            return None;
        }
        let position = t as i64 - (width as i64 - 1) + w as i64;
        if position >= start as i64 {
            let position = position as usize;
            return (self.index(b, position) == index).then(|| Tap::X((b * dim + c) * seqlen + position));
        }
        if !self.case.initial_states || self.index(b, start) != index {
            return None;
        }
        let column = (position - start as i64 + width as i64 - 1) as usize;
        Some(Tap::State((sequence * dim + c) * (width - 1) + column))
    }

    fn read(&self, tap: &Tap) -> f64 {
        match tap {
            Tap::X(at) => self.values.x[*at],
            Tap::State(at) => self.values.initial_states[*at],
        }
    }

    fn bias(&self, c: usize) -> f64 {
        if self.case.bias { self.values.bias[c] } else { 0.0 }
    }

    /// pre-activation of one output.
    fn pre(&self, b: usize, c: usize, t: usize) -> (f64, f64) {
        let width = self.case.width;
        let mut pre = Bounded::zeros(1);
        let (terms, epsilon) = (width as f64, self.case.epsilon());
        pre.add(0, self.bias(c), 0.0, terms, epsilon);
        for w in 0..width {
            if let Some(tap) = self.tap(b, c, t, w) {
                pre.add(0, self.values.weight[c * width + w] * self.read(&tap), 0.0, terms, epsilon);
            }
        }
        (pre.value[0], pre.error[0])
    }

    fn positions(&self) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let Case { batch, dim, seqlen, .. } = *self.case;
        (0..batch).flat_map(move |b| (0..dim).flat_map(move |c| (0..seqlen).map(move |t| (b, c, t))))
    }

    pub fn forward(&self) -> Bounded {
        let mut y = Bounded::zeros(self.values.x.len());
        for (at, (b, c, t)) in self.positions().enumerate() {
            if self.index(b, t) >= 0 {
                let (pre, error) = self.pre(b, c, t);
                let (value, slack) = match self.case.activation {
                    Activation::None => (pre, 0.0),
                    Activation::Silu => (pre * sigmoid(pre), self.case.silu_error()),
                };
                y.value[at] = value;
                y.error[at] = 1.1 * error + slack * value.abs();
            }
            if self.case.residual {
                y.value[at] += self.values.residual[at];
                y.error[at] += self.case.epsilon() * (y.value[at].abs() + self.values.residual[at].abs());
            }
        }
        y
    }

    /// Positions in `[initial_states, x]` whose values the final states of a sequence are.
    fn final_column(&self, sequence: usize, c: usize, column: usize) -> Option<Tap> {
        let Case { dim, seqlen, width, .. } = *self.case;
        let (b, start, end) = match &self.case.cu_seqlens {
            Some(bounds) => (0, bounds[sequence], bounds[sequence + 1]),
            None => (sequence, 0, seqlen),
        };
        let position = end as i64 - (width as i64 - 1) + column as i64;
        if position >= start as i64 {
            let position = position as usize;
            return (self.index(b, position) >= 0).then(|| Tap::X((b * dim + c) * seqlen + position));
        }
        if !self.case.initial_states || (start < end && self.index(b, start) < 0) {
            return None;
        }
        let column = (position - start as i64 + width as i64 - 1) as usize;
        Some(Tap::State((sequence * dim + c) * (width - 1) + column))
    }

    fn state_columns(&self) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let Case { dim, width, .. } = *self.case;
        let sequences = self.case.sequences();
        (0..sequences).flat_map(move |s| (0..dim).flat_map(move |c| (0..width - 1).map(move |j| (s, c, j))))
    }

    pub fn final_states(&self) -> Vec<f64> {
        self.state_columns()
            .map(|(s, c, j)| self.final_column(s, c, j).map_or(0.0, |tap| self.read(&tap)))
            .collect()
    }

    pub fn backward(&self) -> Gradients {
        let Case { dim, width, .. } = *self.case;
        let epsilon = self.case.epsilon();
        let states = self.case.sequences() * dim * (width - 1);
        let mut dx = Bounded::zeros(self.values.x.len());
        let mut dinitial_states = Bounded::zeros(states);
        let mut dweight = Bounded::zeros(dim * width);
        let mut dbias = Bounded::zeros(dim);
        // Sums of a tile run in f32, tiles are added in f64: a lane sees few roundings.
        let (terms, long) = (width as f64, 600.0);
        for (at, (b, c, t)) in self.positions().enumerate() {
            if self.index(b, t) < 0 {
                continue;
            }
            let dy = self.values.dy[at];
            let (g, g_error) = match self.case.activation {
                Activation::None => (dy, 0.0),
                Activation::Silu => {
                    let (pre, error) = self.pre(b, c, t);
                    let s = sigmoid(pre);
                    let derivative = s * (1.0 + pre * (1.0 - s));
                    (dy * derivative, dy.abs() * (0.6 * error + self.case.silu_error() * 1.1))
                }
            };
            dbias.add(c, g, g_error, long, epsilon);
            for w in 0..width {
                let Some(tap) = self.tap(b, c, t, w) else { continue };
                let (weight, x) = (self.values.weight[c * width + w], self.read(&tap));
                dweight.add(c * width + w, g * x, g_error * x.abs(), long, epsilon);
                let (target, at) = match tap {
                    Tap::X(at) => (&mut dx, at),
                    Tap::State(at) => (&mut dinitial_states, at),
                };
                target.add(at, g * weight, g_error * weight.abs(), terms, epsilon);
            }
        }
        if self.case.dfinal_states {
            for (i, (s, c, j)) in self.state_columns().enumerate() {
                let gradient = self.values.dfinal_states[i];
                match self.final_column(s, c, j) {
                    Some(Tap::X(at)) => dx.add(at, gradient, 0.0, terms, epsilon),
                    Some(Tap::State(at)) => dinitial_states.add(at, gradient, 0.0, terms, epsilon),
                    None => {}
                }
            }
        }
        Gradients { dx, dweight, dbias, dinitial_states }
    }
}
