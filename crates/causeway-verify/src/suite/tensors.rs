//! The tensors of a case's calls by name, whatever stands for a tensor: its arrangement, memory of the host or of a device, or a
//! view. Which there are, and how they lie, follows from the operations' tables; the calls are put together here and nowhere else.

use causeway::causal_conv1d::{self, Backward, Forward, HeadNorm};
use causeway::error::Result;
use causeway::operation::{Argument, Axis, DTypes, Operation, Role, Size};
use causeway::tensor::{DType, TensorMut, TensorRef};
use causeway::{Arrangement, HostTensor};

use super::calls::{Call, Together};
use super::case::{Conv1d, Update, VarlenStates};
use super::layout::dense;
use super::results::Results;

/// Tensors by name.
#[derive(Debug, Clone)]
pub struct Tensors<T = HostTensor>(Vec<(&'static str, T)>);

impl<T> Tensors<T> {
    /// The tensor of a name, if it is there.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, tensor)| tensor)
    }

    /// Those of these names that are there, in the names' order, to change them.
    pub fn change(&mut self, names: &[&str]) -> impl Iterator<Item = &mut T> {
        let place = |name: &str| names.iter().position(|known| *known == name);
        let mut found: Vec<_> =
            self.0.iter_mut().filter_map(|(name, tensor)| Some((place(name)?, tensor))).collect();
        found.sort_by_key(|(place, _)| *place);
        found.into_iter().map(|(_, tensor)| tensor)
    }

    /// The tensor of a name that the call has in any case.
    ///
    /// # Panics
    /// If it is not there.
    pub fn of(&self, name: &str) -> &T {
        self.get(name).unwrap_or_else(|| panic!("the call has no {name}"))
    }

    /// Takes the tensor of a name out.
    pub fn take(&mut self, name: &str) -> Option<T> {
        let at = self.0.iter().position(|(known, _)| *known == name)?;
        Some(self.0.remove(at).1)
    }

    /// Every tensor.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &T)> {
        self.0.iter().map(|(name, tensor)| (*name, tensor))
    }

    /// Every tensor, without its name.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, tensor)| tensor)
    }

    /// The same arguments as something else, each by its name.
    ///
    /// # Errors
    /// The first one of `each`.
    pub fn try_map<'a, U>(
        &'a self,
        mut each: impl FnMut(&'static str, &'a T) -> Result<U>,
    ) -> Result<Tensors<U>> {
        self.iter().map(|(name, tensor)| Ok((name, each(name, tensor)?))).collect::<Result<_>>().map(Tensors)
    }

    /// The same arguments as views.
    pub fn views<'a>(&'a self, view: impl Fn(&'a T) -> TensorRef<'a>) -> Tensors<TensorRef<'a>> {
        Tensors(self.iter().map(|(name, tensor)| (name, view(tensor))).collect())
    }

    /// The same arguments as views to write to.
    fn views_mut<'a>(&'a mut self, view: impl Fn(&'a mut T) -> TensorMut<'a>) -> Tensors<TensorMut<'a>> {
        Tensors(self.0.iter_mut().map(|(name, tensor)| (*name, view(tensor))).collect())
    }
}

impl<'a> Tensors<TensorRef<'a>> {
    /// The view of a name, if it is there.
    pub fn view(&self, name: &str) -> Option<TensorRef<'a>> {
        self.get(name).copied()
    }
}

impl<T> Results<T> for Tensors<T> {
    fn tensors(&mut self) -> Vec<(&'static str, &mut T)> {
        self.0.iter_mut().map(|(name, tensor)| (*name, tensor)).collect()
    }
}

