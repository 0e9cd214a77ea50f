use muster_kernels::gemm::Write;
use muster_kernels::{Element, conv, embedding, reference, rng};

use crate::common::{bits, close, noise, pools, same_on_any_thread_count};
use crate::for_both;

fn convolution<E: Element>() {
    for pool in pools() {
        let offsets = [0_u32, 1, 1, 4, 11, 30];
        for (cols, kernel) in [(1, 1), (3, 3), (17, 5), (8, 9)] {
            let x = noise::<E>(1, 30 * cols);
            let mut y = vec![E::from_f32(f32::NAN); 30 * cols * kernel];
            conv::unfold(&pool, cols, kernel, &offsets, &x, &mut y);
            close("unfold", &y, &reference::unfold(cols, kernel, &offsets, &reference::widen(&x)), 0.0, 0.0);
            // <unfold(x), w> = <x, fold(w)> for every x makes fold the gradient: take unit vectors.
            let w = noise::<E>(2, 30 * cols * kernel);
            let mut dx = vec![E::from_f32(f32::NAN); 30 * cols];
            conv::fold(&pool, cols, kernel, &offsets, &w, &mut dx);
            let wide = reference::widen(&w);
            let want: Vec<f64> = (0..30 * cols)
                .map(|i| {
                    let mut unit = vec![0.0; 30 * cols];
                    unit[i] = 1.0;
                    reference::unfold(cols, kernel, &offsets, &unit)
                        .iter()
                        .zip(&wide)
                        .map(|(a, b)| a * b)
                        .sum()
                })
                .collect();
            close("fold", &dx, &want, 1e-6, 1e-6);
        }
    }
}

#[test]
fn convolution_and_its_gradient_match_the_reference() {
    for_both!(convolution);
}

#[test]
fn convolution_does_not_leak_between_sequences() {
    for pool in pools() {
        let (mut x, mut y) = (noise::<f32>(1, 10 * 4), vec![0.0_f32; 10 * 12]);
        x[5 * 4..].fill(f32::NAN);
        conv::unfold(&pool, 4, 3, &[0, 5, 10], &x, &mut y);
        assert!(y[..5 * 12].iter().all(|y| y.is_finite()), "the first sequence saw the second");
        let (mut dy, mut dx) = (vec![1.0_f32; 10 * 12], vec![0.0_f32; 40]);
        dy[..5 * 12].fill(f32::NAN);
        conv::fold(&pool, 4, 3, &[0, 5, 10], &dy, &mut dx);
        assert!(dx[20..].iter().all(|y| y.is_finite()), "the second sequence's gradient saw the first");
    }
}

fn tables<E: Element>() {
    for pool in pools() {
        for (rows, cols, tokens) in
            [(1, 1, 5), (2, 300, 70), (50, 17, 33), (1000, 64, 400), (10, 8, 0), (2, 100, 3000)]
        {
            let table = noise::<E>(1, rows * cols);
            let ids: Vec<u32> = (0..tokens).map(|t| rng::below(2, t, rows as u64) as u32).collect();
            let n = tokens as usize * cols;
            let mut y = vec![E::from_f32(f32::NAN); n];
            embedding::gather_add(&pool, cols, &table, &ids, Write::Set, &mut y);
            let at = |i: usize| ids[i / cols] as usize * cols + i % cols;
            assert_eq!(bits(&y), (0..n).map(|i| table[at(i)].to_f32().to_bits()).collect::<Vec<_>>());
            let before = noise::<E>(3, n);
            let mut y = before.clone();
            embedding::gather_add(&pool, cols, &table, &ids, Write::Add, &mut y);
            let want: Vec<f64> =
                (0..n).map(|i| f64::from(before[i].to_f32()) + f64::from(table[at(i)].to_f32())).collect();
            close("gather", &y, &want, 1e-7, 1e-7);
            let mut dtable = vec![1.0_f32; rows * cols];
            embedding::scatter_add(&pool, cols, &ids, &y, &mut dtable);
            // In the order of t, in f32: bit for bit.
            let mut want = vec![1.0_f32; rows * cols];
            (0..n).for_each(|i| want[at(i)] += y[i].to_f32());
            assert_eq!(bits(&dtable), bits(&want));
        }
    }
}

#[test]
fn tables_and_their_gradients_match_the_reference() {
    for_both!(tables);
}

#[test]
fn scattering_does_not_depend_on_the_thread_count() {
    let ids: Vec<u32> = (0..3000).map(|t| rng::below(1, t, 700) as u32).collect();
    let dy = noise::<f32>(2, 3000 * 20);
    same_on_any_thread_count(|pool| {
        let mut table = vec![0.0_f32; 700 * 20];
        embedding::scatter_add(pool, 20, &ids, &dy, &mut table);
        bits(&table)
    });
}

#[test]
#[should_panic(expected = "id 4 is outside of a table of 4 rows")]
fn an_id_outside_of_the_table_is_named() {
    let pool = muster_kernels::Pool::new(1).unwrap();
    embedding::gather_add(&pool, 2, &[0.0_f32; 8], &[4], Write::Set, &mut [0.0; 2]);
}
