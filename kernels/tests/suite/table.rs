use muster_kernels::bf16;
use muster_kernels::optim::{
    AdamW, Arenas, LazyRows, LiveRows, TableWeights, adamw, adamw_table, sum_squares, sum_squares_rows,
};

use crate::common::{noise, pools};

const WIDTH: usize = 24;
const ROWS: usize = 3000;

/// All arenas of a table.
#[derive(Clone, PartialEq)]
struct Table {
    grad: Vec<f32>,
    master: Vec<f32>,
    first_moment: Vec<f32>,
    second_moment: Vec<f32>,
    compute: Vec<bf16>,
}

impl Table {
    /// Moments of the live rows only, no gradients.
    fn new(live: &LiveRows) -> Self {
        let of_live = |seed| {
            let mut values = noise::<f32>(seed, ROWS * WIDTH);
            for (i, row) in values.chunks_mut(WIDTH).enumerate() {
                row.iter_mut().for_each(|x| *x = if live.contains(i) { x.abs() + 1e-3 } else { 0.0 });
            }
            values
        };
        let master = noise::<f32>(4, ROWS * WIDTH);
        let compute = master.iter().map(|&w| bf16::from_f32(w)).collect();
        let grad = vec![0.0; ROWS * WIDTH];
        Self { grad, first_moment: of_live(2), second_moment: of_live(3), master, compute }
    }

    /// Gives some rows gradients.
    fn touch(&mut self, ids: &[u32]) {
        for &id in ids {
            self.grad[id as usize * WIDTH..][..WIDTH].copy_from_slice(&noise::<f32>(u64::from(id), WIDTH));
        }
    }

    fn arenas(&mut self) -> Arenas<'_, bf16> {
        Arenas {
            grad: &mut self.grad,
            master: &mut self.master,
            first_moment: &mut self.first_moment,
            second_moment: &mut self.second_moment,
            compute: Some(&mut self.compute),
        }
    }

    fn weights(&mut self) -> TableWeights<'_, bf16> {
        TableWeights { master: &mut self.master, compute: Some(&mut self.compute), width: WIDTH }
    }
}

fn hyper(step: u64, weight_decay: f32) -> AdamW {
    let lr = 1e-2 / step as f32;
    AdamW { lr, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay, step, grad_scale: 0.5 }
}

fn some(modulus: u32) -> Vec<u32> {
    (0..ROWS as u32).filter(|id| id % modulus < 3 || *id > 2990).collect()
}

#[test]
fn a_table_with_few_live_rows_is_updated_to_the_bit_as_a_whole_one_is() {
    let mut live = LiveRows::none(ROWS);
    live.insert(&some(97));
    assert_eq!(live.count(), some(97).len());
    assert!(live.iter().eq(some(97).iter().map(|&id| id as usize)));
    for pool in pools() {
        for weight_decay in [0.0, 0.01] {
            let (mut whole, mut lazy) = (Table::new(&live), Table::new(&live));
            let mut rows = LazyRows::new(live.clone());
            // Rows that become live later, and rows that are only read meanwhile, in any order and more than once.
            for (step, modulus) in (1..).zip([97, 41, 97, 67, 53]) {
                let mut read = some(59);
                read.reverse();
                read.push(read[0]);
                rows.settle(&pool, &read, lazy.weights());
                for &id in &read {
                    let row = id as usize * WIDTH..(id as usize + 1) * WIDTH;
                    assert_eq!(lazy.master[row.clone()], whole.master[row.clone()], "row {id} is up to date");
                    assert_eq!(lazy.compute[row.clone()], whole.compute[row], "and its copy");
                }
                let touched = some(modulus);
                whole.touch(&touched);
                lazy.touch(&touched);
                let sums =
                    (sum_squares(&pool, &whole.grad), sum_squares_rows(&pool, &whole.grad, WIDTH, &touched));
                assert!((sums.1 - sums.0).abs() <= 1e-12 * sums.0, "{sums:?}");
                adamw(&pool, &hyper(step, weight_decay), &[], whole.arenas());
                adamw_table(&pool, &hyper(step, weight_decay), &mut rows, &touched, WIDTH, lazy.arenas());
            }
            assert_eq!(whole.master == lazy.master, weight_decay == 0.0, "decay was put off");
            rows.settle_all(&pool, lazy.weights());
            assert!(whole == lazy, "{:?}, decay {weight_decay}", pool.isa());
            let moments = (&lazy.first_moment, &lazy.second_moment);
            assert_eq!(LiveRows::of_moments(&pool, WIDTH, moments.0, moments.1), *rows.live());
        }
    }
}

#[test]
fn decay_that_is_put_off_for_long_is_made_up_for_in_between() {
    let pool = &pools()[0];
    let (mut whole, mut lazy) = (Table::new(&LiveRows::none(ROWS)), Table::new(&LiveRows::none(ROWS)));
    let mut rows = LazyRows::new(LiveRows::none(ROWS));
    for step in 1..=600 {
        adamw(pool, &hyper(step, 0.1), &[], whole.arenas());
        adamw_table(pool, &hyper(step, 0.1), &mut rows, &[], WIDTH, lazy.arenas());
        if step % 100 == 0 {
            rows.settle(pool, &[7, step as u32], lazy.weights());
        }
    }
    rows.settle_all(pool, lazy.weights());
    assert!(whole == lazy);
}

#[test]
#[should_panic(expected = "row 3000 of 3000")]
fn a_row_that_does_not_exist_is_refused() {
    LiveRows::none(ROWS).insert(&[ROWS as u32]);
}
