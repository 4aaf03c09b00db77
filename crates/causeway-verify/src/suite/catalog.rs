//! Suites by name or from a file.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde::Deserialize;

use super::case::{Case, Ceilings, Problem};
use super::rows;

/// The suites that are part of the library: name and text.
const EMBEDDED: [(&str, &str); 14] = [
    ("conv1d-first", include_str!("../../../../suites/conv1d-first.toml")),
    ("conv1d-last", include_str!("../../../../suites/conv1d-last.toml")),
    ("gemm", include_str!("../../../../suites/gemm.toml")),
    ("full", include_str!("../../../../suites/full.toml")),
    ("cpu-large", include_str!("../../../../suites/cpu-large.toml")),
    ("sim", include_str!("../../../../suites/sim.toml")),
    ("shapes", include_str!("../../../../suites/shapes.toml")),
    ("gemm-shapes", include_str!("../../../../suites/gemm-shapes.toml")),
    ("variants", include_str!("../../../../suites/variants.toml")),
    ("fused", include_str!("../../../../suites/fused.toml")),
    ("small", include_str!("../../../../suites/small.toml")),
    ("repeat", include_str!("../../../../suites/repeat.toml")),
    ("parity", include_str!("../../../../suites/parity.toml")),
    ("huge", include_str!("../../../../suites/huge.toml")),
];

/// A list of cases.
#[derive(Debug, Clone, PartialEq)]
pub struct Suite {
    /// For example `conv1d-first`.
    pub name: String,
    /// What it is for, in a sentence.
    pub about: String,
    /// Its cases, each with a name of its own.
    pub cases: Vec<Case>,
}

/// Why a suite cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuiteError {
    /// No suite has this name, and it is not a path of a TOML file.
    #[error("suite is {found:?}: expected {}, or the path of a .toml file", Suite::names().join(", "))]
    Unknown {
        /// What was asked for.
        found: String,
    },
    /// The path is that of a folder.
    #[error("suite {path} is a folder: expected a name, or the path of a .toml file, such as one in it")]
    Folder {
        /// The folder.
        path: String,
    },
    /// The file cannot be read.
    #[error("suite {path}: {error}")]
    Read {
        /// The file.
        path: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// The text is not TOML, or not a suite.
    #[error("suite {suite}: {message}")]
    Syntax {
        /// Name or path.
        suite: String,
        /// What is wrong, and where.
        message: String,
    },
    /// A row makes no sense.
    #[error("suite {suite}, row {row}: {message}")]
    Row {
        /// Name or path.
        suite: String,
        /// Name of the row.
        row: String,
        /// What is wrong.
        message: String,
    },
}

/// The text of a suite.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    /// The name of the file, if there is none.
    name: Option<String>,
    #[serde(default)]
    about: String,
    /// Suites whose cases come first.
    #[serde(default)]
    include: Vec<String>,
    /// Of the included cases, those with more elements than this are left out, and those of these operations (the
    /// operation as reports name it, for products with the algorithm behind it: `gemm fast`).
    #[serde(default = "without_limit")]
    most_elements: i64,
    #[serde(default)]
    without: Vec<String>,
    /// Ceilings by dtype of x.
    #[serde(default)]
    ceilings: BTreeMap<String, Ceilings>,
    /// What the rows of an operation have unless they say otherwise.
    #[serde(default)]
    base: BTreeMap<String, toml::Table>,
    #[serde(default)]
    conv1d: Vec<toml::Table>,
    #[serde(default)]
    parity: Vec<toml::Table>,
    #[serde(default, rename = "conv1d-update")]
    update: Vec<toml::Table>,
    #[serde(default, rename = "conv1d-varlen-states")]
    varlen_states: Vec<toml::Table>,
    #[serde(default)]
    gemm: Vec<toml::Table>,
}

fn without_limit() -> i64 {
    i64::MAX
}

