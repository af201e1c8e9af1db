//! Changes of the bytes of an input. They know no format, except the bytes and words that a target's format
//! is made of.

use crate::numbers::Numbers;

/// The largest number of bytes that an input grows to.
const GROWN_BYTES_MAX: usize = 1 << 16;
/// The largest number of bytes that are copied, removed or inserted at once.
const PART_BYTES_MAX: usize = 64;
/// Bytes that begin something in MessagePack, are limits of it, or mean something in a text.
const MARKERS: &[u8] =
    b"\x00\x01\x7f\x80\x8f\x90\x9f\xa0\xc0\xc3\xc4\xc6\xca\xcb\xcf\xd3\xdb\xdd\xdf\xe0\xff\n\r\t\"',.:;|[]{}-+eE09 ";
/// Numbers at which something overflows or ends.
const NUMBERS: [u64; 14] =
    [0, 1, 2, 7, 8, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 40, i64::MAX as u64, u64::MAX];

/// Changes `input` at a random place from the byte `first` on. `other` is another input of the same format,
/// and `words` are words of the format.
pub fn change(input: &mut Vec<u8>, first: usize, other: &[u8], words: &[&[u8]], numbers: &mut Numbers) {
    if input.len() <= first || input.len() > GROWN_BYTES_MAX {
        return input.push(numbers.byte());
    }
    let at = first + numbers.below(input.len() - first);
    let end = input.len().min(at + 1 + numbers.below(PART_BYTES_MAX));
    match numbers.below(14) {
        0 | 1 => input[at] ^= 1 << numbers.below(8),
        2 => input[at] = numbers.byte(),
        3 => input[at] = *numbers.choose(MARKERS),
        4 => input.insert(at, *numbers.choose(MARKERS)),
        5 => drop(input.remove(at)),
        6 => input.truncate(at),
        7 => drop(input.drain(at..end)),
        8 => input[at] = input[at].wrapping_add([1, 0xff, 0x10, 0xf0][numbers.below(4)]),
        9 => {
            let part = input[at..end].to_vec();
            let to = first + numbers.below(input.len() - first + 1);
            input.splice(to..to, part);
        }
        10 if !other.is_empty() => {
            let begin = numbers.below(other.len());
            let until = other.len().min(begin + 1 + numbers.below(PART_BYTES_MAX));
            let replaced = if numbers.below(2) == 0 { at..at } else { at..end };
            input.splice(replaced, other[begin..until].iter().copied());
        }
        11 if !words.is_empty() => {
            let replaced = if numbers.below(2) == 0 { at..at } else { at..end };
            input.splice(replaced, numbers.choose(words).iter().copied());
        }
        _ => {
            let (number, width) = (*numbers.choose(&NUMBERS), 1 << numbers.below(4));
            let bytes = if numbers.below(2) == 0 { number.to_le_bytes() } else { number.to_be_bytes() };
            let bytes = if bytes[0] == 0 { &bytes[8 - width..] } else { &bytes[..width] };
            for (to, from) in input[at..].iter_mut().zip(bytes) {
                *to = *from;
            }
        }
    }
}
