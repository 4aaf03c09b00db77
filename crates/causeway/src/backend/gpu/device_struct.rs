//! Structs that kernels are given: written once, in Rust, and their C++ is rendered from that.
//!
//! `device_struct!` makes a `#[repr(C)]` struct and its [`DeviceStruct`], which is what a kernel's text gets as
//! [`HEADER`]. kernels/README.md shows one.

use std::fmt::Write as _;

use bytemuck::Pod;

use crate::operation::{Argument, Role, View};
use crate::tensor::{TensorMut, TensorRef};

/// The header that kernels include for the structs of their argument. It is no file: each program has its own.
pub(crate) const HEADER: &str = "arguments.cuh";

/// A struct of device code.
#[derive(Debug, PartialEq, Eq)]
pub struct DeviceStruct {
    pub(super) namespace: &'static str,
    pub(super) name: &'static str,
    pub(super) docs: &'static [&'static str],
    pub(super) bytes: usize,
    pub(super) fields: &'static [Field],
    /// Tensors that fields are of.
    pub(super) tensors: &'static [Argument],
}

/// A field of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub name: &'static str,
    pub docs: &'static [&'static str],
    pub of_type: &'static str,
    /// That type, where it is a struct.
    pub nested: Option<&'static DeviceStruct>,
    /// The tensor that it is the address, or the strides, of.
    pub tensor: Option<&'static str>,
    /// The pointer that an address is in device code.
    pub pointer: Option<&'static str>,
}

/// A type that host and kernels know alike.
pub(super) trait DeviceType: Pod + Default {
    /// Its name in device code.
    const NAME: &'static str;
    /// Where it is a struct.
    const STRUCT: Option<&'static DeviceStruct> = None;
}

/// What a field says of a tensor; its default if the tensor is not there.
pub(super) trait OfTensor: DeviceType {
    fn of(view: View<'_>) -> Self;
}

impl DeviceType for u32 {
    const NAME: &'static str = "u32";
}

impl DeviceType for i32 {
    const NAME: &'static str = "i32";
}

impl DeviceType for u64 {
    const NAME: &'static str = "u64";
}

impl DeviceType for i64 {
    const NAME: &'static str = "i64";
}

/// The address of the first element.
impl OfTensor for u64 {
    #[inline]
    fn of(view: View<'_>) -> Self {
        view.address
    }
}

/// The stride along the first axis, of tensors that have one.
impl OfTensor for i64 {
    #[inline]
    fn of(view: View<'_>) -> Self {
        view.stride(0)
    }
}

/// A tensor of a call, or the place for one.
pub(super) trait Given {
    fn view(&self) -> Option<View<'_>>;
}

impl Given for TensorRef<'_> {
    #[inline]
    fn view(&self) -> Option<View<'_>> {
        Some(View::of(self))
    }
}

impl Given for TensorMut<'_> {
    #[inline]
    fn view(&self) -> Option<View<'_>> {
        Some(View::of_mut(self))
    }
}

impl<T: Given> Given for Option<T> {
    #[inline]
    fn view(&self) -> Option<View<'_>> {
        self.as_ref().and_then(Given::view)
    }
}

/// What a field says of a tensor, or of none.
#[inline]
pub(super) fn of_tensor<T: OfTensor>(tensor: &impl Given) -> T {
    tensor.view().map_or_else(T::default, T::of)
}

impl DeviceStruct {
    /// Its name with namespaces.
    pub(super) fn path(&self) -> String {
        match self.namespace {
            "" => format!("causeway::{}", self.name),
            namespace => format!("causeway::{namespace}::{}", self.name),
        }
    }

    /// The text of [`HEADER`]: these structs, and before each those that it is made of.
    pub(crate) fn header(structs: &[&DeviceStruct]) -> String {
        let mut text = String::from("#pragma once\n#include \"portable.cuh\"\n");
        let mut known = Vec::new();
        structs.iter().for_each(|wanted| wanted.render(&mut text, &mut known));
        text
    }

