//! Sums of tables of which each rank has touched a few rows: the rows travel, not the table.
//!
//! The result has the bits of the sum of whole tables, in the canonical order, where every other row is zero.

use std::collections::HashMap;

use super::World;
use crate::error::{Error, Result};
use crate::order::fold;

/// Rows of a table with their numbers, ascending.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TableRows {
    /// Numbers of the rows.
    pub ids: Vec<u32>,
    /// Their values, end to end: `ids.len() * width`.
    pub values: Vec<f32>,
}

/// How many rows each rank has touched; equal on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowCounts(Vec<u64>);

impl RowCounts {
    /// Whether sending the rows moves fewer bytes than summing the whole table of so many rows.
    pub fn are_cheaper_than(&self, table_rows: usize) -> bool {
        // A rank receives the rows of the others, and twice the (n - 1) / n-th part of the table.
        self.0.iter().sum::<u64>() < 2 * table_rows as u64
    }
}

impl World {
    /// Tells everybody how many rows this rank has touched. Blocks.
    ///
    /// # Errors
    /// What ended the generation.
    pub fn row_counts(&self, mine: usize, name: &str) -> Result<RowCounts> {
        let counts = self.all_gather(vec![mine as i64], &vec![1; self.world_size()], name)?;
        Ok(RowCounts(counts.into_iter().map(|count| count.max(0) as u64).collect()))
    }

    /// Sums the rows that ranks have touched; everybody gets all of them. `mine` has ascending numbers, each once, and
    /// as many as `counts` says. Blocks.
    ///
    /// Cost: each rank receives the rows of all others.
    ///
    /// # Errors
    /// What ended the generation, or rows that don't ascend.
    pub fn all_reduce_rows(
        &self,
        mine: TableRows,
        counts: &RowCounts,
        width: usize,
        name: &str,
    ) -> Result<TableRows> {
        check(&mine, width)?;
        let RowCounts(counts) = counts;
        let ids = self.all_gather(mine.ids.iter().map(|&id| id as i32).collect(), counts, name)?;
        let lens: Vec<u64> = counts.iter().map(|count| count * width as u64).collect();
        let values = self.all_gather(mine.values, &lens, name)?;
        Ok(sum(&ids, &values, counts, (width, self.membership().nodes())))
    }
}

fn check(rows: &TableRows, width: usize) -> Result<()> {
    let (expected, got) = ((rows.ids.len() * width) as u64, rows.values.len() as u64);
    if expected != got {
        return Err(Error::Length { what: "the rows", expected, got });
    }
    match rows.ids.windows(2).find(|pair| pair[0] >= pair[1]) {
        Some(pair) => {
            let problem = format!("row {} comes before row {}; they must ascend", pair[0], pair[1]);
            Err(Error::Config { name: "rows", problem })
        }
        None => Ok(()),
    }
}

/// Sums gathered rows; `counts` tells how many are of which rank.
fn sum(ids: &[i32], values: &[f32], counts: &[u64], (width, nodes): (usize, &[usize])) -> TableRows {
    // For each row: which ranks have it, and where.
    let mut places: HashMap<u32, Vec<Option<usize>>> = HashMap::with_capacity(ids.len());
    let ranks = counts.iter().enumerate().flat_map(|(rank, &count)| (0..count).map(move |_| rank));
    for (place, (&id, rank)) in ids.iter().zip(ranks).enumerate() {
        places.entry(id as u32).or_insert_with(|| vec![None; counts.len()])[rank] = Some(place);
    }
    let mut order: Vec<u32> = places.keys().copied().collect();
    order.sort_unstable();
    let mut summed = Vec::with_capacity(order.len() * width);
    for id in &order {
        let of_ranks = &places[id];
        let row = |rank: usize| of_ranks[rank].map(|place| values[place * width..][..width].to_vec());
        let mut total = fold(nodes, row, add).unwrap_or_default();
        if !of_ranks.iter().all(Option::is_some) {
            // A rank without the row has a zero there, which makes a negative zero positive.
            total.iter_mut().for_each(|x| *x += 0.0);
        }
        summed.extend_from_slice(&total);
    }
    TableRows { ids: order, values: summed }
}

fn add(mut a: Vec<f32>, b: Vec<f32>) -> Vec<f32> {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dense(table: &[Vec<f32>], nodes: &[usize]) -> Vec<f32> {
        let column = |i: usize| fold(nodes, |rank| Some(table[rank][i]), |a, b| a + b).unwrap();
        (0..table[0].len()).map(column).collect()
    }

    proptest! {
        #[test]
        fn rows_have_the_bits_of_whole_tables(
            nodes in prop::collection::vec(1usize..4, 1..4),
            cells in prop::collection::vec(prop::option::weighted(0.4, -1e3f32..1e3), 9 * 7),
            negative_zero in any::<bool>(),
        ) {
            const WIDTH: usize = 3;
            let (n, rows) = (nodes.iter().sum::<usize>(), 7);
            let value = |rank: usize, row: usize| cells[rank * 7 + row];
            let cell = |x: f32, column: usize| if negative_zero && column == 2 { -0.0 } else { x / (column + 1) as f32 };
            let (mut ids, mut values, mut counts) = (Vec::new(), Vec::new(), Vec::new());
            let mut tables = vec![vec![0.0f32; rows * WIDTH]; n];
            for (rank, table) in tables.iter_mut().enumerate() {
                let mine: Vec<usize> = (0..rows).filter(|&row| value(rank, row).is_some()).collect();
                counts.push(mine.len() as u64);
                for row in mine {
                    ids.push(row as i32);
                    for column in 0..WIDTH {
                        let x = cell(value(rank, row).unwrap(), column);
                        values.push(x);
                        table[row * WIDTH + column] = x;
                    }
                }
            }
            let summed = sum(&ids, &values, &counts, (WIDTH, &nodes));
            let mut table = vec![0.0f32; rows * WIDTH];
            for (id, row) in summed.ids.iter().zip(summed.values.chunks(WIDTH)) {
                table[*id as usize * WIDTH..][..WIDTH].copy_from_slice(row);
            }
            let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&table), bits(&dense(&tables, &nodes)));
        }
    }

    #[test]
    fn rows_that_do_not_fit_are_refused() {
        let rows = |ids: &[u32], len: usize| TableRows { ids: ids.to_vec(), values: vec![0.0; len] };
        assert!(check(&rows(&[1, 2], 6), 3).is_ok());
        assert!(matches!(check(&rows(&[1, 2], 5), 3), Err(Error::Length { expected: 6, got: 5, .. })));
        assert!(check(&rows(&[2, 2], 6), 3).unwrap_err().to_string().contains("row 2 comes before row 2"));
    }
}
