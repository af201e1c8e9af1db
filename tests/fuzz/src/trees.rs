//! Changes of the values in an input: a number, a text, a key or a list is changed, and the input is encoded
//! again. Such inputs come further than those whose bytes are changed.

use serde_json::{Map, Value, json};

use crate::numbers::Numbers;

/// The largest number of items to which a list is repeated.
const REPEATED_ITEMS_MAX: usize = 1 << 10;
/// Texts that are no valid name, number or place of anything, or are a valid one of something else.
const TEXTS: &[&str] = &[
    "",
    " ",
    "a",
    "..",
    "../x",
    "/etc/passwd",
    "a\nb",
    "a\u{1b}[31mb",
    "\u{0}",
    "0",
    "-1",
    "1e999",
    "NaN",
    "ps",
    "worker",
    "chief",
    "worker/0",
    "client/9",
    "a:1",
    "[::1]:1",
    "*",
    "**/x",
    "[a",
    "sync",
    "bounded:18446744073709551615",
    "step-1-2",
    "step-00000000000000000001-000000000001",
    "ä\u{202e}ö",
    "s3://b/k",
    "file:///x",
];
const NUMBERS: &[i64] = &[
    0,
    1,
    -1,
    2,
    3,
    7,
    63,
    64,
    65,
    255,
    256,
    4095,
    4096,
    65_535,
    65_536,
    1 << 20,
    i32::MAX as i64,
    i64::MAX,
];

/// Counts the values in a tree, itself included.
fn count(tree: &Value) -> usize {
    1 + match tree {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(items) => items.values().map(count).sum(),
        _ => 0,
    }
}

/// Returns the value with this number, in the order in which [`count`] counts them.
fn find<'a>(tree: &'a mut Value, number: &mut usize) -> Option<&'a mut Value> {
    if *number == 0 {
        return Some(tree);
    }
    *number -= 1;
    match tree {
        Value::Array(items) => items.iter_mut().find_map(|item| find(item, number)),
        Value::Object(items) => items.values_mut().find_map(|item| find(item, number)),
        _ => None,
    }
}

/// Returns a random value of a tree.
fn any<'a>(tree: &'a mut Value, numbers: &mut Numbers) -> &'a mut Value {
    let mut number = numbers.below(count(tree));
    find(tree, &mut number).expect("a value of the tree")
}

/// Changes a random value of `tree`, mostly to one that occurs in `other`.
pub fn change(tree: &mut Value, other: &Value, numbers: &mut Numbers) {
    let value = any(tree, numbers);
    if numbers.below(4) == 0 {
        let mut other = other.clone();
        *value = any(&mut other, numbers).take();
        return;
    }
    match value {
        Value::Array(items) => change_list(items, numbers),
        Value::Object(items) => change_map(items, numbers),
        Value::String(text) => change_text(text, numbers),
        Value::Bool(set) => *set = !*set,
        other => *other = number(numbers),
    }
}

fn number(numbers: &mut Numbers) -> Value {
    match numbers.below(8) {
        0 => json!(numbers.next()),
        1 => json!(u64::MAX),
        2 => json!(f64::from_bits(numbers.next())),
        3 => json!(0.5),
        4 => Value::Null,
        5 => json!(numbers.next() as u32),
        _ => json!(numbers.choose(NUMBERS)),
    }
}

fn change_list(items: &mut Vec<Value>, numbers: &mut Numbers) {
    if items.is_empty() {
        return items.push(number(numbers));
    }
    let (at, to) = (numbers.below(items.len()), numbers.below(items.len()));
    match numbers.below(6) {
        0 => drop(items.remove(at)),
        1 => items.insert(to, items[at].clone()),
        2 => items.swap(at, to),
        3 => items.truncate(at),
        4 => items.clear(),
        _ => {
            let (item, most) = (items[at].clone(), 1 + numbers.below(REPEATED_ITEMS_MAX));
            // A large tree must not grow without bound.
            let times = most.min(REPEATED_ITEMS_MAX * 4 / count(&item));
            items.splice(at..at, std::iter::repeat_n(item, times));
        }
    }
}

fn change_map(items: &mut Map<String, Value>, numbers: &mut Numbers) {
    let keys: Vec<String> = items.keys().cloned().collect();
    if keys.is_empty() {
        items.insert("a".to_owned(), number(numbers));
        return;
    }
    let (key, other) = (numbers.choose(&keys), numbers.choose(&keys));
    match numbers.below(4) {
        0 => drop(items.remove(key)),
        1 => drop(items.insert("unknown".to_owned(), number(numbers))),
        2 => {
            let value = items[key].clone();
            items.insert(other.clone(), value);
        }
        _ => drop(items.insert(key.clone(), number(numbers))),
    }
}

fn change_text(text: &mut String, numbers: &mut Numbers) {
    match numbers.below(6) {
        0 => text.clear(),
        1 => text.push_str(TEXTS[numbers.below(TEXTS.len())]),
        2 => {
            let more = text.repeat(1 + numbers.below(64));
            let end = (0..=more.len().min(1 << 14)).rev().find(|&at| more.is_char_boundary(at));
            text.push_str(&more[..end.unwrap_or(0)]);
        }
        3 => drop(text.pop()),
        _ => *text = TEXTS[numbers.below(TEXTS.len())].to_owned(),
    }
}
