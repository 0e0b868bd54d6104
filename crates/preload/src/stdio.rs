//! Streams over sockets. libc's stdio reads and writes internally, past the library. A socket that
//! is given to `fdopen` before it has carried much traffic stays on the host path. A socket with a
//! channel gets a stream whose reads and writes are the library's calls.

use core::ffi::{c_char, c_int, c_void};

use libc::{FILE, size_t, ssize_t};
use toehold_sockets::api;
use toehold_sockets::system::real::{self, CookieFunctions};

/// Where glibc keeps a stream's descriptor (`struct _IO_FILE`, public since 1992, fixed by its
/// ABI), so that `fileno` answers.
const FILENO_OFFSET: usize = 112;

unsafe extern "C" fn cookie_read(cookie: *mut c_void, buffer: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: libc gives a writable buffer.
    unsafe { api::read(cookie as usize as c_int, buffer.cast(), len) }
}

unsafe extern "C" fn cookie_write(
    cookie: *mut c_void,
    buffer: *const c_char,
    len: size_t,
) -> ssize_t {
    let mut done = 0;
    while done < len {
        // SAFETY: libc gives a readable buffer of `len` bytes.
        let n = unsafe {
            api::write(
                cookie as usize as c_int,
                buffer.add(done).cast(),
                len - done,
            )
        };
        if n <= 0 {
            // fopencookie(3): zero means that nothing (more) could be written.
            return done as ssize_t;
        }
        done += n as usize;
    }
    done as ssize_t
}

unsafe extern "C" fn cookie_close(cookie: *mut c_void) -> c_int {
    // SAFETY: the descriptor belongs to the stream that is being closed.
    unsafe { api::close(cookie as usize as c_int) }
}

/// `fdopen(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if !api::stdio_needs_us(fd) {
        // SAFETY: passed on with the caller's promises.
        return unsafe { real::fdopen(fd, mode) };
    }
    if !real::is_glibc() {
        // In another libc the place of the descriptor is not known, so its stream reads and writes
        // the carrier.
        api::passing_on(fd);
        // SAFETY: passed on with the caller's promises.
        return unsafe { real::fdopen(fd, mode) };
    }
    let functions = CookieFunctions {
        read: cookie_read,
        write: cookie_write,
        seek: None,
        close: cookie_close,
    };
    // SAFETY: `mode` is the caller's; the cookie is a number, not a pointer.
    let stream = unsafe { real::fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !stream.is_null() {
        // SAFETY: a stream of glibc's has this field at this place.
        unsafe {
            stream
                .cast::<u8>()
                .add(FILENO_OFFSET)
                .cast::<c_int>()
                .write(fd)
        };
    }
    stream
}

/// libc's own name for `fdopen`.
#[unsafe(no_mangle)]
unsafe extern "C" fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: passed on with the caller's promises.
    unsafe { fdopen(fd, mode) }
}

/// Makes `call`, in which libc closes the descriptor of `stream`.
///
/// # Safety
/// The stream is open, or null.
#[unsafe(link_section = ".text.startup")]
unsafe fn closed_by<T>(stream: *mut FILE, call: impl FnOnce() -> T) -> T {
    if stream.is_null() {
        return call();
    }
    // SAFETY: the caller's promise.
    api::stream_closed_by(unsafe { real::fileno(stream) }, call)
}

/// `fclose(3)`.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.startup")]
unsafe extern "C" fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: passed on with the caller's promises.
    unsafe { closed_by(stream, || real::fclose(stream)) }
}

/// libc's own name for `fclose`.
#[unsafe(no_mangle)]
unsafe extern "C" fn _IO_fclose(stream: *mut FILE) -> c_int {
    // SAFETY: passed on with the caller's promises.
    unsafe { fclose(stream) }
}

/// `freopen(3)` under its names.
macro_rules! reopens {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            path: *const c_char,
            mode: *const c_char,
            stream: *mut FILE,
        ) -> *mut FILE {
            // SAFETY: passed on with the caller's promises.
            let reopen = || unsafe { real::$name(path, mode, stream) };
            match path.is_null() {
                // The file stays the same.
                true => reopen(),
                // SAFETY: as above.
                false => unsafe { closed_by(stream, reopen) },
            }
        }
    )*};
}

// The second is that of programs built with 64-bit file offsets.
reopens! { freopen freopen64 }

#[cfg(target_arch = "x86_64")]
mod formatted {
    //! `dprintf`. C passes its arguments in registers that only the callee knows how to walk; this
    //! little assembly saves them as the ABI's `va_list` wants them and calls a Rust function with
    //! that list (System V AMD64 ABI, 3.5.7).

