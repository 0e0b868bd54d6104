//! liburing's functions that submit requests to the kernel.
//!
//! liburing makes system calls itself, so `syscall(2)` does not see its requests. A program that is
//! linked with liburing's shared library calls these functions instead. Each lets
//! [`toehold_sockets::api`] look at the requests that wait in the ring, and calls liburing's own.
//! All have the same number of arguments, the most that any of them takes; arguments that were not
//! passed have arbitrary values.
//!
//! The library does not see the calls if liburing is linked into the program, or if the program
//! finds its functions with `dlsym` in liburing itself.
//!
//! The installed liburing may be older and lack one of these functions. Then the answer is -ENOSYS.
//! A program that is linked with a newer liburing does not get that far: each new function has a
//! new symbol version of liburing, and the dynamic linker checks these versions when the program
//! starts, even for functions that we define. A program that asks for a function at run time
//! (`dlsym` with `RTLD_DEFAULT`, or a weak reference) finds ours where it would have found none.
//! Then -ENOSYS means that the kernel has no such call. The program must expect that, because
//! liburing's functions return the kernel's errors unchanged.

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use toehold_freestanding::elf::Name;
use toehold_freestanding::objects;
use toehold_sockets::api;
use toehold_sockets::system::real;

/// A function of liburing: it takes pointers and integers, and returns an `int` or nothing.
type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize;

macro_rules! in_front {
    ($($name:ident => |$real:ident, ($($argument:pat),*)| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            a: usize,
            b: usize,
            c: usize,
            d: usize,
            e: usize,
            f: usize,
        ) -> isize {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
            const NAME: Name = Name::of(concat!(stringify!($name), "\0"));
            let Some(next) = find(&NEXT, &NAME) else {
                return -(libc::ENOSYS as isize);
            };
            // SAFETY: liburing's function of that name, with the caller's arguments.
            let $real = || unsafe { next(a, b, c, d, e, f) };
            let ($($argument),*) = (a, b, c, d, e, f);
            // SAFETY: the caller's promises to liburing.
            #[allow(unused_unsafe, reason = "some bodies promise nothing")]
            unsafe {
                $body
            }
        }
    )*};
}

macro_rules! before_submitting {
    ($($name:ident)*) => {
        in_front! {$(
            $name => |real, (ring, _, _, _, _, _)| {
                api::liburing_submits(ring as *const c_void);
                real()
            };
        )*}
    };
}

before_submitting! {
    io_uring_submit
    io_uring_submit_and_wait
    io_uring_submit_and_wait_timeout
    io_uring_submit_and_wait_min_timeout
    io_uring_submit_and_wait_reg
    io_uring_submit_and_get_events
    io_uring_wait_cqes
    io_uring_wait_cqes_min_timeout
    io_uring_wait_cqe_timeout
    __io_uring_get_cqe
}

in_front! {
    io_uring_queue_init => |real, (_, ring, _, _, _, _)| made(real(), ring);
    io_uring_queue_init_params => |real, (_, ring, _, _, _, _)| made(real(), ring);
    io_uring_queue_init_mem => |real, (_, ring, _, _, _, _)| made(real(), ring);
    io_uring_queue_init_try_nosqarr => |real, (_, ring, _, _, _, _)| made(real(), ring);
    io_uring_queue_mmap => |real, (_, _, ring, _, _, _)| made(real(), ring);
    io_uring_queue_exit => |real, (ring, _, _, _, _, _)| {
        api::liburing_ends(ring as *const c_void);
        real()
    };
    io_uring_register_files => |real, (_, files, count, _, _, _)| {
        api::passing_on_all(files as *const c_int, count as c_uint);
        real()
    };
    io_uring_register_files_tags => |real, (_, files, _, count, _, _)| {
        api::passing_on_all(files as *const c_int, count as c_uint);
        real()
    };
    io_uring_register_files_update => |real, (_, _, files, count, _, _)| {
        api::passing_on_all(files as *const c_int, count as c_uint);
        real()
    };
    io_uring_register_files_update_tag => |real, (_, _, files, _, count, _)| {
        api::passing_on_all(files as *const c_int, count as c_uint);
        real()
    };
    io_uring_setup => |real, (_, parameters, _, _, _, _)| {
        let result = real();
        api::io_uring_made(result as c_int, parameters as *const c_void);
        result
    };
    io_uring_enter => |real, (fd, wanted, _, flags, _, _)| {
        api::io_uring_entering(fd as c_int, wanted as c_uint, flags as c_uint);
        real()
    };
    io_uring_enter2 => |real, (fd, wanted, _, flags, _, _)| {
        api::io_uring_entering(fd as c_int, wanted as c_uint, flags as c_uint);
        real()
    };
    io_uring_register => |real, (fd, opcode, argument, count, _, _)| {
        api::io_uring_registering(
            fd as c_int,
            opcode as c_uint,
            argument as *const c_void,
            count as c_uint,
        );
        real()
    };
}

/// Passes on the `result` of a function that makes `ring`.
unsafe fn made(result: isize, ring: usize) -> isize {
    if result as c_int >= 0 {
        // SAFETY: the caller's promise: liburing has filled it.
        unsafe { api::liburing_made(ring as *const c_void) };
    }
    result
}

/// liburing's own function `name`.
fn find(next: &AtomicPtr<c_void>, name: &Name) -> Option<Function> {
    let mut found = next.load(Ordering::Relaxed);
    if found.is_null() {
        found = search(name);
        // Relaxed: every search finds the same address.
        next.store(found, Ordering::Relaxed);
    }
    // SAFETY: a function of that name is liburing's.
    (!found.is_null()).then(|| unsafe { core::mem::transmute::<*mut c_void, Function>(found) })
}

/// The next definition; or, if only a library that the program has loaded with `dlopen` is linked
/// with liburing, the first definition in any loaded object. That object then stays loaded.
#[cold]
fn search(name: &Name) -> *mut c_void {
    let Some(found) = objects::next_in(name) else {
        return core::ptr::null_mut();
    };
    if !found.object.is_null() {
        // SAFETY: the name of a loaded object; nothing is loaded here, a reference is taken. A
        // process without `dlopen` unloads nothing.
        unsafe { real::dlopen(found.object, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    }
    found.address
}
