//! Every edit of a kernel's text that may be drawn: one operator, number, condition, statement or pair of arguments.

use std::ops::Range;

use super::tokens::{Kind, Token, tokens};

/// One change of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextEdit {
    /// What goes.
    pub bytes: Range<usize>,
    /// What comes in its place.
    pub wrong: String,
}

/// What becomes of an operator between two operands. Spaces on both sides tell it from a bracket of a template, a
/// reference, a pointer or a sign: that is how the kernels are written.
const BINARY: &[(&str, &[&str])] = &[
    ("<", &["<=", ">="]),
    ("<=", &["<", ">"]),
    (">", &[">=", "<="]),
    (">=", &[">", "<"]),
    ("==", &["!="]),
    ("!=", &["=="]),
    ("+", &["-"]),
    ("-", &["+"]),
    ("*", &["+"]),
    ("/", &["*"]),
    ("%", &["/"]),
    ("<<", &[">>"]),
    (">>", &["<<"]),
    ("&", &["|"]),
    ("|", &["&"]),
    ("^", &["|"]),
    ("&&", &["||"]),
    ("||", &["&&"]),
    ("+=", &["-=", "="]),
    ("-=", &["+=", "="]),
    ("*=", &["+=", "="]),
    ("|=", &["&=", "="]),
    ("&=", &["|=", "="]),
    ("^=", &["|=", "="]),
    (">>=", &["<<="]),
    ("<<=", &[">>="]),
];

/// What becomes of a word.
const WORDS: &[(&str, &str)] = &[
    ("true", "false"),
    ("false", "true"),
    ("minimum", "maximum"),
    ("maximum", "minimum"),
    ("continue", "break"),
];

/// Statements that begin so are declarations or control, and are not dropped.
const NOT_DROPPED: &[&str] = &[
    "if",
    "for",
    "while",
    "do",
    "else",
    "switch",
    "case",
    "default",
    "const",
    "constexpr",
    "static",
    "using",
    "typedef",
    "struct",
    "class",
    "enum",
    "template",
    "namespace",
    "extern",
    "static_assert",
    "return",
    "public",
    "private",
    "auto",
    "typename",
    "inline",
    "friend",
];

/// Every edit of a file, in the order of the text.
pub fn edits(text: &str) -> Vec<TextEdit> {
    let code = Code { text, tokens: tokens(text) };
    let skipped = code.skipped();
    let mut found = Vec::new();
    for at in (0..code.tokens.len()).filter(|&at| !skipped[at]) {
        code.of_token(at, &mut found);
        code.of_condition(at, &mut found);
        code.of_statement(at, &mut found);
        code.of_arguments(at, &mut found);
    }
    found
}

/// A text and its tokens.
struct Code<'a> {
    text: &'a str,
    tokens: Vec<Token>,
}

