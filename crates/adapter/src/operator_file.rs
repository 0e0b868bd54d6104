//! Files that the operator writes: settings and rules.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// The text of a file that the operator named. A file without end, a device for example, is an
/// error.
///
/// # Errors
///
/// When the file cannot be read, or is too large.
pub(crate) fn text_of(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = File::open(file)?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other("the file is larger than 4 MiB"));
    }
    Ok(text
        .strip_prefix(BYTE_ORDER_MARK)
        .map(str::to_owned)
        .unwrap_or(text))
}

/// Some editors write it at the beginning of a file.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Far more than all settings and rules that an adapter accepts, with their comments.
const FILE_BYTES_MAX: u64 = 4 << 20;
