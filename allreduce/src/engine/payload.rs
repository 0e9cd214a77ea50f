//! Where the payloads of an operation's messages come from, and where they go.

use super::compute::convert;
use super::memory::{Pool, Slab};
use super::op::{Body, Dest, Env, Op, bytes};
use crate::plan::{Place, Reduce, Repr, Task, TaskId, Transfer};

impl Op {
    /// Whether the results of this send's elements have already overwritten them.
    fn is_overwritten(&self, task: TaskId) -> bool {
        self.in_place() && self.plan.next.of(task).iter().any(|&next| self.result_of(next).is_some())
    }

    /// Where a finished reduction stored a final result.
    fn result_of(&self, task: TaskId) -> Option<u64> {
        match &self.plan.tasks[task as usize] {
            Task::Reduce(Reduce { out: Place::Output(at), .. }) if self.done[task as usize] => Some(*at),
            _ => None,
        }
    }

    /// Sum of the weights in the elements at a place.
    pub fn weight_of(&self, place: Place) -> f32 {
        match place {
            _ if !self.reduces => 1.0,
            Place::Input(_) => self.weight,
            Place::Output(_) => self.total_weight,
            Place::Temp(temp) => self.temps[temp as usize].weight,
        }
    }

    /// Where the payload of a send is, the weight in it, and whether it is a result instead of a contribution.
    pub fn body(&mut self, task: TaskId, env: &mut Env<'_>) -> (Body, f32, bool) {
        let Some(&t) = self.transfer(task) else { return (Body::Empty, 0.0, false) };
        let weight = self.weight_of(t.place);
        if self.kept.contains_key(&task) {
            return (Body::Kept, weight, false);
        }
        let is_result = matches!(t.place, Place::Input(_)) && self.is_overwritten(task);
        let absent = weight == 0.0 && !matches!(t.place, Place::Output(_)) && !is_result;
        if t.len == 0 || absent {
            return (Body::Empty, weight, is_result);
        }
        let weight = if is_result { self.total_weight } else { weight };
        let memory = self.types.memory;
        let range = |at| bytes(at, t.len, memory.bytes());
        let body = match t.place {
            Place::Temp(temp) => Body::Temp(temp),
            Place::Input(at) if t.repr == Repr::Partial => Body::Owned(self.weighed(at, t.len, env)),
            Place::Input(at) | Place::Output(at) if self.types.wire != memory => {
                let source =
                    if matches!(t.place, Place::Input(_)) { self.input.bytes() } else { self.output() };
                let mut slab = env.pool.take(t.len as usize * self.types.wire.bytes());
                convert(env.isa, memory, self.types.wire, &source[range(at)], slab.bytes_mut());
                Body::Owned(slab)
            }
            Place::Input(at) if !self.in_place() => Body::Input(range(at)),
            Place::Input(at) | Place::Output(at) => Body::Output(range(at)),
        };
        if !self.keeps {
            return (body, weight, is_result);
        }
        let slab = match body {
            Body::Owned(slab) => slab,
            other => {
                let source = self.payload(&other, task).unwrap_or_default();
                let mut slab = env.pool.take(source.len());
                slab.bytes_mut().copy_from_slice(source);
                slab
            }
        };
        self.kept.insert(task, slab);
        (Body::Kept, weight, is_result)
    }

    pub fn payload<'a>(&'a self, body: &'a Body, task: TaskId) -> Option<&'a [u8]> {
        match body {
            Body::Empty => Some(&[]),
            Body::Owned(slab) => Some(slab.bytes()),
            Body::Input(range) => self.input.bytes().get(range.clone()),
            Body::Output(range) => self.output().get(range.clone()),
            Body::Temp(temp) => self.temps[*temp as usize].slab.as_ref().map(Slab::bytes),
            Body::Kept => self.kept.get(&task).map(Slab::bytes),
        }
    }

    /// Where the payload of a message goes.
    pub fn dest(&self, t: &Transfer, len: usize, is_result: bool, pool: &mut Pool) -> Dest {
        match t.place {
            _ if len == 0 => Dest::Empty,
            Place::Output(at) if self.types.wire == self.types.memory && !is_result => {
                Dest::Output(bytes(at, t.len, self.types.memory.bytes()))
            }
            _ => Dest::Slab(pool.take(len)),
        }
    }
}
