//! The byte-level alphabet of GPT-2: one printable character for each of the 256 bytes.
//!
//! Bytes that print (`!`..`~`, `¡`..`¬`, `®`..`ÿ`) stand for themselves; the other 68, in ascending order, for the
//! characters from U+0100 on. So a space is `Ġ` and a line feed `Ċ`. Vocabularies and merges are written in it.

/// Whether `byte` stands for the character of its own number.
const fn prints(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

const CHARS: [char; 256] = {
    let mut chars = ['\0'; 256];
    let (mut byte, mut next) = (0, 0x100);
    while byte < 256 {
        if prints(byte as u8) {
            chars[byte] = byte as u8 as char;
        } else {
            // Below 0x100 + 68, far from the surrogates.
            chars[byte] = match char::from_u32(next) {
                Some(c) => c,
                None => panic!("not a character"),
            };
            next += 1;
        }
        byte += 1;
    }
    chars
};

/// The character of a byte.
pub(super) fn char_of(byte: u8) -> char {
    CHARS[usize::from(byte)]
}

/// The byte of a character, if it belongs to the alphabet.
pub(super) fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        n @ 0..=0xFF if prints(n as u8) => Some(n as u8),
        n @ 0x100..=0x143 => {
            // The inverse of the list of bytes that do not print: 0x00..=0x20, 0x7F..=0xA0, 0xAD.
            let i = (n - 0x100) as u8;
            Some(match i {
                0..=0x20 => i,
                0x21..=0x42 => i - 0x21 + 0x7F,
                _ => 0xAD,
            })
        }
        _ => None,
    }
}

/// Appends `text` in the alphabet.
pub(super) fn escape(text: &str, out: &mut String) {
    out.extend(text.bytes().map(char_of));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_characters() {
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
        assert_eq!(char_of(b'a'), 'a');
        assert_eq!(char_of(0x00), 'Ā');
        assert_eq!(char_of(0xAD), 'Ń');
        assert_eq!(char_of(0xFF), 'ÿ');
    }

    #[test]
    fn one_to_one() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=255 {
            assert!(seen.insert(char_of(byte)));
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        let others = (0..=char::MAX as u32).filter_map(char::from_u32).filter(|c| !seen.contains(c));
        assert_eq!(others.filter_map(byte_of).next(), None);
    }
}
