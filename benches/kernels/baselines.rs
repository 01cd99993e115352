//! What other programs need for the same work: `baselines/*.csv`. A file begins with `# gpu:` and `# what:`, then tells how it was
//! measured, then has a row for each case.

/// One file.
pub struct Baseline {
    /// The GPU it was measured on, as the driver calls it.
    pub gpu: &'static str,
    /// The program.
    pub what: &'static str,
    /// Cases and microseconds.
    pub rows: Vec<(Case, f64)>,
}

/// A case of a table: `m` tokens by matrices of `n` rows and `k` columns.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Case {
    /// ggml's name of the operation.
    pub op: &'static str,
    /// What this crate calls the type of the weights.
    #[serde(rename = "type")]
    pub ty: &'static str,
    pub k: usize,
    pub n: usize,
    pub m: usize,
}

impl Baseline {
    pub fn llama_cpp() -> Self {
        Baseline::parse(include_str!("baselines/llamacpp-h200.csv")).unwrap()
    }

    pub fn parse(text: &'static str) -> Result<Self, String> {
        let header = |key: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(key));
            found.map(str::trim).ok_or_else(|| format!("no line `{key}`"))
        };
        let mut table = text.lines().filter(|line| !line.starts_with('#'));
        if table.next() != Some("op,type,k,n,m,us") {
            return Err("the first row must be op,type,k,n,m,us".into());
        }
        let rows: Result<_, String> =
            table.map(|line| row(line).ok_or_else(|| format!("no row: {line}"))).collect();
        Ok(Baseline { gpu: header("# gpu:")?, what: header("# what:")?, rows: rows? })
    }

    /// Microseconds, if the case was measured.
    pub fn us(&self, case: &Case) -> Option<f64> {
        self.rows.iter().find(|(measured, _)| measured == case).map(|(_, us)| *us)
    }
}

fn row(line: &'static str) -> Option<(Case, f64)> {
    let fields: Vec<_> = line.split(',').collect();
    let [op, ty, k, n, m, us] = fields[..] else { return None };
    let case = Case { op, ty, k: k.parse().ok()?, n: n.parse().ok()?, m: m.parse().ok()? };
    Some((case, us.parse().ok().filter(|us| *us > 0.0)?))
}
