//! One meeting: a network of its own, both programs, and the link between them.

use std::io::Write;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant as Clock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use toehold_link::{Direction, Tap, TapOptions, VnetHeader};
use toehold_network::Namespace;
use toehold_tcp::{Instant, ReceiveOffload};

use crate::attack::{Attack, Attacker};
use crate::cell::{Cell, Family, Impairment, Pattern};
use crate::engine;
use crate::kernel::{self, TIMEOUT};
use crate::link::{Closure, Way};
use crate::manners::Manners;
use crate::record::Record;
use crate::report::Tally;

/// The interval between checks whether the kernel's program is done.
const LOOK_EVERY: Duration = Duration::from_millis(10);
const LOOK_EVERY_HOLDING: Duration = Duration::from_millis(2);
/// A longer turn counts as this long.
const TURN_TIME_MAX: Duration = Duration::from_millis(500);
/// The number of checks for the kernel's address.
const ADDRESS_LOOKS_MAX: u32 = 10_000;
/// The shortest pause that counts as a stop of this process.
const STOP_TIME_MIN: Duration = Duration::from_secs(2);
const ATTEMPTS_MAX: u32 = 4;
/// Frames taken in a row before the engine may answer.
const FRAMES_IN_A_ROW: usize = 64;

/// Whether this process may create the namespace and the device of a meeting.
pub(crate) fn can_meet() -> Result<(), String> {
    let [cell, ..] = crate::cell::all()[..] else {
        return Ok(());
    };
    Namespace::new()?.within(|| configured(cell, Manners::USUAL).map(drop))
}

/// Lets engine and kernel meet. If this process was stopped meanwhile, only the kernel's timers
/// went on: then the meeting is repeated.
pub(crate) fn meet(
    cell: Cell,
    seed: u64,
    (attack, manners): (Option<Attack>, Manners),
) -> Result<Tally, String> {
    let mut attempts = 1;
    loop {
        match meet_once(cell, seed, (attack, manners)) {
            Err(Failure { was_stopped, .. }) if was_stopped && attempts < ATTEMPTS_MAX => {
                attempts += 1;
            }
            outcome => return outcome.map_err(|failure| failure.why),
        }
    }
}

struct Failure {
    why: String,
    was_stopped: bool,
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self {
            why,
            was_stopped: false,
        }
    }
}

/// One meeting in a network namespace of its own, and therefore on a thread of its own.
fn meet_once(
    cell: Cell,
    seed: u64,
    (attack, manners): (Option<Attack>, Manners),
) -> Result<Tally, Failure> {
    let namespace = Namespace::new().map_err(String::from)?;
    let meeting = || {
        let (tap, set) = configured(cell, manners)?;
        let attacker = attack.map(|attack| Attacker::start(cell, attack, seed));
        let attacker = attacker
            .transpose()
            .map_err(|error| format!("the attacker: {error}"))?;
        let pace = attacker.as_ref().map(Attacker::pace);
        let has_fast_open = manners.has_fast_open();
        let kernel = kernel::Program::start(cell, pace, has_fast_open);
        let kernel = kernel.map_err(|error| error.to_string())?;
        let both = (attack, manners);
        let mut meeting = Meeting::new(cell, seed, (tap, kernel), both);
        let outcome = catch_unwind(AssertUnwindSafe(|| meeting.run()))
            .unwrap_or_else(|panic| Err(format!("panicked: {}", message(&*panic))));
        let mut tally = meeting.tally();
        let stopped = attacker.map_or(Ok(0), |mut attacker| attacker.stop());
        let outcome = outcome.and(stopped.map(|frames| tally.hostile = frames));
        match outcome.and_then(|()| meeting.check(&tally)) {
            Ok(()) => Ok(tally),
            Err(why) => Err(Failure {
                why: format!(
                    "{}\nkernel: {set}\nengine: {manners:?}, {:?}",
                    meeting.describe(&why),
                    manners.options()
                ),
                was_stopped: meeting.note_stop(),
            }),
        }
    };
    let joined = catch_unwind(AssertUnwindSafe(|| namespace.within(meeting)));
    joined.unwrap_or_else(|panic| Err(format!("panicked: {}", message(&*panic)).into()))
}

fn message(panic: &dyn std::any::Any) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_default()
}

/// A configured TAP device in this thread's network namespace, and the settings of its kernel.
fn configured(cell: Cell, manners: Manners) -> Result<(Tap, String), String> {
    let set = manners.set_kernel(cell);
    let options = TapOptions {
        multi_queue: false,
        receive_checksum: cell.link.offloads,
        receive_large: cell.link.offloads,
    };
    let tap = Tap::open("toe0", options).map_err(|error| error.to_string())?;
    let address = match cell.family {
        Family::V4 => format!("{}/24", cell.kernel_address()),
        Family::V6 => format!("{}/64 nodad", cell.kernel_address()),
    };
    be_patient()?;
    let mtu = cell.link.mtu;
    let commands =
        format!("link set toe0 mtu {mtu}\nlink set toe0 up\naddr add {address} dev toe0\n");
    let mut ip = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|error| format!("ip: {error}"))?;
    let written = ip
        .stdin
        .take()
        .map(|mut input| input.write_all(commands.as_bytes()));
    let status = ip.wait().map_err(|error| format!("ip: {error}"))?;
    if !status.success() || !matches!(written, Some(Ok(()))) {
        return Err(format!("ip cannot configure the device: {status}"));
    }
    await_address(cell)?;
    Ok((tap, set))
}

