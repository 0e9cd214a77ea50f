use muster_kernels::activation::{self, Activation};
use muster_kernels::gemm::{Mat, Scratch, Write, gemm};
use muster_kernels::linear::{self, Shape};
use muster_kernels::{Cx, Element, Pool, bf16, reference};

use crate::common::{bits, close, noise, pools, same_on_any_thread_count};
use crate::for_both;

const SHAPES: [(usize, usize, usize); 13] = [
    (0, 4, 3),
    (1, 1, 1),
    (1, 64, 3),
    (2, 17, 33),
    (3, 16, 16),
    (5, 31, 7),
    (15, 100, 77),
    (16, 384, 5),
    (33, 65, 129),
    (100, 96, 48),
    (130, 257, 64),
    (257, 33, 300),
    (513, 64, 130),
];

/// f32 error of a sum of k normal products: random rounding, ten standard deviations.
fn tolerance(k: usize) -> f64 {
    10.0 * 6e-8 * k as f64
}

/// Input, weight, bias and gradient of the output of a layer.
struct Operands<E> {
    x: Vec<E>,
    w: Vec<E>,
    b: Vec<E>,
    dy: Vec<E>,
}

impl<E: Element> Operands<E> {
    fn of(Shape { rows, inputs, outputs }: Shape) -> Self {
        Self {
            x: noise(1, rows * inputs),
            w: noise(2, outputs * inputs),
            b: noise(3, outputs),
            dy: noise(4, rows * outputs),
        }
    }
}

fn check<E: Element>() {
    for pool in pools() {
        let mut scratch = Scratch::default();
        for (rows, inputs, outputs) in SHAPES {
            let shape = Shape { rows, inputs, outputs };
            let mut cx = Cx { pool: &pool, scratch: &mut scratch };
            let Operands { x, w, b, dy } = Operands::<E>::of(shape);
            let what = format!("{shape:?} on {:?}", pool);
            let wide = reference::widen;
            let wide_dy = wide(&dy);
            let mut want = reference::matmul(
                rows,
                inputs,
                outputs,
                &wide(&x),
                &reference::transpose(outputs, inputs, &wide(&w)),
            );
            let mut y = vec![E::from_f32(f32::NAN); rows * outputs];
            linear::forward(&mut cx, shape, &x, &w, None, &mut y);
            close(&format!("y {what}"), &y, &want, tolerance(inputs), 1e-6);
            want.iter_mut().enumerate().for_each(|(i, y)| *y += f64::from(b[i % outputs].to_f32()));
            linear::forward(&mut cx, shape, &x, &w, Some(&b), &mut y);
            close(&format!("y + b {what}"), &y, &want, tolerance(inputs), 1e-6);
            let mut logits = vec![f32::NAN; rows * outputs];
            linear::forward(&mut cx, shape, &x, &w, Some(&b), &mut logits);
            close(&format!("logits {what}"), &logits, &want, tolerance(inputs), 1e-6);

            let want = reference::matmul(rows, outputs, inputs, &wide(&dy), &wide(&w));
            let mut dx = vec![E::from_f32(f32::NAN); rows * inputs];
            linear::backward_input(&mut cx, shape, &dy, &w, &mut dx);
            close(&format!("dx {what}"), &dx, &want, tolerance(outputs), 1e-6);
            let dy32: Vec<f32> = dy.iter().map(|d| d.to_f32()).collect();
            linear::backward_input(&mut cx, shape, &dy32, &w, &mut dx);
            close(&format!("dx from f32 {what}"), &dx, &want, tolerance(outputs), 1e-6);

            let mut want = reference::matmul(
                outputs,
                rows,
                inputs,
                &reference::transpose(rows, outputs, &wide(&dy)),
                &wide(&x),
            );
            want.iter_mut().for_each(|w| *w += 1.0);
            let sums: Vec<f64> = (0..outputs)
                .map(|o| 2.0 + (0..rows).map(|r| wide_dy[r * outputs + o]).sum::<f64>())
                .collect();
            let (mut dw, mut db) = (vec![1.0_f32; outputs * inputs], vec![2.0_f32; outputs]);
            linear::backward_weight(&mut cx, shape, &x, &dy, &mut dw, Some(&mut db));
            close(&format!("dw {what}"), &dw, &want, tolerance(rows) + 1e-6, 1e-6);
            close(&format!("db {what}"), &db, &sums, tolerance(rows) + 1e-6, 1e-6);
            dw.fill(1.0);
            linear::backward_weight(&mut cx, shape, &x, &dy32, &mut dw, None);
            close(&format!("dw from f32 {what}"), &dw, &want, tolerance(rows) + 1e-6, 1e-6);
        }
    }
}

#[test]
fn forward_and_both_gradients_match_the_reference() {
    for_both!(check);
}

