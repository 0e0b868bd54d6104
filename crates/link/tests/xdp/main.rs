//! AF_XDP sockets on one end of a veth, in namespaces of the tests' own. The other end has a packet
//! socket, or a kernel.

mod errors;
mod network;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Stdio;
use std::sync::{Arc, mpsc};
use std::thread;

use network::{Network, TIMEOUT, wait_until};
use toehold_link::{VnetHeader, XdpMode, XdpOptions, XdpSocket, XdpSteering};

const OURS_V4: [u8; 4] = [10, 84, 0, 2];
const ALSO_OURS_V4: [u8; 4] = [10, 84, 0, 3];
const SMALL: XdpOptions = XdpOptions {
    receive_frames: 64,
    send_frames: 64,
};

fn attach(network: &Network, interface: &str) -> XdpSocket {
    attach_with(network, interface, XdpOptions::default())
}

fn attach_with(network: &Network, interface: &str, options: XdpOptions) -> XdpSocket {
    network.near(|| {
        let steering = XdpSteering::attach(interface, 1).expect("a program");
        steering
            .set_addresses(&[OURS_V4.into()])
            .expect("an address");
        XdpSocket::open(Arc::new(steering), 0, options).expect("a socket")
    })
}

/// An IPv4 packet of a protocol for experiments (RFC 3692), whose every byte depends on `number`.
fn frame(to: [u8; 4], number: u32, length: usize) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0]);
    frame.extend((length as u16 - 14).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 253, 0, 0, 10, 84, 0, 1]);
    frame.extend(to);
    // A bridge's netfilter checks this sum.
    let sum = checksum(&[&frame[14..]]);
    frame[24..26].copy_from_slice(&sum);
    frame.extend(number.to_be_bytes());
    let bytes =
        (frame.len()..length).map(|at| (at as u32 ^ number.wrapping_mul(2_654_435_761)) as u8);
    let bytes: Vec<u8> = bytes.collect();
    frame.extend(bytes);
    frame
}

fn length_of(number: u32) -> usize {
    60 + (number as usize * 37) % (1514 - 60 + 1)
}

/// Waits for the next frame and takes it.
fn next(socket: &mut XdpSocket) -> (VnetHeader, Vec<u8>) {
    let mut taken = None;
    let came = wait_until(|| {
        taken = socket
            .peek()
            .map(|(header, frame)| (header, frame.to_vec()));
        taken.is_some()
    });
    assert!(came, "no frame: {:?}", socket.statistics());
    socket.release();
    taken.expect("one came")
}

/// Sends a frame as soon as there is room.
fn send(socket: &mut XdpSocket, frame: &[u8]) {
    let put = wait_until(|| match socket.room() {
        Some(room) => {
            room[..frame.len()].copy_from_slice(frame);
            true
        }
        None => false,
    });
    assert!(put, "no room");
    socket.publish(frame.len());
}

fn exchange_frames(network: &Network, socket: &mut XdpSocket) {
    let wire = network.far_wire();
    for number in 0..5_000 {
        let sent = frame(OURS_V4, number, length_of(number));
        wire.send(&sent);
        let (header, got) = next(socket);
        assert!(got == sent, "frame {number} of {} bytes in", sent.len());
        assert!(!header.receive_offload().checksum_verified);
    }
    let is_numbered = |frame: &[u8]| frame.len() > 34 && frame[23] == 253;
    // More frames than the memory holds, many at once.
    for burst in (0..5_000).collect::<Vec<u32>>().chunks(500) {
        for &number in burst {
            send(socket, &frame([10, 84, 0, 1], number, length_of(number)));
        }
        assert!(wait_until(|| socket.flush()), "the kernel takes them");
        for &number in burst {
            let got = wire.receive(is_numbered).expect("a frame");
            let expected = frame([10, 84, 0, 1], number, length_of(number));
            assert!(
                got == expected,
                "frame {number} of {} bytes out",
                expected.len()
            );
        }
    }
    let lost = socket.statistics().expect("told");
    assert_eq!(lost, toehold_link::XdpStatistics::default());
    assert_eq!(socket.steering().dropped(), 0);
}

