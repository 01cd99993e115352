//! Random numbers that depend on the seed alone: xoshiro256++ of Blackman and Vigna, seeded by SplitMix64.

/// The generator's state; never all zeros.
#[derive(Debug, Clone)]
pub(super) struct Rng([u64; 4]);

impl Rng {
    /// The four words are the first four of SplitMix64 from `seed`, as its authors advise.
    pub(super) fn new(mut seed: u64) -> Self {
        Rng([(); 4].map(|()| {
            seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (seed ^ (seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ (z >> 31)
        }))
    }

    fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in [0, 1), a multiple of 2^-53.
    pub(super) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_values() {
        let mut rng = Rng([1, 2, 3, 4]);
        let want = [41943041, 58720359, 3588806011781223, 3591011842654386, 9228616714210784205];
        assert_eq!(want.map(|_| rng.next()), want);
        let seeded = Rng::new(1234567);
        assert_eq!(seeded.0[..2], [6457827717110365317, 3203168211198807973]);
    }

    #[test]
    fn uniform_covers_the_interval() {
        let mut rng = Rng::new(0);
        let (mut low, mut high, mut sum) = (1.0f64, 0.0f64, 0.0);
        for _ in 0..10_000 {
            let u = rng.uniform();
            (low, high, sum) = (low.min(u), high.max(u), sum + u);
        }
        assert!((0.0..0.001).contains(&low) && (0.999..1.0).contains(&high));
        assert!((sum / 10_000.0 - 0.5).abs() < 0.01);
    }
}
