//! Muster in its image under the restrictions of the chart: read-only root, a user that isn't root, no new privileges,
//! refused system calls (`mbind` among them), 64 MiB of /dev/shm, a CPU quota below the core count, a memory limit.
//! Linux with root and `unshare` makes the containers; elsewhere these tests say that they are skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use muster_tests::cluster::wait;
use muster_tests::headlines::example;
use muster_tests::sandbox::{CACHE_BYTES, CPUS, Contained, MEMORY_BYTES, Sandbox};
use muster_tests::{manifests, muster};
use serde_json::Value;
use tonic::transport::Endpoint;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

fn sandbox(dir: &Path) -> Option<Sandbox> {
    match Sandbox::new(dir, Path::new(env!("CARGO_BIN_EXE_enter"))) {
        Ok(sandbox) => Some(sandbox),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// Copies the example into `/shared` and writes a run file there.
fn prepare(sandbox: &Sandbox, name: &str, train: &str) -> PathBuf {
    let shared = sandbox.shared();
    fs::create_dir_all(shared.join("model")).unwrap();
    for entry in fs::read_dir(example("model")).unwrap() {
        let from = entry.unwrap().path();
        fs::copy(&from, shared.join("model").join(from.file_name().unwrap())).unwrap();
    }
    fs::copy(example("train.csv"), shared.join("train.csv")).unwrap();
    let text = format!(
        "version = 1\nname = {name:?}\noutput_dir = \"/shared/runs/{name}\"\n[model]\npath = \"/shared/model\"\n\
         init = \"random\"\n[task]\ntype = \"single_label\"\n[data]\ntrain = \"/shared/train.csv\"\n\
         eval_fraction = 0.2\nmax_length = 64\n[train]\nmax_steps = 6\nglobal_batch = 16\n{train}\n"
    );
    let path = shared.join(format!("{name}.toml"));
    fs::write(&path, text).unwrap();
    path
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// What the kernel says about a process that should be restricted.
fn assert_restricted(id: u32) {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let field = |name: &str| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_else(|| panic!("{name}: {status}"));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(field("NSpid:").last().unwrap(), "1", "process 1 of its container");
    assert_eq!((field("Uid:"), field("Gid:")), (vec!["10001".into(); 4], vec!["10001".into(); 4]));
    assert!(field("Groups:").is_empty(), "groups of root");
    assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), (vec!["1".into()], vec!["2".into()]));
    assert_eq!((field("CapPrm:"), field("CapEff:")), (vec!["0".repeat(16)], vec!["0".repeat(16)]));
    let mounts = fs::read_to_string(format!("/proc/{id}/mountinfo")).unwrap();
    let root = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|fields| fields[4] == "/")
        .unwrap();
    assert!(root[5].split(',').any(|option| option == "ro"), "the root file system: {root:?}");
}

#[test]
fn two_ranks_train_under_the_restrictions_and_a_second_pod_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let Some(sandbox) = sandbox(dir.path()) else { return };
    prepare(&sandbox, "job", "");

    if sandbox.is_limited() {
        let plan = json(&sandbox.run(&["plan", "/shared/job.toml", "--json"]));
        assert_eq!(plan["threads"], 1, "the floor of a quota of {CPUS} CPUs");
        let usable = plan["usable_memory_bytes"].as_u64().unwrap();
        assert!(usable <= MEMORY_BYTES - CACHE_BYTES, "{usable}: the limit less the volume in memory");
        assert!(usable > MEMORY_BYTES / 2, "{usable}");
    } else {
        println!("skipped: limits of CPU time and memory (no control groups to make)");
    }

    // The arguments of the chart's Job.
    let manifest =
        fs::read_to_string(manifests::files().iter().find(|file| file.ends_with("job.yaml")).unwrap())
            .unwrap();
    let commands = manifests::commands(&manifest);
    let args: Vec<&str> = commands[0].iter().map(String::as_str).collect();
    assert_eq!(args[..2], ["train", "/etc/muster/run/run.toml"]);
    let args = |more: &[&'static str]| [&["train", "/shared/job.toml", "--json"], &args[2..], more].concat();

    let first = json(&sandbox.run(&args(&[])));
    assert_eq!(first["steps"], 6, "{first}");
    assert!(sandbox.shared().join("runs/job/final/model.safetensors").exists());
    // Another pod of the same Job finds what the first one left.
    let again = json(&sandbox.run(&args(&[])));
    assert_eq!(again["steps"], first["steps"]);
}

