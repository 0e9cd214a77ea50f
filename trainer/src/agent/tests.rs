//! An agent with small programs of the system as ranks.

use std::time::Duration;

use muster_proto::v1::{agent_command, agent_event, *};

use super::*;
use crate::topology::HostFacts;

fn options(program: &str, args: &[&str]) -> AgentOptions {
    AgentOptions {
        node: "n".into(),
        incarnation: new_incarnation(),
        boot_id: boot_id(),
        version: "0".into(),
        isa: "avx2".into(),
        listen: "127.0.0.1".into(),
        program: program.into(),
        args: args.iter().map(OsString::from).collect(),
        facts: HostFacts::detect(),
        pod: None,
        leave_timeout: Duration::from_secs(10),
        frozen_after: Duration::from_secs(2),
    }
}

fn start(member: &str) -> AgentCommand {
    let start = Start { run_id: "r".into(), member_id: member.into(), local_ranks: 1, ..Start::default() };
    AgentCommand { command: Some(agent_command::Command::Start(StartRank { start: Some(start), ranks: 1 })) }
}

async fn next(session: &mut Session) -> agent_event::Event {
    let event = tokio::time::timeout(Duration::from_secs(20), session.events.recv()).await;
    event.expect("an event in time").expect("an open session").event.expect("a known event")
}

