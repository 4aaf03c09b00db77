//! The run-time compilers' own interface. NVRTC and HIPRTC give the same functions different names.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use libloading::Library;

use crate::backend::gpu::facts::Vendor;
use crate::backend::gpu::library::{self, Opened};
use crate::error::{Error, Result};

type RawProgram = *mut std::ffi::c_void;

/// Program, text, its name, how many headers, their texts and names.
type CreateProgram = unsafe extern "C" fn(
    *mut RawProgram,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;

/// Something about a program, and where to store it.
type Ask<T> = unsafe extern "C" fn(RawProgram, *mut T) -> c_int;

/// `NVRTC_ERROR_INVALID_OPTION` and its twin.
const INVALID_OPTION: c_int = 5;
/// `NVRTC_ERROR_COMPILATION` and its twin.
const COMPILATION: c_int = 6;

/// A function and its name, for messages.
type Named<F> = (F, &'static str);

/// An open run-time compiler.
pub(super) struct Rtc {
    create: Named<CreateProgram>,
    compile: Named<unsafe extern "C" fn(RawProgram, c_int, *const *const c_char) -> c_int>,
    log_size: Named<Ask<usize>>,
    log: Named<Ask<c_char>>,
    code_size: Named<Ask<usize>>,
    code: Named<Ask<c_char>>,
    destroy: Named<unsafe extern "C" fn(*mut RawProgram) -> c_int>,
    error_string: Named<unsafe extern "C" fn(c_int) -> *const c_char>,
    /// Major and minor version.
    pub version: (u32, u32),
    /// HIPRTC's: ROCm 5.2 ends the process when two threads compile at once.
    one_at_a_time: Option<Mutex<()>>,
    /// NVRTC's built-in headers: it looks for them among the libraries that are open.
    _builtins: Option<Library>,
    _library: Library,
}

/// How a compilation ended, when the compiler itself worked.
pub(super) enum Outcome {
    /// Code and the log, which may hold warnings.
    Code(Vec<u8>, String),
    /// The compiler refused the text; its log.
    Refused(String),
    /// The compiler refused an option; its log.
    InvalidOption(String),
}

/// A function by its names: NVRTC's, HIPRTC's.
macro_rules! symbol {
    ($library:expr, $path:expr, $index:expr, $nvrtc:literal / $hiprtc:literal) => {{
        let name = [$nvrtc, $hiprtc][$index];
        // SAFETY: the fields of `Rtc` have the signatures that both vendors document for these names.
        match unsafe { $library.get(name.as_bytes()) } {
            Ok(symbol) => (*symbol, name),
            Err(_) => {
                let fix = ["install NVRTC 11.2 or later", "install ROCm 5.0 or later"][$index];
                return Err(Error::SymbolMissing { path: $path.clone(), symbol: name, fix });
            }
        }
    }};
}

impl Rtc {
    /// Looks up the functions of an open library.
    pub fn new(vendor: Vendor, opened: Opened) -> Result<Self> {
        let index = vendor as usize;
        let Opened { library, path } = opened;
        let file = path;
        let path = file.display().to_string();
        let version: Named<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int> =
            symbol!(library, path, index, "nvrtcVersion" / "hiprtcVersion");
        let mut rtc = Rtc {
            create: symbol!(library, path, index, "nvrtcCreateProgram" / "hiprtcCreateProgram"),
            compile: symbol!(library, path, index, "nvrtcCompileProgram" / "hiprtcCompileProgram"),
            log_size: symbol!(library, path, index, "nvrtcGetProgramLogSize" / "hiprtcGetProgramLogSize"),
            log: symbol!(library, path, index, "nvrtcGetProgramLog" / "hiprtcGetProgramLog"),
            code_size: symbol!(library, path, index, "nvrtcGetCUBINSize" / "hiprtcGetCodeSize"),
            code: symbol!(library, path, index, "nvrtcGetCUBIN" / "hiprtcGetCode"),
            destroy: symbol!(library, path, index, "nvrtcDestroyProgram" / "hiprtcDestroyProgram"),
            error_string: symbol!(library, path, index, "nvrtcGetErrorString" / "hiprtcGetErrorString"),
            version: (0, 0),
            one_at_a_time: (vendor == Vendor::Amd).then(Mutex::default),
            _builtins: None,
            _library: library,
        };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are places for the answers.
        rtc.check(version.1, unsafe { (version.0)(&mut major, &mut minor) })?;
        rtc.version = (major.unsigned_abs(), minor.unsigned_abs());
        match vendor {
            Vendor::Nvidia => rtc._builtins = open_builtins(&file, rtc.version),
            Vendor::Amd => rtc.version = rocm_version(&rtc._library, &file),
        }
        Ok(rtc)
    }

    /// Compiles one text to machine code.
    pub fn compile(&self, text: &str, options: &[String]) -> Result<Outcome> {
        let _turn =
            self.one_at_a_time.as_ref().map(|turn| turn.lock().unwrap_or_else(PoisonError::into_inner));
        let text = self.c_text(text)?;
        let options = options.iter().map(|option| self.c_text(option)).collect::<Result<Vec<_>>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();

        let mut program = Handle { rtc: self, raw: ptr::null_mut() };
        // SAFETY: `raw` is a place for the answer; the text and the name end in zero; there are no headers.
        let status = unsafe {
            (self.create.0)(&mut program.raw, text.as_ptr(), c"kernel".as_ptr(), 0, ptr::null(), ptr::null())
        };
        self.check(self.create.1, status)?;
        // SAFETY: the program is live, and `options` holds as many texts as is said.
        let status = unsafe { (self.compile.0)(program.raw, options.len() as c_int, options.as_ptr()) };
        let log = program.log();
        match status {
            COMPILATION => return Ok(Outcome::Refused(log)),
            INVALID_OPTION => return Ok(Outcome::InvalidOption(log)),
            _ => self.check(self.compile.1, status)?,
        }
        let mut size = 0;
        // SAFETY: the program is compiled; `size` is a place for the answer.
        let status = unsafe { (self.code_size.0)(program.raw, &mut size) };
        self.check(self.code_size.1, status)?;
        let mut code = vec![0u8; size];
        // SAFETY: the buffer has the size that the compiler named.
        let status = unsafe { (self.code.0)(program.raw, code.as_mut_ptr().cast()) };
        self.check(self.code.1, status)?;
        Ok(Outcome::Code(code, log))
    }

    fn c_text(&self, text: &str) -> Result<CString> {
        CString::new(text).map_err(|_| Error::Driver {
            call: self.create.1,
            code: INVALID_OPTION,
            message: "the text holds a zero byte".to_string(),
        })
    }

    fn check(&self, call: &'static str, status: c_int) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the compilers return constant texts, for any number.
        let words = unsafe {
            let words = (self.error_string.0)(status);
            if words.is_null() { String::new() } else { CStr::from_ptr(words).to_string_lossy().into_owned() }
        };
        Err(Error::Driver { call, code: status, message: format!("{words} ({status})") })
    }
}

/// A program of the compiler, destroyed when dropped.
struct Handle<'a> {
    rtc: &'a Rtc,
    raw: RawProgram,
}

impl Handle<'_> {
    /// What the compiler said.
    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: the program is live; `size` is a place for the answer.
        if unsafe { (self.rtc.log_size.0)(self.raw, &mut size) } != 0 || size <= 1 {
            return String::new();
        }
        let mut log = vec![0u8; size];
        // SAFETY: the buffer has the size that the compiler named.
        unsafe { (self.rtc.log.0)(self.raw, log.as_mut_ptr().cast()) };
        let text = log.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).trim().to_string()
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the program is live and is not used again.
            unsafe { (self.rtc.destroy.0)(&mut self.raw) };
        }
    }
}

