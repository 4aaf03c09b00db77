//! What an operation's arguments are, as data: one table from which all else follows that treats tensors alike.
//!
//! `operation!` makes of it the argument struct, its checks, the list of its tensors, and the call from tensors by name, which
//! files, the server, suites and bindings use. docs/adding-an-operation.md shows how one is written.

mod results;

pub use results::{SizeSource, size_source};

use crate::checks;
use crate::error::{Error, Result};
use crate::tensor::{DType, Meta, TensorMut, TensorRef};

/// What a call does with a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Reads it.
    Input,
    /// Writes every element of it.
    Output,
    /// Reads and changes it.
    InPlace,
}

/// The sizes that the tensors of a call agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Rows of x.
    Batch,
    /// Channels.
    Dim,
    /// Positions of a row.
    Seqlen,
    /// Taps of a channel.
    Width,
    /// Sequences: rows of a state.
    Sequences,
    /// Rows of A and C.
    M,
    /// Columns of B and C.
    N,
    /// Columns of A, rows of B.
    K,
    /// Any: the operation's own checks say what it has to be.
    Free,
}

/// What [`Size`]s are in a call, in their order.
pub(crate) type Sizes = [i64; 8];

/// An axis of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis {
    /// Its name in messages: `dim`.
    pub name: &'static str,
    /// The size that it has.
    pub size: Size,
    /// What is added to that: -1 for the `width - 1` positions of a state.
    pub plus: i64,
    /// What says how large it has to be: `the dim of x`.
    pub because: &'static str,
    /// An argument, and the axis that this one is in calls without it.
    pub without: Option<(&'static str, &'static Axis)>,
}

/// The shape of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// As people write it: `(batch, dim, seqlen)`.
    pub text: &'static str,
    /// Its axes; none where the operation's own checks say what they are.
    pub axes: &'static [Axis],
}

/// The dtypes that an argument may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DTypes {
    /// That of another argument.
    Of(&'static str, &'static str),
    /// That of another argument, or f32 if that has 16 bits: what to say without and with the choice.
    OfOrF32(&'static str, (&'static str, &'static str)),
    /// One of these.
    Among(&'static [DType], &'static str),
    /// What the operation's own checks say.
    Own,
}

/// One tensor of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argument {
    /// Its name.
    pub name: &'static str,
    /// What a call does with it.
    pub role: Role,
    /// Whether a call may be without it.
    pub optional: bool,
    /// Its shape.
    pub shape: Shape,
    /// Its dtype.
    pub dtypes: DTypes,
    /// The input without which it has no meaning, and what to say then.
    pub needs: Option<(&'static str, &'static str)>,
}

/// A tensor of a call, whether it is read or written.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Address of its first element.
    pub address: u64,
    /// Dtype, shape and strides.
    pub meta: &'a Meta,
}

impl<'a> View<'a> {
    /// Of a tensor that is read.
    pub fn of(tensor: &'a TensorRef<'_>) -> Self {
        View { address: tensor.pointer().addr() as u64, meta: tensor.meta() }
    }

    /// Of a tensor that is written.
    pub fn of_mut(tensor: &'a TensorMut<'_>) -> Self {
        View { address: tensor.pointer().addr() as u64, meta: tensor.meta() }
    }

    /// Elements between neighbours along an axis; 0 where there is only one, whose stride may be any number. Kernels are given this one, so idle
    /// lanes that step past the only element stay on it, and no plan depends on the caller's number.
    #[inline]
    pub fn stride(&self, axis: usize) -> i64 {
        if self.meta.shape[axis] <= 1 { 0 } else { self.meta.strides[axis] }
    }

    /// Bytes of its elements, each once.
    pub fn bytes(&self) -> u64 {
        self.meta.element_count() as u64 * self.meta.dtype.size() as u64
    }
}

/// An operation with its arguments.
pub trait Operation {
    /// Its tensors, in the order of its struct.
    const ARGUMENTS: &'static [Argument];

    /// `where x is`, of the first of them: what says where the others have to be.
    const WHERE: &'static str;

    /// Calls `visit` with every argument, and with the tensor that is given for it.
    fn visit<'s>(&'s self, visit: impl FnMut(&'static Argument, Option<View<'s>>));

    /// Bytes that a call reads and writes, each tensor once.
    fn traffic(&self) -> (u64, u64) {
        let (mut read, mut written) = (0, 0);
        self.visit(|argument, tensor| {
            let bytes = tensor.map_or(0, |tensor| tensor.bytes());
            read += if argument.role == Role::Output { 0 } else { bytes };
            written += if argument.role == Role::Input { 0 } else { bytes };
        });
        (read, written)
    }
}

