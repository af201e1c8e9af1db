//! Where checkpoints are, as it may be shown: without who may get at them. Knows no store.

/// `scheme://user:password@host` without who, wherever it is in the text.
pub fn without_passwords(text: &str) -> String {
    let mut pieces = text.split("://");
    let mut clean = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        clean += "://";
        let end = piece.find(['/', '?', '#', ',', ' ', '"', '\'']).unwrap_or(piece.len());
        let host = piece[..end].rfind('@').map_or(0, |at| at + 1);
        if host > 0 {
            clean += "(hidden)@";
        }
        clean += &piece[host..];
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_passwords_are_taken_out_of_addresses() {
        for (text, expected) in [
            ("plain", "plain"),
            ("a@b", "a@b"),
            ("http://host/x@y", "http://host/x@y"),
            ("http://u:p@host", "http://(hidden)@host"),
            ("http://u:p@w@host/x", "http://(hidden)@host/x"),
            ("gs://k@a,s3://k:l@b/c", "gs://(hidden)@a,s3://(hidden)@b/c"),
        ] {
            assert_eq!(without_passwords(text), expected);
        }
    }
}