/// What makes a tensor of a name and an arrangement.
type Make<'a, T> = &'a mut dyn FnMut(&'static str, Arrangement) -> Result<T>;

/// Those of `arguments` that there are, each made from its arrangement.
fn made<T>(
    arguments: impl Iterator<Item = &'static Argument>,
    arrange: impl Fn(&Argument) -> Result<Arrangement>,
    make: Make<'_, T>,
) -> Result<Tensors<T>> {
    let made = |argument: &'static Argument| Ok((argument.name, make(argument.name, arrange(argument)?)?));
    arguments.map(made).collect::<Result<_>>().map(Tensors)
}

fn inputs(arguments: &'static [Argument]) -> impl Iterator<Item = &'static Argument> + Clone {
    arguments.iter().filter(|argument| argument.role != Role::Output)
}

fn outputs(arguments: &'static [Argument]) -> impl Iterator<Item = &'static Argument> + Clone {
    arguments.iter().filter(|argument| argument.role != Role::Input)
}

impl Conv1d {
    /// Optional tensors that rows ask for with a flag: those that need no more than that.
    pub fn flags() -> impl Iterator<Item = &'static str> {
        let described = |argument: &&Argument| !matches!(argument.dtypes, DTypes::Among(..));
        Forward::ARGUMENTS.iter().filter(|argument| argument.optional).filter(described).map(|flag| flag.name)
    }

    /// Whether a tensor of forward holds the states of sequences.
    pub fn is_state(name: &str) -> bool {
        let of_sequences =
            |known: &Argument| known.shape.axes.iter().any(|axis| axis.size == Size::Sequences);
        Forward::ARGUMENTS.iter().any(|known| known.name == name && of_sequences(known))
    }

    /// Whether an input multiplies x: weight, and all of its dtype but the bias.
    pub(super) fn is_factor(name: &str) -> bool {
        let of_weight = |known: &Argument| matches!(known.dtypes, DTypes::Of("weight", _));
        name == "weight"
            || name != "bias" && Forward::ARGUMENTS.iter().any(|known| known.name == name && of_weight(known))
    }

    /// Inputs of the calls with values for each position, or each state before or after it: all that is neither a parameter of
    /// the channels nor an index.
    pub fn streams() -> impl Iterator<Item = &'static str> {
        let arguments = inputs(Forward::ARGUMENTS).chain(Self::gradients());
        let streams = arguments.filter(|argument| match argument.dtypes {
            DTypes::Own | DTypes::Of("x", _) => argument.shape.axes.len() == 3,
            _ => false,
        });
        streams.map(|argument| argument.name)
    }

    /// What a call can leave out although it is asked for elsewhere: optional results, and their gradients.
    pub fn omissible() -> Vec<&'static str> {
        let optional = |argument: &&Argument| argument.optional;
        let results = outputs(Forward::ARGUMENTS).filter(optional);
        let with_gradients = results.flat_map(|result| {
            let gradient = |known: &&Argument| known.name.strip_prefix('d') == Some(result.name);
            [result].into_iter().chain(Self::gradients().filter(gradient))
        });
        with_gradients.chain(outputs(Backward::ARGUMENTS).filter(optional)).map(|known| known.name).collect()
    }

    /// Inputs that only backward has.
    pub(super) fn gradients() -> impl Iterator<Item = &'static Argument> {
        inputs(Backward::ARGUMENTS)
            .filter(|argument| inputs(Forward::ARGUMENTS).all(|known| known.name != argument.name))
    }

    /// Whether an optional tensor is given.
    pub fn has(&self, name: &str) -> bool {
        match name {
            "seq_idx" => self.seq_idx.is_some(),
            "cu_seqlens" => self.cu_seqlens.is_some(),
            _ => self.given.contains(name),
        }
    }

    /// Whether a tensor is part of the calls, as far as `omit` says.
    fn calls_have(&self, argument: &Argument) -> bool {
        let name = argument.name;
        let given = match argument.needs {
            Some((input, _)) => self.has(input),
            // Of a result that is given: dfinal_states.
            None => self.has(name) || name.strip_prefix('d').is_some_and(|result| self.has(result)),
        };
        !argument.optional || given && !self.omit.iter().any(|omitted| omitted == name)
    }

    /// Rows of the states.
    pub fn sequences(&self) -> i64 {
        self.cu_seqlens.as_ref().map_or(self.batch, |boundaries| boundaries.lengths.len() as i64)
    }

    /// Shape of x, y, dy, dx and residual.
    pub fn x_shape(&self) -> [i64; 3] {
        [self.batch, self.dim, self.seqlen]
    }

    fn size(&self, axis: &Axis) -> i64 {
        axis.plus
            + match axis.size {
                Size::Batch => self.batch,
                Size::Dim => self.dim,
                Size::Seqlen => self.seqlen,
                Size::Width => self.width,
                Size::Sequences => self.sequences(),
                Size::Free | Size::M | Size::N | Size::K => 0,
            }
    }

    fn dtype_of(&self, argument: &Argument) -> DType {
        match (argument.name, argument.dtypes) {
            ("weight", _) | (_, DTypes::Of("weight", _)) => self.weight_dtype,
            (_, DTypes::OfOrF32(..) | DTypes::Of("dweight", _)) => self.dweight_dtype,
            ("cu_seqlens", _) => self.cu_seqlens.as_ref().map_or(DType::I32, |lengths| lengths.dtype),
            (_, DTypes::Among(allowed, _)) => allowed[0],
            _ => self.dtype,
        }
    }

    fn arrange(&self, argument: &Argument) -> Result<Arrangement> {
        let shape: Vec<i64> = argument.shape.axes.iter().map(|axis| self.size(axis)).collect();
        let layout = if argument.role == Role::Input { self.layout } else { self.output_layout };
        match <[i64; 3]>::try_from(shape.as_slice()) {
            Ok(shape) => layout.arrange(self.dtype_of(argument), shape),
            Err(_) => dense(self.dtype_of(argument), &shape),
        }
    }

    fn made<T>(
        &self,
        arguments: impl Iterator<Item = &'static Argument>,
        make: impl FnMut(&'static str, Arrangement) -> Result<T>,
    ) -> Result<Tensors<T>> {
        let there = arguments.filter(|argument| self.calls_have(argument));
        made(there, |argument| self.arrange(argument), &mut self.memory.applied(make))
    }

    /// The inputs of forward and backward, each made by `make` from its name and arrangement.
    ///
    /// # Errors
    /// The first one of `make`.
    pub fn inputs<T>(&self, make: impl FnMut(&'static str, Arrangement) -> Result<T>) -> Result<Tensors<T>> {
        self.made(inputs(Forward::ARGUMENTS).chain(Self::gradients()), make)
    }

    /// The results of forward, each made by `make` from its name and arrangement.
    ///
    /// # Errors
    /// The first one of `make`.
    pub fn forward_results<T>(
        &self,
        make: impl FnMut(&'static str, Arrangement) -> Result<T>,
    ) -> Result<Tensors<T>> {
        self.made(outputs(Forward::ARGUMENTS), make)
    }

    /// The results of backward, each made by `make` from its name and arrangement.
    ///
    /// # Errors
    /// The first one of `make`.
    pub fn backward_results<T>(
        &self,
        make: impl FnMut(&'static str, Arrangement) -> Result<T>,
    ) -> Result<Tensors<T>> {
        self.made(outputs(Backward::ARGUMENTS), make)
    }

    /// The call of forward.
    pub fn forward<'a, T: 'a>(
        &self,
        inputs: &Tensors<TensorRef<'a>>,
        results: &'a mut Tensors<T>,
        view: impl Fn(&'a mut T) -> TensorMut<'a>,
    ) -> Forward<'a> {
        let mut results = results.views_mut(view);
        let (activation, round, norm) = (self.activation, self.round_products, self.norm);
        Forward::from_named(activation, round, norm, |name| inputs.view(name), |name| results.take(name))
    }

    /// The call of forward, or the calls of parts of its channels where the case says so.
    pub(super) fn forward_or_parts<'a, T: 'a>(
        &self,
        inputs: &Tensors<TensorRef<'a>>,
        results: &'a mut Tensors<T>,
        view: impl Fn(&'a mut T) -> TensorMut<'a>,
    ) -> Box<dyn Call + 'a> {
        let (together, plain_last, dim, norm) = (self.together, self.plain_last, self.dim, self.norm);
        let (activation, round, results) = (self.activation, self.round_products, results.views_mut(view));
        whole_or_parts(together, plain_last, dim, norm, inputs, results, |norm, inputs, mut results| {
            Forward::from_named(activation, round, norm, |name| inputs.view(name), |name| results.take(name))
        })
    }

    /// The call of backward.
    pub fn backward<'a, T: 'a>(
        &self,
        inputs: &Tensors<TensorRef<'a>>,
        results: &'a mut Tensors<T>,
        view: impl Fn(&'a mut T) -> TensorMut<'a>,
    ) -> Backward<'a> {
        let mut results = results.views_mut(view);
        let (activation, round, norm) = (self.activation, self.round_products, self.norm);
        Backward::from_named(activation, round, norm, |name| inputs.view(name), |name| results.take(name))
    }

    /// The call of backward, or the calls of parts of its channels where the case says so.
    pub(super) fn backward_or_parts<'a, T: 'a>(
        &self,
        inputs: &Tensors<TensorRef<'a>>,
        results: &'a mut Tensors<T>,
        view: impl Fn(&'a mut T) -> TensorMut<'a>,
    ) -> Box<dyn Call + 'a> {
        let (together, plain_last, dim, norm) = (self.together, self.plain_last, self.dim, self.norm);
        let (activation, round, results) = (self.activation, self.round_products, results.views_mut(view));
        whole_or_parts(together, plain_last, dim, norm, inputs, results, |norm, inputs, mut results| {
            Backward::from_named(activation, round, norm, |name| inputs.view(name), |name| results.take(name))
        })
    }
}

/// The axis of a tensor of forward or backward that channels lie along; None if there is none.
pub fn channel_axis(name: &str) -> Option<usize> {
    dim_axis(Forward::ARGUMENTS.iter().chain(Backward::ARGUMENTS), name)
}

/// The axis of the argument of this name that channels lie along.
fn dim_axis(mut arguments: impl Iterator<Item = &'static Argument>, name: &str) -> Option<usize> {
    let argument = arguments.find(|known| known.name == name)?;
    argument.shape.axes.iter().position(|axis| axis.size == Size::Dim)
}

/// Where the channels of the last of the calls that are made together begin.
pub(super) fn last_part(dim: i64, norm: Option<&HeadNorm>) -> i64 {
    let [first, second, _] = parts(dim, norm);
    first + second
}

/// Channels of the calls that are made together: a quarter of the heads, another one, and the rest.
fn parts(dim: i64, norm: Option<&HeadNorm>) -> [i64; 3] {
    let head_dim = norm.map_or(1, |norm| norm.head_dim.max(1));
    let part = (dim / head_dim + 3) / 4 * head_dim;
    let first = part.min(dim);
    let second = part.min(dim - first);
    [first, second, dim - first - second]
}

/// One call of all channels, or, `together`, the calls of their parts. `call` makes each from its norm and its tensors.
fn whole_or_parts<'a, O>(
    together: bool,
    plain_last: bool,
    dim: i64,
    norm: Option<HeadNorm>,
    inputs: &Tensors<TensorRef<'a>>,
    results: Tensors<TensorMut<'a>>,
    call: impl Fn(Option<HeadNorm>, &Tensors<TensorRef<'a>>, Tensors<TensorMut<'a>>) -> O,
) -> Box<dyn Call + 'a>
where
    O: Operation + Call + 'a,
    Together<O>: Call,
{
    if !together {
        return Box::new(call(norm, inputs, results));
    }
    let parts = apart::<O>(inputs, results, &parts(dim, norm.as_ref())).into_iter().enumerate();
    let calls = parts.map(|(part, (inputs, results))| {
        let norm = norm.filter(|_| part < 2 || !plain_last);
        call(norm, &inputs, results)
    });
    Box::new(Together(calls.collect()))
}

/// What calls of parts of the channels have: those of `x` and of all that has its channels, and the rest as it is.
fn apart<'a, O: Operation>(
    inputs: &Tensors<TensorRef<'a>>,
    results: Tensors<TensorMut<'a>>,
    parts: &[i64; 3],
) -> Vec<(Tensors<TensorRef<'a>>, Tensors<TensorMut<'a>>)> {
    let axis = |name: &str| match name {
        // New positions, whose rank is free.
        "x" | "y" | "B" | "C" => Some(1),
        _ => dim_axis(O::ARGUMENTS.iter(), name),
    };
    let mut calls: Vec<_> = parts.iter().map(|_| (Tensors(Vec::new()), Tensors(Vec::new()))).collect();
    for (name, tensor) in inputs.iter() {
        let mut first = 0;
        for (call, &count) in calls.iter_mut().zip(parts) {
            call.0.0.push((name, axis(name).map_or(*tensor, |axis| tensor.narrow(axis, first, count))));
            first += count;
        }
    }
    for (name, tensor) in results.0 {
        let Some(axis) = axis(name) else { unreachable!("results have channels") };
        for (call, part) in calls.iter_mut().zip(tensor.split(axis, parts)) {
            call.1.0.push((name, part));
        }
    }
    calls
}

impl Update {
    /// Rows of conv_state: twice the batch when indices select them.
    pub fn rows(&self) -> i64 {
        self.batch * if self.conv_state_indices { 2 } else { 1 }
    }

    fn has(&self, argument: &Argument) -> bool {
        match argument.name {
            "bias" => self.bias,
            "cache_seqlens" => self.cache_seqlens,
            "conv_state_indices" => self.conv_state_indices,
            "B" => self.b,
            "C" => self.c,
            _ => true,
        }
    }

    fn arrange(&self, argument: &Argument) -> Result<Arrangement> {
        match (argument.name, self.seqlen) {
            ("x" | "y" | "B" | "C", Some(seqlen)) => {
                self.layout.arrange(self.dtype, [self.batch, self.dim, seqlen])
            }
            ("x" | "y" | "B" | "C", None) => self.layout.arrange_2d(self.dtype, [self.batch, self.dim]),
            ("conv_state", _) => self.layout.arrange(self.dtype, [self.rows(), self.dim, self.state_len]),
            ("weight", _) => dense(self.weight_dtype, &[self.dim, self.width]),
            ("bias", _) => dense(self.weight_dtype, &[self.dim]),
            _ => dense(DType::I32, &[self.batch]),
        }
    }

    /// The inputs, each made by `make` from its name and arrangement.
    ///
    /// # Errors
    /// The first one of `make`.
    pub fn inputs<T>(&self, make: impl FnMut(&'static str, Arrangement) -> Result<T>) -> Result<Tensors<T>> {
        let there = inputs(causal_conv1d::Update::ARGUMENTS).filter(|argument| self.has(argument));
        made(there, |argument| self.arrange(argument), &mut self.memory.applied(make))
    }

    /// The results, each made by `make` from its name and arrangement. The call expects conv_state to hold what the
    /// input of this name does.
    ///
    /// # Errors
    /// The first one of `make`.
    pub fn results<T>(&self, make: impl FnMut(&'static str, Arrangement) -> Result<T>) -> Result<Tensors<T>> {
        let results = outputs(causal_conv1d::Update::ARGUMENTS);
        made(results, |argument| self.arrange(argument), &mut self.memory.applied(make))
    }

    /// The call.
    pub fn call<'a, T: 'a>(
        &self,
        inputs: &Tensors<TensorRef<'a>>,
        results: &'a mut Tensors<T>,
        view: impl Fn(&'a mut T) -> TensorMut<'a>,
    ) -> causal_conv1d::Update<'a> {
        let mut results = results.views_mut(view);
        causal_conv1d::Update::from_named(
            self.activation,
            self.round_products,
            self.norm,
            |name| inputs.view(name),
            |name| results.take(name),
        )
    }

    /// The call, or the calls of parts of its channels where the case says so.
    pub(super) fn call_or_parts<'a, T: 'a>(
        &self,
        inputs: &Tensors<TensorRef<'a>>,
        results: &'a mut Tensors<T>,
        view: impl Fn(&'a mut T) -> TensorMut<'a>,
    ) -> Box<dyn Call + 'a> {
        use causal_conv1d::Update;
        let (together, plain_last, dim, norm) = (self.together, self.plain_last, self.dim, self.norm);
        let (activation, round, results) = (self.activation, self.round_products, results.views_mut(view));
        whole_or_parts(together, plain_last, dim, norm, inputs, results, |norm, inputs, mut results| {
            Update::from_named(activation, round, norm, |name| inputs.view(name), |name| results.take(name))
        })
    }
}

impl VarlenStates {
    fn arrange(&self, argument: &Argument) -> Result<Arrangement> {
        let sequences = self.cu_seqlens.lengths.len() as i64;
        match argument.name {
            "x" => self.layout.arrange_2d(self.dtype, [self.cu_seqlens.total(), self.dim]),
            "cu_seqlens" => dense(self.cu_seqlens.dtype, &[sequences + 1]),
            _ => self.layout.arrange(self.dtype, [sequences, self.dim, self.state_len]),
        }
    }

    /// The inputs, each made by `make` from its name and arrangement.
    ///
    /// # Errors
    /// The first one of `make`.
    pub fn inputs<T>(&self, make: impl FnMut(&'static str, Arrangement) -> Result<T>) -> Result<Tensors<T>> {
        let inputs = inputs(causal_conv1d::VarlenStates::ARGUMENTS);
        made(inputs, |argument| self.arrange(argument), &mut self.memory.applied(make))
    }

    /// The result, made by `make` from its name and arrangement.
    ///
    /// # Errors
    /// The first one of `make`.
    pub fn results<T>(&self, make: impl FnMut(&'static str, Arrangement) -> Result<T>) -> Result<Tensors<T>> {
        let results = outputs(causal_conv1d::VarlenStates::ARGUMENTS);
        made(results, |argument| self.arrange(argument), &mut self.memory.applied(make))
    }

    /// The call.
    pub fn call<'a, T: 'a>(
        &self,
        inputs: &Tensors<TensorRef<'a>>,
        results: &'a mut Tensors<T>,
        view: impl Fn(&'a mut T) -> TensorMut<'a>,
    ) -> causal_conv1d::VarlenStates<'a> {
        let mut results = results.views_mut(view);
        causal_conv1d::VarlenStates::from_named(|name| inputs.view(name), |name| results.take(name))
    }
}
