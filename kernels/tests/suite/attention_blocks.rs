//! Attention beyond one block of queries: lengths around the edges, real DeBERTa-v3 slots, scratch and extremes.

use muster_kernels::Pool;
use muster_kernels::attention::{
    Backward, Forward, Relative, RelativeGrad, Shape, Terms, backward, forward, scratch_bytes,
};
use muster_kernels::dropout::Dropout;
use muster_kernels::reference::{self, AttentionProblem};

use crate::common::{bits, close, noise, pools, same_on_any_thread_count};

/// Lengths around registers (16), blocks of queries (64), and the last distance with a slot of its own (128).
const EDGES: [usize; 15] = [1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 130, 255, 257, 400, 512];

/// Rows of the table of DeBERTa-v3 (256 buckets, 512 distances) for sequences of up to 512 tokens, from row 1 on.
fn v3_slots() -> Vec<u32> {
    let bucket = |d: i64| {
        let ratio = (d.abs() as f64 / 128.0).ln() / (511.0_f64 / 128.0).ln();
        if d.abs() <= 128 { d } else { d.signum() * ((ratio * 127.0).ceil() as i64 + 128) }
    };
    (-511..=511).map(|d| (bucket(d) + 255) as u32).collect()
}

struct Case {
    offsets: Vec<u32>,
    heads: usize,
    head_dim: usize,
    terms: Option<Terms>,
    rate: f32,
    qkv: Vec<f32>,
    keys: Vec<f32>,
    queries: Vec<f32>,
    slots: Vec<u32>,
    rows: Vec<u64>,
    dout: Vec<f32>,
}

struct Results {
    out: Vec<f32>,
    lse: Vec<f32>,
    dqkv: Vec<f32>,
    dkeys: Vec<f32>,
    dqueries: Vec<f32>,
}

impl Case {
    fn new(lengths: &[usize], (heads, head_dim): (usize, usize), terms: Option<Terms>, rate: f32) -> Self {
        let mut offsets = vec![0_u32];
        lengths.iter().for_each(|&n| offsets.push(offsets.last().unwrap() + n as u32));
        let (tokens, hidden) = (*offsets.last().unwrap() as usize, heads * head_dim);
        Self {
            offsets,
            heads,
            head_dim,
            terms,
            rate,
            qkv: noise(1, tokens * 3 * hidden),
            keys: noise(2, 511 * hidden),
            queries: noise(3, 511 * hidden),
            slots: v3_slots(),
            rows: (0..tokens as u64).map(|t| t * 5 + 3).collect(),
            dout: noise(4, tokens * hidden),
        }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32 * 3.0).sqrt()
    }

    fn dropout(&self) -> Option<Dropout<'_>> {
        (self.rate > 0.0).then_some(Dropout { rate: self.rate, site: 77, rows: &self.rows })
    }

    fn run(&self, pool: &Pool) -> Results {
        let (tokens, hidden) = (self.rows.len(), self.heads * self.head_dim);
        let mut r = Results {
            out: vec![f32::NAN; tokens * hidden],
            lse: vec![f32::NAN; self.heads * tokens],
            dqkv: vec![f32::NAN; self.qkv.len()],
            dkeys: vec![0.0; self.keys.len()],
            dqueries: vec![0.0; self.queries.len()],
        };
        let shape = Shape { offsets: &self.offsets, heads: self.heads, head_dim: self.head_dim };
        let (keys, queries, slots) = (&self.keys[..], &self.queries[..], &self.slots[..]);
        let relative = self.terms.map(|terms| Relative { keys, queries, row_stride: hidden, slots, terms });
        let (qkv, scale, dropout) = (&self.qkv[..], self.scale(), self.dropout());
        forward(pool, Forward { shape, qkv, relative, scale, dropout, out: &mut r.out, lse: &mut r.lse });
        let grad = RelativeGrad { keys: &mut r.dkeys, queries: &mut r.dqueries };
        let b = Backward {
            shape,
            qkv,
            relative,
            scale,
            dropout,
            out: &r.out,
            lse: &r.lse,
            dout: &self.dout,
            dqkv: &mut r.dqkv,
            drelative: relative.map(|_| grad),
        };
        backward(pool, b);
        r
    }

    /// Compares with the formula; sums of n terms carry rounding in proportion to sqrt(n), hence the tolerances.
    fn check(&self, what: &str, r: &Results) {
        let problem = AttentionProblem {
            offsets: &self.offsets,
            heads: self.heads,
            head_dim: self.head_dim,
            qkv: reference::widen(&self.qkv),
            keys: reference::widen(&self.keys),
            queries: reference::widen(&self.queries),
            slots: &self.slots,
            terms: self.terms,
            scale: f64::from(self.scale()),
            dropout: self.dropout(),
        };
        let (out, lse) = problem.forward();
        let g = problem.backward(&reference::widen(&self.dout));
        close(&format!("out {what}"), &r.out, &out, 3e-6, 1e-5);
        close(&format!("lse {what}"), &r.lse, &lse, 3e-6, 1e-6);
        close(&format!("dqkv {what}"), &r.dqkv, &g.qkv, 3e-5, 1e-4);
        if self.terms.is_some() {
            close(&format!("dkeys {what}"), &r.dkeys, &g.keys, 3e-5, 1e-4);
            close(&format!("dqueries {what}"), &r.dqueries, &g.queries, 3e-5, 1e-4);
        }
    }
}

