//! A rank process after it has read its data and weights: it joins one generation after another until the run ends.
//!
//! The agent decides who is a member and when; this module carries it out and tells how it went. Weights stay in the
//! process whatever happens to the others.

mod control;
mod report;

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use muster_allreduce::{
    CommOptions, CostModel, Key, LinkTls, Listener, Member, Membership, Security, Timeouts, World,
};
use muster_kernels::Element;
use muster_proto::v1::rank_event::Event as Told;
use muster_proto::v1::{Broken, Finished, Install, Paused, Ready, Running, Start, Stopped};
use muster_proto::{Generation, Rank, with_causes};

use crate::peers::{Peers, Wish};
use crate::topology::Binder;
use crate::train::{Conclusion, Ending, Results, TrainError, Trainer};

pub use control::{AgentGone, Control, ControlError, Order};
pub use report::Reporter;

/// How a rank's part in a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All is done.
    Finished,
    /// It was told to end.
    Stopped,
}

/// What a rank is in its run.
pub struct Seat<'a> {
    /// The line to the agent.
    pub control: &'a Control,
    /// Who this rank is.
    pub start: &'a Start,
    /// Name of the run in its results.
    pub name: &'a str,
    /// Compute threads.
    pub threads: u32,
    /// Deadlines of the communication with peers.
    pub timeouts: Timeouts,
    /// Certificates for links to peers, read again for each generation; none: the generation's key alone protects them.
    pub tls: &'a dyn Fn() -> Result<Option<LinkTls>, String>,
    /// Tells the agent of progress.
    pub reporter: &'a Reporter<'a>,
    /// Where threads run.
    pub binder: &'a Binder,
}

/// Why this rank waits for the next generation.
enum Waiting {
    Fresh,
    Paused { generation: u64 },
    Broken { generation: u64, error: String, culprits: Vec<u32> },
}