#[test]
fn frames_pass_unchanged_in_the_driver() {
    let Some(network) = Network::new() else {
        return;
    };
    let mut socket = attach(&network, "near0");
    assert_eq!(socket.steering().mode(), XdpMode::Native);
    assert!(!socket.is_zero_copy(), "a veth has none");
    exchange_frames(&network, &mut socket);
}

#[test]
fn frames_pass_unchanged_after_a_driver_without_xdp() {
    let Some(network) = Network::new() else {
        return;
    };
    network.near_ip("link add bridge0 type bridge forward_delay 0");
    network.near_ip("link set near0 master bridge0");
    network.near_ip("link set bridge0 up");
    let mut socket = attach(&network, "bridge0");
    assert_eq!(socket.steering().mode(), XdpMode::Generic);
    exchange_frames(&network, &mut socket);
}

#[test]
fn frames_of_a_jumbo_mtu_pass() {
    let Some(network) = Network::new() else {
        return;
    };
    for mtu in [3_400, 9_000, 30_000] {
        network.near_ip(&format!("link set near0 mtu {mtu}"));
        network.far_ip(&format!("link set far0 mtu {mtu}"));
        let mut socket = attach(&network, "near0");
        let wire = network.far_wire();
        let frame_bytes_max = mtu + 14;
        // The kernel's pieces have this length.
        let whole_pieces = frame_bytes_max / 3_840 * 3_840;
        let lengths = (0..200).map(|number| match number % 4 {
            0 => frame_bytes_max,
            1 => whole_pieces.max(60),
            2 => 100,
            _ => 60 + number * 997 % (mtu - 46),
        });
        for (number, length) in (0..).zip(lengths) {
            let sent = frame(OURS_V4, number, length);
            wire.send(&sent);
            assert!(next(&mut socket).1 == sent, "frame {number} of {length}");
            let sent = frame([10, 84, 0, 1], number, length);
            send(&mut socket, &sent);
            assert!(socket.flush());
            let got = wire.receive(|frame| frame.len() == length);
            assert!(got.expect("a frame") == sent, "frame {number} of {length}");
        }
        // Long and short frames that wait together.
        let sent: Vec<Vec<u8>> = (0..30)
            .map(|number| frame(OURS_V4, number, 60 + number as usize * 499 % (mtu - 46)))
            .collect();
        sent.iter().for_each(|frame| wire.send(frame));
        let mut taken = Vec::new();
        let came = wait_until(|| {
            if socket.peek().is_some() {
                let count = socket.waiting(8);
                taken.extend(socket.oldest(count).map(|(_, frame)| frame.to_vec()));
                (0..count).for_each(|_| socket.release());
            }
            taken.len() == sent.len()
        });
        assert!(came && taken == sent, "{} of {}", taken.len(), sent.len());
        // Long frames are handed over together with their batch.
        let sent: Vec<Vec<u8>> = (0..6)
            .map(|number| frame(OURS_V4, number, frame_bytes_max))
            .collect();
        sent.iter().for_each(|frame| wire.send(frame));
        let came = wait_until(|| socket.peek().is_some() && socket.waiting(8) == sent.len());
        let together: Vec<&[u8]> = socket.oldest(8).map(|(_, frame)| frame).collect();
        assert!(came && together == sent, "{} of 6", together.len());
        (0..sent.len()).for_each(|_| socket.release());
        assert!(socket.peek().is_none());
    }
}

