//! What a call was given for each argument of its operation.

use causeway::operation::MOST;
use pyo3::Borrowed;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyEllipsis, PyTuple};

use crate::described::Described;

/// An object that lives as long as the tuple which it came in.
pub type Object<'a, 'py> = Borrowed<'a, 'py, PyAny>;

/// What stands for an argument.
#[derive(Clone, Copy)]
enum Slot<'a, 'py> {
    /// Nothing.
    Absent,
    /// An object, which has to be a tensor.
    Given(Object<'a, 'py>),
    /// A result that has no place yet.
    Wanted,
}

/// What stands for each argument of an operation, in the order of its table.
pub struct Given<'a, 'py> {
    pub py: Python<'py>,
    pub operation: &'a Described,
    slots: [Slot<'a, 'py>; MOST],
}

impl<'a, 'py> Given<'a, 'py> {
    /// Of the inputs, whose last ones may be missing, and of the outputs: a tensor that is written, `...` for one that is to be made
    /// if the input that it needs is there, None for none. Without a tuple, all that are required or need an input are to be made.
    pub fn new(
        operation: &'a Described,
        inputs: &'a Bound<'py, PyTuple>,
        outputs: Option<&'a Bound<'py, PyTuple>>,
    ) -> PyResult<Self> {
        let (py, first_output) = (inputs.py(), operation.inputs);
        let mut slots = [Slot::Absent; MOST];
        fill(&mut slots[..first_output], inputs, operation)?;
        if let Some(outputs) = outputs {
            fill(&mut slots[first_output..operation.arguments().len()], outputs, operation)?;
        }
        let make = PyEllipsis::get(py);
        for &at in &operation.results {
            let argument = &operation.arguments()[at];
            let is_wanted = match slots[at] {
                Slot::Given(object) => object.is(make),
                Slot::Absent | Slot::Wanted => {
                    outputs.is_none() && (!argument.optional || argument.needs.is_some())
                }
            };
            if is_wanted {
                let needed = operation.like[at].filter(|_| argument.needs.is_some());
                let has_it = needed.is_none_or(|input| matches!(slots[input], Slot::Given(_)));
                slots[at] = if has_it { Slot::Wanted } else { Slot::Absent };
            }
        }
        Ok(Given { py, operation, slots })
    }

    /// What was given for an argument.
    pub fn object(&self, at: usize) -> Option<Object<'a, 'py>> {
        match self.slots[at] {
            Slot::Given(object) => Some(object),
            Slot::Absent | Slot::Wanted => None,
        }
    }

    /// Whether it is a result that has no place yet.
    pub fn is_wanted(&self, at: usize) -> bool {
        matches!(self.slots[at], Slot::Wanted)
    }

    /// Every object, with the place of its argument.
    pub fn objects(&self) -> impl DoubleEndedIterator<Item = (usize, Object<'a, 'py>)> {
        (0..self.operation.arguments().len()).filter_map(|at| Some((at, self.object(at)?)))
    }

    /// True if there is something for every argument that has to be there.
    pub fn is_complete(&self) -> bool {
        let mut slots = self.operation.arguments().iter().zip(&self.slots);
        slots.all(|(argument, slot)| argument.optional || !matches!(slot, Slot::Absent))
    }
}

fn fill<'a, 'py>(
    slots: &mut [Slot<'a, 'py>],
    objects: &'a Bound<'py, PyTuple>,
    operation: &Described,
) -> PyResult<()> {
    let (found, most, name) = (objects.len(), slots.len(), operation.entry.name);
    if found > most {
        return Err(PyTypeError::new_err(format!(
            "{name} was given {found} tensors: expected {most} at most"
        )));
    }
    for (slot, object) in slots.iter_mut().zip(objects.iter_borrowed()) {
        if !object.is_none() {
            *slot = Slot::Given(object);
        }
    }
    Ok(())
}
