//! The BPF program for addresses that are shared with the kernel. It decides for each segment
//! whether the segment is the engine's.
//!
//! ```text
//!   TCP segment ──► its port the engine's? ──► a connection of the kernel's? ──► the engine
//!   (AF_XDP: an ICMP     │ no                       │ yes
//!    error about one)    └──────────────────────────┴──► the kernel, as everything else
//! ```
//!
//! A request for a connection is the engine's only while the engine is awake. Otherwise the kernel
//! answers it: the program listens there as well.
//!
//! The kernel may have connections of the same port from the time before the engine had it. The
//! program looks each segment up in the kernel's table, and leaves the segments of such connections
//! to the kernel.
//!
//! With packet sockets the kernel gets the engine's segments, too. The program marks them as frames
//! of another host (PACKET_OTHERHOST), so the kernel drops them before IP, as if they had another
//! Ethernet address. With AF_XDP the kernel never sees them.

use crate::bpf::{Assembler, If, Instruction, Label, Register, Size};
use crate::xdp::program::{half, leave_shorter, redirect};

/// A new connection to this port is the engine's.
pub(super) const LISTENING: u32 = 1;
/// The port may have connections of the engine's.
pub(super) const CONNECTED: u32 = 2;

/// The map's key: an address (IPv4 in the form of RFC 4291, section 2.5.5.2), the port in network
/// byte order, and two bytes of zero.
pub(super) const KEY_BYTES: usize = 20;

/// The program's hook, which determines what it does with the engine's segments.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// Before IP: the program marks them as frames of another host.
    Ingress,
    /// In the driver: the program gives them to the socket of their queue.
    Xdp {
        /// A socket for each receive queue.
        sockets: i32,
        /// One counter: frames whose queue has no socket.
        drops: i32,
    },
}

/// Descriptors of the maps of a [`PortTable`](super::PortTable), which the program reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maps {
    /// The engine's ports.
    pub(super) ports: i32,
    /// The time until which requests for connections are the engine's, in nanoseconds of
    /// CLOCK_MONOTONIC.
    pub(super) awake: i32,
}

/// The program.
pub(crate) fn steering(maps: Maps, way: Way) -> Vec<Instruction> {
    let mut a = Assembler::new();
    let (pass, decide) = (a.label(), a.label());
    let (ipv4, ipv6) = (a.label(), a.label());
    // R6: the frame's description. R2, R3: its beginning and its end. R7: the segment. R8: its
    // flags. R9: the size of the ends in TUPLE.
    a.copy(Register::R6, Register::R1);
    match way {
        Way::Ingress => begin_at_ingress(&mut a, pass),
        Way::Xdp { .. } => {
            a.load(Size::Word, Register::R2, Register::R6, MD_DATA);
            a.load(Size::Word, Register::R3, Register::R6, MD_DATA_END);
        }
    }
    leave_shorter(&mut a, IPV4_END, pass);
    a.load(Size::Half, Register::R4, Register::R2, ETHERNET_TYPE);
    a.jump_if_word(Register::R4, If::Equal, half(TYPE_IPV4), ipv4);
    a.jump_if_word(Register::R4, If::Equal, half(TYPE_IPV6), ipv6);
    a.jump(pass);

    let takes_errors = matches!(way, Way::Xdp { .. });
    a.place(ipv4);
    ends_of_ipv4(&mut a, takes_errors, pass, decide);
    a.place(ipv6);
    ends_of_ipv6(&mut a, takes_errors, pass, decide);

    a.place(decide);
    leave_what_is_not_ours(&mut a, maps, pass);
    match way {
        Way::Ingress => {
            a.copy(Register::R1, Register::R6);
            a.set(Register::R2, PACKET_OTHERHOST);
            a.call(BPF_SKB_CHANGE_TYPE);
            a.set(Register::R0, TCX_PASS);
            a.exit();
        }
        Way::Xdp { sockets, drops } => redirect(&mut a, sockets, drops),
    }

    a.place(pass);
    let verdict = match way {
        Way::Ingress => TCX_NEXT,
        Way::Xdp { .. } => XDP_PASS,
    };
    a.set(Register::R0, verdict);
    a.exit();
    a.finish()
}

