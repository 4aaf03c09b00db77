//! Compiled kernels: many to a translation unit, kept as files and found again by what they were made of.

use std::collections::HashMap;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use causeway::backend::gpu::artifact::Artifact;
use causeway::backend::gpu::compiler::Program;
use causeway::backend::gpu::plan::Plan;
use causeway::{Error, Result};
use libloading::Library;
use rayon::prelude::*;

use crate::LaunchFunction;
use crate::compiler::Compiler;
use crate::edit::Change;
use crate::kept::{digest_of, file_error, seal_path, trust, trusted};

/// Kernels of one unit: the headers are parsed once for all, and a core is busy for two or three seconds.
const KERNELS_OF_A_UNIT: usize = 16;

/// A loaded kernel.
#[derive(Clone)]
pub(crate) struct Kernel {
    pub launch: LaunchFunction,
    pub call: unsafe extern "C" fn(*const c_void),
    /// Size of the kernel's one parameter.
    pub argument_bytes: usize,
    object: Arc<Object>,
}

/// A shared object that is open.
struct Object {
    path: PathBuf,
    digest: blake3::Hash,
    /// True if this process compiled it.
    compiled: bool,
    _library: Library,
}

/// `causeway_simulated_kernels` of a unit has an entry for each of its kernels, `causeway_simulated_kernel_count` in all.
#[repr(C)]
#[derive(Clone, Copy)]
struct TableEntry {
    call: unsafe extern "C" fn(*const c_void),
    argument_bytes: u64,
}

/// Every kernel that has been loaded, by its key.
#[derive(Default)]
pub(crate) struct Modules {
    loaded: Mutex<HashMap<String, Kernel>>,
    change: Change,
    /// Objects that were refused. The loader knows objects by name, so those that come after have other names.
    refused: AtomicU32,
}

/// A kernel that has to be compiled.
struct Wanted {
    key: String,
    program: Program,
}

impl Modules {
    /// Kernels whose text is changed before it is compiled.
    pub fn changed(change: Change) -> Self {
        Modules { change, ..Modules::default() }
    }

    fn key(&self, compiler: &Compiler, plan: &Plan) -> Result<String> {
        Ok(compiler.key(&self.change.apply(Program::of(&plan.choice).text()?)?))
    }

    /// The kernel of a plan.
    pub fn get(&self, compiler: &Compiler, plan: &Plan) -> Result<Kernel> {
        let key = self.key(compiler, plan)?;
        let find = || self.loaded.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(kernel) = find() {
            return Ok(kernel);
        }
        self.prepare(compiler, std::slice::from_ref(plan))?;
        find()
            .ok_or_else(|| Error::SimulatorCompiler { message: format!("{} was not compiled", plan.entry()) })
    }

    /// Loads the kernels of these plans, and compiles those that no file holds, several units at a time.
    pub fn prepare(&self, compiler: &Compiler, plans: &[Plan]) -> Result<()> {
        let mut wanted: HashMap<String, Wanted> = HashMap::new();
        for plan in plans {
            let key = self.key(compiler, plan)?;
            wanted.entry(key.clone()).or_insert_with(|| Wanted { key, program: Program::of(&plan.choice) });
        }
        let mut wanted: Vec<_> =
            wanted.into_values().filter(|kernel| !self.load_known(compiler, &kernel.key)).collect();
        // The same units from the same suite, whatever order a map has.
        let headers = |wanted: &Wanted| (wanted.program.header, wanted.program.others.clone());
        wanted.sort_by_cached_key(|wanted| (headers(wanted), wanted.key.clone()));
        let units: Vec<_> = wanted
            .chunk_by(|a, b| headers(a) == headers(b))
            .flat_map(|of_header| of_header.chunks(KERNELS_OF_A_UNIT))
            .collect();
        units.par_iter().try_for_each(|unit| self.compile(compiler, unit))
    }

