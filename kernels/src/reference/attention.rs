//! Attention with relative terms, straight from the formula.

use crate::attention::Terms;
use crate::dropout::Dropout;

/// Everything attention depends on; fields as in [`crate::attention::Forward`], widened.
#[derive(Clone)]
pub struct AttentionProblem<'a> {
    /// First token of each sequence, and T.
    pub offsets: &'a [u32],
    /// Number of heads.
    pub heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// (T, 3 H).
    pub qkv: Vec<f64>,
    /// Kr (P, H).
    pub keys: Vec<f64>,
    /// Qr (P, H).
    pub queries: Vec<f64>,
    /// Slot of distance d at index d + max - 1.
    pub slots: &'a [u32],
    /// Relative terms, if any.
    pub terms: Option<Terms>,
    /// Factor of every score.
    pub scale: f64,
    /// Dropout of probabilities.
    pub dropout: Option<Dropout<'a>>,
}

/// Gradients of the inputs.
#[derive(Debug, Clone)]
pub struct AttentionGrad {
    /// (T, 3 H).
    pub qkv: Vec<f64>,
    /// (P, H).
    pub keys: Vec<f64>,
    /// (P, H).
    pub queries: Vec<f64>,
}

/// A query's token and head, and the sequence it looks at.
#[derive(Clone, Copy)]
struct Query {
    token: usize,
    head: usize,
    from: usize,
    to: usize,
}

