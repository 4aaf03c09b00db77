//! What a planner has chosen: a kernel of `kernels/` and its template arguments, as a small value.
//!
//! A [`Choice`] has no text in it. Choosing takes a fraction of a microsecond, so every call chooses anew, and loaded kernels
//! are found by comparing choices. [`Choice::source`] renders the text when a compiler, a person or a report asks for it.

mod together;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};

pub(super) use together::Together;

use super::device_struct::DeviceStruct;
use crate::operation::{DTypes, Operation};
use crate::tensor::DType;

/// A function of device code, compiled for structs of constants.
#[derive(Debug)]
pub(super) struct KernelFunction {
    /// File in `kernels/` that holds it.
    pub header: &'static str,
    /// Name of the `extern "C"` entry.
    pub entry: &'static str,
    /// The entry's one argument.
    pub argument: ArgumentType,
    /// What the entry calls with it.
    pub function: &'static str,
}

/// The type of a kernel's argument.
#[derive(Debug)]
pub(super) enum ArgumentType {
    Struct(&'static DeviceStruct),
    /// A template of `kernels/`, and the structs that it puts together.
    Template(&'static str, &'static [&'static DeviceStruct]),
}

/// How an entry begins: what the compiler and the driver are told of its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct LaunchBounds {
    pub threads: u32,
    /// Blocks that should fit on a multiprocessor: caps registers.
    pub resident: u32,
    /// Blocks of a cluster, 1 without.
    pub cluster: u32,
    pub attribute: Attribute,
}

/// Which macro of portable.cuh an entry begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Attribute {
    /// By the number of blocks of a cluster.
    Plain,
    /// For products on AMD's matrix cores.
    Mfma,
    /// With the size of its cluster in every case.
    Cluster,
}

impl LaunchBounds {
    #[inline]
    pub fn new(threads: u32, resident: u32) -> Self {
        LaunchBounds { threads, resident, cluster: 1, attribute: Attribute::Plain }
    }

    pub(super) fn text(&self) -> String {
        let LaunchBounds { threads, resident, cluster, attribute } = self;
        match attribute {
            Attribute::Plain if *cluster > 1 => {
                format!("CAUSEWAY_CLUSTER_KERNEL({threads}, {resident}, {cluster})")
            }
            Attribute::Plain => format!("CAUSEWAY_KERNEL({threads}, {resident})"),
            Attribute::Mfma => format!("CAUSEWAY_MFMA_KERNEL({threads})"),
            Attribute::Cluster => {
                format!("CAUSEWAY_KERNEL({threads}, {resident}) __cluster_dims__({cluster}, 1, 1)")
            }
        }
    }
}

/// First statement of a kernel that is launched programmatically, unless the kernel says itself where it waits.
const WAIT: &str = "    causeway::grid_dependency_wait();\n";

/// Constants that a struct has room for without another allocation.
const MOST: usize = 18;

/// A struct of constants in device code.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Constants {
    name: &'static str,
    // Choices are made on every call and handed on often: a copy of all constants each time takes longer than an allocation.
    constants: Vec<Constant>,
}

#[derive(Debug, Clone, Copy, Eq)]
struct Constant {
    name: &'static str,
    /// The [`Kind`] in the upper half, the value in the lower one: compared at once.
    kind_and_value: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The value is a [`DType`].
    Type,
    Int,
    Flag,
    /// The name is followed by its value, which is text.
    Enumerator,
}

impl Constant {
    const KINDS: [Kind; 4] = [Kind::Type, Kind::Int, Kind::Flag, Kind::Enumerator];

    #[inline(always)]
    fn new(name: &'static str, kind: Kind, value: i32) -> Self {
        Constant { name, kind_and_value: (kind as u64) << 32 | u64::from(value as u32) }
    }

    fn kind(self) -> Kind {
        Self::KINDS[(self.kind_and_value >> 32) as usize]
    }

    fn value(self) -> i32 {
        self.kind_and_value as i32
    }
}

impl PartialEq for Constant {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        // Names are literals, and nearly always the same one.
        self.kind_and_value == other.kind_and_value
            && (std::ptr::eq(self.name, other.name) || self.name == other.name)
    }
}

impl Hash for Constant {
    /// Constants of one kernel have the same names in the same order, nearly always.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.kind_and_value);
    }
}

impl Constants {
    #[inline(always)]
    pub fn new(name: &'static str) -> Self {
        Constants { name, constants: Vec::with_capacity(MOST) }
    }

    #[inline(always)]
    fn push(mut self, name: &'static str, kind: Kind, value: i32) -> Self {
        self.constants.push(Constant::new(name, kind, value));
        self
    }

