//! Least squares with coefficients that are not negative, for a handful of them.

/// One equation: the coefficients' factors, and what they should add up to.
#[derive(Debug, Clone, PartialEq)]
pub struct Equation<const K: usize> {
    /// Factors.
    pub factors: [f64; K],
    /// The sum.
    pub target: f64,
    /// What the residual is divided by: residuals are relative to it.
    pub scale: f64,
}

/// A solution and the sum of its squared relative residuals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Solution<const K: usize> {
    /// Coefficients, none negative.
    pub coefficients: [f64; K],
    /// Sum of squared relative residuals.
    pub residual: f64,
}

/// The coefficients with the least squared relative residuals. Every set of coefficients that are not zero is tried, which
/// is exact and cheap for a few; `None` without equations.
///
/// Source: Lawson, Hanson, "Solving Least Squares Problems", 1974, chapter 23.
pub fn least_squares<const K: usize>(equations: &[Equation<K>]) -> Option<Solution<K>> {
    let mut best: Option<Solution<K>> = None;
    for set in 1..1_usize << K {
        let chosen: Vec<usize> = (0..K).filter(|i| set >> i & 1 == 1).collect();
        let Some(values) = solve(equations, &chosen) else { continue };
        if values.iter().any(|value| *value < 0.0 || !value.is_finite()) {
            continue;
        }
        let mut coefficients = [0.0; K];
        chosen.iter().zip(&values).for_each(|(&i, &value)| coefficients[i] = value);
        let residual = residual(equations, &coefficients);
        if best.is_none_or(|best| residual < best.residual) {
            best = Some(Solution { coefficients, residual });
        }
    }
    best.filter(|_| !equations.is_empty())
}

fn residual<const K: usize>(equations: &[Equation<K>], coefficients: &[f64; K]) -> f64 {
    let of = |e: &Equation<K>| {
        let sum: f64 = e.factors.iter().zip(coefficients).map(|(f, c)| f * c).sum();
        ((sum - e.target) / e.scale).powi(2)
    };
    equations.iter().map(of).sum()
}

/// Solves the normal equations of the chosen coefficients; `None` if they don't determine them.
fn solve<const K: usize>(equations: &[Equation<K>], chosen: &[usize]) -> Option<Vec<f64>> {
    let k = chosen.len();
    // Factors differ by many orders of magnitude; columns are brought to length 1.
    let norm = |i: usize| equations.iter().map(|e| (e.factors[i] / e.scale).powi(2)).sum::<f64>().sqrt();
    let norms: Vec<f64> = chosen.iter().map(|&i| norm(i)).collect();
    if norms.contains(&0.0) || equations.len() < k {
        return None;
    }
    let mut rows = vec![vec![0.0; k + 1]; k];
    for e in equations {
        let of = |at: usize| e.factors[chosen[at]] / e.scale / norms[at];
        for (i, row) in rows.iter_mut().enumerate() {
            (0..k).for_each(|j| row[j] += of(i) * of(j));
            row[k] += of(i) * e.target / e.scale;
        }
    }
    for pivot in 0..k {
        let largest = (pivot..k).max_by(|&a, &b| rows[a][pivot].abs().total_cmp(&rows[b][pivot].abs()))?;
        rows.swap(pivot, largest);
        if rows[pivot][pivot].abs() < 1e-10 {
            return None;
        }
        for row in 0..k {
            if row != pivot {
                let factor = rows[row][pivot] / rows[pivot][pivot];
                let from = rows[pivot].clone();
                rows[row].iter_mut().zip(from).skip(pivot).for_each(|(x, y)| *x -= factor * y);
            }
        }
    }
    Some((0..k).map(|i| rows[i][k] / rows[i][i] / norms[i]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_data_gives_its_coefficients_and_none_is_negative() {
        let equation = |x: f64, target: f64| Equation { factors: [1.0, x, x * x], target, scale: target };
        let exact: Vec<_> = [1.0, 2.0, 5.0, 9.0].map(|x| equation(x, 3.0 + 2.0 * x)).to_vec();
        let solved = least_squares(&exact).expect("determined");
        assert!((solved.coefficients[0] - 3.0).abs() < 1e-6 && (solved.coefficients[1] - 2.0).abs() < 1e-6);
        assert!(solved.residual < 1e-12);
        let falling: Vec<_> = [1.0, 2.0, 5.0].map(|x| equation(x, 10.0 - x)).to_vec();
        let solved = least_squares(&falling).expect("determined");
        assert!(solved.coefficients.iter().all(|c| *c >= 0.0), "{solved:?}");
        assert_eq!(least_squares::<2>(&[]), None);
    }
}
