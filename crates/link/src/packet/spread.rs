//! The program by which the kernel gives each socket of a group the frames of its own connections
//! (PACKET_FANOUT_CBPF). The program computes the hash of [`Spread`], as the engines do.
//!
//! ```text
//!   IPv4 without options ──► the addresses, and ports or 0 of a fragment ─┐
//!   IPv6, TCP            ──► all eight words of the addresses, ports ─────┴──► hash ──► number
//!   all else             ──► 0: the first engine passes it on if need be
//! ```
//!
//! Received segments come from the remote, so their source is the remote's end.

use toehold_tcp::Spread;

use super::filter::{EQUALS, HAS, RETURN, step};

/// The word of the program's memory that holds the hash.
const HASH: u32 = 0;
/// The base of offsets from the network header (`linux/filter.h`, SKF_NET_OFF).
const NETWORK: u32 = -0x0010_0000_i32 as u32;
/// The frame's protocol (SKF_AD_OFF + SKF_AD_PROTOCOL).
const PROTOCOL: u32 = -0x1000_i32 as u32;
const V4_WITHOUT_OPTIONS: u32 = 0x45;
const TCP: u32 = libc::IPPROTO_TCP as u32;
/// The bits that mark a fragment: more fragments follow, or the offset is not 0.
const FRAGMENT: u32 = 0x3fff;

const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const LOAD_IMMEDIATE: u32 = libc::BPF_LD | libc::BPF_IMM;
const LOAD_HASH_TO_X: u32 = libc::BPF_LDX | libc::BPF_MEM;
const LOAD_HASH: u32 = libc::BPF_LD | libc::BPF_MEM;
const STORE: u32 = libc::BPF_ST;
const TO_X: u32 = libc::BPF_MISC | libc::BPF_TAX;
const XOR_X: u32 = libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X;
const MULTIPLY: u32 = libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K;
const SHIFT_RIGHT: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K;
const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
const RETURN_A: u32 = libc::BPF_RET | libc::BPF_A;

/// The program for a group whose members have joined in the order of the engines.
pub(super) fn program(spread: &Spread) -> Vec<libc::sock_filter> {
    let v4 = branch_v4(spread);
    let v6 = branch_v6(spread);
    let mut program = vec![
        step(LOAD_HALF, PROTOCOL, 0, 0),
        step(EQUALS, libc::ETH_P_IP as u32, 3, 0),
        step(EQUALS, libc::ETH_P_IPV6 as u32, 0, 1),
        step(JUMP, v4.len() as u32 + 1, 0, 0),
        step(RETURN, 0, 0, 0),
    ];
    program.extend(v4);
    program.extend(v6);
    program
}

fn branch_v4(spread: &Spread) -> Vec<libc::sock_filter> {
    let mut steps = vec![
        step(LOAD_BYTE, NETWORK, 0, 0),
        step(EQUALS, V4_WITHOUT_OPTIONS, 1, 0),
        step(RETURN, 0, 0, 0),
        step(LOAD_IMMEDIATE, spread.start_v4, 0, 0),
        step(STORE, HASH, 0, 0),
    ];
    for word_at in [16, 12] {
        steps.push(step(LOAD_WORD, NETWORK.wrapping_add(word_at), 0, 0));
        steps.extend(mix(spread));
    }
    steps.extend([
        step(LOAD_HALF, NETWORK.wrapping_add(6), 0, 0),
        step(HAS, FRAGMENT, 0, 2),
        step(LOAD_IMMEDIATE, 0, 0, 0),
        step(JUMP, 1, 0, 0),
        step(LOAD_WORD, NETWORK.wrapping_add(20), 0, 0),
    ]);
    steps.extend(mix(spread));
    steps.extend(owner(spread));
    steps
}

fn branch_v6(spread: &Spread) -> Vec<libc::sock_filter> {
    let mut steps = vec![
        step(LOAD_BYTE, NETWORK.wrapping_add(6), 0, 0),
        step(EQUALS, TCP, 1, 0),
        step(RETURN, 0, 0, 0),
        step(LOAD_IMMEDIATE, spread.start_v6, 0, 0),
        step(STORE, HASH, 0, 0),
    ];
    for word_at in [24, 28, 32, 8, 12, 16, 36, 20, 40] {
        steps.push(step(LOAD_WORD, NETWORK.wrapping_add(word_at), 0, 0));
        steps.extend(mix(spread));
    }
    steps.extend(owner(spread));
    steps
}

/// [`Spread::mix`] of the word in register A.
fn mix(spread: &Spread) -> [libc::sock_filter; 7] {
    [
        step(LOAD_HASH_TO_X, HASH, 0, 0),
        step(XOR_X, 0, 0, 0),
        step(MULTIPLY, spread.factor, 0, 0),
        step(TO_X, 0, 0, 0),
        step(SHIFT_RIGHT, Spread::MIX_SHIFT, 0, 0),
        step(XOR_X, 0, 0, 0),
        step(STORE, HASH, 0, 0),
    ]
}

/// [`Spread::owner`], and the program's end.
fn owner(spread: &Spread) -> Vec<libc::sock_filter> {
    let mut steps = vec![step(LOAD_HASH, HASH, 0, 0)];
    for (shift, factor) in Spread::LAST_STEPS {
        steps.extend([
            step(TO_X, 0, 0, 0),
            step(SHIFT_RIGHT, shift, 0, 0),
            step(XOR_X, 0, 0, 0),
            step(MULTIPLY, factor, 0, 0),
        ]);
    }
    steps.extend([
        step(SHIFT_RIGHT, Spread::SCALE_SHIFT, 0, 0),
        step(MULTIPLY, spread.count, 0, 0),
        step(SHIFT_RIGHT, Spread::SCALE_SHIFT, 0, 0),
        step(RETURN_A, 0, 0, 0),
    ]);
    steps
}
