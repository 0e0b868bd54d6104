//! Half-closes and resets, and the bytes that come before them.

use super::*;
use crate::diag::Diag;

#[test]
fn program_that_finishes_first_still_hears() {
    let mut bench = Bench::new();
    bench.write(b"request");
    bench.program.shutdown(Shutdown::Write).expect("connected");
    bench.pass(Duration::from_millis(100));
    assert!(bench.remote_saw_end());
    bench.remote_says(100_000);
    assert!(bench.read(100_000) == pattern(100_000));
    bench.remote_finishes();
    assert_eq!(bench.read(1), b"");
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Over);
}

#[test]
fn remote_that_finishes_first_still_hears() {
    let mut bench = Bench::new();
    bench.remote_says(5);
    bench.remote_finishes();
    assert_eq!(bench.read(6), pattern(5));
    assert_eq!(bench.pass(Duration::from_secs(5)), Next::Wait);
    bench.write(&pattern(100_000));
    bench.program.shutdown(Shutdown::Write).expect("connected");
    assert_eq!(bench.pass(Duration::from_secs(300)), Next::Over);
    assert!(bench.rings.0 == pattern(100_000) && bench.remote_saw_end());
}

#[test]
fn both_may_finish_at_once() {
    let mut bench = Bench::new();
    bench.remote_finishes();
    bench.program.shutdown(Shutdown::Write).expect("connected");
    assert_eq!(bench.pass(Duration::from_secs(300)), Next::Over);
    assert!(bench.remote_saw_end());
}

#[test]
fn end_waits_for_what_comes_before_it() {
    let mut bench = Bench::new();
    bench.remote_says(MUCH as u64);
    bench.remote_finishes();
    bench.pass(Duration::from_secs(1));
    assert_ne!(bench.flow.remote, RemoteEnding::ToldByCarrier);
    assert!(bench.read(MUCH + 1) == pattern(MUCH));
    assert_eq!(bench.flow.remote, RemoteEnding::ToldByCarrier);
}

#[test]
fn program_that_resets_resets_the_remote() {
    let mut bench = Bench::new();
    let program = std::mem::replace(&mut bench.program, sockets().0);
    crate::engine::sys::reset_when_closed(&program, true).expect("a socket");
    drop(program);
    assert_eq!(bench.turn(), Next::ProgramGone);
    bench.abort();
    assert!(bench.remote_saw_reset());
}

#[test]
fn program_that_closes_with_news_unread_is_gone() {
    let mut bench = Bench::new();
    bench.remote_says(1_000);
    bench.turn();
    // The kernel resets for a socket that is closed with bytes unread (RFC 2525 section 2.17).
    drop(std::mem::replace(&mut bench.program, sockets().0));
    assert_eq!(bench.turn(), Next::ProgramGone);
}

#[test]
fn reset_of_the_remote_s_comes_after_what_the_program_had_room_for() {
    let mut bench = Bench::new();
    bench.remote_says(1_000_000);
    bench.pass(Duration::from_millis(100));
    let arrived = bench.flow.received as usize;
    bench
        .remote
        .abort(bench.now, bench.remote_id)
        .expect("open");
    let mut next = bench.turn();
    let mut read = 0;
    while next == Next::Wait {
        read += bench.read(1).len();
        next = bench.turn();
    }
    assert_eq!(next, Next::RemoteGone);
    assert!(bench.flow.taken == bench.flow.arrived && read <= arrived);
    assert_eq!(bench.flow.closed, Some(CloseReason::Reset));
}

#[test]
fn bytes_that_a_program_sends_before_it_resets_go_before_the_reset() {
    let mut bench = Bench::new();
    bench.program.write_all(b"last words").expect("room");
    sys::reset_when_closed(&bench.program, true).expect("a socket");
    drop(std::mem::replace(&mut bench.program, sockets().0));
    assert_eq!(bench.turn(), Next::ProgramGone);
    bench.abort();
    assert_eq!(bench.rings.0, b"last words");
    assert!(bench.remote_saw_reset() && !bench.remote_saw_end());
}

