//! Checkpoints survive kill -9, truncation, flipped bits, missing members and full disks. Cases 41, 42, 51.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use muster_proto::with_causes;
use muster_tests::checkpoints::{contents, layout, state};
use muster_trainer::checkpoint::{
    CheckpointError, Contents, MANIFEST, Manifest, STATE, State, Store, TRAINER_STATE, check_space,
    checkpoint_name, estimated_bytes, latest_valid, list, load, verify,
};
use muster_trainer::params::{ArenasMut, Layout};
use muster_trainer::tokenizer::TokenizerFile;
use muster_trainer::weights::{FileDtype, SafetensorsWriter, TensorOut};
use serde_json::{Value, json};
use tempfile::TempDir;

struct Run {
    dir: TempDir,
    layout: Layout,
    config: Value,
}

impl Run {
    fn new() -> Self {
        Self { dir: TempDir::new().unwrap(), layout: layout(), config: json!({ "model_type": "bert" }) }
    }

    fn path(&self, step: u64) -> PathBuf {
        self.dir.path().join(checkpoint_name(step))
    }

    fn save(&self, store: &Store, step: u64) -> Result<muster_trainer::checkpoint::Saved, CheckpointError> {
        let arena = vec![step as f32; self.layout.arena_len()];
        let state = state(&self.layout, step);
        store.save(&contents(&state, &self.layout, &arena, &self.config, FileDtype::F32))
    }

    fn steps(&self) -> Vec<u64> {
        list(self.dir.path()).unwrap().iter().map(|entry| entry.step).collect()
    }

    fn load(&self, path: &Path) -> Result<(State, [Vec<f32>; 3]), CheckpointError> {
        let mut arenas = [(); 3].map(|()| vec![f32::NAN; self.layout.arena_len()]);
        let [master, first_moment, second_moment] = &mut arenas;
        let state = load(path, &self.layout, ArenasMut { master, first_moment, second_moment })?;
        Ok((state, arenas))
    }
}

