//! The forward pass: embeddings, encoder layers, head.

use std::ops::Range;
use std::rc::Rc;

use muster_kernels::Element;
use muster_kernels::activation::Activation;

use super::config::HeadKind;
use super::{Layer, Model};
use crate::batch::MicroBatch;
use crate::tape::{Embed, Heads, KeyKind, Logits, Rates, Relative, Rows, Tape, Var};

/// The relative table as every layer sees it: the rows that this micro-batch uses, normalised.
#[derive(Clone)]
struct Positions<E: Element> {
    rows: Var<E>,
    slots: Rc<[u32]>,
    first: usize,
}

impl Model {
    /// Computes the logits of a micro-batch, `(R, outputs)`.
    ///
    /// # Panics
    /// If the batch holds a token id, type or position outside the model's tables: the loader checks them.
    pub fn forward<'a, E: Element>(&'a self, tape: &mut Tape<'a, E>, batch: &MicroBatch) -> Logits<E> {
        tape.expect(Rows::Tokens, batch.tokens());
        tape.expect(Rows::Sequences, batch.rows());
        let offsets: Rc<[u32]> = batch.offsets.as_slice().into();
        let embedded = self.embed(tape, batch);
        let positions = self.positions(tape, batch.max_len());
        let mut x = embedded.clone();
        for (i, layer) in self.layers.iter().enumerate() {
            let (input, table, rows) = (x, positions.clone(), Rc::clone(&offsets));
            x = tape.segment(move |tape| self.layer(tape, layer, &input, table.as_ref(), &rows));
            if i == 0 && self.conv.is_some() {
                x = self.conv(tape, &embedded, &x, &offsets);
            }
        }
        drop(embedded);
        let first = tape.first_tokens(x, &offsets);
        self.head(tape, first)
    }

    fn embed<E: Element>(&self, tape: &mut Tape<'_, E>, batch: &MicroBatch) -> Var<E> {
        let e = &self.embeddings;
        let mut parts = vec![Embed { table: &e.word, ids: batch.ids.as_slice().into() }];
        if let Some(table) = &e.position {
            let offset = self.config.position_offset as u32;
            parts.push(Embed { table, ids: batch.positions.iter().map(|p| p + offset).collect() });
        }
        if let Some(table) = &e.token_type {
            // RoBERTa has one type only, whatever the tokenizer says.
            let last = table.rows as u32 - 1;
            parts.push(Embed { table, ids: batch.type_ids.iter().map(|&t| t.min(last)).collect() });
        }
        let mut x = tape.embed(&parts);
        if let Some(project) = &e.project {
            x = tape.linear(&x, project);
        }
        tape.add_norm(x, None, &e.norm, Rates { before: 0.0, after: self.config.dropouts.hidden })
    }

    fn positions<E: Element>(&self, tape: &mut Tape<'_, E>, max_len: usize) -> Option<Positions<E>> {
        let terms = self.config.relative.as_ref()?;
        // A table that no term reads changes nothing.
        let relative =
            self.relative.as_ref().filter(|_| terms.content_to_position || terms.position_to_content)?;
        let slots = relative.buckets.slots(max_len);
        tape.expect(Rows::Slots, slots.count);
        let range: Range<usize> = slots.first..slots.first + slots.count;
        let mut rows = tape.table_rows(&relative.table, range);
        if let Some(norm) = &relative.norm {
            rows = tape.add_norm(rows, None, norm, Rates::default());
        }
        Some(Positions { rows, slots: slots.of_distance.into(), first: slots.first })
    }

    fn layer<E: Element>(
        &self,
        tape: &mut Tape<'_, E>,
        layer: &Layer,
        x: &Var<E>,
        positions: Option<&Positions<E>>,
        offsets: &Rc<[u32]>,
    ) -> Var<E> {
        let rates = Rates { before: self.config.dropouts.hidden, after: 0.0 };
        let relative = positions.map(|p| self.relative_terms(tape, layer, p));
        let qkv = tape.linear(x, &layer.qkv);
        let context = tape.attention(qkv, relative, &self.attention_heads(), offsets);
        let attended = tape.linear(&context, &layer.attention_out);
        drop(context);
        let x = tape.add_norm(attended, Some(x), &layer.attention_norm, rates);
        let out = tape.feed_forward(&x, &layer.up, self.config.activation, &layer.down);
        tape.add_norm(out, Some(&x), &layer.output_norm, rates)
    }

    /// Each layer projects the table with its own query and key weights.
    fn relative_terms<E: Element>(
        &self,
        tape: &mut Tape<'_, E>,
        layer: &Layer,
        positions: &Positions<E>,
    ) -> Relative<E> {
        let (rate, rows) = (self.config.dropouts.hidden, positions.rows.clone());
        let rows = tape.dropout_slots(rows, rate, KeyKind::Slot, positions.first);
        Relative {
            keys: layer.position_key.as_ref().map(|project| tape.linear(&rows, project)),
            queries: layer.position_query.as_ref().map(|project| tape.linear(&rows, project)),
            slots: Rc::clone(&positions.slots),
        }
    }

    /// Scores are scaled by the root of the head's width times the number of score terms.
    fn attention_heads(&self) -> Heads {
        let terms = match &self.config.relative {
            None => 1,
            Some(r) => 1 + usize::from(r.content_to_position) + usize::from(r.position_to_content),
        };
        let dim = self.config.head_dim();
        let scale = 1.0 / ((dim * terms) as f32).sqrt();
        Heads { count: self.config.heads, dim, scale, dropout: self.config.dropouts.attention }
    }

    /// DeBERTa-v2's convolution: reads the embeddings, is added to the first layer's output.
    fn conv<E: Element>(
        &self,
        tape: &mut Tape<'_, E>,
        embedded: &Var<E>,
        x: &Var<E>,
        offsets: &Rc<[u32]>,
    ) -> Var<E> {
        let conv = self.conv.as_ref().expect("called where the model has a convolution");
        let activation = self.config.conv.expect("configured with the layer").activation;
        let neighbours = tape.unfold(embedded, conv.kernel, offsets);
        let out = tape.linear(&neighbours, &conv.linear);
        let out = tape.dropout(out, self.config.dropouts.hidden, KeyKind::Token);
        let out = tape.activation(out, activation);
        tape.add_norm(out, Some(x), &conv.norm, Rates::default())
    }

    fn head<E: Element>(&self, tape: &mut Tape<'_, E>, first: Var<E>) -> Logits<E> {
        let rates = &self.config.dropouts;
        let (before, activation) = match self.config.head {
            HeadKind::Bert => (0.0, Activation::Tanh),
            HeadKind::Roberta => (rates.classifier, Activation::Tanh),
            HeadKind::Deberta(activation) => (rates.pooler, activation),
        };
        let x = tape.dropout(first, before, KeyKind::Sequence);
        let x = tape.linear(&x, &self.head.dense);
        let x = tape.activation(x, activation);
        let x = tape.dropout(x, rates.classifier, KeyKind::Sequence);
        tape.logits(x, &self.head.out)
    }
}
