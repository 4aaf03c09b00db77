//! An operation as Python has it: its table, and the ways to call it.
//!
//! Tensors come in the order of the table, so that nothing here or in Python lists them again. An eager call of tensors that nothing
//! intercepts costs one crossing from Python. What does intercept operations (autograd, autocast, dispatch modes, tensor subclasses,
//! `torch.func`, tracers) is told apart here and left to the package's Python code.

use std::sync::{Mutex, PoisonError};

use causeway::operation::{self as table, DTypes, Role};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::call::MOST_TOGETHER;
use crate::described::Described;
use crate::eager::{Way, way};
use crate::given::Given;
use crate::table::{CallOptions, Entry, OptionKind};
use crate::torch::Torch;

/// A tensor of an operation.
#[pyclass(frozen, get_all, module = "causeway._native")]
pub struct Argument {
    name: &'static str,
    role: &'static str,
    optional: bool,
    /// The names of its axes.
    axes: Py<PyTuple>,
    /// The name of the argument whose dtype it has.
    dtype_of: &'static str,
    /// Whether it holds integers, which autograd and meshes of devices treat in their own ways.
    is_index: bool,
    /// The name of the input without which it has no meaning.
    needs: Option<&'static str>,
}

/// Inputs, option and outputs of a call, as `run` takes them.
type Asked<'py> = (Bound<'py, PyTuple>, Bound<'py, PyAny>, Option<Bound<'py, PyTuple>>);

/// An operation of the library.
#[pyclass(frozen, module = "causeway._native")]
pub struct Operation {
    pub described: Described,
    /// Autograd's functions of calls with one result, which are called with the inputs.
    functions: Mutex<Vec<(usize, CallOptions, Py<PyAny>)>>,
}

impl Operation {
    pub fn new(entry: &'static Entry) -> Self {
        Operation { described: Described::new(entry), functions: Mutex::default() }
    }

    /// Its table.
    pub fn entry(&self) -> &'static Entry {
        self.described.entry
    }

    /// The function of autograd's for calls of so many inputs, if there is one by now.
    fn function<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        options: CallOptions,
    ) -> Option<Bound<'py, PyAny>> {
        let functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = functions.iter().filter(|(of, with, _)| (*of, *with) == (count, options));
        found.next().map(|(_, _, function)| function.bind(py).clone())
    }

    fn tensors<'py>(
        &self,
        py: Python<'py>,
        arguments: &'static [table::Argument],
    ) -> PyResult<Bound<'py, PyTuple>> {
        let entry = self.entry();
        let describe = |argument: &'static table::Argument| {
            let described = Argument {
                name: entry.name_of(argument.name),
                role: match argument.role {
                    Role::Input => "input",
                    Role::Output => "output",
                    Role::InPlace => "in_place",
                },
                optional: argument.optional,
                axes: PyTuple::new(py, argument.shape.names().collect::<Vec<_>>())?.unbind(),
                dtype_of: entry.name_of(argument.dtype_source(entry.arguments).name),
                is_index: matches!(argument.dtypes, DTypes::Among(among, _) if !among.iter().any(|dtype| dtype.is_float())),
                needs: argument.needs.map(|(input, _)| entry.name_of(input)),
            };
            Bound::new(py, described)
        };
        PyTuple::new(py, arguments.iter().map(describe).collect::<PyResult<Vec<_>>>()?)
    }
}

