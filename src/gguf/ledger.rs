//! The weight ledger: every tensor is taken once or idle for a reason, every weight that a model needs is there.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::path::Path;

use serde::Serialize;

use super::cut::{Cut, Shard, cut, part};
use super::reader::Gguf;
use super::tensor_info::{TensorInfo, TypeCount};
use crate::error::{Error, Result};
use crate::quant::{GgmlType, SharedBytes, Weight};

/// Names listed per kind of problem; the rest is counted.
const LISTED: usize = 20;

/// The extents that a model expects of a weight: `slabs` matrices of `[rows, cols]`, in the file
/// `ne = [cols, rows, slabs]`. Shown in the file's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    /// Matrices in the stack (`ne2`).
    pub slabs: usize,
    /// Outputs (`ne1`).
    pub rows: usize,
    /// Inputs (`ne0`).
    pub cols: usize,
}

impl Dims {
    /// `n` values.
    pub const fn vector(n: usize) -> Self {
        Dims { slabs: 1, rows: 1, cols: n }
    }

    /// A matrix that takes `cols` values to `rows` values.
    pub const fn matrix(rows: usize, cols: usize) -> Self {
        Dims { slabs: 1, rows, cols }
    }

    /// `slabs` such matrices.
    pub const fn stack(slabs: usize, rows: usize, cols: usize) -> Self {
        Dims { slabs, rows, cols }
    }

    /// The same without trailing ones, as files give them: `ne0` first.
    pub fn extents(self) -> Vec<u64> {
        without_ones(&self.dims()).to_vec()
    }

    fn dims(self) -> [u64; 4] {
        [self.cols as u64, self.rows as u64, self.slabs as u64, 1]
    }
}

impl fmt::Display for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", without_ones(&self.dims()))
    }
}

/// Extents without trailing ones, as files usually give them.
fn without_ones(dims: &[u64; 4]) -> &[u64] {
    let n = dims.iter().rposition(|&d| d != 1).map_or(1, |i| i + 1);
    &dims[..n]
}

/// Two-way accounting between the tensors of a file and the weights of a model.
///
/// A model takes every weight by name, declares idle what it does not use, and then calls [`Ledger::finish`]. What is
/// wrong with single tensors (missing, of another shape, taken twice) does not stop it: the ledger notes it, hands out an
/// *empty weight* (`[0, 0, 0]`) in place, and `finish` fails with the whole list. So weights may be used only after
/// `finish` has returned `Ok`.
///
/// ```
/// # use glm5::gguf::{Cut, Dims, Gguf, Ledger, Shard, Writer};
/// # use glm5::quant::GgmlType;
/// # fn main() -> glm5::Result<()> {
/// # let mut writer = Writer::new();
/// # writer.tensor("blk.0.attn_norm.weight", GgmlType::F32, &[2], vec![0; 8])?;
/// # writer.tensor("blk.1.nextn.enorm.weight", GgmlType::F32, &[2], vec![0; 8])?;
/// # let gguf = Gguf::from_bytes("example", writer.to_bytes()?.into())?;
/// let mut ledger = Ledger::new(&gguf);
/// let norm = ledger.take("blk.0.attn_norm.weight", Dims::vector(2), Cut::None, Shard::WHOLE)?;
/// ledger.idle_where("MTP block", |t| t.name.starts_with("blk.1."));
/// let report = ledger.finish()?;
/// assert_eq!((report.taken.tensors, report.idle[0].count.tensors), (1, 1));
/// # Ok(()) }
/// ```
#[must_use = "the accounts are settled by `finish`"]
#[derive(Debug)]
pub struct Ledger<'a> {
    gguf: &'a Gguf,
    /// Whether weights are handed out, or only accounted for.
    hands_out: bool,
    /// For each tensor of the file.
    states: Vec<State>,
    /// Bytes of the parts that were taken.
    part_bytes: u64,
    reasons: Vec<String>,
    missing: Vec<String>,
    /// What was asked for, in order, if that is noted.
    requests: Option<Vec<(String, Dims)>>,
    shapes: Vec<String>,
    twice: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Taken,
    /// Index of the reason.
    Idle(usize),
}

impl<'a> Ledger<'a> {
    /// Opens the accounts of a file: every tensor is open.
    pub fn new(gguf: &'a Gguf) -> Self {
        Ledger {
            gguf,
            hands_out: true,
            states: vec![State::Open; gguf.tensors().len()],
            part_bytes: 0,
            reasons: Vec::new(),
            missing: Vec::new(),
            requests: None,
            shapes: Vec::new(),
            twice: Vec::new(),
        }
    }

    /// As [`Ledger::new`], for the accounts alone: every check is made, but empty weights are handed out, so that also cuts
    /// that would copy cost nothing.
    pub fn accounts_only(gguf: &'a Gguf) -> Self {
        Ledger { hands_out: false, ..Ledger::new(gguf) }
    }

