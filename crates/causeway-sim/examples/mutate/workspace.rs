//! A copy of the workspace, with mutants in its planners, and what it builds.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::kernels::root;
use super::schemata::{Numbered, Planner, SWITCH, rewrite};

/// Where planners lie.
const PLANNERS: &str = "crates/causeway/src/backend/gpu/causal_conv1d";

/// What the program needs.
const COPIED: [&str; 3] = ["Cargo.lock", "kernels", "suites"];

/// The packages that it is built from.
const PACKAGES: [&str; 3] = ["crates/causeway", "crates/causeway-sim", "crates/causeway-verify"];

/// What was built.
pub struct Built {
    /// This program, with the mutants in it.
    pub program: PathBuf,
    /// The tests of the planners' crate.
    pub tests: PathBuf,
}

/// The planners, without their tests.
pub fn planners() -> Result<Vec<Planner>, String> {
    let mut planners = Vec::new();
    read(&root().join(PLANNERS), "", &mut planners)?;
    planners.sort_by(|a, b| a.file.cmp(&b.file));
    Ok(planners)
}

/// Adds the planners of a folder, and of those in it.
fn read(folder: &Path, prefix: &str, planners: &mut Vec<Planner>) -> Result<(), String> {
    for entry in folder.read_dir().map_err(|error| format!("{}: {error}", folder.display()))? {
        let path = entry.map_err(|error| error.to_string())?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = format!("{prefix}{name}");
        if path.is_dir() {
            read(&path, &format!("{file}/"), planners)?;
        } else if is_planner(&file) {
            let text = std::fs::read_to_string(&path).map_err(|error| format!("{file}: {error}"))?;
            let source = super::rust_edits::read(&text).map_err(|error| format!("{file}: {error}"))?;
            planners.push(Planner { file, text, source });
        }
    }
    Ok(())
}

/// Tests are none.
fn is_planner(file: &str) -> bool {
    file.ends_with(".rs") && !file.ends_with("tests.rs")
}

/// Builds the mutants. Those that do not compile are put into `stillborn`, and the others are built without them.
pub fn build(
    folder: &Path,
    planners: &[Planner],
    mutants: &[Numbered],
    stillborn: &mut BTreeSet<usize>,
) -> Result<Built, String> {
    let workspace = folder.join("workspace");
    for name in COPIED.into_iter().chain(PACKAGES) {
        copy(&root().join(name), &workspace.join(name))?;
    }
    write(&workspace.join("Cargo.toml"), manifest()?.as_bytes())?;
    loop {
        let alive: Vec<_> =
            mutants.iter().filter(|mutant| !stillborn.contains(&mutant.number)).cloned().collect();
        let mut places = Vec::new();
        for (number, planner) in planners.iter().enumerate() {
            let mut rewritten = rewrite(planners, number, &alive);
            if planner.file == "mod.rs" {
                rewritten.text.push_str(SWITCH);
            }
            let path = Path::new(PLANNERS).join(&planner.file);
            write(&workspace.join(&path), rewritten.text.as_bytes())?;
            places.extend(rewritten.places.into_iter().map(|(bytes, number)| (path.clone(), bytes, number)));
        }
        let library =
            Artifact { arguments: &["test", "--no-run", "-p", "causeway", "--lib"], name: "causeway" };
        let program =
            Artifact { arguments: &["build", "-p", "causeway-sim", "--example", "mutate"], name: "mutate" };
        let built = library
            .build(&workspace)
            .and_then(|tests| program.build(&workspace).map(|program| Built { program, tests }));
        let errors = match built {
            Ok(built) => return Ok(built),
            Err(errors) => errors,
        };
        let before = stillborn.len();
        for (path, bytes) in &errors.places {
            let guilty = places
                .iter()
                .filter(|(of, own, _)| of == path && own.start <= bytes.start && bytes.end <= own.end);
            stillborn.extend(guilty.map(|(.., number)| *number));
        }
        if stillborn.len() == before {
            return Err(format!("the copy in {} does not compile:\n{}", workspace.display(), errors.text));
        }
    }
}

/// Errors of a compiler: in which files, at which bytes.
struct Errors {
    places: Vec<(PathBuf, std::ops::Range<usize>)>,
    text: String,
}

