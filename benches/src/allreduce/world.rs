//! What a training loop sees: sums and gathers through `World`.

use anyhow::{Context, Result, ensure};
use muster_allreduce::shm::ShmGroup;
use muster_allreduce::{
    CommOptions, CostModel, Key, Listener, Member, Membership, Security, SumBuffer, World,
};
use muster_proto::{Generation, Rank};

use super::Options;

/// A rank of a world, with a buffer for each size.
pub struct Bench {
    world: World,
    /// None while a sum has it.
    buffers: Vec<(usize, Option<SumBuffer>)>,
}

impl Bench {
    /// Joins the ranks of this machine; the group tells everybody's port.
    pub fn join(group: &mut ShmGroup, run: &str, options: &Options) -> Result<Self> {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into())?;
        let (ranks, me) = (group.local_ranks(), group.local_rank());
        let mut ports = vec![0_i32; ranks];
        group.all_gather(&[i32::from(listener.address()?.port())], &vec![1; ranks], &mut ports)?;
        let per_node = options.per_node.unwrap_or(ranks);
        ensure!(per_node > 0, "--per-node must be at least 1");
        let member = |(rank, &port): (usize, &i32)| Member {
            id: rank.to_string(),
            node: format!("node-{}", rank / per_node),
            addresses: vec![([127, 0, 0, 1], port as u16).into()],
        };
        let members = ports.iter().enumerate().map(member).collect();
        let membership = Membership::new(run, Generation(1), members, CostModel::default())?;
        let key = Key::new(options.key.as_bytes())
            .with_context(|| format!("--key needs at least {} bytes", Key::MIN_BYTES))?;
        let comm = CommOptions::new(Security::PreSharedKey(key));
        let mut world = World::join(membership, Rank(me as u32), Some(listener), comm)?;
        let sizes: Vec<usize> = options.sizes.iter().map(|case| case.bytes).collect();
        let lens: Vec<usize> = sizes.iter().map(|bytes| bytes / size_of::<f32>()).collect();
        let buffers = world.buffers(&lens)?.into_iter().map(Some);
        Ok(Self { world, buffers: sizes.into_iter().zip(buffers).collect() })
    }

    fn buffer(&mut self, bytes: usize) -> Result<&mut Option<SumBuffer>> {
        let found = self.buffers.iter_mut().find(|(size, buffer)| *size == bytes && buffer.is_some());
        Ok(&mut found.context("there is a buffer for each size")?.1)
    }

    /// Writes the values to be summed.
    pub fn write(&mut self, values: &[f32]) -> Result<()> {
        let buffer = self.buffer(size_of_val(values))?;
        buffer.as_mut().context("no sum has it")?.copy_from_slice(values);
        Ok(())
    }

    /// Sums everybody's buffer in place.
    pub fn sum(&mut self, bytes: usize) -> Result<()> {
        let at = self.buffers.iter().position(|(size, _)| *size == bytes).context("a known size")?;
        let buffer = self.buffers[at].1.take().context("no other sum has it")?;
        self.buffers[at].1 = Some(self.world.all_reduce(buffer, "bench").wait()?.0);
        Ok(())
    }

    /// What the last sum left.
    pub fn values(&self, bytes: usize) -> Result<&[f32]> {
        let found = self.buffers.iter().find(|(size, _)| *size == bytes);
        found.and_then(|(_, buffer)| buffer.as_deref()).context("a known size")
    }

    /// Gathers so many bytes of every rank.
    pub fn gather(&self, bytes: usize) -> Result<()> {
        let count = bytes / size_of::<f32>();
        let counts = vec![count as u64; self.world.world_size()];
        let all = self.world.all_gather(vec![1.0_f32; count], &counts, "facts")?;
        ensure!(all.len() == count * counts.len() && all.iter().all(|&x| x == 1.0), "a wrong gather");
        Ok(())
    }
}
