use muster_kernels::optim::{AdamW, Arenas, adamw, first_non_finite, sum_squares};
use muster_kernels::{Element, Pool, bf16, reference};

use crate::common::{LENGTHS, bits, close, noise, pools, same_on_any_thread_count};

fn hyper(step: u64) -> AdamW {
    AdamW { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, step, grad_scale: 0.5 }
}

type Slices<'a> = (&'a mut [f32], &'a mut [f32], &'a mut [f32], &'a mut [f32]);

/// One update of gradients, weights and moments, all of it decayed.
fn update<E: Element>(pool: &Pool, hyper: &AdamW, slices: Slices<'_>, compute: Option<&mut [E]>) {
    let (grad, master, first_moment, second_moment) = slices;
    adamw(pool, hyper, &[], Arenas { grad, master, first_moment, second_moment, compute });
}

#[test]
fn three_updates_match_the_reference() {
    for pool in pools() {
        for n in LENGTHS {
            let mut w = noise::<f32>(1, n);
            let (mut m, mut v, mut copy) = (vec![0.0; n], vec![0.0; n], vec![bf16::ZERO; n]);
            let mut want: Vec<_> = reference::widen(&w).into_iter().map(|w| (w, 0.0, 0.0)).collect();
            for step in 1..=3 {
                let grad = noise::<f32>(10 + step, n);
                let mut cleared = grad.clone();
                update(&pool, &hyper(step), (&mut cleared, &mut w, &mut m, &mut v), Some(&mut copy));
                assert!(cleared.iter().all(|g| g.to_bits() == 0), "gradients are cleared");
                for (state, g) in want.iter_mut().zip(&grad) {
                    *state = reference::adamw(&hyper(step), f64::from(*g), *state);
                }
            }
            close("w", &w, &want.iter().map(|s| s.0).collect::<Vec<_>>(), 2e-7, 1e-6);
            close("m", &m, &want.iter().map(|s| s.1).collect::<Vec<_>>(), 1e-7, 1e-6);
            close("v", &v, &want.iter().map(|s| s.2).collect::<Vec<_>>(), 1e-9, 1e-6);
            let rounded: Vec<bf16> = w.iter().map(|&w| <bf16 as Element>::from_f32(w)).collect();
            assert_eq!(bits(&copy), bits(&rounded));
        }
    }
}

/// torch.optim.AdamW of torch 2.15 printed 0.8901996 and 0.8547311 for weight 1, gradients 0.5, -0.25, lr 0.1, decay 0.1, eps 1e-3.
#[test]
fn two_updates_have_the_values_worked_out_by_hand() {
    // Step 1: decay to 0.99; m-hat / (|g| + eps) = 0.5 / 0.501; weight 0.99 - 0.1 * 0.998004 = 0.8901996.
    // Step 2: decay to 0.8812976; m = 0.9 * 0.05 - 0.1 * 0.25 = 0.02, corrected by 0.19 to 0.1052632.
    let pool = Pool::new(1).unwrap();
    let h =
        AdamW { lr: 0.1, beta1: 0.9, beta2: 0.999, eps: 1e-3, weight_decay: 0.1, step: 1, grad_scale: 1.0 };
    let (mut w, mut m, mut v) = ([1.0_f32], [0.0_f32], [0.0_f32]);
    update::<f32>(&pool, &h, (&mut [0.5], &mut w, &mut m, &mut v), None);
    assert!((w[0] - 0.890_199_6).abs() < 1e-6, "{}", w[0]);
    update::<f32>(&pool, &AdamW { step: 2, ..h }, (&mut [-0.25], &mut w, &mut m, &mut v), None);
    // v = 0.999 * 0.25e-3 + 0.0625e-3 = 0.31225e-3, corrected by 0.001999: 0.156203, root 0.395225.
    let want = 0.890_199_6 * 0.99 - 0.1 * (0.02 / 0.19) / (0.395_225 + 1e-3);
    assert!((f64::from(w[0]) - want).abs() < 1e-6, "{} {want}", w[0]);
    assert!((w[0] - 0.854_731_1).abs() < 1e-6, "{}", w[0]);
}

/// Case 6: a thousand updates of 1e-5 each; bf16 alone would stay at 1.0.
#[test]
fn small_updates_add_up_behind_a_bf16_weight() {
    let naive = (0..1000).fold(bf16::ONE, |w, _| <bf16 as Element>::from_f32(w.to_f32() - 1e-5));
    assert_eq!(naive.to_f32(), 1.0);
    for pool in pools() {
        let (mut w, mut m, mut v, mut copy) = ([1.0_f32], [0.0], [0.0], [bf16::ONE]);
        for step in 1..=1000 {
            // A constant gradient makes each update exactly lr.
            let h = AdamW { lr: 1e-5, weight_decay: 0.0, step, ..hyper(1) };
            update(&pool, &h, (&mut [1.0], &mut w, &mut m, &mut v), Some(&mut copy));
        }
        assert!((w[0] - 0.99).abs() < 1e-4, "{}", w[0]);
        assert!((copy[0].to_f32() - 0.99).abs() < 0.01 * 0.99);
    }
}

