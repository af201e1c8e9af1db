//! Limits the length of comment lines, functions and names of tests. This module must not depend on their
//! content.

use crate::source::{code, words};
use crate::tree::{self, File, hold};

const COMMENT_COLUMNS_MAX: usize = 110;
const FUNCTION_LINES_MAX: usize = 70;
const TEST_NAME_CHARS_MAX: usize = 59;

#[test]
fn comments_end_by_column_110() {
    hold(
        "rustfmt does not wrap comments. Break these lines at column 110 or earlier:",
        &wide_comments(&tree::sources()),
    );
}

#[test]
fn a_wide_comment_is_noticed() {
    let wide = format!("    // {}", "x".repeat(104));
    let text = format!("{wide}\nlet url = \"{}\";\n    // short\n", "y".repeat(120));
    assert_eq!(wide_comments(&[File::new("a.rs", &text)]), ["a.rs:1: 111 columns"]);
}

#[test]
fn functions_fit_on_a_screen() {
    hold(
        "A function has at most 70 lines. Move a part of it to a function of its own:",
        &long_functions(&tree::sources()),
    );
}

#[test]
fn a_long_function_is_noticed() {
    let body = "    a();\n".repeat(69);
    let text = format!(
        "trait T {{\n    fn declared(&self) -> [u8; 3];\n}}\nfn fits() {{\n    let s = \"}}\";\n}}\n\nfn long(\n) \
         {{\n{body}}}\nfn last() {{}}\n"
    );
    assert_eq!(long_functions(&[File::new("a.rs", &text)]), ["a.rs:8: long has 72 lines"]);
}

#[test]
fn names_of_tests_are_short() {
    hold(
        "A test's name says what holds in fewer than 60 characters; details go into its comment:",
        &long_test_names(&tree::sources()),
    );
}

#[test]
fn a_long_test_name_is_noticed() {
    let name = "n".repeat(60);
    let text = format!(
        "#[tokio::test]\n#[cfg(unix)]\nasync fn {name}() {{}}\nfn {name}() {{}}\n#[test]\nfn n() {{}}\n"
    );
    assert_eq!(long_test_names(&[File::new("a.rs", &text)]), [format!("a.rs:3: {name} has 60 characters")]);
}

fn wide_comments(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files {
        for (index, line) in file.text.lines().enumerate() {
            let columns = line.chars().count();
            if line.trim_start().starts_with("//") && columns > COMMENT_COLUMNS_MAX {
                complaints.push(format!("{}:{}: {columns} columns", file.path, index + 1));
            }
        }
    }
    complaints
}

/// A function, found in code from which comments and literals were removed.
struct Function<'a> {
    name: &'a str,
    /// The number of the line with the name, from 1.
    line: usize,
    lines: usize,
}

/// Returns every function that has a body.
fn functions(code: &str) -> Vec<Function<'_>> {
    let lines: Vec<&str> = code.split_inclusive('\n').collect();
    let starts: Vec<usize> = lines
        .iter()
        .scan(0, |end, line| {
            *end += line.len();
            Some(*end - line.len())
        })
        .collect();
    let mut found = Vec::new();
    for (line, word, after) in words(code) {
        // `fn(u32) -> u32` is a type. In a function, the name follows directly after `fn`.
        let Some((_, name, rest)) = words(after).next() else { continue };
        if word != "fn" || !after.trim_start().starts_with(name) {
            continue;
        }
        let text = lines[line - 1].trim_end_matches(['\r', '\n']);
        let name_end = starts[line - 1] + text.len() - rest.len();
        if let Some(lines) = body_lines(&code[name_end..]) {
            found.push(Function { name, line, lines });
        }
    }
    found
}

/// Returns the number of lines from the name to the closing brace; `None` for a declaration without a body.
fn body_lines(rest: &str) -> Option<usize> {
    let (mut brackets, mut braces, mut lines) = (0usize, 0usize, 1);
    for c in rest.chars() {
        match c {
            '\n' => lines += 1,
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets = brackets.saturating_sub(1),
            ';' if brackets == 0 && braces == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces = braces.checked_sub(1)?;
                if braces == 0 && brackets == 0 {
                    return Some(lines);
                }
            }
            _ => {}
        }
    }
    None
}

fn long_functions(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files {
        let code = code(&file.text);
        let long = functions(&code).into_iter().filter(|function| function.lines > FUNCTION_LINES_MAX);
        complaints.extend(
            long.map(|long| format!("{}:{}: {} has {} lines", file.path, long.line, long.name, long.lines)),
        );
    }
    complaints
}

fn long_test_names(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files {
        let code = code(&file.text);
        let mut is_test = false;
        for (index, line) in code.lines().enumerate() {
            let line = line.trim();
            if let Some(attribute) = line.strip_prefix("#[") {
                is_test |= attribute.split(['(', ']']).next().is_some_and(|path| path.ends_with("test"));
                continue;
            }
            let mut words = words(line).map(|(_, word, _)| word).skip_while(|word| *word != "fn").skip(1);
            if let Some(name) = words.next()
                && std::mem::take(&mut is_test)
                && name.len() > TEST_NAME_CHARS_MAX
            {
                complaints.push(format!("{}:{}: {name} has {} characters", file.path, index + 1, name.len()));
            }
            is_test &= line.is_empty();
        }
    }
    complaints
}