impl Suite {
    /// Names of the suites that are part of the library.
    pub fn names() -> Vec<&'static str> {
        EMBEDDED.iter().map(|(name, _)| *name).collect()
    }

    /// A suite by its name, or from the TOML file at a path.
    ///
    /// # Errors
    /// One [`SuiteError`] variant per cause.
    pub fn open(name_or_path: &str) -> Result<Self, SuiteError> {
        if let Some((name, text)) = EMBEDDED.iter().find(|(name, _)| *name == name_or_path) {
            return Self::parse(name, text);
        }
        if Path::new(name_or_path).is_dir() {
            return Err(SuiteError::Folder { path: name_or_path.to_string() });
        }
        if !name_or_path.ends_with(".toml") {
            return Err(SuiteError::Unknown { found: name_or_path.to_string() });
        }
        let text = std::fs::read_to_string(Path::new(name_or_path))
            .map_err(|error| SuiteError::Read { path: name_or_path.to_string(), error })?;
        Self::parse(name_or_path, &text)
    }

    /// The cases of the suites of these names or paths, each with the name of its suite; with a `filter`, only those whose
    /// name contains it.
    ///
    /// # Errors
    /// As for [`Suite::open`].
    pub fn cases_of(names: &[String], filter: Option<&str>) -> Result<Vec<(String, Case)>, SuiteError> {
        let mut cases = Vec::new();
        for name in names {
            let suite = Self::open(name)?;
            cases.extend(suite.cases.into_iter().map(|case| (suite.name.clone(), case)));
        }
        cases.retain(|(_, case)| filter.is_none_or(|text| case.name.contains(text)));
        Ok(cases)
    }

    /// A suite from its text; `source` names it in errors.
    ///
    /// # Errors
    /// [`SuiteError::Syntax`] and [`SuiteError::Row`].
    pub fn parse(source: &str, text: &str) -> Result<Self, SuiteError> {
        let syntax = |message: String| SuiteError::Syntax { suite: source.to_string(), message };
        let document: Document = toml::from_str(text).map_err(|error| syntax(error.to_string()))?;
        let mut cases = Vec::new();
        for include in &document.include {
            // Embedded suites do not include each other in circles, and a file is never included.
            let (name, text) = EMBEDDED
                .iter()
                .find(|(name, _)| name == include && *name != source)
                .ok_or_else(|| syntax(format!("include is {include:?}: expected a suite of the library")))?;
            cases.extend(Self::parse(name, text)?.cases);
        }
        cases.retain(|case| {
            let operation = match &case.problem {
                Problem::Gemm(gemm) => format!("gemm {}", gemm.algorithm),
                other => other.operation().to_string(),
            };
            case.problem.elements() <= document.most_elements && !document.without.contains(&operation)
        });
        for (dtype, ceilings) in &document.ceilings {
            ceilings.check(dtype).map_err(&syntax)?;
        }
        let ceilings =
            |dtype: causeway::DType| document.ceilings.get(dtype.name()).copied().unwrap_or_default();
        let lists = [
            ("conv1d", &document.conv1d),
            ("parity", &document.parity),
            ("conv1d-update", &document.update),
            ("conv1d-varlen-states", &document.varlen_states),
            ("gemm", &document.gemm),
        ];
        for (operation, list) in lists {
            let base = document.base.get(operation);
            for row in list {
                let new =
                    rows::cases(operation, base, row, &ceilings).map_err(|message| SuiteError::Row {
                        suite: source.to_string(),
                        row: row.get("name").map_or("without a name".into(), |name| name.to_string()),
                        message,
                    })?;
                cases.extend(new);
            }
        }

        let mut names = HashSet::new();
        if let Some(case) = cases.iter().find(|case| !names.insert(case.name.as_str())) {
            return Err(syntax(format!("two cases are called {:?}", case.name)));
        }
        let stem = || Path::new(source).file_stem().map_or(source.into(), |stem| stem.to_string_lossy());
        let name = document.name.unwrap_or_else(|| stem().into_owned());
        Ok(Suite { name, about: document.about, cases })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::{Layout, Problem};
    use causeway::DType;
    use causeway::causal_conv1d::Activation;

    fn suite(text: &str) -> Result<Suite, SuiteError> {
        Suite::parse("test", &format!("name = \"test\"\nabout = \"a test\"\n{text}"))
    }

    const ROW: &str = "width = 4\nlayout = \"channel-first\"\nactivation = \"none\"\ndtype = \"f32\"\n";

    #[test]
    fn a_row_needs_a_name_a_shape_a_width_and_a_dtype() {
        let text = "[[conv1d]]\nname = \"a\"\nshape = [2, 3, 5]\nwidth = 4\ndtype = \"f32\"\n";
        let suite = Suite::parse("of/mine.toml", text).unwrap();
        assert_eq!((suite.name.as_str(), suite.about.as_str(), suite.cases.len()), ("mine", "", 1));
        let Problem::Conv1d(conv1d) = &suite.cases[0].problem else { panic!("not a convolution") };
        assert_eq!((conv1d.layout, conv1d.activation), (Layout::ChannelFirst, Activation::None));
    }

    #[test]
    fn the_first_suite_is_that_of_the_contract() {
        let cases = Suite::open("conv1d-first").unwrap().cases;
        let of = |dtype: DType| cases.iter().filter(|case| case.problem.dtype() == dtype).count();
        assert_eq!((of(DType::F32), of(DType::F16), of(DType::BF16), cases.len()), (10, 10, 10, 30));
        let large = cases.iter().find(|case| case.name == "large-8x2048x1024-f16-silu").unwrap();
        let Problem::Conv1d(conv1d) = &large.problem else { panic!("not a convolution") };
        assert_eq!((conv1d.batch, conv1d.dim, conv1d.seqlen, conv1d.width), (8, 2048, 1024, 4));
        assert_eq!((large.ceilings.dx, large.ceilings.dweight), (Some(1e-2), Some(1.2e-1)));
        assert!(cases.iter().any(|case| case.name == "small-2x64x128-f32"));
    }

    #[test]
    fn the_last_suite_is_that_of_the_contract() {
        let suite = Suite::open("conv1d-last").unwrap();
        assert_eq!(suite.cases.len(), 6 * 3);
        assert!(suite.cases.iter().all(|case| case.problem.layout() == Layout::ChannelLast.name()));
        assert!(suite.cases.iter().any(|case| case.name == "with-silu-2x64x256-bf16-silu"));
    }

    #[test]
    fn the_full_suite_holds_the_others() {
        let full = Suite::open("full").unwrap().cases;
        for name in ["conv1d-first", "conv1d-last", "gemm"] {
            for case in Suite::open(name).unwrap().cases {
                assert!(full.contains(&case), "{}", case.name);
            }
        }
    }

    #[test]
    fn the_huge_suite_goes_past_31_and_16_bits() {
        let cases = Suite::open("huge").unwrap().cases;
        let shapes: Vec<_> = cases
            .iter()
            .filter_map(|case| match &case.problem {
                Problem::Conv1d(conv1d) if case.sample => Some(conv1d.x_shape()),
                Problem::Gemm(_) => None,
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(shapes.iter().all(|shape| shape.iter().product::<i64>() > 1 << 31));
        assert!(shapes.iter().any(|shape| shape[0] > 65_535) && shapes.iter().any(|shape| shape[1] > 65_535));
    }

    #[test]
    fn lists_multiply_and_stand_in_the_name() {
        let text = "[[conv1d]]\nname = \"a\"\nshape = [[1, 2, 3], [4, 5, 6]]\nwidth = [2, 3]\n\
                    layout = \"channel-last\"\ndtype = \"f16\"\nweight_dtype = \"f32\"\nactivation = [\"none\", \"silu\"]\n";
        let names: Vec<_> = suite(text).unwrap().cases.into_iter().map(|case| case.name).collect();
        assert_eq!(names.len(), 8);
        assert_eq!(names[0], "a-1x2x3-w2-f16-weight-f32");
        assert_eq!(names[7], "a-4x5x6-w3-f16-weight-f32-silu");
    }

    #[test]
    fn ceilings_that_nothing_could_be_held_to_are_explained() {
        for (ceilings, message) in [
            ("f23 = { dx = 1e-4 }", "ceilings.f23 is for no dtype: expected f32, f16, bf16 or f64"),
            (
                "f32 = { dx = -1e-30 }",
                "ceilings.f32.dx is -0.000000000000000000000000000001: expected a number",
            ),
            ("bf16 = { dbias = nan }", "ceilings.bf16.dbias is NaN: expected a number of at least 0"),
            ("f16 = { dweight = inf }", "ceilings.f16.dweight is inf: expected a number of at least 0"),
        ] {
            let error = suite(&format!("[ceilings]\n{ceilings}\n")).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn wrong_suites_are_explained() {
        let row = |extra: &str| format!("[[conv1d]]\nname = \"a\"\n{ROW}{extra}");
        let table = [
            (
                Suite::open("nothing"),
                "suite is \"nothing\": expected conv1d-first, conv1d-last, gemm, full, cpu-large, sim, shapes, \
                 gemm-shapes, variants, fused, small, repeat, parity, huge, or the path",
            ),
            (Suite::open("/no/such/file.toml"), "suite /no/such/file.toml: "),
            (
                Suite::open(env!("CARGO_MANIFEST_DIR")),
                "causeway-verify is a folder: expected a name, or the path",
            ),
            (suite("cases = 3"), "unknown field `cases`"),
            (suite("include = [\"other\"]"), "include is \"other\""),
            (suite(&row("")), "row \"a\": missing field `shape`"),
            (suite(&row("shape = [1, 2]")), "invalid length 2"),
            (suite(&row("shape = [1, 2, -3]")), "shape [1, 2, -3] has a negative size"),
            (suite(&row("shape = [1, 2, 3]\nweight_dtype = \"f8\"")), "dtype is \"f8\": expected f32"),
            (
                suite(&row("shape = [1, 2, 3]").replace("\"f32\"", "\"i32\"")),
                "row \"a\": x has dtype i32: expected f32, f16, bf16 or f64, the dtypes of a convolution",
            ),
            (
                suite(&row("shape = [1, 2, 3]\nweight_dtype = \"f64\"")),
                "row \"a\": weight has dtype f64: expected f32, f16 or bf16, the dtypes of a weight",
            ),
            (
                suite("[[gemm]]\nname = \"g\"\nshape = [1, 2, 3]\ndtype = \"f32\"\n"),
                "row \"g\": dtype is f32: products are of f16 or bf16",
            ),
            (suite(&row("shape = [1, 2, 3]\nbais = true")), "unknown field `bais`"),
            (suite(&row("shape = [[1, 2, 3], [1, 2, 3]]")), "two cases are called \"a-1x2x3-f32\""),
            (
                suite(&row("shape = [1, 2, 3]\ncu_seqlens = { lengths = [1, 1], dtype = \"i32\" }")),
                "shape has batch 1 and seqlen 3: cu_seqlens needs 1 and 2",
            ),
            (
                suite(&row("shape = [1, 2, 3]\nsample = true\nresidual = true")),
                "sample is true: such a row can have no states",
            ),
            (
                suite(&row("shape = [1, 2, 3]\nsample = true").replace("first", "first-padded")),
                "sample is true: the layouts",
            ),
            (suite(&row("shape = [1, 2, 3]\nseq_idx = [[0, 1]]")), "seq_idx needs runs of positive length"),
            (
                suite(
                    &row(&format!("shape = [{}]", "[1, 2, 3], ".repeat(200)))
                        .replace("width = 4", &format!("width = [{}]", "1, ".repeat(200))),
                ),
                "its lists (shape, width) multiply to 40000 cases: at most 10000 are allowed",
            ),
            (
                suite(&row("shape = [1, 2, 3]").replace("width = 4", "width = 257")),
                "width is 257: expected 1 to 256",
            ),
        ];
        for (result, sentence) in table {
            let message = result.expect_err(sentence).to_string();
            assert!(message.contains(sentence), "{message:?} does not say {sentence:?}");
        }
    }
}
