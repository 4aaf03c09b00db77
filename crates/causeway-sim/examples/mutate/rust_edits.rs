//! Every edit of a planner's source that may be drawn, and where expressions lie that hold it.

use std::collections::BTreeSet;
use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// One change of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RustEdit {
    /// The expression that is there twice, as it is and changed.
    pub whole: Range<usize>,
    /// What goes, within it.
    pub bytes: Range<usize>,
    /// What comes in its place.
    pub wrong: String,
    /// The constant whose value holds it: an item, which no condition can choose.
    pub constant: Option<Constant>,
}

/// An item that has a value when the program is compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constant {
    /// All of the item.
    pub item: Range<usize>,
    /// Its name.
    pub name: String,
    /// Where the name stands in the item.
    pub name_bytes: Range<usize>,
    /// The function's block in which it is known, if it is not the module's.
    pub scope: Option<Range<usize>>,
}

/// Where a constant is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// The path.
    pub bytes: Range<usize>,
    /// Its last segment, and the one before.
    pub name: String,
    /// `tiles` of `tiles::MOST`.
    pub module: Option<String>,
}

/// What a file holds.
#[derive(Debug, Default)]
pub struct Source {
    /// In the order of the text.
    pub edits: Vec<RustEdit>,
    /// Of names in capitals, where a condition may stand.
    pub uses: Vec<Use>,
    /// Constants that other constants are made of: changed, they would be changed in part.
    pub fixed: BTreeSet<String>,
}

/// What becomes of an operator.
const BINARY: &[(&str, &[&str])] = &[
    ("<", &["<=", ">="]),
    ("<=", &["<", ">"]),
    (">", &[">=", "<="]),
    (">=", &[">", "<"]),
    ("==", &["!="]),
    ("!=", &["=="]),
    ("+", &["-"]),
    ("-", &["+"]),
    ("*", &["+", "/"]),
    ("/", &["*"]),
    ("%", &["/"]),
    ("<<", &[">>"]),
    (">>", &["<<"]),
    ("&", &["|"]),
    ("|", &["&"]),
    ("&&", &["||"]),
    ("||", &["&&"]),
    ("+=", &["-="]),
    ("-=", &["+="]),
    ("|=", &["&="]),
];

/// What becomes of a method, by its name and its number of arguments.
const METHODS: &[(&str, usize, &str)] = &[
    ("min", 1, "max"),
    ("max", 1, "min"),
    ("is_some", 0, "is_none"),
    ("is_none", 0, "is_some"),
    ("all", 1, "any"),
    ("any", 1, "all"),
    ("is_some_and", 1, "is_none_or"),
    ("is_none_or", 1, "is_some_and"),
];

/// Methods that can go, with their arguments: what they are called on has the type of the result.
const DROPPED: &[(&str, usize)] =
    &[("min", 1), ("max", 1), ("clamp", 2), ("next_multiple_of", 1), ("next_power_of_two", 0), ("filter", 1)];

/// Reads a file.
pub fn read(text: &str) -> Result<Source, String> {
    let file = syn::parse_file(text).map_err(|error| error.to_string())?;
    let mut reader =
        Reader { text, source: Source::default(), constant: None, scopes: Vec::new(), fixed: false };
    reader.visit_file(&file);
    Ok(reader.source)
}

struct Reader<'a> {
    text: &'a str,
    source: Source,
    /// The item that is being read.
    constant: Option<Constant>,
    /// Blocks around.
    scopes: Vec<Range<usize>>,
    /// Within a function that the compiler runs, or a length of an array.
    fixed: bool,
}

