//! The device code that this crate carries, or a folder's in its place, and one program's text made from it.

use std::borrow::Cow;
use std::path::Path;
use std::sync::OnceLock;

use crate::backend::gpu::choice::Choice;
use crate::backend::gpu::device_struct::{self, DeviceStruct};
use crate::error::{Error, Result};

/// Name and text of a file.
type File = (Cow<'static, str>, Cow<'static, str>);

/// Every file in `kernels/`, as it was when this crate was built.
static KERNELS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// The environment variable that names a folder with another `kernels/`: whoever edits device code builds nothing anew.
const DIRECTORY: &str = "CAUSEWAY_KERNELS_DIR";

/// What the compiler's messages call the text that comes after the header.
const INSTANTIATION: &str = "instantiation";

/// The device code of this process: read once.
fn kernels() -> Result<&'static [File]> {
    static FILES: OnceLock<Result<Vec<File>, String>> = OnceLock::new();
    let files = FILES.get_or_init(|| match std::env::var_os(DIRECTORY).filter(|name| !name.is_empty()) {
        Some(folder) => read_folder(Path::new(&folder)),
        None => Ok(KERNELS.iter().map(|&(name, text)| (name.into(), text.into())).collect()),
    });
    files.as_deref().map_err(|because| Error::KernelsDirectory { because: because.clone() })
}

/// Name and text of every `.cuh` of a folder, in the order of their names.
fn read_folder(folder: &Path) -> Result<Vec<File>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut files: Vec<File> = Vec::new();
    for entry in folder.read_dir().map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".cuh") {
            let text = std::fs::read_to_string(entry.path()).map_err(|error| format!("{name}: {error}"))?;
            files.push((name.into(), text.into()));
        }
    }
    if files.is_empty() {
        return Err(format!("{} holds no .cuh file", folder.display()));
    }
    files.sort();
    Ok(files)
}

/// BLAKE3 of every file of the device code in use, with its name and length, in hexadecimal.
///
/// # Errors
/// [`Error::KernelsDirectory`] if `CAUSEWAY_KERNELS_DIR` names a folder that cannot be read.
pub fn sources_digest() -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    for text in kernels()?.iter().flat_map(|(name, text)| [name, text]) {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// A program: headers of `kernels/` and the text that chooses template arguments and names the entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// File in `kernels/`; empty if the instantiation needs none.
    pub header: &'static str,
    /// Other such files, where several kernels are one program.
    pub others: Vec<&'static str>,
    /// What a file includes as `arguments.cuh`: structs that the host knows too.
    pub arguments: String,
    /// Text compiled after the header.
    pub instantiation: String,
    /// Name of the `extern "C"` entry point that it defines.
    pub entry: &'static str,
}

impl Program {
    /// What has to be compiled for a choice.
    pub fn of(choice: &Choice) -> Self {
        Program {
            header: choice.header(),
            others: choice.other_headers(),
            arguments: DeviceStruct::header(&choice.structs()),
            instantiation: choice.source(),
            entry: choice.entry(),
        }
    }

    /// The whole text that the compiler gets, in one piece.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`] if it includes a file that is not in `kernels/`; [`Error::KernelsDirectory`] if
    /// `CAUSEWAY_KERNELS_DIR` names a folder that cannot be read.
    pub fn text(&self) -> Result<String> {
        flatten(self).map(|flattened| flattened.text)
    }
}

/// A program with every `#include` replaced by the file.
#[derive(Debug, Clone)]
pub(crate) struct Flattened {
    /// The text.
    pub text: String,
    /// The files that went into it, in order, with the digests of their texts.
    pub files: Vec<(String, String)>,
}

/// Puts a program's text together.
///
/// Each file comes in once, where it is first included. `#line` keeps the compiler's messages pointing at
/// `kernels/FILE`, and at `instantiation` for the text at the end.
///
/// # Errors
/// [`Error::InvalidPlan`] if a file is not among those in `kernels/`; [`Error::KernelsDirectory`] as [`sources_digest`].
pub(crate) fn flatten(program: &Program) -> Result<Flattened> {
    flatten_from(kernels()?, program)
}

fn flatten_from(kernels: &[File], program: &Program) -> Result<Flattened> {
    let mut flattened = Flattened { text: String::new(), files: Vec::new() };
    for header in [program.header].iter().chain(&program.others).filter(|header| !header.is_empty()) {
        include(kernels, program, header, "the plan", &mut flattened)?;
    }
    flattened.text.push_str(&format!("#line 1 \"{INSTANTIATION}\"\n"));
    flattened.text.push_str(&program.instantiation);
    flattened.text.push('\n');
    Ok(flattened)
}

fn include(kernels: &[File], program: &Program, name: &str, from: &str, out: &mut Flattened) -> Result<()> {
    if out.files.iter().any(|(known, _)| known == name) {
        return Ok(());
    }
    let file = || kernels.iter().find(|(known, _)| *known == name).map(|(_, text)| &**text);
    let generated = (name == device_struct::HEADER).then_some(program.arguments.as_str());
    let Some(text) = generated.or_else(file) else {
        return Err(Error::InvalidPlan {
            entry: program.entry.to_string(),
            header: program.header.to_string(),
            because: format!("{from} includes {name:?}, which is not in kernels/"),
        });
    };
    out.files.push((name.to_string(), blake3::hash(text.as_bytes()).to_hex().to_string()));
    out.text.push_str(&format!("#line 1 \"kernels/{name}\"\n"));
    for (number, line) in text.lines().enumerate() {
        match included(line) {
            Some(inner) => {
                include(kernels, program, inner, name, out)?;
                out.text.push_str(&format!("#line {} \"kernels/{name}\"", number + 2));
            }
            // Each file comes in once anyway, and compilers warn about the pragma in a main file.
            None if line.trim() == "#pragma once" => {}
            None => out.text.push_str(line),
        }
        out.text.push('\n');
    }
    Ok(())
}

