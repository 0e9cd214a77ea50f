//! How the ranks of a new generation come to equal weights: those of the newest step go to whoever lacks them.
//!
//! A rank that joins has nothing; a rank whose last sum failed may be one step behind another one whose succeeded. Both
//! receive weights, moments and the loop's state from ranks that have them: chunk by chunk, from several donors in turn,
//! and the result is proved by a digest.

use muster_allreduce::{Error, World};
use muster_kernels::Element;
use muster_proto::Rank;

use super::Peers;
use crate::engine::Engine;

/// Elements of a chunk: 8 MiB.
const CHUNK: usize = 2 << 20;

/// What a rank has when a generation begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSource {
    /// Steps done; none if it has no weights.
    pub step: Option<u64>,
    /// Digest of weights, moments and the loop's state.
    pub digest: u64,
}

/// Who has the newest weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreement {
    /// Steps done.
    pub step: u64,
    /// Their digest.
    pub digest: u64,
    /// Ranks that have them.
    pub donors: Vec<Rank>,
    /// Ranks that need them.
    pub receivers: Vec<Rank>,
}

/// Compares what all ranks have.
///
/// # Errors
/// What ended the generation; or no rank has weights.
pub fn agree(peers: &Peers, mine: StateSource) -> Result<Agreement, Error> {
    let all = match &peers.world {
        None => vec![mine],
        Some(world) => {
            // Steps count from 1 here; 0 is none.
            let words = vec![mine.step.map_or(0, |step| step as i64 + 1), mine.digest as i64];
            let words = world.all_gather(words, &vec![2; world.world_size()], "what ranks have")?;
            let source = |w: &[i64]| StateSource { step: (w[0] as u64).checked_sub(1), digest: w[1] as u64 };
            words.chunks_exact(2).map(source).collect()
        }
    };
    agreement(&all).ok_or_else(|| {
        let problem = "no rank has weights: the run must start again from a checkpoint".to_owned();
        Error::Config { name: "generation", problem }
    })
}

/// The first of the ranks that are furthest decides; equal ones are donors with it.
fn agreement(all: &[StateSource]) -> Option<Agreement> {
    let step = all.iter().filter_map(|source| source.step).max()?;
    let digest = all.iter().find(|source| source.step == Some(step))?.digest;
    let has = |source: &StateSource| *source == StateSource { step: Some(step), digest };
    let ranks = |wanted: bool| {
        let those = all.iter().enumerate().filter(move |(_, source)| has(source) == wanted);
        those.map(|(rank, _)| Rank(rank as u32)).collect()
    };
    Some(Agreement { step, digest, donors: ranks(true), receivers: ranks(false) })
}

/// Sends or receives weights, moments and `note` (the loop's state), as the agreement says. Returns the donors' note
/// to receivers.
///
/// # Errors
/// What ended the generation. A receiver has no usable weights then.
pub fn transfer<E: Element>(
    peers: &Peers,
    agreement: &Agreement,
    engine: &mut Engine<E>,
    note: &str,
) -> Result<Option<String>, Error> {
    let Some(world) = peers.world.as_ref().filter(|_| !agreement.receivers.is_empty()) else {
        return Ok(None);
    };
    let me = world.rank();
    if let Some(turn) = agreement.donors.iter().position(|&donor| donor == me) {
        give(world, agreement, turn, engine, note)?;
        engine.forget_spent_rows();
        return Ok(None);
    }
    take(world, agreement, engine).map(Some)
}

fn give<E: Element>(
    world: &World,
    agreement: &Agreement,
    turn: usize,
    engine: &mut Engine<E>,
    note: &str,
) -> Result<(), Error> {
    if turn == 0 {
        let words = to_words(note);
        for &to in &agreement.receivers {
            world.send(to, vec![words.len() as i64], "length of the loop's state")?;
            world.send(to, words.clone(), "the loop's state")?;
        }
    }
    let (weights, first, second) = engine.state();
    let chunks = [weights, first, second].into_iter().flat_map(|arena| arena.chunks(CHUNK));
    for chunk in chunks.skip(turn).step_by(agreement.donors.len()) {
        for &to in &agreement.receivers {
            world.send(to, chunk.to_vec(), "weights")?;
        }
    }
    Ok(())
}

fn take<E: Element>(world: &World, agreement: &Agreement, engine: &mut Engine<E>) -> Result<String, Error> {
    let donors = &agreement.donors;
    let len = world.receive::<i64>(donors[0], 1, "length of the loop's state")?[0];
    let words = world.receive::<i64>(donors[0], (len.max(0) as usize).min(NOTE_WORDS), "the loop's state")?;
    let mut turns = donors.iter().cycle();
    engine.restore(|arenas| {
        for arena in [arenas.master, arenas.first_moment, arenas.second_moment] {
            for chunk in arena.chunks_mut(CHUNK) {
                let from = turns.next().expect("a cycle has no end");
                chunk.copy_from_slice(&world.receive::<f32>(*from, chunk.len(), "weights")?);
            }
        }
        Ok::<(), Error>(())
    })?;
    Ok(from_words(&words))
}

/// Largest loop state: it grows with every evaluation.
const NOTE_WORDS: usize = (muster_proto::limits::MAX_STATE_BYTES / 8) as usize;

/// Text as words, padded with spaces, which JSON ignores at its end.
fn to_words(text: &str) -> Vec<i64> {
    let word = |bytes: &[u8]| {
        let mut whole = [b' '; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        i64::from_le_bytes(whole)
    };
    text.as_bytes().chunks(8).map(word).collect()
}

fn from_words(words: &[i64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(step: u64, digest: u64) -> StateSource {
        StateSource { step: Some(step), digest }
    }

    const NOTHING: StateSource = StateSource { step: None, digest: 0 };

    #[test]
    fn the_newest_step_wins_and_the_others_receive_it() {
        let all = [NOTHING, has(4, 1), has(5, 2), has(5, 2)];
        let expected = Agreement {
            step: 5,
            digest: 2,
            donors: vec![Rank(2), Rank(3)],
            receivers: vec![Rank(0), Rank(1)],
        };
        assert_eq!(agreement(&all), Some(expected));
        assert_eq!(agreement(&[NOTHING, NOTHING]), None);
        assert!(agreement(&[has(0, 7), has(0, 7)]).unwrap().receivers.is_empty());
        let split = agreement(&[has(3, 8), has(3, 9)]).unwrap();
        assert_eq!((split.donors, split.receivers), (vec![Rank(0)], vec![Rank(1)]), "the lower rank decides");
    }

    #[test]
    fn text_survives_as_words() {
        for text in ["", "{}", "{\"a\": \"grüße\"}", "12345678"] {
            assert_eq!(from_words(&to_words(text)).trim_end(), text);
        }
    }
}
