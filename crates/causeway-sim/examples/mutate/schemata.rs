//! Sources that hold many mutants at once: `(if mutant(17) { a <= b } else { a < b })`. One build serves all of them, and a
//! process is told which one it is.

use std::collections::BTreeMap;
use std::ops::Range;

use super::rust_edits::{Constant, RustEdit, Source};

/// A planner's source.
pub struct Planner {
    /// In the folder of the planners; `backward/tiles.rs`.
    pub file: String,
    /// All of it.
    pub text: String,
    /// What it holds.
    pub source: Source,
}

/// The edit of a file that has this number.
#[derive(Debug, Clone)]
pub struct Numbered {
    /// Which of the files.
    pub planner: usize,
    /// What is changed.
    pub edit: RustEdit,
    /// What the process is told.
    pub number: usize,
}

/// A rewritten file, and which of its bytes belong to which mutant.
#[derive(Debug, Default)]
pub struct Rewritten {
    /// The text.
    pub text: String,
    /// Bytes of it, by the mutant that they are there for.
    pub places: Vec<(Range<usize>, usize)>,
}

/// Where the planners' module is, and the function that tells which mutant runs.
const MODULE: &str = "crate::backend::gpu::causal_conv1d";

/// What the module gets.
pub const SWITCH: &str = "
/// Whether this process is the mutant of that number.
fn mutant(number: usize) -> bool {
    static ACTIVE: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
    *ACTIVE.get_or_init(|| std::env::var(\"CAUSEWAY_MUTANT\").ok()?.parse().ok()) == Some(number)
}
";

impl Planner {
    /// The name that other files know its module by.
    fn module(&self) -> &str {
        let path = self.file.trim_end_matches(".rs");
        path.rsplit('/').next().unwrap_or(path)
    }

    /// A module's constant by its path.
    fn path(&self, name: &str) -> String {
        match self.module() {
            "mod" => format!("{MODULE}::{name}"),
            _ => format!("{MODULE}::{}::{name}", self.file.trim_end_matches(".rs").replace('/', "::")),
        }
    }
}

/// Whether an edit can be one of many in a file: constants that others are made of, or that several files have in the same
/// name, cannot be told apart at run time.
pub fn is_possible(planners: &[Planner], edit: &RustEdit) -> bool {
    let Some(constant) = &edit.constant else { return true };
    let is_used = |planner: &Planner| planner.source.uses.iter().any(|used| used.name == constant.name);
    planners.iter().any(is_used)
        && !planners.iter().any(|planner| planner.source.fixed.contains(&constant.name))
}

/// The file with these mutants in it.
pub fn rewrite(planners: &[Planner], file: usize, mutants: &[Numbered]) -> Rewritten {
    // What stands at a range: expressions by the mutants that change them, items before which others come.
    let mut sites: BTreeMap<(usize, std::cmp::Reverse<usize>), Vec<Site<'_>>> = BTreeMap::new();
    let mut put = |range: &Range<usize>, site| {
        sites.entry((range.start, std::cmp::Reverse(range.end))).or_default().push(site);
    };
    for mutant in mutants {
        let Numbered { planner, edit, number } = mutant;
        match &edit.constant {
            None if *planner == file => put(&edit.whole, Site { number: *number, code: Code::Changed(edit) }),
            None => {}
            Some(constant) => {
                if *planner == file {
                    put(&constant.item, Site { number: *number, code: Code::Item(constant, edit) });
                }
                for used in &planners[file].source.uses {
                    let name = format!("{}_MUTANT_{number}", constant.name);
                    let own = *planner == file && used.module.is_none();
                    let path = match &constant.scope {
                        Some(scope)
                            if own && scope.start <= used.bytes.start && used.bytes.end <= scope.end =>
                        {
                            name
                        }
                        Some(_) => continue,
                        None => planners[*planner].path(&name),
                    };
                    let named = used.module.as_deref() == Some(planners[*planner].module());
                    // Imported by its name alone, where this file has none of that name.
                    let imported = used.module.is_none() && !planners[file].declares(&used.name);
                    if used.name == constant.name && (own || named || imported) {
                        put(&used.bytes, Site { number: *number, code: Code::Path(path) });
                    }
                }
            }
        }
    }
    let text = &planners[file].text;
    let sites: Vec<_> = sites.into_iter().map(|((start, end), sites)| (start..end.0, sites)).collect();
    let mut writer = Writer { text, sites: &sites, result: Rewritten::default() };
    writer.emit(0..text.len(), 0);
    writer.result
}

impl Planner {
    fn declares(&self, name: &str) -> bool {
        self.source
            .edits
            .iter()
            .filter_map(|edit| edit.constant.as_ref())
            .any(|constant| constant.name == name)
    }
}

struct Site<'a> {
    number: usize,
    code: Code<'a>,
}

enum Code<'a> {
    /// The expression with its edit.
    Changed(&'a RustEdit),
    /// Another item beside the one that is there.
    Item(&'a Constant, &'a RustEdit),
    /// That item's name in place of the constant's.
    Path(String),
}

struct Writer<'a> {
    text: &'a str,
    /// By their beginning, those around before those within.
    sites: &'a [(Range<usize>, Vec<Site<'a>>)],
    result: Rewritten,
}

