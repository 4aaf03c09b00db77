//! Memory around inputs that nobody may touch. AddressSanitizer, where it is in the process, ends the run at the first access:
//! tensors lie in larger storage, and by itself it knows the storage's ends alone.

use causeway::HostTensor;
use causeway::device::Device;

/// Tells AddressSanitizer as long as it lives.
pub(super) struct Guards {
    /// First byte and number of bytes of what lies around each tensor.
    regions: Vec<(usize, usize)>,
}

impl Guards {
    /// Around tensors that kernels on this device read where the host has them; otherwise of nothing.
    pub fn around<'a>(device: &Device, tensors: impl IntoIterator<Item = &'a HostTensor>) -> Self {
        let mut regions = Vec::new();
        if let (Device::Simulated(_), Some(poison)) = (device, sanitizer("__asan_poison_memory_region")) {
            tensors.into_iter().for_each(|tensor| regions.extend(around(tensor)));
            for &(start, bytes) in &regions {
                // SAFETY: the region is a part of the tensor's storage without elements.
                unsafe { poison(start, bytes) };
            }
        }
        Guards { regions }
    }
}

impl Drop for Guards {
    fn drop(&mut self) {
        if let Some(unpoison) = sanitizer("__asan_unpoison_memory_region") {
            for &(start, bytes) in &self.regions {
                // SAFETY: it was poisoned by `around`.
                unsafe { unpoison(start, bytes) };
            }
        }
    }
}

/// What lies before a tensor's lowest element and past its highest one.
fn around(tensor: &HostTensor) -> [(usize, usize); 2] {
    let (storage, size) = (tensor.bytes(), tensor.dtype().size());
    let reach = |upwards: bool| {
        let steps =
            tensor.shape().iter().zip(tensor.strides()).map(|(&length, &stride)| stride * (length - 1));
        let elements = tensor.offset() + steps.filter(|&step| (step > 0) == upwards).sum::<i64>();
        elements as usize * size
    };
    let (low, high) = match tensor.element_count() {
        0 => (storage.len(), storage.len()),
        _ => (reach(false), reach(true) + size),
    };
    let start = storage.as_ptr() as usize;
    [(start, low), (start + high, storage.len() - high)]
}

/// A function of AddressSanitizer's, which takes an address and a number of bytes.
#[cfg(unix)]
fn sanitizer(name: &str) -> Option<unsafe extern "C" fn(usize, usize)> {
    let program = libloading::os::unix::Library::this();
    // SAFETY: these functions have this type, in every version.
    let symbol = unsafe { program.get::<unsafe extern "C" fn(usize, usize)>(name.as_bytes()) };
    symbol.ok().map(|symbol| *symbol)
}

#[cfg(not(unix))]
fn sanitizer(_: &str) -> Option<unsafe extern "C" fn(usize, usize)> {
    None
}

#[cfg(test)]
mod tests {
    use causeway::tensor::DType;

    use super::super::Placement;
    use super::*;

    #[test]
    fn what_lies_around_begins_and_ends_at_elements() {
        let placement: Placement = toml::from_str("reversed = [1]\ngaps = [0, 3]\noffset = 5").unwrap();
        for shape in [[2, 7], [0, 7]] {
            let tensor = placement.arrange(DType::F16, &shape).unwrap().zeros().unwrap();
            let start = tensor.bytes().as_ptr() as usize;
            let [(first, before), (end, after)] = around(&tensor);
            assert_eq!((first, end + after), (start, start + tensor.bytes().len()));
            if tensor.element_count() > 0 {
                let lowest = [0, shape[1] - 1];
                assert_eq!(tensor.view().element_bytes(&lowest).as_ptr() as usize, start + before);
                assert_eq!(tensor.view().element_bytes(&[1, 0]).as_ptr() as usize + 2, end);
            } else {
                assert_eq!(before, tensor.bytes().len());
            }
        }
    }
}