/// The ROCm that a HIPRTC is part of. HIPRTC itself says 9.0, whatever it is; the HIP runtime knows, which is the
/// same library in ROCm 5 and lies beside it later.
fn rocm_version(hiprtc: &Library, file: &Path) -> (u32, u32) {
    type Version = unsafe extern "C" fn(*mut c_int) -> c_int;
    let ask = |library: &Library| {
        let mut number = 0;
        // SAFETY: HIP documents this signature; `number` is a place for the answer.
        let status = unsafe { library.get::<Version>(b"hipRuntimeGetVersion").ok()?(&mut number) };
        if status != 0 {
            // Nobody else shall find this error as HIP's last one.
            // SAFETY: HIP documents this signature.
            unsafe { library.get::<unsafe extern "C" fn() -> c_int>(b"hipGetLastError").ok()?() };
        }
        let number = u32::try_from(number).ok().filter(|_| status == 0)?;
        Some((number / 10_000_000, number / 100_000 % 100))
    };
    let beside = || {
        let directory = file.parent()?.to_path_buf();
        library::Search::only([directory]).open(&library::HIP_RUNTIME, None, |_| Ok(())).ok()
    };
    // A HIPRTC that is a library of its own, with no runtime beside it, is of ROCm 6 at least.
    ask(hiprtc).or_else(|| ask(&beside()?.library)).unwrap_or((6, 0))
}

/// Opens the `libnvrtc-builtins` that belongs to an NVRTC, from the same directory. NVRTC asks the loader for it
/// by bare name, which finds nothing when NVRTC itself was opened by its path.
fn open_builtins(nvrtc: &Path, (major, minor): (u32, u32)) -> Option<Library> {
    let exact = format!(".so.{major}.{minor}");
    let entries = nvrtc.parent()?.read_dir().ok()?;
    entries.flatten().map(|entry| entry.path()).find_map(|path| {
        let name = path.file_name()?.to_str()?;
        let version =
            name.strip_prefix("libnvrtc-builtins").and_then(|rest| rest.find(".so").map(|at| &rest[at..]))?;
        if version != exact {
            return None;
        }
        library::open(&path).ok().map(|opened| opened.library)
    })
}
