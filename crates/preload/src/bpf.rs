//! `bpf(2)`: a BPF map of sockets takes over the streams of the sockets in it. Its BPF programs see
//! the bytes, and may drop or redirect them.

use core::ffi::c_int;

use toehold_freestanding::call;
use toehold_sockets::system::faults;
use toehold_sockets::{api, is_started};

/// `BPF_MAP_UPDATE_ELEM`, with its part of `union bpf_attr` (include/uapi/linux/bpf.h).
const UPDATE: usize = 2;
#[repr(C)]
#[derive(Clone, Copy)]
struct Update {
    map: u32,
    _hole: u32,
    key: u64,
    value: u64,
}

/// `BPF_OBJ_GET_INFO_BY_FD`, with its part of `union bpf_attr`.
const INFORM: usize = 15;
#[repr(C)]
struct Inform {
    map: u32,
    bytes: u32,
    info: u64,
}

/// The call is about to be made. libc has no function for it.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn before_bpf(command: usize, attributes: usize, bytes: usize) {
    if command != UPDATE || bytes < size_of::<Update>() || !is_started() {
        return;
    }
    // SAFETY: any bytes are these, and a number.
    let fd = unsafe {
        faults::seen::<Update>(attributes)
            .filter(|update| is_of_sockets(update.map))
            .and_then(|update| faults::seen::<c_int>(update.value as usize))
    };
    if let Some(fd) = fd {
        api::giving_to_kernel(fd);
    }
}

/// Whether a map is `BPF_MAP_TYPE_SOCKMAP` or `BPF_MAP_TYPE_SOCKHASH`.
fn is_of_sockets(map: u32) -> bool {
    const SOCKETS: [u32; 2] = [15, 18];
    // The first word of `struct bpf_map_info`; the kernel writes no more than fits.
    let mut kind = 0u32;
    let inform = Inform {
        map,
        bytes: size_of_val(&kind) as u32,
        info: (&raw mut kind) as u64,
    };
    let (at, bytes) = (&raw const inform as usize, size_of_val(&inform));
    // SAFETY: `inform` and what it points to live until then.
    let answer = unsafe { call!(SYS_bpf, INFORM, at, bytes) };
    answer == 0 && SOCKETS.contains(&kind)
}
