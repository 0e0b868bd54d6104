//! The structures that the device reads and writes, as the kernel's `linux/idxd.h` has them. A test
//! compiles that header and compares.

/// A descriptor: one piece of work.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// Filled in by the processor or the kernel.
    pub pasid_and_privilege: u32,
    /// Flags in the low 24 bits, the operation's code in the high 8.
    pub flags_and_opcode: u32,
    /// Where the completion record goes.
    pub completion_addr: u64,
    /// The source's address, or a fill's pattern.
    pub source_or_pattern: u64,
    /// The target's address.
    pub target: u64,
    /// Bytes to move.
    pub len: u32,
    /// No interrupts.
    pub interrupt_handle: u16,
    /// Zero.
    pub reserved: u16,
    /// Zero for the operations used here.
    pub specific: [u8; 24],
}

impl Descriptor {
    /// The operation: see [`opcode`].
    pub fn opcode(&self) -> u8 {
        (self.flags_and_opcode >> 24) as u8
    }
}

/// A completion record.
#[repr(C, align(32))]
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Written last: see [`status`].
    pub status: u8,
    /// Of no use here.
    pub result: u8,
    /// Zero.
    pub reserved: u16,
    /// The bytes that the device completed before a fault.
    pub bytes_completed: u32,
    /// The address that the device could not use.
    pub fault_addr: u64,
    /// Of no use here.
    pub specific: [u8; 16],
}

impl Record {
    /// A record that the device has not written yet.
    pub const EMPTY: Record = Record {
        status: status::NONE,
        result: 0,
        reserved: 0,
        bytes_completed: 0,
        fault_addr: 0,
        specific: [0; 16],
    };
}

const _: () = assert!(size_of::<Descriptor>() == 64 && size_of::<Record>() == 32);

/// Codes of operations.
pub mod opcode {
    /// Copies.
    pub const MEMMOVE: u8 = 3;
    /// Repeats a pattern of eight bytes.
    pub const MEMFILL: u8 = 4;
}

/// Flags of descriptors.
pub mod flag {
    /// `completion_addr` means something.
    pub const COMPLETION_ADDRESS_VALID: u32 = 0x0004;
    /// The device writes a record also after success.
    pub const REQUEST_COMPLETION: u32 = 0x0008;
    /// The target goes to the cache.
    pub const CACHE_CONTROL: u32 = 0x0100;
}

/// Values of [`Record::status`](super::Record).
pub mod status {
    /// Not written yet.
    pub const NONE: u8 = 0;
    /// All done.
    pub const SUCCESS: u8 = 1;
    /// Stopped at a page that is not present.
    pub const PAGE_FAULT_NOBOF: u8 = 3;
    /// An operation the device does not have.
    pub const BAD_OPCODE: u8 = 0x10;
    /// The bits that are the status; the last one tells a write fault from a read fault.
    pub const MASK: u8 = 0x7f;
}