/// Case 35, the kernel's side: a zero gradient leaves only the decay, and none without decay.
#[test]
fn a_zero_gradient_only_decays() {
    for pool in pools() {
        let (mut w, mut m, mut v) = (vec![2.0_f32; 37], vec![0.0; 37], vec![0.0; 37]);
        let mut g = vec![0.0; 37];
        let plain = AdamW { weight_decay: 0.0, ..hyper(1) };
        update::<f32>(&pool, &plain, (&mut g, &mut w, &mut m, &mut v), None);
        assert!(w.iter().all(|&w| w == 2.0));
        update::<f32>(&pool, &hyper(1), (&mut g, &mut w, &mut m, &mut v), None);
        assert!(w.iter().all(|&w| w == 2.0 * (1.0 - 1e-3 * 1e-2_f64) as f32));
    }
}

/// Stretches without decay that begin, end and lie inside of blocks of 16 Ki elements: one call has the bits of a call
/// per stretch.
#[test]
fn one_call_updates_a_whole_model() {
    let n = 40_000;
    let undecayed = [0..5, 5..9, 1000..1000, 16_000..16_500, 20_000..33_000, 39_990..n];
    for pool in pools() {
        let start = (noise::<f32>(1, n), noise::<f32>(2, n), noise::<f32>(3, n));
        let second: Vec<f32> = noise::<f32>(4, n).iter().map(|v| v * v).collect();
        let (mut g, mut w, mut m) = start.clone();
        let (mut v, mut c) = (second.clone(), vec![bf16::ZERO; n]);
        let arenas = Arenas {
            grad: &mut g,
            master: &mut w,
            first_moment: &mut m,
            second_moment: &mut v,
            compute: Some(&mut c),
        };
        adamw(&pool, &hyper(3), &undecayed, arenas);
        let (mut want_g, mut want_w, mut want_m) = start;
        let (mut want_v, mut want_c) = (second, vec![bf16::ZERO; n]);
        let mut at = 0;
        for stretch in undecayed.iter().chain([&(n..n)]) {
            for (range, decay) in [(at..stretch.start, 0.01), (stretch.clone(), 0.0)] {
                let slices = (
                    &mut want_g[range.clone()],
                    &mut want_w[range.clone()],
                    &mut want_m[range.clone()],
                    &mut want_v[range.clone()],
                );
                let h = AdamW { weight_decay: decay, ..hyper(3) };
                update(&pool, &h, slices, Some(&mut want_c[range]));
            }
            at = stretch.end;
        }
        assert_eq!((bits(&w), bits(&m), bits(&v)), (bits(&want_w), bits(&want_m), bits(&want_v)));
        assert_eq!((bits(&c), bits(&g)), (bits(&want_c), vec![0; n]));
    }
}

/// Subnormal moments of rows that are never touched would slow the whole pass down; they change no weight.
#[test]
fn moments_never_become_subnormal() {
    for pool in pools() {
        let (mut g, mut w) = (vec![0.0; 40], vec![1.0_f32; 40]);
        let (mut m, mut v) = (vec![-1.2e-38; 40], vec![1.176e-38; 40]);
        let plain = AdamW { weight_decay: 0.0, ..hyper(1000) };
        update::<f32>(&pool, &plain, (&mut g, &mut w, &mut m, &mut v), None);
        assert!(m.iter().chain(&v).all(|x| *x == 0.0), "{} {}", m[0], v[0]);
        assert!(w.iter().all(|w| *w == 1.0));
        let mut nan = [f32::NAN];
        update::<f32>(&pool, &plain, (&mut nan, &mut [1.0], &mut m[..1], &mut v[..1]), None);
        assert!(m[0].is_nan() && v[0].is_nan(), "a NaN stays one");
    }
}

#[test]
fn sum_squares_is_exact_enough_and_does_not_overflow() {
    for pool in pools() {
        for n in [0, 1, 17, 70_000, 200_001] {
            let x = noise::<f32>(1, n);
            let want: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            assert!((sum_squares(&pool, &x) - want).abs() <= 1e-12 * want);
        }
        assert_eq!(sum_squares(&pool, &[1e30, 1e30]), 2.0 * f64::from(1e30_f32).powi(2));
    }
    let x = noise::<f32>(2, 300_000);
    same_on_any_thread_count(|p| {
        let b = sum_squares(p, &x).to_bits();
        vec![b as u32, (b >> 32) as u32]
    });
}

#[test]
fn the_first_non_finite_element_is_found() {
    for pool in pools() {
        let mut x = noise::<f32>(1, 200_000);
        x[5] = 1e-42;
        x[6] = f32::MAX;
        assert_eq!(first_non_finite(&pool, &x), None);
        for (at, bad) in
            [(199_999, f32::NAN), (131_072, f32::INFINITY), (131_071, f32::NEG_INFINITY), (0, f32::NAN)]
        {
            x[at] = bad;
            assert_eq!(first_non_finite(&pool, &x), Some(at));
        }
    }
}
