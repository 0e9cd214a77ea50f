use muster_kernels::attention::{Backward, Forward, Relative, RelativeGrad, Shape, Terms, backward, forward};
use muster_kernels::dropout::Dropout;
use muster_kernels::reference::{self, AttentionProblem};
use muster_kernels::{Element, Pool, isa};

use crate::common::{bits, close, noise, pool, pools, same_on_any_thread_count};
use crate::for_both;

/// Inputs of one call, owned.
#[derive(Clone)]
struct Case<E> {
    offsets: Vec<u32>,
    heads: usize,
    head_dim: usize,
    qkv: Vec<E>,
    keys: Vec<E>,
    queries: Vec<E>,
    row_stride: usize,
    slots: Vec<u32>,
    terms: Option<Terms>,
    scale: f32,
    rate: f32,
    rows: Vec<u64>,
    dout: Vec<E>,
}

/// Slots as DeBERTa's buckets make them: distances up to `mid` each have their own, farther ones share in log steps.
fn log_slots(max: usize, mid: i64) -> Vec<u32> {
    let last = max as i64 - 1;
    (-last..=last)
        .map(|d| {
            let far = ((d.abs() as f64 / mid as f64).ln() / (last as f64 / mid as f64).ln()
                * (mid - 1) as f64)
                .ceil();
            let bucket = if d.abs() <= mid { d } else { d.signum() * (far as i64 + mid) };
            (bucket + 2 * mid).clamp(0, 4 * mid - 1) as u32
        })
        .collect()
}

impl<E: Element> Case<E> {
    fn new(lengths: &[usize], heads: usize, head_dim: usize, terms: Option<Terms>, mid: i64) -> Self {
        let mut offsets = vec![0_u32];
        lengths.iter().for_each(|&n| offsets.push(offsets.last().unwrap() + n as u32));
        let (tokens, hidden) = (*offsets.last().unwrap() as usize, heads * head_dim);
        let positions = if terms.is_some() { 4 * mid as usize } else { 0 };
        let max = lengths.iter().copied().max().unwrap().max(2);
        Self {
            offsets,
            heads,
            head_dim,
            qkv: noise(1, tokens * 3 * hidden),
            keys: noise(2, positions * hidden),
            queries: noise(3, positions * hidden),
            row_stride: hidden,
            slots: log_slots(max, mid),
            terms,
            scale: 1.0 / (head_dim as f32 * 3.0).sqrt(),
            rate: 0.0,
            rows: (0..tokens as u64).map(|t| t * 7 + 1).collect(),
            dout: noise(4, tokens * hidden),
        }
    }

