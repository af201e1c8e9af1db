//! The body of a fuzz target: the three files of a certificate that was made elsewhere, with any bytes.
//! Wanted properties: (A) they are used or refused with one line, and never cause a panic; (B) they are used
//! or refused again in the same way; (C) what is used has a key that belongs to the certificate, and names
//! the task; (D) no error has a part of the key; (E) files that cannot be used leave the old ones in use.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{JobName, TaskId};
use pushpull_messages::observe::unix_time;
use tokio::time::Instant;

use crate::place::Place;
use crate::reloaded::{EVERY, Found, Reloaded};
use crate::settings::Settings;
use crate::tls_files::{Contents, Material, TlsFiles, TlsFilesError, roots};

/// How far inputs can come, the shortest way first.
pub const STAGES: [&str; 7] = [
    "no text",
    "no certificates",
    "no valid certificate",
    "wrong names or key",
    "not trusted",
    "loaded",
    "used instead of others",
];
/// The task whose files these are.
pub const TASK: TaskId = TaskId::worker(0);

/// The largest number of bytes of an error.
const ERROR_BYTES_MAX: usize = 2000;
/// The longest part of a key that an error may have by chance, in characters.
const SAME_CHARS_MAX: usize = 16;

/// The three files as texts, in the order authorities, certificate, key.
type Texts<'a> = [&'a str; 3];

/// Checks the files of a task. Returns how far they came and, if they can be used, the certificate.
///
/// # Panics
/// If a property does not hold.
pub fn check(files: [&[u8]; 3]) -> (usize, Option<Vec<u8>>) {
    let Some(texts) = texts(files) else { return (0, None) };
    check_client(texts);
    match (load(texts), load(texts)) {
        (Ok(one), Ok(other)) => {
            let parts = |own: &Material| (own.verifier.job().to_owned(), own.certificate.chain.clone());
            assert!(parts(&one) == parts(&other), "(B) the same files are the same certificate");
            assert!(one.shown.keys_match().is_ok(), "(C) the key belongs to the certificate");
            let named = one.verifier.check(&one.certificate.chain, unix_time());
            assert!(named.is_ok_and(|tasks| tasks.contains(&TASK)), "(C) it names the task");
            let leaf = one.certificate.chain[0].to_vec();
            match Settings::of_files(one) {
                Ok(_) => (5, Some(leaf)),
                Err(error) => {
                    check_error(&error, texts);
                    (3, None)
                }
            }
        }
        (Err(one), Err(other)) => {
            assert!(one == other, "(B) the same files are refused in the same way");
            check_error(&one, texts);
            (stage(&one), None)
        }
        (one, other) => panic!("(B) the same files: {:?} and {:?}", one.is_ok(), other.is_ok()),
    }
}

/// Lets a task whose files are in `folder`, and can be used, look at other ones. Returns how far these came.
///
/// # Panics
/// If a property does not hold.
pub fn check_again(folder: &Path, old: [&str; 3], new: [&[u8]; 3]) -> usize {
    let files = TlsFiles {
        ca: folder.join("ca.crt"),
        certificate: folder.join("tls.crt"),
        key: folder.join("tls.key"),
    };
    write(&files, old.map(str::as_bytes));
    let reloaded = Reloaded::new(files.clone(), place()).expect("files that can be used");
    let reloaded = Arc::new(reloaded);
    write(&files, new);
    if let Err(error) = roots(&files.ca) {
        check_error(&error, texts(new).unwrap_or_default());
    }
    let (stage, leaf) = check(new);
    let (before, now) = (reloaded.current(), Instant::now());
    let found = [1, 2, 3].map(|times| reloaded.look(now + EVERY * times));
    let is_same = Arc::ptr_eq(&before, &reloaded.current());
    match found {
        [Found::New, Found::Same, Found::Same] => {
            assert!(leaf.is_some() && !is_same, "(E) only files that can be used are used");
            6
        }
        [Found::Same, Found::Same, Found::Same] => {
            assert!(is_same && texts(new) == Some(old), "(E) other files are other ones");
            stage
        }
        [first, second, third] => {
            let unusable = |warned| Found::Unusable { warned };
            assert!(is_same, "(E) the old files stay in use");
            let expected = [false, true, false].map(unusable);
            assert!([first, second, third] == expected, "(E) one warning: {first:?} {second:?} {third:?}");
            stage
        }
    }
}

fn texts(files: [&[u8]; 3]) -> Option<Texts<'_>> {
    let [ca, certificate, key] = files.map(|file| std::str::from_utf8(file).ok());
    Some([ca?, certificate?, key?])
}

fn write(files: &TlsFiles, [ca, certificate, key]: [&[u8]; 3]) {
    for (path, bytes) in [(&files.ca, ca), (&files.certificate, certificate), (&files.key, key)] {
        crate::secret_file::rewrite(path, bytes).expect("a file that can be written");
    }
}

fn paths() -> TlsFiles {
    TlsFiles { ca: "ca.crt".into(), certificate: "tls.crt".into(), key: "tls.key".into() }
}

fn place() -> Place {
    let cluster = ClusterSpec::new([
        (JobName::Chief, vec!["c:1"]),
        (JobName::Ps, vec!["p:1"]),
        (JobName::Worker, vec!["w:1", "w:2"]),
    ]);
    Place::in_training(cluster.expect("a valid cluster"), TASK)
}

fn load(texts: Texts<'_>) -> Result<Material, TlsFilesError> {
    Material::of_tasks(&paths(), &Contents::of(texts), &[TASK], unix_time())
}

fn check_client(texts: Texts<'_>) {
    match Material::of_client(&paths(), &Contents::of(texts), unix_time()) {
        Ok((own, role)) => {
            assert!(own.shown.keys_match().is_ok(), "(C) the key belongs to the certificate");
            let named = own.verifier.check_client(&own.certificate.chain, unix_time());
            assert!(named == Ok(role), "(C) it names the role");
        }
        Err(error) => check_error(&error, texts),
    }
}

fn stage(error: &TlsFilesError) -> usize {
    match error {
        TlsFilesError::Certificates { .. } => 1,
        TlsFilesError::Certificate { .. } => 2,
        TlsFilesError::Untrusted { .. } => 4,
        _ => 3,
    }
}

/// Checks that an error is one bounded line (A) without a part of the key (D).
fn check_error(error: &dyn Display, [ca, certificate, key]: Texts<'_>) {
    let text = error.to_string();
    assert!(text.len() <= ERROR_BYTES_MAX, "(A) an error of {} bytes", text.len());
    assert!(!text.chars().any(char::is_control), "(A) an error with control characters: {text:?}");
    // What stands around the blocks of a file is no key, and may be what errors say anyway.
    let blocks = key.split("-----BEGIN").skip(1).filter_map(|block| block.split("-----END").next());
    let words =
        blocks.flat_map(|block| block.split(|c: char| !c.is_ascii_alphanumeric() && !"+/=".contains(c)));
    let shown = words.filter(|word| word.len() > SAME_CHARS_MAX && text.contains(word));
    // The other files may have the same word.
    let is_secret = |word: &&str| !ca.contains(word) && !certificate.contains(word);
    assert!(!shown.into_iter().any(|word| is_secret(&word)), "(D) a part of the key is shown: {text:?}");
}
