use muster_kernels::dropout::Dropout;
use muster_kernels::norm::{Backward, Forward, backward, forward};
use muster_kernels::{Element, Pool, reference};

use crate::common::{bits, close, noise, pools, same_on_any_thread_count};
use crate::for_both;

struct Case<E> {
    cols: usize,
    x: Vec<E>,
    residual: Option<Vec<E>>,
    keys: Vec<u64>,
    rates: (f32, f32),
    gamma: Vec<E>,
    beta: Vec<E>,
    dy: Vec<E>,
}

impl<E: Element> Case<E> {
    fn new(rows: usize, cols: usize, residual: bool, rates: (f32, f32)) -> Self {
        Self {
            cols,
            x: noise(1, rows * cols),
            residual: residual.then(|| noise(2, rows * cols)),
            keys: (0..rows as u64).map(|i| i * 3).collect(),
            rates,
            gamma: noise(3, cols),
            beta: noise(4, cols),
            dy: noise(5, rows * cols),
        }
    }

    fn dropouts(&self) -> (Option<Dropout<'_>>, Option<Dropout<'_>>) {
        let d = |rate, site| (rate > 0.0).then_some(Dropout { rate, site, rows: &self.keys });
        (d(self.rates.0, 1), d(self.rates.1, 2))
    }
}

/// What both passes produce.
struct Results<E> {
    s: Vec<E>,
    y: Vec<E>,
    mean: Vec<f32>,
    rstd: Vec<f32>,
    dx: Vec<E>,
    dresidual: Vec<E>,
    dgamma: Vec<f32>,
    dbeta: Vec<f32>,
}

fn run<E: Element>(pool: &Pool, c: &Case<E>) -> Results<E> {
    let rows = c.keys.len();
    let (dropout_in, dropout_out) = c.dropouts();
    let mut r = Results {
        s: c.x.clone(),
        y: c.x.clone(),
        mean: vec![0.0; rows],
        rstd: vec![0.0; rows],
        dx: c.x.clone(),
        dresidual: c.x.clone(),
        dgamma: vec![1.0; c.cols],
        dbeta: vec![2.0; c.cols],
    };
    let f = Forward {
        cols: c.cols,
        eps: 1e-7,
        x: &mut r.s,
        residual: c.residual.as_deref(),
        dropout_in,
        dropout_out,
        gamma: &c.gamma,
        beta: &c.beta,
        y: &mut r.y,
        mean: &mut r.mean,
        rstd: &mut r.rstd,
    };
    forward(pool, f);
    let b = Backward {
        cols: c.cols,
        s: &r.s,
        mean: &r.mean,
        rstd: &r.rstd,
        gamma: &c.gamma,
        dropout_in,
        dropout_out,
        dy: &c.dy,
        dx: &mut r.dx,
        dresidual: c.residual.as_ref().map(|_| &mut r.dresidual[..]),
        dgamma: &mut r.dgamma,
        dbeta: &mut r.dbeta,
    };
    backward(pool, b);
    r
}

