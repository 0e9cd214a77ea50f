//! Helpers of the real-process tests.
#![forbid(unsafe_code)]

pub mod certs;
pub mod checkpoints;
pub mod cluster;
pub mod fake_kube;
pub mod fake_rank;
pub mod headlines;
pub mod manifests;
pub mod netns;
pub mod ranks;
pub mod sandbox;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The `muster` binary of the profile that this test was built with; built first if it isn't up to date.
///
/// # Panics
/// If it can't be built: nothing can be tested then.
pub fn muster_bin() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let test = std::env::current_exe().expect("a test has an executable");
        // Test executables lie in target/<profile>/deps.
        let profile = test.ancestors().nth(2).expect("tests run from the target directory");
        let binary = profile.join(format!("muster{}", std::env::consts::EXE_SUFFIX));
        if std::env::var_os("MUSTER_TEST_PREBUILT").is_none() {
            build(profile);
        }
        assert!(binary.is_file(), "{} was not built", binary.display());
        binary
    })
}

fn build(profile: &Path) {
    let name = profile.file_name().expect("a profile directory has a name").to_string_lossy();
    // Cargo calls the profile of target/debug "dev".
    let name = if name == "debug" { "dev" } else { &name };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = profile.parent().expect("a profile lies in the target directory");
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut command = Command::new(cargo);
    // The whole workspace is selected so that features, and with them every dependency, stay as they were built.
    command.args(["build", "--quiet", "--workspace", "--bin", "muster", "--profile", name]);
    // What cargo tells a test about its package would reach the build scripts of dependencies, and those that watch
    // it would run again, now and in the next build: minutes each time.
    let of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_package)) {
        command.env_remove(name);
    }
    let status = command.current_dir(workspace).env("CARGO_TARGET_DIR", target).status();
    let status = status.expect("cargo can be started");
    assert!(status.success(), "building muster failed with {status}");
}

/// A command of `muster` that inherits none of the variables it reads.
pub fn muster(args: &[&str]) -> Command {
    let mut command = Command::new(muster_bin());
    command.args(args);
    let own = |name: &str| name.starts_with("MUSTER_") && !name.starts_with("MUSTER_TEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(own)) {
        command.env_remove(name);
    }
    for name in ["KUBECONFIG", "RUST_LOG", "NO_COLOR", "COLUMNS"] {
        command.env_remove(name);
    }
    command
}
