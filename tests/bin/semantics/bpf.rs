//! Maps of sockets: BPF programs in the kernel see the bytes before the socket does.

use std::mem;

use crate::Case;
use crate::role::{Pair, send_all, shown};
use crate::sys::{self, Ret};

pub(crate) const CASES: &[Case] = &[Case::pair("map_of_sockets_takes_the_stream_over", mapped)];

/// Commands, types and positions (include/uapi/linux/bpf.h).
const MAP_CREATE: usize = 0;
const MAP_UPDATE: usize = 2;
const PROGRAM_LOAD: usize = 5;
const PROGRAM_ATTACH: usize = 8;
const SOCKMAP: u64 = 15;
const SK_SKB: u64 = 14;
const STREAM_VERDICT: u64 = 5;

/// `union bpf_attr`. The attributes that are used here have at most eight words, lower half first.
fn bpf<const WORDS: usize>(command: usize, attributes: [u64; WORDS]) -> Ret {
    let (at, bytes) = (
        (&raw const attributes) as usize,
        mem::size_of_val(&attributes),
    );
    // SAFETY: the attributes and all that they point to live until the kernel has read them.
    sys::ret(unsafe { libc::syscall(libc::SYS_bpf, command, at, bytes) })
}

const fn halves(low: u64, high: u64) -> u64 {
    high << 32 | low
}

/// The map's program drops all bytes, so the client receives nothing. The user may lack the right
/// to load the program; then all bytes arrive.
fn mapped(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"for the map");
        pair.step();
        pair.step();
        return;
    }
    let (key, fd) = (0u32, pair.fd as u32);
    let map = bpf(MAP_CREATE, [halves(SOCKMAP, 4), halves(4, 1)]);
    pair.say("map", map.0.map(|_| "made").unwrap_or("refused"));
    // r0 = SK_DROP; exit
    let drop_all: [u64; 2] = [0xb7, 0x95];
    let load = [
        halves(SK_SKB, drop_all.len() as u64),
        drop_all.as_ptr() as u64,
        c"GPL".as_ptr() as u64,
        0,
        0,
        0,
    ];
    let program = bpf(PROGRAM_LOAD, load);
    if let (Ok(map), Ok(program)) = (map.0, program.0) {
        let (map, program) = (map as u64, program as u64);
        pair.say(
            "attach",
            bpf(PROGRAM_ATTACH, [halves(map, program), STREAM_VERDICT]),
        );
        let (key, value) = ((&raw const key) as u64, (&raw const fd) as u64);
        pair.say("update", bpf(MAP_UPDATE, [map, key, value, 0]));
    }
    pair.step();
    pair.step();
    let mut bytes = [0; 11];
    let received = sys::recv(pair.fd, &mut bytes, libc::MSG_DONTWAIT);
    pair.say("received", format!("{received} {}", shown(&bytes)));
    pair.step();
}
