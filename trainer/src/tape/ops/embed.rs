//! Sums of table rows (word, position, token type), and a contiguous piece of a table.

use std::ops::Range;
use std::rc::Rc;

use muster_kernels::Element;
use muster_kernels::elementwise;
use muster_kernels::embedding;
use muster_kernels::gemm::Write;

use super::super::buffer::Buf;
use super::super::{Backward, Tape, Var};
use super::Op;
use crate::params::Table;

/// One table and the row of it that each token takes.
#[derive(Debug, Clone)]
pub struct Embed<'t> {
    /// The table.
    pub table: &'t Table,
    /// Row per token, shape `(T)`.
    pub ids: Rc<[u32]>,
}

pub(in crate::tape) struct EmbedOp {
    parts: Vec<(Table, Rc<[u32]>)>,
}

pub(in crate::tape) struct TableRowsOp {
    range: Range<usize>,
}

impl<E: Element> Tape<'_, E> {
    /// The sum of one row per table for each token, `(T, cols)`.
    pub fn embed(&mut self, parts: &[Embed<'_>]) -> Var<E> {
        let first = parts.first().expect("a model has at least a word table");
        let (tokens, cols) = (first.ids.len(), first.table.cols);
        let mut y = self.env.activations.take(tokens, cols);
        for (i, part) in parts.iter().enumerate() {
            let write = if i == 0 { Write::Set } else { Write::Add };
            let table = &self.env.params[part.table.range.clone()];
            embedding::gather_add(self.env.pool, cols, table, &part.ids, write, &mut y);
        }
        let y = self.var(y, tokens, cols);
        let parts = parts.iter().map(|p| (p.table.clone(), Rc::clone(&p.ids))).collect();
        self.record(y.node, Op::Embed(EmbedOp { parts }));
        y
    }

    /// Rows `rows` of a table as a value, `(rows, cols)`.
    pub fn table_rows(&mut self, table: &Table, rows: Range<usize>) -> Var<E> {
        let start = table.range.start;
        let range = start + rows.start * table.cols..start + rows.end * table.cols;
        let mut y = self.env.activations.take(rows.len(), table.cols);
        elementwise::copy(self.env.pool, &self.env.params[range.clone()], &mut y);
        let y = self.var(y, rows.len(), table.cols);
        self.record(y.node, Op::TableRows(TableRowsOp { range }));
        y
    }
}

impl EmbedOp {
    pub(super) fn params_end(&self) -> usize {
        self.parts.iter().map(|(table, _)| table.range.end).max().unwrap_or(0)
    }

    pub(super) fn backward<E: Element>(self, dy: Buf<E>, back: &mut Backward<'_, '_, E>) {
        for (table, ids) in self.parts {
            if table.range.start == 0 {
                back.grads.touch(&ids);
            }
            let dtable = back.grads.slice_mut(table.range);
            embedding::scatter_add(back.env.pool, table.cols, &ids, &dy, dtable);
        }
    }
}

impl TableRowsOp {
    pub(super) fn params_end(&self) -> usize {
        self.range.end
    }

    pub(super) fn backward<E: Element>(self, dy: Buf<E>, back: &mut Backward<'_, '_, E>) {
        elementwise::add_assign(back.env.pool, back.grads.slice_mut(self.range), &dy);
    }
}