#[test]
fn addresses_come_and_go() {
    let Some(network) = Network::new() else {
        return;
    };
    let mut socket = attach(&network, "near0");
    let wire = network.far_wire();
    let both = [OURS_V4, ALSO_OURS_V4];
    let mut number = 0;
    for set in [&both[..1], &both[..], &both[1..], &both[..1]] {
        let addresses: Vec<IpAddr> = set.iter().map(|&ours| ours.into()).collect();
        socket
            .steering()
            .set_addresses(&addresses)
            .expect("addresses");
        // The last frame is always accepted: when it arrives, the frames before it have arrived or
        // are lost.
        for to in [both[0], both[1], set[0]] {
            number += 1;
            wire.send(&frame(to, number, 100));
        }
        let mut expected = vec![];
        for (to, number) in both.into_iter().chain([set[0]]).zip(number - 2..) {
            if set.contains(&to) {
                expected.push(frame(to, number, 100));
            }
        }
        for expected in expected {
            assert!(next(&mut socket).1 == expected);
        }
    }
}

/// From kernel to kernel on the engine's interface, with connections in both directions and both IP
/// versions.
#[test]
fn what_is_the_kernels_stays_with_the_kernel() {
    let Some(network) = Network::new() else {
        return;
    };
    let mut socket = attach(&network, "near0");
    for address in ["10.85.0.2", "fd85::2", "10.85.0.1", "fd85::1"] {
        let address: IpAddr = address.parse().expect("an address");
        let is_near = matches!(address.to_string().as_str(), "10.85.0.2" | "fd85::2");
        let listen = || TcpListener::bind(SocketAddr::new(address, 0)).expect("a listener");
        let listener = if is_near {
            network.near(listen)
        } else {
            network.far(listen)
        };
        let to = listener.local_addr().expect("an address");
        let connect = move || TcpStream::connect(to).expect("a connection");
        let mut client = if is_near {
            network.far(connect)
        } else {
            network.near(connect)
        };
        let (mut server, _) = listener.accept().expect("a connection");
        let sent: Vec<u8> = (0..1_000_000u32).map(|at| (at % 253) as u8).collect();
        let mut got = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                client.write_all(&sent).expect("sent");
                drop(client);
            });
            server.read_to_end(&mut got).expect("received");
        });
        assert!(got == sent, "by way of {address}");
    }
    assert!(socket.peek().is_none(), "none of it was for the engine");
}

#[test]
fn more_frames_than_there_is_memory_for_are_lost_and_counted() {
    let Some(network) = Network::new() else {
        return;
    };
    let mut socket = attach_with(&network, "near0", SMALL);
    let wire = network.far_wire();
    for number in 0..1_000 {
        wire.send(&frame(OURS_V4, number, 100));
    }
    let lost = |socket: &XdpSocket| {
        let counts = socket.statistics().expect("told");
        counts.no_memory + counts.ring_full + counts.dropped
    };
    assert!(
        wait_until(|| lost(&socket) == 1_000 - 64),
        "{:?}",
        socket.statistics()
    );
    for number in 0..64 {
        assert!(next(&mut socket).1 == frame(OURS_V4, number, 100));
    }
    assert!(socket.peek().is_none());
    wire.send(&frame(OURS_V4, 7, 1_000));
    assert!(next(&mut socket).1 == frame(OURS_V4, 7, 1_000));
}

#[test]
fn frames_for_a_queue_without_a_socket_are_dropped_and_counted() {
    let Some(network) = Network::with_queues(2) else {
        return;
    };
    let steering = network.near(|| XdpSteering::attach("near0", 2).expect("a program"));
    steering
        .set_addresses(&[OURS_V4.into()])
        .expect("an address");
    network.far_wire().send(&frame(OURS_V4, 1, 100));
    assert!(wait_until(|| steering.dropped() == 1));
}