    /// As [`Ledger::accounts_only`], and notes what is asked for, so that a file can be made which has that.
    pub fn noting_requests(gguf: &'a Gguf) -> Self {
        Ledger { requests: Some(Vec::new()), ..Ledger::accounts_only(gguf) }
    }

    /// Names and extents of all weights that were asked for, in order, whether or not they are there; nothing unless that is noted.
    pub fn requests(&self) -> &[(String, Dims)] {
        self.requests.as_deref().unwrap_or_default()
    }

    /// Whether the file has a tensor of this name, in whatever state.
    pub fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// Takes this rank's part of a weight that must be there. Row cuts of plain matrices and slab cuts share the file's
    /// bytes; row cuts inside stacks and column cuts are copied.
    ///
    /// A missing or already taken tensor or one of another shape is noted for [`Ledger::finish`], and an empty weight
    /// is returned.
    ///
    /// # Errors
    /// At once: [`Error::Argument`] for a shard that does not exist; [`Error::File`] naming the tensor if the cut does
    /// not come out even or would go through a head or a quant block.
    pub fn take(&mut self, name: &str, dims: Dims, cut: Cut, shard: Shard) -> Result<Weight> {
        match self.take_optional(name, dims, cut, shard)? {
            Some(weight) => Ok(weight),
            None => {
                self.missing.push(format!("{name}, expected {dims}"));
                empty()
            }
        }
    }

    /// Takes a weight that may be absent: then `None`, which is no problem. Otherwise as [`Ledger::take`].
    ///
    /// # Errors
    /// As [`Ledger::take`].
    pub fn take_optional(
        &mut self,
        name: &str,
        dims: Dims,
        how: Cut,
        shard: Shard,
    ) -> Result<Option<Weight>> {
        let shard = Shard::new(shard.rank, shard.size)?;
        if let Some(requests) = &mut self.requests {
            requests.push((name.to_owned(), dims));
        }
        let gguf = self.gguf;
        let Some(i) = gguf.index_of(name) else { return Ok(None) };
        let info = &gguf.tensors()[i];
        match self.states[i] {
            State::Open => self.states[i] = State::Taken,
            State::Taken => {
                self.twice.push(format!("{name} is taken again"));
                return empty().map(Some);
            }
            State::Idle(reason) => {
                self.twice.push(format!("{name} is taken, but was idle: {}", self.reasons[reason]));
                return empty().map(Some);
            }
        }
        if info.dims != dims.dims() {
            let found = without_ones(&info.dims);
            self.shapes
                .push(format!("{name}, expected {dims}, found {found:?} in {}", self.shard_name(info)));
            return empty().map(Some);
        }
        let shape = [dims.slabs, dims.rows, dims.cols];
        if let Ok([slabs, rows, cols]) = part(info.ty, shape, how, shard) {
            let row_bytes = info.ty.row_bytes(cols as u64).unwrap_or(0);
            self.part_bytes += (slabs * rows) as u64 * row_bytes;
        }
        let weight = match self.hands_out {
            true => cut(info.ty, shape, gguf.data(info)?, how, shard),
            false => part(info.ty, shape, how, shard).and_then(|_| empty().map_err(|e| e.to_string())),
        };
        let file = gguf.shards()[info.shard].path();
        weight.map(Some).map_err(|why| Error::tensor(file, name, format!("{dims}: {why}")))
    }

    /// Notes that something is missing in another sense than [`Ledger::take`] finds out, and why: one half of a pair.
    pub fn missing(&mut self, name: &str, why: impl fmt::Display) {
        self.missing.push(format!("{name}: {why}"));
    }

    /// Declares a tensor idle: there, known, not used. Gives whether it is in the file; being absent is no problem.
    pub fn idle(&mut self, name: &str, reason: &str) -> bool {
        let Some(i) = self.gguf.index_of(name) else { return false };
        match self.states[i] {
            State::Open => self.states[i] = State::Idle(self.reason(reason)),
            State::Taken => self.twice.push(format!("{name} is declared idle ({reason}), but was taken")),
            State::Idle(first) => {
                self.twice
                    .push(format!("{name} is declared idle ({reason}), but was: {}", self.reasons[first]));
            }
        }
        true
    }

    /// Declares all still open tensors idle for which `which` holds, and counts them.
    pub fn idle_where(&mut self, reason: &str, mut which: impl FnMut(&TensorInfo) -> bool) -> usize {
        let idle = State::Idle(self.reason(reason));
        let mut n = 0;
        for (state, info) in self.states.iter_mut().zip(self.gguf.tensors()) {
            if *state == State::Open && which(info) {
                *state = idle;
                n += 1;
            }
        }
        n
    }

    fn reason(&mut self, reason: &str) -> usize {
        self.reasons.iter().position(|r| r == reason).unwrap_or_else(|| {
            self.reasons.push(reason.to_owned());
            self.reasons.len() - 1
        })
    }

    fn shard_name(&self, info: &TensorInfo) -> String {
        file_name(self.gguf.shards()[info.shard].path())
    }

