//! The fast CPU path: a thread pool, run-time SIMD, kernels. No policy.
