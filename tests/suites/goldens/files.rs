//! The small models and the golden values that come with them.

use std::path::PathBuf;

use safetensors::SafeTensors;
use serde_json::Value;

/// Where the models are: the folder that `GLM5_MODELS` names, for tests that run elsewhere than they were built, or that of the source tree.
pub fn path(file: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os("GLM5_MODELS") {
        return PathBuf::from(folder).join(file);
    }
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let found = here.ancestors().map(|folder| folder.join("models")).find(|models| models.is_dir());
    found.expect("the folder models").join(file)
}

/// What an independent implementation computed for one model.
pub struct Goldens {
    bytes: Vec<u8>,
}

impl Goldens {
    pub fn open(model: &str) -> Self {
        let path = path(&format!("goldens/{model}.safetensors"));
        Goldens { bytes: std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())) }
    }

    pub fn get<T: bytemuck::AnyBitPattern>(&self, name: &str) -> Option<(Vec<usize>, Vec<T>)> {
        let all = SafeTensors::deserialize(&self.bytes).unwrap();
        let t = all.tensor(name).ok()?;
        Some((t.shape().to_vec(), t.data().chunks(4).map(bytemuck::pod_read_unaligned).collect()))
    }

    pub fn ints(&self, name: &str) -> Vec<i32> {
        self.get(name).unwrap_or_else(|| panic!("no golden {name}")).1
    }

    pub fn tokens(&self, name: &str) -> Vec<u32> {
        self.ints(name).into_iter().map(|t| t as u32).collect()
    }

    /// Rows of an f32 entry.
    pub fn rows(&self, name: &str) -> Vec<Vec<f32>> {
        self.get_rows(name).unwrap_or_else(|| panic!("no golden {name}"))
    }

    pub fn get_rows(&self, name: &str) -> Option<Vec<Vec<f32>>> {
        let (shape, values) = self.get::<f32>(name)?;
        Some(values.chunks(shape[1..].iter().product()).map(<[f32]>::to_vec).collect())
    }
}

/// A greedy continuation of a prompt.
pub struct Greedy {
    pub prompt: Vec<u32>,
    pub ids: Vec<u32>,
}

pub fn greedy(model: &str) -> Vec<Greedy> {
    let text = std::fs::read(path(&format!("goldens/{model}.generation.json"))).unwrap();
    let all: Value = serde_json::from_slice(&text).unwrap();
    let ids = |list: &Value| -> Vec<u32> {
        list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let read = |g: &Value| Greedy { prompt: ids(&g["prompt_ids"]), ids: ids(&g["ids"]) };
    all["greedy"].as_array().unwrap().iter().map(read).collect()
}
