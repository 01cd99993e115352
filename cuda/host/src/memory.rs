//! Device memory on the host: poisoned when allocated, with guard zones that tell of writes beyond an allocation.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::fmt::Write;

/// As the driver aligns.
const ALIGN: usize = 256;

/// Bytes before and behind each allocation.
pub const GUARD: usize = 512;

/// What memory holds before anyone writes to it, and what guards hold always: NaN when read as f32, f16 or bf16, a large
/// number as an integer, and not the same at every place.
fn pattern(offset: usize) -> u8 {
    match offset % 2 {
        0 => 0x81 | (offset / 2 % 61) as u8,
        _ => 0xff,
    }
}

/// The allocations of one device.
#[derive(Debug)]
pub struct Arena {
    live: BTreeMap<u64, Block>,
    /// Allocations ever made.
    made: u64,
    limit: u64,
    used: u64,
}

#[derive(Debug)]
struct Block {
    layout: Layout,
    bytes: usize,
    label: &'static str,
    /// Of those ever made.
    number: u64,
    /// The last launch that wrote to it, if it may still run when the next one begins.
    written: Option<u64>,
}

/// A live allocation.
#[derive(Debug, Clone, Copy)]
pub struct Live {
    /// Where.
    pub address: u64,
    /// How much.
    pub bytes: usize,
    /// What for.
    pub label: &'static str,
    /// By a kernel.
    pub written: bool,
}

impl Arena {
    /// No more than `limit` bytes at a time.
    pub fn new(limit: u64) -> Self {
        Arena { live: BTreeMap::new(), made: 0, limit, used: 0 }
    }

    /// Bytes free and in all.
    pub fn free_and_total(&self) -> (u64, u64) {
        (self.limit - self.used, self.limit)
    }

    /// Poisoned memory for `bytes` bytes; `None` beyond the limit.
    pub fn alloc(&mut self, bytes: usize, label: &'static str) -> Option<u64> {
        if bytes as u64 > self.limit - self.used {
            return None;
        }
        let layout = Layout::from_size_align(bytes.checked_add(2 * GUARD)?, ALIGN).ok()?;
        // SAFETY: the layout is not empty.
        let base = unsafe { alloc(layout) };
        if base.is_null() {
            return None;
        }
        for i in 0..layout.size() {
            // SAFETY: within what was just allocated.
            unsafe { base.add(i).write(pattern(i)) };
        }
        let address = (base.expose_provenance() + GUARD) as u64;
        self.live.insert(address, Block { layout, bytes, label, number: self.made, written: None });
        self.made += 1;
        self.used += bytes as u64;
        Some(address)
    }

    /// Gives memory back; complains if it is none, or damaged.
    pub fn free(&mut self, address: u64) -> Result<(), String> {
        let damage = self.check();
        let block = self.live.remove(&address).ok_or(format!("there is no allocation at {address:#x}"))?;
        self.used -= block.bytes as u64;
        // SAFETY: `alloc` gave this address for this layout, and it was live until now.
        unsafe { dealloc(base(address), block.layout) };
        damage
    }

    /// The `n` newest allocations.
    pub fn newest(&self, n: usize) -> Vec<Live> {
        let mut live: Vec<_> = self.live.iter().collect();
        live.sort_unstable_by_key(|(_, block)| std::cmp::Reverse(block.number));
        let live = live.into_iter().take(n);
        let of = |(address, b): (&u64, &Block)| Live {
            address: *address,
            bytes: b.bytes,
            label: b.label,
            written: b.written.is_some(),
        };
        live.map(of).collect()
    }

    /// All kernels have ended: what follows need not wait for them.
    pub fn forget_written(&mut self) {
        self.live.values_mut().for_each(|block| block.written = None);
    }

    /// Launches before `launch` have ended when the next one begins.
    pub fn forget_written_before(&mut self, launch: u64) {
        for block in self.live.values_mut() {
            block.written = block.written.filter(|by| *by >= launch);
        }
    }

