//! The products of backward: what the gradient of a block's scores means for everything the scores are made of.

use super::block::{Source, Unit};
use super::product::{Band, Product, View};
use super::scratch::{MARGIN, Scratch, padded};
use super::softmax::Place;
use super::tasks::Queries;
use super::vector::PAD;
use crate::aligned::Buffer;
use crate::element::Element;
use crate::isa::dispatch;

/// Sets the gradient of a block's queries and adds to those of its sequence's keys and values and of the relative
/// rows, from the gradient of the scores (`t.scores`) and the dropped probabilities (`t.dp`).
pub(super) fn spread<E: Element>(source: &Source<'_, E>, t: &mut Scratch, unit: Unit, place: Place) {
    content(source, t, unit.queries, place);
    if let Some(r) = source.relative {
        clear_margins(&mut t.scores, place, unit.queries.rows);
        if r.terms.c2p() {
            content_to_position(source, t, unit, place);
        }
        if r.terms.p2c() {
            position_to_content(source, t, unit, place);
        }
    }
}

/// Makes zero what products over bands read around the gradient of the scores; its own padding is zero already.
fn clear_margins(scores: &mut Buffer, place: Place, rows: usize) {
    let scores = scores.sized((rows + 2 * MARGIN) * place.stride);
    let (inside, below) = (MARGIN * place.stride, (MARGIN + rows) * place.stride);
    scores[..inside].fill(0.0);
    scores[below..].fill(0.0);
    for row in scores[inside..below].chunks_exact_mut(place.stride) {
        row[PAD - MARGIN..PAD].fill(0.0);
        row[PAD + padded(place.n)..][..MARGIN].fill(0.0);
    }
}

/// dV += P' dO, dQ = dS K, dK += dS' Q.
fn content<E: Element>(source: &Source<'_, E>, t: &mut Scratch, u: Queries, place: Place) {
    let (stride, add) = (source.stride(), u.from > 0);
    let over_queries = |a: View<'_>, b: &[f32], c: &mut [f32]| {
        let size = (u.n, u.rows, stride);
        let p = Product { a: a.t(), band: None, b, b_stride: stride, c, c_stride: stride, size, add };
        dispatch(source.isa, p);
    };
    let probs = View::rows(t.dp.all(), place.stride);
    over_queries(probs, t.dout.all(), t.dv.sized(u.n * stride));
    let ds = View::rows(&t.scores.all()[place.base..], place.stride);
    over_queries(ds, t.q.all(), t.dk.sized(u.n * stride));
    let product = Product {
        a: ds,
        band: None,
        b: t.k.all(),
        b_stride: stride,
        c: t.dq.sized(u.rows * stride),
        c_stride: stride,
        size: (u.rows, u.n, stride),
        add: false,
    };
    dispatch(source.isa, product);
}

/// dQ_i += dS_ij Kr[i - j], and the gradient of Kr. With s counting the distances of the block upwards, the key of
/// query r at s is j = r + n - 1 - s.
fn content_to_position<E: Element>(source: &Source<'_, E>, t: &mut Scratch, unit: Unit, place: Place) {
    let Queries { n, from, rows, .. } = unit.queries;
    let (stride, distances) = (source.stride(), n + rows - 1);
    let at = unit.span.first_row(from, n) * stride;
    let origin = (place.base + n - 1) as isize;
    // (query, distance)
    let skewed = View { data: t.scores.all(), origin, row: place.stride as isize + 1, col: -1 };
    let product = Product {
        a: skewed,
        band: Some(Band { start: 0, slope: 1, width: n }),
        b: &t.tables[unit.table].kr.all()[at..],
        b_stride: stride,
        c: t.dq.sized(rows * stride),
        c_stride: stride,
        size: (rows, distances, stride),
        add: true,
    };
    dispatch(source.isa, product);
    let product = Product {
        a: skewed.t(),
        band: Some(Band { start: 1 - n as isize, slope: 1, width: n }),
        b: t.q.all(),
        b_stride: stride,
        c: &mut t.tables[unit.table].dkr.sized(unit.span.rows() * stride)[at..],
        c_stride: stride,
        size: (distances, rows, stride),
        add: true,
    };
    dispatch(source.isa, product);
}

/// dK_j += dS_ij Qr[i - j], and the gradient of Qr. With s as above, the query of key j at s is r = s - (n - 1) + j.
fn position_to_content<E: Element>(source: &Source<'_, E>, t: &mut Scratch, unit: Unit, place: Place) {
    let Queries { n, from, rows, .. } = unit.queries;
    let (stride, distances) = (source.stride(), n + rows - 1);
    let at = unit.span.first_row(from, n) * stride;
    let (row, last) = (place.stride as isize, n as isize - 1);
    // (key, distance)
    let skewed =
        View { data: t.scores.all(), origin: place.base as isize - last * row, row: row + 1, col: row };
    let band = Some(Band { start: last, slope: -1, width: rows });
    let product = Product {
        a: skewed,
        band,
        b: &t.tables[unit.table].qr.all()[at..],
        b_stride: stride,
        c: t.dk.sized(n * stride),
        c_stride: stride,
        size: (n, distances, stride),
        add: true,
    };
    dispatch(source.isa, product);
    let product = Product {
        a: skewed.t(),
        band,
        b: t.k.all(),
        b_stride: stride,
        c: &mut t.tables[unit.table].dqr.sized(unit.span.rows() * stride)[at..],
        c_stride: stride,
        size: (distances, n, stride),
        add: true,
    };
    dispatch(source.isa, product);
}