/// The remote's kernel reports such a reset as `EPIPE`, and one without the end as `ECONNRESET`.
#[test]
fn end_of_a_program_that_resets_afterwards_goes_before_the_reset() {
    let mut bench = Bench::new();
    bench.program.write_all(b"last words").expect("room");
    bench.program.shutdown(Shutdown::Write).expect("connected");
    sys::reset_when_closed(&bench.program, true).expect("a socket");
    drop(std::mem::replace(&mut bench.program, sockets().0));
    assert_eq!(bench.turn(), Next::ProgramGone);
    bench.abort();
    assert_eq!(bench.rings.0, b"last words");
    assert!(bench.remote_saw_reset() && bench.remote_saw_end());
}

/// A kernel that has given up a closed socket answers the carrier's keepalive with a reset. A
/// remote that reads late gets all bytes, as from a closed socket of the kernel.
#[test]
fn remote_that_reads_late_gets_all_from_a_program_that_has_closed() {
    for (waits, is_closed) in [(sys::fin_timeout_seconds() + 1, true), (10, false)] {
        let mut bench = Bench::new();
        bench.remote_reads = false;
        bench.write(&pattern(200_000));
        bench.program.shutdown(Shutdown::Write).expect("connected");
        let due = bench.now + Duration::from_secs(waits);
        bench.pass(Duration::from_secs(waits));
        assert!(bench.rings.0.len() < 200_000, "the window is closed");
        bench.now = due;
        sys::reset_when_closed(&bench.program, true).expect("a socket");
        drop(std::mem::replace(&mut bench.program, sockets().0));
        if !is_closed {
            assert_eq!(bench.turn(), Next::ProgramGone);
            continue;
        }
        assert_eq!(bench.turn(), Next::Wait);
        bench.remote_reads = true;
        bench.pass(Duration::from_secs(300));
        assert!(bench.rings.0 == pattern(200_000));
        assert!(bench.remote_saw_end() && !bench.remote_saw_reset());
    }
}

/// A reset (`SO_LINGER`) stays one, however late it is; a close is noticed at the next look.
#[test]
fn program_that_has_finished_may_close_or_reset_much_later() {
    let diag = Diag::open().expect("sock_diag");
    for resets in [true, false] {
        let mut bench = Bench::new();
        bench.program.shutdown(Shutdown::Write).expect("connected");
        for _ in 0..30 {
            bench.pass(Duration::from_secs(10));
            bench.now += Duration::from_secs(10);
            assert!(bench.look_for_program(&diag), "it has its socket open");
        }
        sys::reset_when_closed(&bench.program, resets).expect("a socket");
        drop(std::mem::replace(&mut bench.program, sockets().0));
        if resets {
            assert_eq!(bench.turn(), Next::ProgramGone);
        } else {
            assert_eq!(bench.turn(), Next::Wait, "the kernel does not tell");
            assert!(!bench.look_for_program(&diag));
            assert_eq!(bench.turn(), Next::Departed);
        }
    }
}

/// Otherwise remotes that request much and read nothing would keep their connections for ever.
#[test]
fn remote_that_takes_nothing_from_a_program_that_has_closed_is_given_up() {
    for finishes_first in [false, true] {
        let mut bench = Bench::new();
        bench.remote_reads = false;
        if finishes_first {
            bench.remote_finishes();
        }
        bench.write(&pattern(200_000));
        bench.program.shutdown(Shutdown::Write).expect("connected");
        bench.pass(Duration::from_secs(61));
        bench.now += Duration::from_secs(61);
        sys::reset_when_closed(&bench.program, !finishes_first).expect("a socket");
        drop(std::mem::replace(&mut bench.program, sockets().0));
        assert_eq!(bench.turn(), Next::Wait);
        assert_eq!(bench.pass(Duration::from_secs(3_600)), Next::RemoteGone);
    }
}
