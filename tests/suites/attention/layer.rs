//! A layer on a device: its weights, the tokens of its sequences, its caches, and the operations in the order in which a model calls them.

use super::*;

/// Heads of attention unless a test says otherwise, heads of the indexer, the widths of their parts, and how many keys are selected.
pub const HEADS: usize = 2;
pub const INDEX_HEADS: usize = 3;
pub const RANK: usize = 64;
pub const LATENT: usize = 512;
pub const PE: usize = 64;
pub const NOPE: usize = 192;
pub const VALUE: usize = 256;
pub const KEY: usize = 128;
pub const TOP_K: usize = 24;
pub const BASE: f32 = 1e6;
pub const EPS: f32 = 1e-5;
pub const INDEX_EPS: f32 = 1e-6;
pub const INDEX_SCALE: f32 = 0.051; // about 1 / sqrt(3 * 128)
pub const SCALE: f32 = 1.0 / 16.0;

/// What the first projections of a token gave.
#[derive(Clone)]
pub struct Token {
    pub q_a: Vec<f32>,
    pub kv_a: Vec<f32>,
    pub key: Vec<f32>,
    pub weights: Vec<f32>,
}

/// A layer's weights, and the tokens of some sequences.
#[derive(Clone)]
pub struct Layer {
    pub heads: usize,
    pub q_norm: Vec<f32>,
    pub kv_norm: Vec<f32>,
    pub key_norm: Vec<f32>,
    pub key_bias: Vec<f32>,
    pub q_b: Weight,
    pub index_q_b: Weight,
    pub k_b: Weight,
    pub v_b: Weight,
    pub tokens: Vec<Vec<Token>>,
}

pub fn tokens(n: usize, rng: &mut Rng) -> Vec<Token> {
    let mut token = || Token {
        q_a: rng.normals(RANK),
        kv_a: rng.normals(LATENT + PE),
        key: rng.normals(KEY).iter().map(|v| v + 0.5).collect(),
        weights: rng.normals(INDEX_HEADS),
    };
    (0..n).map(|_| token()).collect()
}

impl Layer {
    pub fn random(lens: &[usize], rng: &mut Rng) -> Layer {
        Self::with_heads(HEADS, lens, rng)
    }

    pub fn with_heads(heads: usize, lens: &[usize], rng: &mut Rng) -> Layer {
        // Spread widely, so that a norm left out or taken twice shows.
        let mut spread = |n: usize| rng.normals(n).iter().map(|v| (0.7 * v).exp()).collect::<Vec<f32>>();
        let (q_norm, kv_norm, key_norm) = (spread(RANK), spread(LATENT), spread(KEY));
        let mut weight = |heads: usize, n: usize, k: usize, size: f32| {
            let values: Vec<f32> = rng.normals(heads * n * k).iter().map(|v| v * size).collect();
            Weight::quantize(GgmlType::Q8_0, [heads, n, k], &values).unwrap()
        };
        let q_b = weight(1, heads * (NOPE + PE), RANK, 0.2);
        let index_q_b = weight(1, INDEX_HEADS * KEY, RANK, 0.1);
        let (k_b, v_b) = (weight(heads, LATENT, NOPE, 0.03), weight(heads, VALUE, LATENT, 0.04));
        let key_bias = rng.normals(KEY);
        let tokens = lens.iter().map(|n| tokens(*n, rng)).collect();
        Layer { heads, q_norm, kv_norm, key_norm, key_bias, q_b, index_q_b, k_b, v_b, tokens }
    }
}

/// Tokens of a batch: `(sequence, first, end)`.
pub type Part = (usize, usize, usize);

/// Which keys rows attend.
#[derive(Debug, Clone, Copy)]
pub enum Keys<'s> {
    /// All that are visible if none of the rows sees more than `TOP_K`, else what the layer's own indexer selects.
    Best,
    /// All that are visible. The layer has no indexer, here as below.
    All,
    /// Those that somebody else selected, as far as they are visible.
    These(&'s Selection),
}

/// A layer on a device, with its caches.
pub struct OnDevice<'a> {
    pub layer: &'a Layer,
    pub latent: PagedRows,
    pub keys: PagedRows,
    pub pages: Vec<Vec<u32>>,
    /// What the indexer selected last.
    pub selection: Selection,
    /// Normed queries go to their projections as tiles; only where matrices are in tiles.
    pub in_tiles: bool,
    /// `k_b` and `v_b` in blocks, if rows that attend all that they see do so in expanded form.
    pub expanding: Option<[Matrix; 2]>,
    device: &'a Device,
    precision: Precision,
    matrices: [Matrix; 4],
}

