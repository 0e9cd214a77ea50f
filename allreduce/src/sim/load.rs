//! Operations for simulated worlds, with their expected results.

use std::any::Any;

use half::{bf16, f16};

use super::{Rng, oracle};
use crate::element::{DataType, Operation};
use crate::engine::memory::Memory;
use crate::engine::{Post, Scope};
use crate::plan::{Algorithm, Group, Kind};

/// Bytes as a buffer; eight-byte numbers keep it aligned for every type.
pub(super) struct Bytes {
    words: Vec<u64>,
    /// Bytes before the first element, so that elements start anywhere.
    skip: usize,
    len: usize,
}

impl Bytes {
    pub fn new(bytes: &[u8], skip: usize) -> Self {
        let mut new = Self { words: vec![0; (bytes.len() + skip).div_ceil(8)], skip, len: bytes.len() };
        new.bytes_mut().copy_from_slice(bytes);
        new
    }
}

impl Memory for Bytes {
    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[self.skip..self.skip + self.len]
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        let end = self.skip + self.len;
        &mut bytemuck::cast_slice_mut(&mut self.words)[self.skip..end]
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// One operation of everybody.
#[derive(Debug, Clone)]
pub(super) struct Load {
    pub kind: Kind,
    pub algorithm: Option<Algorithm>,
    pub nodes: Vec<usize>,
    pub dtype: DataType,
    pub wire: DataType,
    pub operation: Operation,
    pub weights: Vec<f32>,
    pub seed: u64,
    pub skip: usize,
}

impl Load {
    fn n(&self) -> usize {
        self.nodes.iter().sum()
    }

    /// Sums of the ring depend on the order unless they are exact.
    fn exact(&self) -> bool {
        self.algorithm == Some(Algorithm::Ring)
    }

    pub fn input(&self, rank: usize) -> Vec<u8> {
        let count = match &self.kind {
            Kind::AllReduce { count, .. } => *count,
            Kind::ReduceScatter { counts } => counts.iter().sum(),
            Kind::AllGather { counts } => counts[rank],
            Kind::Broadcast { count, root } => {
                if *root == rank {
                    *count
                } else {
                    0
                }
            }
            Kind::Transfer { .. } => 0,
        };
        let mut rng = Rng(self.seed ^ (rank as u64) << 32);
        let absent = self.weights[rank] == 0.0;
        let mut bytes = Vec::new();
        for _ in 0..count {
            let small = (rng.below(17) as i32 - 8) as f32;
            let fraction = (rng.below(1 << 20) as f32 / 524_288.0 - 1.0) * 1.7;
            let x = match () {
                // Nobody may read it.
                () if absent => f32::NAN,
                () if self.exact() => small,
                () => fraction * (1 << rng.below(8)) as f32,
            };
            match self.dtype {
                DataType::F32 => bytes.extend(x.to_le_bytes()),
                DataType::F64 => bytes.extend(f64::from(x).to_le_bytes()),
                DataType::Bf16 => bytes.extend(bf16::from_f32(x).to_le_bytes()),
                DataType::F16 => bytes.extend(f16::from_f32(x).to_le_bytes()),
                DataType::I32 => bytes.extend((rng.next() as i32).to_le_bytes()),
                DataType::I64 => bytes.extend((rng.next() as i64).to_le_bytes()),
            }
        }
        bytes
    }

    fn output_len(&self, rank: usize) -> Option<u64> {
        match &self.kind {
            Kind::AllReduce { in_place: true, .. } => None,
            Kind::AllReduce { count, .. } | Kind::Broadcast { count, .. } | Kind::Transfer { count } => {
                Some(*count)
            }
            Kind::ReduceScatter { counts } => Some(counts[rank]),
            Kind::AllGather { counts } => Some(counts.iter().sum()),
        }
    }

    pub fn post(&self, rank: usize) -> Post {
        // What was in the output before must not matter.
        let garbage = |len: u64| Bytes::new(&vec![0xa5; len as usize * self.dtype.bytes()], self.skip);
        Post {
            scope: Scope::World,
            kind: self.kind.clone(),
            algorithm: self.algorithm,
            group: Group::world(&self.nodes),
            dtype: self.dtype,
            wire: self.wire,
            operation: self.operation,
            weight: self.weights[rank],
            name: "load".into(),
            input: Box::new(Bytes::new(&self.input(rank), self.skip)),
            output: self.output_len(rank).map(|len| Box::new(garbage(len)) as _),
        }
    }

    /// Elements as they arrive.
    fn rounded(&self, bytes: &[u8]) -> Vec<u8> {
        oracle::reduce((self.dtype, self.wire), Operation::Max, &[1], &[bytes.to_vec()], &[1.0])
    }

    /// What every rank must have in the end.
    pub fn expected(&self) -> Vec<Vec<u8>> {
        let inputs: Vec<Vec<u8>> = (0..self.n()).map(|r| self.input(r)).collect();
        let size = self.dtype.bytes();
        let reduced =
            || oracle::reduce((self.dtype, self.wire), self.operation, &self.nodes, &inputs, &self.weights);
        match &self.kind {
            Kind::AllReduce { .. } => vec![reduced(); self.n()],
            Kind::ReduceScatter { counts } => {
                let all = reduced();
                let mut at = 0;
                counts
                    .iter()
                    .map(|&c| {
                        at += c as usize * size;
                        all[at - c as usize * size..at].to_vec()
                    })
                    .collect()
            }
            Kind::AllGather { .. } => vec![self.rounded(&inputs.concat()); self.n()],
            Kind::Broadcast { root, .. } => vec![self.rounded(&inputs[*root]); self.n()],
            Kind::Transfer { .. } => vec![],
        }
    }
}