impl Writer<'_> {
    /// Writes a range; `next` is the first site that may lie in it. Returns the first behind it.
    fn emit(&mut self, range: Range<usize>, mut next: usize) -> usize {
        let (sites, mut at) = (self.sites, range.start);
        while let Some((bytes, of_place)) = sites.get(next).filter(|(bytes, _)| bytes.start < range.end) {
            self.result.text.push_str(&self.text[at..bytes.start]);
            at = bytes.end;
            let is_item = of_place.iter().all(|site| matches!(site.code, Code::Item(..)));
            if !is_item {
                self.result.text.push('(');
            }
            for site in of_place {
                self.alternative(site);
            }
            if !is_item {
                self.result.text.push_str("{ ");
            }
            next = self.emit(bytes.clone(), next + 1);
            if !is_item {
                self.result.text.push_str(" })");
            }
        }
        self.result.text.push_str(&self.text[at..range.end]);
        next
    }

    fn alternative(&mut self, site: &Site<'_>) {
        let begin = self.result.text.len();
        let condition = format!("if {MODULE}::mutant({}) {{ ", site.number);
        match &site.code {
            Code::Item(constant, edit) => {
                let mut item = self.text[constant.item.clone()].to_string();
                // The name stands before the value.
                let within =
                    |bytes: &Range<usize>| bytes.start - constant.item.start..bytes.end - constant.item.start;
                item.replace_range(within(&edit.bytes), &edit.wrong);
                let name = format!("{}_MUTANT_{}", constant.name, site.number);
                item.replace_range(within(&constant.name_bytes), &name);
                self.result.text.push_str(&item);
                self.result.text.push('\n');
            }
            Code::Changed(edit) => {
                let before = &self.text[edit.whole.start..edit.bytes.start];
                let after = &self.text[edit.bytes.end..edit.whole.end];
                self.result.text.push_str(&format!("{condition}{before}{}{after} }} else ", edit.wrong));
            }
            Code::Path(path) => self.result.text.push_str(&format!("{condition}{path} }} else ")),
        }
        self.result.places.push((begin..self.result.text.len(), site.number));
    }
}

#[cfg(test)]
mod tests {
    use super::super::rust_edits;
    use super::*;

    fn planner(file: &str, text: &str) -> Planner {
        Planner { file: file.to_string(), text: text.to_string(), source: rust_edits::read(text).unwrap() }
    }

    fn rewritten(planners: &[Planner], file: usize) -> String {
        let mut mutants = Vec::new();
        for (planner, of) in planners.iter().enumerate() {
            for edit in of.source.edits.iter().filter(|edit| is_possible(planners, edit)) {
                mutants.push(Numbered { planner, edit: edit.clone(), number: mutants.len() });
            }
        }
        let rewritten = rewrite(planners, file, &mutants);
        for (bytes, number) in &rewritten.places {
            assert!(rewritten.text[bytes.clone()].contains(&number.to_string()));
        }
        syn::parse_file(&rewritten.text).unwrap();
        rewritten.text.replace(&format!("{MODULE}::"), "")
    }

    #[test]
    fn expressions_within_expressions_keep_their_own_mutants() {
        let text = rewritten(&[planner("a.rs", "fn f() { x == y + z }")], 0);
        assert_eq!(
            text,
            "fn f() { (if mutant(0) { x != y + z } else { x == (if mutant(1) { y - z } else { y + z }) }) }"
        );
    }

    #[test]
    fn constants_are_chosen_where_they_are_used() {
        let one = planner("one.rs", "pub(super) const C: u32 = 0;\nfn f() { g(C) }");
        let two = planner("two.rs", "fn f() { const D: u32 = 0; h(one::C, D) }");
        let planners = [one, two];
        let first = "pub(super) const C_MUTANT_0: u32 = 1;\npub(super) const C: u32 = 0;\n\
                     fn f() { g((if mutant(0) { one::C_MUTANT_0 } else { C })) }";
        assert_eq!(rewritten(&planners, 0), first);
        let second = "fn f() { const D_MUTANT_1: u32 = 1;\nconst D: u32 = 0; \
                      h((if mutant(0) { one::C_MUTANT_0 } else { one::C }), (if mutant(1) { D_MUTANT_1 } else { D })) }";
        assert_eq!(rewritten(&planners, 1), second);
    }
}