impl Seat<'_> {
    /// Trains until the run ends.
    ///
    /// # Errors
    /// What this rank can't go on after: everything but the loss of peers.
    pub fn serve<E: Element>(&self, trainer: &mut Trainer<'_, E>) -> Result<Outcome, TrainError> {
        let mut waiting = Waiting::Fresh;
        loop {
            let listener = self.listen()?;
            self.tell_waiting(waiting, &listener, trainer)?;
            let install = match self.control.next_order() {
                Ok(Order::Install(install)) => install,
                Ok(Order::Stop(wish)) => return self.stop(trainer, wish),
                Err(AgentGone) => return Ok(Outcome::Stopped),
            };
            let generation = install.generation;
            waiting = match self.generation(trainer, install, listener) {
                Ok(Turn::Paused) => Waiting::Paused { generation },
                Ok(Turn::Stopped) => return Ok(self.stopped(trainer)),
                Ok(Turn::Done(results)) => return Ok(self.finished(trainer, results)),
                Err(TrainError::Peers(error)) => {
                    for line in trainer.flight_record() {
                        tracing::debug!("{line}");
                    }
                    let culprits = error.culprit().map(|rank| rank.0).into_iter().collect();
                    Waiting::Broken { generation, error: with_causes(&error), culprits }
                }
                Err(error) => return Err(error),
            };
            leave(trainer);
        }
    }

    /// Where peers of the next generation find this rank.
    fn listen(&self) -> Result<Listener, TrainError> {
        let ip: IpAddr = self.start.listen.parse().unwrap_or(IpAddr::from([127, 0, 0, 1]));
        Ok(Listener::bind(SocketAddr::new(ip, 0))?)
    }

    fn tell_waiting<E: Element>(
        &self,
        waiting: Waiting,
        listener: &Listener,
        trainer: &Trainer<'_, E>,
    ) -> Result<(), TrainError> {
        let addresses = vec![listener.address()?.to_string()];
        let step = trainer.step_done();
        self.control.tell(match waiting {
            Waiting::Fresh => Told::Ready(Ready {
                addresses,
                step,
                threads: self.threads,
                total_steps: trainer.total_steps(),
            }),
            Waiting::Paused { generation } => {
                Told::Paused(Paused { generation, step: step.unwrap_or(0), addresses })
            }
            Waiting::Broken { generation, error, culprits } => {
                Told::Broken(Broken { generation, step, addresses, error, culprits })
            }
        });
        Ok(())
    }

    /// One generation, from its meeting to its end.
    fn generation<E: Element>(
        &self,
        trainer: &mut Trainer<'_, E>,
        install: Install,
        listener: Listener,
    ) -> Result<Turn, TrainError> {
        let begun = Instant::now();
        let (generation, rank) = (install.generation, install.rank);
        let peers = self.meet(install, listener)?;
        // Threads of the communication have begun on the CPUs of this one.
        self.binder.place_threads();
        let step = trainer.join(peers)?;
        self.control.training(generation);
        self.reporter.training(generation, rank);
        let formed_us = begun.elapsed().as_micros() as u64;
        self.control.tell(Told::Running(Running { generation, step, rank, formed_us }));
        let ending = trainer.run()?;
        Ok(match ending {
            Ending::Regroup => Turn::Paused,
            _ => match trainer.finish(self.name, ending)? {
                Conclusion::Interrupted => Turn::Stopped,
                Conclusion::Done(results) => Turn::Done(results),
            },
        })
    }

    fn meet(&self, install: Install, listener: Listener) -> Result<Peers, TrainError> {
        let bad = |problem: String| {
            TrainError::Peers(muster_allreduce::Error::Config { name: "generation", problem })
        };
        let threads = install.members.iter().map(|member| member.threads.max(1)).collect();
        let member = |member: muster_proto::v1::Member| {
            let addresses = member.addresses.iter().map(|text| text.parse()).collect::<Result<_, _>>();
            let addresses = addresses.map_err(|e| bad(format!("{}: {e}", member.id)))?;
            Ok::<_, TrainError>(Member { id: member.id, node: member.node, addresses })
        };
        let members = install.members.into_iter().map(member).collect::<Result<Vec<_>, _>>()?;
        let generation = Generation(install.generation);
        let membership = Membership::new(&self.start.run_id, generation, members, CostModel::default())
            .map_err(|e| TrainError::Peers(e.into()))?;
        let key = Key::new(&install.key).ok_or_else(|| bad("its key is too short".into()))?;
        let security = match (self.tls)().map_err(bad)? {
            Some(tls) => Security::MutualTls(key, tls),
            None => Security::PreSharedKey(key),
        };
        let mut options = CommOptions::new(security);
        options.timeouts = self.timeouts;
        let is_cancelled = self.control.meeting(install.generation);
        let world =
            World::join_unless(membership, Rank(install.rank), Some(listener), options, &is_cancelled)?;
        self.control.met(world.abort_handle());
        Ok(Peers::new(world, threads))
    }

    /// Ends while waiting.
    fn stop<E: Element>(&self, trainer: &mut Trainer<'_, E>, wish: Wish) -> Result<Outcome, TrainError> {
        let saves = wish == Wish::SaveAndStop && trainer.step_done().is_some();
        if saves {
            trainer.join(Peers::alone())?;
            trainer.save()?;
        }
        self.control.tell(Told::Stopped(Stopped { step: trainer.step_done().unwrap_or(0), saved: saves }));
        Ok(Outcome::Stopped)
    }

    /// Ends together with the others.
    fn stopped<E: Element>(&self, trainer: &Trainer<'_, E>) -> Outcome {
        let step = trainer.step_done().unwrap_or(0);
        self.control.tell(Told::Stopped(Stopped { step, saved: trainer.saved_step() == Some(step) }));
        Outcome::Stopped
    }

    fn finished<E: Element>(&self, trainer: &Trainer<'_, E>, results: Option<Box<Results>>) -> Outcome {
        let text = results.as_ref().map(serde_json::to_string);
        let results_text = text.transpose().expect("results have string keys and no foreign types");
        let step = trainer.step_done().unwrap_or(0);
        self.control.tell(Told::Finished(Finished { results: results_text.unwrap_or_default(), step }));
        Outcome::Finished
    }
}

/// How a generation ended that nobody broke.
enum Turn {
    Paused,
    Stopped,
    Done(Option<Box<Results>>),
}

/// Leaves the peers of a generation that is over. Connections linger for those who have not heard of it yet, so the
/// next generation does not wait for that.
fn leave<E: Element>(trainer: &mut Trainer<'_, E>) {
    let peers = trainer.leave();
    let spawned = std::thread::Builder::new().name("muster-leave".into()).spawn(move || drop(peers));
    if let Err(error) = spawned {
        // The closure was dropped, and the peers with it.
        tracing::debug!("no thread to leave a generation: {error}");
    }
}
