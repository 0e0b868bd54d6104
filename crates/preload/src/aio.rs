//! POSIX asynchronous I/O. libc serves a request on a socket with `read` or `write` in its own
//! thread, past the library. So the connection goes to the host path before a request is made. If
//! bytes have already arrived in its ring, they complete a read at once, which asynchronous I/O
//! allows.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use libc::{sigval, ssize_t};
use toehold_freestanding::{call, errno};
use toehold_sockets::api;
use toehold_sockets::system::real;

/// The start of glibc's `struct aiocb` (rt/aio.h), whose size and fields are part of its ABI.
#[repr(C)]
struct Request {
    fildes: c_int,
    /// For `lio_listio`: `LIO_READ`, `LIO_WRITE` or `LIO_NOP`.
    opcode: c_int,
    priority: c_int,
    buffer: *mut c_void,
    len: usize,
    event: Event,
    /// Internal to libc: next request, absolute priority, policy.
    queue: [u64; 2],
    /// The result of `aio_error`.
    error: c_int,
    /// The result of `aio_return`.
    result: ssize_t,
}

/// glibc's `struct sigevent`: how libc notifies the program of a completed request.
#[repr(C)]
struct Event {
    value: sigval,
    signal: c_int,
    /// `SIGEV_*`.
    kind: c_int,
    /// With `SIGEV_THREAD`: the function to call.
    function: Option<unsafe extern "C" fn(sigval)>,
    /// Its thread's attributes, or null.
    attributes: *const libc::pthread_attr_t,
    rest: [u64; 4],
}

const _: () = {
    assert!(core::mem::offset_of!(Request, event) == 32);
    assert!(core::mem::offset_of!(Request, error) == 112);
    assert!(core::mem::offset_of!(Request, result) == 120);
};

const LIO_READ: c_int = 0;
const LIO_WRITE: c_int = 1;
const LIO_WAIT: c_int = 0;
const SI_ASYNCIO: c_int = -4;

/// Exports a call under its two names.
macro_rules! export {
    ($(
        $(#[$doc:meta])*
        $name:ident, $alias:ident by $call:ident($($arg:ident: $type:ty),*);
    )*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            // SAFETY: passed on with the caller's promises.
            unsafe { $call($($arg),*) }
        }

        $(#[$doc])*
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $alias($($arg: $type),*) -> c_int {
            // SAFETY: passed on with the caller's promises.
            unsafe { $call($($arg),*) }
        }
    )*};
}

export! {
    /// `aio_read(3)`.
    aio_read, aio_read64 by read(request: *mut Request);
    /// `aio_write(3)`.
    aio_write, aio_write64 by write(request: *mut Request);
    /// `lio_listio(3)`.
    lio_listio, lio_listio64 by list(
        mode: c_int,
        requests: *const *mut Request,
        count: c_int,
        event: *mut c_void
    );
}

unsafe fn read(request: *mut Request) -> c_int {
    // SAFETY: the caller of `aio_read` promises a valid request.
    unsafe {
        match take_ready(request) {
            Some(_) => {
                tell(&(*request).event);
                0
            }
            None => real::aio_read(request.cast()),
        }
    }
}

unsafe fn write(request: *mut Request) -> c_int {
    // SAFETY: the caller of `aio_write` promises a valid request.
    unsafe {
        if !request.is_null() {
            api::before_kernel_writes((*request).fildes);
        }
        real::aio_write(request.cast())
    }
}

