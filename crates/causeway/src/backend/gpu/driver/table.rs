//! The functions that are used of a driver. CUDA's driver API and HIP's runtime API give them the same
//! parameters under different names, so one table of pointers serves both; what truly differs is in
//! `cuda.rs` and `hip.rs`.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

use crate::error::{Error, Result};

/// An opaque handle of the driver: a context, stream, event, module, function, graph or memory pool.
pub(crate) type Raw = *mut c_void;

/// Which of the two columns of names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub index: usize,
    /// What to update when a function is missing.
    pub fix: &'static str,
}

macro_rules! table {
    (
        required { $($name:ident ( $($argument:ty),* ) = $cuda:literal / $hip:literal;)* }
        optional { $($maybe:ident ( $($maybe_argument:ty),* ) = $maybe_cuda:literal / $maybe_hip:literal;)* }
    ) => {
        /// Pointers into an open driver library, and the names of the functions for messages.
        pub(crate) struct Table {
            $(pub $name: (unsafe extern "C" fn($($argument),*) -> c_int, &'static str),)*
            $(pub $maybe: Option<(unsafe extern "C" fn($($maybe_argument),*) -> c_int, &'static str)>,)*
        }

        impl Table {
            /// Looks every function up.
            ///
            /// # Errors
            /// [`Error::SymbolMissing`] for the first required one that is not there.
            ///
            /// # Safety
            /// `library` must be the driver whose names `column` selects, and must stay open for as long as
            /// the table is used.
            pub unsafe fn load(library: &Library, path: &str, column: Column) -> Result<Self> {
                let missing = |symbol: &'static str| Error::SymbolMissing {
                    path: path.to_string(),
                    symbol,
                    fix: column.fix,
                };
                Ok(Table {
                    $($name: {
                        let name = [$cuda, $hip][column.index];
                        // SAFETY: the vendor documents this function with this signature.
                        let symbol = unsafe { library.get(name.as_bytes()) };
                        (*symbol.map_err(|_| missing(name))?, name)
                    },)*
                    $($maybe: {
                        let name = [$maybe_cuda, $maybe_hip][column.index];
                        // SAFETY: as above.
                        unsafe { library.get(name.as_bytes()) }.ok().map(|symbol| (*symbol, name))
                    },)*
                })
            }
        }
    };
}

table! {
    required {
        init(c_uint) = "cuInit" / "hipInit";
        driver_version(*mut c_int) = "cuDriverGetVersion" / "hipDriverGetVersion";
        device_count(*mut c_int) = "cuDeviceGetCount" / "hipGetDeviceCount";
        device_get(*mut c_int, c_int) = "cuDeviceGet" / "hipDeviceGet";
        device_name(*mut c_char, c_int, c_int) = "cuDeviceGetName" / "hipDeviceGetName";
        device_attribute(*mut c_int, c_int, c_int) = "cuDeviceGetAttribute" / "hipDeviceGetAttribute";
        device_total_memory(*mut usize, c_int) = "cuDeviceTotalMem_v2" / "hipDeviceTotalMem";
        memory_info(*mut usize, *mut usize) = "cuMemGetInfo_v2" / "hipMemGetInfo";

        stream_create(*mut Raw, c_uint) = "cuStreamCreate" / "hipStreamCreateWithFlags";
        stream_destroy(Raw) = "cuStreamDestroy_v2" / "hipStreamDestroy";
        stream_synchronize(Raw) = "cuStreamSynchronize" / "hipStreamSynchronize";
        stream_query(Raw) = "cuStreamQuery" / "hipStreamQuery";
        stream_wait_event(Raw, Raw, c_uint) = "cuStreamWaitEvent" / "hipStreamWaitEvent";

        event_create(*mut Raw, c_uint) = "cuEventCreate" / "hipEventCreateWithFlags";
        event_destroy(Raw) = "cuEventDestroy_v2" / "hipEventDestroy";
        event_record(Raw, Raw) = "cuEventRecord" / "hipEventRecord";
        event_synchronize(Raw) = "cuEventSynchronize" / "hipEventSynchronize";
        event_elapsed(*mut f32, Raw, Raw) = "cuEventElapsedTime" / "hipEventElapsedTime";

        allocate(*mut u64, usize) = "cuMemAlloc_v2" / "hipMalloc";
        free(u64) = "cuMemFree_v2" / "hipFree";
        copy_to_device(u64, *const c_void, usize, Raw) = "cuMemcpyHtoDAsync_v2" / "hipMemcpyHtoDAsync";
        copy_to_host(*mut c_void, u64, usize, Raw) = "cuMemcpyDtoHAsync_v2" / "hipMemcpyDtoHAsync";
        copy_on_device(u64, u64, usize, Raw) = "cuMemcpyDtoDAsync_v2" / "hipMemcpyDtoDAsync";
        fill_bytes(u64, u8, usize, Raw) = "cuMemsetD8Async" / "hipMemsetD8Async";

        module_load(*mut Raw, *const c_void) = "cuModuleLoadData" / "hipModuleLoadData";
        module_unload(Raw) = "cuModuleUnload" / "hipModuleUnload";
        module_function(*mut Raw, Raw, *const c_char) = "cuModuleGetFunction" / "hipModuleGetFunction";
        function_attribute(*mut c_int, c_int, Raw) = "cuFuncGetAttribute" / "hipFuncGetAttribute";
        blocks_per_multiprocessor(*mut c_int, Raw, c_int, usize)
            = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
            / "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor";
        launch(
            Raw, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Raw, *mut *mut c_void, *mut *mut c_void
        ) = "cuLaunchKernel" / "hipModuleLaunchKernel";

        capture_begin(Raw, c_int) = "cuStreamBeginCapture_v2" / "hipStreamBeginCapture";
        capture_end(Raw, *mut Raw) = "cuStreamEndCapture" / "hipStreamEndCapture";
        capture_info(Raw, *mut c_int, *mut u64) = "cuStreamGetCaptureInfo" / "hipStreamGetCaptureInfo";
        capture_mode_exchange(*mut c_int)
            = "cuThreadExchangeStreamCaptureMode" / "hipThreadExchangeStreamCaptureMode";
        graph_launch(Raw, Raw) = "cuGraphLaunch" / "hipGraphLaunch";
        graph_destroy(Raw) = "cuGraphDestroy" / "hipGraphDestroy";
        executable_destroy(Raw) = "cuGraphExecDestroy" / "hipGraphExecDestroy";
    }
    optional {
        // CUDA 12.0, ROCm 7.1.
        stream_id(Raw, *mut u64) = "cuStreamGetId" / "hipStreamGetId";
        // CUDA 11.4, ROCm 5.0.
        graph_instantiate(*mut Raw, Raw, u64) = "cuGraphInstantiateWithFlags" / "hipGraphInstantiateWithFlags";
        // CUDA 11.2, ROCm 5.2; usable where the device says so.
        pool_create(*mut Raw, *const PoolProperties) = "cuMemPoolCreate" / "hipMemPoolCreate";
        pool_set(Raw, c_int, *mut c_void) = "cuMemPoolSetAttribute" / "hipMemPoolSetAttribute";
        pool_destroy(Raw) = "cuMemPoolDestroy" / "hipMemPoolDestroy";
        pool_allocate(*mut u64, usize, Raw, Raw) = "cuMemAllocFromPoolAsync" / "hipMallocFromPoolAsync";
        pool_free(u64, Raw) = "cuMemFreeAsync" / "hipFreeAsync";
    }
}

/// `CUmemPoolProps` and `hipMemPoolProps`: the same 88 bytes, of which all but these are zero here.
#[repr(C)]
pub(crate) struct PoolProperties {
    /// 1: device memory that stays where it is.
    pub allocation_type: c_int,
    pub handle_types: c_int,
    /// 1: on a device.
    pub location_type: c_int,
    pub location_ordinal: c_int,
    pub reserved: [u64; 9],
}

const _: () = assert!(size_of::<PoolProperties>() == 88);
