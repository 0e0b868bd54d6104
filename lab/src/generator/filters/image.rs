//! The Virtual Microscope: a slide in tiles, a filter that clips the tiles, and a filter that makes
//! them smaller.

use std::io;

use toehold_measure::rng::Rng;

use super::{Block, Change, Query, Source};

/// A slide: pixels of one byte, tile after tile, so that each tile is one piece of memory.
pub(super) struct Slide {
    tiles: Vec<Vec<u8>>,
}

impl Slide {
    pub(super) fn new(seed: u64) -> Slide {
        let mut random = Rng::new(seed);
        let grain: Vec<u8> = (0..4096).map(|_| random.below(32) as u8).collect();
        let tile = |number: u32| {
            let (x, y) = corner(number);
            let pixels = (0..TILE * TILE).map(|at| {
                let (x, y) = (x + at % TILE, y + at / TILE);
                // Cells of a tissue: rings around centres, with some noise.
                let (dx, dy) = (x % 509, y % 491);
                let ring = (dx * dx + dy * dy) >> 9;
                let place = (x.wrapping_mul(31) ^ y.wrapping_mul(17)) as usize % grain.len();
                (ring as u8).wrapping_add(grain[place])
            });
            pixels.collect()
        };
        Slide {
            tiles: (0..ACROSS * ACROSS).map(tile).collect(),
        }
    }
}

impl Source for Slide {
    fn blocks(&self, query: Query, put: &mut dyn FnMut(Block) -> io::Result<()>) -> io::Result<()> {
        for (number, tile) in (0u32..).zip(&self.tiles) {
            let (x, y) = corner(number);
            let place = Query {
                x,
                y,
                width: TILE,
                height: TILE,
                zoom: 1,
            };
            if common(place, query).is_some() {
                put(Block::of(query, place, tile.clone()))?;
            }
        }
        Ok(())
    }
}

fn corner(tile: u32) -> (u32, u32) {
    (tile % ACROSS * TILE, tile / ACROSS * TILE)
}

/// The region that two regions have in common.
fn common(one: Query, other: Query) -> Option<Query> {
    let end = |at: u32, length: u32| at.saturating_add(length);
    let (x, y) = (one.x.max(other.x), one.y.max(other.y));
    let right = end(one.x, one.width).min(end(other.x, other.width));
    let bottom = end(one.y, one.height).min(end(other.y, other.height));
    (right > x && bottom > y).then(|| Query {
        x,
        y,
        width: right - x,
        height: bottom - y,
        zoom: 1,
    })
}

/// Cuts tiles to the region of the query.
pub(super) struct Clip;

impl Change for Clip {
    fn change(&mut self, block: Block) -> Vec<Block> {
        let Block {
            query,
            place,
            bytes,
            ..
        } = block;
        let Some(kept) = common(place, query) else {
            return Vec::new();
        };
        let (left, width) = ((kept.x - place.x) as usize, kept.width as usize);
        let rows = bytes.chunks_exact(place.width as usize);
        let rows = rows
            .skip((kept.y - place.y) as usize)
            .take(kept.height as usize);
        let mut cut = Vec::with_capacity(width * kept.height as usize);
        for row in rows {
            cut.extend_from_slice(&row[left..left + width]);
        }
        vec![Block::of(query, kept, cut)]
    }
}

/// Makes tiles smaller: the mean of each square of pixels.
pub(super) struct Zoom;

impl Change for Zoom {
    fn change(&mut self, block: Block) -> Vec<Block> {
        let Block {
            query,
            place,
            bytes,
            ..
        } = block;
        let zoom = query.zoom.max(1);
        let (width, height) = (place.width / zoom, place.height / zoom);
        let mut small = Vec::with_capacity((width * height) as usize);
        for y in 0..height {
            for x in 0..width {
                let mut sum = 0;
                for row in 0..zoom {
                    let from = ((y * zoom + row) * place.width + x * zoom) as usize;
                    let pixels = &bytes[from..from + zoom as usize];
                    sum += pixels.iter().map(|&pixel| u32::from(pixel)).sum::<u32>();
                }
                small.push((sum / (zoom * zoom)) as u8);
            }
        }
        let place = Query {
            width,
            height,
            zoom,
            ..place
        };
        vec![Block::of(query, place, small)]
    }
}

/// Tiles in a row, and rows of them; fewer in the tests, which compile without optimisation.
const ACROSS: u32 = if cfg!(test) { 4 } else { 16 };
/// Pixels of a tile's side.
const TILE: u32 = 256;
/// Pixels of the slide's side: 16 MB of bytes.
pub(super) const SIDE: u32 = ACROSS * TILE;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_comes_out_clipped_and_smaller_whatever_tiles_it_covers() {
        let slide = Slide::new(1);
        let query = Query {
            x: 250,
            y: 506,
            width: 16,
            height: 12,
            zoom: 2,
        };
        let mut pixels = 0;
        let mut blocks = Vec::new();
        let put = &mut |block: Block| {
            assert_eq!(block.bytes.len(), (TILE * TILE) as usize);
            for clipped in Clip.change(block) {
                pixels += clipped.bytes.len();
                blocks.extend(Zoom.change(clipped));
            }
            Ok(())
        };
        slide.blocks(query, put).expect("no socket");
        // Four tiles meet at this corner.
        assert_eq!((blocks.len(), pixels), (4, 16 * 12));
        let small: usize = blocks.iter().map(|block| block.bytes.len()).sum();
        assert_eq!(small, 8 * 6);
    }

    #[test]
    fn a_pixel_of_a_smaller_tile_is_the_mean_of_its_square() {
        let place = Query {
            width: 4,
            height: 2,
            ..Query::default()
        };
        let query = Query { zoom: 2, ..place };
        let block = Block::of(query, place, vec![1, 3, 10, 10, 5, 7, 10, 14]);
        assert_eq!(Zoom.change(block)[0].bytes, [4, 11]);
    }
}
