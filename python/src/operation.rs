//! An operation as Python has it: its table, and the ways to call it.
//!
//! Tensors come in the order of the table, so that nothing here or in Python lists them again. An eager call of tensors that nobody
//! else watches costs one crossing from Python. Everything that wants to see an operation before it runs (autograd, autocast,
//! dispatch modes, tensor subclasses, `torch.func`, tracers) is told apart here and left to the package's Python code.

use std::sync::{Mutex, PoisonError};

use causeway::operation::{self as table, DTypes, Role};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::call::MOST_TOGETHER;
use crate::described::Described;
use crate::eager::{Watch, Way, way};
use crate::given::Given;
use crate::table::{Choice, Chooses, Entry};
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
    functions: Mutex<Vec<(usize, Choice, Py<PyAny>)>>,
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
    fn function<'py>(&self, py: Python<'py>, count: usize, choice: Choice) -> Option<Bound<'py, PyAny>> {
        let functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = functions.iter().filter(|(of, with, _)| (*of, *with) == (count, choice));
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
        let names: &[&str] = match self.entry().chooses {
            Chooses::Convolution => &["silu", "round_products", "head_dim", "eps", "scale"],
            Chooses::Algorithm => &["algorithm"],
            Chooses::Nothing => &[],
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
        let choice = self.entry().choice(option)?;
        Given::new(&self.described, inputs, outputs)?.compute(choice)
    }

    /// Computes several calls that know nothing of each other, at most three, on a GPU in one launch where that can be; gives the
    /// results of each.
    fn run_together<'py>(&self, calls: Vec<Asked<'py>>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        if calls.len() > MOST_TOGETHER {
            let found = calls.len();
            return Err(PyValueError::new_err(format!("{found} calls: expected {MOST_TOGETHER} at most")));
        }
        let choices =
            calls.iter().map(|(_, option, _)| self.entry().choice(option)).collect::<PyResult<Vec<_>>>()?;
        let given =
            calls.iter().map(|(inputs, _, outputs)| Given::new(&self.described, inputs, outputs.as_ref()));
        Given::compute_together(&given.collect::<PyResult<Vec<_>>>()?, &choices)
    }

    /// As `run`, if nobody wants to see the call before it runs; None if somebody does, or for arguments that only Python has words
    /// for. Autograd and autocast are the caller's.
    #[pyo3(signature = (inputs, option, outputs = None))]
    fn eager<'py>(
        &self,
        inputs: &Bound<'py, PyTuple>,
        option: &Bound<'py, PyAny>,
        outputs: Option<&Bound<'py, PyTuple>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(torch) = Torch::imported(inputs.py())? else { return Ok(None) };
        let given = Given::new(&self.described, inputs, outputs)?;
        match way(torch, &given, Watch::Others)? {
            Way::Kernel(first) => given.compute_plain(torch, first, self.entry().choice(option)?).map(Some),
            Way::Watched | Way::Recorded(_) => Ok(None),
        }
    }

    /// Computes as `eager` does, unless autocast wants to see the call too, if the tensors are not cast already. The activation
    /// has its name here. Where a gradient has to be recorded, it calls the function for that, if there is one; else it computes
    /// nothing, and gives how many of the inputs take part, those behind them being absent.
    #[pyo3(signature = (inputs, option, outputs, is_cast))]
    fn record<'py>(
        &self,
        inputs: &Bound<'py, PyTuple>,
        option: &Bound<'py, PyAny>,
        outputs: Option<&Bound<'py, PyTuple>>,
        is_cast: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = inputs.py();
        let (Some(torch), Some(choice)) = (Torch::imported(py)?, self.entry().named_choice(option)?) else {
            return Ok(None);
        };
        let given = Given::new(&self.described, inputs, outputs)?;
        let watch = if is_cast { Watch::Autograd } else { Watch::AutogradAndAutocast };
        Ok(match way(torch, &given, watch)? {
            Way::Watched => None,
            Way::Recorded(count) => {
                let function = outputs.is_none().then(|| self.function(py, count, choice)).flatten();
                Some(match function {
                    Some(function) => function.call1(inputs.get_slice(0, count))?,
                    None => count.into_pyobject(py)?.into_any(),
                })
            }
            Way::Kernel(first) => Some(given.compute_plain(torch, first, choice)?),
        })
    }

    /// Keeps a function of autograd's for `record`: of calls of so many inputs that have one result. None forgets the one that was
    /// kept.
    #[pyo3(signature = (count, option, function))]
    fn keep(&self, count: usize, option: &Bound<'_, PyAny>, function: Option<Py<PyAny>>) -> PyResult<()> {
        let Some(choice) = self.entry().named_choice(option)? else { return Ok(()) };
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let forgotten = functions.extract_if(.., |(of, with, _)| (*of, *with) == (count, choice));
        let forgotten: Vec<_> = forgotten.collect();
        functions.extend(function.map(|function| (count, choice, function)));
        // Not under the lock: what is freed may run Python.
        drop((functions, forgotten));
        Ok(())
    }

    /// The results of a call of PyTorch's tensors, without values: of fake ones, say.
    #[pyo3(signature = (inputs, outputs = None))]
    fn empty<'py>(
        &self,
        inputs: &Bound<'py, PyTuple>,
        outputs: Option<&Bound<'py, PyTuple>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Given::new(&self.described, inputs, outputs)?.empty()
    }
}