/// The file that a line of the form `#include "file"` names.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?.trim_start();
    rest.strip_prefix('"')?.split('"').next()
}

/// The first place in a compiler's log where it found an error: `kernels/portable.cuh:12`.
///
/// NVRTC writes `file(12): error:`, clang writes `file:12:5: error:`.
pub(crate) fn first_error(log: &str) -> Option<String> {
    log.lines().filter(|line| line.contains("error")).find_map(|line| {
        let start = line.find("kernels/").or_else(|| line.find(INSTANTIATION))?;
        let place = &line[start..];
        let file = &place[..place.find(['(', ':'])?];
        let digits: String = place[file.len() + 1..].chars().take_while(char::is_ascii_digit).collect();
        (!digits.is_empty()).then(|| format!("{file}:{digits}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: &[File] = &[
        (Cow::Borrowed("base.cuh"), Cow::Borrowed("#pragma once\nint base;\n")),
        (
            Cow::Borrowed("left.cuh"),
            Cow::Borrowed("#pragma once\n#include \"base.cuh\"\n#include \"arguments.cuh\"\nint left;\n"),
        ),
        (
            Cow::Borrowed("top.cuh"),
            Cow::Borrowed("#include \"left.cuh\"\n  #  include \"base.cuh\"\nint top;\n"),
        ),
        (Cow::Borrowed("broken.cuh"), Cow::Borrowed("#include \"absent.cuh\"\n")),
    ];

    fn program(header: &'static str) -> Program {
        let arguments = "#pragma once\nint arguments;\n".to_string();
        Program { header, others: Vec::new(), arguments, instantiation: "int last;".to_string(), entry: "e" }
    }

    #[test]
    fn each_file_comes_in_once_and_lines_keep_their_numbers() {
        let flattened = flatten_from(FILES, &program("top.cuh")).unwrap();
        let names: Vec<_> = flattened.files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["top.cuh", "left.cuh", "base.cuh", "arguments.cuh"]);

        // Follow the `#line` directives, as a compiler does.
        let (mut file, mut line, mut places) = (String::new(), 0, Vec::new());
        for text in flattened.text.lines() {
            if let Some(rest) = text.strip_prefix("#line ") {
                let (number, name) = rest.split_once(' ').unwrap();
                (line, file) = (number.parse::<u32>().unwrap(), name.trim_matches('"').to_string());
                continue;
            }
            if text.starts_with("int") {
                places.push(format!("{text} {file}:{line}"));
            }
            line += 1;
        }
        assert_eq!(
            places,
            [
                "int base; kernels/base.cuh:2",
                "int arguments; kernels/arguments.cuh:2",
                "int left; kernels/left.cuh:4",
                "int top; kernels/top.cuh:3",
                "int last; instantiation:1"
            ]
        );
    }

    #[test]
    fn a_file_that_is_not_there_is_named_with_the_one_that_wants_it() {
        for header in ["broken.cuh", "nowhere.cuh"] {
            let error = flatten_from(FILES, &program(header)).unwrap_err().to_string();
            assert!(error.contains("is not in kernels/") && error.contains(header), "{error}");
        }
    }

    #[test]
    fn a_folder_stands_for_what_was_built_in() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read_folder(folder.path()).unwrap_err().contains("holds no .cuh file"));
        std::fs::write(folder.path().join("notes.md"), "not device code").unwrap();
        for (name, text) in FILES {
            std::fs::write(folder.path().join(&**name), &**text).unwrap();
        }
        let read = read_folder(folder.path()).unwrap();
        let names: Vec<_> = read.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["base.cuh", "broken.cuh", "left.cuh", "top.cuh"]);
        let text = |files: &[File]| flatten_from(files, &program("top.cuh")).unwrap().text;
        assert_eq!(text(&read), text(FILES));
        let absent = read_folder(&folder.path().join("absent")).unwrap_err();
        assert!(absent.contains("absent: No such file"), "{absent}");
    }

    #[test]
    fn every_kernel_flattens() {
        for (name, _) in KERNELS {
            let text = flatten(&program(name)).unwrap().text;
            assert!(!text.contains("#include \""), "{name}");
        }
    }

    #[test]
    fn positions_are_read_from_both_compilers() {
        let nvrtc = "kernels/a.cuh(7): warning #1: x\nkernels/portable.cuh(12): error: identifier \"y\" is undefined\n";
        assert_eq!(first_error(nvrtc).as_deref(), Some("kernels/portable.cuh:12"));
        let clang = "In file included from x:1:\ninstantiation:3:17: error: unknown type name 'flaot'\n";
        assert_eq!(first_error(clang).as_deref(), Some("instantiation:3"));
        assert_eq!(first_error("1 error detected\n"), None);
    }
}
