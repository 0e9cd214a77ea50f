//! How a group begins.

use std::sync::Arc;

use muster_kernels::isa;
use muster_kernels::reduce::Tree;

use super::connect::{Joined, Meeting, own_cpus};
use super::error::ShmError;
use super::memory::{FLAT_SLOT, Memory};
use super::wait::Peers;
use super::watch::{Link, Local, Watch};
use super::{RANKS_MAX, ShmGroup, ShmOptions};

impl ShmGroup {
    /// Joins the ranks of this node; returns when all have joined.
    ///
    /// # Errors
    /// [`ShmError::NoMemory`] if the arena can't be reserved, [`ShmError::Missing`] if somebody does not come, and what
    /// the handshake finds.
    ///
    /// # Examples
    /// ```
    /// use muster_allreduce::Operation;
    /// use muster_allreduce::shm::{Reduce, ShmGroup, ShmOptions};
    ///
    /// // Two ranks; usually they are processes.
    /// let run = format!("example-{}", std::process::id());
    /// let rank = |rank: usize| {
    ///     let mut group = ShmGroup::join(ShmOptions::new(&run, 1, rank, 2))?;
    ///     let mut gradients = vec![rank as f32; 100_000];
    ///     group.all_reduce_in_place(Reduce::new(Operation::Mean), &mut gradients)?;
    ///     Ok::<_, muster_allreduce::shm::ShmError>(gradients[99_999])
    /// };
    /// std::thread::scope(|s| {
    ///     let other = s.spawn(|| rank(1));
    ///     assert_eq!(rank(0)?, 0.5);
    ///     assert_eq!(other.join().expect("it does not panic")?, 0.5);
    ///     Ok::<_, muster_allreduce::shm::ShmError>(())
    /// })?;
    /// # Ok::<_, muster_allreduce::shm::ShmError>(())
    /// ```
    pub fn join(options: ShmOptions) -> Result<Self, ShmError> {
        Self::join_unless(options, &|| false)
    }

    /// As [`ShmGroup::join`], until `is_cancelled` says that nobody wants the group any more; it is asked every few
    /// milliseconds.
    ///
    /// # Errors
    /// Also [`ShmError::Cancelled`].
    pub fn join_unless(options: ShmOptions, is_cancelled: &dyn Fn() -> bool) -> Result<Self, ShmError> {
        let (me, n) = (options.local_rank, options.local_ranks);
        let config = |name, problem| ShmError::Config { name, problem };
        if !(1..=RANKS_MAX).contains(&n) {
            return Err(config("local_ranks", format!("{n} is not between 1 and {RANKS_MAX}")));
        }
        if me >= n {
            return Err(config("local_rank", format!("{me} is not below {n}, the ranks of the node")));
        }
        if options.one_shot_bytes > FLAT_SLOT {
            let problem = format!("{} is more than {FLAT_SLOT}", options.one_shot_bytes);
            return Err(config("one_shot_bytes", problem));
        }
        let (fd, memory) = Memory::create(me, options.arena_bytes)?;
        let joined = if n > 1 { Meeting::new(&options, &fd, is_cancelled).join()? } else { vec![None] };
        let spins = cores(&joined) >= n;
        let own = Arc::new(memory);
        let (mut members, mut links) = (Vec::new(), Vec::new());
        for (peer, joined) in joined.into_iter().enumerate() {
            let Some(joined) = joined else {
                members.push(own.clone());
                continue;
            };
            members.push(Arc::new(joined.memory));
            links.push(Link { peer, socket: joined.socket, pid: joined.pid });
        }
        let local = Local::new(me, members.clone());
        let watch = if n > 1 { Some(Watch::start(me, local.clone(), links)?) } else { None };
        let peers = Peers { me, members, local, spins, deadline: options.progress_deadline, operation: 0 };
        Ok(Self {
            peers,
            isa: isa::selected(),
            everybody: Tree::new(&[n], |_| true),
            weights: vec![1.0; n],
            some: None,
            chunks: 0,
            tag: 0,
            divided: false,
            last: None,
            payloads: vec![Default::default(); n],
            last_level_bytes: isa::Caches::last_level_bytes(),
            options,
            failed: None,
            _watch: watch,
        })
    }
}

/// Cores that all ranks together may use.
fn cores(joined: &[Option<Joined>]) -> usize {
    let own = own_cpus();
    let mut all = own;
    for peer in joined.iter().flatten() {
        all.iter_mut().zip(peer.cpus).for_each(|(a, b)| *a |= b);
    }
    let count = |set: &[u8]| set.iter().map(|b| b.count_ones() as usize).sum::<usize>();
    // Fewer than the affinity says: a quota, which the ranks of a pod share.
    let usable = std::thread::available_parallelism().map_or(1, |n| n.get());
    if usable < count(&own) { usable } else { count(&all) }
}
