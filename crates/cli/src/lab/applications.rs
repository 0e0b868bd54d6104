//! Commands of `toehold lab` that applications of plans are made of.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use toehold_lab::generator::{Address, Arrivals, Load, Pattern, filters, http, poll};
use toehold_lab::{files, runs};

use super::{bytes, failure, show};
use crate::failure::Failure;

/// Options of `toehold lab http`.
#[derive(Args, Debug)]
pub(super) struct HttpArgs {
    /// The server: HOST:PORT, or unix:PATH
    #[arg(value_name = "ADDRESS")]
    to: Address,

    /// The path to request; with --files the directory of these files
    #[arg(long, value_name = "PATH", default_value = "/")]
    path: String,

    /// Request files 0 to N - 1 below the path, as `toehold lab files --count N` makes them
    #[arg(long, value_name = "N")]
    files: Option<usize>,

    /// Request the paths of this file: it has a line WEIGHT COUNT PATH for each kind of request,
    /// and PATH is followed by a number from 0 to COUNT - 1
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    #[arg(conflicts_with_all = ["path", "files", "zipf"])]
    mix: Option<PathBuf>,

    /// The mean pause of each connection before its next request, as browsers make it
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    think: f64,

    /// Request paths by Zipf's law with this exponent; with 0 all are equally frequent
    #[arg(long, value_name = "ALPHA", default_value_t = 0.0)]
    zipf: f64,

    /// The seed of the order of the requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Connections
    #[arg(long, value_name = "N", default_value_t = 1)]
    streams: usize,

    #[command(flatten)]
    span: SpanArgs,
}

/// The time that a client measures, and when it begins an operation.
#[derive(Args, Debug)]
struct SpanArgs {
    /// Measured time
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,

    /// Time before it that is not measured
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2)]
    warmup: f64,

    /// Operations in a second: an open loop with Poisson arrivals; 0 is a closed loop
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    rate: f64,

    /// Print the outcome as JSON, with the whole histogram
    #[arg(long)]
    json: bool,
}

impl SpanArgs {
    fn load(&self, streams: usize) -> Result<Load, Failure> {
        let load = Load {
            pattern: Pattern::Requests,
            streams,
            seconds: self.seconds,
            warmup: self.warmup,
            rate: (self.rate != 0.0).then_some(self.rate),
            arrivals: Arrivals::Poisson,
            ..Load::default()
        };
        load.check().map_err(Failure::usage)?;
        Ok(load)
    }
}

impl HttpArgs {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let folder = self.path.trim_end_matches('/');
        let paths = match self.files {
            Some(count) => (0..count)
                .map(|number| format!("{folder}/{number}"))
                .collect(),
            None => vec![self.path.clone()],
        };
        let (weights, paths) = match &self.mix {
            Some(file) => mix_of(file)?,
            None => (Vec::new(), paths),
        };
        let requests = http::Requests {
            paths,
            alpha: self.zipf,
            weights,
            think: self.think,
            seed: self.seed,
            load: self.span.load(self.streams)?,
        };
        let outcome = http::run(&self.to, &requests).map_err(Failure::new)?;
        show(&outcome, self.span.json)
    }
}

/// The weights and paths of a mix: a kind of request shares its weight among its paths.
fn mix_of(file: &Path) -> Result<(Vec<f64>, Vec<String>), Failure> {
    let place = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::new(format!("cannot read {place}: {error}")))?;
    let mut mix = (Vec::new(), Vec::new());
    for (at, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let parsed = match words[..] {
            [] => continue,
            [weight, count, path] => weight.parse().ok().zip(count.parse().ok()).zip(Some(path)),
            _ => None,
        };
        let is_kind = |(_, count): &(f64, usize)| (1..=MIX_PATHS_MAX).contains(count);
        let Some((kind, path)) = parsed.filter(|(kind, _)| is_kind(kind)) else {
            let line = at + 1;
            let form = "WEIGHT COUNT PATH";
            return Err(Failure::usage(format!(
                "{place}, line {line} is not {form}"
            )));
        };
        let (weight, count) = kind;
        for number in 0..count {
            mix.0.push(weight / count as f64);
            mix.1.push(format!("{path}{number}"));
        }
    }
    Ok(mix)
}

/// Most paths of a kind of request.
const MIX_PATHS_MAX: usize = 10_000;

/// Options of `toehold lab files`.
#[derive(Args, Debug)]
pub(super) struct FilesArgs {
    /// The directory, which is created if it is missing
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    folder: PathBuf,