/// Most tensors that a call can have.
pub const MOST: usize = 16;

/// Where in a table the arguments are that another one names. Names are compared by the compiler, not in every call.
#[derive(Clone, Copy)]
struct Places {
    needs: usize,
    without: usize,
    dtype: usize,
}

const fn places(arguments: &[Argument]) -> [Places; MOST] {
    assert!(arguments.len() <= MOST, "there is room for every tensor");
    let mut all = [Places { needs: 0, without: 0, dtype: 0 }; MOST];
    let mut at = 0;
    while at < arguments.len() {
        let Argument { shape, dtypes, needs, .. } = &arguments[at];
        if let Some((name, _)) = needs {
            all[at].needs = place(arguments, name);
        }
        if let DTypes::Of(name, _) | DTypes::OfOrF32(name, _) = dtypes {
            all[at].dtype = place(arguments, name);
        }
        let mut axis = 0;
        while axis < shape.axes.len() {
            if let Some((name, _)) = shape.axes[axis].without {
                all[at].without = place(arguments, name);
            }
            axis += 1;
        }
        at += 1;
    }
    all
}

const fn place(arguments: &[Argument], name: &str) -> usize {
    let mut at = 0;
    while !is_same(arguments[at].name.as_bytes(), name.as_bytes()) {
        at += 1;
    }
    at
}

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// The tensors of a call, by their place in the table.
struct Given<'a>([Option<&'a Meta>; MOST]);

/// Checks every argument of a call against the table: number of axes, sizes, dtype, place, what it needs beside it, and, if it is
/// written, that its elements lie apart. `sizes` are what the operation's own checks have found.
pub(crate) fn check<O: Operation>(call: &O, sizes: &Sizes) -> Result<()> {
    let places = const { &places(O::ARGUMENTS) };
    let (mut given, mut count) = (Given([None; MOST]), 0);
    call.visit(|_, tensor| {
        given.0[count] = tensor.map(|tensor| tensor.meta);
        count += 1;
    });
    let arguments = O::ARGUMENTS.iter().zip(places).zip(given.0);
    arguments.into_iter().try_for_each(|((argument, places), meta)| match meta {
        Some(meta) => given.check((argument, places), meta, sizes, O::WHERE),
        None => Ok(()),
    })
}

impl Given<'_> {
    fn check(
        &self,
        (argument, places): (&Argument, &Places),
        meta: &Meta,
        sizes: &Sizes,
        place: &'static str,
    ) -> Result<()> {
        let name = argument.name;
        if let Some((_, because)) = argument.needs
            && self.0[places.needs].is_none()
        {
            return Err(Error::Unexpected { argument: name, because });
        }
        let of = self.0[places.dtype].map_or(meta.dtype, |other| other.dtype);
        argument.check(meta, of, |axis| {
            let axis = match axis.without {
                Some((_, axis)) if self.0[places.without].is_none() => axis,
                _ => axis,
            };
            sizes.get(axis.size as usize).map(|size| (axis, size + axis.plus))
        })?;
        checks::location(name, meta.location, self.0[0].unwrap_or(meta).location, place)?;
        if argument.role == Role::Input { Ok(()) } else { checks::output(name, meta) }
    }
}

impl Argument {
    /// Checks a tensor's number of axes, its sizes, and its dtype. `of` is that of the tensor which the rule names; `size` gives what
    /// an axis counts as and its size, if that is known.
    #[inline]
    pub(crate) fn check(
        &self,
        meta: &Meta,
        of: DType,
        size: impl Fn(&'static Axis) -> Option<(&'static Axis, i64)>,
    ) -> Result<()> {
        let (name, Shape { text, axes }) = (self.name, self.shape);
        if !axes.is_empty() && meta.shape.len() != axes.len() {
            return Err(Error::Rank { argument: name, expected: text, found: meta.shape });
        }
        for (axis, &found) in axes.iter().zip(&*meta.shape) {
            if let Some((axis, expected)) = size(axis) {
                checks::size(name, axis.name, found, expected, axis.because)?;
            }
        }
        match self.dtypes {
            DTypes::Of(_, because) => checks::dtype(name, meta, &[of], because),
            DTypes::OfOrF32(_, because) => match of {
                half @ (DType::F16 | DType::BF16) => {
                    checks::dtype(name, meta, &[half, DType::F32], because.1)
                }
                exact => checks::dtype(name, meta, &[exact], because.0),
            },
            DTypes::Among(allowed, because) => checks::dtype(name, meta, allowed, because),
            DTypes::Own => Ok(()),
        }
    }
}