unsafe fn list(
    mode: c_int,
    requests: *const *mut Request,
    count: c_int,
    event: *mut c_void,
) -> c_int {
    let kernel = |requests: *const *mut Request| {
        // SAFETY: the caller's arguments, or a copy of its list with fewer requests.
        unsafe { real::lio_listio(mode, requests.cast(), count, event) }
    };
    let len = usize::try_from(count).unwrap_or(0);
    // SAFETY: the caller of `lio_listio` promises `count` pointers, each null or to a request.
    let is_ours = |n: usize| unsafe {
        let request = *requests.add(n);
        !request.is_null() && api::is_tracked((*request).fildes)
    };
    if requests.is_null() || !(0..len).any(is_ours) {
        return kernel(requests);
    }
    // SAFETY: a plain allocation, freed below. A list of requests is no data path of ours.
    let rest = unsafe { real::calloc(len, size_of::<*mut Request>()) }.cast::<*mut Request>();
    if rest.is_null() {
        return -1;
    }
    let mut failed = false;
    for n in 0..len {
        // SAFETY: as above; `rest` has `count` places. libc passes over null pointers.
        unsafe {
            let request = *requests.add(n);
            let mut left = request;
            if is_ours(n) && (*request).opcode == LIO_READ {
                if let Some(is_right) = take_ready(request) {
                    failed |= !is_right;
                    tell(&(*request).event);
                    left = null_mut();
                }
            } else if is_ours(n) && (*request).opcode == LIO_WRITE {
                api::before_kernel_writes((*request).fildes);
            }
            rest.add(n).write(left);
        }
    }
    let mut result = kernel(rest);
    // SAFETY: allocated above; libc has copied what it keeps of it. errno is this thread's own.
    unsafe {
        real::free(rest.cast());
        if result == 0 && failed && mode == LIO_WAIT {
            errno::set(libc::EIO);
            result = -1;
        }
    }
    result
}

/// Completes a read with bytes of the ring; true on success. `None`: the kernel must make the read.
unsafe fn take_ready(request: *mut Request) -> Option<bool> {
    if request.is_null() {
        return None;
    }
    // SAFETY: a valid request by the caller's promise, and ours until it is complete.
    unsafe {
        let one = &mut *request;
        let result = api::before_kernel_reads(one.fildes, one.buffer, one.len)?;
        (one.error, one.result) = match result {
            Ok(count) => (0, count as ssize_t),
            Err(error) => (error, -1),
        };
        Some(result.is_ok())
    }
}

/// Notifies the program of a completed request, in the way that it has chosen (sigevent(7)).
unsafe fn tell(event: &Event) {
    match event.kind {
        libc::SIGEV_SIGNAL => {
            // SAFETY: zeroes are a valid `siginfo_t`; the fields written are those of a queued
            // signal (`_rt` in the kernel's siginfo.h), inside it.
            unsafe {
                let mut info: libc::siginfo_t = core::mem::zeroed();
                info.si_signo = event.signal;
                info.si_code = SI_ASYNCIO;
                let fields = (&raw mut info).cast::<u8>();
                let (process, user) = (call!(SYS_getpid), call!(SYS_getuid));
                fields.add(16).cast::<libc::pid_t>().write(process as _);
                fields.add(20).cast::<libc::uid_t>().write(user as _);
                fields.add(24).cast::<sigval>().write(event.value);
                let (pid, at) = (process as usize, (&raw const info) as usize);
                let number = libc::SYS_rt_sigqueueinfo;
                real::syscall(number, pid, event.signal as usize, at, 0, 0, 0);
            }
        }
        libc::SIGEV_THREAD => {
            let Some(function) = event.function else {
                return;
            };
            // SAFETY: the thread owns the allocation, and frees it.
            unsafe {
                let call = real::malloc(size_of::<Call>()).cast::<Call>();
                if call.is_null() {
                    return;
                }
                call.write(Call(function, event.value));
                let mut thread = core::mem::zeroed();
                let made =
                    real::pthread_create(&mut thread, event.attributes, run_call, call.cast());
                if made == 0 {
                    real::pthread_detach(thread);
                } else {
                    real::free(call.cast());
                }
            }
        }
        _ => {}
    }
}

struct Call(unsafe extern "C" fn(sigval), sigval);

extern "C" fn run_call(call: *mut c_void) -> *mut c_void {
    // SAFETY: made by `tell` for this thread alone.
    unsafe {
        let Call(function, value) = call.cast::<Call>().read();
        real::free(call);
        function(value);
    }
    null_mut()
}
