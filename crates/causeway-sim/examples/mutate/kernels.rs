//! The device code that is mutated: its files, which of their lines count, and the edits of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use causeway_sim::Patch;

use super::cpp_edits;

/// What the convolution's kernels include, in this order, before the kernels themselves.
const BASES: [&str; 4] = ["portable.cuh", "portable_memory.cuh", "vector.cuh", "reduction.cuh"];

/// What tells a build: on a GPU, and in the simulator.
const GPU_BUILDS: [&[&str]; 4] = [
    &["-D__CUDACC__", "-D__CUDA_ARCH__=900"],
    &["-D__CUDACC__", "-D__CUDA_ARCH__=750"],
    &["-D__AMDGCN__", "-DCAUSEWAY_WAVE_SIZE=32"],
    &["-D__AMDGCN__", "-DCAUSEWAY_WAVE_SIZE=64"],
];
const SIMULATOR_BUILDS: [&[&str]; 2] = [
    &["-DCAUSEWAY_HOST_SIMULATION", "-DCAUSEWAY_WAVE_SIZE=32", "-DCAUSEWAY_ASYNC_COPY"],
    &["-DCAUSEWAY_HOST_SIMULATION", "-DCAUSEWAY_WAVE_SIZE=64"],
];

/// A file of device code.
pub struct Kernel {
    /// In `kernels/`.
    pub file: String,
    /// All of it.
    pub text: String,
    /// Lines, from 1, that both a GPU's compiler and the simulator's see.
    pub lines: BTreeSet<usize>,
    /// Whether only what cases execute counts: the file serves other kernels too.
    pub shared: bool,
}

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Kernel {
    /// The files of the convolution.
    pub fn all() -> Result<Vec<Kernel>, String> {
        let folder = root().join("kernels");
        let listed = folder.read_dir().map_err(|error| format!("{}: {error}", folder.display()))?;
        let names = listed.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
        let mut own: Vec<_> =
            names.filter(|name| name.starts_with("causal_conv1d") && name.ends_with(".cuh")).collect();
        own.sort();
        let mut kernels = Vec::new();
        for file in BASES.iter().map(ToString::to_string).chain(own) {
            let text = std::fs::read_to_string(folder.join(&file)).map_err(|e| format!("{file}: {e}"))?;
            let shared = BASES.contains(&file.as_str());
            kernels.push(Kernel { file, text, lines: BTreeSet::new(), shared });
        }
        let on_gpu = seen(&kernels, &GPU_BUILDS)?;
        let simulated = seen(&kernels, &SIMULATOR_BUILDS)?;
        for kernel in &mut kernels {
            let [gpu, simulator] = [&on_gpu, &simulated].map(|seen| seen.get(&kernel.file));
            if let (Some(gpu), Some(simulator)) = (gpu, simulator) {
                kernel.lines = gpu & simulator;
            }
        }
        Ok(kernels)
    }

    /// The line of a byte, from 1.
    pub fn line(&self, byte: usize) -> usize {
        self.text[..byte].matches('\n').count() + 1
    }

    /// A change of this file.
    pub fn patch(&self, bytes: std::ops::Range<usize>, wrong: &str) -> Patch {
        Patch::at(&self.file, &self.text, bytes, wrong)
    }

    /// Every edit that may be drawn, with the byte where it is.
    pub fn edits(&self) -> Vec<(usize, Patch)> {
        let edits = cpp_edits::edits(&self.text).into_iter();
        let patches = edits.map(|edit| (edit.bytes.start, self.patch(edit.bytes, &edit.wrong)));
        patches.filter(|(_, patch)| self.lines.contains(&patch.line)).collect()
    }
}

/// The lines of each file that compilers see in any of these builds.
fn seen(kernels: &[Kernel], builds: &[&[&str]]) -> Result<BTreeMap<String, BTreeSet<usize>>, String> {
    let (compiler, _) = causeway_sim::compiler().map_err(|error| error.to_string())?;
    // Each file comes in once, as where programs are put together.
    let mut text = String::new();
    for kernel in kernels {
        text.push_str(&format!("#line 1 \"{}\"\n", kernel.file));
        for line in kernel.text.lines() {
            let left_out = line.starts_with("#include") || line.starts_with("#pragma once");
            text.push_str(if left_out { "" } else { line });
            text.push('\n');
        }
    }
    let source = tempfile::Builder::new().suffix(".cpp").tempfile().map_err(|error| error.to_string())?;
    std::fs::write(source.path(), text).map_err(|error| error.to_string())?;
    let mut lines: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for macros in builds {
        let output = Command::new(&compiler)
            .args(["-E", "-x", "c++"])
            .args(*macros)
            .arg(source.path())
            .output()
            .map_err(|error| format!("{}: {error}", compiler.display()))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let (mut file, mut number) = (String::new(), 0);
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            // # 12 "portable.cuh" 2
            if let Some((first, rest)) = line.strip_prefix("# ").and_then(|rest| rest.split_once(' ')) {
                file = rest.split('"').nth(1).unwrap_or_default().to_string();
                number = first.parse().unwrap_or(0);
                continue;
            }
            if !line.trim().is_empty() {
                lines.entry(file.clone()).or_default().insert(number);
            }
            number += 1;
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_of_lines_that_both_see() {
        let kernels = Kernel::all().unwrap();
        let portable = kernels.iter().find(|kernel| kernel.file == "portable.cuh").unwrap();
        let line_of = |text: &str| portable.text.lines().position(|line| line.contains(text)).unwrap() + 1;
        for elsewhere in ["__fmaf_rn", "__builtin_amdgcn_s_barrier()", "causeway_simulator::meet_block(site)"]
        {
            assert!(!portable.lines.contains(&line_of(elsewhere)), "{elsewhere}");
        }
        assert!(portable.lines.contains(&line_of("const u32 rounded = bits")));
        for kernel in &kernels {
            for (byte, patch) in kernel.edits() {
                assert!(kernel.text[byte..].starts_with(&patch.right) && patch.right != patch.wrong);
                let line = kernel.text.lines().nth(patch.line - 1).unwrap();
                let comment = line.find("//").unwrap_or(line.len());
                assert!(patch.column < comment && !line.trim_start().starts_with('#'), "{patch:?}");
            }
        }
        let edits: usize = kernels.iter().map(|kernel| kernel.edits().len()).sum();
        assert!(edits > 5_000, "{edits} edits");
    }
}
