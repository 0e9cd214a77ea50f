//! How agents are found at the moment, and how old that knowledge is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A shared note of one way of discovery; the way writes it, whoever asks reads it.
#[derive(Debug, Clone)]
pub struct Standing {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    mode: &'static str,
    detail: String,
    synced: Option<Instant>,
    ages: bool,
    trouble: String,
}

impl Standing {
    /// A way that has to ask for its knowledge. `mode` is one word, `detail` says what is asked.
    pub fn asking(mode: &'static str, detail: impl Into<String>) -> Self {
        Self::new(mode, detail.into(), true)
    }

    /// A way whose knowledge has no age.
    pub fn given(mode: &'static str, detail: impl Into<String>) -> Self {
        Self::new(mode, detail.into(), false)
    }

    fn new(mode: &'static str, detail: String, ages: bool) -> Self {
        let state = State { mode, detail, synced: None, ages, trouble: String::new() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A note has no invariant that a panic could break.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another way is gone from now on.
    pub fn switch(&self, mode: &'static str, detail: impl Into<String>) {
        let mut state = self.state();
        (state.mode, state.detail, state.synced) = (mode, detail.into(), None);
    }

    /// What is known was true a moment ago.
    pub fn synced(&self) {
        let mut state = self.state();
        state.synced = Some(Instant::now());
        state.trouble.clear();
    }

    /// It could not be asked, for this reason. Says whether that is news.
    pub fn trouble(&self, reason: &str) -> bool {
        let mut state = self.state();
        let is_news = state.trouble != reason;
        reason.clone_into(&mut state.trouble);
        is_news
    }

    /// The way in one word: `endpointslice`, `dns`, `static` or `announced`.
    pub fn mode(&self) -> &'static str {
        self.state().mode
    }

    /// Age of what is known; none if it was never known, or has no age.
    pub fn age(&self) -> Option<Duration> {
        self.state().synced.map(|at| at.elapsed())
    }

    /// Why it could not be asked the last time; empty if it could.
    pub fn reason(&self) -> String {
        self.state().trouble.clone()
    }

    /// All of it in words.
    pub fn describe(&self) -> String {
        let state = self.state();
        let mut text = state.detail.clone();
        match state.synced {
            Some(at) => text.push_str(&format!(" ({} s old)", at.elapsed().as_secs())),
            None if state.ages => text.push_str(" (no answer yet)"),
            None => {}
        }
        if !state.trouble.is_empty() {
            text.push_str(&format!(": {}", state.trouble));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_and_trouble_are_told_in_words() {
        let standing = Standing::asking("endpointslice", "EndpointSlices of trainers in ml");
        assert_eq!(standing.describe(), "EndpointSlices of trainers in ml (no answer yet)");
        assert!(standing.trouble("no route") && !standing.trouble("no route"));
        assert_eq!(standing.describe(), "EndpointSlices of trainers in ml (no answer yet): no route");
        standing.synced();
        assert_eq!(standing.describe(), "EndpointSlices of trainers in ml (0 s old)");
        assert!(standing.age().is_some());
        standing.switch("dns", "SRV records of x");
        assert_eq!((standing.mode(), standing.age()), ("dns", None));
    }
}
