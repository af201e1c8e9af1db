//! The reasons why a certificate proves nothing.

/// The reason why a peer's certificate is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untrusted {
    /// The peer shows the wrong number of certificates. The value is that number.
    #[error("it shows {0} certificates, expected its own and that of the job's authority")]
    Chain(usize),
    /// The peer's certificate is that of another authority.
    #[error(
        "its certificate is from another authority than the join string names; give all tasks of the job \
             the same join string"
    )]
    Authority,
    /// The certificate is not valid any more.
    #[error("its certificate has expired; compare the clocks of the hosts, or restart the task")]
    Expired,
    /// The certificate is not valid yet.
    #[error("its certificate is not valid yet; compare the clocks of the hosts")]
    NotYetValid,
    /// The certificate cannot be read, its signature is wrong, or it is for another purpose. The value says
    /// which.
    #[error("its certificate is not valid: {0}")]
    Invalid(String),
    /// The certificate names no task of this job.
    #[error("its certificate names no task of this job; give all tasks of the job the same join string")]
    OtherJob,
}