#[test]
fn coordinator_and_trainer_of_the_chart_run_a_submission_and_end_on_sigterm() {
    let dir = tempfile::tempdir().unwrap();
    let Some(sandbox) = sandbox(dir.path()) else { return };
    let run = prepare(&sandbox, "cluster", "[ranks]\nper_node = 2");
    let manifest = manifests::files().into_iter().find(|file| file.ends_with("announce.yaml")).unwrap();
    let commands = manifests::commands(&fs::read_to_string(manifest).unwrap());
    let of = |command: &str| commands.iter().find(|args| args[0] == command).unwrap().clone();

    let mut coordinator = start(&sandbox, of("coordinator"), "");
    let address = coordinator.outer().address();
    let mut trainer = start(&sandbox, of("trainer"), &address);
    trainer.outer().address();
    for process in [&mut coordinator, &mut trainer] {
        assert_restricted(wait("a process in the container", || process.id()));
        // The three questions of the chart's probes.
        let health = health_address(process);
        for service in ["", "startup", "ready"] {
            wait(&format!("{service:?} to serve"), || serves(&health, service).then_some(()));
        }
    }

    let ask = |args: &[&str]| -> Output {
        let mut command = muster(args);
        command.args(["--json", "--coordinator", &address]).output().unwrap()
    };
    wait("the trainer at the coordinator", || {
        let nodes = json(&ask(&["nodes"]));
        nodes
            .as_array()?
            .iter()
            .find(|node| node["name"] == "trainer-0" && node["state"] == "connected")
            .cloned()
    });
    let done = json(&ask(&["submit", run.to_str().unwrap(), "--wait"]));
    assert_eq!(done["state"], "succeeded", "{done}");
    assert!(sandbox.shared().join("runs/cluster/final/model.safetensors").exists());

    for process in [&mut trainer, &mut coordinator] {
        process.signal("TERM");
        assert_eq!(process.outer().exit_code(), Some(0), "{}", process.outer().log());
    }
}

/// Where a process says that it answers probes.
fn health_address(process: &mut Contained) -> String {
    wait("an address for probes", || {
        let log = process.outer().log();
        let line = log.lines().find(|line| line.contains("health"))?;
        line.split_whitespace().last().map(str::to_owned)
    })
}

/// What the kubelet's gRPC probe asks.
fn serves(address: &str, service: &str) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let Ok(channel) = endpoint.connect().await else { return false };
        let answer = HealthClient::new(channel).check(HealthCheckRequest { service: service.into() }).await;
        answer.is_ok_and(|answer| answer.into_inner().status() == ServingStatus::Serving)
    })
}

/// Starts a container of the chart with ports of this machine's choice.
fn start(sandbox: &Sandbox, args: Vec<String>, coordinator: &str) -> Contained {
    let name = args[0].clone();
    let args: Vec<String> = args
        .into_iter()
        .map(|arg| match arg.split_once('=') {
            Some((flag @ ("--listen" | "--health-listen" | "--metrics"), _)) => format!("{flag}=127.0.0.1:0"),
            Some((flag @ "--coordinator", _)) => format!("{flag}={coordinator}"),
            Some((flag @ "--state", _)) => format!("{flag}=/shared/state"),
            Some((flag @ "--log-format", _)) => format!("{flag}=human"),
            _ => arg.replace("$(MUSTER_POD_IP)", "127.0.0.1").replace("$(MUSTER_POD_NAME)", "trainer-0"),
        })
        .collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    sandbox.start(&args, &format!("{name}.log"))
}

#[test]
fn every_flag_and_variable_of_the_manifests_is_one_of_the_binary() {
    let help =
        |command: &str| String::from_utf8(muster(&[command, "--help"]).output().unwrap().stdout).unwrap();
    let known = ["coordinator", "trainer", "train", "nodes"].map(help).concat();
    for file in manifests::files() {
        let text = fs::read_to_string(&file).unwrap();
        let commands = manifests::commands(&text);
        assert!(!commands.is_empty(), "{}", file.display());
        for args in commands {
            let args = args.iter().map(|arg| arg.replace("$(MUSTER_POD_IP)", "10.0.0.1"));
            let output = muster(&[]).args(args.clone()).arg("--help").output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {:?}: {errors}", file.display(), args.collect::<Vec<_>>());
        }
        for name in manifests::variables(&text) {
            // Read without a flag: filters of the log, volumes in memory, and what the coordinator's events name.
            let free = ["MUSTER_LOG", "MUSTER_MEMORY_VOLUMES"].contains(&name.as_str());
            assert!(free || known.contains(&name), "{}: nothing reads {name}", file.display());
        }
    }
    let unknown = muster(&["trainer", "--no-such-flag", "--help"]).output().unwrap();
    assert!(!unknown.status.success(), "this test can't fail");
}

#[test]
fn every_crate_of_the_binary_has_its_licence_text() {
    let dir = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/image/licences.sh");
    let output = Command::new("bash").arg(script).arg(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let table = fs::read_to_string(dir.path().join("crates.tsv")).unwrap();
    let crates = fs::read_dir(dir.path().join("crates")).unwrap().count();
    // One line is Rust's own library.
    assert_eq!(crates + 1, table.lines().count());
    assert!(crates > 100, "{crates}");
}
