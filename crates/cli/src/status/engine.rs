//! The lines of `toehold status` about the adapter's TCP engine.

use std::fmt::Write as _;

use super::answer::{Engine, NewConnections, Switches};
use super::count::count;

/// The engine, in a few lines.
pub(super) fn lines(engine: &Engine) -> String {
    let mut out = traffic(engine);
    out += &payloads(engine);
    out += &shared_addresses(engine);
    for complaint in &engine.complaints {
        let _ = writeln!(out, "  {complaint}");
    }
    out += &link(engine);
    out += &limits(engine);
    out
}

/// Its link and what went over it.
fn traffic(engine: &Engine) -> String {
    format!(
        "TCP engine on {} ({}), MTU {}: {} connections, {} listeners\n  \
         in {}B ({} segments), out {}B ({} segments), {} retransmitted, {} malformed frames\n",
        engine.link,
        engine.addresses.join(", "),
        engine.mtu,
        engine.connections,
        engine.listeners,
        count(engine.bytes_received),
        count(engine.segments_received),
        count(engine.bytes_sent),
        count(engine.segments_sent),
        engine.retransmissions,
        engine.frames_malformed,
    )
}

/// Its switches, what they did to payloads, used carriers, Fast Opens, and malformed frames.
fn payloads(engine: &Engine) -> String {
    let mut out = String::new();
    if let Some(switches) = &engine.switches {
        let _ = writeln!(out, "  {}", switched(switches));
        if let Some(settings) = &engine.new_connections {
            let _ = writeln!(out, "  new connections: {}", behaviour(settings));
        }
        let _ = writeln!(
            out,
            "  {} payloads received in place, {} copied by the copy engine",
            count(engine.payloads_in_place),
            count(engine.payloads_by_engine),
        );
    }
    if engine.connections_on_used_carriers > 0 {
        let _ = writeln!(
            out,
            "  {} of {} connections on used carriers, {} carriers parked",
            count(engine.connections_on_used_carriers),
            count(engine.connections_ever()),
            engine.carriers_parked,
        );
    }
    out += &fast_opens(engine);
    if !engine.frames_malformed_by_reason.is_empty() {
        let reasons = engine.frames_malformed_by_reason.iter();
        let reasons = reasons.map(|(reason, number)| format!("{} {reason}", count(*number)));
        let _ = writeln!(
            out,
            "  malformed: {}",
            reasons.collect::<Vec<_>>().join(", ")
        );
    }
    out
}

/// Payloads of SYNs, both ways.
fn fast_opens(engine: &Engine) -> String {
    let mut out = String::new();
    if engine.fast_opens_sent > 0 {
        let _ = writeln!(
            out,
            "  Fast Open: {} SYNs took payload along, {} remotes took it",
            count(engine.fast_opens_sent),
            count(engine.fast_opens_acknowledged),
        );
    }
    if engine.fast_opens_accepted + engine.fast_opens_declined > 0 {
        let _ = writeln!(
            out,
            "  Fast Open: payload of {} remotes' SYNs taken, of {} not (they send it again)",
            count(engine.fast_opens_accepted),
            count(engine.fast_opens_declined),
        );
    }
    out
}

/// Addresses that are the kernel's as well.
fn shared_addresses(engine: &Engine) -> String {
    let mut out = String::new();
    for shared in &engine.shared {
        let in_use: Vec<String> = shared.in_use.iter().map(u16::to_string).collect();
        let in_use = match &in_use[..] {
            [] => "none".to_owned(),
            ports => ports.join(", "),
        };
        let _ = writeln!(
            out,
            "  {} is the kernel's as well; ports of the engine's now: {in_use} (allowed: {})",
            shared.address, shared.ports
        );
        match &shared.outgoing {
            Some(ports) if shared.goes_out => {
                let _ = writeln!(
                    out,
                    "  connections of programs go out from its ports {ports}"
                );
            }
            Some(_) => out.push_str(
                "  connections of programs stay with the kernel, because it gives connections of \
                others ports of its own (masquerade, SNAT)\n",
            ),
            None => {}
        }
    }
    out
}

/// Facts about the link, and losses on it.
fn link(engine: &Engine) -> String {
    let mut out = String::new();
    if let Some(mode) = &engine.link_mode {
        let _ = writeln!(out, "  AF_XDP {mode}");
    }
    if engine.link_gone {
        out.push_str("  its interface does not exist; it is opened when it comes back\n");
    }
    if engine.frames_lost > 0 {
        let lost = count(engine.frames_lost);
        let _ = writeln!(out, "  {lost} frames lost, because no buffer was free");
    }
    out
}