#[test]
fn each_queue_has_a_socket_of_its_own() {
    let Some(network) = Network::with_queues(2) else {
        return;
    };
    let mut sockets = network.near(|| {
        let steering = Arc::new(XdpSteering::attach("near0", 2).expect("a program"));
        steering
            .set_addresses(&[OURS_V4.into()])
            .expect("an address");
        let open = |queue| XdpSocket::open(steering.clone(), queue, SMALL).expect("a socket");
        [open(0), open(1)]
    });
    let wire = network.far_wire();
    for number in 0..32 {
        wire.send(&frame(OURS_V4, number, 100));
    }
    let mut numbers = Vec::new();
    let all_came = wait_until(|| {
        for socket in &mut sockets {
            if let Some((_, frame)) = socket.peek() {
                numbers.push(u32::from_be_bytes([
                    frame[34], frame[35], frame[36], frame[37],
                ]));
                socket.release();
            }
        }
        numbers.len() == 32
    });
    numbers.sort_unstable();
    assert!(all_came && numbers.iter().copied().eq(0..32), "{numbers:?}");
}

/// The kernel accepts such frames no more, and reports no error.
#[test]
fn frames_of_a_queue_that_is_gone_wait_and_nobody_waits_for_them() {
    let Some(network) = Network::with_queues(2) else {
        return;
    };
    let steering = network.near(|| XdpSteering::attach("near0", 2).expect("a program"));
    let mut ethtool = network.near.command("ethtool");
    let Ok(output) = ethtool.args(["-L", "near0", "tx", "1"]).output() else {
        return println!("SKIPPED: ethtool is not installed");
    };
    // The kernel refuses this change while a socket has the queue.
    assert!(output.status.success(), "{output:?}");
    let open = || XdpSocket::open(Arc::new(steering), 1, SMALL).expect("a socket");
    let mut socket = network.near(open);
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        send(&mut socket, &frame(OURS_V4, 1, 100));
        done.send(socket.flush()).expect("the test waits");
    });
    let taken = is_done.recv_timeout(TIMEOUT);
    assert_eq!(taken, Ok(false), "it comes back, and nothing was sent");
}

/// The kernel at the other end computes no checksums by default.
#[test]
fn frames_whose_checksum_the_other_kernel_left_out_are_known() {
    let Some(network) = Network::new() else {
        return;
    };
    let mut socket = attach(&network, "near0");
    let mac = socket
        .steering()
        .mac()
        .map(|byte| format!("{byte:02x}"))
        .join(":");
    network.far_ip("route add 10.84.0.2 dev far0");
    network.far_ip(&format!("neigh add 10.84.0.2 lladdr {mac} dev far0"));
    let mut is_verified = |port: u16| {
        let call = move || TcpStream::connect_timeout(&SocketAddr::from((OURS_V4, port)), TIMEOUT);
        thread::scope(|scope| {
            let caller = scope.spawn(|| network.far(call));
            let (header, syn) = next(&mut socket);
            assert_eq!(syn[23], 6, "a TCP segment");
            // The reset in answer is complete, so that the connecting program need not wait.
            send(&mut socket, &reset_to(&syn));
            assert!(socket.flush());
            let error = caller.join().expect("no panic").expect_err("refused");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
            header.receive_offload().checksum_verified
        })
    };
    assert!(is_verified(7001));
    let mut ethtool = network.far.command("ethtool");
    ethtool.args(["-K", "far0", "tx", "off"]);
    match ethtool.output() {
        Ok(output) if output.status.success() => assert!(!is_verified(7002)),
        _ => println!("SKIPPED: the same with finished checksums: ethtool is not installed"),
    }
}

/// The checksum of RFC 1071, computed by the definition.
fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let words = words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
}

