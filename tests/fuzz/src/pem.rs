//! The target `pem`: the files of a certificate that was made elsewhere. If the first byte is even, the rest
//! is the text of the three files, with the byte 0xff between two of them. If it is odd, the rest is what an
//! authority signs, and the files are made of it. One input of four is read by a task that uses other files.

use std::collections::BTreeSet;

use pem::{EncodeConfig, LineEnding, Pem};
use pushpull_identity::fuzz::{STAGES, check as check_files, check_again};
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType, SignatureAlgorithm, SigningKey,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, pem::PemObject};
use tempfile::TempDir;

use crate::target::{Class, Target};

/// The byte between two files, which no text has.
const NEXT: u8 = 0xff;
/// A private key of Ed25519 in PKCS 8, before its 32 bytes.
const ED25519: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
/// The identifier of signatures of Ed25519 in a certificate.
const SIGNED_WITH: [u8; 7] = [0x30, 5, 6, 3, 0x2b, 0x65, 0x70];

pub(crate) const TARGET: Target = Target {
    name: "pem",
    class: Class::File,
    about: &[
        "messages/identity/src/name.rs",
        "messages/identity/src/reloaded.rs",
        "messages/identity/src/tls_files",
        "messages/identity/src/trust.rs",
        "messages/identity/src/untrusted.rs",
    ],
    check,
    stages: &STAGES,
    seeds,
    words: &[
        b"-----BEGIN CERTIFICATE-----\n",
        b"-----END CERTIFICATE-----\n",
        b"-----BEGIN PRIVATE KEY-----\n",
        b"-----END PRIVATE KEY-----\n",
        b"-----BEGIN EC PRIVATE KEY-----\n",
        b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n",
        b"-----",
        b"\xff",
        b"\r\n",
        b"\n\n",
        b"# a comment\n",
        b"AAAA",
        b"==",
        b"pushpull://digits/worker/0",
        b"pushpull://",
        b"PUSHPULL:",
        b"/client/run",
        b"\x1b[31m",
        b"\x86",
        b"\x30\x82",
        b"\x30\x80",
    ],
    ..Target::USUAL
};

/// The authority, a certificate of it, and the certificates of the corpus.
struct Known {
    issuer: Issuer<'static, KeyPair>,
    ca: String,
    /// The files of a task, which can be used.
    files: [String; 3],
    certificates: BTreeSet<Vec<u8>>,
    folder: TempDir,
}

thread_local! {
    static KNOWN: Known = Known::new();
}

/// Checks one input.
fn check(bytes: &[u8]) -> usize {
    let Some((&how, rest)) = bytes.split_first() else { return 0 };
    KNOWN.with(|known| {
        let signed;
        let files = if how % 2 == 1 {
            signed = known.signed(rest);
            [known.ca.as_bytes(), signed.as_bytes(), known.files[2].as_bytes()]
        } else {
            split(rest)
        };
        if how / 2 % 4 == 3 {
            let old = known.files.each_ref().map(String::as_str);
            return check_again(known.folder.path(), old, files);
        }
        let (stage, leaf) = check_files(files);
        // Nothing here signs a certificate that was changed.
        let is_known = leaf.is_none_or(|leaf| how % 2 == 1 || known.certificates.contains(&leaf));
        assert!(is_known, "only certificates that an authority has signed are used");
        stage
    })
}

