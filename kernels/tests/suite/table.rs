use muster_kernels::bf16;
use muster_kernels::optim::{AdamW, Arenas, LiveRows, adamw, adamw_table, sum_squares, sum_squares_rows};

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
    /// Gradients and moments of the live rows only.
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
        Self { grad: of_live(1), first_moment: of_live(2), second_moment: of_live(3), master, compute }
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
}

#[test]
fn a_table_with_few_live_rows_is_updated_to_the_bit_as_a_whole_one_is() {
    let ids: Vec<u32> = (0..ROWS as u32).filter(|id| id % 97 < 3 || *id > 2990).collect();
    let mut live = LiveRows::none(ROWS);
    live.insert(&ids);
    assert_eq!(live.count(), ids.len());
    for pool in pools() {
        for weight_decay in [0.0, 0.01] {
            let hyper = AdamW {
                lr: 1e-2,
                beta1: 0.9,
                beta2: 0.999,
                eps: 1e-8,
                weight_decay,
                step: 3,
                grad_scale: 0.5,
            };
            let mut whole = Table::new(&live);
            let mut sparse = whole.clone();
            let (all, rows) =
                (sum_squares(&pool, &whole.grad), sum_squares_rows(&pool, &whole.grad, WIDTH, &ids));
            assert!((rows - all).abs() <= 1e-12 * all, "{rows} {all}");
            adamw(&pool, &hyper, &[], whole.arenas());
            adamw_table(&pool, &hyper, &live, WIDTH, sparse.arenas());
            assert!(whole == sparse, "{:?}, decay {weight_decay}", pool.isa());
            assert_eq!(LiveRows::of_moments(&pool, WIDTH, &sparse.first_moment, &sparse.second_moment), live);
        }
    }
}

#[test]
#[should_panic(expected = "row 3000 of 3000")]
fn a_row_that_does_not_exist_is_refused() {
    LiveRows::none(ROWS).insert(&[ROWS as u32]);
}