fn check<E: Element>() {
    for pool in pools() {
        for (rows, cols) in [(0, 8), (1, 2), (3, 7), (5, 16), (4, 17), (130, 33), (67, 100), (9, 1024)] {
            for (residual, rates) in
                [(false, (0.0, 0.0)), (true, (0.0, 0.0)), (true, (0.2, 0.0)), (false, (0.1, 0.3))]
            {
                let c = Case::<E>::new(rows, cols, residual, rates);
                let r = run(&pool, &c);
                let (d_in, d_out) = c.dropouts();
                let f_in = reference::dropout_factors(d_in.as_ref(), rows, cols);
                let f_out = reference::dropout_factors(d_out.as_ref(), rows, cols);
                let wide = reference::widen;
                let zeros = vec![0.0; rows * cols];
                let res = c.residual.as_ref().map_or(zeros, |r| wide(r));
                let s: Vec<f64> =
                    wide(&c.x).iter().zip(f_in.iter().zip(&res)).map(|(x, (f, r))| x * f + r).collect();
                let what = format!("{rows}x{cols} residual {residual} {rates:?}");
                close(&format!("s {what}"), &r.s, &s, 1e-6, 1e-6);
                // From here on the stored sum counts, as it does in the kernel.
                let s = wide(&r.s);
                let (y, mean, rstd) = reference::norm(cols, 1e-7, &s, &wide(&c.gamma), &wide(&c.beta));
                let y: Vec<f64> = y.iter().zip(&f_out).map(|(y, f)| y * f).collect();
                close(&format!("y {what}"), &r.y, &y, 5e-6, 5e-6);
                close("mean", &r.mean, &mean, 1e-6, 1e-6);
                close("rstd", &r.rstd, &rstd, 0.0, 1e-5);
                let dy: Vec<f64> = wide(&c.dy).iter().zip(&f_out).map(|(d, f)| d * f).collect();
                let (ds, dgamma, dbeta) = reference::norm_grad(cols, 1e-7, &s, &wide(&c.gamma), &dy);
                let dx: Vec<f64> = ds.iter().zip(&f_in).map(|(d, f)| d * f).collect();
                // Two columns make an xhat of +-1 and a gradient that cancels; the absolute term covers it.
                close(&format!("dx {what}"), &r.dx, &dx, 2e-5, 1e-4);
                if residual {
                    close(&format!("dresidual {what}"), &r.dresidual, &ds, 2e-5, 1e-4);
                }
                let plus = |v: Vec<f64>, x: f64| v.into_iter().map(|v| v + x).collect::<Vec<_>>();
                close(&format!("dgamma {what}"), &r.dgamma, &plus(dgamma, 1.0), 1e-4, 1e-5);
                close(&format!("dbeta {what}"), &r.dbeta, &plus(dbeta, 2.0), 1e-4, 1e-5);
            }
        }
    }
}

#[test]
fn both_passes_match_the_reference() {
    for_both!(check);
}

/// Case 12: with a variance of 1e-8 the epsilon decides.
#[test]
fn epsilon_is_the_one_given() {
    let pool = Pool::new(1).unwrap();
    for eps in [1e-7_f32, 1e-12, 1e-5] {
        let (mut x, mut y) = (vec![1e-4_f32, -1e-4], vec![0.0_f32; 2]);
        let (mut mean, mut rstd) = ([0.0], [0.0]);
        let (gamma, beta) = ([1.0, 1.0], [0.0, 0.0]);
        let f = Forward {
            cols: 2,
            eps,
            x: &mut x,
            residual: None,
            dropout_in: None,
            dropout_out: None,
            gamma: &gamma,
            beta: &beta,
            y: &mut y,
            mean: &mut mean,
            rstd: &mut rstd,
        };
        forward(&pool, f);
        let want = 1e-4 / (1e-8 + f64::from(eps)).sqrt();
        close("y", &y, &[want, -want], 0.0, 1e-5);
    }
}

#[test]
fn results_do_not_depend_on_the_thread_count() {
    let c = Case::<f32>::new(333, 48, true, (0.1, 0.1));
    same_on_any_thread_count(|pool| {
        let r = run(pool, &c);
        [bits(&r.y), bits(&r.dx), bits(&r.dresidual), bits(&r.dgamma), bits(&r.dbeta)].concat()
    });
}

#[test]
fn a_nan_stays_in_its_row_and_reaches_the_weights_gradient() {
    for pool in pools() {
        let mut c = Case::<f32>::new(4, 20, true, (0.0, 0.0));
        c.x[25] = f32::NAN;
        let r = run(&pool, &c);
        assert!(r.y[20..40].iter().all(|y| y.is_nan()));
        assert!(r.y[..20].iter().chain(&r.y[40..]).all(|y| y.is_finite()));
        assert!(r.dgamma.iter().all(|d| d.is_nan()));
    }
}
