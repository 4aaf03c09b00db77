//! Reports as JSON: sealed with a digest, read back in every format that there was.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Benchmark, Content, FORMAT, Report, sentences};

/// The field that holds the digest of all others.
pub(super) const DIGEST: &str = "digest";

/// The format of saved bench runs before there were reports. It had no kind and no digest.
const BENCH_FORMAT: u64 = 1;

/// Why a file is not a report that can be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The file cannot be read.
    #[error("{file}: {error}")]
    Read {
        /// The file.
        file: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// The text is not JSON.
    #[error(
        "{file} is not JSON: {error}; `causeway verify --report` and `causeway bench --save` write reports"
    )]
    NotJson {
        /// The file.
        file: String,
        /// What is wrong, and where.
        error: serde_json::Error,
    },
    /// The JSON is something else than a report.
    #[error(
        "{file} is not a report: {because}; `causeway verify --report` and `causeway bench --save` write them"
    )]
    NotReport {
        /// The file.
        file: String,
        /// What is missing.
        because: String,
    },
    /// A version that this one does not know has written it.
    #[error(
        "{file} has format {found}: this version reads 1 (saved bench runs) and {FORMAT}; use a newer causeway"
    )]
    Format {
        /// The file.
        file: String,
        /// Its format.
        found: String,
    },
    /// A field is missing or has another type.
    #[error("{file}: {place} is not as a report has it: {because}")]
    Field {
        /// The file.
        file: String,
        /// Where: `cases[3].outputs[0]`.
        place: String,
        /// What is wrong.
        because: String,
    },
}

impl Report {
    /// The report as JSON, with the digest of its facts.
    ///
    /// # Panics
    /// Never: a report's parts all have a form in JSON.
    pub fn to_value(&self) -> Value {
        let mut value = serde_json::to_value(self).expect("a report has a form in JSON");
        let digest = digest(&value);
        if let Value::Object(fields) = &mut value {
            fields.insert(DIGEST.to_string(), digest.into());
        }
        value
    }

    /// The same as text.
    pub fn to_json(&self) -> String {
        // `{:#}` is JSON with line ends and indentation.
        format!("{:#}\n", self.to_value())
    }
}

/// BLAKE3 of a report's JSON without its digest, keys sorted, no blanks: whatever changes a fact changes it.
pub(super) fn digest(value: &Value) -> String {
    let mut value = value.clone();
    if let Value::Object(fields) = &mut value {
        fields.remove(DIGEST);
    }
    // Keys of a `Value` are sorted.
    blake3::hash(value.to_string().as_bytes()).to_hex().to_string()
}

/// Reads a report, or a saved bench run of format 1.
///
/// # Errors
/// [`ReportError`] if it is not one.
pub fn read(path: &Path) -> Result<Report, ReportError> {
    let file = path.display().to_string();
    read_text(&text(path)?, &file)
}

/// What a file holds, for [`read_text`].
///
/// # Errors
/// [`ReportError::Read`], and [`ReportError::NotJson`] if it holds bytes that are no text.
pub fn text(path: &Path) -> Result<String, ReportError> {
    let file = path.display().to_string();
    match std::fs::read(path) {
        Err(error) => Err(ReportError::Read { file, error }),
        Ok(bytes) => String::from_utf8(bytes).map_err(|error| {
            let error = serde::de::Error::custom(error.utf8_error());
            ReportError::NotJson { file, error }
        }),
    }
}

/// Reads a report's text; `file` is what errors call it.
///
/// # Errors
/// Those of [`read`].
pub fn read_text(text: &str, file: &str) -> Result<Report, ReportError> {
    from_value(parse(text, file)?, file)
}

pub(super) fn parse(text: &str, file: &str) -> Result<Value, ReportError> {
    serde_json::from_str(text).map_err(|error| ReportError::NotJson { file: file.to_string(), error })
}

/// The report that a value holds.
pub(super) fn from_value(value: Value, file: &str) -> Result<Report, ReportError> {
    let no_report =
        |because: &str| ReportError::NotReport { file: file.to_string(), because: because.to_string() };
    let fields = value.as_object().ok_or_else(|| no_report("it is not an object"))?;
    let format = fields.get("format").ok_or_else(|| no_report("it has no format"))?;
    match format.as_u64() {
        Some(number) if number == u64::from(FORMAT) => {}
        Some(BENCH_FORMAT) => {
            let mut benchmark: Benchmark = part(&value, file)?;
            count_operations(&mut benchmark);
            let mut report = header(&value, Content::Benchmark(benchmark), file)?;
            (report.evidence, report.non_claims) =
                (sentences::evidence(&report), sentences::non_claims(&report));
            return Ok(report);
        }
        _ => return Err(ReportError::Format { file: file.to_string(), found: format.to_string() }),
    }
    let content = match fields.get("kind").and_then(Value::as_str) {
        Some("verification") => Content::Verification(part(&value, file)?),
        Some("benchmark") => Content::Benchmark(part(&value, file)?),
        Some("service") => Content::Service(part(&value, file)?),
        _ => return Err(no_report("its kind is not verification, benchmark or service")),
    };
    header(&value, content, file)
}

/// Runs of format 1 do not say how many operations a product has. Products are what was measured in turns with a library.
fn count_operations(benchmark: &mut Benchmark) {
    for row in benchmark.rows.iter_mut().filter(|row| row.measurement.floor_method.starts_with("cuBLAS")) {
        let products = if row.call == "grad-ab" { 2.0 } else { 1.0 };
        row.operations = Some(row.shape.iter().fold(2.0 * products, |all, &size| all * size as f64));
    }
}

/// The facts that all kinds have.
fn header(value: &Value, content: Content, file: &str) -> Result<Report, ReportError> {
    /// As [`Report`], without the content.
    #[derive(serde::Deserialize)]
    struct Header {
        format: u32,
        causeway: String,
        #[serde(default)]
        command: Vec<String>,
        device: String,
        #[serde(default)]
        backend: Option<super::Backend>,
        threads: usize,
        host: super::Host,
        #[serde(default)]
        device_evidence: Option<super::DeviceEvidence>,
        #[serde(default)]
        program: Option<super::Program>,
        #[serde(default)]
        kernels: causeway::backend::gpu::artifact::Artifacts,
        unix_time: u64,
        #[serde(default)]
        seconds: f64,
        #[serde(default)]
        evidence: Vec<String>,
        #[serde(default)]
        non_claims: Vec<String>,
    }
    let header: Header = part(value, file)?;
    Ok(Report {
        format: header.format,
        causeway: header.causeway,
        command: header.command,
        device: header.device,
        backend: header.backend,
        threads: header.threads,
        host: header.host,
        device_evidence: header.device_evidence,
        program: header.program,
        kernels: header.kernels,
        unix_time: header.unix_time,
        seconds: header.seconds,
        evidence: header.evidence,
        non_claims: header.non_claims,
        content,
    })
}

/// The fields of one part of a report; errors name the place.
fn part<T: DeserializeOwned>(value: &Value, file: &str) -> Result<T, ReportError> {
    serde_path_to_error::deserialize(value).map_err(|error| ReportError::Field {
        file: file.to_string(),
        place: match error.path().to_string().as_str() {
            "." => "the report".to_string(),
            path => path.to_string(),
        },
        because: error.inner().to_string(),
    })
}