/// Leaves frames of other hosts and of virtual LANs to the kernel. Then makes the headers
/// contiguous.
fn begin_at_ingress(a: &mut Assembler, pass: Label) {
    let whole = a.label();
    a.load(Size::Word, Register::R4, Register::R6, SKB_PACKET_TYPE);
    a.jump_if_word(Register::R4, If::NotEqual, 0, pass);
    a.load(Size::Word, Register::R4, Register::R6, SKB_VLAN_TAG);
    a.and(Register::R4, 0x0fff);
    a.jump_if_word(Register::R4, If::NotEqual, 0, pass);
    let load = |a: &mut Assembler| {
        a.load(Size::Word, Register::R2, Register::R6, SKB_DATA);
        a.load(Size::Word, Register::R3, Register::R6, SKB_DATA_END);
    };
    load(a);
    leave_shorter(a, HEADERS_BYTES, whole);
    let is_there = a.label();
    a.jump(is_there);
    a.place(whole);
    // The call fails for a shorter frame, but such a frame is contiguous already.
    a.copy(Register::R1, Register::R6);
    a.set(Register::R2, HEADERS_BYTES.into());
    a.call(BPF_SKB_PULL_DATA);
    load(a);
    a.place(is_there);
}

/// Reads the ends of a complete IPv4 segment, or of its first fragment.
fn ends_of_ipv4(a: &mut Assembler, takes_errors: bool, pass: Label, decide: Label) {
    let segment = a.label();
    a.load(Size::Byte, Register::R4, Register::R2, IPV4_PROTOCOL);
    a.jump_if_word(Register::R4, If::Equal, PROTOCOL_TCP, segment);
    if takes_errors {
        a.jump_if_word(Register::R4, If::NotEqual, PROTOCOL_ICMP, pass);
        error_of_ipv4(a, pass, decide);
    } else {
        a.jump(pass);
    }
    a.place(segment);
    a.load(Size::Half, Register::R4, Register::R2, IPV4_FRAGMENT);
    a.and(Register::R4, half(0x1fff).cast_signed());
    a.jump_if_word(Register::R4, If::NotEqual, 0, pass);
    a.load(Size::Byte, Register::R4, Register::R2, ETHERNET_BYTES);
    a.and(Register::R4, 0x0f);
    a.shift_left(Register::R4, 2);
    a.jump_if_word(Register::R4, If::Less, 20, pass);
    a.copy(Register::R7, Register::R2);
    a.add_register(Register::R7, Register::R4);
    a.add(Register::R7, ETHERNET_BYTES.into());
    a.copy(Register::R1, Register::R7);
    a.add(Register::R1, TCP_BYTES);
    a.jump_if(Register::R1, If::Greater, Register::R3, pass);
    copy_words(a, Register::R2, IPV4_SOURCE, TUPLE, 1);
    copy_words(a, Register::R2, IPV4_SOURCE + 4, TUPLE + 4, 1);
    key_of_ipv4(a, IPV4_SOURCE + 4);
    copy_port(a, Register::R7, 0, TUPLE + 8);
    copy_port(a, Register::R7, 2, TUPLE + 10);
    copy_port(a, Register::R7, 2, KEY + 16);
    a.load(Size::Byte, Register::R8, Register::R7, TCP_FLAGS);
    a.set(Register::R9, IPV4_TUPLE_BYTES);
    a.jump(decide);
}

/// Reads the ends of the segment that an ICMP error quotes. This host sent that segment, so source
/// and destination are exchanged.
fn error_of_ipv4(a: &mut Assembler, pass: Label, decide: Label) {
    let is_error = a.label();
    leave_shorter(a, QUOTED_V4 + 28, pass);
    for (at, expected) in [
        (ETHERNET_BYTES, 0x45),
        (QUOTED_V4, 0x45),
        (QUOTED_V4 + 9, PROTOCOL_TCP),
    ] {
        a.load(Size::Byte, Register::R4, Register::R2, at);
        a.jump_if_word(Register::R4, If::NotEqual, expected, pass);
    }
    a.load(Size::Byte, Register::R4, Register::R2, IPV4_END);
    // RFC 792: unreachable, time exceeded, parameter problem.
    for kind in [3, 11, 12] {
        a.jump_if_word(Register::R4, If::Equal, kind, is_error);
    }
    a.jump(pass);
    a.place(is_error);
    copy_words(a, Register::R2, QUOTED_V4 + 16, TUPLE, 1);
    copy_words(a, Register::R2, QUOTED_V4 + 12, TUPLE + 4, 1);
    key_of_ipv4(a, QUOTED_V4 + 12);
    copy_port(a, Register::R2, QUOTED_V4 + 22, TUPLE + 8);
    copy_port(a, Register::R2, QUOTED_V4 + 20, TUPLE + 10);
    copy_port(a, Register::R2, QUOTED_V4 + 20, KEY + 16);
    a.set(Register::R8, 0);
    a.set(Register::R9, IPV4_TUPLE_BYTES);
    a.jump(decide);
}