    /// A kernel has written to the allocation at `address`.
    pub fn note_written(&mut self, address: u64, launch: u64) {
        if let Some(block) = self.live.get_mut(&address) {
            block.written = Some(launch);
        }
    }

    /// Whether all guards are whole; a text that says which is not, and where.
    pub fn check(&self) -> Result<(), String> {
        let mut damage = String::new();
        for (address, block) in &self.live {
            let zones = [(0..GUARD, "before"), (GUARD + block.bytes..block.layout.size(), "behind")];
            for (zone, side) in zones {
                // SAFETY: the zone lies within the live allocation, and no kernel runs now.
                let byte = |i: usize| unsafe { base(*address).add(i).read_volatile() };
                let changed: Vec<usize> = zone.filter(|i| byte(*i) != pattern(*i)).collect();
                if let (Some(first), Some(last)) = (changed.first(), changed.last()) {
                    let (first, last) = (*first as isize - GUARD as isize, *last as isize - GUARD as isize);
                    let Block { bytes, label, .. } = block;
                    _ = write!(
                        damage,
                        "{}a write {side} the {bytes} bytes of \"{label}\": offsets {first} to {last}",
                        if damage.is_empty() { "" } else { "; " }
                    );
                }
            }
        }
        if damage.is_empty() { Ok(()) } else { Err(damage) }
    }

    /// Complains unless the range lies within one allocation.
    pub fn check_range(&self, address: u64, bytes: usize) -> Result<(), String> {
        let block = self.live.range(..=address).next_back();
        match block {
            Some((at, block)) if address - at + bytes as u64 <= block.bytes as u64 => Ok(()),
            _ => Err(format!("{bytes} bytes at {address:#x} are not within an allocation")),
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for (address, block) in &self.live {
            // SAFETY: as in `free`.
            unsafe { dealloc(base(*address), block.layout) };
        }
    }
}

/// Start of an allocation, guard included.
fn base(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize - GUARD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poison_is_not_a_number() {
        let bytes: Vec<u8> = (0..4096).map(pattern).collect();
        assert!(bytes.chunks(4).all(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).is_nan()));
        assert!(bytes.chunks(2).all(|b| b[1] == 0xff && b[0] & 0x83 > 0x80));
    }

    #[test]
    fn damage_is_found_and_named() {
        let mut arena = Arena::new(1 << 20);
        let a = arena.alloc(100, "first").unwrap();
        let b = arena.alloc(300, "second").unwrap();
        assert!(a.is_multiple_of(256) && b.is_multiple_of(256));
        assert_eq!(arena.free_and_total(), ((1 << 20) - 400, 1 << 20));
        arena.check().unwrap();
        let byte =
            |offset: isize| std::ptr::with_exposed_provenance_mut::<u8>(a as usize).wrapping_offset(offset);
        for (offset, side) in [(100, "behind"), (-1, "before"), (GUARD as isize + 99, "behind")] {
            let p = byte(offset);
            // SAFETY: in a guard zone, which is part of the allocation.
            let before = unsafe { p.replace(0x55) };
            let text = arena.check().unwrap_err();
            assert!(
                text.contains(side) && text.contains("\"first\"") && text.contains(&offset.to_string()),
                "{text}"
            );
            // SAFETY: as above.
            unsafe { p.write(before) };
            arena.check().unwrap();
        }
        assert_eq!(arena.newest(1)[0].label, "second");
        assert_eq!(arena.newest(5).len(), 2);
        arena.check_range(b, 300).unwrap();
        arena.check_range(b + 100, 200).unwrap();
        for (at, n) in [(b, 301), (b + 300, 1), (b - 1, 1), (0, 1)] {
            assert!(arena.check_range(at, n).is_err());
        }
        assert!(arena.alloc(1 << 20, "too much").is_none());
        arena.free(a).unwrap();
        assert!(arena.free(a).unwrap_err().contains("no allocation"));
        assert_eq!(arena.free_and_total().0, (1 << 20) - 300);
    }
}
