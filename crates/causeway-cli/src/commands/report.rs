//! `causeway report`: saved runs as a page, and saved runs checked again.

use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

use causeway::files;
use causeway_verify::evidence::html::{self, Source};
use causeway_verify::evidence::{self, Content, Mismatch, Report};

use crate::failure::Failure;
use crate::table::{FAIL, PASS, WARN};
use crate::{VERSION, terminal};

const NOTES: &str = "\
Examples:
  causeway verify --report out/ && causeway bench --save bench.json
  causeway report out/run.json bench.json --out report.html
  causeway report bench.json --compare before.json --out report.html
  causeway report --check out/run.json bench.json
  causeway report --check docs/reports/

The page is one file that loads nothing: summary, evidence and non-claims, errors against their bounds, speed \
against the floor and against another run, device, program and kernels with their digests.

--check reads reports again: the digest of their facts, whether every case that was asked for is there, and whether \
verdicts and sentences follow from the facts. Saved bench runs of format 1 have no digest.

Exit status:
  0  the page is written; with --check, every report is as it was written
  1  with --check: a report was changed, is not complete, contradicts itself, or has no digest
  2  a file cannot be read, or is no report";

/// Saved runs as one self-contained page, or checked again
#[derive(Debug, clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    /// Reports: run.json of `verify --report`, or what `bench --save` wrote; of a folder, all .json files in it and in its folders
    #[arg(value_name = "FILE|FOLDER", required = true)]
    files: Vec<PathBuf>,

    /// Write the page to this file: .html, or .md for Markdown
    #[arg(long, value_name = "FILE", required_unless_present_any = ["check", "json"])]
    out: Option<PathBuf>,

    /// A saved bench run to stand beside those on the page
    #[arg(long, value_name = "FILE", requires = "out")]
    compare: Option<PathBuf>,

    /// Check the reports; exit status 1 if one is not sound
    #[arg(long)]
    check: bool,

    /// Print what the check found as JSON
    #[arg(long, requires = "check")]
    json: bool,
}

/// What was found of one file.
#[derive(serde::Serialize)]
struct Finding {
    file: String,
    title: String,
    mismatches: Vec<String>,
}

/// Writes the page, checks, or both.
pub(crate) fn execute(args: &Args) -> Result<(), Failure> {
    let (mut given, mut paths, mut sources) = (Vec::new(), Vec::new(), Vec::<Source>::new());
    args.files.iter().try_for_each(|path| add(path, &mut given))?;
    let count = given.len();
    for path in given {
        match read(&path) {
            Ok(source) => {
                paths.push(path);
                sources.push(source);
            }
            // The others are checked all the same.
            Err(failure) if args.check => drop(failure.report()),
            Err(failure) => return Err(failure),
        }
    }
    let before = args.compare.as_deref().map(read).transpose()?;
    if let Some(before) = before.as_ref().filter(|b| !matches!(b.report.content, Content::Benchmark(_))) {
        let message = format!("--compare is {}: it is {:?}", before.file, before.report.title());
        return Err(
            Failure::input(message).with_help("`causeway bench --save FILE` writes a run to compare with")
        );
    }
    if let Some(out) = &args.out {
        let inputs = paths.iter().chain(&args.compare);
        let is_input =
            |path: &PathBuf| matches!((path.canonicalize(), out.canonicalize()), (Ok(a), Ok(b)) if a == b);
        if let Some(input) = inputs.into_iter().find(|path| is_input(path)) {
            let message =
                format!("--out is {}: it would replace the report that it is made of", input.display());
            return Err(Failure::input(message).with_help("name another file, such as report.html"));
        }
        expect_page(out)?;
        let page = match out.extension().is_some_and(|extension| extension == "md") {
            true if before.is_some() => {
                let message = format!("--compare is for a page in HTML: --out is {}", out.display());
                return Err(Failure::input(message).with_help("name the page report.html"));
            }
            true => sources.iter().map(|source| source.report.to_markdown()).collect::<Vec<_>>().join("\n"),
            false => html::page(&sources, before.as_ref()),
        };
        files::write_bytes(out, page.as_bytes())?;
        if !args.json {
            terminal::print(&format!("report: {}", out.display()))?;
        }
    }
    let mut files = paths.iter().zip(&sources);
    if !args.check {
        let mut unsound = files.filter(|(_, source)| !source.mismatches.is_empty());
        return unsound.try_for_each(|(path, source)| print(path, source));
    }
    if args.json {
        let findings: Vec<_> = files.map(|(path, source)| finding(path, source)).collect();
        terminal::print_json(&findings)?;
    } else {
        files.try_for_each(|(path, source)| print(path, source))?;
    }
    if sources.len() < count {
        let unread = count - sources.len();
        return Err(Failure::input(format!("{unread} of {count} files are no reports that can be read")));
    }
    let sound = sources.iter().all(|source| source.mismatches.is_empty());
    if sound { Ok(()) } else { Err(Failure::Negative) }
}

