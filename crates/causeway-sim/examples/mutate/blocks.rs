//! Counters in device code: which blocks of which files a case executes.

use std::ops::Range;

use causeway_sim::Patch;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::kernels::Kernel;
use super::tokens::{Kind, tokens};

/// A block of a function in braces. Its number is its place in the list of [`blocks`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Which of the files.
    pub kernel: usize,
    /// Behind the brace that opens it, to the one that closes it.
    pub bytes: Range<usize>,
}

/// The blocks of all files that can be counted: not those of constant functions, which run in the compiler too.
pub fn blocks(kernels: &[Kernel]) -> Vec<Block> {
    let of_kernel = |(number, kernel): (usize, &Kernel)| {
        let counted = of_text(&kernel.text).into_iter();
        let counted = counted.filter(|bytes| kernel.lines.contains(&kernel.line(bytes.start - 1)));
        counted.map(|bytes| Block { kernel: number, bytes }).collect::<Vec<_>>()
    };
    kernels.iter().enumerate().flat_map(of_kernel).collect()
}

/// The innermost block around a byte of a file.
pub fn around(blocks: &[Block], kernel: usize, byte: usize) -> Option<usize> {
    let holds = |block: &Block| block.kernel == kernel && block.bytes.contains(&byte);
    let found = blocks.iter().enumerate().filter(|(_, block)| holds(block));
    found.min_by_key(|(_, block)| block.bytes.len()).map(|(number, _)| number)
}

/// What begins a block's mark in the object of a kernel that has the block.
const MARK: &str = "causeway-block-";

/// A counter at the beginning of every block, and a mark that is in the object where a compiler made code of the block.
pub fn counters(kernels: &[Kernel], blocks: &[Block]) -> Vec<Patch> {
    let counter = |(number, block): (usize, &Block)| {
        let code = format!(
            " extern unsigned char causeway_hits[] __asm__(\"causeway_hits\"); causeway_hits[{number}] = 1; \
             __asm__ volatile(\".pushsection .causeway_blocks\\n.ascii \\\"{MARK}{number};\\\"\\n.popsection\"); "
        );
        let kernel = &kernels[block.kernel];
        let at = block.bytes.start + behind_pragma(&kernel.text[block.bytes.clone()]);
        kernel.patch(at..at, &code)
    };
    blocks.iter().enumerate().map(counter).collect()
}

/// Where a block's statements begin: a pragma that holds for the block has to stand before all of them.
fn behind_pragma(block: &str) -> usize {
    let own = &block[..block.find('{').unwrap_or(block.len())];
    own.rfind("#pragma clang").map_or(0, |at| own[at..].find('\n').map_or(own.len(), |end| at + end + 1))
}

/// The blocks whose marks are in an object.
pub fn marked(object: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let starts = (0..object.len()).filter(|&at| object[at..].starts_with(MARK.as_bytes()));
    starts.filter_map(|at| {
        let digits = object[at + MARK.len()..].iter().take_while(|byte| byte.is_ascii_digit());
        let digits: Vec<u8> = digits.copied().collect();
        String::from_utf8(digits).ok()?.parse().ok()
    })
}

fn of_text(text: &str) -> Vec<Range<usize>> {
    let code = tokens(text);
    let word = |at: usize| code.get(at).map_or("", |token| &text[token.bytes.clone()]);
    // For each token that opens a bracket, the one that closes it, and the other way round.
    let (mut open, mut partner) = (Vec::new(), vec![0; code.len()]);
    for at in 0..code.len() {
        match word(at) {
            "(" | "[" | "{" => open.push(at),
            ")" | "]" | "}" => {
                if let Some(from) = open.pop() {
                    (partner[from], partner[at]) = (at, from);
                }
            }
            _ => {}
        }
    }
    let (mut found, mut constant_until) = (Vec::new(), 0);
    for at in (1..code.len()).filter(|&at| word(at) == "{") {
        let before = if word(at - 1) == "const" { at - 2 } else { at - 1 };
        let bytes = code[at].bytes.end..code[partner[at]].bytes.start;
        let wanted = match word(before) {
            "else" | "do" => true,
            ")" => {
                let head = partner[before];
                let of = word(head.saturating_sub(1));
                let control = matches!(of, "if" | "for" | "while" | "constexpr" | "switch");
                let begins = (0..head).rev().find(|&at| matches!(word(at), ";" | "{" | "}")).unwrap_or(0);
                let constant = !control && (begins..head).any(|at| word(at) == "constexpr");
                if constant {
                    constant_until = constant_until.max(partner[at]);
                }
                // `(T)x {` would be no block; `[](…) {`, `name(…) {` and `if (…) {` are.
                of != "switch" && code[head.saturating_sub(1)].kind != Kind::Quoted
            }
            _ => false,
        };
        if wanted && at >= constant_until {
            found.push(bytes);
        }
    }
    found
}

