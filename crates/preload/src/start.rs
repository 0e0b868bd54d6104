//! Starts the library if the environment asks for it. Called by its constructor, or by the launcher
//! that has mapped it into a program without a dynamic linker.

use toehold_channel::table::WaitMode;
use toehold_freestanding::environment::{self as variables, variable};

use crate::{environment, is_started_by, process};

/// True when the environment asks for the library.
#[unsafe(link_section = ".text.startup")]
pub(crate) fn is_asked_for() -> bool {
    // SAFETY: as in `begin`.
    unsafe { variable(c"TOEHOLD_PATH") }.is_some_and(is_started_by)
}

/// Starts the library if the environment asks for it. True when it has started.
#[unsafe(link_section = ".text.startup")]
pub(crate) fn begin() -> bool {
    // SAFETY: no other thread runs, so nobody changes the environment; none of the values is used
    // later.
    let variable = |name| unsafe { variable(name) };
    let Some(path) = variable(c"TOEHOLD_PATH") else {
        return false;
    };
    if !is_started_by(path) {
        return false;
    }
    let filters = variable(c"TOEHOLD_FILTERS").and_then(number);
    if !toehold_sockets::is_allowed(filters.unwrap_or(0)) {
        return false;
    }
    match path {
        b"offload" => toehold_sockets::want_offload(),
        b"auto" => toehold_sockets::want_offload_by_rule(),
        _ => {}
    }
    let wait = match variable(c"TOEHOLD_WAIT") {
        Some(b"poll") => WaitMode::Poll,
        Some(b"event") => WaitMode::Event,
        _ => WaitMode::Adaptive,
    };
    match variable(c"TOEHOLD_EXPRESS") {
        Some(b"off") => {}
        Some(b"always") => toehold_sockets::want_express(true),
        _ => toehold_sockets::want_express(false),
    }
    let calls = variable(c"TOEHOLD_PAIR_AFTER").and_then(number);
    if let Some(calls) = calls {
        toehold_sockets::set_calls_before_pairing(calls);
    }
    if let Some(directory) = variable(c"TOEHOLD_RUNTIME_DIR") {
        toehold_sockets::set_runtime_directory(directory);
    }
    let adapter = variable(c"TOEHOLD_ADAPTER_UID").and_then(number);
    if let Some(user) = adapter {
        toehold_sockets::trust_adapter_of(user);
    }
    #[cfg(target_arch = "x86_64")]
    if variable(c"TOEHOLD_COUNT_CALLS").is_some() {
        crate::patched::counts::begin();
    }
    toehold_sockets::start(wait);
    process::follow_exit();
    if let Some(handover) = variable(environment::HANDOVER) {
        if let Some(descriptor) = number(handover) {
            toehold_sockets::take_over_from(descriptor);
        }
        // The variable was meant for this process alone.
        // SAFETY: no other thread runs.
        unsafe { variables::remove(environment::HANDOVER) };
    }
    true
}

/// A variable's value that is a number.
fn number<T: core::str::FromStr>(value: &[u8]) -> Option<T> {
    core::str::from_utf8(value).ok()?.parse().ok()
}