struct Artifact<'a> {
    arguments: &'a [&'a str],
    name: &'a str,
}

impl Artifact<'_> {
    fn build(&self, workspace: &Path) -> Result<PathBuf, Errors> {
        let failed = |text: String| Errors { places: Vec::new(), text };
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(self.arguments)
            .args(["--release", "--offline", "--quiet", "--message-format=json"])
            .current_dir(workspace)
            .env("CARGO_TARGET_DIR", workspace.join("target"))
            // Checked as in the tests' profile: an overflow is noticed there.
            .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true")
            .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            .env("CARGO_INCREMENTAL", "1")
            // Constants that a mutant divides by zero with are for the run to notice.
            .env("RUSTFLAGS", "--cap-lints=warn")
            .stderr(Stdio::piped())
            .output()
            .map_err(|error| failed(error.to_string()))?;
        let (mut program, mut errors) = (None, failed(String::from_utf8_lossy(&output.stderr).into_owned()));
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
            let of_this = message["target"]["name"] == self.name;
            if let Some(path) = message["executable"].as_str().filter(|_| of_this) {
                program = Some(PathBuf::from(path));
            }
            if message["message"]["level"] != "error" {
                continue;
            }
            errors.text.push_str(message["message"]["rendered"].as_str().unwrap_or_default());
            let spans = message["message"]["spans"].as_array().cloned().unwrap_or_default();
            for span in spans.iter().filter(|span| span["is_primary"] == true) {
                let byte = |name: &str| span[name].as_u64().unwrap_or(0) as usize;
                let file = PathBuf::from(span["file_name"].as_str().unwrap_or_default());
                errors.places.push((file, byte("byte_start")..byte("byte_end")));
            }
        }
        program.filter(|_| output.status.success()).ok_or(errors)
    }
}

/// The workspace's manifest with the copied members alone.
fn manifest() -> Result<String, String> {
    let path = root().join("Cargo.toml");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut manifest: toml::Table = toml::from_str(&text).map_err(|error| error.to_string())?;
    let members = PACKAGES.map(toml::Value::from).to_vec();
    let workspace = manifest.get_mut("workspace").and_then(toml::Value::as_table_mut);
    let workspace = workspace.ok_or("Cargo.toml has no workspace")?;
    workspace.insert("members".to_string(), members.into());
    workspace.remove("default-members");
    toml::to_string(&manifest).map_err(|error| error.to_string())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", from.display());
    if !from.is_dir() {
        // Planners are written with their mutants.
        let to_planners = to.to_string_lossy().contains(PLANNERS) && is_planner(&to.to_string_lossy());
        return if to_planners { Ok(()) } else { write(to, &std::fs::read(from).map_err(failed)?) };
    }
    for entry in from.read_dir().map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        copy(&from.join(&name), &to.join(&name))?;
    }
    Ok(())
}

/// Writes what is not there already: cargo builds what is newer than its result.
fn write(to: &Path, bytes: &[u8]) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", to.display());
    if std::fs::read(to).is_ok_and(|known| known == bytes) {
        return Ok(());
    }
    std::fs::create_dir_all(to.parent().unwrap_or(to)).map_err(failed)?;
    std::fs::write(to, bytes).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planners_are_read_and_have_many_edits() {
        let planners = planners().unwrap();
        let files: Vec<_> = planners.iter().map(|planner| planner.file.as_str()).collect();
        assert!(files.contains(&"backward/channel_first.rs") && files.contains(&"mod.rs"));
        assert!(!files.iter().any(|file| file.contains("tests")));
        let edits: usize = planners.iter().map(|planner| planner.source.edits.len()).sum();
        assert!(edits > 800, "{edits}");
    }

    #[test]
    fn the_copy_has_only_the_packages_it_needs() {
        let manifest: toml::Table = toml::from_str(&manifest().unwrap()).unwrap();
        let workspace = &manifest["workspace"];
        assert_eq!(workspace["members"].as_array().unwrap().len(), PACKAGES.len());
        assert!(workspace["dependencies"].as_table().unwrap().contains_key("toml"));
    }
}
