//! Tests of the manifests for Kubernetes: they are valid, they agree with each other, and they use only
//! flags that the programs have.

use std::collections::BTreeSet;
use std::process::Command;

use pushpull_messages::job::JobSpec;
use serde_json::Value;

use crate::venv::Venv;
use crate::{deployed, programs, read};

const READ: &str = "
import json, pathlib, sys
import kubernetes_validate, yaml
manifests = []
for path in sorted(pathlib.Path(sys.argv[1]).glob('*.yaml')):
    for manifest in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(manifest, '1.34', strict=True)
        manifests.append(manifest)
print(json.dumps(manifests))
";

/// Returns all manifests, validated and parsed. Returns `None` if the validator is not installed.
fn manifests(test: &str) -> Option<Vec<Value>> {
    let venv = Venv::find(test)?;
    let folder = deployed("kubernetes");
    Some(serde_json::from_str(&venv.run(READ, &[folder.as_os_str()])).expect("the script prints JSON"))
}

fn named<'a>(manifests: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = manifests.iter().find(|one| one["kind"] == kind && one["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("there is no {kind} {name}"))
}

fn workloads(manifests: &[Value]) -> [&Value; 3] {
    [
        named(manifests, "Job", "pushpull-chief"),
        named(manifests, "StatefulSet", "pushpull-ps"),
        named(manifests, "Job", "pushpull-worker"),
    ]
}

#[test]
fn the_manifests_are_valid_and_agree() {
    let Some(manifests) = manifests("that Kubernetes takes the manifests") else { return };
    let told = &named(&manifests, "ConfigMap", "pushpull-cluster")["data"];
    let hosts = |name: &str| told[name].as_str().expect("a list of hosts").split(',').map(str::to_owned);
    let expected = |job: &str, count: &Value| {
        let count = count.as_u64().expect("a number of tasks");
        let host = |index| format!("pushpull-{job}-{index}.pushpull-{job}:2222");
        (0..count).map(host).collect::<Vec<_>>()
    };
    let [chief, ps, workers] = workloads(&manifests);
    assert_eq!(hosts("PS_HOSTS").collect::<Vec<_>>(), expected("ps", &ps["spec"]["replicas"]));
    assert_eq!(workers["spec"]["completions"], workers["spec"]["parallelism"]);
    assert_eq!(
        hosts("WORKER_HOSTS").collect::<Vec<_>>(),
        expected("worker", &workers["spec"]["completions"])
    );
    let pod = &chief["spec"]["template"]["spec"];
    let name = [&pod["hostname"], &pod["subdomain"]].map(|part| part.as_str().expect("a name")).join(".");
    assert_eq!(hosts("CHIEF_HOST").collect::<Vec<_>>(), [format!("{name}:2222")]);

    let claims: BTreeSet<_> = manifests.iter().filter_map(|one| one["metadata"]["name"].as_str()).collect();
    for workload in workloads(&manifests) {
        let template = &workload["spec"]["template"];
        let service = named(&manifests, "Service", workload["metadata"]["name"].as_str().expect("a name"));
        assert_eq!(service["spec"]["clusterIP"], "None");
        assert_eq!(service["spec"]["publishNotReadyAddresses"], true);
        assert_eq!(service["spec"]["selector"], template["metadata"]["labels"]);
        // Prometheus finds the tasks through the chief's list. With annotations it would find, and count,
        // each task a second time.
        let annotations = template["metadata"]["annotations"].as_object();
        assert!(annotations.is_none_or(|all| all.keys().all(|key| !key.starts_with("prometheus.io/"))));
        let pod = &template["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        let container = &pod["containers"][0];
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
            let asked = &container[probe]["httpGet"];
            // A task with a join string speaks HTTPS.
            assert_eq!((&asked["path"], &asked["scheme"]), (&path.into(), &"HTTPS".into()));
        }
        check_identity(pod);
        for volume in pod["volumes"].as_array().expect("volumes") {
            let kept = [&volume["configMap"]["name"], &volume["persistentVolumeClaim"]["claimName"]];
            for name in kept.into_iter().filter_map(Value::as_str) {
                assert!(claims.contains(name), "nothing is called {name}");
            }
        }
    }
    let job = named(&manifests, "ConfigMap", "pushpull-job")["data"]["job.json"].as_str().expect("a job");
    JobSpec::from_json(job).expect("the job can be run");
}

/// Checks that a pod has the job's authority or its join string, and that no command line has a secret.
fn check_identity(pod: &Value) {
    let container = &pod["containers"][0];
    let env = container["env"].as_array().expect("variables");
    let value = |name: &str| env.iter().find(|one| one["name"] == name);
    let is_chief = container["name"] == "chief";
    assert_eq!(value("PUSHPULL_JOIN").is_some(), !is_chief);
    if let Some(join) = value("PUSHPULL_JOIN") {
        assert_eq!(join["valueFrom"]["secretKeyRef"]["name"], "pushpull-join");
    }
    if is_chief {
        let path = value("PUSHPULL_AUTHORITY").expect("the chief has the authority")["value"].as_str();
        let copy = pod["initContainers"][0]["command"].as_array().expect("a command");
        assert_eq!(copy.last().and_then(Value::as_str), path, "the copy that only the chief can read");
        assert!(copy.iter().any(|word| word == "--mode=0400"), "{copy:?}");
    }
}

#[test]
fn the_programs_know_the_flags_of_the_manifests() {
    let Some(manifests) = manifests("that the programs know the manifests' flags") else { return };
    for workload in workloads(&manifests) {
        let container = &workload["spec"]["template"]["spec"]["containers"][0];
        let program = container["command"][0].as_str().expect("a program");
        let help = Command::new(programs().join(program)).arg("--help").output().expect("it can be run");
        let help = String::from_utf8(help.stdout).expect("help is text");
        for flag in container["args"].as_array().expect("flags") {
            let flag = flag.as_str().expect("a flag is text").split('=').next().expect("a name");
            let known =
                help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).any(|word| word == flag);
            assert!(known, "{program} knows no {flag}");
        }
    }
}

#[test]
fn the_image_has_the_programs_that_are_run() {
    let text = read(&deployed("kubernetes/Dockerfile"));
    let roles = ["-chief", "-evaluator", "-ps", "-server", "-worker"].map(|role| format!("pushpull{role}"));
    for program in roles.iter().map(String::as_str).chain(["pushpull"]) {
        assert!(text.contains(&format!("/target/release/{program} ")), "{program} is not copied");
    }
    assert!(text.lines().any(|line| line == "USER 10001"), "it is not to run as root");
}

#[test]
fn the_image_is_built_without_what_was_built_before() {
    let left_out = read(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(".dockerignore"));
    for folder in [".git", "**/target"] {
        assert!(left_out.lines().any(|line| line == folder), "{folder} is sent to the builder");
    }
}

#[test]
fn secrets_of_jobs_stay_out_of_images_and_commits() {
    let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let [for_images, for_commits] = [".dockerignore", ".gitignore"].map(|name| read(&top.join(name)));
    // The names that the book gives to files with secrets, and the folder of the script for Slurm.
    for secret in ["*.authority", "*.join", "*.token", "*.client", "*.key", "secrets-*/"] {
        assert!(for_commits.lines().any(|line| line == secret), "{secret} may be committed");
        let below = format!("**/{}", secret.trim_end_matches('/'));
        assert!(for_images.lines().any(|line| line == below), "{below} is sent to the builder");
    }
}
