//! Changes to the text of the kernels: what tests put faults in with.

use std::collections::HashMap;
use std::ops::Range;

use causeway::{Error, Result};

/// A change by what the text says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// Text that goes, wherever it stands.
    pub right: String,
    /// What comes in its place.
    pub wrong: String,
}

/// A change of one place, whatever else says the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    /// File in `kernels/`. A program that does not include it stays as it is.
    pub file: String,
    /// Where `right` begins: the line, from 1.
    pub line: usize,
    /// And the byte of that line, from 0.
    pub column: usize,
    /// Text that goes, which may be empty or go on in further lines.
    pub right: String,
    /// What comes in its place.
    pub wrong: String,
}

impl Patch {
    /// Another text at some bytes of a file.
    pub fn at(file: &str, text: &str, bytes: Range<usize>, wrong: &str) -> Self {
        let before = &text[..bytes.start];
        let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
        let (line, column) = (before.matches('\n').count() + 1, bytes.start - begin);
        let [file, right, wrong] = [file, &text[bytes], wrong].map(str::to_string);
        Patch { file, line, column, right, wrong }
    }
}

/// What is done to every text before it is compiled.
#[derive(Debug, Default)]
pub(crate) enum Change {
    #[default]
    None,
    Everywhere(Edit),
    Places(HashMap<(String, usize), Vec<Patch>>),
}

impl Change {
    /// Patches that do not overlap.
    pub fn places(patches: Vec<Patch>) -> Self {
        let mut places: HashMap<_, Vec<Patch>> = HashMap::new();
        for patch in patches {
            places.entry((patch.file.clone(), patch.line)).or_default().push(patch);
        }
        for of_line in places.values_mut() {
            of_line.sort_by_key(|patch| patch.column);
        }
        Change::Places(places)
    }

    pub fn apply(&self, text: String) -> Result<String> {
        match self {
            Change::None => Ok(text),
            Change::Everywhere(edit) => Ok(text.replace(&edit.right, &edit.wrong)),
            Change::Places(places) => patched(&text, places),
        }
    }
}

/// The text of a program in one piece, whose `#line` directives tell which file a line is from.
fn patched(text: &str, places: &HashMap<(String, usize), Vec<Patch>>) -> Result<String> {
    let (mut result, mut taken, mut begin) = (String::with_capacity(text.len()), 0, 0);
    let mut place = (String::new(), 0);
    for line in text.split_inclusive('\n') {
        let at = begin;
        begin += line.len();
        if let Some((number, file)) = line_directive(line) {
            place = (file.strip_prefix("kernels/").unwrap_or(file).to_string(), number);
            continue;
        }
        for patch in places.get(&place).into_iter().flatten() {
            let from = at + patch.column;
            if from < taken || !text.get(from..).is_some_and(|rest| rest.starts_with(&patch.right)) {
                let Patch { file, line, column, right, .. } = patch;
                let message = format!("kernels/{file}:{line} does not have {right:?} at byte {column}");
                return Err(Error::SimulatorCompiler { message });
            }
            result.push_str(&text[taken..from]);
            result.push_str(&patch.wrong);
            taken = from + patch.right.len();
        }
        place.1 += 1;
    }
    result.push_str(&text[taken..]);
    Ok(result)
}

fn line_directive(line: &str) -> Option<(usize, &str)> {
    let (number, file) = line.strip_prefix("#line ")?.trim_end().split_once(' ')?;
    Some((number.parse().ok()?, file.trim_matches('"')))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "#line 1 \"kernels/a.cuh\"\nx < 1;\n#line 1 \"kernels/b.cuh\"\nx < 1;\n\
                        #line 3 \"kernels/a.cuh\"\nx < 1;\nf(\n  2);\n";

    fn patch(file: &str, line: usize, column: usize, right: &str, wrong: &str) -> Patch {
        Patch { file: file.into(), line, column, right: right.into(), wrong: wrong.into() }
    }

    #[test]
    fn one_place_of_several_that_say_the_same_is_changed() {
        let changed = |patches: &[Patch]| Change::places(patches.to_vec()).apply(TEXT.to_string()).unwrap();
        assert_eq!(changed(&[patch("a.cuh", 3, 2, "<", "<=")]).matches("<=").count(), 1);
        assert!(changed(&[patch("a.cuh", 3, 2, "<", "<=")]).contains("#line 3 \"kernels/a.cuh\"\nx <= 1;"));
        assert!(changed(&[patch("b.cuh", 1, 0, "x", "y")]).contains("b.cuh\"\ny < 1;"));
        // Across lines, several of one line, and in a file that is not there.
        assert!(changed(&[patch("a.cuh", 4, 0, "f(\n  2)", "g()")]).ends_with("x < 1;\ng();\n"));
        let two = [patch("a.cuh", 1, 4, "1", "2"), patch("a.cuh", 1, 0, "", "!")];
        assert!(changed(&two).starts_with("#line 1 \"kernels/a.cuh\"\n!x < 2;\n"));
        assert_eq!(changed(&[patch("c.cuh", 1, 0, "x", "y")]), TEXT);
    }

    #[test]
    fn a_patch_that_does_not_fit_is_refused() {
        for wrong in [patch("a.cuh", 1, 2, ">", "<"), patch("a.cuh", 1, 400, "x", "y")] {
            let error = Change::places(vec![wrong]).apply(TEXT.to_string()).unwrap_err().to_string();
            assert!(error.contains("kernels/a.cuh:1 does not have"), "{error}");
        }
    }
}
