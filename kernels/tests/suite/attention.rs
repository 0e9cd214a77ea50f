use muster_kernels::attention::{Forward, Relative, Shape, Terms, forward};
use muster_kernels::dropout::Dropout;
use muster_kernels::{Element, Pool, isa};

use crate::attention_case::{Case, compare};
use crate::common::{bits, pool, pools, same_on_any_thread_count};
use crate::for_both;

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