/// Reads the ends of an IPv6 segment without extension headers.
fn ends_of_ipv6(a: &mut Assembler, takes_errors: bool, pass: Label, decide: Label) {
    let segment = a.label();
    leave_shorter(a, IPV6_END + TCP_BYTES as i16, pass);
    a.load(Size::Byte, Register::R4, Register::R2, IPV6_NEXT_HEADER);
    a.jump_if_word(Register::R4, If::Equal, PROTOCOL_TCP, segment);
    if takes_errors {
        a.jump_if_word(Register::R4, If::NotEqual, PROTOCOL_ICMP_V6, pass);
        leave_shorter(a, QUOTED_V6 + 48, pass);
        a.load(Size::Byte, Register::R4, Register::R2, IPV6_END);
        // RFC 4443: the errors are the types 1 to 4. Higher types are not errors.
        a.jump_if_word(Register::R4, If::Equal, 0, pass);
        a.jump_if_word(Register::R4, If::Greater, 4, pass);
        a.load(Size::Byte, Register::R4, Register::R2, QUOTED_V6 + 6);
        a.jump_if_word(Register::R4, If::NotEqual, PROTOCOL_TCP, pass);
        copy_words(a, Register::R2, QUOTED_V6 + 24, TUPLE, 4);
        copy_words(a, Register::R2, QUOTED_V6 + 8, TUPLE + 16, 4);
        copy_words(a, Register::R2, QUOTED_V6 + 8, KEY, 4);
        copy_port(a, Register::R2, QUOTED_V6 + 42, TUPLE + 32);
        copy_port(a, Register::R2, QUOTED_V6 + 40, TUPLE + 34);
        copy_port(a, Register::R2, QUOTED_V6 + 40, KEY + 16);
        a.set(Register::R8, 0);
        a.set(Register::R9, IPV6_TUPLE_BYTES);
        a.jump(decide);
    } else {
        a.jump(pass);
    }
    a.place(segment);
    copy_words(a, Register::R2, IPV6_SOURCE, TUPLE, 8);
    copy_words(a, Register::R2, IPV6_SOURCE + 16, KEY, 4);
    copy_port(a, Register::R2, IPV6_END, TUPLE + 32);
    copy_port(a, Register::R2, IPV6_END + 2, TUPLE + 34);
    copy_port(a, Register::R2, IPV6_END + 2, KEY + 16);
    a.load(Size::Byte, Register::R8, Register::R2, IPV6_END + TCP_FLAGS);
    a.set(Register::R9, IPV6_TUPLE_BYTES);
    a.jump(decide);
}

/// Leaves to the kernel: segments of other ports, segments of the kernel's connections, and
/// requests for connections if the engine does not listen on the port or is not awake.
fn leave_what_is_not_ours(a: &mut Assembler, maps: Maps, pass: Label) {
    let (is_known, ours) = (a.label(), a.label());
    a.store_number(Size::Half, Register::R10, KEY + 18, 0);
    a.load_map(Register::R1, maps.ports);
    a.copy(Register::R2, Register::R10);
    a.add(Register::R2, KEY.into());
    a.call(BPF_MAP_LOOKUP_ELEM);
    a.jump_if_null(Register::R0, pass);
    a.load(Size::Word, Register::R1, Register::R0, 0);
    a.and(Register::R8, SYN_OR_ACK);
    a.jump_if_word(Register::R8, If::NotEqual, SYN, is_known);
    a.and(Register::R1, LISTENING.cast_signed());
    a.jump_if_word(Register::R1, If::Equal, 0, pass);
    a.store_number(Size::Word, Register::R10, KEY, 0);
    a.load_map(Register::R1, maps.awake);
    a.copy(Register::R2, Register::R10);
    a.add(Register::R2, KEY.into());
    a.call(BPF_MAP_LOOKUP_ELEM);
    a.jump_if_null(Register::R0, pass);
    a.load(Size::Double, Register::R7, Register::R0, 0);
    a.call(BPF_KTIME_GET_NS);
    a.jump_if(Register::R7, If::Less, Register::R0, pass);
    a.place(is_known);
    a.copy(Register::R1, Register::R6);
    a.copy(Register::R2, Register::R10);
    a.add(Register::R2, TUPLE.into());
    a.copy(Register::R3, Register::R9);
    a.set(Register::R4, BPF_F_CURRENT_NETNS);
    a.set(Register::R5, 0);
    a.call(BPF_SKC_LOOKUP_TCP);
    a.jump_if_null(Register::R0, ours);
    a.load(Size::Word, Register::R7, Register::R0, SOCKET_STATE);
    a.copy(Register::R1, Register::R0);
    a.call(BPF_SK_RELEASE);
    // Every port of the engine has a kernel listener, too: the program's own socket.
    a.jump_if_word(Register::R7, If::NotEqual, TCP_LISTEN, pass);
    a.place(ours);
}

