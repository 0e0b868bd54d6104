//! The C interface: `include/toehold_copy.h`, which documents it.
//!
//! No panic crosses into C: this module first checks everything that would panic in Rust.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Mutex;
use std::time::Duration;

use crate::error::{Fault, SubmitError};
use crate::{Buffer, Channel, Cookie, Flags, Operation, Status, Waiting};

const TIMED_OUT: c_int = -8;
const NO_SUCH_COOKIE: c_int = -9;

/// `struct toehold_copy_status`.
#[repr(C)]
pub struct CStatus {
    state: c_int,
    crc32c: u32,
    bytes: u64,
    address: u64,
}

/// `struct toehold_copy_part`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CPart {
    base: *mut u8,
    len: usize,
}

fn code(error: SubmitError) -> c_int {
    match error {
        SubmitError::Full => -1,
        SubmitError::Overlap => -2,
        SubmitError::Null => -3,
        SubmitError::TooLong => -4,
        SubmitError::Uneven => -5,
        SubmitError::TooManyParts => -6,
        SubmitError::NotRegistered => -7,
    }
}

/// # Safety
///
/// `engine` is null or a string; `note` is null or has room for `note_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toehold_copy_open(
    engine: *const c_char,
    entries: usize,
    note: *mut c_char,
    note_len: usize,
) -> *mut Channel {
    let name = if engine.is_null() {
        None
    } else {
        // SAFETY: a string, by the caller's contract.
        match unsafe { CStr::from_ptr(engine) }.to_str() {
            Ok(name) => Some(name),
            Err(_) => return std::ptr::null_mut(),
        }
    };
    let opened = crate::open(name, entries);
    if !note.is_null() && note_len > 0 {
        let text = opened.notes.join("; ");
        let len = text.len().min(note_len - 1);
        // SAFETY: `len + 1` bytes fit, by the caller's contract.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), note.cast(), len);
            note.add(len).write(0);
        }
    }
    Box::into_raw(Box::new(opened.channel))
}

/// # Safety
///
/// `channel` is null or from `toehold_copy_open`, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toehold_copy_close(channel: *mut Channel) {
    if !channel.is_null() {
        // SAFETY: made by `Box::into_raw` in `toehold_copy_open`.
        drop(unsafe { Box::from_raw(channel) });
    }
}

/// # Safety
///
/// `channel` is from `toehold_copy_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toehold_copy_engine(channel: *const Channel) -> *const c_char {
    // SAFETY: the caller's contract.
    let name = unsafe { channel.as_ref() }.map_or("", |channel| channel.backend_name());
    let known = [c"auto", c"cpu", c"cpu-nt", c"worker", c"dsa", c"dmadev"];
    known
        .into_iter()
        .find(|known| known.to_bytes() == name.as_bytes())
        .unwrap_or(c"")
        .as_ptr()
}

/// # Safety
///
/// As for [`Channel::submit`], and `channel` and `cookie` are valid or null.
unsafe fn submit(
    channel: *mut Channel,
    operation: Operation,
    flags: c_uint,
    cookie: *mut u64,
) -> c_int {
    // SAFETY: the caller's contract.
    let Some(channel) = (unsafe { channel.as_mut() }) else {
        return code(SubmitError::Null);
    };
    let operation = operation.with(Flags::from_bits_truncate(flags as u8));
    // SAFETY: the caller's contract.
    match unsafe { channel.submit(operation) } {
        Ok(issued) => {
            if !cookie.is_null() {
                // SAFETY: the caller's contract.
                unsafe { cookie.write(issued.get()) };
            }
            0
        }
        Err(error) => code(error),
    }
}

/// # Safety
///
/// As for [`Channel::submit`], and `channel` and `cookie` are valid or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toehold_copy_copy(
    channel: *mut Channel,
    source: *const c_void,
    target: *mut c_void,
    len: usize,
    flags: c_uint,
    cookie: *mut u64,
) -> c_int {
    let operation = Operation::copy(source.cast(), target.cast(), len);
    // SAFETY: the caller's contract.
    unsafe { submit(channel, operation, flags, cookie) }
}

/// # Safety
///
/// As for [`Channel::submit`], and `channel` and `cookie` are valid or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toehold_copy_fill(
    channel: *mut Channel,
    target: *mut c_void,
    len: usize,
    pattern: u64,
    flags: c_uint,
    cookie: *mut u64,
) -> c_int {
    let operation = Operation::fill(target.cast(), len, pattern);
    // SAFETY: the caller's contract.
    unsafe { submit(channel, operation, flags, cookie) }
}

/// # Safety
///
/// As for [`Channel::submit`], and `channel` and `cookie` are valid or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toehold_copy_copy_crc32c(
    channel: *mut Channel,
    source: *const c_void,
    target: *mut c_void,
    len: usize,
    seed: u32,
    flags: c_uint,
    cookie: *mut u64,
) -> c_int {
    let operation = Operation::copy_crc32c(source.cast(), target.cast(), len, seed);
    // SAFETY: the caller's contract.
    unsafe { submit(channel, operation, flags, cookie) }
}

