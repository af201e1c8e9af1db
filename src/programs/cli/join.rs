//! The flags with which a task proves who it is, and the tool `pushpull join`.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::builder::{FalseyValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use pushpull_identity::{
    Authority, AuthorityError, ClientRole, ClientString, Credentials, JoinString, TlsFiles,
};
use pushpull_messages::cluster::{ClusterConfig, ClusterSpec};
use pushpull_messages::id::{JobName, TaskId};

use super::tls::TlsArgs;
use crate::programs::exit::{Failure, Outcome};

/// The environment variable that can hold the join string instead of a file. A flag must not hold it, because
/// every user of a host can read the command lines of its processes.
pub(crate) const JOIN_ENV: &str = "PUSHPULL_JOIN";
/// The environment variable that can name the authority's file, for programs without a command line.
pub(crate) const AUTHORITY_ENV: &str = "PUSHPULL_AUTHORITY";
/// The environment variable that stands for `--insecure`, for programs without a command line.
pub(crate) const INSECURE_ENV: &str = "PUSHPULL_INSECURE";

/// The flags with which a task proves who it is.
#[derive(Clone, Debug, Args)]
pub(super) struct JoinArgs {
    /// File with the job's join string, which only its owner can read; the tasks then encrypt their TCP
    /// connections and prove who they are. Without a file, the join string is taken from the variable
    /// PUSHPULL_JOIN
    #[arg(long, value_name = "FILE")]
    join_file: Option<PathBuf>,
    /// File of the job's authority, for the task that hosts the chief; `pushpull join new` writes such a
    /// file. It has the join string, too
    #[arg(long, env = AUTHORITY_ENV, value_name = "FILE")]
    authority: Option<PathBuf>,
    /// Let other hosts reach this task although it has no join string and no certificate: everybody who
    /// reaches it can then read the model, change it and end the job. Without this flag, such a task listens
    /// only on loopback
    #[arg(long, env = INSECURE_ENV, value_parser = FalseyValueParser::new())]
    insecure: bool,
    #[command(flatten)]
    tls: TlsArgs,
}

impl JoinArgs {
    /// Returns the credentials of a server of sessions; `None` without a join string and a certificate.
    ///
    /// # Errors
    /// The same as those of [`credentials`](Self::credentials). The first task of the cluster needs the
    /// authority.
    pub(super) fn server_credentials(
        &self,
        cluster: &ClusterSpec,
        task: TaskId,
    ) -> Result<Option<Credentials>, Failure> {
        let env = std::env::var(JOIN_ENV).ok();
        self.server_credentials_with(env.as_deref(), cluster, task)
    }

    fn server_credentials_with(
        &self,
        env: Option<&str>,
        cluster: &ClusterSpec,
        task: TaskId,
    ) -> Result<Option<Credentials>, Failure> {
        if let Some(files) = self.files(env)? {
            let credentials = Credentials::of_server_with_files(files, cluster.clone(), task);
            return credentials.map(Some).map_err(Failure::usage);
        }
        let first = cluster.first_task();
        let credentials = match self.given(env, task == first)? {
            Given::Nothing => return Ok(None),
            Given::UnusedAuthority => {
                return Err(Failure::Usage(format!(
                    "--authority: {task} is not the first task of the cluster: give the authority to {first}, and {task} \
                     only the join string"
                )));
            }
            Given::NoAuthority => {
                return Err(Failure::Usage(format!(
                    "{task} is the first task of the cluster and has a join string, so it needs the cluster's --authority \
                     FILE"
                )));
            }
            Given::Authority(authority) => Credentials::of_first_server(*authority, cluster.clone()),
            Given::Join(join) => Credentials::of_server(join, cluster.clone(), task),
        };
        Ok(Some(credentials.context("cannot make the credentials of this server")?))
    }

    /// Returns whether other hosts may reach this task although it has no join string.
    pub(super) const fn insecure(&self) -> bool {
        self.insecure
    }

    /// Returns the credentials of the task's process; `None` without a join string and a certificate.
    ///
    /// # Errors
    /// Returns an error if the join string or the authority is not valid, if others can read their files, if
    /// two join strings differ, or if the authority is missing or given to a task that does not use it.
    pub(super) fn credentials(&self, cluster: &ClusterConfig) -> Result<Option<Credentials>, Failure> {
        let env = std::env::var(JOIN_ENV).ok();
        self.credentials_with(env.as_deref(), cluster)
    }