/// The segment that refuses a SYN (RFC 9293, section 3.10.7.1).
fn reset_to(syn: &[u8]) -> Vec<u8> {
    let (source, destination) = (&syn[26..30], &syn[30..34]);
    let mut ip = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
    ip.extend(destination);
    ip.extend(source);
    let sum = checksum(&[&ip]);
    ip[10..12].copy_from_slice(&sum);
    let sequence = u32::from_be_bytes([syn[38], syn[39], syn[40], syn[41]]);
    let mut tcp = syn[36..38].to_vec();
    tcp.extend(&syn[34..36]);
    tcp.extend([0; 4]);
    tcp.extend(sequence.wrapping_add(1).to_be_bytes());
    tcp.extend([0x50, 0x14, 0, 0, 0, 0, 0, 0]);
    let sum = checksum(&[&ip[12..20], &[0, 6, 0, 20], &tcp]);
    tcp[16..18].copy_from_slice(&sum);
    [&syn[6..12], &syn[..6], &[8, 0], &ip, &tcp].concat()
}

#[test]
fn an_interface_that_was_down_goes_on() {
    let Some(network) = Network::new() else {
        return;
    };
    let mut socket = attach(&network, "near0");
    network.near_ip("link set near0 down");
    send(&mut socket, &frame([10, 84, 0, 1], 1, 100));
    assert!(!socket.flush(), "nobody takes it");
    network.near_ip("link set near0 up");
    let wire = network.far_wire();
    assert!(wait_until(|| socket.flush()));
    // The far end notices the restored link some time after the near end.
    let sent = frame(OURS_V4, 2, 100);
    assert!(wait_until(|| {
        wire.send(&sent);
        socket.peek().is_some_and(|(_, got)| *got == sent[..])
    }));
}

/// The environment of the process that the next test starts and kills. That process attaches to the
/// named interface, and waits.
const VICTIM_VARIABLE: &str = "TOEHOLD_XDP_VICTIM";

#[test]
fn a_process_that_is_killed_leaves_nothing_behind() {
    if std::env::var(VICTIM_VARIABLE).is_ok() {
        let steering = XdpSteering::attach("near0", 1).expect("a program");
        let _socket = XdpSocket::open(Arc::new(steering), 0, SMALL).expect("a socket");
        println!("attached");
        thread::sleep(2 * TIMEOUT);
        return;
    }
    let Some(network) = Network::new() else {
        return;
    };
    let mut victim = network
        .near
        .command(std::env::current_exe().expect("a test has a file"));
    victim.args([
        "--exact",
        "a_process_that_is_killed_leaves_nothing_behind",
        "--nocapture",
    ]);
    let mut victim = victim
        .env(VICTIM_VARIABLE, "1")
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    assert!(wait_until(|| network
        .near_link("near0")
        .contains("prog/xdp")));
    victim.kill().expect("it is there");
    victim.wait().expect("it was started here");
    assert!(wait_until(|| !network
        .near_link("near0")
        .contains("xdp id")));
    // The next socket finds the interface in its original state.
    drop(attach(&network, "near0"));
    assert!(wait_until(|| !network
        .near_link("near0")
        .contains("prog/xdp")));
}

/// A program that another process starts has all descriptors of that process until its exec.
#[test]
fn the_program_goes_with_its_steering_whoever_has_its_descriptor() {
    let Some(network) = Network::new() else {
        return;
    };
    let socket = attach(&network, "near0");
    let kept = copies_of_links();
    assert!(!kept.is_empty());
    drop(socket);
    assert!(!network.near_link("near0").contains("prog/xdp"));
}

/// Copies of all descriptors of this process that attach programs to interfaces.
fn copies_of_links() -> Vec<OwnedFd> {
    let all = std::fs::read_dir("/proc/self/fd").expect("proc is there");
    let is_link = |fd: &u32| {
        let target = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        target.is_ok_and(|target| target.to_string_lossy().contains("bpf_link"))
    };
    all.filter_map(|one| one.ok()?.file_name().to_str()?.parse().ok())
        .filter(is_link)
        .filter_map(|fd| {
            // SAFETY: plain system call.
            let copy = unsafe { libc::fcntl(fd as i32, libc::F_DUPFD_CLOEXEC, 0) };
            // SAFETY: the kernel has just made this descriptor for us.
            (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) })
        })
        .collect()
}
