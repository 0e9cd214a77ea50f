//! Parameters as ranges of flat arenas.
//!
//! One layout describes every arena of a run: compute weights, f32 master weights, moments and gradients all use
//! the same ranges. Parameters lie in forward order, so walking an arena from its end is the order in which
//! backward finishes gradients.

use std::ops::Range;
use std::sync::Arc;

use muster_kernels::{Element, Pool, elementwise, memory};

/// What a parameter is; weight decay goes by it, never by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    /// Weight of a linear layer, `(outputs, inputs)`.
    Matrix,
    /// Table of rows, `(rows, hidden)`.
    Embedding,
    /// Convolution weight, `(outputs, inputs, kernel)`.
    Conv,
    /// Bias of a linear layer or a convolution, shift of a LayerNorm.
    Bias,
    /// Gain of a LayerNorm.
    Gain,
}

impl ParamKind {
    /// Tells whether AdamW decays it: matrices and tables, but neither biases nor LayerNorm gains.
    pub fn decays(self) -> bool {
        matches!(self, Self::Matrix | Self::Embedding | Self::Conv)
    }
}

/// Index of a parameter in its [`Layout`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub usize);

/// One named tensor of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Name in a Hugging Face checkpoint, e.g. `deberta.encoder.layer.0.output.dense.weight`.
    pub name: String,
    /// Shape as Hugging Face stores it.
    pub shape: Vec<usize>,
    /// What it is.
    pub kind: ParamKind,
    /// Elements of every arena that belong to it.
    pub range: Range<usize>,
    /// Belongs to the task head (pooler and classifier), which a pretrained encoder may lack.
    pub head: bool,
}

/// Where each parameter lies in the arenas.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    params: Vec<Param>,
    /// First element of each group of adjacent parameters.
    groups: Vec<usize>,
    len: usize,
}

/// Parameters start at multiples of this many elements (64 bytes of f32), unless they belong to a group.
const ALIGN: usize = 16;

impl Layout {
    /// Appends a parameter at the next aligned element.
    pub fn push(&mut self, name: String, shape: &[usize], kind: ParamKind, head: bool) -> ParamId {
        self.len = self.len.next_multiple_of(ALIGN);
        self.groups.push(self.len);
        self.push_adjacent(name, shape, kind, head)
    }

    /// Appends a parameter right behind the last one, so that both read as one matrix (query, key and value).
    pub fn push_adjacent(&mut self, name: String, shape: &[usize], kind: ParamKind, head: bool) -> ParamId {
        let size: usize = shape.iter().product();
        let range = self.len..self.len + size;
        self.len += size;
        self.params.push(Param { name, shape: shape.to_vec(), kind, range, head });
        ParamId(self.params.len() - 1)
    }

    /// Every parameter, in forward order.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// The parameter with this id.
    pub fn get(&self, id: ParamId) -> &Param {
        &self.params[id.0]
    }

    /// First element of each group of adjacent parameters, ascending from 0: one piece of backward writes no more than
    /// one group.
    pub fn groups(&self) -> &[usize] {
        &self.groups
    }

    /// Elements of an arena with this layout, gaps included.
    pub fn arena_len(&self) -> usize {
        self.len
    }

    /// Counts the trainable numbers, gaps not included.
    pub fn param_count(&self) -> usize {
        self.params.iter().map(|p| p.range.len()).sum()
    }

    /// The stretches that AdamW does not decay, ascending; neighbours are one.
    pub fn undecayed(&self) -> Vec<Range<usize>> {
        let mut stretches: Vec<Range<usize>> = Vec::new();
        for param in self.params.iter().filter(|p| !p.kind.decays()) {
            match stretches.last_mut() {
                Some(last) if last.end == param.range.start => last.end = param.range.end,
                _ => stretches.push(param.range.clone()),
            }
        }
        stretches
    }

    /// Elements from the start of `first` to the end of `last`: one matrix made of adjacent parameters.
    pub fn span(&self, first: ParamId, last: ParamId) -> Range<usize> {
        self.get(first).range.start..self.get(last).range.end
    }
}

/// A linear layer `y = x Wᵀ + b` as ranges of an arena: `W` is `(outputs, inputs)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Linear {
    /// Elements of `W`.
    pub weight: Range<usize>,
    /// Elements of `b`, where there is one.
    pub bias: Option<Range<usize>>,
    /// Columns of `x`.
    pub inputs: usize,
    /// Columns of `y`.
    pub outputs: usize,
}

impl Linear {
    /// The element behind its last one.
    pub fn end(&self) -> usize {
        self.bias.as_ref().map_or(self.weight.end, |bias| bias.end.max(self.weight.end))
    }

    /// The layer made of `outputs` rows of this one, from row `first` on.
    pub fn rows(&self, first: usize, outputs: usize) -> Self {
        assert!(first + outputs <= self.outputs, "rows {first}..{} of {}", first + outputs, self.outputs);
        let start = self.weight.start + first * self.inputs;
        Self {
            weight: start..start + outputs * self.inputs,
            bias: self.bias.as_ref().map(|b| b.start + first..b.start + first + outputs),
            inputs: self.inputs,
            outputs,
        }
    }
}

