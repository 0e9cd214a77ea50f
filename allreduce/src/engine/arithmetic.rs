//! The arithmetic of an operation: reductions, copies, and the way to and from the wire's type.

use std::sync::Arc;

use muster_kernels::isa::Isa;

use super::compute::{Job, convert};
use super::memory::Slab;
use super::op::{Env, Op, Types, bytes};
use crate::element::Operation;
use crate::order;
use crate::plan::{Place, Reduce, Repr, Task};

impl Op {
    /// Does all arithmetic that is possible.
    pub(super) fn compute(&mut self, env: &mut Env<'_>) {
        while let Some(task) = self.computable.pop() {
            // A result that arrived instead of a contribution has done it already.
            if !self.done[task as usize] {
                let plan = Arc::clone(&self.plan);
                match &plan.tasks[task as usize] {
                    Task::Reduce(reduce) => self.reduce(reduce, env),
                    Task::Copy { from, to, len } => self.copy((*from, *to), *len, env),
                    _ => {}
                }
            }
            self.complete(task, env);
        }
    }

    /// Copies my own elements from the input to the output, rounded as the others get them.
    fn copy(&mut self, (from, to): (u64, u64), len: u64, env: &mut Env<'_>) {
        let Types { memory, wire, .. } = self.types;
        let source = bytes(from, len, memory.bytes());
        if wire == memory {
            if let Some(output) = &mut self.output {
                output.bytes_mut()[bytes(to, len, memory.bytes())]
                    .copy_from_slice(&self.input.bytes()[source]);
            }
            return;
        }
        let mut rounded = env.pool.take(len as usize * wire.bytes());
        convert(env.isa, memory, wire, &self.input.bytes()[source], rounded.bytes_mut());
        self.store(to, rounded.bytes(), env.isa);
        env.pool.give(rounded);
    }

    /// Writes elements of the wire's type to the output.
    pub(super) fn store(&mut self, at: u64, elements: &[u8], isa: Isa) {
        let Types { memory, wire, .. } = self.types;
        let len = (elements.len() / wire.bytes()) as u64;
        convert(isa, wire, memory, elements, &mut self.output_mut()[bytes(at, len, memory.bytes())]);
    }

    /// My contribution as a partial sum of one.
    pub(super) fn weighed(&self, at: u64, len: u64, env: &mut Env<'_>) -> Slab {
        let Types { memory, wire, partial } = self.types;
        let own = &self.input.bytes()[bytes(at, len, memory.bytes())];
        let mut out = env.pool.take(len as usize * partial.bytes());
        let mut rounded = env.pool.take(len as usize * wire.bytes());
        let own = if wire == memory {
            own
        } else {
            convert(env.isa, memory, wire, own, rounded.bytes_mut());
            rounded.bytes()
        };
        let parts = [Some(own)];
        self.job(env.isa, &[1], &parts, &[self.weight]).run(wire, partial, out.bytes_mut());
        env.pool.give(rounded);
        out
    }

    fn job<'a>(
        &self,
        isa: Isa,
        nodes: &'a [usize],
        parts: &'a [Option<&'a [u8]>],
        weights: &'a [f32],
    ) -> Job<'a> {
        Job { isa, op: self.operation.reduction(), nodes, parts, weights, divisor: None }
    }

    fn reduce(&mut self, reduce: &Reduce, env: &mut Env<'_>) {
        let Types { memory, wire, partial } = self.types;
        let len = reduce.len as usize;
        let weight_of = |part: &(Place, Repr)| match part.0 {
            Place::Temp(temp) => self.temps[temp as usize].weight,
            _ => self.weight,
        };
        let weights: Vec<f32> = reduce.parts.iter().map(weight_of).collect();
        let total = order::total_weight(&reduce.nodes, &weights);
        let is_final = matches!(reduce.out, Place::Output(_));
        if total == 0.0 {
            // Nobody takes part: zeros, and nothing to pass on.
            match reduce.out {
                Place::Output(at) => {
                    self.output_mut()[bytes(at, reduce.len, memory.bytes())].fill(0);
                    self.total_weight = 0.0;
                }
                Place::Temp(temp) => self.temps[temp as usize].weight = 0.0,
                Place::Input(_) => {}
            }
            return;
        }
        let mixed = reduce.parts.iter().any(|p| p.1 == Repr::Partial);
        let (from, to) = (if mixed { partial } else { wire }, if is_final { wire } else { partial });
        // My own contribution in the type of the others.
        let mut own = None;
        for (place, repr) in &reduce.parts {
            if let (Place::Input(at), Repr::Data) = (place, repr)
                && self.weight != 0.0
            {
                own = if mixed {
                    Some(self.weighed(*at, reduce.len, env))
                } else if wire != memory {
                    let mut slab = env.pool.take(len * wire.bytes());
                    let source = &self.input.bytes()[bytes(*at, reduce.len, memory.bytes())];
                    convert(env.isa, memory, wire, source, slab.bytes_mut());
                    Some(slab)
                } else {
                    None
                };
            }
        }
        let reads_input = own.is_none() && reduce.parts.iter().any(|p| matches!(p.0, Place::Input(_)));
        let straight = is_final && wire == memory && !(reads_input && self.in_place());
        let mut out = if straight { None } else { Some(env.pool.take(len * to.bytes())) };
        let mut output = self.output.take();
        {
            let parts: Vec<Option<&[u8]>> = reduce
                .parts
                .iter()
                .zip(&weights)
                .map(|(part, weight)| match part.0 {
                    _ if *weight == 0.0 => None,
                    Place::Temp(temp) => self.temps[temp as usize].slab.as_ref().map(Slab::bytes),
                    Place::Input(at) => match &own {
                        Some(slab) => Some(slab.bytes()),
                        None => Some(&self.input.bytes()[bytes(at, reduce.len, memory.bytes())]),
                    },
                    Place::Output(_) => None,
                })
                .collect();
            // Partial sums are weighted already.
            let ones = vec![1.0; weights.len()];
            let factors = if mixed { &ones } else { &weights };
            let mut job = self.job(env.isa, &reduce.nodes, &parts, factors);
            if is_final && self.operation == Operation::Mean {
                job.divisor = Some(total);
            }
            match (&mut out, &mut output, reduce.out) {
                (Some(slab), _, _) => job.run(from, to, slab.bytes_mut()),
                (None, Some(output), Place::Output(at)) => {
                    job.run(from, to, &mut output.bytes_mut()[bytes(at, reduce.len, memory.bytes())]);
                }
                // In place without own contribution among the parts: partial sums only.
                (None, _, _) => {
                    let mut slab = env.pool.take(len * to.bytes());
                    job.run(from, to, slab.bytes_mut());
                    out = Some(slab);
                }
            }
        }
        self.output = output;
        own.into_iter().for_each(|slab| env.pool.give(slab));
        match (reduce.out, out) {
            (Place::Output(at), Some(slab)) => {
                self.store(at, slab.bytes(), env.isa);
                env.pool.give(slab);
            }
            (Place::Temp(temp), Some(slab)) => {
                self.temps[temp as usize].slab = Some(slab);
                self.temps[temp as usize].weight = total;
            }
            _ => {}
        }
        if is_final {
            self.total_weight = total;
        }
    }
}
