//! Questions about sockets, as the kernel reads them: sock_diag(7).

/// `struct nlmsghdr`.
pub const HEADER_BYTES: usize = 16;
/// include/uapi/linux/sock_diag.h.
pub const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// A [`TcpQuestion`] with its header.
pub const TCP_QUESTION_BYTES: usize = HEADER_BYTES + 56;
/// Stands for any socket, instead of a cookie.
pub const ANY_COOKIE: u64 = u64::MAX;

/// A question of `BYTES` bytes: `struct nlmsghdr`, and the fields behind it.
pub fn question<const BYTES: usize>(number: u32, flags: i32, fields: &[&[u8]]) -> [u8; BYTES] {
    let header: [&[u8]; 5] = [
        &(BYTES as u32).to_ne_bytes(),
        &SOCK_DIAG_BY_FAMILY.to_ne_bytes(),
        &(flags as u16).to_ne_bytes(),
        &number.to_ne_bytes(),
        // The port of who asks, which the kernel knows.
        &[0; 4],
    ];
    let mut bytes = [0; BYTES];
    let mut at = 0;
    for field in header.iter().chain(fields) {
        bytes[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    }
    debug_assert!(at == BYTES);
    bytes
}

/// Which TCP sockets are meant: `struct inet_diag_req_v2` (include/uapi/linux/inet_diag.h).
#[derive(Clone, Copy, Debug)]
pub struct TcpQuestion {
    /// `AF_INET` or `AF_INET6`.
    pub family: i32,
    /// A bit for each state.
    pub states: u32,
    /// The address, an IPv4 one in the first four bytes, and the port.
    pub local: ([u8; 16], u16),
    /// As the local address.
    pub remote: ([u8; 16], u16),
    /// 0: no interface.
    pub interface: u32,
    /// The socket's cookie, or [`ANY_COOKIE`].
    pub cookie: u64,
}

impl TcpQuestion {
    /// The question with this number, and flags of netlink(7).
    pub fn bytes(&self, number: u32, flags: i32) -> [u8; TCP_QUESTION_BYTES] {
        let fields: [&[u8]; 9] = [
            &[self.family as u8, libc::IPPROTO_TCP as u8, 0, 0],
            &self.states.to_ne_bytes(),
            &self.local.1.to_be_bytes(),
            &self.remote.1.to_be_bytes(),
            &self.local.0,
            &self.remote.0,
            &self.interface.to_ne_bytes(),
            &(self.cookie as u32).to_ne_bytes(),
            &((self.cookie >> 32) as u32).to_ne_bytes(),
        ];
        question(number, flags, &fields)
    }
}
