//! GLM-5: config, weights, caches, the graph. Holds no maths of its own.
