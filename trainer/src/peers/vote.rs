//! What ranks tell each other once per step: losses, proof of equal gradients, and wishes for what comes next.

use muster_allreduce::Error;
use muster_proto::{Rank, Step};

use super::Peers;

/// What somebody wants to happen at the next step boundary; the strongest wish of all ranks is everybody's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Wish {
    /// The next step.
    #[default]
    GoOn,
    /// Pause, because the membership will change.
    Regroup,
    /// End.
    Stop,
    /// Save a checkpoint and end.
    SaveAndStop,
}

impl Wish {
    fn from_word(word: u64) -> Self {
        match word {
            0 => Self::GoOn,
            1 => Self::Regroup,
            2 => Self::Stop,
            _ => Self::SaveAndStop,
        }
    }
}

/// What one rank says.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Vote {
    /// Sum of the losses of its rows.
    pub loss_sum: f64,
    /// Tokens of its rows.
    pub tokens: u64,
    /// What every rank must have equal: the norm of the summed gradients, and a digest of the weights if it was made.
    pub proof: [u64; 2],
    /// Microseconds that it waited for the sums.
    pub exposed_us: u64,
    /// What it wishes.
    pub wish: Wish,
}

/// What all ranks say together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tally {
    /// Sum of all losses.
    pub loss_sum: f64,
    /// Tokens of all rows.
    pub tokens: u64,
    /// The shortest wait of any rank: the rank that was ready last waits least.
    pub exposed_us_least: u64,
    /// The strongest wish.
    pub wish: Wish,
}

/// One round of an evaluation: what one rank computed, or what all ranks did.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Round {
    /// Logits of each batch; empty for a rank that had none.
    pub logits: Vec<Vec<f32>>,
    /// Sum of the row losses of each batch.
    pub losses: Vec<f64>,
    /// What is wished.
    pub wish: Wish,
}

/// Words of a vote on the wire.
const WORDS: usize = 6;

impl Peers {
    /// Tells everybody `mine` and counts everybody's.
    ///
    /// # Errors
    /// What ended the generation, or ranks whose gradients or weights differ.
    pub fn vote(&self, step: Step, mine: Vote) -> Result<Tally, Error> {
        let Some(world) = &self.world else {
            let Vote { loss_sum, tokens, exposed_us, wish, .. } = mine;
            return Ok(Tally { loss_sum, tokens, exposed_us_least: exposed_us, wish });
        };
        let counts = vec![WORDS as u64; world.world_size()];
        let words = world.all_gather(mine.encode().to_vec(), &counts, "votes")?;
        let votes: Vec<Vote> = words.chunks_exact(WORDS).map(Vote::decode).collect();
        tally(step, &votes)
    }

    /// Gives everybody the batches of a round: `lens[i]` logits of the i-th batch, which rank i computed.
    ///
    /// # Errors
    /// What ended the generation.
    pub fn exchange(&self, lens: Vec<u64>, mine: Round) -> Result<Round, Error> {
        let Some(world) = &self.world else { return Ok(mine) };
        let (n, batches) = (world.world_size(), lens.len());
        let loss = mine.losses.first().map_or(0, |loss| loss.to_bits());
        let words = vec![loss as i64, mine.wish as i64];
        let mut counts = lens.clone();
        counts.resize(n, 0);
        let logits = mine.logits.into_iter().next().unwrap_or_default();
        let logits = world.all_gather(logits, &counts, "logits of a round")?;
        // After the logits: nobody gets these words before everybody has begun this last operation, so nobody leaves
        // while another rank still needs its logits.
        let words = world.all_gather(words, &vec![2; n], "losses of a round")?;
        let mut rest = &logits[..];
        let mut split = |len: &u64| {
            let (one, behind) = rest.split_at(*len as usize);
            rest = behind;
            one.to_vec()
        };
        Ok(Round {
            logits: lens.iter().map(&mut split).collect(),
            losses: words.chunks_exact(2).take(batches).map(|w| f64::from_bits(w[0] as u64)).collect(),
            wish: words.chunks_exact(2).map(|w| Wish::from_word(w[1] as u64)).max().unwrap_or_default(),
        })
    }
}

fn tally(step: Step, votes: &[Vote]) -> Result<Tally, Error> {
    let majority = |vote: &Vote| votes.iter().filter(|other| other.proof == vote.proof).count();
    let odd = votes.iter().position(|vote| 2 * majority(vote) < votes.len() || vote.proof != votes[0].proof);
    if let Some(rank) = odd {
        // Which of the two differs: a bucket's sum or the weights.
        let bucket = usize::from(votes[rank].proof[0] == votes[0].proof[0]);
        return Err(Error::Divergence { rank: Rank(rank as u32), bucket, step: step.0 });
    }
    Ok(Tally {
        loss_sum: votes.iter().map(|vote| vote.loss_sum).sum(),
        tokens: votes.iter().map(|vote| vote.tokens).sum(),
        exposed_us_least: votes.iter().map(|vote| vote.exposed_us).min().unwrap_or(0),
        wish: votes.iter().map(|vote| vote.wish).max().unwrap_or_default(),
    })
}

impl Vote {
    fn encode(&self) -> [i64; WORDS] {
        let [norm, weights] = self.proof;
        [self.loss_sum.to_bits(), self.tokens, norm, weights, self.exposed_us, self.wish as u64]
            .map(|w| w as i64)
    }

    fn decode(words: &[i64]) -> Self {
        let word = |i: usize| words[i] as u64;
        Self {
            loss_sum: f64::from_bits(word(0)),
            tokens: word(1),
            proof: [word(2), word(3)],
            exposed_us: word(4),
            wish: Wish::from_word(word(5)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_survive_the_wire() {
        let vote =
            Vote { loss_sum: -0.5, tokens: 7, proof: [u64::MAX, 3], exposed_us: 9, wish: Wish::Regroup };
        assert_eq!(Vote::decode(&vote.encode()), vote);
    }

    #[test]
    fn losses_add_up_and_the_strongest_wish_wins() {
        let vote =
            |loss_sum, exposed_us, wish| Vote { loss_sum, tokens: 5, exposed_us, wish, ..Vote::default() };
        let votes = [vote(1.0, 30, Wish::Regroup), vote(2.5, 10, Wish::GoOn), vote(0.0, 20, Wish::Stop)];
        let expected = Tally { loss_sum: 3.5, tokens: 15, exposed_us_least: 10, wish: Wish::Stop };
        assert_eq!(tally(Step(1), &votes).unwrap(), expected);
    }

    #[test]
    fn a_rank_with_other_bits_is_named() {
        let vote = |norm, weights| Vote { proof: [norm, weights], ..Vote::default() };
        let odd = |votes: &[Vote]| match tally(Step(4), votes).unwrap_err() {
            Error::Divergence { rank, bucket, step: 4 } => (rank.0, bucket),
            other => panic!("{other}"),
        };
        assert_eq!(odd(&[vote(1, 1), vote(1, 1), vote(2, 1)]), (2, 0));
        assert_eq!(odd(&[vote(2, 1), vote(1, 1), vote(1, 1)]), (0, 1), "the first one is the odd one");
        assert_eq!(odd(&[vote(1, 1), vote(1, 9), vote(1, 1)]), (1, 1));
    }
}
