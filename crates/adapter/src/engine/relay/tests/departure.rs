//! Programs that end while a channel exists beside their carrier.

use super::*;

#[test]
fn program_that_has_closed_cleanly_is_heard_to_the_end() {
    let mut bench = Bench::new();
    let program = bench.with_channel();
    program.write(b"last words");
    program.close_cleanly();
    // Our doorbell crossed with the program's close: the kernel resets the carrier.
    (&bench.flow.carrier.socket).write_all(&[0]).expect("room");
    bench.flow.carrier.sent += 1;
    drop(std::mem::replace(&mut bench.program, sockets().0));
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Departed);
    assert_eq!(bench.rings.0, b"last words");
    assert!(bench.remote_saw_end() && bench.flow.program.has_departed());
}

#[test]
fn remote_that_never_finishes_does_not_keep_a_program_that_is_gone() {
    let mut bench = Bench::new();
    let program = bench.with_channel();
    program.close_cleanly();
    bench.program.shutdown(Shutdown::Both).expect("connected");
    (&bench.flow.carrier.socket).write_all(&[0]).expect("room");
    bench.flow.carrier.sent += 1;
    drop(std::mem::replace(&mut bench.program, sockets().0));
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Departed);
    // The runner makes this call next.
    bench
        .engine
        .release(bench.now, bench.flow.id)
        .expect("known");
    assert!(bench.engine.holds_ring(bench.flow.id));
    bench.now += Duration::from_secs(300);
    bench.engine.handle_timeout(bench.now);
    assert!(!bench.engine.holds_ring(bench.flow.id), "nothing is left");
    assert!(!bench.remote_saw_reset());
}

#[test]
fn program_that_departs_with_last_words_finishes_after_them() {
    let mut bench = Bench::new();
    let program = bench.with_channel();
    // As above, but the program's end is on the carrier as well.
    program.write(b"last words");
    program.close_cleanly();
    bench.program.shutdown(Shutdown::Write).expect("connected");
    (&bench.flow.carrier.socket).write_all(&[0]).expect("room");
    bench.flow.carrier.sent += 1;
    drop(std::mem::replace(&mut bench.program, sockets().0));
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Departed);
    assert_eq!(bench.rings.0, b"last words");
    assert!(bench.remote_saw_end());
}