impl Reader<'_> {
    fn push(&mut self, whole: Range<usize>, bytes: Range<usize>, wrong: impl Into<String>) {
        if !self.fixed {
            let constant = self.constant.clone();
            self.source.edits.push(RustEdit { whole, bytes, wrong: wrong.into(), constant });
        }
    }

    fn text(&self, bytes: &Range<usize>) -> &str {
        &self.text[bytes.clone()]
    }

    fn condition(&mut self, condition: &syn::Expr) {
        if !has_let(condition) {
            let bytes = range(condition);
            let wrong = format!("!({})", self.text(&bytes));
            self.push(bytes.clone(), bytes, wrong);
        }
    }

    /// Reads what a compiler computes, where no condition can stand.
    fn within_fixed(&mut self, read: impl FnOnce(&mut Self)) {
        let before = std::mem::replace(&mut self.fixed, true);
        read(self);
        self.fixed = before;
    }

    fn read_constant(&mut self, item: Range<usize>, name: &syn::Ident, value: &syn::Expr) {
        let scope = self.scopes.last().cloned();
        let name_bytes = name.span().byte_range();
        self.constant = Some(Constant { item, name: name.to_string(), name_bytes, scope });
        self.visit_expr(value);
        self.constant = None;
    }
}

fn range(node: &impl Spanned) -> Range<usize> {
    node.span().byte_range()
}

fn has_let(condition: &syn::Expr) -> bool {
    struct Finder(bool);
    impl Visit<'_> for Finder {
        fn visit_expr_let(&mut self, _: &syn::ExprLet) {
            self.0 = true;
        }
    }
    let mut finder = Finder(false);
    finder.visit_expr(condition);
    finder.0
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    let names_test = |attribute: &syn::Attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string().contains("test"),
        meta => meta.path().is_ident("test"),
    };
    attributes.iter().any(names_test)
}

impl<'a> Visit<'a> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        match (is_for_tests(&item.attrs), item.sig.constness) {
            (true, _) => {}
            (false, Some(_)) => self.within_fixed(|reader| visit::visit_item_fn(reader, item)),
            (false, None) => visit::visit_item_fn(self, item),
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        match (is_for_tests(&item.attrs), item.sig.constness) {
            (true, _) => {}
            (false, Some(_)) => self.within_fixed(|reader| visit::visit_impl_item_fn(reader, item)),
            (false, None) => visit::visit_impl_item_fn(self, item),
        }
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_const(&mut self, item: &'a syn::ItemConst) {
        if item.ident == "_" {
            self.within_fixed(|reader| reader.visit_expr(&item.expr));
        } else {
            self.read_constant(range(item), &item.ident, &item.expr);
        }
    }

    fn visit_item_static(&mut self, item: &'a syn::ItemStatic) {
        self.within_fixed(|reader| reader.visit_expr(&item.expr));
    }

    fn visit_impl_item_const(&mut self, item: &'a syn::ImplItemConst) {
        self.within_fixed(|reader| reader.visit_expr(&item.expr));
    }

    fn visit_block(&mut self, block: &'a syn::Block) {
        self.scopes.push(range(block));
        visit::visit_block(self, block);
        self.scopes.pop();
    }

    fn visit_expr_repeat(&mut self, repeat: &'a syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
        self.within_fixed(|reader| reader.visit_expr(&repeat.len));
    }