/// What came of a row: its sequence and position, its output, and the keys that it attended.
#[derive(Debug, Clone)]
pub struct Row {
    pub sequence: usize,
    pub position: usize,
    pub out: Vec<f32>,
    pub attended: Vec<u32>,
}

/// Rows whose keys are in the caches.
struct Written {
    rows: RaggedRows,
    angles: Tensor,
    /// Normed queries, and in place of them tiles, if they go on in these.
    qr: Tensor,
    tiles: Option<QuantizedTiles>,
}

impl<'a> OnDevice<'a> {
    /// Pages of the sequences lie among each other's; caches hold NaN until they are written.
    pub fn new(layer: &'a Layer, device: &'a Device, ty: CacheType, precision: Precision) -> Result<Self> {
        let counts: Vec<usize> = layer.tokens.iter().map(|t| t.len().div_ceil(PAGE_ROWS) + 1).collect();
        let all = counts.iter().sum::<usize>();
        let mut free: Vec<u32> = (0..all as u32).collect();
        free.sort_by_key(|page| page.wrapping_mul(0x9e37_79b9));
        let pages = counts.iter().map(|n| free.split_off(free.len() - n)).collect();
        let cache = |width: usize, ty: CacheType| {
            PagedRows::from_values(device, all, width, ty, &vec![f32::NAN; all * PAGE_ROWS * width])
        };
        let Layer { q_b, index_q_b, k_b, v_b, .. } = layer;
        let tiles = precision == Precision::Fast && device.gpu().is_ok();
        let on_device = |w: &Weight| match tiles {
            true => Matrix::for_fast_linear(device, w.clone()).unwrap(),
            false => matrix(device, w),
        };
        Ok(OnDevice {
            layer,
            latent: cache(LATENT + PE, ty)?,
            keys: cache(KEY, ty.of_keys())?,
            pages,
            selection: Selection::new(device, TOP_K)?,
            in_tiles: false,
            expanding: None,
            device,
            precision,
            matrices: [q_b, index_q_b, k_b, v_b].map(on_device),
        })
    }

    /// Queries in tiles, where there are any.
    pub fn with_tiles(mut self, wanted: bool) -> Self {
        self.in_tiles = wanted && self.matrices.iter().all(|w| w.is_tiled());
        self
    }

    /// Dense steps in expanded form.
    pub fn expanded(mut self) -> Self {
        self.expanding = Some([&self.layer.k_b, &self.layer.v_b].map(|w| matrix(self.device, w)));
        self
    }

    /// A value of each token for each column of a tensor.
    fn of(&self, parts: &[Part], what: fn(&Token) -> &[f32]) -> Tensor {
        let tokens = parts.iter().flat_map(|(i, first, end)| &self.layer.tokens[*i][*first..*end]);
        let values: Vec<&[f32]> = tokens.map(what).collect();
        tensor(self.device, values[0].len(), &values.concat())
    }

    /// What becomes of the first projections.
    fn write(&mut self, parts: &[Part], indexed: bool) -> Result<Written> {
        let (d, layer) = (self.device, self.layer);
        let mut rows = RaggedRows::default();
        for (sequence, first, end) in parts {
            rows.push(*first, end - first, &self.pages[*sequence])?;
        }
        rows.upload(d)?;
        let m = rows.len();
        let one = |values: &[f32]| tensor(d, values.len(), values);
        let (mut angles, mut qr) = (poisoned(d, m, PE), poisoned(d, m, RANK));
        rope_angles(BASE, &rows, &mut angles)?;
        let mut tiles = self.in_tiles.then(|| QuantizedTiles::new(d, m, RANK)).transpose()?;
        let input = PostA {
            q_a: &self.of(parts, |t| &t.q_a),
            q_norm: &one(&layer.q_norm),
            kv_a: &self.of(parts, |t| &t.kv_a),
            kv_norm: &one(&layer.kv_norm),
            eps: EPS,
            angles: &angles,
            rows: &rows,
        };
        let (x, norm, bias) = (self.of(parts, |t| &t.key), one(&layer.key_norm), one(&layer.key_bias));
        let index = indexed.then_some(IndexKeys {
            x: &x,
            norm: &norm,
            bias: &bias,
            eps: INDEX_EPS,
            cache: &mut self.keys,
        });
        let y = tiles.is_none().then_some(&mut qr);
        post_a(&input, y, tiles.as_mut(), &mut self.latent, index)?;
        Ok(Written { rows, angles, qr, tiles })
    }