/// Listeners beyond the limits, and the work of its threads.
fn limits(engine: &Engine) -> String {
    let mut out = String::new();
    if engine.listeners_refused > 0 {
        let _ = writeln!(
            out,
            "  {} listeners are the kernel's alone: one program may have {} here, and all \
            together {}",
            count(engine.listeners_refused),
            engine.listeners_of_one_max,
            engine.listeners_max,
        );
    }
    if !engine.threads.is_empty() {
        let of_each = engine.threads.iter();
        let of_each = of_each.map(|thread| thread.connections.to_string());
        let _ = writeln!(
            out,
            "  {} threads, with {} connections; {} frames passed from one to another",
            engine.threads.len(),
            of_each.collect::<Vec<_>>().join(" + "),
            count(engine.frames_passed_on),
        );
    }
    out
}

fn on_or_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

/// The switches of the receive path and the limits, as `toehold adapter --set` spells them.
fn switched(switches: &Switches) -> String {
    let copybreak = match switches.copybreak {
        Some(bytes) => format!(", copybreak={bytes}"),
        None if switches.copy_engine == "off" => String::new(),
        None => ", copybreak=auto (copying is never faster with it here)".to_owned(),
    };
    format!(
        "lso={}, lro={}, checksum={}, split-headers={}, copy-engine={}{copybreak}, coalesce={}, \
        threads={}\n  batch={}, quota={}, memory={}",
        on_or_off(switches.lso),
        on_or_off(switches.lro),
        switches.checksum,
        on_or_off(switches.split_headers),
        switches.copy_engine,
        switches.coalesce_us,
        switches.threads,
        switches.batch,
        switches.quota,
        switches.memory_mb,
    )
}

/// The settings of new connections, as `toehold adapter --set` spells it.
fn behaviour(settings: &NewConnections) -> String {
    let keepalive = match settings.keepalive_s {
        Some(seconds) => seconds.to_string(),
        None => "off".to_owned(),
    };
    let lines = match settings.lines_by_destination {
        0 => String::new(),
        1 => "; one line has other settings for some destinations".to_owned(),
        several => format!("; {several} lines have other settings for some destinations"),
    };
    format!(
        "window={}, congestion={}, ecn={}, pacing={}, initial-window={}, \
        keepalive={keepalive}, fast-open={}{lines}",
        settings.window_mb,
        settings.congestion,
        settings.ecn,
        on_or_off(settings.pacing),
        settings.initial_window,
        settings.fast_open,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::answer::parse;

    #[test]
    fn link_counters_and_threads_are_shown() {
        let answer = r#"{"link":"xdp:eth0","link_mode":"in the driver, zero copy",
            "addresses":["10.84.0.2"],"mtu":1500,
            "bytes_received":1500000,"frames_passed_on":12,"listeners_refused":3,
            "listeners_of_one_max":1024,"listeners_max":16384,
            "switches":{"lso":true,"lro":false,"checksum":"verify","split_headers":true,
            "copy_engine":"worker","copybreak":16384,"coalesce_us":0,"threads":2,
            "batch":256,"quota":5,"memory_mb":1024},
            "new_connections":{"window_mb":16,"congestion":"bbr","ecn":"accurate","pacing":true,
            "initial_window":10,"keepalive_s":60,"fast_open":"server","lines_by_destination":2},
            "payloads_in_place":3,"payloads_by_engine":4,
            "connections_opened":5,"connections_accepted":20,"connections_on_used_carriers":12,"carriers_parked":2,
            "fast_opens_sent":7,"fast_opens_acknowledged":6,
            "fast_opens_accepted":4,"fast_opens_declined":1,
            "threads":[{"connections":3},{"connections":4}]}"#;
        let text = lines(&parse(answer).expect("an answer"));
        let has = |part: &str| assert!(text.contains(part), "{part:?} in:\n{text}");
        assert!(
            text.starts_with("TCP engine on xdp:eth0 (10.84.0.2), MTU 1500"),
            "{text}"
        );
        has(
            "  lso=on, lro=off, checksum=verify, split-headers=on, copy-engine=worker, \
            copybreak=16384, coalesce=0, threads=2\n  batch=256, quota=5, memory=1024\n",
        );
        has(
            "  new connections: window=16, congestion=bbr, ecn=accurate, pacing=on, \
            initial-window=10, keepalive=60, fast-open=server; 2 lines have other settings for \
            some destinations\n",
        );
        has("  3 payloads received in place, 4 copied by the copy engine\n");
        has("  12 of 25 connections on used carriers, 2 carriers parked\n");
        has("  Fast Open: 7 SYNs took payload along, 6 remotes took it\n");
        has("  Fast Open: payload of 4 remotes' SYNs taken, of 1 not (they send it again)\n");
        has("  AF_XDP in the driver, zero copy\n");
        has("in 1.50MB");
        has("2 threads, with 3 + 4 connections; 12 frames");
        has(
            "  3 listeners are the kernel's alone: one program may have 1024 here, \
            and all together 16384\n",
        );
    }
}
