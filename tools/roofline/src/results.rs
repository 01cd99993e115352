//! Results of the benches, as `benches/kernels/report.rs` writes them. Only what is shown is read.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// A run.
pub struct Results {
    pub head: Head,
    /// Those of linear layers in tiles.
    pub rows: Vec<Row>,
    /// The shapes to show.
    pub shapes: Vec<Shape>,
}

#[derive(Deserialize)]
pub struct Head {
    pub commit: Option<String>,
    /// Seconds since 1970.
    pub time: u64,
    pub roofs: Roofs,
    pub baseline: Baseline,
}

/// Bytes or operations per second.
#[derive(Deserialize)]
pub struct Roofs {
    pub gpu: String,
    pub read: f64,
    pub f16: f64,
    pub s8: f64,
}

#[derive(Deserialize)]
pub struct Baseline {
    pub what: String,
}

/// Any line but the first.
#[derive(Deserialize)]
struct Line {
    name: String,
    case: Option<Case>,
    us: f64,
    bytes: f64,
    gb_per_s: f64,
    ops: Option<f64>,
    tops: Option<f64>,
    roof: Option<String>,
    share: Option<f64>,
    ratio: Option<f64>,
}

#[derive(Deserialize, PartialEq)]
pub struct Case {
    op: String,
    #[serde(rename = "type")]
    pub ty: String,
    k: usize,
    n: usize,
    pub m: usize,
}

/// A linear layer in tiles.
pub struct Row {
    pub case: Case,
    pub us: f64,
    pub bytes: f64,
    pub gb_per_s: f64,
    pub ops: f64,
    pub tops: f64,
    pub roof: Roof,
    /// Of that roof.
    pub share: f64,
    /// Times as fast as the baseline on the same GPU.
    pub ratio: Option<f64>,
}

/// What binds a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Roof {
    Memory,
    Int8,
    F16,
}

/// Inputs and outputs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    pub k: usize,
    pub n: usize,
}

/// Of the goals: the widest layers, and the output.
const GOALS: [Shape; 3] =
    [Shape { k: 6144, n: 24_576 }, Shape { k: 16_384, n: 6144 }, Shape { k: 6144, n: 154_880 }];

impl Row {
    pub fn shape(&self) -> Shape {
        Shape { k: self.case.k, n: self.case.n }
    }
}

impl Results {
    /// From lines of JSON.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().enumerate();
        let (_, first) = lines.next().ok_or("is empty")?;
        let head: Head = serde_json::from_str(first).map_err(|e| format!("line 1: {e}"))?;
        let Roofs { read, f16, s8, .. } = head.roofs;
        if ![read, f16, s8].iter().all(|rate| rate.is_finite() && *rate > 0.0) {
            return Err("line 1: roofs must be greater than zero".into());
        }
        let mut rows: Vec<Row> = Vec::new();
        for (i, line) in lines {
            let at = |why: String| format!("line {}: {why}", i + 1);
            let line: Line = serde_json::from_str(line).map_err(|e| at(e.to_string()))?;
            let name = line.name.clone();
            let Some(row) = linear(line).map_err(&at)? else { continue };
            if rows.iter().any(|other| other.case == row.case) {
                return Err(at(format!("a second row of the case of {name}")));
            }
            rows.push(row);
        }
        Ok(Results { head, rows, shapes: GOALS.into() })
    }

    /// The types that shown rows have, in the order in which they came.
    pub fn types(&self) -> Vec<&str> {
        let mut types = Vec::new();
        for row in self.rows.iter().filter(|row| self.shapes.contains(&row.shape())) {
            if !types.contains(&row.case.ty.as_str()) {
                types.push(row.case.ty.as_str());
            }
        }
        types
    }
}

/// The row, if it is that of a linear layer in tiles: `linear` may have the same case in f32 arithmetic.
fn linear(line: Line) -> Result<Option<Row>, String> {
    let Line { name, us, bytes, gb_per_s, ratio, .. } = line;
    let in_tiles = name.starts_with("linear_tiled/");
    let Some(case) = line.case.filter(|case| in_tiles && case.op == "MUL_MAT") else { return Ok(None) };
    let (Some(ops), Some(tops), Some(roof), Some(share)) = (line.ops, line.tops, line.roof, line.share)
    else {
        return Err(format!("{name} has no operations or no roof"));
    };
    if ![us, bytes, gb_per_s, ops, tops].iter().all(|v| *v > 0.0) {
        return Err(format!("{name}: times and work must be greater than zero"));
    }
    let roof = match roof.as_str() {
        "read" | "copy" => Roof::Memory,
        "s8" => Roof::Int8,
        "f16" => Roof::F16,
        _ => return Err(format!("{name}: the roof {roof} is not known")),
    };
    Ok(Some(Row { case, us, bytes, gb_per_s, ops, tops, roof, share, ratio }))
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.k, self.n)
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let numbers = s.split_once('x').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        let (k, n) = numbers.ok_or("not two numbers with an x between, such as 6144x24576")?;
        Ok(Shape { k, n })
    }
}
