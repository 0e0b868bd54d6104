//! The library's constructor, which the dynamic linker runs before `main`.

use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicBool, Ordering};

use toehold_freestanding::{environment as variables, objects};
use toehold_sockets::system::real;

#[cfg(target_arch = "x86_64")]
use crate::patched::refusal::Refusal;
#[cfg(target_arch = "x86_64")]
use crate::patched::within::{self, Language};
use crate::start::begin;
#[cfg(target_arch = "x86_64")]
use crate::start::is_asked_for;

/// Runs before `main`. glibc passes the program's arguments and environment, musl passes nothing.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) =
    constructor;

#[unsafe(link_section = ".text.startup")]
unsafe extern "C" fn constructor(
    argc: c_int,
    argv: *const *const c_char,
    envp: *const *const c_char,
) {
    // SAFETY: when these look like a program's arguments, they are.
    unsafe {
        if objects::learn(argc, argv, envp) {
            variables::learn(envp);
        }
    }
    run();
}

/// Starts the library, once. True for the call that does it: this constructor's, or an earlier call
/// from the constructor of another library (`crate::patched::libraries`).
#[unsafe(link_section = ".text.startup")]
pub(crate) fn run() -> bool {
    static HAS_RUN: AtomicBool = AtomicBool::new(false);
    // Relaxed: constructors run one after another.
    let is_first = !HAS_RUN.swap(true, Ordering::Relaxed);
    if is_first {
        start();
    }
    is_first
}

#[unsafe(link_section = ".text.startup")]
fn start() {
    real::find_all();
    let (has_libc, is_secure) = (real::has_libc(), objects::is_secure());
    #[cfg(target_arch = "x86_64")]
    if let Some(language) = within::wanted() {
        return patch(language, has_libc);
    }
    crate::routines::take_from_libc();
    if has_libc && !is_secure {
        #[cfg(target_arch = "x86_64")]
        if is_asked_for() && within::is_emulator() {
            return Refusal::Guarded.tell();
        }
        begin();
    }
}

/// Starts the library in a program that may make system calls itself, and patches the program.
#[cfg(target_arch = "x86_64")]
#[unsafe(link_section = ".text.startup")]
fn patch(language: Language, has_libc: bool) {
    let prepared = within::prepare(language, has_libc);
    let has_started = (has_libc || prepared.is_ok()) && begin();
    let patched = prepared.and_then(|()| match has_started {
        true => within::patch(language, has_libc),
        false => Err(Refusal::NotServed),
    });
    // libc's copy functions change the upper halves of vector registers, which a patched call must
    // keep.
    let Err(refusal) = patched else { return };
    crate::routines::take_from_libc();
    // Most Rust programs make all their calls through libc. For them these refusals are no news.
    let is_usual = matches!(refusal, Refusal::NoSites | Refusal::NotServed);
    if is_asked_for() && !(is_usual && language == Language::Rust) {
        refusal.tell();
    }
}
