//! The arguments of a case's calls by name, whatever stands for a tensor: its arrangement, memory of the host or of a
//! device, or a view. The calls themselves are put together here and nowhere else.

use causeway::causal_conv1d;
use causeway::error::Result;
use causeway::tensor::{DType, TensorMut, TensorRef};
use causeway::{Arrangement, HostTensor};

use super::case::{Conv1d, Update, VarlenStates};
use super::layout::dense;
use super::results::{BackwardResults, ForwardResults, UpdateResults, VarlenStatesResults};

/// Inputs of a forward and a backward call.
#[derive(Debug, Clone, Copy)]
pub struct Conv1dTensors<T = HostTensor> {
    /// `(batch, dim, seqlen)`.
    pub x: T,
    /// `(dim, width)`.
    pub weight: T,
    /// `(dim,)`.
    pub bias: Option<T>,
    /// `(batch, dim, seqlen)`.
    pub residual: Option<T>,
    /// `(sequences, dim, width - 1)`.
    pub initial_states: Option<T>,
    /// `(batch, seqlen)`.
    pub seq_idx: Option<T>,
    /// `(sequences + 1,)`.
    pub cu_seqlens: Option<T>,
    /// `(batch, dim, seqlen)`: gradient of y.
    pub dy: T,
    /// `(sequences, dim, width - 1)`: gradient of final_states.
    pub dfinal_states: Option<T>,
}

/// Input `name` of a call.
///
/// # Panics
/// If the case has no such input: names come from `inputs` of the same problem.
fn named<'a, T>(name: &str, inputs: &[(&str, Option<&'a T>)]) -> &'a T {
    let found = inputs.iter().find(|(known, _)| *known == name).and_then(|(_, tensor)| *tensor);
    found.unwrap_or_else(|| panic!("the call has no input {name}"))
}

impl<T> Conv1dTensors<T> {
    /// The input of a name that [`Conv1d::inputs`] gives.
    ///
    /// # Panics
    /// If there is none.
    pub fn of(&self, name: &str) -> &T {
        named(
            name,
            &[
                ("x", Some(&self.x)),
                ("weight", Some(&self.weight)),
                ("bias", self.bias.as_ref()),
                ("residual", self.residual.as_ref()),
                ("initial_states", self.initial_states.as_ref()),
                ("seq_idx", self.seq_idx.as_ref()),
                ("cu_seqlens", self.cu_seqlens.as_ref()),
                ("dy", Some(&self.dy)),
                ("dfinal_states", self.dfinal_states.as_ref()),
            ],
        )
    }

    /// All that are given.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        let optional = [&self.bias, &self.residual, &self.initial_states, &self.seq_idx, &self.cu_seqlens];
        let optional = optional.into_iter().chain([&self.dfinal_states]).flatten();
        [&self.x, &self.weight, &self.dy].into_iter().chain(optional)
    }

    /// The same arguments as something else.
    ///
    /// # Errors
    /// The first one of `each`.
    pub fn try_map<'a, U>(&'a self, mut each: impl FnMut(&'a T) -> Result<U>) -> Result<Conv1dTensors<U>> {
        let mut optional = |tensor: &'a Option<T>| tensor.as_ref().map(&mut each).transpose();
        Ok(Conv1dTensors {
            bias: optional(&self.bias)?,
            residual: optional(&self.residual)?,
            initial_states: optional(&self.initial_states)?,
            seq_idx: optional(&self.seq_idx)?,
            cu_seqlens: optional(&self.cu_seqlens)?,
            dfinal_states: optional(&self.dfinal_states)?,
            x: each(&self.x)?,
            weight: each(&self.weight)?,
            dy: each(&self.dy)?,
        })
    }

    /// The same arguments as views.
    pub fn views<'a>(&'a self, view: impl Fn(&'a T) -> TensorRef<'a>) -> Conv1dTensors<TensorRef<'a>> {
        Conv1dTensors {
            x: view(&self.x),
            weight: view(&self.weight),
            bias: self.bias.as_ref().map(&view),
            residual: self.residual.as_ref().map(&view),
            initial_states: self.initial_states.as_ref().map(&view),
            seq_idx: self.seq_idx.as_ref().map(&view),
            cu_seqlens: self.cu_seqlens.as_ref().map(&view),
            dy: view(&self.dy),
            dfinal_states: self.dfinal_states.as_ref().map(&view),
        }
    }
}