impl Results {
    fn bits(&self) -> Vec<u32> {
        [&self.out, &self.lse, &self.dqkv, &self.dkeys, &self.dqueries].map(|x| bits(x)).concat()
    }
}

#[test]
fn lengths_around_the_edges_match_the_reference_with_the_slots_of_v3() {
    for pool in pools() {
        for n in EDGES {
            for (terms, rate) in [(None, 0.2), (Some(Terms::Both), 0.2), (Some(Terms::C2p), 0.0)] {
                let c = Case::new(&[n], (1, 8), terms, rate);
                c.check(&format!("n {n} {terms:?} {pool:?}"), &c.run(&pool));
            }
        }
    }
}

#[test]
fn mixed_lengths_match_the_reference_at_the_usual_head_widths() {
    for pool in pools() {
        for head_dim in [32, 64] {
            for terms in [None, Some(Terms::Both), Some(Terms::P2c)] {
                let c = Case::new(&[70, 16, 1, 0, 150, 33, 7, 64], (2, head_dim), terms, 0.1);
                c.check(&format!("d {head_dim} {terms:?} {pool:?}"), &c.run(&pool));
            }
        }
    }
}

/// Enough sequences for the gradients of the tables to be sums of several tasks.
#[test]
fn table_gradients_of_many_tasks_match_the_reference_on_any_thread_count() {
    let lengths: Vec<usize> = (0..40).map(|i| 3 + i * 7 % 50).collect();
    let c = Case::new(&lengths, (3, 8), Some(Terms::Both), 0.1);
    for pool in pools() {
        c.check(&format!("{pool:?}"), &c.run(&pool));
    }
    same_on_any_thread_count(|pool| c.run(pool).bits());
}

#[test]
fn long_sequences_do_not_depend_on_the_thread_count() {
    for terms in [None, Some(Terms::Both)] {
        let c = Case::new(&[200, 65, 129, 12], (3, 16), terms, 0.1);
        same_on_any_thread_count(|pool| c.run(pool).bits());
    }
}

#[test]
fn scratch_grows_linearly_with_the_length() {
    for head_dim in [32, 64] {
        let at = |n: usize| scratch_bytes(n, head_dim);
        // Each further 512 tokens cost the same but for padding.
        let step = at(1024) - at(512);
        for n in [1024, 2048, 4096, 8192] {
            assert!((at(n + 512) - at(n)).abs_diff(step) <= step / 16, "{n}: {} {step}", at(n + 512) - at(n));
        }
    }
    assert!(scratch_bytes(512, 64) < 3 << 20, "{} bytes", scratch_bytes(512, 64));
    // Of four heads.
    assert!(scratch_bytes(64, 64) < 1 << 20, "{} bytes", scratch_bytes(64, 64));
}

/// Scores up to 1e10, whose exponentials overflow unless the maximum goes first, in more than one block.
#[test]
fn extreme_scores_stay_finite_across_blocks() {
    for pool in pools() {
        for terms in [None, Some(Terms::Both)] {
            let mut c = Case::new(&[150, 20], (1, 16), terms, 0.0);
            c.qkv.chunks_mut(48).for_each(|row| row[..32].iter_mut().for_each(|x| *x *= 1e5));
            c.keys.iter_mut().chain(&mut c.queries).for_each(|x| *x *= 1e5);
            let r = c.run(&pool);
            assert!(r.lse.iter().any(|l| l.abs() > 1e10));
            let all = r.out.iter().chain(&r.lse).chain(&r.dqkv).chain(&r.dkeys).chain(&r.dqueries);
            assert!(all.copied().all(f32::is_finite), "{terms:?} {pool:?}");
        }
    }
}

#[test]
fn a_nan_shows_in_its_sequence_and_panics_nowhere() {
    for pool in pools() {
        for terms in [None, Some(Terms::Both)] {
            let mut c = Case::new(&[20, 130, 16], (2, 8), terms, 0.1);
            // A query of the second sequence.
            c.qkv[(20 + 70) * 48] = f32::NAN;
            let r = c.run(&pool);
            assert!(r.out[90 * 16..][..8].iter().all(|x| x.is_nan()), "{terms:?} {pool:?}");
            for tokens in [0..20, 150..166] {
                assert!(r.out[tokens.start * 16..tokens.end * 16].iter().all(|x| x.is_finite()));
                assert!(r.dqkv[tokens.start * 48..tokens.end * 48].iter().all(|x| x.is_finite()));
            }
            // Everything NaN: rows without any number.
            c.qkv.fill(f32::NAN);
            assert!(c.run(&pool).out.iter().all(|x| x.is_nan()), "{terms:?} {pool:?}");
        }
    }
}