    /// True if the kernel is loaded, or has been found in a file.
    fn load_known(&self, compiler: &Compiler, key: &str) -> bool {
        if self.loaded.lock().unwrap_or_else(PoisonError::into_inner).contains_key(key) {
            return true;
        }
        let Ok(note) = std::fs::read_to_string(note_path(compiler, key)) else { return false };
        let Some((object, keys)) = read_note(&note) else { return false };
        if !keys.contains(&key) {
            return false;
        }
        let path = compiler.folder().join(object);
        // A unit that is not what was compiled, or cannot be loaded any more, is made again.
        trusted(&path).is_some_and(|digest| self.load(&path, digest, false, &keys).is_ok())
    }

    fn compile(&self, compiler: &Compiler, unit: &[Wanted]) -> Result<()> {
        let text = self.change.apply(unit_text(unit)?)?;
        let object = match self.refused.load(Ordering::Relaxed) {
            0 => format!("{}.so", compiler.key(&text)),
            refused => format!("{}-{}-{refused}.so", compiler.key(&text), std::process::id()),
        };
        let path = compiler.folder().join(&object);
        let keys: Vec<_> = unit.iter().map(|kernel| kernel.key.as_str()).collect();
        // One that is as it was compiled may still be no good, as when it was linked with a damaged runtime.
        let known = trusted(&path).is_some_and(|digest| self.load(&path, digest, false, &keys).is_ok());
        if !known {
            compiler.shared_object(&text, &path, unit[0].program.entry)?;
            self.load(&path, trust(&path)?, true, &keys)?;
        }
        // Each kernel's note says in which object it is, and beside which others.
        let note = note_text(&object, &keys);
        keys.iter().try_for_each(|key| {
            let path = note_path(compiler, key);
            causeway::files::write_bytes(&path, note.as_bytes())
                .map_err(|error| file_error(&path.display().to_string(), &std::io::Error::other(error)))
        })
    }

    /// Reads the object of a plan's kernel again, refuses one that is not what was loaded, and makes its kernel anew.
    pub fn check(&self, compiler: &Compiler, plan: &Plan, compiler_name: &str) -> Result<Artifact> {
        let mut kernel = self.get(compiler, plan)?;
        let mut refused = Vec::new();
        if digest_of(&kernel.object.path).ok() != Some(kernel.object.digest) {
            let path = kernel.object.path.clone();
            refused.push(format!("{}: its digest does not match", path.display()));
            self.refused.fetch_add(1, Ordering::Relaxed);
            let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
            loaded.retain(|_, other| other.object.path != path);
            drop(loaded);
            // It may be gone already.
            let _ = std::fs::remove_file(&path);
            let _ = std::fs::remove_file(seal_path(&path));
            kernel = self.get(compiler, plan)?;
        }
        let object = &kernel.object;
        let source_digest = blake3::hash(self.change.apply(Program::of(&plan.choice).text()?)?.as_bytes())
            .to_hex()
            .to_string();
        Ok(Artifact {
            id: Artifact::id_of(&source_digest),
            entry: plan.entry().to_string(),
            header: plan.header().to_string(),
            instantiation: plan.choice.source(),
            source_digest,
            compiler: compiler_name.to_string(),
            cache_key: Some(self.key(compiler, plan)?),
            file: Some(object.path.display().to_string()),
            digest: object.digest.to_hex().to_string(),
            bytes: object.path.metadata().map_or(0, |metadata| metadata.len()),
            compiled: object.compiled,
            checks: 1,
            refused,
        })
    }

