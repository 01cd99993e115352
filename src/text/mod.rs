//! Text in and out: tokenizer, chat template, incremental detokenizer, sampler, stop conditions.