/// Inputs of an update.
#[derive(Debug, Clone, Copy)]
pub struct UpdateTensors<T = HostTensor> {
    /// `(batch, dim)` or `(batch, dim, seqlen)`.
    pub x: T,
    /// `(rows, dim, state_len)`; changed in place by the call.
    pub conv_state: T,
    /// `(dim, width)`.
    pub weight: T,
    /// `(dim,)`.
    pub bias: Option<T>,
    /// `(batch,)`.
    pub cache_seqlens: Option<T>,
    /// `(batch,)`.
    pub conv_state_indices: Option<T>,
}

impl<T> UpdateTensors<T> {
    /// The input of a name that [`Update::inputs`] gives.
    ///
    /// # Panics
    /// If there is none.
    pub fn of(&self, name: &str) -> &T {
        named(
            name,
            &[
                ("x", Some(&self.x)),
                ("conv_state", Some(&self.conv_state)),
                ("weight", Some(&self.weight)),
                ("bias", self.bias.as_ref()),
                ("cache_seqlens", self.cache_seqlens.as_ref()),
                ("conv_state_indices", self.conv_state_indices.as_ref()),
            ],
        )
    }

    /// All that are given.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        let optional = [&self.bias, &self.cache_seqlens, &self.conv_state_indices];
        [&self.x, &self.conv_state, &self.weight].into_iter().chain(optional.into_iter().flatten())
    }

    /// The same arguments as something else.
    ///
    /// # Errors
    /// The first one of `each`.
    pub fn try_map<'a, U>(&'a self, mut each: impl FnMut(&'a T) -> Result<U>) -> Result<UpdateTensors<U>> {
        let mut optional = |tensor: &'a Option<T>| tensor.as_ref().map(&mut each).transpose();
        Ok(UpdateTensors {
            bias: optional(&self.bias)?,
            cache_seqlens: optional(&self.cache_seqlens)?,
            conv_state_indices: optional(&self.conv_state_indices)?,
            x: each(&self.x)?,
            conv_state: each(&self.conv_state)?,
            weight: each(&self.weight)?,
        })
    }

    /// The same arguments as views.
    pub fn views<'a>(&'a self, view: impl Fn(&'a T) -> TensorRef<'a>) -> UpdateTensors<TensorRef<'a>> {
        UpdateTensors {
            x: view(&self.x),
            conv_state: view(&self.conv_state),
            weight: view(&self.weight),
            bias: self.bias.as_ref().map(&view),
            cache_seqlens: self.cache_seqlens.as_ref().map(&view),
            conv_state_indices: self.conv_state_indices.as_ref().map(&view),
        }
    }
}

/// Inputs of varlen_states.
#[derive(Debug, Clone, Copy)]
pub struct VarlenStatesTensors<T = HostTensor> {
    /// `(total, dim)`.
    pub x: T,
    /// `(n + 1,)`.
    pub cu_seqlens: T,
}

impl<T> VarlenStatesTensors<T> {
    /// The input of a name that [`VarlenStates::inputs`] gives.
    ///
    /// # Panics
    /// If there is none.
    pub fn of(&self, name: &str) -> &T {
        named(name, &[("x", Some(&self.x)), ("cu_seqlens", Some(&self.cu_seqlens))])
    }

    /// The same arguments as something else.
    ///
    /// # Errors
    /// The first one of `each`.
    pub fn try_map<'a, U>(
        &'a self,
        mut each: impl FnMut(&'a T) -> Result<U>,
    ) -> Result<VarlenStatesTensors<U>> {
        Ok(VarlenStatesTensors { x: each(&self.x)?, cu_seqlens: each(&self.cu_seqlens)? })
    }

    /// The same arguments as views.
    pub fn views<'a>(&'a self, view: impl Fn(&'a T) -> TensorRef<'a>) -> VarlenStatesTensors<TensorRef<'a>> {
        VarlenStatesTensors { x: view(&self.x), cu_seqlens: view(&self.cu_seqlens) }
    }
}

impl Conv1d {
    /// Rows of the states.
    pub fn sequences(&self) -> i64 {
        self.cu_seqlens.as_ref().map_or(self.batch, |boundaries| boundaries.lengths.len() as i64)
    }

    /// Whether a tensor is part of the calls, as far as `omit` says.
    fn asks_for(&self, name: &str) -> bool {
        !self.omit.iter().any(|omitted| omitted == name)
    }

    /// Shape of x, y, dy, dx and residual.
    pub fn x_shape(&self) -> [i64; 3] {
        [self.batch, self.dim, self.seqlen]
    }

    /// Shape of all states.
    pub fn states_shape(&self) -> [i64; 3] {
        [self.sequences(), self.dim, self.width - 1]
    }

