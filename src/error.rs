//! The crate's one error type. Every variant says what was expected and what came; file errors also say where.

use std::fmt;
use std::path::{Path, PathBuf};

/// Result with the crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong. The text of each error is one line (the ledger's lists aside) and names the culprit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused: no such file, no permission, a directory, a failed map.
    #[error("{}: {source}", file.display())]
    Io {
        /// Path as the caller gave it.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A model file breaks the format or lacks something.
    #[error("{}: {place}: {message}", file.display())]
    File {
        /// The file (for split sets: the shard).
        file: PathBuf,
        /// Where in it.
        place: Place,
        /// What was expected and what was found.
        message: String,
    },
    /// Weights and model do not match one to one; the text lists names, counts and shards.
    #[error("{0}")]
    Ledger(String),
    /// Shapes handed to an operation disagree.
    #[error("{op}: expected {expected}, got {got}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// What its contract asks for.
        expected: String,
        /// What came.
        got: String,
    },
    /// A value outside its range (not a shape): sampling parameters, token ids, positions.
    #[error("{what}: expected {expected}, got {got}")]
    Argument {
        /// The argument.
        what: &'static str,
        /// Its legal range.
        expected: String,
        /// What came.
        got: String,
    },
    /// Recognized, and refused with the reason.
    #[error("{what} is not supported: {reason}")]
    Unsupported {
        /// What was asked for, by name.
        what: String,
        /// Why not.
        reason: String,
    },
    /// A cache, context or budget is too small; nothing was changed.
    #[error("{what}: {needed} needed, {available} available")]
    Capacity {
        /// What ran out, with its unit.
        what: String,
        /// How much the call needs.
        needed: u64,
        /// How much there is.
        available: u64,
    },
    /// No GPU can be used: no driver, one that is too old, no such device.
    #[error("no usable GPU: {0}")]
    NoGpu(String),
    /// The binary holds no code of a kernel for this GPU; nothing was run.
    #[error("{entry}: this build holds no code for {gpu}, only {built_for}")]
    NoKernelImage {
        /// The kernel.
        entry: &'static str,
        /// The GPU.
        gpu: String,
        /// What there is code for.
        built_for: String,
    },
    /// Device memory ran out, or pinned memory of the host; nothing was changed.
    #[error("{gpu}: {} for {label}, {} of {} free; held: {}", amount(*.needed), Mib(*.free), Mib(*.total), breakdown(.held))]
    OutOfMemory {
        /// What the memory was for.
        label: String,
        /// Bytes asked for, where that is known: what the driver takes for a graph or for code, it does not say.
        needed: Option<u64>,
        /// The GPU.
        gpu: String,
        /// Bytes free.
        free: u64,
        /// Bytes in all.
        total: u64,
        /// Bytes that this process holds, by label.
        held: Vec<(&'static str, u64)>,
    },
    /// The CUDA driver, or the emulator, reported an error. The device is not used any more after the first.
    #[error("{gpu}: {call}: {message}")]
    Driver {
        /// The GPU.
        gpu: String,
        /// What was being done.
        call: String,
        /// The error, by name and in words.
        message: String,
    },
    /// Tokenizer or chat template failed.
    #[error("{what}: {message}")]
    Text {
        /// `tokenizer` or `chat template`.
        what: &'static str,
        /// What the library underneath said, or what is missing.
        message: String,
    },
}

/// Where in a model file an error lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Magic, version, counts.
    Header,
    /// A metadata key.
    Key(String),
    /// A tensor, by name.
    Tensor(String),
    /// The split set as a whole.
    SplitSet,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Header => write!(f, "header"),
            Place::Key(k) => write!(f, "key {k}"),
            Place::Tensor(t) => write!(f, "tensor {t}"),
            Place::SplitSet => write!(f, "split set"),
        }
    }
}

/// Bytes for people.
struct Mib(u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", self.0 as f64 / f64::from(1 << 20))
    }
}

fn amount(bytes: Option<u64>) -> String {
    bytes.map_or("no memory".into(), |bytes| Mib(bytes).to_string())
}

fn breakdown(held: &[(&str, u64)]) -> String {
    let held: Vec<_> = held.iter().map(|(label, bytes)| format!("{label} {}", Mib(*bytes))).collect();
    if held.is_empty() { "nothing".into() } else { held.join(", ") }
}

impl Error {
    /// [`Error::File`] about the header.
    pub fn header(file: &Path, message: impl Into<String>) -> Self {
        Error::File { file: file.into(), place: Place::Header, message: message.into() }
    }

    /// [`Error::File`] about a metadata key.
    pub fn key(file: &Path, key: &str, message: impl Into<String>) -> Self {
        Error::File { file: file.into(), place: Place::Key(key.into()), message: message.into() }
    }

    /// [`Error::File`] about a tensor.
    pub fn tensor(file: &Path, name: &str, message: impl Into<String>) -> Self {
        Error::File { file: file.into(), place: Place::Tensor(name.into()), message: message.into() }
    }

    /// [`Error::File`] about a split set.
    pub fn split(file: &Path, message: impl Into<String>) -> Self {
        Error::File { file: file.into(), place: Place::SplitSet, message: message.into() }
    }

    /// [`Error::Io`] for a path.
    pub fn io(file: &Path, source: std::io::Error) -> Self {
        Error::Io { file: file.into(), source }
    }

    /// [`Error::Shape`].
    pub fn shape(op: &'static str, expected: impl fmt::Display, got: impl fmt::Display) -> Self {
        Error::Shape { op, expected: expected.to_string(), got: got.to_string() }
    }

    /// [`Error::Argument`].
    pub fn argument(what: &'static str, expected: impl fmt::Display, got: impl fmt::Display) -> Self {
        Error::Argument { what, expected: expected.to_string(), got: got.to_string() }
    }

    /// [`Error::Unsupported`].
    pub fn unsupported(what: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Error::Unsupported { what: what.to_string(), reason: reason.to_string() }
    }
}