/// Lets the kernel ask for the engine's hardware address more often than three times, because some
/// links lose frames, and on a busy host the engine may have no processor for seconds.
fn be_patient() -> Result<(), String> {
    for family in ["ipv4", "ipv6"] {
        let path = format!("/proc/sys/net/{family}/neigh/toe0/mcast_solicit");
        std::fs::write(&path, "30").map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

/// Waits until the kernel receives packets for its address. The kernel adds the route of an IPv6
/// address later, and may miss the engine's first question before that.
fn await_address(cell: Cell) -> Result<(), String> {
    let IpAddr::V6(address) = cell.kernel_address() else {
        return Ok(());
    };
    let route: String = address
        .octets()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let route = format!("{route} 80 ");
    for _ in 0..ADDRESS_LOOKS_MAX {
        let routes = std::fs::read_to_string("/proc/thread-self/net/ipv6_route");
        if routes.is_ok_and(|routes| routes.contains(&route)) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Err(format!("the kernel has no route to {address}"))
}

struct Meeting {
    cell: Cell,
    attack: Option<Attack>,
    tap: Tap,
    kernel: kernel::Program,
    engine: engine::Program,
    began: Clock,
    frame: Vec<u8>,
    inward: Way,
    outward: Way,
    /// The windows of the kernel and of the engine.
    kernels: Closure,
    engines: Closure,
    frames: u64,
    record: Record,
    /// True when a turn took longer than any turn can take by itself.
    was_stopped: bool,
    /// When this turn began.
    turn: Clock,
}

impl Meeting {
    fn new(
        cell: Cell,
        seed: u64,
        (tap, kernel): (Tap, kernel::Program),
        (attack, manners): (Option<Attack>, Manners),
    ) -> Self {
        // Each cell has its own sequence of impairments.
        let name = cell.to_string();
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        let seed = name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, mix);
        Self {
            cell,
            attack,
            engine: engine::Program::new(cell, seed, kernel.address, (attack, manners)),
            tap,
            kernel,
            began: Clock::now(),
            frame: vec![0; 70_000],
            inward: Way::new(cell.impairment, seed.wrapping_add(1), manners.marks_every()),
            outward: Way::new(cell.impairment, seed.wrapping_add(2), manners.marks_every()),
            kernels: Closure::default(),
            engines: Closure::default(),
            frames: 0,
            record: Record::default(),
            was_stopped: false,
            turn: Clock::now(),
        }
    }

    fn note_stop(&mut self) -> bool {
        self.was_stopped |= self.turn.elapsed() > STOP_TIME_MIN;
        self.was_stopped
    }

    fn now(&self) -> Instant {
        Instant::from_micros(self.micros() + 1)
    }

    fn micros(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// Runs until the connections are over at both ends: the kernel's program may be done while its
    /// last bytes are in flight.
    fn run(&mut self) -> Result<(), String> {
        let mut waited = Duration::ZERO;
        self.engine.start(self.now())?;
        while !(self.engine.is_over() && self.kernel.is_over()) {
            // A pause of this process does not count as waiting time.
            waited += self.turn.elapsed().min(TURN_TIME_MAX);
            self.note_stop();
            self.turn = Clock::now();
            if waited > TIMEOUT {
                return Err("it does not end".to_owned());
            }
            self.kernel.check()?;
            let were_frames = self.receive()?;
            self.engine.engine.handle_timeout(self.now());
            self.wake();
            self.engine.handle_events(self.now())?;
            self.send()?;
            self.engine.engine.assert_invariants();
            if !were_frames {
                self.sleep();
            }
        }
        Ok(())
    }

    /// Takes frames from the kernel; returns whether there were any.
    fn receive(&mut self) -> Result<bool, String> {
        let now = self.now();
        let (engine, offloads) = (&mut self.engine, self.cell.link.offloads);
        let deliver = &mut |header: VnetHeader, frame: &[u8]| {
            let offload = if offloads {
                header.receive_offload()
            } else {
                ReceiveOffload::default()
            };
            engine.handle_frame(now, frame, offload);
        };
        for count in 0..FRAMES_IN_A_ROW {
            let received = self.tap.receive(&mut self.frame);
            let Some((length, header)) =
                received.map_err(|error| format!("the device: {error}"))?
            else {
                self.inward.release(Clock::now(), deliver);
                return Ok(count > 0);
            };
            let frame = &mut self.frame[..length];
            self.frames += 1;
            self.kernels.look_at(Clock::now(), frame);
            let fate = self.inward.pass(Clock::now(), header, frame, deliver);
            self.record.add(now.as_micros(), Direction::In, frame, fate);
        }
        Ok(true)
    }

    /// Hands the engine's frames to the kernel.
    fn send(&mut self) -> Result<(), String> {
        let mut error = None;
        let tap = &self.tap;
        let deliver = &mut |header: VnetHeader, frame: &[u8]| {
            // A device that accepts no frame at the moment has lost this frame, too.
            error = tap.send(header, &[frame]).err().or(error.take());
        };
        loop {
            let now = Instant::from_micros(self.began.elapsed().as_micros() as u64 + 1);
            let Some((length, offload)) = self.engine.poll_frame(now, &mut self.frame) else {
                break;
            };
            let header = VnetHeader::for_transmit(&offload);
            let frame = &mut self.frame[..length];
            self.frames += 1;
            self.engines.look_at(Clock::now(), frame);
            let fate = self.outward.pass(Clock::now(), header, frame, deliver);
            self.record
                .add(now.as_micros(), Direction::Out, frame, fate);
        }
        self.outward.release(Clock::now(), deliver);
        error.map_or(Ok(()), |error| Err(format!("the device: {error}")))
    }

    /// A resting program rests until its closed window was probed.
    fn wake(&mut self) {
        match self.cell.pattern {
            Pattern::KernelRests if self.kernels.was_probed() => self.kernel.wake(),
            Pattern::EngineRests if self.engines.was_probed() => {
                self.engine.wake();
            }
            _ => {}
        }
    }

    /// Sleeps until a frame comes, a timer is due, or it is time to check the programs.
    fn sleep(&self) {
        let holds_any = self.inward.holds_any() || self.outward.holds_any();
        let most = if holds_any {
            LOOK_EVERY_HOLDING
        } else {
            LOOK_EVERY
        };
        let due = self.engine.engine.poll_timeout();
        let due = due.map(|at| at.as_micros().saturating_sub(self.micros()));
        let micros = due.map_or(most, Duration::from_micros).min(most);
        let mut entry = [PollFd::new(&self.tap, PollFlags::IN)];
        let wait = Timespec {
            tv_sec: 0,
            tv_nsec: micros.subsec_nanos().into(),
        };
        // A signal may end this wait early, which does no harm.
        let _ = poll(&mut entry, Some(&wait));
    }

    fn tally(&self) -> Tally {
        let counters = self.engine.engine.counters();
        let connections = self.cell.connections() as u64;
        Tally {
            took: self.began.elapsed(),
            connections,
            bytes: 2 * connections * self.cell.bytes(),
            frames: self.frames,
            struck: self.inward.struck + self.outward.struck,
            retransmissions: counters.retransmissions,
            malformed: counters.malformed_total(),
            hostile: 0,
            challenges: counters.challenges_sent + counters.challenges_suppressed,
            cookies: counters.cookies_accepted,
            closed_windows: self.kernels.segments + self.engines.segments,
            fast_opens: counters.fast_opens_acknowledged + counters.fast_opens_accepted,
        }
    }

    /// Checks that the link impaired frames as its cell says, and that no frame was wrong
    /// otherwise.
    fn check(&self, tally: &Tally) -> Result<(), String> {
        let is_intact = self.cell.impairment == Impairment::None;
        let is_damaging = matches!(self.cell.impairment, Impairment::Corruption { .. });
        self.kernel.check()?;
        if is_intact != (tally.struck == 0) {
            return Err(format!("the link struck {} frames", tally.struck));
        }
        if let Some(attack) = self.attack {
            return self.check_attack(attack, tally);
        }
        if tally.malformed > 0 && !is_damaging {
            return Err("the engine found malformed frames".to_owned());
        }
        Ok(())
    }

    /// Checks that the attack took place, and that the engine defended itself as RFC 5961 and RFC
    /// 4987 require.
    fn check_attack(&self, attack: Attack, tally: &Tally) -> Result<(), String> {
        let is_met = match attack {
            Attack::Salvos => tally.challenges > 0 && tally.malformed > 0,
            Attack::Flood => tally.cookies > 0,
        };
        if is_met && tally.hostile > 0 {
            Ok(())
        } else {
            Err(format!("{} hostile frames, and no defence", tally.hostile))
        }
    }

    fn describe(&self, why: &str) -> String {
        let record = match self.record.keep(&self.cell) {
            Ok(path) => format!("its last frames: {}", path.display()),
            Err(error) => format!("its last frames are lost: {error}"),
        };
        format!(
            "{why}, after {:.1} s\n{}\n{}\nlink: {} frames, {} struck inwards, {} outwards; \
            closed windows: kernel's {}, engine's {}\n{record}",
            self.began.elapsed().as_secs_f64(),
            self.kernel.describe(),
            self.engine.describe(),
            self.frames,
            self.inward.struck,
            self.outward.struck,
            self.kernels.segments,
            self.engines.segments,
        )
    }
}
