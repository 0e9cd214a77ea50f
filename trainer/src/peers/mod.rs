//! The other ranks of a run, as the training loop sees them.
//!
//! A run of one rank has no peers and everything here returns at once. Otherwise every rank calls the same functions in
//! the same order: sums of gradient buckets ([`Sums`]), one vote per step and round of evaluation, and the agreement on
//! weights when a generation begins. Nothing here decides who is a member; a failed call means that the generation
//! is over, and that weights and moments are still those of the last step.

mod deal;
mod state;
mod sums;
mod vote;

use muster_allreduce::{Error, SumBuffer, World};
use muster_proto::Rank;

use crate::topology::Place;

pub use deal::{Share, deal};
pub use state::{Agreement, StateSource, agree, transfer};
pub use sums::Sums;
pub use vote::{Round, Tally, Vote, Wish};

/// This rank and the others of its generation.
#[derive(Debug, Default)]
pub struct Peers {
    world: Option<World>,
    /// Compute threads of each rank; rows are dealt in proportion.
    threads: Vec<u32>,
}

impl Peers {
    /// A run of one rank.
    pub fn alone() -> Self {
        Self::default()
    }

    /// The ranks of a generation; `threads` are the compute threads of each.
    ///
    /// # Panics
    /// If there is not one number of threads per rank.
    pub fn new(world: World, threads: Vec<u32>) -> Self {
        assert_eq!(threads.len(), world.world_size(), "every rank has its threads");
        Self { world: Some(world), threads }
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.world.as_ref().map_or(Rank(0), World::rank)
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.world.as_ref().map_or(1, World::world_size)
    }

    /// Whether this rank writes checkpoints, logs and the model.
    pub fn is_writer(&self) -> bool {
        self.rank() == Rank(0)
    }

    /// Whether this rank is a member of a generation, if only by itself.
    pub fn has_generation(&self) -> bool {
        self.world.is_some()
    }

    /// Which rows of each global batch are this rank's.
    pub fn share(&self) -> Share {
        if self.threads.is_empty() {
            return Share::whole();
        }
        Share::new(self.rank().0 as usize, self.threads.clone())
    }

    /// Memory for the buckets of gradients, where sums are fastest; `None` for a run of one rank.
    ///
    /// # Errors
    /// What ended the generation.
    pub fn buffers(&mut self, lens: &[usize]) -> Result<Option<Vec<SumBuffer>>, Error> {
        self.world.as_mut().map(|world| world.buffers(lens)).transpose()
    }

    /// Tells everybody what this rank has of its machine; returns what each rank has.
    ///
    /// # Errors
    /// What ended the generation.
    pub fn tell_places(&self, mine: Place) -> Result<Vec<Place>, Error> {
        let Some(world) = &self.world else { return Ok(vec![mine]) };
        let counts = vec![Place::WORDS as u64; world.world_size()];
        let words = world.all_gather(mine.words().to_vec(), &counts, "places")?;
        Ok(words.chunks_exact(Place::WORDS).map(Place::from_words).collect())
    }

    /// What the operations under way wait for, for the report of a failure.
    pub fn flight_record(&self) -> Vec<String> {
        self.world.as_ref().map_or_else(Vec::new, |world| world.flight_record(8))
    }
}