    fn dropout(&self) -> Option<Dropout<'_>> {
        (self.rate > 0.0).then_some(Dropout { rate: self.rate, site: 77, rows: &self.rows })
    }

    fn shape(&self) -> Shape<'_> {
        Shape { offsets: &self.offsets, heads: self.heads, head_dim: self.head_dim }
    }

    fn relative(&self) -> Option<Relative<'_, E>> {
        let (keys, queries, row_stride) = (&self.keys[..], &self.queries[..], self.row_stride);
        self.terms.map(|terms| Relative { keys, queries, row_stride, slots: &self.slots, terms })
    }

    fn problem(&self) -> AttentionProblem<'_> {
        AttentionProblem {
            offsets: &self.offsets,
            heads: self.heads,
            head_dim: self.head_dim,
            qkv: reference::widen(&self.qkv),
            keys: reference::widen(&self.keys),
            queries: reference::widen(&self.queries),
            slots: &self.slots,
            terms: self.terms,
            scale: f64::from(self.scale),
            dropout: self.dropout(),
        }
    }

    fn run(&self, pool: &Pool) -> Results<E> {
        let (tokens, hidden) = (self.rows.len(), self.heads * self.head_dim);
        let table = if self.terms.is_some() {
            self.slots.iter().max().map_or(0, |&s| s as usize + 1) * hidden
        } else {
            0
        };
        let nan = E::from_f32(f32::NAN);
        let mut r = Results {
            out: vec![nan; tokens * hidden],
            lse: vec![f32::NAN; self.heads * tokens],
            dqkv: vec![nan; self.qkv.len()],
            dkeys: vec![0.5; table],
            dqueries: vec![0.25; table],
        };
        let (shape, scale, dropout) = (self.shape(), self.scale, self.dropout());
        let relative = self.relative();
        forward(
            pool,
            Forward { shape, qkv: &self.qkv, relative, scale, dropout, out: &mut r.out, lse: &mut r.lse },
        );
        let grad = RelativeGrad { keys: &mut r.dkeys, queries: &mut r.dqueries };
        let b = Backward {
            shape,
            qkv: &self.qkv,
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
}

struct Results<E> {
    out: Vec<E>,
    lse: Vec<f32>,
    dqkv: Vec<E>,
    dkeys: Vec<f32>,
    dqueries: Vec<f32>,
}

impl<E: Element> Results<E> {
    fn bits(&self) -> Vec<u32> {
        [bits(&self.out), bits(&self.lse), bits(&self.dqkv), bits(&self.dkeys), bits(&self.dqueries)].concat()
    }
}

fn compare<E: Element>(what: &str, c: &Case<E>, r: &Results<E>) {
    let (out, lse) = c.problem().forward();
    let g = c.problem().backward(&reference::widen(&c.dout));
    close(&format!("out {what}"), &r.out, &out, 3e-6, 1e-5);
    close(&format!("lse {what}"), &r.lse, &lse, 3e-6, 1e-6);
    // Backward reads the output as stored, so in bf16 delta carries its rounding, and a gradient that cancels carries
    // it in absolute terms.
    let (absolute, relative) = match E::DTYPE {
        muster_kernels::DType::F32 => (3e-5, 1e-4),
        muster_kernels::DType::Bf16 => (6e-2, 2e-2),
    };
    close(&format!("dqkv {what}"), &r.dqkv, &g.qkv, absolute, relative);
    let plus = |v: &[f64], x: f64, len: usize| v[..len].iter().map(|v| v + x).collect::<Vec<_>>();
    close(&format!("dkeys {what}"), &r.dkeys, &plus(&g.keys, 0.5, r.dkeys.len()), absolute, relative);
    close(
        &format!("dqueries {what}"),
        &r.dqueries,
        &plus(&g.queries, 0.25, r.dqueries.len()),
        absolute,
        relative,
    );
}

fn plain<E: Element>() {
    for pool in pools() {
        for (lengths, heads, head_dim) in [
            (vec![1], 1, 1),
            (vec![1, 2, 0, 7, 16], 2, 5),
            (vec![17, 33, 15], 3, 16),
            (vec![100, 31], 2, 32),
            (vec![130, 1], 1, 64),
        ] {
            for rate in [0.0, 0.3] {
                let mut c = Case::<E>::new(&lengths, heads, head_dim, None, 4);
                c.rate = rate;
                compare(&format!("{lengths:?} {heads}x{head_dim} rate {rate} {pool:?}"), &c, &c.run(&pool));
            }
        }
    }
}

#[test]
fn plain_attention_matches_the_reference() {
    for_both!(plain);
}

fn with_relative_terms<E: Element>() {
    for pool in pools() {
        for (lengths, heads, head_dim, mid) in [
            (vec![1], 1, 1, 4),
            (vec![1, 2, 0, 5], 2, 3, 8),
            // Lengths below the first shared bucket, then far beyond it.
            (vec![17, 33, 15, 17], 2, 16, 64),
            (vec![40, 9, 90], 2, 8, 8),
            (vec![130, 64, 129], 1, 32, 64),
        ] {
            for terms in [Terms::C2p, Terms::P2c, Terms::Both] {
                let mut c = Case::<E>::new(&lengths, heads, head_dim, Some(terms), mid);
                c.rate = if terms == Terms::Both { 0.2 } else { 0.0 };
                compare(&format!("{lengths:?} {heads}x{head_dim} {terms:?} {pool:?}"), &c, &c.run(&pool));
            }
        }
    }
}

#[test]
fn attention_with_relative_terms_matches_the_reference() {
    for_both!(with_relative_terms);
}

#[test]
fn tables_may_be_column_blocks_of_one_matrix() {
    let pool = pool(2, isa::selected());
    let c = Case::<f32>::new(&[12, 40], 2, 8, Some(Terms::Both), 8);
    let mut fused = c.clone();
    let both: Vec<f32> =
        c.keys.chunks(16).zip(c.queries.chunks(16)).flat_map(|(k, q)| [k, q].concat()).collect();
    (fused.keys, fused.queries, fused.row_stride) = (both.clone(), both[16..].to_vec(), 32);
    assert!(c.run(&pool).bits() == fused.run(&pool).bits());
}

/// Case 4: one head of one column; c2p and p2c differ, and both read the table at i - j.
#[test]
fn relative_terms_have_the_values_of_a_five_by_five_example() {
    // Slots are d + 4. Kr = slot, Qr = slot^2 (not symmetric in d); Q = 1 + i, K = 2 - j; V picks out columns.
    let n = 5;
    let (q, k): (Vec<f32>, Vec<f32>) =
        ((0..n).map(|i| 1.0 + i as f32).collect(), (0..n).map(|j| 2.0 - j as f32).collect());
    let keys: Vec<f32> = (0..9).map(|s| s as f32).collect();
    let queries: Vec<f32> = (0..9).map(|s| (s * s) as f32).collect();
    // Row 1 by hand: i = 1, j = 0: q k = 4, c2p = 2 * Kr[5] = 10, p2c = 2 * Qr[5] = 50; j = 1: 2, 8, 16;
    // j = 2: 0, 6, 0; j = 3: -2, 4, -4; j = 4: -4, 2, -2.
    let row_one = [64.0, 26.0, 6.0, -2.0, -4.0];
    let score = |i: usize, j: usize| {
        let slot = i + 4 - j;
        q[i] * k[j] + q[i] * keys[slot] + k[j] * queries[slot]
    };
    (0..n).for_each(|j| assert_eq!(score(1, j), row_one[j]));
    assert_ne!(score(3, 1), q[3] * k[1] + q[3] * keys[6] + k[1] * queries[2], "a flipped sign would show");
    let slots: Vec<u32> = (0..9).collect();
    let rows = [0; 5];
    for pool in pools() {
        for column in 0..n {
            // V is one in this column, so the output is the probability of it.
            let qkv: Vec<f32> = (0..n).flat_map(|t| [q[t], k[t], f32::from(u8::from(t == column))]).collect();
            let (mut out, mut lse) = (vec![0.0_f32; n], vec![0.0_f32; n]);
            let f = Forward {
                shape: Shape { offsets: &[0, 5], heads: 1, head_dim: 1 },
                qkv: &qkv,
                relative: Some(Relative {
                    keys: &keys,
                    queries: &queries,
                    row_stride: 1,
                    slots: &slots,
                    terms: Terms::Both,
                }),
                scale: 0.05,
                dropout: Some(Dropout { rate: 0.0, site: 0, rows: &rows }),
                out: &mut out,
                lse: &mut lse,
            };
            forward(&pool, f);
            for i in 0..n {
                // exp(score - lse) = probability gives the score back.
                let got = (out[i].ln() + lse[i]) / 0.05;
                assert!(
                    (got - score(i, column)).abs() < 2e-3,
                    "cell ({i}, {column}): {got} {}",
                    score(i, column)
                );
            }
        }
    }
}

#[test]
fn a_sequence_packed_with_others_gives_the_bits_it_gives_alone() {
    for pool in pools() {
        for terms in [None, Some(Terms::Both)] {
            let mut c = Case::<f32>::new(&[30, 12, 77], 2, 16, terms, 16);
            c.rate = 0.1;
            let all = c.run(&pool);
            let mut alone = c.clone();
            alone.offsets = vec![0, 12];
            alone.qkv = c.qkv[30 * 96..42 * 96].to_vec();
            alone.rows = c.rows[30..42].to_vec();
            alone.dout = c.dout[30 * 32..42 * 32].to_vec();
            let one = alone.run(&pool);
            assert_eq!(bits(&one.out), bits(&all.out[30 * 32..42 * 32]));
            assert_eq!(bits(&one.dqkv), bits(&all.dqkv[30 * 96..42 * 96]));
        }
    }
}

#[test]
fn results_do_not_depend_on_the_thread_count() {
    for terms in [None, Some(Terms::Both)] {
        let mut c = Case::<f32>::new(&[40, 12, 129, 3, 64], 3, 8, terms, 32);
        c.rate = 0.1;
        same_on_any_thread_count(|pool| c.run(pool).bits());
    }
}

/// Case 1: raw scores far beyond what half precision holds.
#[test]
fn scores_of_a_million_give_finite_results() {
    for pool in pools() {
        for terms in [None, Some(Terms::Both)] {
            for factor in [300.0_f32, 1e4] {
                let mut c = Case::<f32>::new(&[33, 20], 2, 16, terms, 16);
                let third = 32;
                for row in c.qkv.chunks_mut(96) {
                    row[..2 * third].iter_mut().for_each(|x| *x *= factor);
                }
                c.keys.iter_mut().chain(&mut c.queries).for_each(|x| *x *= factor);
                let r = c.run(&pool);
                assert!(r.lse.iter().any(|l| l.abs() > factor * factor));
                assert!(
                    r.out.iter().chain(&r.dqkv).chain(&r.dkeys).all(|x| x.is_finite()),
                    "factor {factor}"
                );
                assert!(r.out.iter().all(|o| o.abs() < 10.0), "an output is a mean of values");
            }
        }
    }
}

#[test]
fn a_nan_stays_in_its_sequence() {
    for pool in pools() {
        let mut c = Case::<f32>::new(&[10, 20], 2, 4, None, 4);
        c.qkv[3 * 24] = f32::NAN;
        let r = c.run(&pool);
        assert!(r.out[3 * 8..3 * 8 + 4].iter().all(|x| x.is_nan()), "the row of the NaN query shows it");
        assert!(
            r.out[10 * 8..].iter().all(|x| x.is_finite()) && r.dqkv[10 * 24..].iter().all(|x| x.is_finite())
        );
    }
}

/// Slot 0 of DeBERTa's table is never used, so its gradient stays zero.
#[test]
fn unused_slots_get_no_gradient() {
    let pool = Pool::new(1).unwrap();
    let c = Case::<f32>::new(&[9, 5], 1, 4, Some(Terms::Both), 16);
    let r = c.run(&pool);
    let used = |slot: usize| (slot as i64 - 32).abs() < 9;
    for (slot, (dk, dq)) in r.dkeys.chunks(4).zip(r.dqueries.chunks(4)).enumerate() {
        assert_eq!(dk.iter().any(|&x| x != 0.5), used(slot), "keys {slot}");
        assert_eq!(dq.iter().any(|&x| x != 0.25), used(slot), "queries {slot}");
    }
}
