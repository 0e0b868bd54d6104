//! A client that polls many servers one after the other: it opens a connection to each, reads to
//! the end, and closes. A cluster monitor collects the states of its nodes in this way.
//!
//! The servers' answers change with time. The digest of the outcome covers the first answers,
//! without the values of attributes that are known to change, and with sorted lines, because
//! gmond's hash table orders them differently in each process. Every later answer must end like the
//! first one.

use std::io;
use std::time::Duration;

use super::http::Digest;
use super::requests;
use super::session::Totals;
use super::socket::{Address, Stream};
use super::{Load, Outcome, Pattern};

/// The servers, and what is measured.
#[derive(Clone, PartialEq, Debug)]
pub struct Polling {
    /// The servers, in the order in which they are asked.
    pub servers: Vec<Address>,
    /// Attributes (`NAME="value"`) with changing values.
    pub changing: Vec<String>,
    /// The time, and the rate of an open loop: rounds of all servers in a second.
    pub load: Load,
}

/// Asks all servers again and again; an operation is one round.
///
/// # Errors
///
/// A sentence: the load cannot be, a socket failed, an answer was cut short, or nothing was
/// measured.
pub fn run(polling: &Polling) -> Result<Outcome, String> {
    let mut load = polling.load.clone();
    // A rate usually counts requests; here each round is a request.
    load.pattern = Pattern::Requests;
    load.check()?;
    let mut digest = Digest::default();
    let mut ends = Vec::new();
    let mut answer = Vec::new();
    for server in &polling.servers {
        read(server, &mut answer)?;
        if answer.is_empty() {
            return Err(format!("{server} said nothing"));
        }
        digest.add(&without(&answer, &polling.changing));
        ends.push(answer[answer.len().saturating_sub(END_BYTES)..].to_vec());
    }
    load.response = Some(answer.len());
    let mut outcome = measure(polling, &load, &ends)?.outcome(&load)?;
    outcome.digest = Some(digest.text());
    Ok(outcome)
}

fn measure(polling: &Polling, load: &Load, ends: &[Vec<u8>]) -> Result<Totals, String> {
    let mut answer = Vec::new();
    requests::one_by_one(load, || {
        let mut seen = 0;
        for (server, wanted) in polling.servers.iter().zip(ends) {
            read(server, &mut answer)?;
            if !answer.ends_with(wanted) {
                return Err(format!("an answer of {server} was cut short"));
            }
            seen += answer.len() as u64;
        }
        Ok(seen)
    })
}

fn read(server: &Address, answer: &mut Vec<u8>) -> Result<(), String> {
    let mut all = || -> io::Result<()> {
        answer.clear();
        let stream = Stream::connect(server)?;
        stream.set_timeout(Some(TIMEOUT))?;
        loop {
            let have = answer.len();
            answer.resize(have + READ_BYTES, 0);
            let count = stream.read(&mut answer[have..])?;
            answer.truncate(have + count);
            if count == 0 {
                return Ok(());
            }
        }
    };
    all().map_err(|error| format!("{server}: {error}"))
}

/// An answer without the values of some attributes, its lines sorted.
fn without(answer: &[u8], names: &[String]) -> Vec<u8> {
    let mut text = String::from_utf8_lossy(answer).into_owned();
    for name in names {
        let begin = format!(" {name}=\"");
        let mut parts = text.split(&begin);
        let mut kept = parts.next().unwrap_or("").to_owned();
        for part in parts {
            kept.push_str(&begin);
            kept.push_str(part.find('"').map_or(part, |at| &part[at..]));
        }
        text = kept;
    }
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n").into_bytes()
}

const TIMEOUT: Duration = Duration::from_secs(10);
const READ_BYTES: usize = 16 << 10;
/// Bytes at the end of an answer that do not change.
const END_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_change_and_the_order_of_lines_are_left_out() {
        let names = ["TN".to_owned(), "LOCALTIME".to_owned()];
        let answer = b"<M VAL=\"7\" TN=\"12\"/><M TN=\"3\" TNX=\"4\" LOCALTIME=\"5\">";
        assert_eq!(
            without(answer, &names),
            b"<M VAL=\"7\" TN=\"\"/><M TN=\"\" TNX=\"4\" LOCALTIME=\"\">"
        );
        let (one, other) = (b"<B>\n<A TN=\"1\">\n", b"<A TN=\"2\">\n<B>\n");
        assert_eq!(without(one, &names), without(other, &names));
        assert_ne!(without(one, &names), without(b"<B>\n<A>\n", &names));
    }
}