    /// A file of each of these sizes, named by its size in bytes
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = bytes)]
    sizes: Vec<usize>,

    /// The number of files with the names 0, 1 and so on
    #[arg(long, value_name = "N", default_value_t = 0)]
    count: usize,

    /// The smallest of the files of --count
    #[arg(long, value_name = "BYTES", default_value = "1K", value_parser = bytes)]
    least: usize,

    /// The largest of the files of --count
    #[arg(long, value_name = "BYTES", default_value = "64K", value_parser = bytes)]
    most: usize,

    /// The seed of sizes and bytes
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl FilesArgs {
    pub(super) fn run(&self) -> Result<(), Failure> {
        if !(1..=self.most).contains(&self.least) {
            return Err(Failure::usage("--least is from 1 to --most"));
        }
        let made = files::of_sizes(&self.folder, &self.sizes, self.seed)
            .and_then(|()| files::many(&self.folder, self.count, self.least, self.most, self.seed));
        let place = self.folder.display();
        made.map_err(|error| Failure::new(format!("cannot write files to {place}: {error}")))
    }
}

/// Options of `toehold lab poll`.
#[derive(Args, Debug)]
pub(super) struct PollArgs {
    /// The servers: HOST:PORT, or unix:PATH; with commas between
    #[arg(value_name = "ADDRESS", value_delimiter = ',', required = true)]
    servers: Vec<Address>,

    /// Attributes (NAME="value") whose values change from answer to answer
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    changing: Vec<String>,

    #[command(flatten)]
    span: SpanArgs,
}

impl PollArgs {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let polling = poll::Polling {
            servers: self.servers.clone(),
            changing: self.changing.clone(),
            load: self.span.load(self.servers.len())?,
        };
        let outcome = poll::run(&polling).map_err(Failure::new)?;
        show(&outcome, self.span.json)
    }
}

/// The applications of filter streams.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum KindChoice {
    /// The Virtual Microscope: a slide of 16 MB; filters read, clip, zoom
    Microscope,
    /// Iso-surface: a volume of 64 MB; filters read, extract, shade
    Surface,
}

impl KindChoice {
    fn kind(self) -> filters::Kind {
        match self {
            KindChoice::Microscope => filters::Kind::Microscope,
            KindChoice::Surface => filters::Kind::Surface,
        }
    }
}

/// Filters.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum FilterChoice {
    /// Sends the blocks that a query covers
    Read,
    /// Cuts tiles of a slide to the region asked for
    Clip,
    /// Makes tiles smaller
    Zoom,
    /// Finds the surface between planes of a volume
    Extract,
    /// Makes an image of it
    Shade,
}

/// Options of `toehold lab filter`.
#[derive(Args, Debug)]
pub(super) struct FilterArgs {
    /// The filter
    #[arg(value_enum)]
    filter: FilterChoice,

    /// Where it listens for the filter or viewer behind it
    #[arg(long, value_name = "ADDRESS")]
    listen: Address,

    /// The filter before it; `read` has none
    #[arg(long, value_name = "ADDRESS")]
    before: Option<Address>,

    /// The application whose data `read` has
    #[arg(long, value_enum, default_value = "microscope")]
    kind: KindChoice,

    /// The seed of the data
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl FilterArgs {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let filter = match self.filter {
            FilterChoice::Read => filters::Filter::Read(self.kind.kind()),
            FilterChoice::Clip => filters::Filter::Clip,
            FilterChoice::Zoom => filters::Filter::Zoom,
            FilterChoice::Extract => filters::Filter::Extract,
            FilterChoice::Shade => filters::Filter::Shade,
        };
        filters::serve(filter, &self.listen, self.before.as_ref(), self.seed).map_err(Failure::new)
    }
}

/// Options of `toehold lab view`.
#[derive(Args, Debug)]
pub(super) struct ViewArgs {
    /// The last filter: HOST:PORT, or unix:PATH
    #[arg(value_name = "ADDRESS")]
    filter: Address,

    /// The application
    #[arg(long, value_enum, default_value = "microscope")]
    kind: KindChoice,

    /// The fraction of the updates that show a small region; the others show everything
    #[arg(long, value_name = "PART", default_value_t = 0.0)]
    partial: f64,

    /// The seed of the updates and the regions
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    span: SpanArgs,
}

impl ViewArgs {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let view = filters::View {
            kind: self.kind.kind(),
            partial: self.partial,
            seed: self.seed,
            load: self.span.load(1)?,
        };
        let outcome = filters::view(&self.filter, &view).map_err(Failure::new)?;
        show(&outcome, self.span.json)
    }
}

/// Options of `toehold lab guard`.
#[derive(Args, Debug)]
pub(super) struct GuardArgs {
    /// The run
    owner: String,
    /// Its private directory
    folder: PathBuf,
}

impl GuardArgs {
    pub(super) fn run(&self) -> Result<(), Failure> {
        runs::guard(&self.owner, &self.folder).map_err(failure)
    }
}