    /// Tokens of which only the keys are wanted, those of the indexer among them or not.
    pub fn fill(&mut self, parts: &[Part], indexed: bool) -> Result<()> {
        self.write(parts, indexed).map(drop)
    }

    /// The next tokens of some sequences, in one batch.
    pub fn step(&mut self, parts: &[Part]) -> Result<Vec<Row>> {
        self.attend(parts, Keys::Best)
    }

    /// The same with these keys.
    pub fn attend(&mut self, parts: &[Part], keys: Keys<'_>) -> Result<Vec<Row>> {
        let (d, n, by) = (self.device, self.layer.heads, self.precision);
        let own = matches!(keys, Keys::Best);
        let Written { rows, angles, qr, mut tiles } = self.write(parts, own)?;
        let m = rows.len();
        let dense = matches!(keys, Keys::All) || own && rows.max_visible() <= TOP_K;
        let expanding = self.expanding.as_ref().filter(|_| dense);

        let [q_b, index_q_b, k_b, v_b] = &self.matrices;
        let heads = |n, stride, offset, len| Heads { n, stride, offset, len };
        let (whole, absorbed) = (NOPE + PE, LATENT + PE);
        let mut q = poisoned(d, m, n * whole);
        let mut q_index = poisoned(d, m, INDEX_HEADS * KEY);
        let mut q_abs = poisoned(d, m, n * absorbed);
        let to = expanding.is_none().then_some((&mut q_abs, heads(n, absorbed, LATENT, PE)));
        let mut rotated = vec![Rotated { matrix: 0, heads: heads(n, whole, NOPE, PE), angles: &angles, to }];
        let (mut ws, mut ys) = (vec![q_b], vec![&mut q]);
        if own {
            rotated.push(Rotated {
                matrix: 1,
                heads: heads(INDEX_HEADS, KEY, 0, PE),
                angles: &angles,
                to: None,
            });
            ws.push(index_q_b);
            ys.push(&mut q_index);
        }
        match &mut tiles {
            Some(tiles) => {
                let options = TiledOptions { rotated, ..TiledOptions::default() };
                linear_tiled_with(options, &ws, tiles, &mut ys)?;
            }
            None => linear_rotated(&ws, &qr, &mut ys, &mut rotated, by)?,
        }

        if own && !dense {
            let (w, scratch) = (self.of(parts, |t| &t.weights), &mut IndexerScratch::new(d)?);
            self.selection = Selection::new(d, TOP_K)?;
            let out = &mut self.selection;
            indexer_select(&q_index, &w, &self.keys, &rows, INDEX_SCALE, scratch, out, by)?;
        }
        let selected = match keys {
            Keys::These(selection) => Some(selection),
            _ => (!dense).then_some(&self.selection),
        };
        let config = MlaConfig { n_heads: n, kv_lora_rank: LATENT, qk_rope_head_dim: PE, sm_scale: SCALE };
        let mut out = poisoned(d, m, n * VALUE);
        match expanding {
            Some([k_b, v_b]) => mla_prefill(&q, &self.latent, &rows, k_b, v_b, &config, &mut out)?,
            None => {
                let (from, to) = (heads(n, whole, 0, NOPE), heads(n, absorbed, 0, LATENT));
                head_linear(k_b, &q, from, &mut q_abs, to, by)?;
                let mut u = poisoned(d, m, n * LATENT);
                mla_attention(&q_abs, &self.latent, &rows, selected, &config, &mut u)?;
                let (from, to) = (heads(n, LATENT, 0, LATENT), heads(n, VALUE, 0, VALUE));
                head_linear(v_b, &u, from, &mut out, to, by)?;
            }
        }

        let out = host(&out);
        let selected = selected.map(|s| Ok((s.indices.to_vec()?, s.lens.to_vec()?, s.k())));
        let selected = selected.transpose()?;
        let places = parts.iter().flat_map(|(i, first, end)| (*first..*end).map(|p| (*i, p)));
        let row = |(t, (sequence, position)): (usize, (usize, usize))| {
            let is_visible = |key: &u32| *key as usize <= position || own;
            Row {
                sequence,
                position,
                out: out[t * n * VALUE..][..n * VALUE].to_vec(),
                attended: match &selected {
                    Some((indices, lens, k)) => {
                        indices[t * k..][..lens[t] as usize].iter().copied().filter(is_visible).collect()
                    }
                    None => (0..=position as u32).collect(),
                },
            }
        };
        Ok(places.enumerate().map(row).collect())
    }
}
