//! Status codes. An integer newtype, since drivers return codes that their headers of the day do not list.

/// What a driver call returned. CUDA and HIP give the codes named here the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status(pub i32);

impl Status {
    pub const SUCCESS: Status = Status(0);
    pub const OUT_OF_MEMORY: Status = Status(2);
    pub const NO_DEVICE: Status = Status(100);
    pub const INVALID_DEVICE: Status = Status(101);
    pub const NOT_READY: Status = Status(600);

    /// Code of the wrong format, architecture or age.
    pub fn is_invalid_image(self) -> bool {
        // Invalid image, no binary for this GPU, invalid PTX, PTX too new, invalid kernel file (ELF).
        matches!(self.0, 200 | 209 | 218 | 222 | 300)
    }

    /// A failure after which the driver answers every call of this process with the same code.
    pub fn is_device_lost(self) -> bool {
        matches!(
            self.0,
            214 // uncorrectable ECC error
            | 220 // NVLink error
            | 226 // contained error
            | 700 // illegal address
            | 702 // launch timed out
            | 709 // context destroyed
            | 710 // device assertion
            | 714 // hardware stack error
            | 715 // illegal instruction
            | 716 // misaligned address
            | 717 // invalid address space
            | 718 // invalid program counter
            | 719 // launch failed
        )
    }
}