    /// Which optional tensors a call has, as far as `counts` says: one without elements is as good as none. Of indices that may
    /// have several dtypes it is the bytes of one.
    #[inline(always)]
    pub fn given(mut self, call: &impl Operation, counts: impl Fn(&str) -> bool) -> Self {
        call.visit(|argument, tensor| {
            if argument.optional {
                let there = tensor.filter(|tensor| !tensor.meta.is_empty() && counts(argument.name));
                let (kind, value) = match argument.dtypes {
                    DTypes::Among([_, _, ..], _) => {
                        (Kind::Int, there.map_or(0, |tensor| tensor.meta.dtype.size() as i32))
                    }
                    _ => (Kind::Flag, there.is_some().into()),
                };
                self.constants.push(Constant::new(argument.name, kind, value));
            }
        });
        self
    }

    #[inline(always)]
    pub fn dtype(self, name: &'static str, dtype: DType) -> Self {
        self.push(name, Kind::Type, dtype as i32)
    }

    /// `value` is a size or a count that a kernel computes with as an `int`.
    #[inline(always)]
    pub fn int(self, name: &'static str, value: impl Into<i128>) -> Self {
        self.push(name, Kind::Int, value.into() as i32)
    }

    #[inline(always)]
    pub fn flag(self, name: &'static str, value: bool) -> Self {
        self.push(name, Kind::Flag, value.into())
    }

    /// The same with another value for a number that is there.
    pub fn with_int(mut self, name: &str, value: i32) -> Self {
        let constant = self.constants.iter_mut().find(|constant| constant.name == name);
        let constant = constant.expect("the constant is there");
        *constant = Constant::new(constant.name, constant.kind(), value);
        self
    }

    /// A value of an enumeration, written out: `layout = Layout::rows`.
    #[inline(always)]
    pub fn enumerator(self, name_and_value: &'static str) -> Self {
        self.push(name_and_value, Kind::Enumerator, 0)
    }

    fn render(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "struct {} {{", self.name)?;
        for constant in &self.constants {
            let (name, value) = (constant.name, constant.value());
            match constant.kind() {
                Kind::Type => writeln!(text, "    using {name} = {};", type_name(value)),
                Kind::Int => writeln!(text, "    static constexpr int {name} = {value};"),
                Kind::Flag => writeln!(text, "    static constexpr bool {name} = {};", value != 0),
                Kind::Enumerator => writeln!(text, "    static constexpr auto {name};"),
            }?;
        }
        writeln!(text, "}};")
    }
}

/// The element type in device code.
fn type_name(dtype: i32) -> &'static str {
    const F16: i32 = DType::F16 as i32;
    const BF16: i32 = DType::BF16 as i32;
    match dtype {
        F16 => "causeway::f16",
        BF16 => "causeway::bf16",
        _ => "float",
    }
}

/// A kernel of `kernels/` and what it is compiled for. Equal choices are one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Choice(Form);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Form {
    Kernel {
        kernel: ByAddress,
        bounds: LaunchBounds,
        /// The kernel begins while the launch before it on the stream ends, and waits for it.
        waits: bool,
        /// `Problem` and `Tile`, where the kernel has both.
        constants: [Option<Constants>; 2],
    },
    Text {
        header: &'static str,
        entry: &'static str,
        text: Cow<'static, str>,
    },
    /// Several kernels as one.
    Together(Together),
}

