//! Help texts are part of the interface: a change shows up as a changed snapshot.

use muster_tests::muster;

fn help(args: &[&str]) -> String {
    let output = muster(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn help_of_every_command() {
    insta::assert_snapshot!("muster", help(&["--help"]));
    let alone = ["train", "plan", "eval", "predict", "doctor", "bench", "tune"];
    let cluster = ["coordinator", "trainer", "submit", "runs", "status", "logs", "cancel", "nodes"];
    for command in alone.into_iter().chain(cluster) {
        insta::assert_snapshot!(command, help(&[command, "--help"]));
    }
    for benchmark in ["scaling", "compare"] {
        insta::assert_snapshot!(format!("bench-{benchmark}"), help(&["bench", benchmark, "--help"]));
    }
}

#[test]
fn version_is_that_of_the_package() {
    assert_eq!(help(&["--version"]), format!("muster {}\n", env!("CARGO_PKG_VERSION")));
}
