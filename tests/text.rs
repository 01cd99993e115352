//! Text in and out, against goldens and by property.

#[path = "text/common.rs"]
mod common;
#[path = "text/hostile.rs"]
mod hostile;
#[path = "text/sampler.rs"]
mod sampler;
#[path = "text/stream.rs"]
mod stream;
#[path = "text/template.rs"]
mod template;
#[path = "text/tokenizer.rs"]
mod tokenizer;
