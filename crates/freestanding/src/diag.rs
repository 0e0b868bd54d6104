//! Queries about sockets to the kernel: sock_diag(7).

/// `struct nlmsghdr`.
pub const HEADER_BYTES: usize = 16;
/// include/uapi/linux/sock_diag.h.
pub const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Length of a [`TcpQuestion`] with its header, in bytes.
pub const TCP_QUESTION_BYTES: usize = HEADER_BYTES + 56;
/// The cookie value that matches any socket.
pub const ANY_COOKIE: u64 = u64::MAX;

/// `struct tcp_info`, as an attribute of an answer: `INET_DIAG_INFO`
/// (include/uapi/linux/inet_diag.h).
pub const INFO: u16 = 2;

/// `TCP_LISTEN` (include/net/tcp_states.h).
pub const TCP_LISTEN: u8 = 10;
/// The index of the loopback interface in each network namespace (drivers/net/loopback.c).
const LOOPBACK_INTERFACE: u32 = 1;
/// Offset of `idiag_state` in `struct inet_diag_msg`.
const STATE_AT: usize = 1;
/// Offset of `idiag_inode`, the last word of `struct inet_diag_msg`.
pub const INODE_AT: usize = 68;

/// The inode in an answer about one TCP socket, if the socket is in state `state`.
pub fn inode_in(answer: &[u8], state: u8) -> Option<u64> {
    let is_answer = answer.get(4..6)? == SOCK_DIAG_BY_FAMILY.to_ne_bytes();
    let message = answer.get(HEADER_BYTES..)?;
    let is_it = *message.get(STATE_AT)? == state;
    let inode = message.get(INODE_AT..INODE_AT + 4)?;
    let inode = u32::from_ne_bytes(inode.try_into().ok()?);
    (is_answer && is_it).then_some(inode.into())
}

/// A question of `BYTES` bytes: `struct nlmsghdr`, followed by `fields`.
pub fn question<const BYTES: usize>(number: u32, flags: i32, fields: &[&[u8]]) -> [u8; BYTES] {
    let header: [&[u8]; 5] = [
        &(BYTES as u32).to_ne_bytes(),
        &SOCK_DIAG_BY_FAMILY.to_ne_bytes(),
        &(flags as u16).to_ne_bytes(),
        &number.to_ne_bytes(),
        // The sender's netlink port, which the kernel fills in.
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

/// A query for TCP sockets: `struct inet_diag_req_v2` (include/uapi/linux/inet_diag.h).
#[derive(Clone, Copy, Debug)]
pub struct TcpQuestion {
    /// `AF_INET` or `AF_INET6`.
    pub family: i32,
    /// A bit for each requested attribute ([`INFO`]).
    pub attributes: u8,
    /// A bit for each state.
    pub states: u32,
    /// The address and the port. An IPv4 address is in the first four bytes.
    pub local: ([u8; 16], u16),
    /// In the form of the local address.
    pub remote: ([u8; 16], u16),
    /// Interface index; 0 means any interface.
    pub interface: u32,
    /// The socket's cookie, or [`ANY_COOKIE`].
    pub cookie: u64,
}

impl TcpQuestion {
    /// A query for the socket that would receive a SYN from one address of this host to another
    /// (`inet_diag_find_one_icsk`, net/ipv4/inet_diag.c).
    pub fn of_listener(family: i32, (to, port): ([u8; 16], u16), from: [u8; 16]) -> TcpQuestion {
        TcpQuestion {
            family,
            attributes: 0,
            // Sockets in any state.
            states: u32::MAX,
            local: (to, port),
            // No connection comes from port 0, so the kernel finds no connection.
            remote: (from, 0),
            interface: LOOPBACK_INTERFACE,
            cookie: ANY_COOKIE,
        }
    }

    /// The question as bytes, with this number and these flags of netlink(7).
    pub fn bytes(&self, number: u32, flags: i32) -> [u8; TCP_QUESTION_BYTES] {
        let fields: [&[u8]; 9] = [
            &[
                self.family as u8,
                libc::IPPROTO_TCP as u8,
                self.attributes,
                0,
            ],
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_are_none_name_no_socket() {
        let mut answer = [0u8; HEADER_BYTES + INODE_AT + 4];
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        answer[HEADER_BYTES + STATE_AT] = TCP_LISTEN;
        answer[HEADER_BYTES + INODE_AT..].copy_from_slice(&7u32.to_ne_bytes());
        assert_eq!(inode_in(&answer, TCP_LISTEN), Some(7));
        for len in 0..answer.len() {
            assert_eq!(inode_in(&answer[..len], TCP_LISTEN), None, "{len} bytes");
        }
        let mut established = answer;
        established[HEADER_BYTES + STATE_AT] = 1;
        assert_eq!(inode_in(&established, TCP_LISTEN), None);
        let mut error = answer;
        error[4..6].copy_from_slice(&(libc::NLMSG_ERROR as u16).to_ne_bytes());
        assert_eq!(inode_in(&error, TCP_LISTEN), None);
    }
}