fn key_of_ipv4(a: &mut Assembler, from: i16) {
    a.store_number(Size::Double, Register::R10, KEY, 0);
    let prefix = i32::from_ne_bytes([0, 0, 0xff, 0xff]);
    a.store_number(Size::Word, Register::R10, KEY + 8, prefix);
    copy_words(a, Register::R2, from, KEY + 12, 1);
}

/// Copies whole words. They are aligned if the platform leaves two bytes in front of a frame.
fn copy_words(a: &mut Assembler, base: Register, from: i16, to: i16, count: i16) {
    for offset in (0..4 * count).step_by(4) {
        a.load(Size::Word, Register::R4, base, from + offset);
        a.store(Size::Word, Register::R10, to + offset, Register::R4);
    }
}

fn copy_port(a: &mut Assembler, base: Register, from: i16, to: i16) {
    a.load(Size::Half, Register::R4, base, from);
    a.store(Size::Half, Register::R10, to, Register::R4);
}

/// Places on the stack: the key, and the ends in the form for the lookup of a socket.
const KEY: i16 = -24;
const TUPLE: i16 = -64;
const IPV4_TUPLE_BYTES: i32 = 12;
const IPV6_TUPLE_BYTES: i32 = 36;

/// Offsets in `struct xdp_md`, `struct __sk_buff` and `struct bpf_sock` (`linux/bpf.h`).
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const SKB_PACKET_TYPE: i16 = 4;
const SKB_VLAN_TAG: i16 = 24;
const SKB_DATA: i16 = 76;
const SKB_DATA_END: i16 = 80;
const SOCKET_STATE: i16 = 72;

/// `enum bpf_func_id`.
const BPF_MAP_LOOKUP_ELEM: i32 = 1;
const BPF_KTIME_GET_NS: i32 = 5;
const BPF_SKB_CHANGE_TYPE: i32 = 32;
const BPF_SKB_PULL_DATA: i32 = 39;
const BPF_SK_RELEASE: i32 = 86;
const BPF_SKC_LOOKUP_TCP: i32 = 99;
const BPF_F_CURRENT_NETNS: i32 = -1;

/// The verdicts, and the type of a frame that is for another host (`linux/if_packet.h`).
const TCX_NEXT: i32 = -1;
const TCX_PASS: i32 = 0;
const XDP_PASS: i32 = 2;
const PACKET_OTHERHOST: i32 = 3;
/// `include/net/tcp_states.h`.
const TCP_LISTEN: u32 = 10;

/// From the beginning of an Ethernet frame: RFC 791, 8200, 9293.
const ETHERNET_BYTES: i16 = 14;
const ETHERNET_TYPE: i16 = 12;
const IPV4_FRAGMENT: i16 = 20;
const IPV4_PROTOCOL: i16 = 23;
const IPV4_SOURCE: i16 = 26;
const IPV4_END: i16 = 34;
const IPV6_NEXT_HEADER: i16 = 20;
const IPV6_SOURCE: i16 = 22;
const IPV6_END: i16 = 54;
/// The bytes of the headers of Ethernet, IPv6 and TCP without options.
const HEADERS_BYTES: i16 = 74;
/// The offset of the packet that an ICMP error quotes.
const QUOTED_V4: i16 = 42;
const QUOTED_V6: i16 = 62;
const TCP_BYTES: i32 = 20;
const TCP_FLAGS: i16 = 13;
const SYN: u32 = 0x02;
const SYN_OR_ACK: i32 = 0x12;

const TYPE_IPV4: u16 = 0x0800;
const TYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_ICMP: u32 = 1;
const PROTOCOL_TCP: u32 = 6;
const PROTOCOL_ICMP_V6: u32 = 58;

#[cfg(test)]
mod tests;
