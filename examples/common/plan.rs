//! What a run will take of a GPU, told before it is taken.

use glm5::cuda::Properties;
use glm5::gguf::Gguf;
use glm5::model::{Plan, PlanOptions};

use super::args::RunOn;
use super::failure::{Result, usage};

/// Planning alone.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Planning")]
pub struct PlanArgs {
    /// Tell what the run would take of a GPU, by the headers of the file, and whether it fits; run nothing.
    #[arg(long)]
    pub plan_only: bool,

    /// The GPU to plan for, which need not be there: h200 or rtx-pro-6000 [default: that of --device].
    #[arg(long, value_name = "NAME", requires = "plan_only")]
    gpu: Option<String>,

    /// GPUs that share the weights, for planning ahead.
    #[arg(long, value_name = "N", requires = "plan_only", value_parser = super::args::between(1, 64), default_value_t = 1)]
    gpus: usize,
}

impl PlanArgs {
    /// The plan of a run on the GPU that was named, or that there is.
    pub fn plan(&self, gguf: &Gguf, on: &RunOn, context: usize) -> Result<Plan> {
        let properties = match &self.gpu {
            Some(name) => match Properties::by_name(name) {
                Some(known) => known,
                None => {
                    return usage(format!("--gpu {name}: expected one of {}", Properties::KNOWN.join(", ")));
                }
            },
            None => match on.device.gpu() {
                Ok(gpu) => gpu.properties().clone(),
                Err(_) => {
                    return usage(format!(
                        "--plan-only: no GPU here; name one with --gpu ({})",
                        Properties::KNOWN.join(", ")
                    ));
                }
            },
        };
        let options = PlanOptions { load: on.options, cache_type: on.cache_type, context, gpus: self.gpus };
        Ok(Plan::new(gguf, &properties, &options)?)
    }

    /// Whether the run is of a GPU that was named, and so with what a GPU takes by default.
    pub fn for_a_gpu(&self) -> bool {
        self.gpu.is_some()
    }
}