async fn until_exit(session: &mut Session) -> (RankExited, Vec<String>) {
    let mut lines = Vec::new();
    loop {
        match next(session).await {
            agent_event::Event::Exited(exited) => return (exited, lines),
            agent_event::Event::Log(log) => lines.extend(log.lines),
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_rank_is_started_its_lines_are_shipped_and_its_exit_is_told() {
    let agent = Handle::start(options("sh", &["-c", "echo hello; echo trouble >&2; exit 3"])).unwrap();
    let mut session = agent.asker().session("c").await.unwrap();
    let agent_event::Event::Report(report) = next(&mut session).await else { panic!("a report comes first") };
    assert_eq!((report.node.as_str(), report.protocol, report.ranks.len()), ("n", PROTOCOL, 0));
    assert!(report.numa_nodes.iter().map(|node| node.physical_cores).sum::<u32>() > 0);
    session.commands.send(start("n/0#1")).await.unwrap();
    let (exited, mut lines) = until_exit(&mut session).await;
    lines.sort();
    assert_eq!((exited.code, exited.signal, exited.member_id.as_str()), (Some(3), None, "n/0#1"));
    assert_eq!(lines, ["hello", "trouble"]);
}

#[tokio::test]
async fn a_rank_lives_on_without_a_session_and_the_next_one_hears_of_it() {
    let agent = Handle::start(options("sleep", &["1000"])).unwrap();
    let session = agent.asker().session("c").await.unwrap();
    session.commands.send(start("n/0#1")).await.unwrap();
    drop(session);
    let mut session = agent.asker().session("c").await.unwrap();
    let agent_event::Event::Report(report) = next(&mut session).await else { panic!("a report comes first") };
    assert_eq!(report.ranks.len(), 1);
    assert_eq!(report.ranks[0].exited, None);
    let kill = KillRank { member_id: "n/0#1".into(), reason: "test".into() };
    session.commands.send(AgentCommand { command: Some(agent_command::Command::Kill(kill)) }).await.unwrap();
    assert_eq!(until_exit(&mut session).await.0.signal, Some(9));
    drop(session);
    let mut session = agent.asker().session("c").await.unwrap();
    let agent_event::Event::Report(report) = next(&mut session).await else { panic!("a report comes first") };
    assert_eq!(report.ranks[0].exited.as_ref().unwrap().signal, Some(9), "for coordinators that were away");
}

#[tokio::test]
async fn a_second_coordinator_is_refused_while_the_first_is_there() {
    let agent = Handle::start(options("true", &[])).unwrap();
    let first = agent.asker().session("one").await.unwrap();
    let error = agent.asker().session("two").await.unwrap_err();
    assert!(error.to_string().contains("has a session with coordinator one"), "{error}");
    let _again = agent.asker().session("one").await.unwrap();
    drop((first, _again));
    agent.asker().session("two").await.unwrap();
}

#[tokio::test]
async fn garbage_from_a_rank_is_a_failure_with_a_reason() {
    // The standard input of a rank is a socket: what is written there goes to the agent.
    let agent = Handle::start(options("sh", &["-c", "printf '\\003xyz' >&0; sleep 1000"])).unwrap();
    let mut session = agent.asker().session("c").await.unwrap();
    next(&mut session).await;
    session.commands.send(start("n/0#1")).await.unwrap();
    let agent_event::Event::FromRank(from) = next(&mut session).await else { panic!("a failure") };
    let Some(rank_event::Event::Failed(failed)) = from.event.unwrap().event else { panic!("a failure") };
    assert!(failed.error.contains("3 bytes that are no message"), "{}", failed.error);
    assert_eq!(until_exit(&mut session).await.0.signal, Some(9));
}

#[tokio::test]
async fn a_rank_that_does_not_say_any_more_that_it_can_run_is_killed() {
    // The message Alive, once.
    let agent = Handle::start(options("sh", &["-c", "printf '\\002\\122\\000' >&0; sleep 1000"])).unwrap();
    let mut session = agent.asker().session("c").await.unwrap();
    next(&mut session).await;
    session.commands.send(start("n/0#1")).await.unwrap();
    let begun = std::time::Instant::now();
    assert_eq!(until_exit(&mut session).await.0.signal, Some(9));
    assert!(begun.elapsed() >= Duration::from_secs(2), "it has its time: {:?}", begun.elapsed());
}

/// Two runs of one cluster number their ranks alike; found by tests/chaos.rs, whose second run waited for its ranks.
#[tokio::test]
async fn a_name_is_new_within_its_run_only() {
    let agent = Handle::start(options("sh", &["-c", "exit 0"])).unwrap();
    let mut session = agent.asker().session("c").await.unwrap();
    next(&mut session).await;
    session.commands.send(start("n/0#1")).await.unwrap();
    assert_eq!(until_exit(&mut session).await.0.code, Some(0));
    session.commands.send(start("n/0#1")).await.unwrap();
    let agent_event::Event::StartFailed(failed) = next(&mut session).await else { panic!("the same run") };
    assert!(failed.error.contains("n/0#1"), "{}", failed.error);
    let mut of_another_run = start("n/0#1");
    let Some(agent_command::Command::Start(StartRank { start: Some(start), .. })) =
        &mut of_another_run.command
    else {
        panic!("a start")
    };
    start.run_id = "s".into();
    session.commands.send(of_another_run).await.unwrap();
    let exited = until_exit(&mut session).await.0;
    assert_eq!((exited.code, exited.run_id.as_str()), (Some(0), "s"));
}

#[tokio::test]
async fn what_can_not_be_started_is_told_with_its_reason() {
    let agent = Handle::start(options("/no/such/program", &[])).unwrap();
    let mut session = agent.asker().session("c").await.unwrap();
    next(&mut session).await;
    session.commands.send(start("n/0#1")).await.unwrap();
    let agent_event::Event::StartFailed(failed) = next(&mut session).await else { panic!("no start") };
    assert!(failed.error.contains("/no/such/program: No such file"), "{}", failed.error);
}

#[tokio::test]
async fn an_agent_that_is_told_to_leave_waits_for_its_ranks() {
    let agent = Handle::start(options("sh", &["-c", "read x; exit 0"])).unwrap();
    let mut session = agent.asker().session("c").await.unwrap();
    next(&mut session).await;
    session.commands.send(start("n/0#1")).await.unwrap();
    agent.asker().leave("SIGTERM").await;
    let (mut left, mut exited) = (false, false);
    while !(left && exited) {
        match next(&mut session).await {
            agent_event::Event::Leaving(leaving) => left = leaving.reason == "SIGTERM",
            agent_event::Event::Exited(_) => exited = true,
            _ => {}
        }
        // `read` ends at a line or the end of input; the bytes of Start hold no line end, so it is killed.
        if left && !exited {
            let kill = KillRank { member_id: "n/0#1".into(), reason: "test".into() };
            let command = AgentCommand { command: Some(agent_command::Command::Kill(kill)) };
            session.commands.send(command).await.unwrap();
        }
    }
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while !agent.is_finished() {
        assert!(std::time::Instant::now() < deadline, "it has nothing left to wait for");
        tokio::task::yield_now().await;
    }
}