#[pymethods]
impl Operation {
    /// Its name.
    #[getter]
    fn name(&self) -> &'static str {
        self.entry().name
    }

    /// What it is told besides tensors. Calls have the first one alone as it is, or a tuple, of the first two or of all.
    #[getter]
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let names: &[&str] = match self.entry().option_kind {
            OptionKind::Convolution => &["silu", "round_products", "head_dim", "eps", "scale"],
            OptionKind::Algorithm => &["algorithm"],
            OptionKind::Nothing => &[],
        };
        PyTuple::new(py, names)
    }

    /// The tensors that it reads.
    #[getter]
    fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.tensors(py, &self.entry().arguments[..self.described.inputs])
    }

    /// The tensors that it writes.
    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.tensors(py, &self.entry().arguments[self.described.inputs..])
    }

    /// Computes; gives the results.
    #[pyo3(signature = (inputs, option, outputs = None))]
    fn run<'py>(
        &self,
        inputs: &Bound<'py, PyTuple>,
        option: &Bound<'py, PyAny>,
        outputs: Option<&Bound<'py, PyTuple>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = self.entry().options(option)?;
        Given::new(&self.described, inputs, outputs)?.compute(options)
    }

    /// Computes several calls that know nothing of each other, at most three, on a GPU in one launch where that can be; gives the
    /// results of each.
    fn run_together<'py>(&self, calls: Vec<Asked<'py>>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        if calls.len() > MOST_TOGETHER {
            let found = calls.len();
            return Err(PyValueError::new_err(format!("{found} calls: expected {MOST_TOGETHER} at most")));
        }
        let all_options =
            calls.iter().map(|(_, option, _)| self.entry().options(option)).collect::<PyResult<Vec<_>>>()?;
        let given =
            calls.iter().map(|(inputs, _, outputs)| Given::new(&self.described, inputs, outputs.as_ref()));
        Given::compute_together(&given.collect::<PyResult<Vec<_>>>()?, &all_options)
    }

    /// As `run`, if nothing intercepts the call; None if something does, or for arguments that only Python has words for. Autograd and
    /// autocast are the caller's.
    #[pyo3(signature = (inputs, option, outputs = None))]
    fn eager<'py>(
        &self,
        inputs: &Bound<'py, PyTuple>,
        option: &Bound<'py, PyAny>,
        outputs: Option<&Bound<'py, PyTuple>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(torch) = Torch::imported(inputs.py())? else { return Ok(None) };
        let given = Given::new(&self.described, inputs, outputs)?;
        match way(torch, &given, true, true)? {
            Way::Direct(first) => given.compute_plain(torch, first, self.entry().options(option)?).map(Some),
            Way::Python | Way::Autograd(_) => Ok(None),
        }
    }

    /// Computes as `eager` does, unless autocast intercepts the call too, if the tensors are not cast already. The activation
    /// has its name here. Where a gradient has to be recorded, it calls the function for that, if there is one; else it computes
    /// nothing, and gives how many of the inputs take part, those after them being absent.
    #[pyo3(signature = (inputs, option, outputs, is_cast))]
    fn record<'py>(
        &self,
        inputs: &Bound<'py, PyTuple>,
        option: &Bound<'py, PyAny>,
        outputs: Option<&Bound<'py, PyTuple>>,
        is_cast: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = inputs.py();
        let (Some(torch), Some(options)) = (Torch::imported(py)?, self.entry().named_options(option)?) else {
            return Ok(None);
        };
        let given = Given::new(&self.described, inputs, outputs)?;
        Ok(match way(torch, &given, is_cast, false)? {
            Way::Python => None,
            Way::Autograd(count) => {
                let function = outputs.is_none().then(|| self.function(py, count, options)).flatten();
                Some(match function {
                    Some(function) => function.call1(inputs.get_slice(0, count))?,
                    None => count.into_pyobject(py)?.into_any(),
                })
            }
            Way::Direct(first) => Some(given.compute_plain(torch, first, options)?),
        })
    }

    /// Keeps a function of autograd's for `record`: of calls of so many inputs that have one result. None forgets the one that was
    /// kept.
    #[pyo3(signature = (count, option, function))]
    fn keep(&self, count: usize, option: &Bound<'_, PyAny>, function: Option<Py<PyAny>>) -> PyResult<()> {
        let Some(options) = self.entry().named_options(option)? else { return Ok(()) };
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let forgotten = functions.extract_if(.., |(of, with, _)| (*of, *with) == (count, options));
        let forgotten: Vec<_> = forgotten.collect();
        functions.extend(function.map(|function| (count, options, function)));
        // Not under the lock: what is freed may run Python.
        drop((functions, forgotten));
        Ok(())
    }

    /// The results of a call of PyTorch's tensors, without values: of fake ones, say. An algorithm is checked.
    #[pyo3(signature = (inputs, outputs = None, algorithm = None))]
    fn empty<'py>(
        &self,
        inputs: &Bound<'py, PyTuple>,
        outputs: Option<&Bound<'py, PyTuple>>,
        algorithm: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let entry = self.described.entry;
        let options = algorithm.map_or_else(|| Ok(entry.any_options()), |name| entry.options(name))?;
        Given::new(&self.described, inputs, outputs)?.empty(options)
    }
}