    fn credentials_with(
        &self,
        env: Option<&str>,
        cluster: &ClusterConfig,
    ) -> Result<Option<Credentials>, Failure> {
        let task = cluster.task();
        if task.job == JobName::Evaluator {
            // It reads checkpoints, and talks to no other task.
            return Ok(None);
        }
        if let Some(files) = self.files(env)? {
            let credentials = Credentials::of_task_with_files(files, cluster.cluster().clone(), task);
            return credentials.map(Some).map_err(Failure::usage);
        }
        let credentials = match self.given(env, cluster.hosts_chief())? {
            Given::Nothing => return Ok(None),
            Given::UnusedAuthority => {
                return Err(Failure::Usage(format!(
                    "--authority: {task} does not host the chief: give {task} only the join string"
                )));
            }
            Given::NoAuthority => {
                return Err(Failure::Usage(format!(
                    "{task} hosts the chief and has a join string, so it needs the job's --authority FILE"
                )));
            }
            Given::Authority(authority) => Credentials::of_chief(*authority, cluster.cluster().clone(), task),
            Given::Join(join) => Credentials::of_task(join, cluster.cluster().clone(), task),
        };
        Ok(Some(credentials.context("cannot make the credentials of this task")?))
    }

    /// Returns the files of the task's certificate; `None` if it was not made elsewhere.
    fn files(&self, env: Option<&str>) -> Result<Option<TlsFiles>, Failure> {
        self.tls.files(&[
            ("--join-file", self.join_file.is_some()),
            (JOIN_ENV, env.is_some_and(|text| !text.is_empty())),
            ("--authority", self.authority.is_some()),
        ])
    }

    /// Returns what this task was given. `leads` is true if it must have the authority.
    fn given(&self, env: Option<&str>, leads: bool) -> Result<Given, Failure> {
        let join = join_string(self.join_file.as_deref(), env)?;
        Ok(match (&self.authority, join) {
            (None, None) => Given::Nothing,
            (Some(_), _) if !leads => Given::UnusedAuthority,
            (Some(path), join) => {
                let authority = Authority::read(path).map_err(wrong_authority)?;
                if join.is_some_and(|join| join != *authority.join()) {
                    return Err(Failure::Usage(format!(
                        "--authority {}: the task has the join string of another authority; leave it out, or give \
                         the one that `pushpull join new` has printed",
                        path.display()
                    )));
                }
                Given::Authority(Box::new(authority))
            }
            (None, Some(_)) if leads => Given::NoAuthority,
            (None, Some(join)) => Given::Join(join),
        })
    }
}

/// What a task was given to prove who it is.
enum Given {
    Nothing,
    Join(JoinString),
    Authority(Box<Authority>),
    /// The authority, although this task has no use for it.
    UnusedAuthority,
    /// A join string, although this task needs the authority.
    NoAuthority,
}

/// Returns the join string that a file or the environment has.
///
/// # Errors
/// Returns an error if the join string is not valid, if others can read its file, or if there are two
/// different ones.
pub(super) fn join_string(file: Option<&Path>, env: Option<&str>) -> Result<Option<JoinString>, Failure> {
    let read = |path: &Path| {
        let join = JoinString::read(path);
        join.map_err(|error| Failure::Usage(format!("--join-file {}: {error}", path.display())))
    };
    let parse =
        |text: &str| text.trim().parse().map_err(|error| Failure::Usage(format!("{JOIN_ENV}: {error}")));
    let file = file.map(read).transpose()?;
    let env: Option<JoinString> = env.filter(|text| !text.is_empty()).map(parse).transpose()?;
    match (file, env) {
        (Some(file), Some(env)) if file != env => Err(Failure::Usage(format!(
            "--join-file and {JOIN_ENV} have different join strings: leave out one of the two"
        ))),
        (file, env) => Ok(file.or(env)),
    }
}

fn wrong_authority(error: AuthorityError) -> Failure {
    Failure::Usage(format!("--authority: {error}"))
}

/// The tools for join strings.
#[derive(Debug, Subcommand)]
pub(super) enum JoinTool {
    /// Write the authority of a new job to a file, and print the join string for its tasks
    New(NewArgs),
    /// Print the token for the HTTP endpoints of a job with a join string, for Prometheus, curl and browsers
    Token(TokenArgs),
    /// Print the certificate of a job's authority, with which Prometheus, curl and browsers check that an
    /// HTTP endpoint belongs to the job
    Certificate(CertificateArgs),
    /// Print a client string, with which a program can be a client of the servers of a cluster, and nothing
    /// else
    Client(ClientArgs),
}

