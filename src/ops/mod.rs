//! Operations: one module each, with the safe function, its checks and the reference in plain f64 loops.
