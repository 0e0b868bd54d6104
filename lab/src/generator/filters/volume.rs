//! Iso-surface: a volume in planes, a filter that finds the surface between them, and a filter that
//! shades the surface.

use std::io;

use toehold_measure::rng::Rng;

use super::{Block, Change, Query, Source};

/// A volume of numbers: the sum of the fields of a few sources, as a reservoir has.
pub(super) struct Volume {
    planes: Vec<Vec<u8>>,
}

impl Volume {
    pub(super) fn new(seed: u64) -> Volume {
        let mut random = Rng::new(seed);
        let mut coordinate = || (SIDE / 4 + random.below(SIDE / 2)) as f32;
        let sources: [[f32; 3]; 4] =
            std::array::from_fn(|_| [coordinate(), coordinate(), coordinate()]);
        let plane = |z: usize| {
            let mut bytes = Vec::with_capacity(PLANE_BYTES);
            for at in 0..SIDE * SIDE {
                let place = [(at % SIDE) as f32, (at / SIDE) as f32, z as f32];
                let field = sources.iter().map(|source| {
                    let distance: f32 = (0..3).map(|i| (place[i] - source[i]).powi(2)).sum();
                    1000.0 / (distance + 100.0)
                });
                bytes.extend_from_slice(&field.sum::<f32>().to_le_bytes());
            }
            bytes
        };
        Volume {
            planes: (0..SIDE).map(plane).collect(),
        }
    }
}

impl Source for Volume {
    fn blocks(&self, query: Query, put: &mut dyn FnMut(Block) -> io::Result<()>) -> io::Result<()> {
        let first = query.y as usize;
        // The surface lies between two planes: one more than asked for.
        let last = (first + query.height as usize + 1).min(SIDE);
        for z in first.min(last)..last {
            let place = Query {
                y: z as u32,
                ..query
            };
            put(Block::of(query, place, self.planes[z].clone()))?;
        }
        Ok(())
    }
}

fn numbers(plane: &[u8]) -> Vec<f32> {
    let words = plane.chunks_exact(4);
    words
        .map(|word| f32::from_le_bytes(word.try_into().expect("four bytes")))
        .collect()
}

/// Finds the cells that the surface crosses: some corners below the value, some not.
#[derive(Default)]
pub(super) struct Extract {
    before: Option<Vec<f32>>,
}

impl Change for Extract {
    fn change(&mut self, block: Block) -> Vec<Block> {
        let plane = numbers(&block.bytes);
        let Some(before) = self.before.replace(plane) else {
            return Vec::new();
        };
        let after = self.before.as_deref().unwrap_or(&[]);
        if before.len() != SIDE * SIDE || after.len() != before.len() {
            return Vec::new();
        }
        let mut points = Vec::new();
        for y in 0..SIDE - 1 {
            for x in 0..SIDE - 1 {
                let at = y * SIDE + x;
                let corners = [at, at + 1, at + SIDE, at + SIDE + 1];
                let all = corners.iter().flat_map(|&at| [before[at], after[at]]);
                let below = all.filter(|value| *value < ISO).count();
                if (1..8).contains(&below) {
                    // The light comes from the viewer: the field's slope along z against the rest.
                    let [dx, dy] =
                        [before[at + 1], before[at + SIDE]].map(|next| next - before[at]);
                    let dz = after[at] - before[at];
                    let length = (dx * dx + dy * dy + dz * dz).sqrt().max(f32::MIN_POSITIVE);
                    let bright = (dz.abs() / length * 255.0) as u8;
                    points.extend_from_slice(&(x as u16).to_le_bytes());
                    points.extend_from_slice(&(y as u16).to_le_bytes());
                    points.push(bright);
                }
            }
        }
        vec![Block::of(block.query, block.place, points)]
    }
}

/// Paints points into an image; those of earlier planes hide those of later ones.
#[derive(Default)]
pub(super) struct Shade {
    image: Vec<u8>,
}

impl Change for Shade {
    fn change(&mut self, block: Block) -> Vec<Block> {
        self.image.resize(SIDE * SIDE, 0);
        for point in block.bytes.chunks_exact(POINT_BYTES) {
            let coordinate = |at: usize| u16::from_le_bytes([point[at], point[at + 1]]) as usize;
            let (x, y) = (coordinate(0).min(SIDE - 1), coordinate(2).min(SIDE - 1));
            let pixel = &mut self.image[y * SIDE + x];
            if *pixel == 0 {
                *pixel = point[4].max(1);
            }
        }
        Vec::new()
    }

    fn finish(&mut self, query: Query) -> Vec<Block> {
        vec![Block::of(query, query, std::mem::take(&mut self.image))]
    }
}

/// Numbers on each edge of the volume: 64 MB. Fewer in the tests, which compile without
/// optimisation.
pub(super) const SIDE: usize = if cfg!(test) { 64 } else { 256 };
const PLANE_BYTES: usize = SIDE * SIDE * 4;
const POINT_BYTES: usize = 5;
/// The surface is where the field has this value.
const ISO: f32 = 1.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossing_between_two_planes_becomes_a_pixel() {
        let query = Query {
            height: 1,
            ..Query::default()
        };
        let plane = |value: f32| {
            let mut numbers = vec![0.0f32; SIDE * SIDE];
            numbers[5 * SIDE + 7] = value;
            let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
            Block::of(query, query, bytes.collect())
        };
        let mut extract = Extract::default();
        assert!(extract.change(plane(0.0)).is_empty());
        let points = extract.change(plane(2.0 * ISO));
        // The four cells around that corner.
        assert_eq!(points[0].bytes.len(), 4 * POINT_BYTES);
        let mut shade = Shade::default();
        assert!(shade.change(points[0].clone()).is_empty());
        let image = &shade.finish(query)[0].bytes;
        assert_eq!(image.iter().filter(|pixel| **pixel > 0).count(), 4);
        assert!(image[5 * SIDE + 7] > 0 && image[4 * SIDE + 6] > 0);
    }
}