    fn render(&self, text: &mut String, known: &mut Vec<&'static str>) {
        if known.contains(&self.name) {
            return;
        }
        known.push(self.name);
        self.fields.iter().filter_map(|field| field.nested).for_each(|nested| nested.render(text, known));
        let namespaces = ["causeway", self.namespace];
        let namespaces = || namespaces.iter().filter(|namespace| !namespace.is_empty());
        text.push('\n');
        namespaces().for_each(|namespace| *text += &format!("namespace {namespace} {{\n"));
        self.docs.iter().for_each(|line| *text += &format!("//{line}\n"));
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "struct {} {{", self.name);
        for field in self.fields {
            let _ = write!(text, "    {} {};", self.type_of(field), field.name);
            *text += if field.docs.is_empty() { "" } else { "  //" };
            *text += &(field.docs.concat() + "\n");
        }
        let _ = writeln!(
            text,
            "}};\nstatic_assert(sizeof({}) == {}, \"as on the host\");",
            self.name, self.bytes
        );
        namespaces().for_each(|_| *text += "}\n");
    }

    /// The address of a tensor is a pointer, which says whether it is read or written.
    fn type_of(&self, field: &Field) -> &'static str {
        let role = |name| self.tensors.iter().find(|tensor| tensor.name == name).map(|tensor| tensor.role);
        match (field.pointer, field.tensor.and_then(role)) {
            (Some(pointer), _) => pointer,
            (None, Some(Role::Input)) if field.of_type == u64::NAME => "const void*",
            (None, Some(_)) if field.of_type == u64::NAME => "void*",
            _ => field.of_type,
        }
    }
}