/// A LayerNorm over `cols` columns.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerNorm {
    /// Elements of the gain.
    pub gain: Range<usize>,
    /// Elements of the shift.
    pub shift: Range<usize>,
    /// Added to the variance.
    pub eps: f32,
}

/// A table of rows, `(rows, cols)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Elements of the table.
    pub range: Range<usize>,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

/// The arenas that a checkpoint fills, each with the layout of the model.
#[derive(Debug)]
pub struct ArenasMut<'a> {
    /// f32 weights.
    pub master: &'a mut [f32],
    /// First moments.
    pub first_moment: &'a mut [f32],
    /// Second moments.
    pub second_moment: &'a mut [f32],
}

/// The weights of a model: what forward computes with, and the f32 values the optimizer moves.
///
/// In f32 both are one arena; in bf16 the master is kept beside the rounded copy.
pub struct Params<E> {
    layout: Arc<Layout>,
    compute: Vec<E>,
    master: Vec<f32>,
}

impl<E: Element> Params<E> {
    /// Takes f32 weights in arena order.
    ///
    /// # Panics
    /// If `master` is not as long as the layout's arena.
    pub fn new(layout: Arc<Layout>, master: Vec<f32>, pool: &Pool) -> Self {
        assert_eq!(master.len(), layout.arena_len(), "weights must fill the arena");
        // In f32 the arena itself is what forward reads: a copy would hold the model twice while it is loaded.
        match bytemuck::allocation::try_cast_vec::<f32, E>(master) {
            Ok(compute) => Self { layout, compute, master: Vec::new() },
            Err((_, master)) => {
                let mut compute = memory::zeroed(master.len());
                elementwise::cast(pool, &master, &mut compute);
                Self { layout, compute, master }
            }
        }
    }

    /// Lets `write` overwrite the f32 weights, then refreshes the rounded copy, where there is one.
    pub fn overwrite<T>(&mut self, pool: &Pool, write: impl FnOnce(&mut [f32]) -> T) -> T {
        let (master, compute) = self.update_parts();
        let written = write(master);
        if let Some(compute) = compute {
            elementwise::cast(pool, master, compute);
        }
        written
    }

    /// The layout of every arena.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Weights as forward reads them, arena order.
    pub fn compute(&self) -> &[E] {
        &self.compute
    }

    /// The f32 weights, arena order.
    pub fn master(&self) -> &[f32] {
        E::as_f32(&self.compute).unwrap_or(&self.master)
    }

    /// The f32 weights to update and, where forward reads a rounded copy, that copy to refresh with them.
    pub fn update_parts(&mut self) -> (&mut [f32], Option<&mut [E]>) {
        if self.master.is_empty() {
            let master = E::as_f32_mut(&mut self.compute).expect("only f32 weights have no separate master");
            (master, None)
        } else {
            (&mut self.master, Some(&mut self.compute))
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_kernels::bf16;

    use super::*;

    fn layout() -> Arc<Layout> {
        let mut layout = Layout::default();
        layout.push("a".into(), &[3], ParamKind::Bias, false);
        Arc::new(layout)
    }

    #[test]
    fn stretches_without_decay_join_where_they_touch() {
        let mut layout = Layout::default();
        let mut push = |size: usize, kind| layout.push(String::new(), &[size], kind, false);
        push(ALIGN, ParamKind::Bias);
        push(ALIGN, ParamKind::Gain);
        push(3, ParamKind::Matrix);
        push(5, ParamKind::Bias);
        push(5, ParamKind::Gain);
        assert_eq!(layout.undecayed(), [0..2 * ALIGN, 3 * ALIGN..3 * ALIGN + 5, 4 * ALIGN..4 * ALIGN + 5]);
    }

    #[test]
    fn f32_weights_are_taken_over_and_bf16_ones_are_rounded_beside_the_master() {
        let pool = Pool::new(1).unwrap();
        let weights = vec![1.0, 1.001, -2.0];
        let address = weights.as_ptr();
        let f32s = Params::<f32>::new(layout(), weights.clone(), &pool);
        assert_eq!((f32s.compute(), f32s.master()), (&weights[..], &weights[..]));
        let f32s = Params::<f32>::new(layout(), weights, &pool);
        assert_eq!(f32s.compute().as_ptr(), address, "no copy");
        let mut bf16s = Params::<bf16>::new(layout(), vec![1.0, 1.001, -2.0], &pool);
        assert_eq!(bf16s.compute()[1], bf16::ONE, "rounded to eight bits");
        assert_eq!(bf16s.master()[1], 1.001);
        bf16s.overwrite(&pool, |master| master.fill(0.5));
        assert_eq!(bf16s.compute(), [bf16::from_f32(0.5); 3], "the copy follows the master");
    }
}
