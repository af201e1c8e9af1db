//! Hides the credentials in locations of checkpoints, so that the locations can be shown. This module only
//! changes text.

/// Returns the text with `user:password` hidden in every `scheme://user:password@host`.
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
    fn users_and_passwords_are_hidden() {
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
