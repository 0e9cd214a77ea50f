//! Log lines go to stderr, results to stdout.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::args::{Global, LogFormat};

/// Starts logging for the rest of the process.
///
/// # Errors
/// A filter in `MUSTER_LOG` or `RUST_LOG` that can't be read.
pub fn init(global: &Global) -> anyhow::Result<()> {
    let filter = filter(global)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match global.log_format {
        LogFormat::Json => builder.json().flatten_event(true).init(),
        LogFormat::Human => {
            let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            // The reader of a terminal knows the time, and module paths are for -v.
            let target = global.verbose > 0;
            builder.with_ansi(colour).with_target(target).without_time().compact().init();
        }
    }
    Ok(())
}

fn filter(global: &Global) -> anyhow::Result<EnvFilter> {
    for name in ["MUSTER_LOG", "RUST_LOG"] {
        let Ok(text) = std::env::var(name) else { continue };
        if !text.trim().is_empty() {
            return EnvFilter::try_new(&text).with_context(|| format!("{name}={text:?} is not a log filter"));
        }
    }
    Ok(EnvFilter::new(default_filter(global.quiet, global.verbose)))
}

fn default_filter(quiet: bool, verbose: u8) -> String {
    let level = match (quiet, verbose) {
        (true, _) => return "error".into(),
        (false, 0) => "info",
        (false, 1) => "debug",
        (false, _) => "trace",
    };
    // Libraries of others have nothing to say to a user short of a warning.
    let ours = ["muster", "muster_trainer", "muster_kernels", "muster_allreduce", "muster_coordinator"];
    let ours: Vec<String> = ours.iter().map(|name| format!("{name}={level}")).collect();
    format!("warn,{}", ours.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbosity_raises_our_crates_only() {
        assert_eq!(default_filter(true, 0), "error");
        assert!(default_filter(false, 0).starts_with("warn,muster=info,muster_trainer=info"));
        assert!(default_filter(false, 1).contains("muster_trainer=debug"));
        assert!(default_filter(false, 3).contains("muster_kernels=trace"));
        for verbose in 0..3 {
            EnvFilter::try_new(default_filter(false, verbose)).expect("a valid filter");
        }
    }
}
