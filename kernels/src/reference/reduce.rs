//! Reductions of one element, as the canonical order defines them.

use crate::reduce::{Accumulator, Number, ReduceOp};

/// Combines the contributions of one element: nodes of `groups[i]` ranks each, `None` taking no part.
///
/// Unlike the rest of the specification in the accumulator's own type: what is specified is every bit.
pub fn reduce<I, O>(
    op: ReduceOp,
    groups: &[usize],
    contributions: &[Option<I>],
    weights: &[f32],
    divisor: Option<f32>,
) -> O
where
    I: Number,
    O: Number<Acc = I::Acc>,
{
    let integer = I::TYPE.is_integer();
    let mut values = contributions.iter().zip(weights).map(|(x, &w)| {
        let x = x.filter(|_| w != 0.0)?.widen();
        Some(if w == 1.0 || integer || op != ReduceOp::Sum { x } else { x.weighted(w) })
    });
    let nodes: Vec<_> =
        groups.iter().map(|&count| tree(op, &values.by_ref().take(count).collect::<Vec<_>>())).collect();
    let Some(result) = tree(op, &nodes) else {
        return O::narrow(match op {
            ReduceOp::Sum => I::Acc::ZERO,
            ReduceOp::Min => I::Acc::HIGHEST,
            ReduceOp::Max => I::Acc::LOWEST,
        });
    };
    match divisor {
        Some(d) if op == ReduceOp::Sum && !integer => O::narrow(result.over(d)),
        _ => O::narrow(result),
    }
}

/// The first 2r items in pairs, r = n - 2^floor(log2 n), then balanced halves.
fn tree<A: Accumulator>(op: ReduceOp, items: &[Option<A>]) -> Option<A> {
    let n = items.len();
    match n {
        0 => None,
        1 => items[0],
        _ if n.is_power_of_two() => {
            let (left, right) = items.split_at(n / 2);
            join(op, tree(op, left), tree(op, right))
        }
        _ => {
            let r = n - (1 << n.ilog2());
            let (paired, single) = items.split_at(2 * r);
            let pairs = paired.chunks(2).map(|pair| join(op, pair[0], pair[1]));
            tree(op, &pairs.chain(single.iter().copied()).collect::<Vec<_>>())
        }
    }
}

fn join<A: Accumulator>(op: ReduceOp, a: Option<A>, b: Option<A>) -> Option<A> {
    let (Some(x), Some(y)) = (a, b) else { return a.or(b) };
    Some(match op {
        ReduceOp::Sum => x.plus(y),
        _ if x.is_nan() => x,
        _ if y.is_nan() => y,
        ReduceOp::Min => {
            if x < y {
                x
            } else {
                y
            }
        }
        ReduceOp::Max => {
            if x > y {
                x
            } else {
                y
            }
        }
    })
}