/// Returns the three files of an input. Those that are missing are empty.
fn split(input: &[u8]) -> [&[u8]; 3] {
    let mut parts = input.splitn(3, |&byte| byte == NEXT);
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

impl Known {
    fn new() -> Self {
        let (issuer, ca) = authority("organisation", &fixed_key(1));
        let key = fixed_key(2);
        let leaf = leaf(&["pushpull://digits/worker/0"]).signed_by(&key, &issuer).expect("a certificate");
        let files = [ca.clone(), leaf.pem(), key.serialize_pem()];
        let corpus = TARGET.corpus().expect("the valid inputs");
        let texts = corpus.inputs().filter(|input| input.first().is_some_and(|how| how % 2 == 0));
        let texts = texts.flat_map(|input| split(&input[1..]));
        let certificates = texts.flat_map(CertificateDer::pem_slice_iter).flatten();
        let certificates = certificates.map(|certificate| certificate.to_vec()).collect();
        Self { issuer, ca, files, certificates, folder: tempfile::tempdir().expect("a folder") }
    }

    /// Signs the content of a certificate, whatever it is.
    fn signed(&self, content: &[u8]) -> String {
        let signature = self.issuer.key().sign(content).expect("a signature");
        let signature = element(3, &[&[0], &signature[..]].concat());
        let der = element(0x30, &[content, &SIGNED_WITH, &signature].concat());
        pem::encode_config(&Pem::new("CERTIFICATE", der), EncodeConfig::new().set_line_ending(LineEnding::LF))
    }
}

/// Returns a key that is always the same, so that the inputs of the corpus stay valid.
fn fixed_key(number: u8) -> KeyPair {
    let der = [&ED25519[..], &[number; 32]].concat();
    KeyPair::try_from(&PrivatePkcs8KeyDer::from(der)).expect("a key")
}

fn new_key(algorithm: &'static SignatureAlgorithm) -> KeyPair {
    KeyPair::generate_for(algorithm).expect("random numbers")
}

/// Makes an authority, and returns its certificate as a text.
fn authority(name: &str, key: &KeyPair) -> (Issuer<'static, KeyPair>, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.distinguished_name.push(DnType::CommonName, name);
    let text = params.self_signed(key).expect("a certificate").pem();
    let key = KeyPair::try_from(&PrivatePkcs8KeyDer::from(key.serialize_der())).expect("a key");
    (Issuer::new(params, key), text)
}

/// Describes the certificate with these names.
fn leaf(names: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let name = |name: &&str| match name.contains("://") {
        true => SanType::URI((*name).try_into().expect("ASCII")),
        false => SanType::DnsName((*name).try_into().expect("ASCII")),
    };
    params.subject_alt_names = names.iter().map(name).collect();
    params
}

/// Encodes an element of DER.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let bytes = length.to_be_bytes();
    let long = &bytes[bytes.iter().position(|&byte| byte != 0).unwrap_or(bytes.len() - 1)..];
    let head = match length {
        0..0x80 => vec![tag, length as u8],
        _ => [&[tag, 0x80 | long.len() as u8], long].concat(),
    };
    [&head[..], content].concat()
}

/// Returns the first element in the content of an element of DER.
fn first_within(der: &[u8]) -> &[u8] {
    let sizes = |der: &[u8]| match der[1] {
        short @ 0..0x80 => (2, usize::from(short)),
        long => {
            let digits = usize::from(long & 0x7f);
            (2 + digits, der[2..2 + digits].iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte)))
        }
    };
    let content = &der[sizes(der).0..];
    let (head, length) = sizes(content);
    &content[..head + length]
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    const WORKER: &str = "pushpull://digits/worker/0";
    let key = fixed_key(1);
    let (issuer, ca) = authority("organisation", &key);
    let text = |how: u8, files: [&str; 3]| [&[how], files.map(str::as_bytes).join(&NEXT).as_slice()].concat();
    let mut seeds = Vec::new();
    for (name, names) in [
        ("worker", &[WORKER, "w0.example"][..]),
        ("tasks", &[WORKER, "pushpull://digits/chief/0", "pushpull://digits/ps/0"]),
        ("client", &["pushpull://digits/client/read"]),
        ("two-jobs", &[WORKER, "pushpull://other/worker/0"]),
        ("none", &["w0.example", "https://w0.example"]),
    ] {
        let key = new_key(&rcgen::PKCS_ECDSA_P256_SHA256);
        let own = leaf(names).signed_by(&key, &issuer).expect("a certificate").pem();
        seeds.push((name.to_owned(), text(0, [&ca, &own, &key.serialize_pem()])));
        let key = fixed_key(2);
        let signed = leaf(names).signed_by(&key, &issuer).expect("a certificate");
        let how = if name == "worker" { 7 } else { 1 };
        seeds.push((format!("{name}-signed"), [&[how], first_within(signed.der())].concat()));
    }
    let mut between = CertificateParams::default();
    between.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    between.distinguished_name.push(DnType::CommonName, "between");
    let (lower, key) = (new_key(&rcgen::PKCS_ECDSA_P384_SHA384), new_key(&rcgen::PKCS_ED25519));
    let middle = between.signed_by(&lower, &issuer).expect("a certificate").pem();
    let own = leaf(&[WORKER]).signed_by(&key, &Issuer::new(between, lower)).expect("a certificate");
    let other = authority("other", &new_key(&rcgen::PKCS_ECDSA_P256_SHA256)).1;
    let (chain, both) = (format!("{}{middle}", own.pem()), format!("# two\n{other}\n{ca}"));
    seeds.push(("chain".to_owned(), text(6, [&both, &chain, &key.serialize_pem()])));
    let mut odd = leaf(&[WORKER]);
    let unknown = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 9999, 1], vec![4, 1, 0]);
    odd.custom_extensions.push(unknown);
    odd.extended_key_usages.truncate(1);
    let odd = odd.signed_by(&fixed_key(2), &issuer).expect("a certificate");
    seeds.push(("one-use".to_owned(), [&[1], first_within(odd.der())].concat()));
    seeds
}