/// The fused forms equal the layer and the activation one after the other, in every bit.
fn check_activations<E: Element>() {
    for pool in pools() {
        let mut scratch = Scratch::default();
        for (rows, inputs, outputs) in SHAPES {
            let shape = Shape { rows, inputs, outputs };
            let mut cx = Cx { pool: &pool, scratch: &mut scratch };
            let Operands { x, w, b, dy } = Operands::<E>::of(shape);
            let nan = |n: usize| vec![E::from_f32(f32::NAN); n];
            for act in
                [Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Tanh, Activation::Silu]
            {
                let (mut u, mut y) = (nan(rows * outputs), nan(rows * outputs));
                linear::forward(&mut cx, shape, &x, &w, Some(&b), &mut u);
                activation::forward(&pool, act, &u, &mut y);
                let (mut before, mut after) = (nan(rows * outputs), nan(rows * outputs));
                let out = linear::Activated { before: &mut before, after: &mut after };
                linear::forward_activation(&mut cx, shape, &x, (&w, Some(&b)), act, out);
                assert!(bits(&before) == bits(&u) && bits(&after) == bits(&y), "{act:?} {shape:?} {pool:?}");
                let mut du = nan(rows * inputs);
                linear::backward_input_activation(&mut cx, shape, &dy, &w, (act, &x), &mut du);
                let mut dx = vec![0.0_f32; rows * inputs];
                let (dy, w) = (Mat::new(&dy, rows, outputs), Mat::new(&w, outputs, inputs));
                gemm(&pool, cx.scratch, dy, w, &mut dx, Write::Set);
                let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
                let mut want = vec![0.0_f32; dx.len()];
                activation::backward(&pool, act, &wide, &dx, &mut want);
                let want: Vec<f64> = want.iter().map(|&x| f64::from(x)).collect();
                close(&format!("{act:?} {shape:?} {pool:?}"), &du, &want, 1e-7, 1e-6);
            }
        }
    }
}

#[test]
fn fused_activations_equal_separate_passes() {
    for_both!(check_activations);
}

#[test]
fn strides_transposes_and_mixed_types_are_honoured() {
    for pool in pools() {
        let mut scratch = Scratch::default();
        let (big, b) = (noise::<bf16>(1, 20 * 40), noise::<f32>(2, 9 * 6));
        // Rows 2, 4, 6, .. and columns 3.. of a (20, 40) matrix, as a (6, 9) view.
        let a = Mat { data: &big[2 * 40 + 3..], rows: 6, cols: 9, row_stride: 80, col_stride: 1 };
        let dense: Vec<f64> =
            (0..54).map(|x| f64::from(big[(2 + 2 * (x / 9)) * 40 + 3 + x % 9].to_f32())).collect();
        let mut c = vec![0.5_f32; 36];
        gemm(&pool, &mut scratch, a, Mat::new(&b, 9, 6), &mut c, Write::Add);
        let mut want = reference::matmul(6, 9, 6, &dense, &reference::widen(&b));
        want.iter_mut().for_each(|w| *w += 0.5);
        close("view", &c, &want, 1e-5, 1e-6);
        let mut c = vec![f32::NAN; 81];
        gemm(&pool, &mut scratch, a.t(), Mat::new(&b, 9, 6).t(), &mut c, Write::Set);
        let want = reference::matmul(
            9,
            6,
            9,
            &reference::transpose(6, 9, &dense),
            &reference::transpose(9, 6, &reference::widen(&b)),
        );
        close("transposed view", &c, &want, 1e-5, 1e-6);
    }
}

#[test]
fn results_do_not_depend_on_the_thread_count() {
    for (m, k, n) in
        [(1, 700, 300), (7, 64, 513), (200, 300, 400), (1000, 64, 33), (64, 2000, 64), (33, 1024, 1000)]
    {
        let (a, b) = (noise::<f32>(1, m * k), noise::<f32>(2, k * n));
        same_on_any_thread_count(|pool| {
            let (mut c, mut d) = (vec![0.1_f32; m * n], vec![0.0_f32; m * n]);
            let mut scratch = Scratch::default();
            gemm(pool, &mut scratch, Mat::new(&a, m, k), Mat::new(&b, k, n), &mut c, Write::Add);
            gemm(pool, &mut scratch, Mat::new(&a, k, m).t(), Mat::new(&b, n, k).t(), &mut d, Write::Set);
            [bits(&c), bits(&d)].concat()
        });
    }
}

#[test]
fn a_non_finite_operand_reaches_its_row_of_the_product_only() {
    for pool in pools() {
        let (mut a, b) = (noise::<f32>(1, 40 * 20), noise::<f32>(2, 20 * 30));
        a[5 * 20 + 3] = f32::INFINITY;
        let mut c = vec![f32::NAN; 40 * 30];
        gemm(&pool, &mut Scratch::default(), Mat::new(&a, 40, 20), Mat::new(&b, 20, 30), &mut c, Write::Set);
        for (i, row) in c.chunks(30).enumerate() {
            assert_eq!(row.iter().all(|x| x.is_finite()), i != 5, "row {i}");
        }
    }
}

#[test]
#[should_panic(expected = "x and dx must be (rows, inputs)")]
fn a_wrong_length_is_named() {
    let (pool, mut scratch) = (Pool::new(1).unwrap(), Scratch::default());
    let shape = Shape { rows: 2, inputs: 3, outputs: 1 };
    let mut cx = Cx { pool: &pool, scratch: &mut scratch };
    linear::forward::<f32, f32>(&mut cx, shape, &[0.0; 5], &[0.0; 3], None, &mut [0.0; 2]);
}