/// A struct that kernels are given, and its [`DeviceStruct`].
///
/// ```text
/// device_struct! {
///     /// What the kernels are given.
///     struct ForwardArguments in "causal_conv1d" of Forward {
///         x: u64 of x,                     // its address: `const void*`, or `void*` where it is written
///         x_strides: Strides3 of x,
///         workspace: u64 as "float*",
///         /// Of the grid.
///         blocks: u32,
///     }
/// }
/// ```
///
/// Of an operation it has `of(call)`, which fills in what the tensors say and leaves the rest zero. The compiler refuses a struct
/// with bytes that belong to no field, so that C++ sees no other layout.
macro_rules! device_struct {
    (
        $(#[doc = $doc:literal])*
        $vis:vis struct $name:ident in $namespace:literal of $operation:ident { $($body:tt)* }
    ) => {
        device_struct! {
            @define [$($doc),*] [$vis] $name $namespace
            [<$operation<'_> as $crate::operation::Operation>::ARGUMENTS] { $($body)* }
        }
        device_struct! { @of $operation $name { $($body)* } }
    };
    ($(#[doc = $doc:literal])* $vis:vis struct $name:ident in $namespace:literal { $($body:tt)* }) => {
        device_struct! { @define [$($doc),*] [$vis] $name $namespace [&[]] { $($body)* } }
    };

    (
        @define [$($doc:literal),*] [$vis:vis] $name:ident $namespace:literal [$tensors:expr] {
            $($(#[doc = $field_doc:literal])*
            $field:ident: $type:ident $(of $tensor:ident)? $(as $pointer:literal)?,)*
        }
    ) => {
        $(#[doc = $doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
        $vis struct $name {
            $($(#[doc = $field_doc])* pub $field: $type,)*
        }

        impl $crate::backend::gpu::device_struct::DeviceType for $name {
            const NAME: &'static str = stringify!($name);
            const STRUCT: Option<&'static $crate::backend::gpu::device_struct::DeviceStruct> = Some(&Self::DEVICE);
        }

        impl $name {
            /// As kernels know it.
            $vis const DEVICE: $crate::backend::gpu::device_struct::DeviceStruct =
                $crate::backend::gpu::device_struct::DeviceStruct {
                    namespace: $namespace,
                    name: stringify!($name),
                    docs: &[$($doc),*],
                    bytes: size_of::<$name>(),
                    fields: &[$($crate::backend::gpu::device_struct::Field {
                        name: stringify!($field),
                        docs: &[$($field_doc),*],
                        of_type: <$type as $crate::backend::gpu::device_struct::DeviceType>::NAME,
                        nested: <$type as $crate::backend::gpu::device_struct::DeviceType>::STRUCT,
                        tensor: device_struct!(@text $($tensor)?),
                        pointer: device_struct!(@pointer $type $($pointer)?),
                    }),*],
                    tensors: $tensors,
                };
        }
    };

    (
        @of $operation:ident $name:ident {
            $($(#[$meta:meta])* $field:ident: $type:ident $(of $tensor:ident)? $(as $pointer:literal)?,)*
        }
    ) => {
        impl $name {
            /// What the tensors of a call say; the rest is zero.
            #[inline]
            fn of(call: &$operation<'_>) -> Self {
                $name { $($field: device_struct!(@value call $($tensor)?),)* }
            }
        }
    };

    (@text) => { None };
    (@text $name:ident) => { Some(stringify!($name)) };
    (@pointer $type:ident) => { None };
    // A pointer is an address.
    (@pointer u64 $pointer:literal) => { Some($pointer) };
    (@value $call:ident) => { Default::default() };
    (@value $call:ident $tensor:ident) => { $crate::backend::gpu::device_struct::of_tensor(&$call.$tensor) };
}
pub(super) use device_struct;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::causal_conv1d::VarlenStates;
    use crate::tensor::{DType, Location};

    device_struct! {
        /// Two numbers.
        struct Pair in "" {
            first: i64,
            /// Of something,
            /// and more.
            second: i64,
        }
    }

    impl OfTensor for Pair {
        fn of(view: View<'_>) -> Self {
            Pair { first: view.meta.strides[0], second: view.meta.strides[1] }
        }
    }

    device_struct! {
        /// What a kernel is given.
        /// It reads x.
        struct Example in "space" of VarlenStates {
            x: u64 of x,
            states: u64 of states,
            x_strides: Pair of x,
            other: Pair,
            boundary_step: i64 of cu_seqlens,
            indices: u64 of cu_seqlens as "const i32*",
            workspace: u64 as "float*",
            bytes: u64,
            count: u32,
            rest: i32,
        }
    }

    #[test]
    fn the_text_has_every_struct_once_and_says_what_is_written() {
        let text = "#pragma once\n#include \"portable.cuh\"\n\n\
            namespace causeway {\n// Two numbers.\nstruct Pair {\n    i64 first;\n    \
            i64 second;  // Of something, and more.\n};\n\
            static_assert(sizeof(Pair) == 16, \"as on the host\");\n}\n\n\
            namespace causeway {\nnamespace space {\n// What a kernel is given.\n// It reads x.\nstruct Example {\n    \
            const void* x;\n    void* states;\n    Pair x_strides;\n    Pair other;\n    i64 boundary_step;\n    \
            const i32* indices;\n    float* workspace;\n    u64 bytes;\n    u32 count;\n    i32 rest;\n};\n\
            static_assert(sizeof(Example) == 88, \"as on the host\");\n}\n}\n";
        assert_eq!(DeviceStruct::header(&[&Example::DEVICE, &Pair::DEVICE]), text);
        assert_eq!(
            (Example::DEVICE.path(), Pair::DEVICE.path()),
            ("causeway::space::Example".into(), "causeway::Pair".into())
        );
    }

    #[test]
    fn tensors_fill_their_fields() {
        let on = Location::Cuda(0);
        // SAFETY: nobody touches the memory.
        let call = unsafe {
            VarlenStates {
                x: TensorRef::from_raw(0x100 as *const u8, DType::F16, &[5, 3], &[9, 2], on).unwrap(),
                cu_seqlens: TensorRef::from_raw(0x200 as *const u8, DType::I32, &[2], &[7], on).unwrap(),
                states: TensorMut::from_raw(0x300 as *mut u8, DType::F16, &[1, 3, 4], &[12, 4, 1], on)
                    .unwrap(),
            }
        };
        let x_strides = Pair { first: 9, second: 2 };
        let expected = Example {
            x: 0x100,
            states: 0x300,
            x_strides,
            boundary_step: 7,
            indices: 0x200,
            ..Example::default()
        };
        assert_eq!(Example::of(&call), expected);
        assert_eq!(of_tensor::<u64>(&None::<TensorRef<'_>>), 0);
    }
}
