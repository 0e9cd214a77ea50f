//! What can be wrong with an operation before anybody is told of it.

use muster_proto::Rank;

use super::op::Buffer;
use super::post::{MAX_NAME_BYTES, Post};
use super::{Engine, MAX_OPERATIONS};
use crate::element::{DataType, Operation};
use crate::error::Error;
use crate::plan::{Algorithm, Kind, Plan};

impl Engine {
    /// Whether an operation is defined and there is room for it.
    pub(super) fn check(&self, post: &Post) -> Result<(), Error> {
        if self.ops.len() >= MAX_OPERATIONS {
            return Err(Error::Busy { limit: MAX_OPERATIONS });
        }
        self.check_ranks(post)?;
        let unsupported =
            |what, dtype: DataType, why| Err(Error::Unsupported { what, dtype: dtype.name(), why });
        if post.reduces() && post.dtype.is_integer() {
            if post.operation == Operation::Mean {
                return unsupported("a mean", post.dtype, "it would have to be rounded");
            }
            if post.weight != 0.0 && post.weight != 1.0 {
                return unsupported(
                    "a weight other than 0 or 1",
                    post.dtype,
                    "products would have to be rounded",
                );
            }
        }
        if post.wire != post.dtype && (post.dtype, post.wire) != (DataType::F32, DataType::Bf16) {
            return unsupported("another type on the wire", post.dtype, "only f32 can travel as bf16");
        }
        if !post.weight.is_finite() || post.weight < 0.0 {
            let problem = format!("{} is not a finite number of at least 0", post.weight);
            return Err(Error::Config { name: "weight", problem });
        }
        if post.name.len() > MAX_NAME_BYTES {
            let problem = format!("{} bytes, at most {MAX_NAME_BYTES} are allowed", post.name.len());
            return Err(Error::Config { name: "name", problem });
        }
        if post.algorithm.is_some_and(|a| matches!(a, Algorithm::Hierarchical | Algorithm::Doubling))
            && post.group.equal_nodes().is_none()
        {
            let problem = "the nodes have different numbers of ranks".to_owned();
            return Err(Error::Config { name: "algorithm", problem });
        }
        let in_place = matches!(post.kind, Kind::AllReduce { in_place: true, .. });
        if in_place != (post.output.is_none() && matches!(post.kind, Kind::AllReduce { .. })) {
            let problem = "an all-reduce has an output buffer exactly if it is not in place".to_owned();
            return Err(Error::Config { name: "in_place", problem });
        }
        Ok(())
    }

    /// Plans are made of ranks and counts that exist.
    fn check_ranks(&self, post: &Post) -> Result<(), Error> {
        let (n, world_size) = (post.group.len(), self.links.len());
        if let Some(&rank) = post.group.ranks().iter().find(|r| r.0 as usize >= world_size) {
            return Err(Error::NoSuchRank { rank, world_size });
        }
        match &post.kind {
            Kind::Broadcast { root, .. } if *root >= n => {
                Err(Error::NoSuchRank { rank: Rank(*root as u32), world_size: n })
            }
            Kind::ReduceScatter { counts } | Kind::AllGather { counts } if counts.len() != n => {
                Err(Error::Length {
                    what: "the list of counts",
                    expected: n as u64,
                    got: counts.len() as u64,
                })
            }
            Kind::Transfer { .. } if n != 2 || post.group.rank(0) == post.group.rank(1) => {
                let problem = "a rank can't send to itself".to_owned();
                Err(Error::Config { name: "peer", problem })
            }
            _ => Ok(()),
        }
    }

    /// Whether the buffers are as long as the plan needs them.
    pub(super) fn check_lengths(&self, post: &Post, plan: &Plan) -> Result<(), Error> {
        let size = post.dtype.bytes();
        let check = |what, buffer: &Buffer, expected: u64| {
            let got = (buffer.bytes().len() / size) as u64;
            if got == expected { Ok(()) } else { Err(Error::Length { what, expected, got }) }
        };
        check("the input", &post.input, plan.input_len)?;
        post.output.as_ref().map_or(Ok(()), |output| check("the output", output, plan.output_len))
    }
}
