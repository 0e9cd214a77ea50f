//! What `deploy/manifests` starts.

use std::path::{Path, PathBuf};

/// The rendered manifests, by name.
///
/// # Panics
/// If there are none.
pub fn files() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/manifests");
    let entries = std::fs::read_dir(dir).expect("deploy/manifests");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no manifests");
    files
}

/// The arguments of every container of a manifest, the command first. The chart writes them one a line and unquoted.
pub fn commands(text: &str) -> Vec<Vec<String>> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines = text.lines().peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if line.trim() != "args:" {
            continue;
        }
        let mut args = Vec::new();
        while let Some(next) =
            lines.next_if(|next| indent(next) >= indent(line) && !next.trim().ends_with(':'))
        {
            args.extend(next.trim().strip_prefix("- ").map(str::to_owned));
        }
        found.push(args);
    }
    found
}

/// The names of environment variables of Muster that a manifest sets.
pub fn variables(text: &str) -> Vec<String> {
    let name = |line: &str| Some(line.trim().strip_prefix("- name: ")?.to_owned());
    text.lines().filter_map(name).filter(|name| name.starts_with("MUSTER_")).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn commands_end_where_the_next_key_begins() {
        let text = "a:\n  args:\n    - train\n    # why\n    - --ranks=2\n  env:\n    - name: MUSTER_LOG\n  args:\n  - plan\n";
        assert_eq!(super::commands(text), [vec!["train", "--ranks=2"], vec!["plan"]]);
        assert_eq!(super::variables(text), ["MUSTER_LOG"]);
    }
}