    use super::{api, c_char, c_int, c_void, real};

    /// The ABI's `va_list` element.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct VaList {
        gp_offset: u32,
        fp_offset: u32,
        overflow: *mut c_void,
        saved: *mut c_void,
    }

    /// Saves the argument registers on the stack (System V AMD64 ABI, figure 3.33), makes a
    /// `va_list` that starts at register argument `$first / 8`, and calls [`print`] with
    /// descriptor, format and list.
    macro_rules! variadic {
        ($first:literal, $format:literal) => {
            core::arch::naked_asm!(
                "sub rsp, 0xd8",
                "mov [rsp + 0x20], rdi",
                "mov [rsp + 0x28], rsi",
                "mov [rsp + 0x30], rdx",
                "mov [rsp + 0x38], rcx",
                "mov [rsp + 0x40], r8",
                "mov [rsp + 0x48], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 0x50], xmm0",
                "movaps [rsp + 0x60], xmm1",
                "movaps [rsp + 0x70], xmm2",
                "movaps [rsp + 0x80], xmm3",
                "movaps [rsp + 0x90], xmm4",
                "movaps [rsp + 0xa0], xmm5",
                "movaps [rsp + 0xb0], xmm6",
                "movaps [rsp + 0xc0], xmm7",
                "2:",
                concat!("mov dword ptr [rsp + 0x08], ", $first),
                "mov dword ptr [rsp + 0x0c], 48",
                "lea rax, [rsp + 0xe0]",
                "mov [rsp + 0x10], rax",
                "lea rax, [rsp + 0x20]",
                "mov [rsp + 0x18], rax",
                concat!("mov rsi, ", $format),
                "lea rdx, [rsp + 0x08]",
                "call {print}",
                "add rsp, 0xd8",
                "ret",
                print = sym print,
            )
        };
    }

    /// `dprintf(3)`: descriptor and format are the first two arguments.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C" fn dprintf() -> c_int {
        variadic!(16, "rsi")
    }

    /// `dprintf` as `_FORTIFY_SOURCE` compiles it: descriptor, flag, format.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C" fn __dprintf_chk() -> c_int {
        variadic!(24, "rdx")
    }

    /// `vdprintf(3)`.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn vdprintf(fd: c_int, format: *const c_char, list: *mut VaList) -> c_int {
        // SAFETY: passed on with the caller's promises.
        unsafe { print(fd, format, list) }
    }

    /// `vdprintf` as `_FORTIFY_SOURCE` compiles it.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn __vdprintf_chk(
        fd: c_int,
        _flag: c_int,
        format: *const c_char,
        list: *mut VaList,
    ) -> c_int {
        // SAFETY: passed on with the caller's promises.
        unsafe { print(fd, format, list) }
    }

    /// Formats and writes, as `vdprintf(3)` does.
    unsafe extern "C" fn print(fd: c_int, format: *const c_char, list: *mut VaList) -> c_int {
        let mut small = [0 as c_char; 1024];
        // SAFETY: `list` came from the caller's arguments; a copy is walked, so it can be walked
        // again.
        let mut first = unsafe { *list };
        // SAFETY: the buffer is writable for its length; format and list are the caller's.
        let len = unsafe {
            let list = (&raw mut first).cast();
            real::vsnprintf(small.as_mut_ptr(), small.len(), format, list)
        };
        if len < 0 {
            return len;
        }
        if (len as usize) < small.len() {
            // SAFETY: `len` bytes were written.
            return unsafe { write_all(fd, small.as_ptr().cast(), len as usize) };
        }
        // SAFETY: a plain allocation, freed below. The program itself chose to format: this is no
        // data path of ours.
        let large = unsafe { real::malloc(len as usize + 1) };
        if large.is_null() {
            return -1;
        }
        // SAFETY: room for the whole text; the list is walked from its start.
        let result = unsafe {
            real::vsnprintf(large.cast(), len as usize + 1, format, list.cast());
            write_all(fd, large, len as usize)
        };
        // SAFETY: allocated above.
        unsafe { real::free(large) };
        result
    }

    unsafe fn write_all(fd: c_int, bytes: *const c_void, len: usize) -> c_int {
        let mut done = 0;
        while done < len {
            // SAFETY: `bytes` is readable for `len` bytes.
            let n = unsafe { api::write(fd, bytes.cast::<u8>().add(done).cast(), len - done) };
            if n < 0 {
                return -1;
            }
            done += n as usize;
        }
        len as c_int
    }
}
