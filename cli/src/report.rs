//! How an error is told: the error, its causes, hints, and the exit code.

use std::error::Error;
use std::io::{ErrorKind, Write};

use muster_coordinator::PlacementError;
use muster_coordinator::net::ServeError;
use muster_coordinator::store::StoreError;
use muster_kernels::isa::ParseCapError;
use muster_proto::SpecError;
use muster_tls::TlsError;
use muster_trainer::checkpoint::CheckpointError;
use muster_trainer::hub::HubError;
use muster_trainer::plan::PlanError;
use muster_trainer::report::PageError;
use muster_trainer::topology::{MembindError, SplitError};
use muster_trainer::train::TrainError;

use crate::args::LogFormat;
use crate::cluster::ClientError;
use crate::exit::Exit;
use crate::predict::InputError;
use crate::train_ranks::RunFailed;

/// What the user can do about an error, and how the process ends. The errors of every part are listed here once.
fn classify(error: &(dyn Error + 'static)) -> Option<(Exit, Option<String>)> {
    macro_rules! known {
        ($($kind:ty => $exit:expr,)+) => {
            $(if let Some(error) = error.downcast_ref::<$kind>() {
                return Some(($exit, error.hint()));
            })+
        };
    }
    if let Some(error) = error.downcast_ref::<TrainError>() {
        return Some((exit_of(error), error.hint()));
    }
    if let Some(error) = error.downcast_ref::<RunFailed>() {
        return Some((error.exit(), error.hint()));
    }
    if let Some(error) = error.downcast_ref::<ClientError>() {
        let exit = if error.is_usage() { Exit::Usage } else { Exit::Failure };
        return Some((exit, error.hint()));
    }
    known! {
        StoreError => Exit::Failure,
        TlsError => Exit::Usage,
        ServeError => Exit::Failure,
        InputError => Exit::Data,
        PageError => Exit::Data,
        HubError => Exit::Data,
        SpecError => Exit::Usage,
        PlanError => Exit::Resources,
        PlacementError => Exit::Usage,
        SplitError => Exit::Usage,
        MembindError => Exit::Resources,
        ParseCapError => Exit::Usage,
    }
    None
}

/// How a process ends whose run can't start or go on.
fn exit_of(error: &TrainError) -> Exit {
    match error {
        TrainError::NonFinite(_) | TrainError::NonFiniteElsewhere { .. } => Exit::Diverged,
        TrainError::RunExists { .. }
        | TrainError::NothingToResume { .. }
        | TrainError::MaxLength { .. }
        | TrainError::Checkpoint(CheckpointError::Changed { what: "run file", .. })
        | TrainError::Metric(_) => Exit::Usage,
        TrainError::ModelFolder { .. }
        | TrainError::Read { .. }
        | TrainError::Data(_)
        | TrainError::Hub(_)
        | TrainError::Config { .. }
        | TrainError::Tokenizer(_)
        | TrainError::Checkpoint(CheckpointError::Changed { .. })
        | TrainError::Weights(_) => Exit::Data,
        TrainError::Checkpoint(CheckpointError::NoSpace { .. })
        | TrainError::Plan(_)
        | TrainError::Pool(_) => Exit::Resources,
        TrainError::Export(_)
        | TrainError::Checkpoint(_)
        | TrainError::Log(_)
        | TrainError::Peers(_)
        | TrainError::ForeignState { .. } => Exit::Failure,
    }
}

/// A full disk is lack of a resource, whatever was being written.
fn is_disk_full(error: &anyhow::Error) -> bool {
    let kinds =
        error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>()).map(std::io::Error::kind);
    kinds.into_iter().any(|kind| matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
}

/// An error as it is told.
#[derive(Debug, PartialEq, Eq)]
pub struct Story {
    pub message: String,
    pub causes: Vec<String>,
    pub hints: Vec<String>,
    pub exit: Exit,
}

impl Story {
    pub fn of(error: &anyhow::Error) -> Self {
        let known: Vec<_> = error.chain().filter_map(classify).collect();
        // The outermost part that knows an error decides; every hint is worth reading.
        let exit = match is_disk_full(error) {
            true => Exit::Resources,
            false => known.first().map_or(Exit::Failure, |(exit, _)| *exit),
        };
        let mut hints: Vec<String> = known.into_iter().filter_map(|(_, hint)| hint).collect();
        hints.dedup();
        Self {
            message: error.to_string(),
            causes: error.chain().skip(1).map(ToString::to_string).collect(),
            hints,
            exit,
        }
    }

    fn human(&self) -> String {
        let mut text = format!("error: {}\n", self.message);
        for cause in &self.causes {
            text.push_str(&format!("caused by: {cause}\n"));
        }
        for hint in &self.hints {
            text.push_str(&format!("hint: {hint}\n"));
        }
        text
    }

    fn json(&self) -> String {
        let value = serde_json::json!({
            "error": self.message, "caused_by": self.causes, "hints": self.hints, "exit_code": self.exit.code(),
        });
        format!("{value}\n")
    }
}

/// Tells an error on stderr and returns the exit code for it.
pub fn fail(error: &anyhow::Error, format: LogFormat) -> Exit {
    let story = Story::of(error);
    let text = match format {
        LogFormat::Human => story.human(),
        LogFormat::Json => story.json(),
    };
    // With stderr closed there is nobody left to tell; the exit code remains.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
    story.exit
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn an_error_is_told_with_causes_and_hints() {
        let error = muster_proto::RunSpec::load(std::path::Path::new("no/such.toml"));
        let error = error.context("can't start the run").expect_err("the file is missing");
        let story = Story::of(&error);
        assert_eq!(story.exit, Exit::Usage);
        let expected = "error: can't start the run\n\
            caused by: can't read the run file no/such.toml\n\
            caused by: No such file or directory (os error 2)\n\
            hint: check the path; examples/ holds run files that work as they are\n";
        assert_eq!(story.human(), expected);
        let json: serde_json::Value = serde_json::from_str(&story.json()).expect("one JSON object");
        assert_eq!(json["exit_code"], 2);
        assert_eq!(json["caused_by"][1], "No such file or directory (os error 2)");
    }

    #[test]
    fn an_unknown_error_is_a_plain_failure() {
        let story = Story::of(&anyhow::anyhow!("odd"));
        assert_eq!((story.exit, story.human().as_str()), (Exit::Failure, "error: odd\n"));
    }
}
