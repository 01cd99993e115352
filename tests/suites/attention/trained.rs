//! Attention as it is trained, in plain f64 with a key and a value for each head.

use super::*;

/// Everything in f64, from the definitions.
pub struct Trained {
    /// Of each sequence and position: the normed query, the rotated key, the indexer's key.
    qr: Vec<Vec<Vec<f64>>>,
    pe: Vec<Vec<Vec<f64>>>,
    keys: Vec<Vec<Vec<f64>>>,
    /// Keys and values of all heads.
    expanded: Vec<Vec<[Vec<f64>; 2]>>,
    q_b: Vec<f64>,
    index_q_b: Vec<f64>,
}

/// Pairs of neighbours of `x`, at a position.
fn turned(x: &[f64], position: usize) -> Vec<f64> {
    let pair = |(i, pair): (usize, &[f64])| {
        let phi = position as f64 * f64::from(BASE).powf(-2.0 * i as f64 / PE as f64);
        [pair[0] * phi.cos() - pair[1] * phi.sin(), pair[0] * phi.sin() + pair[1] * phi.cos()]
    };
    x.chunks(2).enumerate().flat_map(pair).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `w [n, k]` times `x`.
fn product(w: &[f64], x: &[f64]) -> Vec<f64> {
    w.chunks(x.len()).map(|row| dot(row, x)).collect()
}

/// How far an output may be off, in L2: a part of its own length, and what a part of the sizes of products in logits does to it.
#[derive(Debug, Clone, Copy)]
pub struct Off {
    pub of_length: f64,
    pub of_logits: f64,
}

impl From<f64> for Off {
    fn from(of_length: f64) -> Off {
        Off { of_length, of_logits: 0.0 }
    }
}

impl Off {
    /// Both at least those of another.
    pub fn max(self, other: Off) -> Off {
        Off { of_length: self.of_length.max(other.of_length), of_logits: self.of_logits.max(other.of_logits) }
    }

    /// Relative to an output.
    fn of(self, want: &[f64], slope: f64) -> f64 {
        self.of_length + self.of_logits * slope / dot(want, want).sqrt().max(f64::MIN_POSITIVE)
    }
}

impl Trained {
    /// Of a layer whose cache is of type `ty`. Of fp8 the rows are those that the cache has, since their rounding alone is more, in rare rows, than
    /// a bound that still shows mistakes; the cache's own suites say how it rounds.
    pub fn new(layer: &Layer, ty: CacheType) -> Trained {
        let wide = |x: &[f32]| x.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>();
        let rms = |x: &[f64], w: &[f32]| {
            let size = (dot(x, x) / x.len() as f64 + f64::from(EPS)).sqrt();
            x.iter().zip(w).map(|(x, w)| x / size * f64::from(*w)).collect::<Vec<f64>>()
        };
        let key_of = |token: &Token, position: usize| {
            let x = wide(&token.key);
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / x.len() as f64;
            let size = (variance + f64::from(INDEX_EPS)).sqrt();
            let weights = layer.key_norm.iter().zip(&layer.key_bias);
            let y =
                x.iter().zip(weights).map(|(x, (w, b))| (x - mean) / size * f64::from(*w) + f64::from(*b));
            let y: Vec<f64> = y.collect();
            [turned(&y[..PE], position), y[PE..].to_vec()].concat()
        };
        let each = |f: &dyn Fn(&Token, usize) -> Vec<f64>| -> Vec<Vec<Vec<f64>>> {
            let of = |tokens: &Vec<Token>| tokens.iter().enumerate().map(|(p, token)| f(token, p)).collect();
            layer.tokens.iter().map(of).collect()
        };
        let (k_b, v_b) = (wide(&values(&layer.k_b)), wide(&values(&layer.v_b)));
        let row = |token: &Token, position: usize| {
            let latent = rms(&wide(&token.kv_a[..LATENT]), &layer.kv_norm);
            let row = [latent, turned(&wide(&token.kv_a[LATENT..]), position)].concat();
            match ty {
                CacheType::Fp8 => {
                    wide(&rounded(ty, LATENT + PE, &row.iter().map(|v| *v as f32).collect::<Vec<_>>()))
                }
                _ => row,
            }
        };
        let rows = each(&row);
        let expand = |row: &Vec<f64>| {
            let latent = &row[..LATENT];
            // Value i of a head's key: what column i of its k_b has of the latent.
            let key = |of_head: &[f64]| {
                let mut key = vec![0.0; NOPE];
                for (row, latent) in of_head.chunks(NOPE).zip(latent) {
                    key.iter_mut().zip(row).for_each(|(k, w)| *k += w * latent);
                }
                key
            };
            [k_b.chunks(LATENT * NOPE).flat_map(key).collect(), product(&v_b, latent)]
        };
        Trained {
            expanded: rows.iter().map(|rows| rows.iter().map(expand).collect()).collect(),
            qr: each(&|token, _| rms(&wide(&token.q_a), &layer.q_norm)),
            pe: rows.iter().map(|rows| rows.iter().map(|row| row[LATENT..].to_vec()).collect()).collect(),
            keys: each(&key_of),
            q_b: wide(&values(&layer.q_b)),
            index_q_b: wide(&values(&layer.index_q_b)),
        }
    }

    /// Scores of all keys that a token sees, and the largest sum of what heads have in one, by magnitude.
    fn scores(&self, layer: &Layer, sequence: usize, position: usize) -> (Vec<f64>, f64) {
        let q = product(&self.index_q_b, &self.qr[sequence][position]);
        let weights = &layer.tokens[sequence][position].weights;
        let mut size = 0f64;
        let score = |key: &Vec<f64>| {
            let (mut score, mut magnitude) = (0.0, 0.0);
            for (q, w) in q.chunks(KEY).zip(weights) {
                let q = [turned(&q[..PE], position), q[PE..].to_vec()].concat();
                let dot = f64::from(INDEX_SCALE) * f64::from(*w) * dot(&q, key);
                magnitude += dot.abs();
                score += if dot * f64::from(*w) > 0.0 { dot } else { 0.0 };
            }
            size = size.max(magnitude);
            score
        };
        (self.keys[sequence][..=position].iter().map(score).collect(), size)
    }

    /// The output of a token that attends `keys`.
    pub fn attention(&self, sequence: usize, position: usize, keys: &[u32]) -> Vec<f64> {
        self.attention_and_slopes(sequence, position, keys).0
    }

    /// The same, and for each head by how much its output may move, in L2, for each part of the sizes of the products in logits that these are off
    /// by: where keys with other values are nearly as good, much more than the output is long.
    fn attention_and_slopes(&self, sequence: usize, position: usize, keys: &[u32]) -> (Vec<f64>, Vec<f64>) {
        let q = product(&self.q_b, &self.qr[sequence][position]);
        let length = |x: &[f64]| dot(x, x).sqrt();
        let mut slopes = Vec::new();
        let head = |(h, q): (usize, &[f64])| {
            let (nope, pe) = (&q[..NOPE], turned(&q[NOPE..], position));
            let logit = |key: &u32| {
                let expanded = &self.expanded[sequence][*key as usize][0][h * NOPE..][..NOPE];
                (dot(nope, expanded) + dot(&pe, &self.pe[sequence][*key as usize])) * f64::from(SCALE)
            };
            let logits: Vec<f64> = keys.iter().map(logit).collect();
            let most = logits.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
            let weights: Vec<f64> = logits.iter().map(|l| (l - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut out = vec![0.0; VALUE];
            for (key, weight) in keys.iter().zip(&weights) {
                let value = &self.expanded[sequence][*key as usize][1][h * VALUE..][..VALUE];
                out.iter_mut().zip(value).for_each(|(o, v)| *o += weight / sum * v);
            }
            // A logit that grows by x moves the output by `x p (value - output)`.
            let mut of_head = 0.0;
            for (key, weight) in keys.iter().zip(&weights) {
                let [expanded, values] = &self.expanded[sequence][*key as usize];
                let size = length(nope) * length(&expanded[h * NOPE..][..NOPE])
                    + length(&pe) * length(&self.pe[sequence][*key as usize]);
                let away: Vec<f64> =
                    values[h * VALUE..][..VALUE].iter().zip(&out).map(|(v, o)| v - o).collect();
                of_head += f64::from(SCALE) * size * weight / sum * length(&away);
            }
            slopes.push(of_head);
            out
        };
        let out = q.chunks(NOPE + PE).enumerate().flat_map(head).collect();
        (out, slopes)
    }

    /// Rows are attention over keys that are ascending, visible and all or the best `TOP_K`, within `slack` of what heads have in the
    /// largest scores.
    pub fn check(&self, layer: &Layer, rows: &[Row], slack: f64, bound: impl Into<Off>) -> TestCaseResult {
        for Row { sequence, position, attended, .. } in rows {
            let visible = position + 1;
            prop_assert!(attended.windows(2).all(|pair| pair[0] < pair[1]), "{attended:?}");
            prop_assert_eq!(attended.len(), visible.min(TOP_K), "of {} keys", visible);
            prop_assert!(
                attended.iter().all(|key| (*key as usize) < visible),
                "{:?} at {}",
                attended,
                position
            );
            if visible > TOP_K {
                let (scores, size) = self.scores(layer, *sequence, *position);
                let is_in = |key: &usize| attended.contains(&(*key as u32));
                let (within, without): (Vec<usize>, Vec<usize>) = (0..visible).partition(is_in);
                let least = within.iter().fold(f64::INFINITY, |a, key| a.min(scores[*key]));
                let left = without.iter().fold(f64::NEG_INFINITY, |a, key| a.max(scores[*key]));
                prop_assert!(left <= least + slack * size, "{} left, {} taken, of {}", left, least, size);
            }
        }
        self.follows(rows, bound)
    }

    /// Rows are attention over the keys that they say, if any.
    pub fn follows(&self, rows: &[Row], bound: impl Into<Off>) -> TestCaseResult {
        let bound = bound.into();
        for Row { sequence, position, out, attended } in rows {
            let (want, slopes) = self.attention_and_slopes(*sequence, *position, attended);
            let bound = bound.of(&want, dot(&slopes, &slopes).sqrt());
            relative(&format!("sequence {sequence}, position {position}"), out, &want, bound)?;
        }
        Ok(())
    }

    /// And so are all of them together.
    pub fn follow_together(&self, rows: &[Row], bound: f64) -> TestCaseResult {
        let of = |row: &Row| self.attention(row.sequence, row.position, &row.attended);
        let got = rows.iter().flat_map(|row| row.out.clone()).collect::<Vec<f32>>();
        relative("all rows", &got, &rows.iter().flat_map(of).collect::<Vec<f64>>(), bound)
    }

    /// And so is each of their heads: among many, one that is wrong is little of a row.
    pub fn each_head_follows(&self, rows: &[Row], bound: impl Into<Off>) -> TestCaseResult {
        let bound = bound.into();
        for Row { sequence, position, out, attended } in rows {
            let (want, slopes) = self.attention_and_slopes(*sequence, *position, attended);
            for (h, (out, want)) in out.chunks(VALUE).zip(want.chunks(VALUE)).enumerate() {
                let bound = bound.of(want, slopes[h]);
                relative(&format!("sequence {sequence}, position {position}, head {h}"), out, want, bound)?;
            }
        }
        Ok(())
    }
}
