//! Decides what protects an endpoint, by the address at which it listens and by what its process was given.
//! This module must not depend on sockets.
//!
//! Wanted properties: (A) an endpoint that other hosts can reach demands a token, unless that was explicitly
//! given up; (B) an endpoint on loopback needs nothing; (C) more identity never means less protection.

/// What protects an endpoint from other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    /// Only this host can reach the endpoint, so reading needs no token.
    Loopback,
    /// The endpoint speaks HTTPS, and every request needs the token.
    Https,
    /// Every request needs the token, which travels unencrypted.
    Token,
    /// Everybody who reaches the endpoint can read it.
    Nothing,
}

/// What a process was given to protect its endpoint with.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Given {
    /// The endpoint listens at a loopback address.
    pub is_local: bool,
    /// The process has a certificate, or will get one with its join string.
    pub is_identified: bool,
    /// The process was given a token, or has one with its join string.
    pub has_token: bool,
    /// Other hosts may read the endpoint without any protection.
    pub is_insecure: bool,
}

impl Protection {
    /// Returns the protection of an endpoint; `None` if other hosts could reach it, and nothing protects it.
    pub(super) const fn of(given: Given) -> Option<Self> {
        match given {
            Given { is_local: true, .. } => Some(Self::Loopback),
            Given { is_identified: true, has_token: true, .. } => Some(Self::Https),
            // It would be encrypted, and everybody could read it.
            Given { is_identified: true, .. } => None,
            Given { has_token: true, .. } => Some(Self::Token),
            Given { is_insecure: true, .. } => Some(Self::Nothing),
            _ => None,
        }
    }

    /// Returns true if a client needs the token to read.
    pub(super) const fn guards_reading(self) -> bool {
        matches!(self, Self::Https | Self::Token)
    }

    /// Returns the scheme of the endpoint's URL.
    pub(super) const fn scheme(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Loopback | Self::Token | Self::Nothing => "http",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Given> {
        (0..16).map(|bits: u8| Given {
            is_local: bits & 1 != 0,
            is_identified: bits & 2 != 0,
            has_token: bits & 4 != 0,
            is_insecure: bits & 8 != 0,
        })
    }

    /// Checks (A) and (B).
    #[test]
    fn only_loopback_is_read_without_a_token() {
        for given in all() {
            let protection = Protection::of(given);
            let guards = protection.is_some_and(Protection::guards_reading);
            assert_eq!(guards, !given.is_local && given.has_token, "{given:?}");
            let open = given.is_insecure && !given.is_identified;
            assert_eq!(protection.is_none(), !given.is_local && !given.has_token && !open, "{given:?}");
        }
    }

    /// Checks (C).
    #[test]
    fn more_identity_never_protects_less() {
        let rank = |given| match Protection::of(given) {
            None | Some(Protection::Loopback) => 3,
            Some(Protection::Https) => 2,
            Some(Protection::Token) => 1,
            Some(Protection::Nothing) => 0,
        };
        for given in all().filter(|given| Protection::of(*given).is_some()) {
            assert!(rank(Given { is_identified: true, ..given }) >= rank(given), "{given:?}");
            assert!(rank(Given { has_token: true, ..given }) >= rank(given), "{given:?}");
        }
    }

    #[test]
    fn a_certificate_means_https_off_loopback() {
        for given in all() {
            let scheme = Protection::of(given).map_or("none", Protection::scheme);
            let https = given.is_identified && given.has_token && !given.is_local;
            assert_eq!(scheme == "https", https, "{given:?}");
        }
    }
}
