//! The viewer at the end of the filters: it asks for regions and measures the time until they
//! arrive.

use std::io;
use std::time::Duration;

use toehold_measure::rng::Rng;

use super::super::http::Digest;
use super::super::requests;
use super::super::session::Totals;
use super::super::socket::{Address, Stream};
use super::super::{Load, Outcome, Pattern};
use super::{Block, END, Kind, QUERY, Query, image, volume, wrong};

/// The queries of a viewer.
#[derive(Clone, PartialEq, Debug)]
pub struct View {
    /// The application.
    pub kind: Kind,
    /// The part of the queries that ask for a small region, like a user who moves; the others ask
    /// for the whole image.
    pub partial: f64,
    /// Decides the queries.
    pub seed: u64,
    /// The time, and the rate of an open loop: guaranteed updates per second.
    pub load: Load,
}

/// Runs the queries.
///
/// # Errors
///
/// A sentence: the load is invalid, a socket failed, a response is wrong, or no query was measured.
pub fn view(filter: &Address, view: &View) -> Result<Outcome, String> {
    let mut load = view.load.clone();
    // A rate usually counts requests; here each update is a request.
    load.pattern = Pattern::Requests;
    load.check()?;
    if !(0.0..=1.0).contains(&view.partial) {
        return Err("the part of partial updates is a number from 0 to 1".to_owned());
    }
    let run = || -> io::Result<(Totals, Digest)> {
        let stream = Stream::connect(filter)?;
        stream.set_timeout(Some(TIMEOUT))?;
        // The whole image, and a few regions: their bytes make the digest.
        let mut digest = Digest::default();
        let mut random = Rng::new(view.seed);
        let parts = (0..PARTS).map(|_| part(view.kind, &mut random));
        for query in std::iter::once(whole(view.kind)).chain(parts) {
            ask(&stream, view.kind, query, |block| digest.add(&block.bytes))?;
        }
        Ok((measure(&stream, view, &load)?, digest))
    };
    let (totals, digest) = run().map_err(|error| format!("{filter}: {error}"))?;
    let mut outcome = totals.outcome(&load)?;
    outcome.digest = Some(digest.text());
    Ok(outcome)
}

fn measure(stream: &Stream, view: &View, load: &Load) -> io::Result<Totals> {
    let mut random = Rng::new(view.seed);
    requests::one_by_one(load, || {
        let is_part = (random.below(1 << 20) as f64) < view.partial * f64::from(1 << 20);
        let query = if is_part {
            part(view.kind, &mut random)
        } else {
            whole(view.kind)
        };
        ask(stream, view.kind, query, |_| ()).map(|seen| seen as u64)
    })
}

/// Asks for a region and receives its blocks to the end; returns their bytes.
fn ask(
    stream: &Stream,
    kind: Kind,
    query: Query,
    mut take: impl FnMut(&Block),
) -> io::Result<usize> {
    let asked = Block {
        sort: QUERY,
        query,
        ..Block::default()
    };
    asked.send(stream)?;
    let mut seen = 0;
    loop {
        let block = Block::receive(stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if block.query != query {
            return Err(wrong("a block belongs to another query"));
        }
        if block.sort == END {
            break;
        }
        seen += block.bytes.len();
        take(&block);
    }
    let wanted = match kind {
        Kind::Microscope => (query.width / query.zoom * (query.height / query.zoom)) as usize,
        Kind::Surface => volume::SIDE * volume::SIDE,
    };
    if seen != wanted {
        return Err(wrong(&format!("an update of {wanted} bytes has {seen}")));
    }
    Ok(seen)
}

/// The whole image: the slide eight times smaller; the whole volume.
fn whole(kind: Kind) -> Query {
    match kind {
        Kind::Microscope => Query {
            width: image::SIDE,
            height: image::SIDE,
            zoom: 8,
            ..Query::default()
        },
        Kind::Surface => Query {
            height: volume::SIDE as u32,
            ..Query::default()
        },
    }
}

/// A region of 512 pixels square, at full size; eight planes of the volume.
fn part(kind: Kind, random: &mut Rng) -> Query {
    match kind {
        Kind::Microscope => Query {
            x: random.below((image::SIDE - PART) as usize) as u32,
            y: random.below((image::SIDE - PART) as usize) as u32,
            width: PART,
            height: PART,
            zoom: 1,
        },
        Kind::Surface => Query {
            y: random.below(volume::SIDE - PART_PLANES) as u32,
            height: PART_PLANES as u32,
            ..Query::default()
        },
    }
}

const PART: u32 = 512;
const PART_PLANES: usize = 8;
/// The number of partial updates that the digest includes.
const PARTS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::super::{Filter, serve};
    use std::thread;
    use std::time::Instant;

    use super::*;
    use std::net::TcpListener;

    fn free() -> Address {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        Address::Tcp(listener.local_addr().expect("bound").to_string())
    }

    /// An address that answers.
    fn served(filter: Filter, before: Option<&Address>) -> Address {
        let (listen, before) = (free(), before.cloned());
        let place = listen.clone();
        thread::spawn(move || serve(filter, &place, before.as_ref(), 1));
        let deadline = Instant::now() + TIMEOUT;
        while Stream::connect(&listen).is_err() {
            assert!(Instant::now() < deadline, "{filter:?} does not listen");
            thread::sleep(Duration::from_millis(5));
        }
        listen
    }

    #[test]
    fn both_applications_answer_and_one_seed_gives_the_same_bytes() {
        for (kind, middle, last) in [
            (Kind::Microscope, Filter::Clip, Filter::Zoom),
            (Kind::Surface, Filter::Extract, Filter::Shade),
        ] {
            let read = served(Filter::Read(kind), None);
            let middle = served(middle, Some(&read));
            let last = served(last, Some(&middle));
            let asked = View {
                kind,
                partial: 1.0,
                seed: 1,
                load: Load {
                    seconds: 0.05,
                    warmup: 0.0,
                    ..Load::default()
                },
            };
            let [one, other] = [(); 2].map(|()| view(&last, &asked).expect("answers"));
            assert!(one.operations > 0 && one.latency.is_some(), "{one:?}");
            assert_eq!(one.digest, other.digest);
        }
    }
}