impl Code<'_> {
    fn word(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| &self.text[token.bytes.clone()])
    }

    fn kind(&self, at: usize) -> Option<Kind> {
        self.tokens.get(at).map(|token| token.kind)
    }

    fn is_spaced(&self, at: usize) -> bool {
        let Range { start, end } = self.tokens[at].bytes;
        let space = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_whitespace);
        start > 0 && space(self.text.as_bytes().get(start - 1)) && space(self.text.as_bytes().get(end))
    }

    /// The token that closes the bracket at `open`.
    fn closing(&self, open: usize) -> Option<usize> {
        let mut depth = 0;
        (open..self.tokens.len()).find(|&at| {
            match self.word(at) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            depth == 0
        })
    }

    /// Tokens that are no arithmetic: what a compiler asserts, heads of templates, attributes.
    fn skipped(&self) -> Vec<bool> {
        let mut skipped = vec![false; self.tokens.len()];
        let mut skip = |from: usize, to: Option<usize>| {
            let to = to.unwrap_or(self.tokens.len() - 1);
            skipped[from..=to].iter_mut().for_each(|token| *token = true);
        };
        for at in 0..self.tokens.len() {
            match self.word(at) {
                "static_assert" | "__attribute__" => skip(at, self.closing(at + 1)),
                "using" | "typedef" => skip(at, (at..self.tokens.len()).find(|&at| self.word(at) == ";")),
                "template" if self.word(at + 1) == "<" => {
                    let mut depth = 0;
                    let end = (at + 1..self.tokens.len()).find(|&at| {
                        match self.word(at) {
                            "<" => depth += 1,
                            ">" => depth -= 1,
                            ">>" => depth -= 2,
                            _ => {}
                        }
                        depth <= 0
                    });
                    skip(at, end);
                }
                _ => {}
            }
        }
        skipped
    }

    fn of_token(&self, at: usize, found: &mut Vec<TextEdit>) {
        let (word, bytes) = (self.word(at), self.tokens[at].bytes.clone());
        let mut push = |wrong: &str| found.push(TextEdit { bytes: bytes.clone(), wrong: wrong.to_string() });
        match self.tokens[at].kind {
            Kind::Sign if self.is_spaced(at) => {
                let known = BINARY.iter().find(|(sign, _)| *sign == word);
                known.iter().flat_map(|(_, wrong)| wrong.iter()).for_each(|wrong| push(wrong));
            }
            Kind::Sign if word == "!" => push(""),
            Kind::Word => WORDS.iter().filter(|(right, _)| *right == word).for_each(|(_, wrong)| push(wrong)),
            Kind::Number => numbers(word).iter().for_each(|wrong| push(wrong)),
            _ => {}
        }
    }

    /// `if (a < b)` becomes `if (!(a < b))` and `if (true)`.
    fn of_condition(&self, at: usize, found: &mut Vec<TextEdit>) {
        let open = if self.word(at + 1) == "constexpr" { at + 2 } else { at + 1 };
        if self.word(at) != "if" || self.word(open) != "(" {
            return;
        }
        let Some(close) = self.closing(open) else { return };
        let bytes = self.tokens[open].bytes.end..self.tokens[close].bytes.start;
        let condition = &self.text[bytes.clone()];
        found.push(TextEdit { bytes: bytes.clone(), wrong: format!("!({condition})") });
        found.push(TextEdit { bytes, wrong: "true".to_string() });
    }

    /// A statement that calls, assigns, or leaves a loop or function goes.
    fn of_statement(&self, at: usize, found: &mut Vec<TextEdit>) {
        let begins = at > 0 && matches!(self.word(at - 1), ";" | "{" | "}" | ")" | "else");
        let leaves = matches!(self.word(at), "continue" | "break")
            || self.word(at) == "return" && self.word(at + 1) == ";";
        if !begins || self.kind(at) != Some(Kind::Word) || NOT_DROPPED.contains(&self.word(at)) && !leaves {
            return;
        }
        // Behind a bracket only where that belongs to an if or a loop.
        if self.word(at - 1) == ")" && !self.closes_control(at - 1) {
            return;
        }
        let (mut end, mut assigns) = (at, false);
        loop {
            match self.word(end) {
                ";" => break,
                "(" | "[" | "{" => match self.closing(end) {
                    Some(close) => end = close,
                    None => return,
                },
                // The head of a loop, a label, the end of the text.
                ")" | "]" | "}" | "" => return,
                ":" | "?" if !assigns => return,
                "=" | "+=" | "-=" | "*=" | "/=" | "|=" | "&=" | "^=" | "<<=" | ">>=" => assigns = true,
                _ => {}
            }
            end += 1;
        }
        // A declaration has a second name: `float sum = 0;`, `Packet<4> part;`.
        let call = self.word(end - 1) == ")";
        let is_declared = !assigns && !call && !leaves;
        let second = self.word(at + 1);
        let named = self.kind(at + 1) == Some(Kind::Word) || matches!(second, "*" | "&");
        let template = second == "<" && assigns;
        if is_declared || named || template {
            return;
        }
        let bytes = self.tokens[at].bytes.start..self.tokens[end - 1].bytes.end;
        found.push(TextEdit { bytes, wrong: String::new() });
    }

    /// Whether the bracket that ends at `close` belongs to an `if`, `for` or `while` that is no other statement's end.
    fn closes_control(&self, close: usize) -> bool {
        let mut depth = 0;
        let open = (0..=close).rev().find(|&at| {
            match self.word(at) {
                ")" => depth += 1,
                "(" => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        open.is_some_and(|open| {
            open > 0 && matches!(self.word(open - 1), "if" | "for" | "while" | "constexpr")
        })
    }

    /// Two arguments of a call that stand beside each other change places.
    fn of_arguments(&self, at: usize, found: &mut Vec<TextEdit>) {
        let callee = at > 0 && (self.kind(at - 1) == Some(Kind::Word) || self.word(at - 1) == ">");
        let control = ["if", "for", "while", "switch", "constexpr", "return"];
        if self.word(at) != "(" || !callee || control.contains(&self.word(at - 1)) {
            return;
        }
        let Some(close) = self.closing(at) else { return };
        // What is declared is no call: its arguments have types. And a function's head goes on with its body.
        let heads = matches!(self.word(close + 1), "{" | "const" | ":");
        if heads || close == at + 1 {
            return;
        }
        let (mut arguments, mut begin, mut next) = (Vec::new(), at + 1, at + 1);
        let mut angles = 0i32;
        while next <= close {
            match self.word(next) {
                "(" | "[" | "{" => next = self.closing(next).unwrap_or(close),
                "<" if !self.is_spaced(next) => angles += 1,
                ">" if !self.is_spaced(next) && angles > 0 => angles -= 1,
                "," | ")" if angles == 0 => {
                    if next > begin {
                        arguments.push(self.tokens[begin].bytes.start..self.tokens[next - 1].bytes.end);
                    }
                    begin = next + 1;
                }
                _ => {}
            }
            next += 1;
        }
        // Their first two may change places: nothing else does.
        let commutes = ["multiply_add", "minimum", "maximum"].contains(&self.word(at - 1));
        for pair in arguments.windows(2).skip(usize::from(commutes)) {
            let (first, second) = (&self.text[pair[0].clone()], &self.text[pair[1].clone()]);
            if first != second {
                let between = &self.text[pair[0].end..pair[1].start];
                let wrong = format!("{second}{between}{first}");
                found.push(TextEdit { bytes: pair[0].start..pair[1].end, wrong });
            }
        }
    }
}

/// What becomes of a number: one more, one less, and nothing; a floating-point number is doubled, or 1 where it was 0.
fn numbers(word: &str) -> Vec<String> {
    let suffix = word.len() - word.trim_end_matches(['u', 'l', 'U', 'L']).len();
    let (digits, suffix) = word.split_at(word.len() - suffix);
    if let Some(hexadecimal) = digits.strip_prefix("0x") {
        let Ok(value) = u64::from_str_radix(hexadecimal, 16) else { return Vec::new() };
        return vec![format!("0x{:x}{suffix}", value >> 1), format!("0x0{suffix}")];
    }
    if let Ok(value) = digits.parse::<u64>() {
        let mut wrong = vec![value + 1];
        wrong.extend(value.checked_sub(1));
        if value > 1 {
            wrong.push(0);
        }
        return wrong.into_iter().map(|value| format!("{value}{suffix}")).collect();
    }
    match word.trim_end_matches('f').parse::<f64>() {
        Ok(0.0) => vec!["1.0f".to_string()],
        Ok(value) => vec![format!("{:?}f", value * 2.0), "0.0f".to_string()],
        Err(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text with each of its edits.
    fn mutants(text: &str) -> Vec<String> {
        let changed = |edit: TextEdit| {
            let mut changed = text.to_string();
            changed.replace_range(edit.bytes, &edit.wrong);
            changed
        };
        edits(text).into_iter().map(changed).collect()
    }

    #[test]
    fn operators_change_and_brackets_of_templates_stay() {
        assert_eq!(mutants("x = load<N>(a < b);"), ["x = load<N>(a <= b);", "x = load<N>(a >= b);"]);
        assert_eq!(mutants("const T* p = &a;"), Vec::<String>::new());
        assert_eq!(mutants("y = a && !b;"), ["y = a || !b;", "y = a && b;"]);
    }

    #[test]
    fn numbers_change_by_one() {
        assert_eq!(mutants("int x = 2u;"), ["int x = 3u;", "int x = 1u;", "int x = 0u;"]);
        assert_eq!(mutants("int x = 0;"), ["int x = 1;"]);
        assert_eq!(mutants("float x = 1.5f;"), ["float x = 3.0f;", "float x = 0.0f;"]);
        assert_eq!(mutants("x = 0xffffu;"), ["x = 0x7fffu;", "x = 0x0u;"]);
    }

    #[test]
    fn conditions_are_denied_and_forced() {
        let mutants = mutants("{ if (wanted) f(); }");
        assert_eq!(mutants, ["{ if (!(wanted)) f(); }", "{ if (true) f(); }", "{ if (wanted) ; }"]);
    }

    #[test]
    fn statements_are_dropped_and_declarations_stay() {
        assert_eq!(
            mutants("{ barrier(); int x = y; x += y; return; }"),
            [
                "{ ; int x = y; x += y; return; }",
                "{ barrier(); int x = y; ; return; }",
                "{ barrier(); int x = y; x -= y; return; }",
                "{ barrier(); int x = y; x = y; return; }",
                "{ barrier(); int x = y; x += y; ; }"
            ]
        );
        assert_eq!(mutants("{ Packet<N> part; const int k = j; return k; }"), Vec::<String>::new());
        assert_eq!(mutants("for (; go; i = next) f();"), ["for (; go; i = next) ;"]);
    }

    #[test]
    fn neighbouring_arguments_change_places() {
        assert_eq!(
            mutants("y = f(a, g(b, c), a);"),
            ["y = f(g(b, c), a, a);", "y = f(a, a, g(b, c));", "y = f(a, g(c, b), a);"]
        );
        assert_eq!(mutants("void f(int a, int b) { }"), Vec::<String>::new());
        assert_eq!(mutants("y = multiply_add(a, b, c);"), ["y = multiply_add(a, c, b);"]);
    }

    #[test]
    fn what_is_no_code_is_not_drawn() {
        let text = "// 1 < 2\n#define X 1 + 2\n/* if (x) */ static_assert(Most <= 32, \"1 + 1\");\ntemplate <int N = 4> f;";
        assert_eq!(mutants(text), Vec::<String>::new());
    }
}
