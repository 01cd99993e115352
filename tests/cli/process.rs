//! Running an example: to its end with all its output, or step by step.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a process left.
#[derive(Debug)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// Standard output of a run that went well.
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// Standard output of a run that went well: one JSON object on one line, nothing else.
    pub fn json(self) -> Value {
        let text = self.ok();
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }
}

/// An example, to be run from a directory that is not the repository's.
pub fn example(name: &str, args: &[&str]) -> Command {
    // target/PROFILE/deps/cli-HASH -> target/PROFILE/examples/NAME
    let test = std::env::current_exe().unwrap();
    let dir = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples");
    let path: PathBuf = dir.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(path.exists(), "{} is not built: run `cargo build --examples`", path.display());
    let mut command = Command::new(path);
    command.args(args).current_dir(env!("CARGO_TARGET_TMPDIR"));
    command
}

/// Runs an example to its end with `input` on standard input.
pub fn run_with(name: &str, args: &[&str], input: &[u8]) -> Finished {
    let mut running = Running::start(name, args);
    running.write(input);
    running.finish()
}

/// Runs an example to its end.
pub fn run(name: &str, args: &[&str]) -> Finished {
    run_with(name, args, b"")
}

/// A process under observation: both its outputs are read as they come.
pub struct Running {
    child: Child,
    stdout: Stream,
    stderr: Stream,
}

struct Stream {
    pieces: Receiver<Vec<u8>>,
    bytes: Vec<u8>,
}

impl Stream {
    fn new(mut from: impl Read + Send + 'static) -> Self {
        let (to, pieces) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                _ = to.send(buffer[..n].to_vec());
            }
        });
        Stream { pieces, bytes: Vec::new() }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// Waits until the output so far satisfies `enough`.
    fn wait_for(&mut self, enough: impl Fn(&str) -> bool) {
        let start = Instant::now();
        while !enough(&self.text()) {
            let piece = self.pieces.recv_timeout(PATIENCE.saturating_sub(start.elapsed()));
            self.bytes.extend(piece.unwrap_or_else(|e| panic!("{e} after {:?}", self.text())));
        }
    }

    fn rest(&mut self) -> String {
        self.bytes.extend(self.pieces.iter().flatten());
        self.text()
    }
}

impl Running {
    pub fn start(name: &str, args: &[&str]) -> Self {
        let mut command = example(name, args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = Stream::new(child.stdout.take().unwrap());
        let stderr = Stream::new(child.stderr.take().unwrap());
        Running { child, stdout, stderr }
    }

    pub fn write(&mut self, input: &[u8]) {
        // A process that fails early does not read its input.
        _ = self.child.stdin.as_mut().unwrap().write_all(input);
    }

    pub fn wait_for_stdout(&mut self, enough: impl Fn(&str) -> bool) {
        self.stdout.wait_for(enough);
    }

    pub fn wait_for_stderr(&mut self, enough: impl Fn(&str) -> bool) {
        self.stderr.wait_for(enough);
    }

    /// What Ctrl-C sends.
    #[cfg(unix)]
    pub fn interrupt(&self) {
        let pid = self.child.id().to_string();
        // By then it may have ended.
        _ = Command::new("kill").args(["-INT", &pid]).stderr(Stdio::null()).status().unwrap();
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Closes its input and waits for its end.
    pub fn finish(mut self) -> Finished {
        drop(self.child.stdin.take());
        let start = Instant::now();
        while self.is_running() {
            if start.elapsed() > PATIENCE {
                self.child.kill().unwrap();
                panic!("no end; {:?} {:?}", self.stdout.rest(), self.stderr.rest());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let code = self.child.wait().unwrap().code();
        Finished { code, stdout: self.stdout.rest(), stderr: self.stderr.rest() }
    }
}
