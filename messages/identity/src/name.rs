//! The name of a task in its certificate: a URI with the job's id, the role and the index.

use pushpull_messages::id::TaskId;

/// Returns the URI of a task, such as `pushpull://0123456789abcdef/worker/1`. `job` is the id of the job.
pub(crate) fn uri(job: &str, task: TaskId) -> String {
    format!("pushpull://{job}/{}/{}", task.job, task.index)
}

/// Returns the task that a URI names, if it is a task of this job. Every task has exactly one URI.
pub(crate) fn task_of(job: &str, text: &str) -> Option<TaskId> {
    let (role, index) =
        text.strip_prefix("pushpull://")?.strip_prefix(job)?.strip_prefix('/')?.split_once('/')?;
    let task = TaskId::new(role.parse().ok()?, index.parse().ok()?);
    (uri(job, task) == text).then_some(task)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_has_exactly_one_uri() {
        for task in [TaskId::CHIEF, TaskId::ps(3), TaskId::worker(u32::MAX)] {
            assert_eq!(task_of("ab", &uri("ab", task)), Some(task));
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
        ] {
            assert_eq!(task_of("ab", text), None, "{text}");
        }
    }
}
