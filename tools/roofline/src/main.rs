//! `glm5-roofline`: the results of a bench run as tables for the README and as a roofline plot.

mod plot;
mod results;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use results::{Results, Shape};

/// Where the README holds what this program writes.
const MARKS: [&str; 2] = ["<!-- bench:begin -->", "<!-- bench:end -->"];

/// Makes tables and a roofline plot of a run of the kernel benches.
///
/// The input is what `GLM5_BENCH_OUT=results.jsonl cargo bench --features cuda --bench kernels` leaves, or `run-benches` of a
/// bundle. Without --readme the tables go to the standard output.
#[derive(Parser)]
struct Args {
    /// Lines of JSON: GPU and roofs, then the rows
    results: PathBuf,
    /// File whose lines between `<!-- bench:begin -->` and `<!-- bench:end -->` become the tables
    #[arg(long, value_name = "FILE")]
    readme: Option<PathBuf>,
    /// File to write the plot to; the tables then show it
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// What was measured, if the results do not say so or are to say otherwise
    #[arg(long)]
    commit: Option<String>,
    /// Inputs and outputs of a linear layer to show, such as 6144x24576; may be given several times [default: those of the
    /// goals: 6144x24576, 16384x6144, 6144x154880]
    #[arg(long = "shape", value_name = "KxN")]
    shapes: Vec<Shape>,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("glm5-roofline: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), String> {
    let named = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    let text = fs::read_to_string(&args.results).map_err(|e| named(&args.results, e))?;
    let mut results = Results::parse(&text).map_err(|e| format!("{}: {e}", args.results.display()))?;
    results.head.commit = args.commit.or(results.head.commit);
    if !args.shapes.is_empty() {
        results.shapes = args.shapes;
    }
    let rows = results.rows.iter().filter(|row| results.shapes.contains(&row.shape())).count();
    if rows == 0 {
        let wanted: Vec<_> = results.shapes.iter().map(Shape::to_string).collect();
        return Err(format!("{}: no linear layer of {}", args.results.display(), wanted.join(", ")));
    }

    // The README is read before anything is written: a wrong one changes nothing.
    let readme = args.readme.as_deref().map(|path| -> Result<_, String> {
        let old = fs::read_to_string(path).map_err(|e| named(path, e))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let image = args.svg.as_deref().map(|svg| svg.strip_prefix(folder).unwrap_or(svg));
        let new = between(&old, &table::section(&results, image));
        Ok((path, new.ok_or_else(|| format!("{}: no {} before one {}", path.display(), MARKS[0], MARKS[1]))?))
    });
    let readme = readme.transpose()?;
    if let Some(svg) = &args.svg {
        fs::write(svg, plot::svg(&results)).map_err(|e| named(svg, e))?;
    }
    match readme {
        Some((path, new)) => fs::write(path, new).map_err(|e| named(path, e)),
        None => {
            print!("{}", table::section(&results, args.svg.as_deref()));
            Ok(())
        }
    }
}

/// `text` with `section` between the marks, if it has them.
fn between(text: &str, section: &str) -> Option<String> {
    let (before, rest) = text.split_once(MARKS[0])?;
    let (_, after) = rest.split_once(MARKS[1])?;
    let once = [before, after].iter().all(|part| MARKS.iter().all(|mark| !part.contains(mark)));
    once.then(|| format!("{before}{}\n{section}{}{after}", MARKS[0], MARKS[1]))
}
