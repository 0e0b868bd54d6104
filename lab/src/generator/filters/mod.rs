//! Two applications of filter streams, like those of Data-Cutter: a chain of filters, each in a
//! process of its own, connected by sockets.
//!
//! ```text
//!   microscope:  read ──▶ clip ──▶ zoom ──▶ viewer      a slide of 16 MB, in tiles of 64 KB
//!   surface:     read ──▶ extract ──▶ shade ──▶ viewer  a volume of 64 MB, in planes of 256 KB
//! ```
//!
//! A filter listens for the next filter and connects to the previous one. A viewer's [`Query`]
//! travels up the chain to `read`, which sends the blocks that the query covers. Each filter
//! changes the blocks and passes them on; the end of a query follows them. A seed determines slide
//! and volume.

mod image;
mod viewer;
mod volume;

use std::io;
use std::thread;

use toehold_measure::output::tell_line;

use super::socket::{Address, Listener, Stream};

pub use viewer::{View, view};

/// The application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The Virtual Microscope: parts of a slide, at some magnification.
    Microscope,
    /// Iso-surface: where a volume crosses a value, seen from the front.
    Surface,
}

/// A process of an application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filter {
    /// The source of an application's blocks.
    Read(Kind),
    /// Cuts tiles to the query's region.
    Clip,
    /// Makes tiles smaller, by means of pixels.
    Zoom,
    /// From planes to the points of the surface.
    Extract,
    /// From points to an image.
    Shade,
}

/// A region that a viewer asks for: of a slide in pixels, of a volume the planes from `y` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Query {
    x: u32,
    y: u32,
    width: u32,
    height: u32,
    /// The slide's magnification: `zoom` pixels become one.
    zoom: u32,
}

/// A message of the chain: a block with its place, a query, or the end of a query.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Block {
    sort: u32,
    query: Query,
    /// The block's own region.
    place: Query,
    bytes: Vec<u8>,
}

impl Block {
    fn of(query: Query, place: Query, bytes: Vec<u8>) -> Block {
        Block {
            sort: DATA,
            query,
            place,
            bytes,
        }
    }

    fn send(&self, stream: &Stream) -> io::Result<()> {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        let length = u32::try_from(self.bytes.len()).map_err(|_| wrong("a block is too long"))?;
        for word in [self.sort, length] {
            head.extend_from_slice(&word.to_le_bytes());
        }
        for part in [self.query, self.place] {
            for word in [part.x, part.y, part.width, part.height, part.zoom] {
                head.extend_from_slice(&word.to_le_bytes());
            }
        }
        stream.write_all(&head)?;
        stream.write_all(&self.bytes)
    }

    /// Nothing at the end of the stream.
    fn receive(stream: &Stream) -> io::Result<Option<Block>> {
        let mut head = [0; HEAD_BYTES];
        if !stream.read_all(&mut head)? {
            return Ok(None);
        }
        let word = |at: usize| {
            let bytes = &head[at * 4..at * 4 + 4];
            u32::from_le_bytes(bytes.try_into().expect("four bytes"))
        };
        let part = |at: usize| Query {
            x: word(at),
            y: word(at + 1),
            width: word(at + 2),
            height: word(at + 3),
            zoom: word(at + 4),
        };
        let length = word(1) as usize;
        if length > BLOCK_BYTES_MAX {
            return Err(wrong("a block is too long"));
        }
        let mut bytes = vec![0; length];
        if length > 0 && !stream.read_all(&mut bytes)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Some(Block {
            sort: word(0),
            query: part(2),
            place: part(7),
            bytes,
        }))
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Serves a filter for ever, with a thread for each connection from the next filter.
///
/// # Errors
///
/// A sentence: the address is not available, or the filter needs a previous one.
pub fn serve(
    filter: Filter,
    listen: &Address,
    before: Option<&Address>,
    seed: u64,
) -> Result<(), String> {
    let source: Option<Box<dyn Source>> = match filter {
        Filter::Read(Kind::Microscope) => Some(Box::new(image::Slide::new(seed))),
        Filter::Read(Kind::Surface) => Some(Box::new(volume::Volume::new(seed))),
        _ => None,
    };
    if source.is_some() == before.is_some() {
        return Err("every filter but `read` takes its blocks from one before it".to_owned());
    }
    let listener = Listener::bind(listen).map_err(|error| format!("{listen}: {error}"))?;
    let source = source.as_deref();
    thread::scope(|scope| {
        loop {
            let behind = listener
                .accept()
                .map_err(|error| format!("{listen}: {error}"))?;
            scope.spawn(move || {
                let served = match (source, before) {
                    (Some(source), _) => read(source, &behind),
                    (None, Some(before)) => pass(filter, &behind, before),
                    (None, None) => Ok(()),
                };
                if let Err(error) = served {
                    tell_line(format!("{filter:?}: {error}"));
                }
            });
        }
    })
}

/// The source of blocks.
trait Source: Sync {
    /// The blocks that a query covers, one after the other.
    fn blocks(&self, query: Query, put: &mut dyn FnMut(Block) -> io::Result<()>) -> io::Result<()>;
}

/// A filter's change of blocks.
trait Change {
    fn change(&mut self, block: Block) -> Vec<Block>;

    /// Blocks that were held back until the end of the query.
    fn finish(&mut self, query: Query) -> Vec<Block> {
        let _ = query;
        Vec::new()
    }
}

fn read(source: &dyn Source, behind: &Stream) -> io::Result<()> {
    while let Some(asked) = Block::receive(behind)? {
        source.blocks(asked.query, &mut |block| block.send(behind))?;
        end_of(asked.query).send(behind)?;
    }
    Ok(())
}

fn pass(filter: Filter, behind: &Stream, before: &Address) -> io::Result<()> {
    let before = Stream::connect(before)?;
    while let Some(asked) = Block::receive(behind)? {
        asked.send(&before)?;
        let mut change: Box<dyn Change> = match filter {
            Filter::Zoom => Box::new(image::Zoom),
            Filter::Extract => Box::new(volume::Extract::default()),
            Filter::Shade => Box::new(volume::Shade::default()),
            Filter::Clip | Filter::Read(_) => Box::new(image::Clip),
        };
        loop {
            let block = Block::receive(&before)?;
            let block = block.ok_or(io::ErrorKind::UnexpectedEof)?;
            if block.sort == END {
                break;
            }
            for block in change.change(block) {
                block.send(behind)?;
            }
        }
        for block in change.finish(asked.query) {
            block.send(behind)?;
        }
        end_of(asked.query).send(behind)?;
    }
    Ok(())
}

fn end_of(query: Query) -> Block {
    Block {
        sort: END,
        query,
        ..Block::default()
    }
}

const QUERY: u32 = 1;
const DATA: u32 = 2;
const END: u32 = 3;
const HEAD_BYTES: usize = 48;
const BLOCK_BYTES_MAX: usize = 16 << 20;