/// Names in a folder; those that a save or a removal has in hand start with `.t`.
fn names(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Recomputes the manifest after a deliberate change, so that the change itself is what gets noticed.
fn reseal(checkpoint: &Path) {
    let mut manifest: Manifest =
        serde_json::from_slice(&fs::read(checkpoint.join(MANIFEST)).unwrap()).unwrap();
    for file in &mut manifest.files {
        let bytes = fs::read(checkpoint.join(&file.name)).unwrap();
        (file.bytes, file.xxh3) = (bytes.len() as u64, xxhash_rust::xxh3::xxh3_64(&bytes));
    }
    fs::write(checkpoint.join(MANIFEST), serde_json::to_vec(&manifest).unwrap()).unwrap();
}

#[test]
fn everything_comes_back_bit_by_bit_in_both_types() {
    let run = Run::new();
    let noise = |salt: u32| -> Vec<f32> {
        let hash = |k: usize| {
            xxhash_rust::xxh3::xxh3_64(&[(k as u64).to_le_bytes(), u64::from(salt).to_le_bytes()].concat())
        };
        (0..run.layout.arena_len()).map(|k| hash(k) as u32 as f32 / u32::MAX as f32 - 0.5).collect()
    };
    let [master, first_moment, second_moment] = [1, 2, 3].map(noise);
    let store = Store::open(run.dir.path(), 9).unwrap();
    for (step, dtype) in [(7, FileDtype::F32), (8, FileDtype::Bf16)] {
        let state = state(&run.layout, step);
        let contents = Contents {
            first_moment: &first_moment,
            second_moment: &second_moment,
            ..contents(&state, &run.layout, &master, &run.config, dtype)
        };
        let saved = store.save(&contents).unwrap();
        assert!(saved.bytes <= contents.bytes_needed() && saved.bytes <= estimated_bytes(&run.layout, dtype));
        let (loaded, arenas) = run.load(&saved.path).unwrap();
        assert_eq!(loaded, state);
        assert_eq!(arenas[1..], [first_moment.clone(), second_moment.clone()]);
        for param in run.layout.params() {
            assert_eq!(
                arenas[0][param.range.clone()],
                master[param.range.clone()],
                "{} {dtype:?}",
                param.name
            );
        }
    }
}

#[test]
fn kill_9_at_random_moments_never_loses_a_reported_checkpoint() {
    // Case 42: 50 kills; the pauses come from a fixed seed and cover all phases of a save (about 3 ms each).
    let run = Run::new();
    let (mut reported, mut interrupted) = (0, 0);
    for round in 0..50_u64 {
        let mut child = Command::new(env!("CARGO_BIN_EXE_checkpoint_writer"))
            .arg(run.dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The first line shows that the process is past its start; then a random moment.
        let first = lines.next().expect("a save before the kill").unwrap();
        std::thread::sleep(Duration::from_micros(xxhash_rust::xxh3::xxh3_64(&round.to_le_bytes()) % 30_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let last = lines.map_while(Result::ok).last().unwrap_or(first);
        let last: u64 = last.parse().expect("whole lines, for a step is printed in one write");
        assert!(last > reported, "round {round}: {last} after {reported}");
        reported = last;
        interrupted += usize::from(names(run.dir.path()).iter().any(|name| name.starts_with(".t")));
        let found = latest_valid(run.dir.path()).unwrap().expect("a checkpoint");
        assert!(found.step >= reported, "round {round}: newest is {}, reported was {reported}", found.step);
        assert_eq!(found.skipped, [""; 0], "round {round}: a folder with a final name is always whole");
        let (state, arenas) = run.load(&found.path).unwrap();
        assert_eq!(state.step, found.step);
        assert!(arenas[1..].iter().flatten().all(|&value| value == found.step as f32), "round {round}");
        let weights = run.layout.params().iter().flat_map(|param| &arenas[0][param.range.clone()]);
        assert!(weights.into_iter().all(|&value| value == found.step as f32), "round {round}");
    }
    // The best one (step 1) and the last two stay; leftovers of the kills go with the next start.
    drop(Store::open(run.dir.path(), 2).unwrap());
    let names = names(run.dir.path());
    assert!(names.iter().all(|name| !name.starts_with(".t")), "{names:?}");
    assert!(names.contains(&checkpoint_name(1)), "{names:?}");
    assert!(
        interrupted >= 10,
        "only {interrupted} of 50 kills hit a save or a removal: the test proves little"
    );
}

#[test]
fn a_damaged_checkpoint_is_skipped_with_file_and_reason() {
    let run = Run::new();
    let store = Store::open(run.dir.path(), 9).unwrap();
    type Damage = Box<dyn Fn(&Path)>;
    let damage: Vec<(&str, Damage)> = vec![
        (
            "model.safetensors",
            Box::new(|path| {
                let len = fs::metadata(path).unwrap().len();
                fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len - 1).unwrap();
            }),
        ),
        (
            TRAINER_STATE,
            Box::new(|path| {
                let mut bytes = fs::read(path).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                fs::write(path, bytes).unwrap();
            }),
        ),
        (STATE, Box::new(|path| fs::remove_file(path).unwrap())),
        ("config.json", Box::new(|path| fs::write(path, "").unwrap())),
        (MANIFEST, Box::new(|path| fs::remove_file(path).unwrap())),
        (MANIFEST, Box::new(|path| fs::write(path, "{\"format\": 1").unwrap())),
    ];
    for (file, damage) in damage {
        run.save(&store, 1).unwrap();
        run.save(&store, 2).unwrap();
        damage(&run.path(2).join(file));
        let error = verify(&run.path(2)).unwrap_err();
        assert!(
            matches!(error, CheckpointError::Damaged { .. }) && error.to_string().contains(file),
            "{error}"
        );
        assert!(run.load(&run.path(2)).is_err());
        let found = latest_valid(run.dir.path()).unwrap().unwrap();
        assert_eq!(found.step, 1);
        assert!(found.skipped.len() == 1 && found.skipped[0].contains(file), "{:?}", found.skipped);
    }
}

#[test]
fn every_single_flipped_bit_of_state_and_manifest_is_noticed_or_harmless() {
    let run = Run::new();
    let store = Store::open(run.dir.path(), 9).unwrap();
    run.save(&store, 3).unwrap();
    let good = run.load(&run.path(3)).unwrap().0;
    for file in [STATE, MANIFEST] {
        let path = run.path(3).join(file);
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&path, flipped).unwrap();
            match run.load(&run.path(3)) {
                Ok((state, _)) => assert!(file == MANIFEST && state == good, "byte {at} of {file}"),
                Err(error) => assert!(!with_causes(&error).is_empty()),
            }
        }
        fs::write(&path, bytes).unwrap();
    }
}

#[test]
fn no_checkpoint_is_a_first_start_but_only_damaged_ones_are_an_error() {
    let run = Run::new();
    assert_eq!(latest_valid(&run.dir.path().join("none")).unwrap(), None);
    let store = Store::open(run.dir.path(), 9).unwrap();
    assert_eq!(latest_valid(run.dir.path()).unwrap(), None);
    for step in [1, 2] {
        run.save(&store, step).unwrap();
        fs::remove_file(run.path(step).join("model.safetensors")).unwrap();
    }
    let error = latest_valid(run.dir.path()).unwrap_err();
    assert!(matches!(error, CheckpointError::NoneValid { count: 2, .. }), "{error}");
    assert!(error.to_string().contains("model.safetensors") && error.hint().is_some(), "{error}");
}

/// Paths of all members of a JSON value.
fn members(value: &Value, prefix: &str) -> Vec<String> {
    match value {
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| {
                let path = format!("{prefix}/{key}");
                // Metric names are data, not members.
                let inner = if key == "metrics" { Vec::new() } else { members(value, &path) };
                std::iter::once(path).chain(inner)
            })
            .collect(),
        Value::Array(items) => {
            items.iter().enumerate().flat_map(|(i, item)| members(item, &format!("{prefix}/{i}"))).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn each_missing_or_unknown_member_of_the_state_is_named() {
    // Case 41.
    let run = Run::new();
    let store = Store::open(run.dir.path(), 9).unwrap();
    run.save(&store, 5).unwrap();
    let path = run.path(5).join(STATE);
    let whole: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let all = members(&whole, "");
    assert_eq!(all.len(), 25, "{all:?}");
    for member in all {
        let (parent, name) = member.rsplit_once('/').unwrap();
        let mut damaged = whole.clone();
        damaged.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(name).unwrap();
        fs::write(&path, damaged.to_string()).unwrap();
        reseal(&run.path(5));
        let error = with_causes(&run.load(&run.path(5)).unwrap_err());
        assert!(error.contains(name) && error.contains(STATE), "{member}: {error}");
    }
    let with = |key: &str, value: Value| {
        let mut changed = whole.clone();
        changed[key] = value;
        fs::write(&path, changed.to_string()).unwrap();
        reseal(&run.path(5));
        run.load(&run.path(5)).unwrap_err()
    };
    assert!(with_causes(&with("surprise", json!(1))).contains("surprise"));
    assert!(matches!(with("format", json!(2)), CheckpointError::Format { found: 2, expected: 1, .. }));
}

#[test]
fn each_missing_arena_is_named() {
    // Case 41: the moments, and the master weights of a bf16 run.
    let run = Run::new();
    let store = Store::open(run.dir.path(), 9).unwrap();
    let arena = vec![1.0; run.layout.arena_len()];
    let state = state(&run.layout, 5);
    store.save(&contents(&state, &run.layout, &arena, &run.config, FileDtype::Bf16)).unwrap();
    let shape = [run.layout.arena_len()];
    for missing in ["first_moment", "second_moment", "master"] {
        let kept = ["first_moment", "second_moment", "master"].into_iter().filter(|name| *name != missing);
        let tensors = kept.map(|name| TensorOut { name, shape: &shape, data: &arena }).collect();
        let mut bytes = Vec::new();
        SafetensorsWriter::new(tensors, FileDtype::F32).write_to(&mut bytes).unwrap();
        fs::write(run.path(5).join(TRAINER_STATE), bytes).unwrap();
        reseal(&run.path(5));
        let error = run.load(&run.path(5)).unwrap_err();
        assert!(matches!(&error, CheckpointError::Member { member, .. } if member == missing), "{error}");
    }
}

#[test]
fn a_changed_model_tokenizer_or_run_is_refused_by_name() {
    let run = Run::new();
    let saved = state(&run.layout, 1).fingerprints;
    assert!(saved.check(&saved).is_ok());
    let mut now = saved;
    now.tokenizer += 1;
    let error = saved.check(&now).unwrap_err();
    assert!(error.to_string().contains("the tokenizer changed") && error.hint().is_some(), "{error}");
    let store = Store::open(run.dir.path(), 9).unwrap();
    run.save(&store, 1).unwrap();
    let mut other = Run::new();
    other.layout.push("extra".into(), &[1], muster_trainer::params::ParamKind::Bias, true);
    assert!(matches!(other.load(&run.path(1)).unwrap_err(), CheckpointError::Changed { what: "model", .. }));
}

#[test]
fn pruning_keeps_the_last_and_the_best_and_never_counts_damaged_ones() {
    let run = Run::new();
    let store = Store::open(run.dir.path(), 2).unwrap();
    for step in 1..=5 {
        run.save(&store, step).unwrap();
    }
    assert_eq!(run.steps(), [1, 4, 5], "step 1 is the best");
    fs::remove_file(run.path(5).join("model.safetensors")).unwrap();
    run.save(&store, 6).unwrap();
    assert_eq!(run.steps(), [1, 4, 6]);
    // Back to step 4 by the user's choice: later checkpoints stay until training replaces them.
    run.save(&store, 5).unwrap();
    assert_eq!(run.steps(), [1, 4, 5, 6]);
    let saved = run.save(&store, 6).unwrap();
    assert_eq!((run.steps(), saved.pruned), (vec![1, 5, 6], vec![4]));
    assert!(verify(&run.path(6)).is_ok());
}

#[test]
fn a_second_writer_is_refused_and_leftovers_are_removed() {
    let run = Run::new();
    for name in [".tmp-checkpoint-00000004", ".trash-checkpoint-00000001"] {
        fs::create_dir(run.dir.path().join(name)).unwrap();
        fs::write(run.dir.path().join(name).join("x"), "x").unwrap();
    }
    fs::create_dir(run.dir.path().join(".tmp-mine")).unwrap();
    let store = Store::open(run.dir.path(), 2).unwrap();
    let names = names(run.dir.path());
    assert!(names.len() == 2 && names.contains(&".tmp-mine".to_owned()), "{names:?}");
    assert!(matches!(Store::open(run.dir.path(), 2), Err(CheckpointError::InUse { .. })));
    drop(store);
    assert!(Store::open(run.dir.path(), 2).is_ok());
}

/// A tiny tmpfs, unmounted on drop; `None` when this process may not mount.
struct Tmpfs(TempDir);

impl Tmpfs {
    fn mount(options: &str) -> Option<Self> {
        let dir = TempDir::new().unwrap();
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(dir.path())
            .stderr(Stdio::null())
            .status();
        if status.is_ok_and(|status| status.success()) {
            return Some(Self(dir));
        }
        eprintln!("skipped: mounting a tmpfs needs root");
        None
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn too_little_space_is_noticed_before_anything_is_written() {
    let Some(disk) = Tmpfs::mount("size=1200k") else { return };
    let run = Run::new();
    let store = Store::open(disk.0.path(), 9).unwrap();
    run.save(&store, 1).unwrap();
    let error = run.save(&store, 2).unwrap_err();
    let CheckpointError::NoSpace { needed, available, .. } = error else { panic!("{error}") };
    assert!(needed > available && available > 0, "{needed} {available}");
    assert_eq!(list(disk.0.path()).unwrap().len(), 1);
    assert!(verify(&disk.0.path().join(checkpoint_name(1))).is_ok());
    assert!(check_space(&disk.0.path().join("not/yet/there"), 1 << 40).is_err());
}

#[test]
fn a_disk_that_fills_up_while_writing_leaves_the_previous_checkpoint() {
    // The check before writing can't know: once the inodes run out (bytes are free), once a pipe in the place of a
    // tokenizer file delivers more than its size of 0 said.
    let endless = TempDir::new().unwrap();
    let pipe = endless.path().join("tokenizer.json");
    for (options, second) in [("size=64m,nr_inodes=13", None), ("size=2m", Some(pipe))] {
        let Some(disk) = Tmpfs::mount(options) else { return };
        let run = Run::new();
        let store = Store::open(disk.0.path(), 9).unwrap();
        run.save(&store, 1).unwrap();
        let writer = second.as_ref().map(|pipe| endless_pipe(pipe));
        let (arena, state) = (vec![2.0; run.layout.arena_len()], state(&run.layout, 2));
        let tokenizer_files: Vec<_> = second.iter().cloned().map(TokenizerFile::Copy).collect();
        let contents = Contents {
            tokenizer_files: &tokenizer_files,
            ..contents(&state, &run.layout, &arena, &run.config, FileDtype::F32)
        };
        let error = store.save(&contents).unwrap_err();
        writer.map(std::thread::JoinHandle::join).transpose().unwrap();
        assert!(with_causes(&error).contains("No space left"), "{}", with_causes(&error));
        let found = latest_valid(disk.0.path()).unwrap().unwrap();
        assert_eq!((found.step, found.skipped.len()), (1, 0));
        assert_eq!(names(disk.0.path()).len(), 2, "nothing half-written stays: {:?}", names(disk.0.path()));
        assert!(run.load(&found.path).unwrap().1[1].iter().all(|&value| value == 1.0));
    }
}

/// Makes a named pipe and feeds it until its reader leaves.
fn endless_pipe(path: &Path) -> std::thread::JoinHandle<()> {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    let path = path.to_owned();
    std::thread::spawn(move || {
        let mut pipe = fs::OpenOptions::new().write(true).open(path).unwrap();
        while std::io::Write::write_all(&mut pipe, &[7; 65536]).is_ok() {}
    })
}
