//! What `instances.toml` expects of the instructions of a kernel: `"LDG.128"`, `"LDG.128 >= 4"`, `"LDG.128 >= 2 * unroll"`.

use crate::Result;
use crate::inspect::Kernel;
use crate::table::Family;
use crate::value::Value;

/// Instructions that must be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expect {
    /// Which ([`crate::inspect::matches()`]).
    pub pattern: String,
    /// How many at least.
    pub least: u32,
    /// Whether all of these must be in one loop, in place of anywhere: the tail of a kernel has the same instructions.
    pub in_loop: bool,
}

impl Expect {
    /// `args` are those of the instance, by which the number may be named.
    ///
    /// # Errors
    /// A text that is none; an argument that is no number.
    pub(crate) fn parse(text: &str, in_loop: bool, family: &Family, args: &[Value]) -> Result<Expect> {
        let wrong = || {
            format!(
                "`{text}`: `OPCODE` or `OPCODE >= COUNT` is expected, COUNT a product of numbers and arguments"
            )
        };
        let number = |factor: &str| match family.args.iter().zip(args).find(|((name, _), _)| name == factor) {
            Some((_, Value::Int(n))) => Some(*n),
            Some(_) => None,
            None => factor.parse().ok(),
        };
        let (pattern, least) = match text.split_once(">=") {
            None => (text, Some(1)),
            Some((pattern, count)) => {
                let mut factors = count.split('*').map(|factor| number(factor.trim()));
                (pattern, factors.try_fold(1_u32, |product, factor| product.checked_mul(factor?)))
            }
        };
        let least = least.filter(|n| *n > 0).ok_or_else(wrong)?;
        let pattern = pattern.trim();
        let opcode = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '.' || c == '_';
        if pattern.is_empty() || !pattern.chars().all(opcode) {
            return Err(wrong());
        }
        Ok(Expect { pattern: pattern.into(), least, in_loop })
    }

    /// What is wrong with a kernel, if something is.
    pub fn broken(&self, kernel: &Kernel) -> Option<String> {
        let Expect { pattern, least, in_loop } = self;
        let (count, place) = match in_loop {
            true => (kernel.most_in_a_loop(pattern), " in a loop"),
            false => (kernel.count(pattern), ""),
        };
        let at_most = if *in_loop { "at most " } else { "" };
        match (count, least) {
            (count, least) if count >= *least => None,
            (0, 1) => Some(format!("no {pattern}{place}")),
            (count, least) => Some(format!("{at_most}{count} {pattern}{place}, {least} are expected")),
        }
    }
}
