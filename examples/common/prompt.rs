//! Text from the command line, a file or standard input.

use std::io::Read;
use std::path::Path;

use super::failure::{Failure, Result, fail};

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// What error texts call it.
pub fn name(path: &Path) -> String {
    if is_stdin(path) { "standard input".into() } else { path.display().to_string() }
}

/// A whole text file, or standard input for `-`, without one final line end: editors and `echo` put it there, and for a
/// model it is a token like any other.
///
/// # Errors
/// If it cannot be read, is no UTF-8, or nothing is left.
pub fn read(path: &Path) -> Result<String> {
    let name = name(path);
    let bytes = if is_stdin(path) {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(path)
    };
    let bytes = bytes.map_err(|e| Failure::Run(format!("{name}: {e}")))?;
    let mut text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => {
            let at = e.utf8_error().valid_up_to();
            return fail(format!("{name}: expected UTF-8 text, byte {at} is not"));
        }
    };
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    if text.is_empty() { fail(format!("{name}: expected a text, it is empty")) } else { Ok(text) }
}