/// Kernels are statics: two of them are the same if they are in the same place.
#[derive(Debug, Clone, Copy)]
struct ByAddress(&'static KernelFunction);

impl PartialEq for ByAddress {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for ByAddress {}

impl Hash for ByAddress {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::from_ref(self.0).addr().hash(state);
    }
}

impl Choice {
    #[inline]
    pub(super) fn new(
        kernel: &'static KernelFunction,
        bounds: LaunchBounds,
        waits: bool,
        constants: [Option<Constants>; 2],
    ) -> Self {
        Choice(Form::Kernel { kernel: ByAddress(kernel), bounds, waits, constants })
    }

    /// A kernel that `text`, compiled after a header, defines as `entry`.
    pub fn of_text(header: &'static str, entry: &'static str, text: impl Into<Cow<'static, str>>) -> Self {
        Choice(Form::Text { header, entry, text: text.into() })
    }

    /// File in `kernels/` that holds the kernel.
    pub fn header(&self) -> &'static str {
        match &self.0 {
            Form::Kernel { kernel, .. } => kernel.0.header,
            Form::Text { header, .. } => header,
            Form::Together(together) => together.members[0].header(),
        }
    }

    /// Other files, where several kernels are one program.
    pub(crate) fn other_headers(&self) -> Vec<&'static str> {
        let Form::Together(together) = &self.0 else { return Vec::new() };
        let mut headers: Vec<_> = together.members.iter().map(Choice::header).collect();
        headers.sort_unstable();
        headers.dedup();
        headers.retain(|header| *header != self.header());
        headers
    }

    /// Name of the entry point.
    pub fn entry(&self) -> &'static str {
        match &self.0 {
            Form::Kernel { kernel, .. } => kernel.0.entry,
            Form::Text { entry, .. } => entry,
            Form::Together(_) => Together::ENTRY,
        }
    }

    /// What the header gets as `arguments.cuh`: the structs of the kernel's argument.
    pub(crate) fn structs(&self) -> Vec<&'static DeviceStruct> {
        match &self.0 {
            Form::Kernel { kernel, .. } => match &kernel.0.argument {
                ArgumentType::Struct(argument) => vec![*argument],
                ArgumentType::Template(_, structs) => structs.to_vec(),
            },
            Form::Text { .. } => Vec::new(),
            Form::Together(together) => together.members.iter().flat_map(Choice::structs).collect(),
        }
    }

    /// A kernel of a struct of its own, and how it begins.
    pub(super) fn kernel(&self) -> Option<(&'static KernelFunction, LaunchBounds)> {
        match &self.0 {
            Form::Kernel { kernel, bounds, .. } => Some((kernel.0, *bounds)),
            _ => None,
        }
    }

    /// The same kernel, which does not wait for the launch before it.
    pub(super) fn without_waiting(mut self) -> Self {
        if let Form::Kernel { waits, .. } = &mut self.0 {
            *waits = false;
        }
        self
    }

    /// Several kernels as one.
    pub(super) fn together(together: Together) -> Self {
        Choice(Form::Together(together))
    }

    /// The structs of constants.
    pub(super) fn constants(&self) -> String {
        let mut text = String::new();
        if let Form::Kernel { constants, .. } = &self.0 {
            for constants in constants.iter().flatten() {
                // Writing to a `String` cannot fail.
                let _ = constants.render(&mut text);
            }
        }
        text
    }

    /// Text compiled after the header: defines the constants and the one `extern "C"` entry.
    pub fn source(&self) -> String {
        let (kernel, bounds, waits) = match &self.0 {
            Form::Kernel { kernel, bounds, waits, .. } => (kernel.0, bounds, *waits),
            Form::Text { text, .. } => return text.to_string(),
            Form::Together(together) => return together.source(),
        };
        let KernelFunction { entry, argument, function, .. } = kernel;
        let argument = match argument {
            ArgumentType::Struct(argument) => argument.path(),
            ArgumentType::Template(template, _) => template.to_string(),
        };
        let mut text = self.constants();
        // Only there: waiting costs each of the thousands of blocks of a large launch something too.
        let wait = if waits { WAIT } else { "" };
        let bounds = bounds.text();
        let _ = write!(
            text,
            "{bounds} {entry}(const {argument} arguments) {{\n{wait}    causeway::{function}(arguments);\n}}\n"
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static KERNEL: KernelFunction = KernelFunction {
        header: "file.cuh",
        entry: "entry",
        argument: ArgumentType::Template("causeway::Arguments", &[]),
        function: "body<Problem, Tile>",
    };

    fn choice(width: i64, bounds: LaunchBounds, waits: bool) -> Choice {
        let problem = Constants::new("Problem").int("width", width).dtype("X", DType::BF16);
        let tile = Constants::new("Tile").flag("whole", true).enumerator("layout = Layout::rows");
        Choice::new(&KERNEL, bounds, waits, [Some(problem), Some(tile)])
    }

    #[test]
    fn the_text_has_constants_bounds_and_one_entry() {
        let text = "struct Problem {\n    static constexpr int width = 4;\n    using X = causeway::bf16;\n};\n\
                    struct Tile {\n    static constexpr bool whole = true;\n    \
                    static constexpr auto layout = Layout::rows;\n};\n\
                    CAUSEWAY_KERNEL(64, 2) entry(const causeway::Arguments arguments) {\n    \
                    causeway::grid_dependency_wait();\n    causeway::body<Problem, Tile>(arguments);\n}\n";
        let bounds = LaunchBounds::new(64, 2);
        assert_eq!(choice(4, bounds, true).source(), text);
        assert!(!choice(4, bounds, false).source().contains("grid_dependency_wait"));
        let cluster = LaunchBounds { cluster: 8, ..bounds };
        assert!(choice(4, cluster, false).source().contains("CAUSEWAY_CLUSTER_KERNEL(64, 2, 8) entry("));
    }

    #[test]
    fn choices_are_equal_when_their_texts_are() {
        let choices = [4, 5].into_iter().flat_map(|width| {
            [64, 128].into_iter().flat_map(move |threads| {
                [false, true].map(|waits| choice(width, LaunchBounds::new(threads, 1), waits))
            })
        });
        let choices: Vec<_> = choices.collect();
        for a in &choices {
            for b in &choices {
                assert_eq!(a == b, a.source() == b.source());
            }
        }
    }
}
