use muster_kernels::dropout::{Dropout, apply};
use muster_kernels::{Element, Pool, bf16, isa, rng};

use crate::common::{bits, noise, pool, pools, same_on_any_thread_count};

fn mask(pool: &Pool, rate: f32, site: u64, rows: &[u64], cols: usize) -> Vec<bool> {
    let ones = vec![1.0_f32; rows.len() * cols];
    let mut y = ones.clone();
    apply(pool, &Dropout { rate, site, rows }, cols, &ones, &mut y);
    y.iter().map(|&y| y != 0.0).collect()
}

#[test]
fn the_kept_share_is_one_minus_the_rate() {
    let pool = Pool::new(1).unwrap();
    let rows: Vec<u64> = (0..500).collect();
    for rate in [0.05, 0.1, 0.3, 0.5, 0.9] {
        let kept = mask(&pool, rate, 3, &rows, 1000).iter().filter(|&&k| k).count() as f64;
        let (n, p) = (500_000.0, f64::from(1.0 - rate));
        assert!((kept - n * p).abs() < 5.0 * (n * p * (1.0 - p)).sqrt(), "rate {rate}: kept {kept}");
    }
}

#[test]
fn masks_of_neighbours_are_uncorrelated() {
    let pool = Pool::new(1).unwrap();
    let (n, cols, rate) = (512, 512, 0.3_f32);
    let rows: Vec<u64> = (0..n as u64).collect();
    let a = mask(&pool, rate, 7, &rows, cols);
    let other_site = mask(&pool, rate, 8, &rows, cols);
    let far_rows: Vec<u64> = rows.iter().map(|r| r << 32).collect();
    let far = mask(&pool, rate, 7, &far_rows, cols);
    let correlation = |pairs: &mut dyn Iterator<Item = (bool, bool)>| {
        let p = f64::from(1.0 - rate);
        let (sum, count) = pairs.fold((0.0, 0.0), |(s, c), (x, y)| {
            (s + (f64::from(u8::from(x)) - p) * (f64::from(u8::from(y)) - p), c + 1.0)
        });
        // In standard errors of the covariance of independent bits.
        sum / f64::sqrt(count) / (p * (1.0 - p))
    };
    let zip =
        |b: &[bool], shift: usize| correlation(&mut a.iter().copied().zip(b.iter().copied().skip(shift)));
    for (name, c) in [
        ("site", zip(&other_site, 0)),
        ("far rows", zip(&far, 0)),
        ("next column", zip(&a, 1)),
        ("second column", zip(&a, 2)),
        ("column + 64", zip(&a, 64)),
        ("next row", zip(&a, cols)),
        ("16th row", zip(&a, 16 * cols)),
    ] {
        assert!(c.abs() < 5.0, "{name}: {c} standard errors");
    }
    // Counts per row and per column vary as much as independent bits do: chi-square within 5 sigma.
    let p = f64::from(1.0 - rate);
    for by_row in [true, false] {
        let chi: f64 = (0..512)
            .map(|x| {
                let count =
                    (0..512).filter(|y| if by_row { a[x * cols + y] } else { a[y * cols + x] }).count();
                (count as f64 - 512.0 * p).powi(2) / (512.0 * p * (1.0 - p))
            })
            .sum();
        assert!((chi - 512.0).abs() < 5.0 * (2.0 * 512.0_f64).sqrt(), "chi-square {chi}");
    }
}

#[test]
fn the_mask_depends_on_the_row_key_not_on_the_place_in_the_batch() {
    let pool = pool(2, isa::selected());
    let rows: Vec<u64> = (0..200).map(|i| rng::mix(1, i)).collect();
    let all = mask(&pool, 0.2, 11, &rows, 37);
    let one = mask(&pool, 0.2, 11, &rows[123..124], 37);
    assert_eq!(&all[123 * 37..124 * 37], &one[..]);
}

#[test]
fn forward_and_backward_drop_the_same_elements_and_rate_zero_drops_none() {
    for pool in pools() {
        let rows: Vec<u64> = (0..33).collect();
        for cols in [1, 15, 16, 100] {
            let d = Dropout { rate: 0.4, site: 2, rows: &rows };
            let (x, dy) = (noise::<bf16>(1, 33 * cols), noise::<bf16>(2, 33 * cols));
            let (mut y, mut dx) = (x.clone(), x.clone());
            apply(&pool, &d, cols, &x, &mut y);
            apply(&pool, &d, cols, &dy, &mut dx);
            for i in 0..x.len() {
                assert_eq!(y[i].to_f32() == 0.0, dx[i].to_f32() == 0.0);
                if y[i].to_f32() != 0.0 {
                    assert_eq!(y[i], <bf16 as Element>::from_f32(x[i].to_f32() * (1.0 / (1.0 - 0.4_f32))));
                }
            }
            apply(&pool, &Dropout { rate: 0.0, ..d }, cols, &x, &mut y);
            assert_eq!(bits(&x), bits(&y));
        }
    }
}

#[test]
fn every_isa_and_thread_count_drops_the_same() {
    let rows: Vec<u64> = (0..300).collect();
    let results: Vec<_> = pools().iter().map(|p| mask(p, 0.1, 5, &rows, 129)).collect();
    assert!(results.windows(2).all(|w| w[0] == w[1]));
    same_on_any_thread_count(|p| mask(p, 0.1, 5, &rows, 129).iter().map(|&b| u32::from(b)).collect());
}
