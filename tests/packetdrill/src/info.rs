//! Socket options, and `TCP_INFO`.

use std::ffi::c_int;
use std::num::NonZeroU8;

use toehold_tcp::{ConnectionInfo, Duration, EcnMode, Keepalive, Phase, State};

use crate::calls::Done;
use crate::socket::{Role, Wishes};
use crate::stack::Stack;

const SO_MEMINFO: c_int = 55;
const TCP_CC_INFO: c_int = 26;
/// Longer than `TCP_INFO` of any kernel: the caller says how many of its bytes it knows.
const TCP_INFO_BYTES: usize = 512;
/// The kernel's smallest socket buffer.
const SEND_BYTES_MIN: u32 = 4_608;

impl Wishes {
    pub(crate) fn keepalive_or_default(&self) -> Keepalive {
        self.keepalive_times.unwrap_or(Keepalive {
            idle: Duration::from_secs(7_200),
            interval: Duration::from_secs(75),
            probes_max: const { NonZeroU8::new(9).expect("not zero") },
        })
    }
}

impl Stack {
    pub(crate) fn setsockopt(&mut self, fd: c_int, level: c_int, name: c_int, value: i32) -> Done {
        let settings_max = self.settings().send_bytes_max.max(212_992);
        let now = self.now();
        let socket = self.descriptors.socket_mut(fd)?;
        let wishes = &mut socket.wishes;
        let unsigned = value.max(0) as u32;
        let mut keepalive = wishes.keepalive_or_default();
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR | libc::SO_REUSEPORT) => {}
            // A kernel may copy in spite of this option, as this socket layer does.
            (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => {}
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
                let bytes = (2 * unsigned.min(settings_max)).max(SEND_BYTES_MIN);
                wishes.send_bytes = Some(bytes);
                if let Role::Stream(stream) = &mut socket.role {
                    stream.set_room(bytes);
                }
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
                wishes.receive_bytes = Some(2 * unsigned.min(212_992));
            }
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => wishes.keepalive = value != 0,
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => wishes.nodelay = value != 0,
            (libc::IPPROTO_TCP, libc::TCP_CORK) => wishes.corked = value != 0,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                wishes.mss_max = Some(unsigned.min(65_535) as u16)
            }
            (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => wishes.unsent_bytes_max = unsigned,
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
                wishes.user_timeout =
                    (value > 0).then(|| Duration::from_millis(u64::from(unsigned)));
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                keepalive.idle = Duration::from_secs(u64::from(unsigned));
                wishes.keepalive_times = Some(keepalive);
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => {
                keepalive.interval = Duration::from_secs(u64::from(unsigned));
                wishes.keepalive_times = Some(keepalive);
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => {
                let count = NonZeroU8::new(unsigned.min(255) as u8);
                keepalive.probes_max = count.unwrap_or(NonZeroU8::MIN);
                wishes.keepalive_times = Some(keepalive);
            }
            (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => {}
            _ => return Err(libc::ENOPROTOOPT),
        }
        let wishes = *wishes;
        if let Role::Listener(listener) = &socket.role {
            let id = listener.id;
            let options = self.options_for(fd, false)?;
            self.engine().set_listener_options(id, options);
        } else if let Role::Stream(stream) = &socket.role {
            let id = stream.id;
            let keepalive = wishes.keepalive.then(|| wishes.keepalive_or_default());
            let engine = self.engine();
            let _ = engine.set_liveness(now, id, keepalive, wishes.user_timeout);
            self.set_cork(fd, name == libc::TCP_NODELAY && value != 0);
        }
        Ok(0)
    }

    /// The value of an option, as its bytes.
    pub(crate) fn getsockopt(
        &mut self,
        fd: c_int,
        level: c_int,
        name: c_int,
    ) -> Result<Vec<u8>, c_int> {
        let room = self.settings().send_bytes;
        let socket = self.descriptors.socket_mut(fd)?;
        let wishes = socket.wishes;
        let id = match &socket.role {
            Role::Stream(stream) => Some(stream.id),
            _ => None,
        };
        let info = id.and_then(|id| self.engine().info(id));
        let number = |value: u32| Ok(value.to_ne_bytes().to_vec());
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                let error = match &mut self.descriptors.socket_mut(fd)?.role {
                    Role::Stream(stream) => stream.error.take(),
                    _ => None,
                };
                number(error.unwrap_or(0) as u32)
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => number(wishes.send_bytes.unwrap_or(room)),
            (libc::SOL_SOCKET, SO_MEMINFO) => Ok(vec![0; 9 * 4]),
            (libc::IPPROTO_TCP, TCP_CC_INFO) => Ok(Vec::new()),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => number(wishes.nodelay.into()),
            (libc::IPPROTO_TCP, libc::TCP_CORK) => number(wishes.corked.into()),
            (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => number(wishes.unsent_bytes_max),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => number(
                wishes
                    .user_timeout
                    .map_or(0, |after| after.as_millis() as u32),
            ),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                let wished = wishes.mss_max.unwrap_or(536);
                number(info.map_or(wished, |info| info.mss).into())
            }
            (libc::IPPROTO_TCP, libc::TCP_INFO) => Ok(self.tcp_info(fd, info.as_ref())),
            _ => Err(libc::ENOPROTOOPT),
        }
    }

    fn tcp_info(&mut self, fd: c_int, info: Option<&ConnectionInfo>) -> Vec<u8> {
        let now = self.now();
        let mut out = Layout(vec![0; TCP_INFO_BYTES]);
        let Some(info) = info else {
            let is_listening = self
                .descriptors
                .socket(fd)
                .is_ok_and(|socket| matches!(socket.role, Role::Listener(_)));
            out.byte(0, if is_listening { 10 } else { 7 });
            return out.0;
        };
        let mss = u32::from(info.mss.max(1));
        let segments = |bytes: u32| bytes.div_ceil(mss);
        out.byte(0, state_number(info.state));
        out.byte(1, congestion_state(info));
        out.byte(
            2,
            if info.lost + info.retransmitted > 0 {
                info.retries
            } else {
                0
            },
        );
        let is_probing = info.acknowledged == info.sent;
        out.byte(3, if is_probing { info.retries } else { 0 });
        out.byte(4, info.retries);
        let options = [
            info.timestamps,
            info.selective,
            info.window_scales.is_some(),
            info.ecn != EcnMode::Off,
        ];
        let options = (0..)
            .zip(options)
            .map(|(bit, on)| u8::from(on) << bit)
            .sum();
        out.byte(5, options);
        let (theirs, ours) = info.window_scales.unwrap_or((0, 0));
        out.byte(6, theirs | ours << 4);
        out.word(8, info.timeout.as_micros() as u32);
        out.word(12, 40_000);
        out.word(16, mss);
        out.word(20, 536.min(mss));
        out.word(24, segments((info.sent - info.acknowledged) as u32));
        out.word(28, segments(info.sacked));
        out.word(32, segments(info.lost + info.retransmitted));
        out.word(36, segments(info.retransmitted));
        let last_received = self.stream(fd).map_or(now, |stream| stream.received_at);
        out.word(52, now.since(last_received).as_millis() as u32);
        let round_trip = info.round_trip.unwrap_or_default().as_micros() as u32;
        out.word(68, round_trip);
        out.word(72, info.round_trip_variation.as_micros() as u32);
        // The kernel reports "none yet" as the largest signed number.
        let threshold = info.slow_start_threshold;
        out.word(
            76,
            if threshold == u32::MAX {
                0x7fff_ffff
            } else {
                threshold / mss
            },
        );
        out.word(80, info.congestion_window / mss);
        out.word(84, info.advertised_mss.into());
        out.word(88, 3);
        // The low halves of two 64-bit numbers.
        out.word(120, info.acknowledged as u32);
        out.word(128, info.received as u32);
        let unsent = self
            .stream(fd)
            .map_or(0, |stream| stream.published - info.sent);
        out.word(144, unsent as u32);
        out.word(148, info.round_trip_minimum.as_micros() as u32);
        out.word(192, segments(info.acknowledged as u32 + info.sacked));
        out.0
    }
}

/// `struct tcp_info` of `linux/tcp.h`, by offset.
struct Layout(Vec<u8>);

impl Layout {
    fn byte(&mut self, at: usize, value: u8) {
        self.0[at] = value;
    }

    fn word(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
}

/// The kernel's numbers for TCP states.
fn state_number(state: State) -> u8 {
    match state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::TimeWait => 6,
        State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    }
}

/// `TCP_CA_Open`, `TCP_CA_Disorder`, `TCP_CA_CWR`, `TCP_CA_Recovery`, `TCP_CA_Loss`.
fn congestion_state(info: &ConnectionInfo) -> u8 {
    match info.phase {
        Phase::Open if info.sacked > 0 => 1,
        Phase::Open => 0,
        // The window was reduced for a congestion mark, and no segment needs repair.
        Phase::Recovery if info.lost + info.retransmitted + info.sacked == 0 => 2,
        Phase::Recovery => 3,
        Phase::Loss => 4,
    }
}
