//! What is in a model file, or what GPUs there are: `cargo run --release --example inspect`.

mod common;

use std::fmt::Write;
use std::process::ExitCode;

use clap::Parser;
use glm5::cuda::Environment;
use glm5::gguf::{Array, Gguf, Value};
use glm5::model::LoadReport;
use glm5::text::Tokenizer;
use serde_json::json;

use common::args::FileArgs;
use common::failure::{self, EXIT_CODES, Result};

/// Shows a GGUF file or a whole split set: files, metadata, tensors, and the weight ledger of the model that it holds.
///
/// With --gpus the machine in place of a file: driver, GPUs, and which kernels of this program run on them.
///
/// Only headers are read. A sound file that holds no model which this crate runs is shown too, with the reason; that is no
/// failure.
#[derive(Debug, Parser)]
#[command(name = "inspect", version, after_help = format!(
    "Example: the types of all tensors of a set, as JSON:\n  \
     cargo run --release --example inspect -- --model GLM-5-Q4_K_M-00001-of-00010.gguf --json\n\n{EXIT_CODES}"
))]
struct Args {
    #[command(flatten)]
    file: FileArgs,

    /// Show driver, GPUs and kernels, or why no GPU can be used; no file.
    #[arg(long, conflicts_with_all = ["model", "full"])]
    gpus: bool,

    /// Show metadata arrays and texts in full, and name every idle tensor.
    #[arg(long)]
    full: bool,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    failure::main(run)
}

fn run(args: Args) -> Result<()> {
    if args.gpus {
        let found = Environment::look();
        match args.json {
            true => common::show_json(&json!(found))?,
            false => common::show(&found.to_string())?,
        }
        return Ok(());
    }
    let gguf = Gguf::open(args.file.path()?)?;
    let report = runnable(&gguf);
    match args.json {
        true => common::show_json(&to_json(&gguf, &report, args.full))?,
        false => common::show(&to_text(&gguf, &report, args.full))?,
    }
    Ok(())
}

/// What a model makes of the file, or why it cannot be run. Tensor data is not touched.
fn runnable(gguf: &Gguf) -> glm5::Result<LoadReport> {
    let report = LoadReport::new(gguf)?;
    Tokenizer::from_gguf(gguf)?;
    Ok(report)
}

/// Elements of an array that JSON shows unless everything is wanted.
const SHOWN: usize = 6;

fn to_json(gguf: &Gguf, report: &glm5::Result<LoadReport>, full: bool) -> serde_json::Value {
    let files = gguf.shards().iter().map(|s| {
        json!({
            "path": s.path(), "version": s.version(), "alignment": s.alignment(), "bytes": s.size(),
            "tensors": s.n_tensors(),
        })
    });
    let value = |value: &Value| match value {
        Value::Array(a) if !full && a.len() > SHOWN => {
            let first: Vec<Value> = (0..SHOWN).map_while(|i| a.get(i)).collect();
            json!({"array_of": a.element_type().name(), "length": a.len(), "first": first})
        }
        other => json!(other),
    };
    let metadata = gguf.metadata().iter().map(|(k, v)| (k.to_owned(), value(v)));
    json!({
        "files": files.collect::<Vec<_>>(),
        "metadata": metadata.collect::<serde_json::Map<_, _>>(),
        "tensors": gguf.tensors(),
        "types": gguf.types(),
        "runnable": report.is_ok(),
        "not_runnable": report.as_ref().err().map(ToString::to_string),
        "load_report": report.as_ref().ok(),
    })
}

fn to_text(gguf: &Gguf, report: &glm5::Result<LoadReport>, full: bool) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    _ = write_text(&mut out, gguf, report, full);
    out
}

fn write_text(
    out: &mut String,
    gguf: &Gguf,
    report: &glm5::Result<LoadReport>,
    full: bool,
) -> std::fmt::Result {
    for (i, s) in gguf.shards().iter().enumerate() {
        let (path, version, alignment) = (s.path().display(), s.version(), s.alignment());
        writeln!(
            out,
            "file {i}: {path}, version {version}, {} bytes, {} tensors aligned to {alignment}",
            s.size(),
            s.n_tensors()
        )?;
    }

    writeln!(out, "\n{} keys", gguf.metadata().len())?;
    for (key, value) in gguf.metadata().iter() {
        let shown = if full { json!(value).to_string() } else { value.to_string() };
        writeln!(out, "  {:42} {:8} {shown}", escaped(key), value_type(value))?;
    }

    writeln!(out, "\n{} tensors, {} bytes; ne0 first", gguf.tensors().len(), gguf.tensor_bytes())?;
    let width = gguf.tensors().iter().map(|t| t.name.len()).max().unwrap_or(0).max(4);
    if !gguf.tensors().is_empty() {
        writeln!(
            out,
            "  {:width$} {:8} {:24} {:>4} {:>14} {:>14}",
            "name", "type", "shape", "file", "offset", "bytes"
        )?;
    }
    for t in gguf.tensors() {
        let (name, ty, ne) = (escaped(&t.name), t.ty.name(), format!("{:?}", t.ne()));
        writeln!(out, "  {name:width$} {ty:8} {ne:24} {:4} {:14} {:14}", t.shard, t.offset, t.bytes)?;
    }

    match report {
        Err(why) => writeln!(out, "\nnot runnable: {why}"),
        Ok(report) => {
            writeln!(out, "\n{report}\n\nledger")?;
            for s in &report.ledger.shards {
                let (taken, idle) = (s.taken, s.idle);
                writeln!(
                    out,
                    "  {}: {} tensors, {} used ({} bytes), {} idle ({} bytes)",
                    s.file, s.tensors, taken.tensors, taken.bytes, idle.tensors, idle.bytes
                )?;
            }
            for name in report.ledger.idle.iter().flat_map(|g| &g.names).filter(|_| full) {
                writeln!(out, "  idle: {name}")?;
            }
            Ok(())
        }
    }
}

/// Names from strangers must not drive the terminal.
fn escaped(name: &str) -> String {
    name.escape_debug().to_string()
}

/// `string`, `u32`, `f32[]`.
fn value_type(value: &Value) -> String {
    match value {
        Value::Array(array) => format!("{}[]", Array::element_type(array).name()),
        scalar => scalar.value_type().name().to_owned(),
    }
}
