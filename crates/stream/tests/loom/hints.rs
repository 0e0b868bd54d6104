//! Two threads change one word of hints, one thread for each direction.

use std::sync::Arc;

use super::explore;
use toehold_channel::sync::{AtomicU32, Ordering};
use toehold_stream::hints::{error_in, keep_error, take_error};

const FLAG: u32 = 2;
const RESET: i32 = 104;
const ABORTED: i32 = 103;

#[test]
fn a_flag_that_comes_while_an_error_is_taken_stays() {
    explore(3, || {
        let hints = Arc::new(AtomicU32::new(0));
        keep_error(&hints, 0, RESET);
        let other = hints.clone();
        let thread = loom::thread::spawn(move || other.fetch_or(FLAG, Ordering::Relaxed));
        assert_eq!(take_error(&hints), Some(RESET));
        thread.join().unwrap();
        assert_eq!(hints.load(Ordering::Relaxed), FLAG);
    });
}

#[test]
fn of_two_errors_one_is_kept_and_no_mixture() {
    explore(3, || {
        let hints = Arc::new(AtomicU32::new(0));
        let other = hints.clone();
        let thread = loom::thread::spawn(move || keep_error(&other, FLAG, ABORTED));
        keep_error(&hints, FLAG, RESET);
        thread.join().unwrap();
        let kept = error_in(hints.load(Ordering::Relaxed));
        assert!([Some(RESET), Some(ABORTED)].contains(&kept), "{kept:?}");
    });
}

#[test]
fn an_error_is_returned_to_one_of_two_callers() {
    explore(3, || {
        let hints = Arc::new(AtomicU32::new(0));
        keep_error(&hints, FLAG, RESET);
        let other = hints.clone();
        let thread = loom::thread::spawn(move || take_error(&other));
        let here = take_error(&hints);
        let there = thread.join().unwrap();
        assert!(here.is_some() ^ there.is_some(), "{here:?} {there:?}");
    });
}
