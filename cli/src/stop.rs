//! Signals as a flag that long work looks at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use muster_trainer::peers::Wish;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Exit code of a process that a second signal ends at once, whatever it was doing.
const AT_ONCE: i32 = 130;

/// Makes SIGTERM and Ctrl-C do nothing.
///
/// # Errors
/// If the system refuses signal handlers.
pub fn ignore_signals() -> anyhow::Result<()> {
    for signal in [SIGTERM, SIGINT] {
        flag::register(signal, Arc::default()).context("can't handle signals")?;
    }
    Ok(())
}

/// The wish that a stop flag means: save, then end.
pub fn wish(stop: &AtomicBool) -> impl Fn() -> Wish + '_ {
    || if stop.load(Ordering::Relaxed) { Wish::SaveAndStop } else { Wish::GoOn }
}

/// Sets a flag at the first SIGTERM or Ctrl-C; the second one ends the process at once.
///
/// # Errors
/// If the system refuses signal handlers.
pub fn on_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // In this order: the first signal must find the flag unset here, and set it afterwards.
        flag::register_conditional_shutdown(signal, AT_ONCE, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .context("can't handle signals")?;
    }
    Ok(stop)
}
