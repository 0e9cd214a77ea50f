//! Attention beyond one block of queries: lengths around the edges, real DeBERTa-v3 slots, scratch and extremes.

use muster_kernels::attention::{Terms, scratch_bytes};

use crate::attention_case::{Case, compare};
use crate::common::{pools, same_on_any_thread_count};

/// Lengths around registers (16), blocks of queries (64), and the last distance with a slot of its own (128).
const EDGES: [usize; 15] = [1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 130, 255, 257, 400, 512];

#[test]
fn lengths_around_the_edges_match_the_reference_with_the_slots_of_v3() {
    for pool in pools() {
        for n in EDGES {
            for (terms, rate) in [(None, 0.2), (Some(Terms::Both), 0.2), (Some(Terms::C2p), 0.0)] {
                let c = Case::<f32>::v3(&[n], (1, 8), terms, rate);
                compare(&format!("n {n} {terms:?} {pool:?}"), &c, &c.run(&pool));
            }
        }
    }
}

#[test]
fn mixed_lengths_match_the_reference_at_the_usual_head_widths() {
    for pool in pools() {
        for head_dim in [32, 64] {
            for terms in [None, Some(Terms::Both), Some(Terms::P2c)] {
                let c = Case::<f32>::v3(&[70, 16, 1, 0, 150, 33, 7, 64], (2, head_dim), terms, 0.1);
                compare(&format!("d {head_dim} {terms:?} {pool:?}"), &c, &c.run(&pool));
            }
        }
    }
}

/// Enough sequences for the gradients of the tables to be sums of several tasks.
#[test]
fn table_gradients_of_many_tasks_match_the_reference_on_any_thread_count() {
    let lengths: Vec<usize> = (0..40).map(|i| 3 + i * 7 % 50).collect();
    let c = Case::<f32>::v3(&lengths, (3, 8), Some(Terms::Both), 0.1);
    for pool in pools() {
        compare(&format!("{pool:?}"), &c, &c.run(&pool));
    }
    same_on_any_thread_count(|pool| c.run(pool).bits());
}

#[test]
fn long_sequences_do_not_depend_on_the_thread_count() {
    for terms in [None, Some(Terms::Both)] {
        let c = Case::<f32>::v3(&[200, 65, 129, 12], (3, 16), terms, 0.1);
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
            let mut c = Case::<f32>::v3(&[150, 20], (1, 16), terms, 0.0);
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
            let mut c = Case::<f32>::v3(&[20, 130, 16], (2, 8), terms, 0.1);
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