    // Neither has an expression in which a condition may stand.
    fn visit_attribute(&mut self, _: &'a syn::Attribute) {}
    fn visit_pat(&mut self, _: &'a syn::Pat) {}
    fn visit_type(&mut self, _: &'a syn::Type) {}
    fn visit_generic_argument(&mut self, _: &'a syn::GenericArgument) {}

    fn visit_expr_path(&mut self, path: &'a syn::ExprPath) {
        let segments: Vec<_> = path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let Some(name) =
            segments.last().filter(|name| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
        else {
            return;
        };
        if self.fixed || self.constant.is_some() {
            self.source.fixed.insert(name.clone());
        } else {
            let module = segments.len().checked_sub(2).map(|at| segments[at].clone());
            self.source.uses.push(Use { bytes: range(path), name: name.clone(), module });
        }
    }

    fn visit_expr_binary(&mut self, binary: &'a syn::ExprBinary) {
        let operator = range(&binary.op);
        let known = BINARY.iter().find(|(sign, _)| *sign == self.text(&operator));
        if !has_let(&binary.left) && !has_let(&binary.right) {
            for wrong in known.iter().flat_map(|(_, wrong)| wrong.iter()) {
                self.push(range(binary), operator.clone(), *wrong);
            }
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'a syn::ExprUnary) {
        if matches!(unary.op, syn::UnOp::Not(_)) {
            self.push(range(unary), range(&unary.op), "");
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_if(&mut self, branch: &'a syn::ExprIf) {
        self.condition(&branch.cond);
        visit::visit_expr_if(self, branch);
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        let (name, count) = (call.method.to_string(), call.args.len());
        for (_, _, wrong) in METHODS.iter().filter(|(known, of, _)| *known == name && *of == count) {
            self.push(range(call), range(&call.method), *wrong);
        }
        if DROPPED.contains(&(name.as_str(), count)) {
            self.push(range(call), range(&call.receiver).end..range(call).end, "");
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_lit(&mut self, literal: &'a syn::ExprLit) {
        let bytes = range(literal);
        match &literal.lit {
            syn::Lit::Int(number) => {
                let (Ok(value), suffix) = (number.base10_parse::<u64>(), number.suffix()) else { return };
                let mut wrong = vec![value.saturating_add(1)];
                wrong.extend(value.checked_sub(1));
                if value > 1 {
                    wrong.push(0);
                }
                for value in wrong {
                    self.push(bytes.clone(), bytes.clone(), format!("{value}{suffix}"));
                }
            }
            syn::Lit::Bool(flag) => self.push(bytes.clone(), bytes, (!flag.value).to_string()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text with each of its edits.
    fn mutants(text: &str) -> Vec<String> {
        let changed = |edit: RustEdit| {
            assert!(edit.whole.start <= edit.bytes.start && edit.bytes.end <= edit.whole.end, "{edit:?}");
            let mut changed = text.to_string();
            changed.replace_range(edit.bytes, &edit.wrong);
            changed
        };
        read(text).unwrap().edits.into_iter().map(changed).collect()
    }

    #[test]
    fn expressions_change() {
        assert_eq!(mutants("fn f() { g(a < b) }"), ["fn f() { g(a <= b) }", "fn f() { g(a >= b) }"]);
        assert_eq!(mutants("fn f() { x.min(y) }"), ["fn f() { x.max(y) }", "fn f() { x }"]);
        assert_eq!(
            mutants("fn f() { if !a { 0 } else { b } }"),
            [
                "fn f() { if !(!a) { 0 } else { b } }",
                "fn f() { if a { 0 } else { b } }",
                "fn f() { if !a { 1 } else { b } }"
            ]
        );
    }

    #[test]
    fn types_patterns_comments_macros_and_tests_stay() {
        let text = "/// 1 + 2\nfn f(x: [u8; 4]) { match x { 1 => a, _ => b }; print!(\"{}\", 1 + 2); let y = [c; 8]; \"1 < 2\" }\n\
                    #[cfg(test)] mod tests { fn g() { 1 + 2; } }\nconst fn h() -> u32 { 4 }";
        assert_eq!(mutants(text), Vec::<String>::new());
    }

    #[test]
    fn constants_are_known_with_their_scope_and_their_uses() {
        let source =
            read("const A: u32 = 1; const B: u32 = A; fn f() { const C: u32 = 2; g(t::A, B, C) }").unwrap();
        let names: BTreeSet<_> = source
            .edits
            .iter()
            .map(|edit| edit.constant.as_ref().unwrap())
            .map(|c| (c.name.as_str(), c.scope.is_some()))
            .collect();
        assert_eq!(names, BTreeSet::from([("A", false), ("C", true)]));
        assert_eq!(source.fixed, BTreeSet::from(["A".to_string()]));
        let uses: Vec<_> = source.uses.iter().map(|u| (u.module.as_deref(), u.name.as_str())).collect();
        assert_eq!(uses, [(Some("t"), "A"), (None, "B"), (None, "C")]);
    }
}
