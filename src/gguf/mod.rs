//! GGUF files: reader, split sets, metadata, writer, the weight ledger. Knows no model.