/// The argument struct of an operation, and its [`Operation`].
///
/// Tensors are `required` or `optional`, or changed `in_place`; each has a [`Shape`] and its [`DTypes`]. A name that is no
/// field's comes after `as`.
macro_rules! operation {
    (
        $(#[$meta:meta])*
        pub struct $operation:ident;
        reads {
            $($(#[$read_doc:meta])* $read:ident $(as $read_name:literal)?:
                $read_kind:ident $read_shape:expr, $read_dtypes:expr;)*
        }
        options { $($(#[$option_doc:meta])* $option:ident: $option_type:ty;)* }
        writes {
            $($(#[$doc:meta])* $written:ident $(as $name:literal)?:
                $kind:ident $shape:expr, $dtypes:expr $(, needs $needs:expr)?;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug)]
        pub struct $operation<'a> {
            $($(#[$read_doc])* pub $read: operation!(@read $read_kind, 'a),)*
            $($(#[$option_doc])* pub $option: $option_type,)*
            $($(#[$doc])* pub $written: operation!(@written $kind, 'a),)*
        }

        impl<'a> $operation<'a> {
            /// The call with the tensors that `read` and `write` have under the names of its arguments. They are asked in the
            /// order of the table, `read` for all inputs first.
            ///
            /// # Panics
            /// If they lack one that is required.
            pub fn from_named(
                $($option: $option_type,)*
                mut read: impl FnMut(&'static str) -> Option<$crate::tensor::TensorRef<'a>>,
                mut write: impl FnMut(&'static str) -> Option<$crate::tensor::TensorMut<'a>>,
            ) -> Self {
                $operation {
                    $($read: operation!(@given $read_kind, operation!(@name $read $($read_name)?), read),)*
                    $($option,)*
                    $($written: operation!(@given $kind, operation!(@name $written $($name)?), write),)*
                }
            }
        }

        impl $crate::operation::Operation for $operation<'_> {
            const ARGUMENTS: &'static [$crate::operation::Argument] = &[
                $($crate::operation::Argument {
                    name: operation!(@name $read $($read_name)?),
                    role: $crate::operation::Role::Input,
                    optional: operation!(@optional $read_kind),
                    shape: $read_shape,
                    dtypes: $read_dtypes,
                    needs: None,
                },)*
                $($crate::operation::Argument {
                    name: operation!(@name $written $($name)?),
                    role: operation!(@role $kind),
                    optional: operation!(@optional $kind),
                    shape: $shape,
                    dtypes: $dtypes,
                    needs: operation!(@needs $($needs)?),
                },)*
            ];

            const WHERE: &'static str =
                [$(concat!("where ", operation!(@name $read $($read_name)?), " is")),*][0];

            #[inline]
            fn visit<'s>(
                &'s self,
                mut visit: impl FnMut(
                    &'static $crate::operation::Argument,
                    Option<$crate::operation::View<'s>>,
                ),
            ) {
                // The compiler counts.
                let mut at = 0;
                $(
                    visit(&Self::ARGUMENTS[at], operation!(@view $read_kind, of, self.$read));
                    at += 1;
                )*
                $(
                    visit(&Self::ARGUMENTS[at], operation!(@view $kind, of_mut, self.$written));
                    at += 1;
                )*
                let _ = at;
            }
        }
    };

    (@read required, $a:lifetime) => { $crate::tensor::TensorRef<$a> };
    (@read optional, $a:lifetime) => { Option<$crate::tensor::TensorRef<$a>> };
    (@written optional, $a:lifetime) => { Option<$crate::tensor::TensorMut<$a>> };
    (@written $kind:ident, $a:lifetime) => { $crate::tensor::TensorMut<$a> };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
    (@optional optional) => { true };
    (@optional $kind:ident) => { false };
    (@role in_place) => { $crate::operation::Role::InPlace };
    (@role $kind:ident) => { $crate::operation::Role::Output };
    (@needs) => { None };
    (@needs $needs:expr) => { Some($needs) };
    (@given optional, $name:expr, $tensors:ident) => { $tensors($name) };
    (@given $kind:ident, $name:expr, $tensors:ident) => {
        $tensors($name).unwrap_or_else(|| panic!("the call has no {}", $name))
    };
    (@view optional, $of:ident, $tensor:expr) => { $tensor.as_ref().map($crate::operation::View::$of) };
    (@view $kind:ident, $of:ident, $tensor:expr) => { Some($crate::operation::View::$of(&$tensor)) };
}
pub(crate) use operation;
