//! The system call number at a site, as far as the instructions before it show it.

/// Calls that only programs with sockets make: `socket`, `connect`, `accept`, `sendto`, `recvfrom`,
/// `sendmsg`, `recvmsg`, `bind`, `listen`, `socketpair`, `accept4`.
const ON_SOCKETS: [u32; 11] = [41, 42, 43, 44, 45, 46, 47, 49, 50, 53, 288];
/// Calls that wait for descriptors: `poll`, `select`, `epoll_wait`, `epoll_ctl`, `pselect6`,
/// `ppoll`, `epoll_pwait`, `epoll_pwait2`.
const WAITS: [u32; 8] = [7, 23, 232, 233, 270, 271, 281, 441];

/// True when the site seems to make a call that only programs with sockets make.
#[must_use]
pub fn is_on_socket(code: &[u8], site: usize) -> bool {
    shows_number(code, site, |number| ON_SOCKETS.contains(&number))
}

/// True when the site seems to make such a call, or one that waits for descriptors.
#[must_use]
pub fn is_about_sockets(code: &[u8], site: usize) -> bool {
    shows_number(code, site, |number| {
        ON_SOCKETS.contains(&number) || WAITS.contains(&number)
    })
}

/// True when the site seems to make a call whose number is a constant in the code.
#[must_use]
pub fn is_shown(code: &[u8], site: usize) -> bool {
    /// Larger numbers are not system calls.
    const NUMBERS: u32 = 512;
    shows_number(code, site, |number| number < NUMBERS)
}

/// True when the code right before a site seems to load a number that `is_one` accepts into eax: by
/// `mov`, or by `push` and `pop` in code that is optimised for size.
fn shows_number(code: &[u8], site: usize, is_one: impl Fn(u32) -> bool) -> bool {
    const LOOKED_AT: usize = 48;
    let before = &code[site.saturating_sub(LOOKED_AT)..site];
    (0..before.len()).any(|at| match before[at..] {
        [0xb8, a, b, c, d, ..] => is_one(u32::from_le_bytes([a, b, c, d])),
        [0x6a, n, 0x58, ..] => is_one(n.into()),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_calls() {
        let on_sockets = [
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_accept,
            libc::SYS_sendto,
            libc::SYS_recvfrom,
            libc::SYS_sendmsg,
            libc::SYS_recvmsg,
            libc::SYS_bind,
            libc::SYS_listen,
            libc::SYS_socketpair,
            libc::SYS_accept4,
        ];
        let waits = [
            libc::SYS_poll,
            libc::SYS_select,
            libc::SYS_epoll_wait,
            libc::SYS_epoll_ctl,
            libc::SYS_pselect6,
            libc::SYS_ppoll,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_pwait2,
        ];
        assert_eq!(ON_SOCKETS.map(i64::from), on_sockets);
        assert_eq!(WAITS.map(i64::from), waits);
    }

    #[test]
    fn a_site_shows_what_it_calls() {
        // mov eax, 44; syscall.
        assert!(is_on_socket(&[0xb8, 44, 0, 0, 0, 0x0f, 5], 5));
        // push 7; pop rax; syscall.
        let poll = [0x6a, 7, 0x58, 0x0f, 5];
        assert!(is_about_sockets(&poll, 3) && !is_on_socket(&poll, 3));
        // mov eax, 1; syscall.
        let write = [0xb8, 1, 0, 0, 0, 0x0f, 5];
        assert!(!is_about_sockets(&write, 5) && is_shown(&write, 5));
        // mov eax, 512; syscall.
        assert!(!is_shown(&[0xb8, 0, 2, 0, 0, 0x0f, 5], 5));
    }
}
