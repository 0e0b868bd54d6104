//! A child that runs as another user and overwrites all memory that it shares with its parent.

use std::sync::atomic::{AtomicU32, Ordering};

use toehold_e2e::load::Random;

use super::in_child;
use crate::role::Pair;
use crate::sys;

/// The addresses where tables of fork families are mapped in this process; empty without Toehold.
fn tables() -> Vec<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let tables = maps.lines().filter(|line| line.contains("toehold-table"));
    let ranges = tables.filter_map(|line| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        let number = |digits| usize::from_str_radix(digits, 16).ok();
        Some((number(from)?, number(to)?))
    });
    ranges.collect()
}

/// Overwrites the first pages of each table in an endless loop.
fn scribble() {
    /// The header and the first entries. This family uses fewer entries.
    const BYTES: usize = 64 << 10;
    let mut random = Random::new(1);
    let tables = tables();
    loop {
        for &(from, to) in &tables {
            let bits = random.bits();
            let words = BYTES.min(to - from) / 4;
            let at = from + (bits as u32 as usize % words) * 4;
            // Small numbers pass more of the checks.
            let value = (bits >> 32) as u32 >> (bits % 32);
            // SAFETY: inside a mapping of this process that is shared and writable, and that other
            // processes use as atomics.
            unsafe { &*(at as *const AtomicU32) }.store(value, Ordering::Relaxed);
        }
        if tables.is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

pub(super) fn scribbled_over(pair: &Pair) {
    const CALLS: usize = 500;
    /// A user that exists on every system and owns no files.
    const NOBODY: libc::uid_t = 65_534;
    let child = pair.server().then(|| {
        in_child(|| {
            // SAFETY: plain system call. A process that is not root keeps its user.
            unsafe { libc::setuid(NOBODY) };
            scribble();
            true
        })
    });
    // This child holds the socket, too, so it may break this connection. But every call must
    // return, and neither program may end because of it.
    let mut bytes = [7; 5000];
    for call in 0..CALLS {
        let len = 1 + call * 37 % bytes.len();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        sys::send(pair.fd, &bytes[..len], flags);
        sys::recv(pair.fd, &mut bytes[..len], libc::MSG_DONTWAIT);
    }
    if let Some(child) = child {
        // SAFETY: our child, not reaped yet.
        unsafe { libc::kill(child, libc::SIGKILL) };
        sys::wait_for(child);
    }
    pair.step();
    pair.say("after the scribbler", "alive");
}