    fn load(&self, path: &Path, digest: blake3::Hash, compiled: bool, keys: &[&str]) -> Result<()> {
        let failed = |error: libloading::Error| Error::SimulatorCompiler { message: error.to_string() };
        // SAFETY: the object was made by `Modules::compile`; its only initialisers are those of the C++ runtime.
        let library = unsafe { Library::new(path) }.map_err(failed)?;
        // SAFETY: runtime/simulator.cpp and `unit_text` define these names with these types, and the library stays open
        // as long as any of its kernels.
        let (launch, table, count) = unsafe {
            let launch = *library.get::<LaunchFunction>(b"causeway_simulator_launch").map_err(failed)?;
            let table = *library.get::<*const TableEntry>(b"causeway_simulated_kernels").map_err(failed)?;
            let count = *library.get::<*const u64>(b"causeway_simulated_kernel_count").map_err(failed)?;
            (launch, table, *count)
        };
        // What says which kernels these are is another file than the object.
        if count != keys.len() as u64 {
            let message = format!("{} has {count} kernels, not {}", path.display(), keys.len());
            return Err(Error::SimulatorCompiler { message });
        }
        // SAFETY: the table has so many entries, as the unit itself says.
        let table = unsafe { std::slice::from_raw_parts(table, keys.len()) };
        let object = Arc::new(Object { path: path.to_path_buf(), digest, compiled, _library: library });
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, entry) in keys.iter().zip(table) {
            loaded.entry((*key).to_string()).or_insert_with(|| Kernel {
                launch,
                call: entry.call,
                argument_bytes: entry.argument_bytes as usize,
                object: object.clone(),
            });
        }
        Ok(())
    }
}

fn note_path(compiler: &Compiler, key: &str) -> std::path::PathBuf {
    compiler.folder().join(format!("{key}.note"))
}

/// A note: the object's name, the keys of its kernels in the order of its table, and a digest of these lines.
fn note_text(object: &str, keys: &[&str]) -> String {
    let facts = format!("{object}\n{}", keys.join("\n"));
    format!("{facts}\n{}\n", blake3::hash(facts.as_bytes()).to_hex())
}

/// The object's name and the keys, if the note is as it was written: with other keys another kernel would run.
fn read_note(text: &str) -> Option<(&str, Vec<&str>)> {
    let (facts, digest) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    if blake3::hash(facts.as_bytes()).to_hex().as_str() != digest {
        return None;
    }
    let mut lines = facts.lines();
    Some((lines.next()?, lines.collect()))
}

/// One translation unit: the headers, each kernel in a namespace of its own, and a table of them.
fn unit_text(unit: &[Wanted]) -> Result<String> {
    let header = Program { instantiation: String::new(), ..unit[0].program.clone() };
    let mut text = header.text()?;
    let mut table = String::new();
    for (number, kernel) in unit.iter().enumerate() {
        let Program { instantiation, entry, .. } = &kernel.program;
        text.push_str(&format!(
            "namespace kernel_{number} {{\n#line 1 \"instantiation\"\n{instantiation}\n\
             void call(const void* bytes) {{ causeway_simulated::call(&{entry}, bytes); }}\n}}\n"
        ));
        table.push_str(&format!(
            "{{&kernel_{number}::call, causeway_simulated::argument_bytes(&kernel_{number}::{entry})}},\n"
        ));
    }
    Ok(format!(
        "{CALLS}{text}#line 1 \"table\"\nextern \"C\" const causeway_simulated::Kernel \
                causeway_simulated_kernels[] = {{\n{table}}};\n\
                extern \"C\" const unsigned long long causeway_simulated_kernel_count = {};\n",
        unit.len()
    ))
}

/// Calls a kernel by the bytes of its argument.
const CALLS: &str = r#"#line 1 "calls"
namespace causeway_simulated {
struct Kernel {
    void (*call)(const void*);
    unsigned long long argument_bytes;
};
template <typename A> constexpr unsigned long long argument_bytes(void (*)(A)) { return sizeof(A); }
template <typename A> void call(void (*kernel)(A), const void* bytes) {
    A arguments;
    __builtin_memcpy(&arguments, bytes, sizeof(A));
    kernel(arguments);
}
}  // namespace causeway_simulated
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_were_written_or_not_at_all() {
        let note = note_text("unit.so", &["first", "second"]);
        assert_eq!(read_note(&note), Some(("unit.so", vec!["first", "second"])));
        for end in 0..note.len() {
            assert_eq!(read_note(&note[..end]), None, "{end} bytes of it");
        }
        let swapped = note.replace("first\nsecond", "second\nfirst");
        let longer = note.replace("second\n", "second\nthird\n");
        let undigested = "unit.so\nfirst\nsecond\n".to_string();
        for other in [swapped, longer, undigested] {
            assert_eq!(read_note(&other), None, "{other}");
        }
    }
}