/// Makes the directory of a report.
pub(super) fn make_directory(directory: &Path) -> Result<(), Failure> {
    fs::create_dir_all(directory).map_err(|error| {
        let message = match directory.exists() && !directory.is_dir() {
            true => format!("--report is {}: it is a file", directory.display()),
            false => format!("--report is {}: {error}", directory.display()),
        };
        Failure::input(message).with_help("name a directory, which may be new")
    })
}

/// Writes a report to a directory, as JSON, Markdown and a page.
pub(super) fn write(directory: &Path, report: &Report) -> Result<(), Failure> {
    make_directory(directory)?;
    let source = Source { file: "run.json".to_string(), report: report.clone(), mismatches: Vec::new() };
    let page = html::page(&[source], None);
    for (name, text) in
        [("run.json", report.to_json()), ("report.md", report.to_markdown()), ("report.html", page)]
    {
        files::write_bytes(&directory.join(name), text.as_bytes())?;
    }
    Ok(())
}

/// A page has a name that says which of the two kinds it is.
fn expect_page(out: &Path) -> Result<(), Failure> {
    let known = ["html", "htm", "md"];
    match out.extension() {
        Some(extension) if !known.iter().any(|known| extension == *known) => Err(Failure::input(format!(
            "--out is {}: expected a name that ends in .html or .md",
            out.display()
        ))),
        _ => Ok(()),
    }
}

/// Adds a file, or the reports of a folder and of those in it, in the order of their names.
fn add(path: &Path, reports: &mut Vec<PathBuf>) -> Result<(), Failure> {
    if !path.is_dir() {
        reports.push(path.to_path_buf());
        return Ok(());
    }
    let before = reports.len();
    add_folder(path, reports).map_err(|error| Failure::input(format!("{}: {error}", path.display())))?;
    if reports.len() == before {
        let message = format!("{}: this folder has no report, which is a .json file", path.display());
        return Err(Failure::input(message).with_help("`causeway verify --report DIR` writes DIR/run.json"));
    }
    Ok(())
}

fn add_folder(folder: &Path, reports: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(DirEntry::path);
    for entry in entries {
        // A link to a folder is none here, so that there is an end.
        if entry.file_type()?.is_dir() {
            add_folder(&entry.path(), reports)?;
        } else if entry.path().extension().is_some_and(|extension| extension == "json") {
            reports.push(entry.path());
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Source, Failure> {
    let file = path.display().to_string();
    let text = evidence::text(path)?;
    let (report, mismatches) = evidence::check(&text, &file, VERSION)?;
    // A page is for others, who have other directories.
    let file = path.file_name().map_or(file, |name| name.to_string_lossy().into_owned());
    Ok(Source { file, report, mismatches })
}

fn finding(path: &Path, source: &Source) -> Finding {
    let mismatches = source.mismatches.iter().map(Mismatch::to_string).collect();
    Finding { file: path.display().to_string(), title: source.report.title(), mismatches }
}

fn print(path: &Path, source: &Source) -> Result<(), Failure> {
    let verdict = match source.mismatches.as_slice() {
        [] => format!("{PASS}sound{PASS:#}"),
        [Mismatch::NoDigest] => format!("{WARN}not sealed{WARN:#}"),
        _ => format!("{FAIL}NOT SOUND{FAIL:#}"),
    };
    terminal::print(&format!("{}: {verdict} ({})", path.display(), source.report.title()))?;
    source.mismatches.iter().try_for_each(|line| terminal::print(&format!("  {line}")))
}