    /// Settles the accounts.
    ///
    /// # Errors
    /// [`Error::Ledger`] if a weight was missing, of another shape or taken twice, or if a tensor was neither taken nor
    /// declared idle. The text lists the names (a bounded number of each kind), counts, and the state of every shard.
    pub fn finish(self) -> Result<LedgerReport> {
        let tensors = || self.gguf.tensors().iter().zip(&self.states);
        let unknown: Vec<String> = tensors()
            .filter(|(_, state)| **state == State::Open)
            .map(|(t, _)| {
                format!("{}, {} {:?} in {}", t.name, t.ty, without_ones(&t.dims), self.shard_name(t))
            })
            .collect();
        let report = self.report();
        let problems = [
            ("missing", &self.missing),
            ("of another shape", &self.shapes),
            ("unknown to the model", &unknown),
            ("accounted for twice", &self.twice),
        ];
        if problems.iter().all(|(_, list)| list.is_empty()) {
            return Ok(report);
        }
        Err(Error::Ledger(self.complaint(&problems, &report)))
    }

    fn complaint(&self, problems: &[(&str, &Vec<String>)], report: &LedgerReport) -> String {
        let problems: Vec<_> = problems.iter().filter(|(_, list)| !list.is_empty()).collect();
        let counts: Vec<_> = problems.iter().map(|(kind, list)| format!("{} {kind}", list.len())).collect();
        let path = self.gguf.path().display();
        let mut text = format!("{path}: the tensors do not match the model: {}", counts.join(", "));
        for (kind, list) in problems {
            list.iter().take(LISTED).for_each(|line| _ = write!(text, "\n  {kind}: {line}"));
            if let more @ 1.. = list.len().saturating_sub(LISTED) {
                _ = write!(text, "\n  {kind}: ... and {more} more");
            }
        }
        for shard in &report.shards {
            let (taken, idle) = (shard.taken.tensors, shard.idle.tensors);
            let left = shard.tensors - taken - idle;
            _ = write!(
                text,
                "\n  {}: {} tensors, {taken} taken, {idle} idle, {left} unknown",
                shard.file, shard.tensors
            );
        }
        text
    }

    fn report(&self) -> LedgerReport {
        let count = |which: &dyn Fn(&TensorInfo, State) -> bool| {
            let own = self.gguf.tensors().iter().zip(&self.states).filter(|(t, s)| which(t, **s));
            own.fold(Count::default(), |n, (t, _)| Count { tensors: n.tensors + 1, bytes: n.bytes + t.bytes })
        };
        let shards = self.gguf.shards().iter().enumerate().map(|(i, shard)| ShardCount {
            file: file_name(shard.path()),
            tensors: shard.n_tensors(),
            taken: count(&|t, s| t.shard == i && s == State::Taken),
            idle: count(&|t, s| t.shard == i && matches!(s, State::Idle(_))),
        });
        let mut names = BTreeMap::<usize, Vec<String>>::new();
        for (info, state) in self.gguf.tensors().iter().zip(&self.states) {
            if let State::Idle(reason) = state {
                names.entry(*reason).or_default().push(info.name.clone());
            }
        }
        let idle = names.into_iter().map(|(reason, names)| IdleGroup {
            reason: self.reasons[reason].clone(),
            count: count(&|_, s| s == State::Idle(reason)),
            names,
        });
        LedgerReport {
            total: count(&|_, _| true),
            taken: count(&|_, s| s == State::Taken),
            part_bytes: self.part_bytes,
            shards: shards.collect(),
            idle: idle.collect(),
            types: self.gguf.types(),
        }
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// The stand-in for a weight that cannot be had; [`Ledger::finish`] keeps it from being used.
fn empty() -> Result<Weight> {
    Weight::new(GgmlType::F32, [0, 0, 0], SharedBytes::from(Vec::new()))
}

/// Tensors and their bytes in the files (of all ranks together).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Number of tensors.
    pub tensors: usize,
    /// Bytes in the files.
    pub bytes: u64,
}

/// Settled accounts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LedgerReport {
    /// All tensors; `total = taken + idle`.
    pub total: Count,
    /// Tensors that the model took.
    pub taken: Count,
    /// Bytes of what this rank has of the tensors that were taken: of one rank, all.
    pub part_bytes: u64,
    /// Per file, in order.
    pub shards: Vec<ShardCount>,
    /// Idle tensors by reason, in the order in which the reasons came up.
    pub idle: Vec<IdleGroup>,
    /// Types of all tensors, by id.
    pub types: Vec<TypeCount>,
}

/// The accounts of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShardCount {
    /// File name.
    pub file: String,
    /// Tensors in it.
    pub tensors: usize,
    /// Taken ones.
    pub taken: Count,
    /// Idle ones.
    pub idle: Count,
}

/// Idle tensors with the same reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IdleGroup {
    /// Why they are not used.
    pub reason: String,
    /// How many.
    #[serde(flatten)]
    pub count: Count,
    /// Their names, in file order.
    pub names: Vec<String>,
}
