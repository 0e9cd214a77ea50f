//! `muster logs`.

use std::io::Write;

use anyhow::Context;
use muster_proto::v1::LogsRequest;

use super::args::LogsArgs;
use super::client::{Client, Line};
use crate::args::Global;
use crate::exit::Exit;

/// Prints log lines of a run's ranks, and stays for new ones if that is wanted.
///
/// # Errors
/// A coordinator that can't be reached, or doesn't know the run.
pub fn logs(args: &LogsArgs, global: &Global) -> anyhow::Result<Exit> {
    let request = LogsRequest { run: args.run.clone(), follow: args.follow, tail: args.tail };
    let line = Line::of_client(&args.client)?;
    super::client_runtime()?.block_on(async {
        let client = Client::connect(&line).await?;
        let mut rpc = client.rpc.clone();
        let mut stream = client.answer(rpc.logs(request)).await?;
        while let Some(message) = stream.message().await.map_err(super::ClientError::from)? {
            let mut text = String::new();
            for text_line in &message.lines {
                match global.json {
                    true => {
                        let json = serde_json::json!({ "member": message.member_id, "line": text_line });
                        text.push_str(&format!("{json}\n"));
                    }
                    false => text.push_str(&format!("{} | {text_line}\n", message.member_id)),
                }
            }
            match std::io::stdout().lock().write_all(text.as_bytes()) {
                // `muster logs RUN | head -1` is no failure.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
                other => other.context("can't write to stdout")?,
            }
        }
        anyhow::Ok(())
    })?;
    Ok(Exit::Success)
}
