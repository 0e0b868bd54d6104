use super::*;

fn span(start: u64, end: u64) -> Span {
    Span {
        start: Position::of_byte(start),
        end: Position::of_byte(end),
    }
}

const SEGMENT: u64 = 1_000;
/// Of a window that everything has room in.
const EDGE: Position = Position::of_byte(1 << 40);

/// So many segments, each sent a microsecond after the last.
fn paced(count: u64) -> Scoreboard {
    let mut records = Scoreboard::default();
    for number in 0..count {
        let start = Position::of_byte(number * SEGMENT);
        records.push(start, SEGMENT as u32, Instant::from_micros(number));
    }
    records
}

/// The steps of one acknowledgement with these blocks: RACK's judgement and two retransmissions
/// with it.
fn steps_of(records: &mut Scoreboard, blocks: &[Span], now: Instant) -> usize {
    let before = records.steps;
    let mut delivered = Delivered::default();
    for block in blocks {
        records.sack(*block, &mut delivered);
    }
    if let Some(newest) = delivered.newest {
        let reordering_window = Duration::from_micros(10);
        records.detect_losses(newest.sent_at, newest.end(), reordering_window, now);
    }
    for _ in 0..2 {
        records.retransmit_lost(SEGMENT as u32, EDGE, now);
    }
    records.steps - before
}

#[test]
fn work_for_hostile_blocks_does_not_grow_with_the_records() {
    let count = 12_000;
    let mut records = paced(count);
    let mut now = Instant::from_micros(count);
    let (mut steps, mut acknowledgements) = (0, 0);
    // Every other segment, from the end back and from the beginning on, and a block over all
    // that is known already: so that lost and waiting records lie between the reported ones.
    for number in 0..count / 4 {
        let segment = |number: u64| span(number * SEGMENT, (number + 1) * SEGMENT);
        let (early, late) = (2 * number + 1, count - 1 - 2 * number);
        let known = span(early * SEGMENT, (early + 1) * SEGMENT);
        let blocks = [segment(late), segment(early), known, segment(late)];
        steps += steps_of(&mut records, &blocks, now);
        acknowledgements += 1;
        now += Duration::from_micros(7);
        if number % 500 == 0 {
            records.assert_invariants(Position::FIRST_BYTE, Position::of_byte(count * SEGMENT));
        }
    }
    assert_eq!(u64::from(records.sacked_bytes), count / 2 * SEGMENT);
    let bound = 24 * acknowledgements + 3 * count as usize;
    assert!(steps < bound, "{steps} for {acknowledgements}");
    // Blocks that were seen before bring nothing, and cost next to nothing.
    let all = span(0, count * SEGMENT);
    let mut delivered = Delivered::default();
    records.sack(all, &mut delivered);
    let before = records.steps;
    records.sack(all, &mut delivered);
    assert!(records.steps - before < 4);
}

#[test]
fn a_cut_moves_a_bounded_number_of_records() {
    let mut records = paced(u64::from(u16::MAX) / 4);
    let middle = records.earlier.len() as u64 / 2 * SEGMENT;
    let before = records.steps;
    let mut delivered = Delivered::default();
    records.sack(span(middle + 1, middle + 2), &mut delivered);
    assert!(records.steps - before < 8);
    let mut records = paced(SPLIT_RECORDS_MAX as u64 - 2);
    let middle = SPLIT_RECORDS_MAX as u64 / 2 * SEGMENT;
    records.sack(span(middle + 1, middle + 2), &mut delivered);
    assert!(records.steps <= SPLIT_RECORDS_MAX + 16);
}

#[test]
fn what_was_sent_again_is_judged_in_the_order_of_time() {
    let mut records = paced(100);
    let at = Instant::from_micros;
    let reordering_window = Duration::from_micros(10);
    let end = |number: u64| Position::of_byte((number + 1) * SEGMENT);
    // All but the last are lost, and leave again, the last ones at 1,098.
    let mut delivered = Delivered::default();
    records.sack(span(99 * SEGMENT, 100 * SEGMENT), &mut delivered);
    records.detect_losses(at(99), end(99), reordering_window, at(1_000));
    for number in 0..99 {
        let again = records.retransmit_lost(SEGMENT as u32, EDGE, at(1_000 + number));
        assert_eq!(again.map(|span| span.end), Some(end(number)));
    }
    assert_eq!(records.lost_bytes, 0);
    // Those that left by 1,049 are lost again; the next one not before 1,060.
    let judged = records.detect_losses(at(1_060), end(60), reordering_window, at(1_059));
    assert_eq!(judged, (50 * SEGMENT as u32, at(1_060)));
    // A mistake: they are on their way after all, and lost when their time comes.
    records.forgive();
    records.assert_invariants(Position::FIRST_BYTE, Position::of_byte(100 * SEGMENT));
    let judged = records.detect_losses(at(1_060), end(60), reordering_window, at(1_049));
    assert_eq!(judged, (40 * SEGMENT as u32, at(1_050)));
    records.assert_invariants(Position::FIRST_BYTE, Position::of_byte(100 * SEGMENT));
    records.acknowledge(end(99), Instant::NEVER, &mut delivered);
    assert_eq!(records.lost_bytes, 0);
    assert!(records.repairs.is_none(), "nothing is left to repair");
}

#[test]
fn blocks_of_single_bytes_make_a_bounded_number_of_records() {
    let mut bitmap = Scoreboard::default();
    let mut delivered = Delivered::default();
    let bytes = 1 << 18;
    bitmap.push(Position::FIRST_BYTE, bytes, Instant::ZERO);
    for byte in 0..u64::from(bytes) / 2 {
        bitmap.sack(span(2 * byte + 1, 2 * byte + 2), &mut delivered);
    }
    assert!(
        bitmap.earlier.len() <= SPLIT_RECORDS_MAX + 1,
        "{} records",
        bitmap.earlier.len()
    );
    bitmap.assert_invariants(Position::FIRST_BYTE, Position::of_byte(u64::from(bytes)));
    // A segment that lies whole in a block is reported as before.
    bitmap.sack(span(0, u64::from(bytes)), &mut delivered);
    assert_eq!(delivered.bytes, u64::from(bytes));
    assert_eq!(bitmap.sacked_bytes, bytes);
}
