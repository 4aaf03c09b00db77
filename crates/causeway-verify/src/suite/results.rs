//! What a case's calls write, by name, whatever stands for a tensor.

/// What a call writes.
pub trait Results<T> {
    /// Its tensors, by name.
    fn tensors(&mut self) -> Vec<(&'static str, &mut T)>;
}

/// Results with names of their own.
impl<T, const N: usize> Results<T> for [(&'static str, T); N] {
    fn tensors(&mut self) -> Vec<(&'static str, &mut T)> {
        self.iter_mut().map(|(name, tensor)| (*name, tensor)).collect()
    }
}

/// What a call of forward writes.
#[derive(Debug)]
pub struct ForwardResults<T> {
    /// `(batch, dim, seqlen)`.
    pub y: T,
    /// `(sequences, dim, width - 1)`.
    pub final_states: Option<T>,
}

impl<T> Results<T> for ForwardResults<T> {
    fn tensors(&mut self) -> Vec<(&'static str, &mut T)> {
        let states = self.final_states.as_mut().map(|tensor| ("final_states", tensor));
        [("y", &mut self.y)].into_iter().chain(states).collect()
    }
}

/// What a call of backward writes.
#[derive(Debug)]
pub struct BackwardResults<T> {
    /// `(batch, dim, seqlen)`.
    pub dx: T,
    /// `(dim, width)`.
    pub dweight: T,
    /// `(dim,)`.
    pub dbias: Option<T>,
    /// `(sequences, dim, width - 1)`.
    pub dinitial_states: Option<T>,
}

impl<T> Results<T> for BackwardResults<T> {
    fn tensors(&mut self) -> Vec<(&'static str, &mut T)> {
        let dbias = self.dbias.as_mut().map(|tensor| ("dbias", tensor));
        let states = self.dinitial_states.as_mut().map(|tensor| ("dinitial_states", tensor));
        let always = [("dx", &mut self.dx), ("dweight", &mut self.dweight)];
        always.into_iter().chain(dbias).chain(states).collect()
    }
}

/// What an update writes.
#[derive(Debug)]
pub struct UpdateResults<T> {
    /// `(batch, dim)` or `(batch, dim, seqlen)`.
    pub y: T,
    /// `(rows, dim, state_len)`, from what the input of this name holds.
    pub conv_state: T,
}

impl<T> Results<T> for UpdateResults<T> {
    fn tensors(&mut self) -> Vec<(&'static str, &mut T)> {
        vec![("y", &mut self.y), ("conv_state", &mut self.conv_state)]
    }
}

/// What a call of varlen_states writes.
#[derive(Debug)]
pub struct VarlenStatesResults<T> {
    /// `(sequences, dim, state_len)`.
    pub states: T,
}

impl<T> Results<T> for VarlenStatesResults<T> {
    fn tensors(&mut self) -> Vec<(&'static str, &mut T)> {
        vec![("states", &mut self.states)]
    }
}
