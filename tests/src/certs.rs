//! Certificates and tokens of a test's cluster, made by the program itself.

use std::path::{Path, PathBuf};

use muster_tls::TlsFiles;

use crate::muster;

/// A CA and what it issued: `coordinator-main`, `trainer-node` and `client-me`.
pub struct Certs {
    /// Where the files are.
    pub dir: PathBuf,
}

impl Certs {
    /// Makes all of it in a directory.
    pub fn make(dir: &Path) -> Self {
        let certs = Self { dir: dir.into() };
        certs.run(&["init"]);
        for (role, name) in [("coordinator", "main"), ("trainer", "node"), ("client", "me")] {
            certs.run(&["issue", role, name]);
        }
        certs
    }

    /// Runs `muster certs` on the directory; returns what it prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn run(&self, args: &[&str]) -> String {
        let mut command = muster(&["certs"]);
        let output = command.args(args).arg("--dir").arg(&self.dir).output().expect("muster runs");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// The files of a part: `trainer-node`.
    pub fn files(&self, part: &str) -> TlsFiles {
        let file = |name: String| self.dir.join(name);
        TlsFiles {
            ca: file("ca.pem".into()),
            cert: file(format!("{part}.pem")),
            key: file(format!("{part}-key.pem")),
        }
    }

    /// The options that give them to a command.
    pub fn options(&self, part: &str) -> Vec<String> {
        let files = self.files(part);
        let options = [("--tls-ca", files.ca), ("--tls-cert", files.cert), ("--tls-key", files.key)];
        options.into_iter().flat_map(|(option, path)| [option.into(), path.display().to_string()]).collect()
    }
}
