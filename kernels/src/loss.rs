//! Losses and their gradients. Logits are few, so this is plain f64 arithmetic on one thread.
//!
//! Each function returns the sum of the row losses and sets the gradient of `scale` times that sum.

/// Softmax of one row into f64.
fn softmax(logits: &[f32], probs: &mut Vec<f64>) -> f64 {
    // f64::max would skip a NaN; the sum below carries it.
    let top = logits.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(f64::from(b)));
    probs.clear();
    probs.extend(logits.iter().map(|&x| (f64::from(x) - top).exp()));
    let sum: f64 = probs.iter().sum();
    probs.iter_mut().for_each(|p| *p /= sum);
    top + sum.ln()
}

/// Cross-entropy of logits (R, classes) against class indices (R).
///
/// # Panics
/// If a target is not below `classes`.
pub fn cross_entropy(
    classes: usize,
    logits: &[f32],
    targets: &[u32],
    scale: f32,
    dlogits: &mut [f32],
) -> f64 {
    assert_eq!(
        logits.len(),
        targets.len() * classes,
        "logits must be (R, classes) = ({}, {classes})",
        targets.len()
    );
    assert_eq!(dlogits.len(), logits.len(), "dlogits must be as long as logits");
    let mut probs = Vec::with_capacity(classes);
    let mut total = 0.0;
    for (r, &target) in targets.iter().enumerate() {
        let (row, target) = (r * classes..(r + 1) * classes, target as usize);
        assert!(target < classes, "target {target} of row {r} must be below {classes}");
        let lse = softmax(&logits[row.clone()], &mut probs);
        total += lse - f64::from(logits[row.start + target]);
        probs[target] -= 1.0;
        for (d, p) in dlogits[row].iter_mut().zip(&probs) {
            *d = (f64::from(scale) * p) as f32;
        }
    }
    total
}

/// Binary cross-entropy of logits (R, width) against targets (R, width) in [0, 1]; a row's loss is the mean over width.
pub fn bce_with_logits(
    width: usize,
    logits: &[f32],
    targets: &[f32],
    scale: f32,
    dlogits: &mut [f32],
) -> f64 {
    elementwise(width, logits, targets, dlogits, |x, t| {
        // max(x, 0) - x t + ln(1 + e^-|x|) never overflows.
        let loss = if x > 0.0 { x - x * t } else { -(x * t) } + (-x.abs()).exp().ln_1p();
        (loss, f64::from(scale) * (1.0 / (1.0 + (-x).exp()) - t))
    })
}

/// Squared error of predictions (R, width) against targets (R, width); a row's loss is the mean over width.
pub fn mse(width: usize, predictions: &[f32], targets: &[f32], scale: f32, dpredictions: &mut [f32]) -> f64 {
    elementwise(width, predictions, targets, dpredictions, |x, t| {
        ((x - t) * (x - t), f64::from(scale) * 2.0 * (x - t))
    })
}

fn elementwise(width: usize, x: &[f32], t: &[f32], d: &mut [f32], f: impl Fn(f64, f64) -> (f64, f64)) -> f64 {
    assert!(
        width > 0 && x.len().is_multiple_of(width),
        "the input must be (R, {width}), got {} elements",
        x.len()
    );
    assert_eq!(t.len(), x.len(), "targets must be as long as the input");
    assert_eq!(d.len(), x.len(), "the gradient must be as long as the input");
    let mut total = 0.0;
    for ((x, t), d) in x.iter().zip(t).zip(d) {
        let (loss, slope) = f(f64::from(*x), f64::from(*t));
        total += loss;
        *d = (slope / width as f64) as f32;
    }
    total / width as f64
}

/// Softmax of each row of logits (R, classes) into probs (R, classes).
pub fn softmax_rows(classes: usize, logits: &[f32], probs: &mut [f32]) {
    assert!(
        classes > 0 && logits.len().is_multiple_of(classes),
        "logits must be (R, {classes}), got {}",
        logits.len()
    );
    assert_eq!(probs.len(), logits.len(), "probs must be as long as logits");
    let mut row = Vec::with_capacity(classes);
    for (x, y) in logits.chunks(classes).zip(probs.chunks_mut(classes)) {
        softmax(x, &mut row);
        y.iter_mut().zip(&row).for_each(|(y, p)| *y = *p as f32);
    }
}