/// The counters' memory, which kernels find by its name.
pub struct Hits {
    memory: *mut u8,
    count: usize,
    _library: Library,
}

impl Hits {
    /// Memory for so many blocks; to be there before any kernel is loaded.
    pub fn open(count: usize) -> Result<Self, String> {
        let (compiler, _) = causeway_sim::compiler().map_err(|error| error.to_string())?;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let (source, object) = (folder.path().join("hits.c"), folder.path().join("hits.so"));
        std::fs::write(&source, format!("unsigned char causeway_hits[{}];\n", count.max(1)))
            .map_err(|error| error.to_string())?;
        let done = std::process::Command::new(compiler)
            .args(["-shared", "-fPIC", "-x", "c"])
            .arg(&source)
            .arg("-o")
            .arg(&object)
            .status()
            .map_err(|error| error.to_string())?;
        if !done.success() {
            return Err("the counters' memory was not compiled".to_string());
        }
        // SAFETY: the object has no initialisers; it was made above.
        let library = unsafe { Library::open(Some(&object), RTLD_NOW | RTLD_GLOBAL) };
        let library = library.map_err(|error| error.to_string())?;
        // SAFETY: the object defines the name, as an array whose address the symbol is.
        let memory = unsafe { library.get::<*mut u8>(b"causeway_hits") }
            .map_err(|error| error.to_string())?
            .into_raw();
        Ok(Hits { memory: memory.cast(), count, _library: library })
    }

    /// What was counted since the last time.
    pub fn take(&mut self) -> Vec<bool> {
        // SAFETY: the array has `count` bytes, as long as the library is open; no kernel runs between two cases.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.memory, self.count) };
        let taken = bytes.iter().map(|byte| *byte != 0).collect();
        bytes.fill(0);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<&str> {
        of_text(text).into_iter().map(|bytes| &text[bytes]).collect()
    }

    #[test]
    fn blocks_of_functions_are_found() {
        assert_eq!(found("void f(int a) const { if (a) { b(); } else { c = {1}; } }").len(), 3);
        assert_eq!(found("auto g = [&](int i) { return i; };"), [" return i; "]);
        assert_eq!(found("struct S { int x[2] = {1, 2}; }; Packet<4> p{{bits}};"), Vec::<&str>::new());
    }

    #[test]
    fn counters_stand_behind_the_pragma_of_a_block() {
        let block = "\n#if X\n f();\n#else\n#pragma clang fp contract(off)\n return a + b;\n#endif\n";
        assert_eq!(block[behind_pragma(block)..].trim(), "return a + b;\n#endif");
        assert_eq!(behind_pragma(" if (a) {\n#pragma clang fp contract(off)\n b(); } "), 0);
    }

    #[test]
    fn marks_are_read() {
        assert_eq!(
            marked(b"\0causeway-block-12;causeway-block-;causeway-block-7;").collect::<Vec<_>>(),
            [12, 7]
        );
    }

    #[test]
    fn constant_functions_are_left_alone() {
        assert_eq!(
            found("constexpr int f(int a) { if (a) { return 1; } return 2; } void g() { h(); }"),
            [" h(); "]
        );
        assert_eq!(found("void f() { if constexpr (X) { g(); } }").len(), 2);
        assert_eq!(found("void f() { switch (x) { case 1: g(); } }").len(), 1);
    }
}
