//! The names in certificates: URIs with the job, and with a task or the role of a client.

use pushpull_messages::id::TaskId;

use crate::client_role::ClientRole;

/// How the URI of every task and of every client begins.
const SCHEME: &str = "pushpull://";
/// The longest name of a job in a certificate, in characters.
const JOB_CHARS_MAX: usize = 64;

/// Returns the URI of a task, such as `pushpull://0123456789abcdef/worker/1`. `job` is the name of the job.
pub(crate) fn uri(job: &str, task: TaskId) -> String {
    format!("{SCHEME}{job}/{}/{}", task.job, task.index)
}

/// Returns the URI of a client, such as `pushpull://digits/client/read`.
pub(crate) fn client_uri(job: &str, role: ClientRole) -> String {
    format!("{SCHEME}{job}/client/{role}")
}

/// Returns the task that a URI names, if it is a task of this job. Every task has exactly one URI.
pub(crate) fn task_of(job: &str, text: &str) -> Option<TaskId> {
    let (role, index) = text.strip_prefix(SCHEME)?.strip_prefix(job)?.strip_prefix('/')?.split_once('/')?;
    let task = TaskId::new(role.parse().ok()?, index.parse().ok()?);
    (uri(job, task) == text).then_some(task)
}

/// Returns the role of the client that a URI names, if it is a client of this job. Every role has exactly one
/// URI, which is not that of a task.
pub(crate) fn client_of(job: &str, text: &str) -> Option<ClientRole> {
    ClientRole::ALL.into_iter().find(|&role| client_uri(job, role) == text)
}

/// Returns true if a URI has the scheme of pushpull, whatever follows. Schemes have no case.
pub(crate) fn is_ours(text: &str) -> bool {
    text.split_once(':').is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("pushpull"))
}

/// Returns the job of a URI that names a task or a client.
pub(crate) fn job_of(text: &str) -> Option<&str> {
    let (job, _) = text.strip_prefix(SCHEME)?.split_once('/')?;
    let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_job = (1..=JOB_CHARS_MAX).contains(&job.len()) && job.bytes().all(valid);
    (is_job && (task_of(job, text).is_some() || client_of(job, text).is_some())).then_some(job)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_task_has_exactly_one_uri() {
        for task in [TaskId::CHIEF, TaskId::ps(3), TaskId::worker(u32::MAX)] {
            assert_eq!(task_of("ab", &uri("ab", task)), Some(task));
            assert_eq!(job_of(&uri("ab", task)), Some("ab"));
        }
        for text in [
            "pushpull://ac/worker/1",
            "pushpull://ab/worker/01",
            "pushpull://ab/worker/+1",
            "pushpull://ab/master/0",
            "pushpull://ab/worker/1/",
            "pushpull://ab/worker",
            "pushpull://ab//1",
            "pushpull://abc/worker/1",
            "https://ab/worker/1",
            "pushpull://ab/client/run",
        ] {
            assert_eq!(task_of("ab", text), None, "{text}");
        }
    }

    #[test]
    fn a_client_has_a_role_instead_of_an_index() {
        for role in ClientRole::ALL {
            let text = client_uri("ab", role);
            assert_eq!((client_of("ab", &text), task_of("ab", &text)), (Some(role), None));
            assert_eq!(job_of(&text), Some("ab"));
        }
        for text in ["pushpull://ac/client/run", "pushpull://ab/client/Run", "pushpull://ab/client/0"] {
            assert_eq!(client_of("ab", text), None, "{text}");
        }
    }

    #[test]
    fn a_job_has_a_short_name_in_lower_case() {
        let long = "a".repeat(64);
        for job in ["a", "0-z", &long] {
            assert_eq!(job_of(&uri(job, TaskId::CHIEF)), Some(job));
        }
        for job in ["", "A", "a_b", "a.b", "\u{e9}", &(long + "a")] {
            assert_eq!(job_of(&uri(job, TaskId::CHIEF)), None, "{job}");
        }
        for text in
            ["pushpull://a/b/c/0", "pushpull://a/worker", "Pushpull://a/worker/0", "pushpull:a/worker/0"]
        {
            assert!(job_of(text).is_none() && is_ours(text), "{text}");
        }
        assert!(!is_ours("spiffe://a/worker/0") && !is_ours("pushpull"));
    }

    proptest! {
        #[test]
        fn a_uri_with_a_job_names_one_thing(text in "(?i:pushpull)://[a-z0-9A-Z-]{0,3}/[a-z]{0,8}/[0-9a-z]{0,4}") {
            if let Some(job) = job_of(&text) {
                let again = match (task_of(job, &text), client_of(job, &text)) {
                    (Some(task), None) => uri(job, task),
                    (None, Some(role)) => client_uri(job, role),
                    both => panic!("{both:?}"),
                };
                prop_assert_eq!(again, text);
            }
        }
    }
}
