//! Several kernels as one program: the body of each, and blocks that know their number within their member.

use std::fmt::Write as _;

use super::{ArgumentType, Choice, LaunchBounds, WAIT};

/// Several kernels as one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::backend::gpu) struct Together {
    /// Kernels with an argument of their own, in blocks of one size, without clusters.
    pub members: Vec<Choice>,
    pub bounds: LaunchBounds,
    /// Begins while the launch before it ends, and waits for it.
    pub waits: bool,
    /// Axes 1 and 2 of all grids are the same.
    pub even: bool,
}

impl Together {
    /// Name of the entry.
    pub const ENTRY: &'static str = "causal_conv1d_together";

    /// The text of the program: constants and body of each member, the struct of all arguments, and the entry.
    pub fn source(&self) -> String {
        let Together { members, bounds, waits, even } = self;
        let (mut text, mut fields, mut cases) = (String::new(), String::new(), String::new());
        for (i, member) in members.iter().enumerate() {
            let Some((kernel, _)) = member.kernel() else { unreachable!("members are kernels") };
            let ArgumentType::Struct(argument) = kernel.argument else { unreachable!("with a struct") };
            let (argument, constants) = (argument.path(), member.constants());
            let (before, block) = match i {
                0 => (String::new(), "block".to_string()),
                _ => ("} else ".to_string(), format!("block - arguments.ends[{}]", i - 1)),
            };
            // Writing to a `String` cannot fail.
            let _ = write!(
                text,
                "namespace member_{i} {{\n{constants}\
                 CAUSEWAY_DEVICE void run(const {argument}& arguments, causeway::u32 block) {{\n    \
                 causeway::{}(arguments, block);\n}}\n}}\n",
                kernel.function
            );
            let _ = writeln!(fields, "    {argument} of_{i};");
            let inside = if *even {
                String::new()
            } else {
                format!(
                    "if (causeway::block_index<1>() < arguments.rows[{i}] && \
                     causeway::block_index<2>() < arguments.layers[{i}]) "
                )
            };
            let _ = writeln!(
                cases,
                "    {before}if (block < arguments.ends[{i}]) {{\n        {inside}member_{i}::run(arguments.of_{i}, {block});"
            );
        }
        let (count, wait, bounds) = (members.len(), if *waits { WAIT } else { "" }, bounds.text());
        // As `Header` has it.
        let padding = if count % 2 == 1 { "    causeway::u32 padding;\n" } else { "" };
        let _ = write!(
            text,
            "struct Members {{\n    causeway::u32 ends[{count}], rows[{count}], layers[{count}];\n{padding}{fields}}};\n\
             {bounds} {}(const Members arguments) {{\n{wait}    const causeway::u32 block = causeway::block_index<0>();\n\
             {cases}    }}\n}}\n",
            Self::ENTRY
        );
        text
    }
}
