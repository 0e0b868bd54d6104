//! Two network namespaces with a veth between them. Both end when they are dropped.
//!
//! ```text
//!   near: AF_XDP on `near0` (kernel: 10.85.0.2, fd85::2) ══ `far0` (10.85.0.1, fd85::1) :far
//! ```

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use toehold_network::Namespace;

/// Long enough for any delay of a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Network {
    pub(crate) near: Namespace,
    pub(crate) far: Namespace,
}

impl Network {
    /// `None`, with a message, where this process may not make namespaces or load XDP programs.
    pub(crate) fn new() -> Option<Self> {
        Self::with_queues(1)
    }

    /// Both ends have this many queues in each direction.
    pub(crate) fn with_queues(queues: u32) -> Option<Self> {
        let make = || Namespace::new().map_err(|error| println!("SKIPPED: {error}"));
        let network = Self {
            near: make().ok()?,
            far: make().ok()?,
        };
        let queues = format!("numtxqueues {queues} numrxqueues {queues}");
        let joined = network
            .near
            .add_veth("near0", &network.far, "far0", &queues);
        joined.expect("a veth can be made in a namespace of ours");
        network.near_ip("addr add 10.85.0.2/24 dev near0");
        network.near_ip("addr add fd85::2/64 dev near0 nodad");
        network.far_ip("addr add 10.85.0.1/24 dev far0");
        network.far_ip("addr add fd85::1/64 dev far0 nodad");
        network.near_ip("link set near0 up");
        network.far_ip("link set far0 up");
        Some(network)
    }

    /// Calls `run` in the near namespace, in a thread of its own; objects that `run` makes stay
    /// there.
    pub(crate) fn near<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        self.near.within(run)
    }

    /// As [`Network::near`], in the far namespace.
    pub(crate) fn far<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        self.far.within(run)
    }

    /// `ip` in the near namespace.
    pub(crate) fn near_ip(&self, arguments: &str) {
        self.near.ip(arguments).expect("ip does as it is told");
    }

    /// `ip` in the far namespace.
    pub(crate) fn far_ip(&self, arguments: &str) {
        self.far.ip(arguments).expect("ip does as it is told");
    }

    /// The output of `ip` about a near interface.
    pub(crate) fn near_link(&self, name: &str) -> String {
        let shown = self.near.ip(&format!("-details link show {name}"));
        shown.expect("ip shows an interface")
    }

    /// The far end of the wire.
    pub(crate) fn far_wire(&self) -> Wire {
        self.far(|| Wire::open("far0"))
    }
}

/// Waits until `is_so` returns true.
pub(crate) fn wait_until(mut is_so: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < TIMEOUT {
        if is_so() {
            return true;
        }
        thread::sleep(Duration::from_millis(2));
    }
    false
}

/// Raw frames to and from an interface: a packet socket (packet(7)).
pub(crate) struct Wire {
    socket: OwnedFd,
}

impl Wire {
    fn open(interface: &str) -> Self {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: no memory is involved; the descriptor is a new one.
        let socket = unsafe {
            let socket = libc::socket(libc::AF_PACKET, kind, libc::c_int::from(protocol));
            assert!(socket >= 0, "{}", io::Error::last_os_error());
            OwnedFd::from_raw_fd(socket)
        };
        let wire = Self { socket };
        wire.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &(64 << 20));
        wire.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1);
        let timeout = libc::timeval {
            tv_sec: 10,
            tv_usec: 0,
        };
        wire.set(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &timeout);
        let name = std::ffi::CString::new(interface).expect("a name");
        // SAFETY: `sockaddr_ll` is plain data, for which zeros are a value; the name is a C string.
        let (mut address, index): (libc::sockaddr_ll, _) =
            unsafe { (std::mem::zeroed(), libc::if_nametoindex(name.as_ptr())) };
        address.sll_family = libc::AF_PACKET as libc::c_ushort;
        address.sll_protocol = protocol;
        address.sll_ifindex = index.cast_signed();
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address is readable for its length.
        let bound =
            unsafe { libc::bind(wire.socket.as_raw_fd(), (&raw const address).cast(), length) };
        assert_eq!(bound, 0, "{}", io::Error::last_os_error());
        wire
    }

    pub(crate) fn send(&self, frame: &[u8]) {
        let (base, len) = (frame.as_ptr().cast(), frame.len());
        // SAFETY: the frame is readable for its length.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), base, len, 0) };
        assert_eq!(sent, len as isize, "{}", io::Error::last_os_error());
    }

    /// The next frame for which `wanted` is true; `None` when none comes for long.
    pub(crate) fn receive(&self, wanted: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let (base, len) = (buffer.as_mut_ptr().cast(), buffer.len());
            // SAFETY: the buffer is writable for its length.
            let got = unsafe { libc::recv(self.socket.as_raw_fd(), base, len, 0) };
            let got = usize::try_from(got).ok()?;
            if wanted(&buffer[..got]) {
                buffer.truncate(got);
                return Some(buffer);
            }
        }
    }

    fn set<T>(&self, level: libc::c_int, name: libc::c_int, value: &T) {
        let length = size_of::<T>() as libc::socklen_t;
        let (fd, value) = (self.socket.as_raw_fd(), (&raw const *value).cast());
        // SAFETY: the value is readable for its length.
        let set = unsafe { libc::setsockopt(fd, level, name, value, length) };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
    }
}
