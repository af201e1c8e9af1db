//! A minimal Rust lexer: removes comments and literals from the code of a file, and finds the words in the
//! rest.

/// Returns the code with spaces in place of comments, strings and characters. Line numbers stay the same.
pub(crate) fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    let mut after_word = false;
    while let Some(next) = rest.chars().next() {
        let (length, kept) = match literal_or_comment(rest, after_word) {
            Some(length) => (length, false),
            None => (next.len_utf8(), true),
        };
        let (taken, left) = rest.split_at(length);
        if kept {
            code.push_str(taken);
        } else {
            code.extend(taken.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        }
        after_word = kept && is_word(next);
        rest = left;
    }
    code
}

/// Returns the identifiers and keywords of code, each with the number of its line (from 1) and the rest of
/// that line.
pub(crate) fn words(code: &str) -> impl Iterator<Item = (usize, &str, &str)> {
    code.lines().enumerate().flat_map(|(index, line)| {
        let mut rest = line;
        std::iter::from_fn(move || {
            let start = rest.find(is_word)?;
            let tail = &rest[start..];
            let length = tail.find(|c| !is_word(c)).unwrap_or(tail.len());
            let (word, after) = tail.split_at(length);
            rest = after;
            Some((index + 1, word, after))
        })
    })
}

pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the length of the comment or literal at the beginning of the text; `None` if the text begins with
/// something else.
fn literal_or_comment(text: &str, after_word: bool) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(block_comment(text));
    }
    if text.starts_with('"') {
        return Some(quoted(text, '"'));
    }
    if let Some(quoted_part) = text.strip_prefix('\'') {
        // Unlike a character, a lifetime has no second quote after one character.
        let mut chars = quoted_part.chars();
        let first = chars.next()?;
        return (first == '\\' || chars.next() == Some('\'')).then(|| quoted(text, '\''));
    }
    // These are r"..", r#".."#, br".." and cr"..", but only if the prefix is not the end of a longer word.
    let hashes =
        text.strip_prefix("br").or_else(|| text.strip_prefix("cr")).or_else(|| text.strip_prefix('r'));
    let hashes = hashes.filter(|_| !after_word)?;
    let body = hashes.trim_start_matches('#');
    let hash_count = hashes.len() - body.len();
    let body = body.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hash_count));
    let closed = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some(text.len() - body.len() + closed)
}

fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

#[test]
fn comments_and_literals_are_no_code() {
    let text = r####"
        a(); // todo!()
        b("todo!() \" todo!()", 'x', '\'', b'"'); /* todo! /* nested */ todo! */ c();
        d(r#"todo!() " "#, br"todo!()"); e::<'a>('é'); /// todo!
        for"todo!"
    "####;
    let code = code(text);
    assert_eq!(code.lines().count(), text.lines().count());
    let words: Vec<_> = words(&code).map(|(_, word, _)| word).collect();
    assert_eq!(words, ["a", "b", "b", "c", "d", "e", "a", "for"]);
}

#[test]
fn words_know_their_line_and_what_follows() {
    let found: Vec<_> = words("use x;\nx::todo!()").collect();
    assert_eq!(found, [(1, "use", " x;"), (1, "x", ";"), (2, "x", "::todo!()"), (2, "todo", "!()")]);
}