    /// The inputs, each made by `make` from its name and arrangement.
    ///
    /// # Errors
    /// The first one of `make`.
    pub fn inputs<T>(
        &self,
        make: impl FnMut(&'static str, Arrangement) -> Result<T>,
    ) -> Result<Conv1dTensors<T>> {
        let mut make = self.memory.applied(make);
        let like_x = || self.layout.arrange(self.dtype, self.x_shape());
        let states = || self.layout.arrange(self.dtype, self.states_shape());
        let weight = |shape: &[i64]| dense(self.weight_dtype, shape);
        let indices = || dense(DType::I32, &[self.batch, self.seqlen]);
        let boundaries =
            self.cu_seqlens.as_ref().map(|lengths| dense(lengths.dtype, &[self.sequences() + 1]));
        Ok(Conv1dTensors {
            x: make("x", like_x()?)?,
            weight: make("weight", weight(&[self.dim, self.width])?)?,
            bias: when(self.bias, || make("bias", weight(&[self.dim])?))?,
            residual: when(self.residual, || make("residual", like_x()?))?,
            initial_states: when(self.initial_states, || make("initial_states", states()?))?,
            seq_idx: when(self.seq_idx.is_some(), || make("seq_idx", indices()?))?,
            cu_seqlens: boundaries.map(|arrangement| make("cu_seqlens", arrangement?)).transpose()?,
            dy: make("dy", like_x()?)?,
            dfinal_states: when(self.final_states && self.asks_for("dfinal_states"), || {
                make("dfinal_states", states()?)
            })?,
        })
    }

    /// The results of forward, each made by `make` from its name and arrangement.
    ///
    /// # Errors
    /// The first one of `make`.
    pub fn forward_results<T>(
        &self,
        make: impl FnMut(&'static str, Arrangement) -> Result<T>,
    ) -> Result<ForwardResults<T>> {
        let mut make = self.memory.applied(make);
        let arrange = |shape| self.output_layout.arrange(self.dtype, shape);
        Ok(ForwardResults {
            y: make("y", arrange(self.x_shape())?)?,
            final_states: when(self.final_states && self.asks_for("final_states"), || {
                make("final_states", arrange(self.states_shape())?)
            })?,
        })
    }

    /// The results of backward, each made by `make` from its name and arrangement.
    ///
    /// # Errors
    /// The first one of `make`.
    pub fn backward_results<T>(
        &self,
        make: impl FnMut(&'static str, Arrangement) -> Result<T>,
    ) -> Result<BackwardResults<T>> {
        let mut make = self.memory.applied(make);
        let arrange = |shape| self.output_layout.arrange(self.dtype, shape);
        let parameter = |shape: &[i64]| dense(self.dweight_dtype, shape);
        Ok(BackwardResults {
            dx: make("dx", arrange(self.x_shape())?)?,
            dweight: make("dweight", parameter(&[self.dim, self.width])?)?,
            dbias: when(self.bias && self.asks_for("dbias"), || make("dbias", parameter(&[self.dim])?))?,
            dinitial_states: when(self.initial_states && self.asks_for("dinitial_states"), || {
                make("dinitial_states", arrange(self.states_shape())?)
            })?,
        })
    }

    /// The call of forward.
    pub fn forward<'a, T: 'a>(
        &self,
        inputs: &Conv1dTensors<TensorRef<'a>>,
        results: &'a mut ForwardResults<T>,
        view: impl Fn(&'a mut T) -> TensorMut<'a>,
    ) -> causal_conv1d::Forward<'a> {
        causal_conv1d::Forward {
            x: inputs.x,
            weight: inputs.weight,
            bias: inputs.bias,
            initial_states: inputs.initial_states,
            seq_idx: inputs.seq_idx,
            cu_seqlens: inputs.cu_seqlens,
            residual: inputs.residual,
            activation: self.activation,
            y: view(&mut results.y),
            final_states: results.final_states.as_mut().map(view),
        }
    }

    /// The call of backward.
    pub fn backward<'a, T: 'a>(
        &self,
        inputs: &Conv1dTensors<TensorRef<'a>>,
        results: &'a mut BackwardResults<T>,
        view: impl Fn(&'a mut T) -> TensorMut<'a>,
    ) -> causal_conv1d::Backward<'a> {
        causal_conv1d::Backward {
            x: inputs.x,
            weight: inputs.weight,
            bias: inputs.bias,
            dy: inputs.dy,
            initial_states: inputs.initial_states,
            seq_idx: inputs.seq_idx,
            cu_seqlens: inputs.cu_seqlens,
            dfinal_states: inputs.dfinal_states,
            activation: self.activation,
            dx: view(&mut results.dx),
            dweight: view(&mut results.dweight),
            dbias: results.dbias.as_mut().map(&view),
            dinitial_states: results.dinitial_states.as_mut().map(view),
        }
    }
}

impl Update {
    /// Rows of conv_state: twice the batch when indices select them.
    pub fn rows(&self) -> i64 {
        self.batch * if self.conv_state_indices { 2 } else { 1 }
    }

    fn like_x(&self) -> Result<Arrangement> {
        match self.seqlen {
            Some(seqlen) => self.layout.arrange(self.dtype, [self.batch, self.dim, seqlen]),
            None => self.layout.arrange_2d(self.dtype, [self.batch, self.dim]),
        }
    }

    fn like_conv_state(&self) -> Result<Arrangement> {
        self.layout.arrange(self.dtype, [self.rows(), self.dim, self.state_len])
    }

    /// The inputs, each made by `make` from its name and arrangement.
    ///
    /// # Errors
    /// The first one of `make`.
    pub fn inputs<T>(
        &self,
        make: impl FnMut(&'static str, Arrangement) -> Result<T>,
    ) -> Result<UpdateTensors<T>> {
        let mut make = self.memory.applied(make);
        let weight = |shape: &[i64]| dense(self.weight_dtype, shape);
        let indices = || dense(DType::I32, &[self.batch]);
        Ok(UpdateTensors {
            x: make("x", self.like_x()?)?,
            conv_state: make("conv_state", self.like_conv_state()?)?,
            weight: make("weight", weight(&[self.dim, self.width])?)?,
            bias: when(self.bias, || make("bias", weight(&[self.dim])?))?,
            cache_seqlens: when(self.cache_seqlens, || make("cache_seqlens", indices()?))?,
            conv_state_indices: when(self.conv_state_indices, || make("conv_state_indices", indices()?))?,
        })
    }

    /// The results, each made by `make` from its name and arrangement. The call expects conv_state to hold what the
    /// input of this name does.
    ///
    /// # Errors
    /// The first one of `make`.
    pub fn results<T>(
        &self,
        make: impl FnMut(&'static str, Arrangement) -> Result<T>,
    ) -> Result<UpdateResults<T>> {
        let mut make = self.memory.applied(make);
        Ok(UpdateResults {
            y: make("y", self.like_x()?)?,
            conv_state: make("conv_state", self.like_conv_state()?)?,
        })
    }

    /// The call.
    pub fn call<'a, T: 'a>(
        &self,
        inputs: &UpdateTensors<TensorRef<'a>>,
        results: &'a mut UpdateResults<T>,
        view: impl Fn(&'a mut T) -> TensorMut<'a>,
    ) -> causal_conv1d::Update<'a> {
        causal_conv1d::Update {
            x: inputs.x,
            conv_state: view(&mut results.conv_state),
            weight: inputs.weight,
            bias: inputs.bias,
            cache_seqlens: inputs.cache_seqlens,
            conv_state_indices: inputs.conv_state_indices,
            activation: self.activation,
            y: view(&mut results.y),
        }
    }
}

impl VarlenStates {
    /// The inputs, each made by `make` from its name and arrangement.
    ///
    /// # Errors
    /// The first one of `make`.
    pub fn inputs<T>(
        &self,
        make: impl FnMut(&'static str, Arrangement) -> Result<T>,
    ) -> Result<VarlenStatesTensors<T>> {
        let mut make = self.memory.applied(make);
        let count = self.cu_seqlens.lengths.len() as i64 + 1;
        Ok(VarlenStatesTensors {
            x: make("x", self.layout.arrange_2d(self.dtype, [self.cu_seqlens.total(), self.dim])?)?,
            cu_seqlens: make("cu_seqlens", dense(self.cu_seqlens.dtype, &[count])?)?,
        })
    }

    /// The result, made by `make` from its name and arrangement.
    ///
    /// # Errors
    /// The first one of `make`.
    pub fn results<T>(
        &self,
        make: impl FnMut(&'static str, Arrangement) -> Result<T>,
    ) -> Result<VarlenStatesResults<T>> {
        let mut make = self.memory.applied(make);
        let shape = [self.cu_seqlens.lengths.len() as i64, self.dim, self.state_len];
        Ok(VarlenStatesResults { states: make("states", self.layout.arrange(self.dtype, shape)?)? })
    }

    /// The call.
    pub fn call<'a, T: 'a>(
        &self,
        inputs: &VarlenStatesTensors<TensorRef<'a>>,
        results: &'a mut VarlenStatesResults<T>,
        view: impl Fn(&'a mut T) -> TensorMut<'a>,
    ) -> causal_conv1d::VarlenStates<'a> {
        causal_conv1d::VarlenStates {
            x: inputs.x,
            cu_seqlens: inputs.cu_seqlens,
            states: view(&mut results.states),
        }
    }
}

fn when<T>(wanted: bool, make: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
    wanted.then(make).transpose()
}