/// # Safety
///
/// As for [`Channel::copy_vectored`]; the lists have as many parts as they say; `channel` and
/// `cookie` are valid or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toehold_copy_vectored(
    channel: *mut Channel,
    sources: *const CPart,
    source_count: usize,
    targets: *const CPart,
    target_count: usize,
    flags: c_uint,
    cookie: *mut u64,
) -> c_int {
    // SAFETY: the caller's contract.
    let Some(channel) = (unsafe { channel.as_mut() }) else {
        return code(SubmitError::Null);
    };
    if (sources.is_null() && source_count > 0) || (targets.is_null() && target_count > 0) {
        return code(SubmitError::Null);
    }
    // SAFETY: `at` is within the list, by the caller's contract.
    let part = |list: *const CPart, at: usize| unsafe { list.add(at).read() };
    let from = |at| part(sources, at);
    let to = |at| part(targets, at);
    let sources: Vec<_> = (0..source_count)
        .map(|at| (from(at).base.cast_const(), from(at).len))
        .collect();
    let targets: Vec<_> = (0..target_count)
        .map(|at| (to(at).base, to(at).len))
        .collect();
    let flags = Flags::from_bits_truncate(flags as u8);
    // SAFETY: the caller's contract.
    match unsafe { channel.copy_vectored(&sources, &targets, flags) } {
        Ok(last) => {
            if !cookie.is_null() {
                // SAFETY: the caller's contract.
                unsafe { cookie.write(last.map_or(0, Cookie::get)) };
            }
            0
        }
        Err(error) => code(error),
    }
}

/// # Safety
///
/// `channel` is null or from `toehold_copy_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toehold_copy_flush(channel: *mut Channel) {
    // SAFETY: the caller's contract.
    if let Some(channel) = unsafe { channel.as_mut() } {
        channel.flush();
    }
}

/// # Safety
///
/// `channel` is null or from `toehold_copy_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toehold_copy_poll(channel: *mut Channel) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { channel.as_mut() }.map_or(0, |channel| channel.poll().get())
}

/// # Safety
///
/// `channel` is null or from `toehold_copy_open`; `status` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toehold_copy_status(
    channel: *mut Channel,
    cookie: u64,
    status: *mut CStatus,
) -> c_int {
    // SAFETY: the caller's contract.
    let Some(channel) = (unsafe { channel.as_mut() }) else {
        return code(SubmitError::Null);
    };
    if !is_issued(channel, cookie) {
        return NO_SUCH_COOKIE;
    }
    let mut found = CStatus {
        state: 0,
        crc32c: 0,
        bytes: 0,
        address: 0,
    };
    match channel.status(Cookie::new(cookie)) {
        Status::Pending { bytes } => found.bytes = bytes as u64,
        Status::Done { crc32c } => (found.state, found.crc32c) = (1, crc32c),
        Status::Failed(Fault::Address { address, .. }) => {
            (found.state, found.address) = (2, address as u64);
        }
        Status::Failed(_) => found.state = 2,
        Status::Retired => found.state = 3,
    }
    if !status.is_null() {
        // SAFETY: the caller's contract.
        unsafe { status.write(found) };
    }
    0
}

/// # Safety
///
/// `channel` is null or from `toehold_copy_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toehold_copy_wait(
    channel: *mut Channel,
    cookie: u64,
    how: c_int,
    timeout_ns: u64,
) -> c_int {
    // SAFETY: the caller's contract.
    let channel = unsafe { channel.as_mut() };
    waited(channel, cookie, |channel, cookie| {
        channel.wait(cookie, waiting(how, timeout_ns)).is_ok()
    })
}

/// # Safety
///
/// `channel` is null or from `toehold_copy_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toehold_copy_wait_through(
    channel: *mut Channel,
    cookie: u64,
    how: c_int,
    timeout_ns: u64,
) -> c_int {
    // SAFETY: the caller's contract.
    let channel = unsafe { channel.as_mut() };
    waited(channel, cookie, |channel, cookie| {
        channel
            .wait_through(cookie, waiting(how, timeout_ns))
            .is_ok()
    })
}

/// Calls `wait`, which is false when the time is over, and returns the result in C's form.
fn waited(
    channel: Option<&mut Channel>,
    cookie: u64,
    wait: impl FnOnce(&mut Channel, Cookie) -> bool,
) -> c_int {
    let Some(channel) = channel else {
        return code(SubmitError::Null);
    };
    if !is_issued(channel, cookie) {
        return NO_SUCH_COOKIE;
    }
    match wait(channel, Cookie::new(cookie)) {
        true => 0,
        false => TIMED_OUT,
    }
}

/// Memory that `toehold_copy_buffer_free` can find again.
#[unsafe(no_mangle)]
pub extern "C" fn toehold_copy_buffer_new(len: usize) -> *mut c_void {
    let Ok(mut buffer) = Buffer::new(len) else {
        return std::ptr::null_mut();
    };
    let base: *mut c_void = buffer.as_mut_ptr().cast();
    let mut buffers = BUFFERS
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    buffers.insert(base as usize, buffer);
    base
}

/// # Safety
///
/// Nothing uses the buffer any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toehold_copy_buffer_free(buffer: *mut c_void) {
    let mut buffers = BUFFERS
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    buffers.remove(&(buffer as usize));
}

/// C's buffers, by address.
static BUFFERS: Mutex<BTreeMap<usize, Buffer>> = Mutex::new(BTreeMap::new());

fn is_issued(channel: &Channel, cookie: u64) -> bool {
    cookie > 0 && cookie <= channel.issued().get()
}

fn waiting(how: c_int, timeout_ns: u64) -> Waiting {
    let waiting = match how {
        0 => Waiting::SPIN,
        1 => Waiting::YIELD,
        _ => Waiting::PARK,
    };
    match timeout_ns {
        u64::MAX => waiting,
        timeout_ns => waiting.at_most(Duration::from_nanos(timeout_ns)),
    }
}
