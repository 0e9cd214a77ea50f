//! Exit codes: what a program or a person can conclude from the end of a command. `docs/exit-codes.md` explains them.

use std::process::ExitCode;

/// The exit codes of every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Success,
    /// Failed for a reason without a code of its own.
    Failure,
    /// Wrong arguments or a bad run file: repeating changes nothing.
    Usage,
    /// Data, labels or model files that can't be used.
    Data,
    /// A loss or gradient was not finite and the run stopped.
    Diverged,
    /// Not enough memory or disk.
    Resources,
    /// A comparison of benchmarks found something that got worse.
    Worse,
    /// Stopped by a signal after a checkpoint was saved: `--resume` continues.
    Interrupted,
}

/// The codes as `--help` shows them.
pub const HELP: &str = "Exit codes: 0 done, 1 failed, 2 wrong arguments or run file, 3 unusable data or model, \
4 training diverged, 5 not enough memory or disk, 6 a benchmark got worse, 75 stopped by a signal after saving (train --resume continues), 130 stopped at once by a second signal.";

impl Exit {
    /// Every exit.
    const ALL: [Self; 8] = [
        Self::Success,
        Self::Failure,
        Self::Usage,
        Self::Data,
        Self::Diverged,
        Self::Resources,
        Self::Worse,
        Self::Interrupted,
    ];

    /// The exit of another process of this program.
    pub fn from_code(code: u32) -> Self {
        Self::ALL.into_iter().find(|exit| u32::from(exit.code()) == code).unwrap_or(Self::Failure)
    }

    /// The number that the shell sees.
    pub const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            // clap exits with 2 on wrong arguments.
            Self::Usage => 2,
            Self::Data => 3,
            Self::Diverged => 4,
            Self::Resources => 5,
            Self::Worse => 6,
            // EX_TEMPFAIL of sysexits.h: try again later.
            Self::Interrupted => 75,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_documented_in_the_help_and_on_its_page() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/exit-codes.md");
        let page = std::fs::read_to_string(page).expect("the page exists");
        let mut codes: Vec<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        for code in &codes {
            assert!(page.contains(&format!("| {code} |")), "docs/exit-codes.md lacks {code}");
            assert!(HELP.contains(&format!(" {code} ")), "--help lacks {code}");
        }
        codes.dedup();
        assert_eq!(codes.len(), Exit::ALL.len(), "codes are distinct");
    }
}