#[derive(Debug, Args)]
pub(super) struct NewArgs {
    /// New file for the authority; the task that hosts the chief needs it
    #[arg(long, value_name = "FILE")]
    authority: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct CertificateArgs {
    /// File of the job's authority
    #[arg(long, env = AUTHORITY_ENV, value_name = "FILE")]
    authority: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct TokenArgs {
    /// File with the job's join string; without a file, the join string is taken from the variable
    /// PUSHPULL_JOIN
    #[arg(long, value_name = "FILE")]
    join_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct ClientArgs {
    /// What the client may do: everything, or only what changes and creates no variable
    #[arg(long, value_name = "ROLE", default_value = "run", value_parser = client_role())]
    role: ClientRole,
    /// File with the cluster's join string; without a file, the join string is taken from the variable
    /// PUSHPULL_JOIN
    #[arg(long, value_name = "FILE")]
    join_file: Option<PathBuf>,
}

fn client_role() -> impl TypedValueParser<Value = ClientRole> {
    let names = ClientRole::ALL.map(ClientRole::as_str);
    PossibleValuesParser::new(names).try_map(|name| name.parse::<ClientRole>())
}

impl JoinTool {
    /// Runs the tool.
    pub(super) fn run(self) -> Outcome {
        let line = match self {
            Self::New(NewArgs { authority: path }) => {
                let authority = Authority::new()?;
                authority.write(&path).map_err(wrong_authority)?;
                authority.join().text()
            }
            Self::Certificate(CertificateArgs { authority: path }) => {
                let authority = Authority::read(&path).map_err(wrong_authority)?;
                authority.certificate_pem().trim_end().to_owned()
            }
            Self::Token(TokenArgs { join_file }) => {
                let env = std::env::var(JOIN_ENV).ok();
                let join = join_string(join_file.as_deref(), env.as_deref())?;
                let none = || Failure::Usage(format!("no join string: give --join-file FILE or {JOIN_ENV}"));
                join.ok_or_else(none)?.http_token()
            }
            Self::Client(ClientArgs { role, join_file }) => {
                let env = std::env::var(JOIN_ENV).ok();
                let join = join_string(join_file.as_deref(), env.as_deref())?;
                let none = || Failure::Usage(format!("no join string: give --join-file FILE or {JOIN_ENV}"));
                ClientString::of(&join.ok_or_else(none)?, role).text()
            }
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}")?;
        Ok(out.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use pushpull_messages::cluster::ClusterSpec;
    use tempfile::TempDir;

    use super::*;

    /// Two authorities in files, and a file with the join string of the first one.
    struct Files {
        dir: TempDir,
        joins: [String; 2],
    }

    impl Files {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let joins = ["one", "other"].map(|name| {
                let authority = Authority::new().unwrap();
                authority.write(&dir.path().join(name)).unwrap();
                authority.join().text()
            });
            let files = Self { dir, joins };
            std::fs::write(files.path("join"), format!("{}\n", files.joins[0])).unwrap();
            set_permissions(files.path("join"), Permissions::from_mode(0o600)).unwrap();
            files
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn read(&self, job: JobName, files: [Option<&str>; 2], env: Option<&str>) -> Result<bool, String> {
            let [join_file, authority] = files.map(|name| name.map(|name| self.path(name)));
            let jobs = [(JobName::Chief, "c:1"), (JobName::Ps, "p:1"), (JobName::Worker, "w:1")];
            let jobs = jobs.map(|(job, address)| (job, vec![address]));
            let cluster = ClusterConfig::new(ClusterSpec::new(jobs).unwrap(), job, Some(0)).unwrap();
            let credentials = JoinArgs { join_file, authority, insecure: false, tls: TlsArgs::default() }
                .credentials_with(env, &cluster);
            told(credentials)
        }

        /// Reads the credentials of the server `b/INDEX` in a cluster whose first task is `a/0`.
        fn server(&self, task: &str, files: [Option<&str>; 2], env: Option<&str>) -> Result<bool, String> {
            let [join_file, authority] = files.map(|name| name.map(|name| self.path(name)));
            let [a, b] = ["a", "b"].map(|job| job.parse::<JobName>().unwrap());
            let cluster = ClusterSpec::new([(b, vec!["b:1"]), (a, vec!["a:1"])]).unwrap();
            let task = TaskId::new(task.parse().unwrap(), 0);
            let args = JoinArgs { join_file, authority, insecure: false, tls: TlsArgs::default() };
            told(args.server_credentials_with(env, &cluster, task))
        }
    }

    /// Returns whether there are credentials, or why they cannot be used.
    fn told(credentials: Result<Option<Credentials>, Failure>) -> Result<bool, String> {
        match credentials {
            Ok(credentials) => Ok(credentials.is_some()),
            Err(Failure::Usage(reason)) => Err(reason),
            Err(failure) => panic!("{failure}"),
        }
    }

    #[test]
    fn a_program_says_only_once_who_it_is() {
        let files = Files::new();
        let path = |name| files.path(name);
        let tls = TlsFiles { ca: path("ca"), certificate: path("certificate"), key: path("key") };
        let args = |join_file, authority| JoinArgs {
            join_file,
            authority,
            insecure: false,
            tls: TlsArgs::of(Some(tls.clone())),
        };
        let (join, authority) = (Some(path("join")), Some(path("one")));
        for (args, env, other) in [
            (args(join, None), None, "--join-file"),
            (args(None, None), Some("x"), "PUSHPULL_JOIN"),
            (args(None, authority), None, "--authority"),
        ] {
            let error = args.files(env).unwrap_err().to_string();
            let expected = "both say who this program is: leave out one of the two";
            assert_eq!(error, format!("--tls-cert and {other} {expected}"));
        }
        assert_eq!(args(None, None).files(Some("")).unwrap(), Some(tls.clone()));
        let cluster = ClusterSpec::new([(JobName::Ps, vec!["p:1"])]).unwrap();
        let error = args(None, None).server_credentials_with(None, &cluster, TaskId::ps(0)).unwrap_err();
        assert!(error.to_string().starts_with("--tls-ca: cannot read "), "{error}");
    }

    #[test]
    fn the_first_server_has_the_authority() {
        let files = Files::new();
        let join = Some(files.joins[0].as_str());
        assert_eq!(files.server("a", [None; 2], None), Ok(false));
        assert_eq!(files.server("a", [None, Some("one")], None), Ok(true));
        assert_eq!(files.server("a", [None, Some("one")], join), Ok(true));
        assert_eq!(files.server("b", [Some("join"), None], None), Ok(true));
        assert_eq!(
            files.server("b", [None, Some("one")], join),
            Err("--authority: b/0 is not the first task of the cluster: give the authority to a/0, and b/0 only the \
                 join string"
                .to_owned())
        );
        assert_eq!(
            files.server("a", [Some("join"), None], None),
            Err("a/0 is the first task of the cluster and has a join string, so it needs the cluster's --authority \
                 FILE"
                .to_owned())
        );
        let client = ClientString::of(&files.joins[0].parse().unwrap(), ClientRole::Run).text();
        let error = files.server("b", [None; 2], Some(&client)).unwrap_err();
        assert!(error.starts_with("PUSHPULL_JOIN: got a client string"), "{error}");
    }

    #[test]
    fn a_join_string_comes_from_a_file_or_the_environment() {
        let files = Files::new();
        let join = Some(files.joins[0].as_str());
        assert_eq!(files.read(JobName::Ps, [None; 2], None), Ok(false));
        assert_eq!(files.read(JobName::Ps, [None; 2], Some("")), Ok(false));
        for (given, env) in [([Some("join"), None], None), ([None; 2], join), ([Some("join"), None], join)] {
            assert_eq!(files.read(JobName::Worker, given, env), Ok(true));
            assert_eq!(files.read(JobName::Evaluator, given, env), Ok(false));
        }
        assert_eq!(files.read(JobName::Chief, [None, Some("one")], None), Ok(true));
        assert_eq!(files.read(JobName::Chief, [Some("join"), Some("one")], join), Ok(true));
    }

    #[test]
    fn what_does_not_fit_is_one_line_without_the_secret() {
        let files = Files::new();
        std::fs::write(files.path("broken"), &files.joins[0][..100]).unwrap();
        set_permissions(files.path("broken"), Permissions::from_mode(0o600)).unwrap();
        std::fs::write(files.path("open"), &files.joins[0]).unwrap();
        set_permissions(files.path("open"), Permissions::from_mode(0o644)).unwrap();
        let [join, other] = files.joins.each_ref().map(|join| Some(join.as_str()));
        for (job, given, env, words) in [
            (
                JobName::Ps,
                [Some("join"), None],
                other,
                "--join-file and PUSHPULL_JOIN have different join strings",
            ),
            (JobName::Ps, [Some("broken"), None], None, "the join string is not valid"),
            (JobName::Ps, [Some("open"), None], None, "has mode 0644"),
            (JobName::Ps, [Some("none"), None], None, "cannot read"),
            (JobName::Ps, [None; 2], Some("pushpull1.x"), "PUSHPULL_JOIN: the join string is not valid"),
            (JobName::Ps, [None, Some("one")], join, "ps/0 does not host the chief"),
            (JobName::Chief, [None, Some("one")], other, "the join string of another authority"),
            (JobName::Chief, [None, Some("join")], None, "is not an authority"),
            (JobName::Chief, [None; 2], join, "needs the job's --authority FILE"),
        ] {
            let error = files.read(job, given, env).unwrap_err();
            assert!(error.contains(words) && !error.contains('\n'), "{error}");
            assert!(files.joins.iter().all(|join| !error.contains(&join[90..120])), "{error}");
        }
    }
}
