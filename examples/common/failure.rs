//! How examples fail: one line on standard error, exit code 2 for wrong usage, 1 for everything else.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

/// Ends every `--help`.
pub const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted by Ctrl-C.";

/// Exit code after Ctrl-C: 128 + SIGINT, as shells and make expect it.
pub const INTERRUPTED: u8 = 130;

/// Why an example ends early.
#[derive(Debug)]
pub enum Failure {
    /// The command line makes no sense.
    Usage(String),
    /// It does, but cannot be done.
    Run(String),
    /// Nobody reads standard output any more (`| head -1`): no error, there is just nothing left to do.
    Closed,
    /// Ctrl-C; what there was to say has been said.
    Interrupted,
}

pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl From<glm5::Error> for Failure {
    fn from(e: glm5::Error) -> Self {
        Failure::Run(e.to_string())
    }
}

/// Files are read by functions that name them, so an I/O error without a name is one of standard output.
impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::BrokenPipe => Failure::Closed,
            _ => Failure::Run(format!("standard output: {e}")),
        }
    }
}

/// [`Failure::Usage`].
pub fn usage<T>(message: impl Display) -> Result<T> {
    Err(Failure::Usage(message.to_string()))
}

/// [`Failure::Run`].
pub fn fail<T>(message: impl Display) -> Result<T> {
    Err(Failure::Run(message.to_string()))
}

/// Parses the command line, runs the example and turns its result into an exit code.
pub fn main<A: Parser>(run: impl FnOnce(A) -> Result<()>) -> ExitCode {
    let failure = match A::try_parse() {
        Ok(args) => match run(args) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(failure) => failure,
        },
        Err(e) if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            // A reader that has gone is no error.
            _ = e.print();
            return ExitCode::SUCCESS;
        }
        Err(e) => Failure::Usage(one_line(&e.to_string())),
    };
    let (message, code) = match failure {
        Failure::Usage(message) => (format!("{message} (see --help)"), 2),
        Failure::Run(message) => (message, 1),
        Failure::Closed => return ExitCode::SUCCESS,
        Failure::Interrupted => return ExitCode::from(INTERRUPTED),
    };
    eprintln!("error: {message}");
    ExitCode::from(code)
}

/// The message and the tips of clap's error, without usage and the pointer to `--help`.
fn one_line(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let paragraphs = text.split("\n\n").map(str::trim);
    let told = paragraphs.take_while(|p| !p.starts_with("Usage:") && !p.starts_with("For more information"));
    let lines: Vec<String> = told.map(|p| p.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    lines.join("; ")
}