impl AttentionProblem<'_> {
    fn hidden(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Index of element c of q (0), k (1) or v (2) of a token and head.
    fn at(&self, which: usize, token: usize, head: usize, c: usize) -> usize {
        (token * 3 + which) * self.hidden() + head * self.head_dim + c
    }

    fn slot(&self, i: usize, j: usize) -> usize {
        self.slots[(i as i64 - j as i64 + self.slots.len() as i64 / 2) as usize] as usize
    }

    fn queries(&self) -> Vec<Query> {
        let mut all = Vec::new();
        for row in self.offsets.windows(2) {
            let (from, to) = (row[0] as usize, row[1] as usize);
            for head in 0..self.heads {
                all.extend((from..to).map(|token| Query { token, head, from, to }));
            }
        }
        all
    }

    /// Probabilities before dropout, and the log-sum-exp of the scores.
    fn probabilities(&self, q: Query) -> (Vec<f64>, f64) {
        let scores: Vec<f64> = (q.from..q.to).map(|j| self.score(q, j)).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
        (scores.iter().map(|s| (s - top).exp() / sum).collect(), top + sum.ln())
    }

    fn score(&self, q: Query, j: usize) -> f64 {
        let slot = self.slot(q.token, j) * self.hidden() + q.head * self.head_dim;
        let mut sum = 0.0;
        for c in 0..self.head_dim {
            let (query, key) = (self.qkv[self.at(0, q.token, q.head, c)], self.qkv[self.at(1, j, q.head, c)]);
            sum += query * key;
            if self.terms.is_some_and(Terms::c2p) {
                sum += query * self.keys[slot + c];
            }
            if self.terms.is_some_and(Terms::p2c) {
                sum += key * self.queries[slot + c];
            }
        }
        sum * self.scale
    }

    fn factor(&self, q: Query, j: usize) -> f64 {
        match self.dropout.as_ref().filter(|d| d.rate > 0.0) {
            None => 1.0,
            Some(d) => f64::from(d.row_at(q.token, q.head as u64 + 1).factor((j - q.from) as u32)),
        }
    }

    /// The output (T, H) and the log-sum-exp (heads, T).
    pub fn forward(&self) -> (Vec<f64>, Vec<f64>) {
        let tokens = self.qkv.len() / 3 / self.hidden();
        let (mut out, mut lse) = (vec![0.0; tokens * self.hidden()], vec![0.0; self.heads * tokens]);
        for q in self.queries() {
            let (probs, l) = self.probabilities(q);
            lse[q.head * tokens + q.token] = l;
            for (j, p) in (q.from..q.to).zip(probs) {
                for c in 0..self.head_dim {
                    out[q.token * self.hidden() + q.head * self.head_dim + c] +=
                        p * self.factor(q, j) * self.qkv[self.at(2, j, q.head, c)];
                }
            }
        }
        (out, lse)
    }

    /// Gradients for the gradient of the output (T, H).
    pub fn backward(&self, dout: &[f64]) -> AttentionGrad {
        let mut g = AttentionGrad {
            qkv: vec![0.0; self.qkv.len()],
            keys: vec![0.0; self.keys.len()],
            queries: vec![0.0; self.queries.len()],
        };
        for q in self.queries() {
            let (probs, _) = self.probabilities(q);
            let dout = &dout[q.token * self.hidden() + q.head * self.head_dim..][..self.head_dim];
            let dp: Vec<f64> = (q.from..q.to)
                .map(|j| {
                    let dot: f64 =
                        (0..self.head_dim).map(|c| dout[c] * self.qkv[self.at(2, j, q.head, c)]).sum();
                    dot * self.factor(q, j)
                })
                .collect();
            let delta: f64 = probs.iter().zip(&dp).map(|(p, d)| p * d).sum();
            for (x, j) in (q.from..q.to).enumerate() {
                for (c, dout) in dout.iter().enumerate() {
                    g.qkv[self.at(2, j, q.head, c)] += probs[x] * self.factor(q, j) * dout;
                }
                self.score_gradient(q, j, probs[x] * (dp[x] - delta) * self.scale, &mut g);
            }
        }
        g
    }

    /// Spreads the gradient of an unscaled score over what it is made of.
    fn score_gradient(&self, q: Query, j: usize, ds: f64, g: &mut AttentionGrad) {
        let slot = self.slot(q.token, j) * self.hidden() + q.head * self.head_dim;
        for c in 0..self.head_dim {
            let (at_q, at_k) = (self.at(0, q.token, q.head, c), self.at(1, j, q.head, c));
            let (query, key) = (self.qkv[at_q], self.qkv[at_k]);
            g.qkv[at_q] += ds * key;
            g.qkv[at_k] += ds * query;
            if self.terms.is_some_and(Terms::c2p) {
                g.qkv[at_q] += ds * self.keys[slot + c];
                g.keys[slot + c] += ds * query;
            }
            if self.terms.is_some_and(Terms::p2c) {
                g.qkv[at_k] += ds * self.queries[slot + c];
                g.queries[slot + c] += ds * key;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(key: u64, n: usize) -> Vec<f64> {
        (0..n as u64).map(|i| f64::from(crate::rng::normal(key, i))).collect()
    }

    #[test]
    fn gradients_are_the_differences_of_values() {
        let (offsets, slots) = ([0, 3, 5], [0, 1, 2, 4, 5]);
        let keys: Vec<u64> = (0..5).collect();
        let dout = noise(9, 20);
        let p = AttentionProblem {
            offsets: &offsets,
            heads: 2,
            head_dim: 2,
            qkv: noise(1, 60),
            keys: noise(2, 24),
            queries: noise(3, 24),
            slots: &slots,
            terms: Some(Terms::Both),
            scale: 0.4,
            dropout: Some(Dropout { rate: 0.3, site: 5, rows: &keys }),
        };
        let g = p.backward(&dout);
        let loss =
            |p: &AttentionProblem<'_>| p.forward().0.iter().zip(&dout).map(|(a, b)| a * b).sum::<f64>();
        let h = 1e-5;
        let check = |pick: for<'a, 'b> fn(&'a mut AttentionProblem<'b>) -> &'a mut Vec<f64>,
                     gradient: &[f64]| {
            for (i, g) in gradient.iter().enumerate() {
                let (mut up, mut down) = (p.clone(), p.clone());
                pick(&mut up)[i] += h;
                pick(&mut down)[i] -= h;
                assert!(((loss(&up) - loss(&down)) / (2.0 * h) - g).abs() < 1e-8, "element {i}");
            }
        };
        check(|p| &mut p.qkv, &g.qkv);
        check(|p| &mut p.keys, &g.keys);
        check(|p| &mut p.queries, &g.queries);
    }
}
