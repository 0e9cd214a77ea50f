//! One call of attention with random inputs, its results, and the comparison with the formula.

use muster_kernels::attention::{Backward, Forward, Relative, RelativeGrad, Shape, Terms, backward, forward};
use muster_kernels::dropout::Dropout;
use muster_kernels::reference::{self, AttentionProblem};
use muster_kernels::{Element, Pool};

use crate::common::{bits, close, noise};

/// Inputs of one call, owned.
#[derive(Clone)]
pub struct Case<E> {
    pub offsets: Vec<u32>,
    heads: usize,
    head_dim: usize,
    pub qkv: Vec<E>,
    pub keys: Vec<E>,
    pub queries: Vec<E>,
    pub row_stride: usize,
    slots: Vec<u32>,
    terms: Option<Terms>,
    scale: f32,
    pub rate: f32,
    pub rows: Vec<u64>,
    pub dout: Vec<E>,
}

/// Slots as DeBERTa's buckets make them: distances up to `mid` each have their own, farther ones share in log steps.
fn log_slots(max: usize, mid: i64) -> Vec<u32> {
    let last = max as i64 - 1;
    (-last..=last)
        .map(|d| {
            let far = ((d.abs() as f64 / mid as f64).ln() / (last as f64 / mid as f64).ln()
                * (mid - 1) as f64)
                .ceil();
            let bucket = if d.abs() <= mid { d } else { d.signum() * (far as i64 + mid) };
            (bucket + 2 * mid).clamp(0, 4 * mid - 1) as u32
        })
        .collect()
}

impl<E: Element> Case<E> {
    /// Random numbers, and slots for the longest of the sequences.
    pub fn new(lengths: &[usize], heads: usize, head_dim: usize, terms: Option<Terms>, mid: i64) -> Self {
        let longest = lengths.iter().copied().max().unwrap().max(2);
        Self::with_slots(lengths, (heads, head_dim), terms, log_slots(longest, mid), mid)
    }

    /// The slots of DeBERTa-v3: 256 buckets for distances of up to 512 tokens.
    pub fn v3(lengths: &[usize], heads: (usize, usize), terms: Option<Terms>, rate: f32) -> Self {
        Self { rate, ..Self::with_slots(lengths, heads, terms, log_slots(512, 128), 128) }
    }

    fn with_slots(
        lengths: &[usize],
        (heads, head_dim): (usize, usize),
        terms: Option<Terms>,
        slots: Vec<u32>,
        mid: i64,
    ) -> Self {
        let mut offsets = vec![0_u32];
        lengths.iter().for_each(|&n| offsets.push(offsets.last().unwrap() + n as u32));
        let (tokens, hidden) = (*offsets.last().unwrap() as usize, heads * head_dim);
        let positions = if terms.is_some() { 4 * mid as usize } else { 0 };
        Self {
            offsets,
            heads,
            head_dim,
            qkv: noise(1, tokens * 3 * hidden),
            keys: noise(2, positions * hidden),
            queries: noise(3, positions * hidden),
            row_stride: hidden,
            slots,
            terms,
            scale: 1.0 / (head_dim as f32 * 3.0).sqrt(),
            rate: 0.0,
            rows: (0..tokens as u64).map(|t| t * 7 + 1).collect(),
            dout: noise(4, tokens * hidden),
        }
    }

    fn dropout(&self) -> Option<Dropout<'_>> {
        (self.rate > 0.0).then_some(Dropout { rate: self.rate, site: 77, rows: &self.rows })
    }

    fn shape(&self) -> Shape<'_> {
        Shape { offsets: &self.offsets, heads: self.heads, head_dim: self.head_dim }
    }

    fn relative(&self) -> Option<Relative<'_, E>> {
        let (keys, queries, row_stride) = (&self.keys[..], &self.queries[..], self.row_stride);
        self.terms.map(|terms| Relative { keys, queries, row_stride, slots: &self.slots, terms })
    }

    fn problem(&self) -> AttentionProblem<'_> {
        AttentionProblem {
            offsets: &self.offsets,
            heads: self.heads,
            head_dim: self.head_dim,
            qkv: reference::widen(&self.qkv),
            keys: reference::widen(&self.keys),
            queries: reference::widen(&self.queries),
            slots: &self.slots,
            terms: self.terms,
            scale: f64::from(self.scale),
            dropout: self.dropout(),
        }
    }

    /// Forward and backward; gradients of the tables are added to 0.5 and 0.25.
    pub fn run(&self, pool: &Pool) -> Results<E> {
        let (tokens, hidden) = (self.rows.len(), self.heads * self.head_dim);
        let table = if self.terms.is_some() {
            self.slots.iter().max().map_or(0, |&s| s as usize + 1) * hidden
        } else {
            0
        };
        let nan = E::from_f32(f32::NAN);
        let mut r = Results {
            out: vec![nan; tokens * hidden],
            lse: vec![f32::NAN; self.heads * tokens],
            dqkv: vec![nan; self.qkv.len()],
            dkeys: vec![0.5; table],
            dqueries: vec![0.25; table],
        };
        let (shape, scale, dropout) = (self.shape(), self.scale, self.dropout());
        let relative = self.relative();
        forward(
            pool,
            Forward { shape, qkv: &self.qkv, relative, scale, dropout, out: &mut r.out, lse: &mut r.lse },
        );
        let grad = RelativeGrad { keys: &mut r.dkeys, queries: &mut r.dqueries };
        let b = Backward {
            shape,
            qkv: &self.qkv,
            relative,
            scale,
            dropout,
            out: &r.out,
            lse: &r.lse,
            dout: &self.dout,
            dqkv: &mut r.dqkv,
            drelative: relative.map(|_| grad),
        };
        backward(pool, b);
        r
    }
}

pub struct Results<E> {
    pub out: Vec<E>,
    pub lse: Vec<f32>,
    pub dqkv: Vec<E>,
    pub dkeys: Vec<f32>,
    pub dqueries: Vec<f32>,
}

impl<E: Element> Results<E> {
    pub fn bits(&self) -> Vec<u32> {
        [bits(&self.out), bits(&self.lse), bits(&self.dqkv), bits(&self.dkeys), bits(&self.dqueries)].concat()
    }
}

/// Compares with the formula.
pub fn compare<E: Element>(what: &str, c: &Case<E>, r: &Results<E>) {
    let (out, lse) = c.problem().forward();
    let g = c.problem().backward(&reference::widen(&c.dout));
    close(&format!("out {what}"), &r.out, &out, 3e-6, 1e-5);
    close(&format!("lse {what}"), &r.lse, &lse, 3e-6, 1e-6);
    // Backward reads the output as stored, so in bf16 delta carries its rounding, and a gradient that cancels carries
    // it in absolute terms.
    let (absolute, relative) = match E::DTYPE {
        muster_kernels::DType::F32 => (3e-5, 1e-4),
        muster_kernels::DType::Bf16 => (6e-2, 2e-2),
    };
    close(&format!("dqkv {what}"), &r.dqkv, &g.qkv, absolute, relative);
    let plus = |v: &[f64], x: f64, len: usize| v[..len].iter().map(|v| v + x).collect::<Vec<_>>();
    close(&format!("dkeys {what}"), &r.dkeys, &plus(&g.keys, 0.5, r.dkeys.len()), absolute, relative);
    close(
        &format!("dqueries {what}"),
        &r.dqueries,
        &plus(&g.queries, 0.25, r.dqueries.len()),
        absolute,
        relative,
    );
}
