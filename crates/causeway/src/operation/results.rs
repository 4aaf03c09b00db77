//! What the inputs of a call say of its results: how large they are, and of which dtype.

use super::{Argument, Axis, DTypes, Role, Shape};

/// Where the size of a result's axis stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeSource {
    /// The place of an input in the table.
    pub argument: usize,
    /// An axis of that input.
    pub axis: usize,
    /// What is added to that axis.
    pub plus: i64,
}

/// The first of the inputs that are `given` which has the size of a result's axis; `None` if no input says it.
pub fn size_source(
    arguments: &'static [Argument],
    axis: &'static Axis,
    given: impl Fn(usize) -> bool,
) -> Option<SizeSource> {
    let is_given = |name| arguments.iter().position(|argument| argument.name == name).is_some_and(&given);
    let wanted = match axis.without {
        Some((argument, instead)) if !is_given(argument) => instead,
        _ => axis,
    };
    let of = |(place, argument): (usize, &Argument)| {
        let axes = argument.shape.axes;
        let axis = axes.iter().position(|known| known.size == wanted.size)?;
        Some(SizeSource { argument: place, axis, plus: wanted.plus - axes[axis].plus })
    };
    let inputs = arguments.iter().enumerate().filter(|(_, argument)| argument.role == Role::Input);
    inputs.filter(|(place, _)| given(*place)).find_map(of)
}

impl Argument {
    /// The argument of the table whose dtype this one has; itself, if it has one of its own.
    pub fn dtype_source(&'static self, arguments: &'static [Argument]) -> &'static Argument {
        let (DTypes::Of(other, _) | DTypes::OfOrF32(other, _)) = self.dtypes else { return self };
        let found = arguments.iter().find(|argument| argument.name == other);
        found.map_or(self, |argument| argument.dtype_source(arguments))
    }

    /// The place in the table of the input that a result is made like: the one that it needs, or a required one of its shape and
    /// dtype. `None` if there is none.
    pub fn like(&'static self, arguments: &'static [Argument]) -> Option<usize> {
        let is_like = |input: &'static Argument| match self.needs {
            Some((needed, _)) => input.name == needed,
            None => {
                let is_required = input.role == Role::Input && !input.optional;
                is_required
                    && input.shape == self.shape
                    && input.dtype_source(arguments) == self.dtype_source(arguments)
            }
        };
        arguments.iter().position(is_like)
    }
}

impl Shape {
    /// The names of its axes as people write them; of several forms, those of the first.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let form = self.text.trim_start_matches('(').split(')').next().unwrap_or_default();
        form.split(',').map(str::trim).filter(|name| !name.is_empty())
    }
}
