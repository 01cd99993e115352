//! What a forward pass is asked to do: sequences, their new tokens, and which logits are wanted.

use super::SeqId;

/// Which of a sequence's new rows want logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitRows {
    /// None: all but the last piece of a prompt.
    None,
    /// That of the last token: what comes next.
    Last,
    /// Those of the tokens from this index (within the new tokens) on.
    From(usize),
}

impl LogitRows {
    /// Every row.
    pub const ALL: LogitRows = LogitRows::From(0);

    /// The rows of a piece of `n` tokens.
    pub(super) fn range(self, n: usize) -> std::ops::Range<usize> {
        match self {
            LogitRows::None => n..n,
            LogitRows::Last => n - 1..n,
            LogitRows::From(i) => i.min(n)..n,
        }
    }
}

/// New tokens of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct Sequence<'a> {
    /// Which one.
    pub seq: SeqId,
    /// Tokens to append; at least one.
    pub tokens: &'a [u32],
    /// Which logits are wanted.
    pub logits: LogitRows,
}

/// A ragged batch: any mix of prompt pieces, single tokens to decode, several tokens to verify. A sequence occurs once.
#[derive(Debug, Clone)]
pub struct Batch<'a> {
    pub(super) sequences: Sequences<'a>,
}

/// One sequence needs no list, so that decoding a single one allocates nothing.
#[derive(Debug, Clone)]
pub(super) enum Sequences<'a> {
    One([Sequence<'a>; 1]),
    Many(Vec<Sequence<'a>>),
}

impl<'a> Batch<'a> {
    /// A single sequence.
    pub fn one(seq: SeqId, tokens: &'a [u32], logits: LogitRows) -> Self {
        Batch { sequences: Sequences::One([Sequence { seq, tokens, logits }]) }
    }

    /// Several.
    pub fn new(sequences: Vec<Sequence<'a>>) -> Self {
        Batch { sequences: Sequences::Many(sequences) }
    }

    /// The sequences in order; logits come back in this order too.
    pub fn sequences(&self) -> &[Sequence<'a>] {
        match &self.sequences {
            Sequences::One(s) => s,
            Sequences::Many(s) => s,
        }
    }
}
