//! The stack machine of a pickle, reduced to the opcodes that `torch.save` writes; everything else is an error.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::{PickleProblem, StorageRef, TensorRecord};
use crate::weights::dtype::StoredDtype;

/// Longest name of a storage, in bytes; torch counts them. Names may be shared, so this bounds what copies cost.
const MAX_KEY_BYTES: usize = 64;
/// Most dimensions of a tensor.
const MAX_DIMS: usize = 8;
/// Longest name of a global, in bytes.
const MAX_GLOBAL_BYTES: usize = 256;

pub(super) type Id = u32;
pub(super) type Outcome<T> = Result<T, PickleProblem>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Storage(StoredDtype),
}

#[derive(Debug)]
enum Node {
    Scalar,
    Int(i64),
    Text(Range<usize>),
    Tuple(Vec<Id>),
    List,
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage { key: Range<usize>, dtype: StoredDtype, numel: u64 },
    Tensor(Box<Tensor>),
}

#[derive(Debug)]
struct Tensor {
    storage: Id,
    offset: u64,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

pub(super) struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    opcode_at: usize,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    /// Stack heights at each open MARK; nothing below the last one may be popped.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            opcode_at: 0,
            nodes: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
        }
    }

    /// Offset of the opcode under way.
    pub(super) fn opcode_at(&self) -> usize {
        self.opcode_at
    }

    /// Runs to the end; gives the object on top.
    pub(super) fn run(&mut self) -> Outcome<Id> {
        loop {
            self.opcode_at = self.at;
            let opcode = self.take(1)?[0];
            if opcode == b'.' {
                return self.pop();
            }
            self.step(opcode)?;
        }
    }

    fn step(&mut self, opcode: u8) -> Outcome<()> {
        match opcode {
            0x80 => self.take(1).map(drop),
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'N' | 0x88 | 0x89 => self.push(Node::Scalar),
            b'G' => {
                self.take(8)?;
                self.push(Node::Scalar)
            }
            b'K' => self.int(1),
            b'M' => self.int(2),
            b'J' => self.int(4),
            0x8a => self.long(),
            b'X' => self.text(),
            b')' => self.push(Node::Tuple(Vec::new())),
            b't' => {
                let items = self.pop_to_mark()?;
                self.push(Node::Tuple(items))
            }
            0x85..=0x87 => self.small_tuple(usize::from(opcode - 0x84)),
            b']' => self.push(Node::List),
            b'a' | b'e' => self.append(opcode),
            b'}' => self.push(Node::Dict(Vec::new())),
            b's' | b'u' => self.set_items(opcode),
            b'c' => self.global(),
            b'q' | b'r' => self.memo_put(opcode),
            b'h' | b'j' => self.memo_get(opcode),
            b'Q' => self.persistent(),
            b'R' => self.reduce(),
            b'b' => self.build(),
            other => Err(PickleProblem::Opcode(other)),
        }
    }

    fn take(&mut self, count: usize) -> Outcome<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..count).ok_or(PickleProblem::Truncated)?;
        self.at += count;
        Ok(taken)
    }

    fn take_u32(&mut self, width: usize) -> Outcome<u32> {
        let raw = self.take(width)?;
        Ok(raw.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte)))
    }

    fn push(&mut self, node: Node) -> Outcome<()> {
        // Each opcode makes at most one node and the pickle is shorter than u32::MAX bytes.
        let id = self.nodes.len() as Id;
        self.nodes.push(node);
        self.stack.push(id);
        Ok(())
    }

    fn pop(&mut self) -> Outcome<Id> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(PickleProblem::Type { expected: "a value on the stack" });
        }
        self.stack.pop().ok_or(PickleProblem::Type { expected: "a value on the stack" })
    }

    fn top(&self) -> Outcome<Id> {
        let floor = self.marks.last().copied().unwrap_or(0);
        self.stack
            .get(floor..)
            .and_then(<[Id]>::last)
            .copied()
            .ok_or(PickleProblem::Type { expected: "a value on the stack" })
    }

    fn pop_to_mark(&mut self) -> Outcome<Vec<Id>> {
        let height = self.marks.pop().ok_or(PickleProblem::Type { expected: "an open mark" })?;
        Ok(self.stack.split_off(height))
    }

    fn node(&self, id: Id) -> &Node {
        &self.nodes[id as usize]
    }

    fn int(&mut self, width: usize) -> Outcome<()> {
        let raw = self.take_u32(width)?;
        // Only the four-byte form is signed.
        let value = if width == 4 { i64::from(raw as i32) } else { i64::from(raw) };
        self.push(Node::Int(value))
    }

    fn long(&mut self) -> Outcome<()> {
        let width = usize::from(self.take(1)?[0]);
        let raw = self.take(width)?;
        if width > 8 {
            return Err(PickleProblem::Number);
        }
        let negative = raw.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut wide = if negative { [0xff; 8] } else { [0; 8] };
        wide[..width].copy_from_slice(raw);
        self.push(Node::Int(i64::from_le_bytes(wide)))
    }

    fn text(&mut self) -> Outcome<()> {
        let len = self.take_u32(4)? as usize;
        let start = self.at;
        let raw = self.take(len)?;
        std::str::from_utf8(raw).map_err(|_| PickleProblem::Text)?;
        self.push(Node::Text(start..start + len))
    }

    fn str_at(&self, range: &Range<usize>) -> &'a str {
        std::str::from_utf8(&self.bytes[range.clone()]).expect("texts are checked when they are read")
    }

    fn small_tuple(&mut self, count: usize) -> Outcome<()> {
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(self.pop()?);
        }
        items.reverse();
        self.push(Node::Tuple(items))
    }

    /// Lists carry nothing that is read later, so their items are dropped.
    fn append(&mut self, opcode: u8) -> Outcome<()> {
        if opcode == b'a' {
            self.pop()?;
        } else {
            self.pop_to_mark()?;
        }
        match self.node(self.top()?) {
            Node::List => Ok(()),
            _ => Err(PickleProblem::Type { expected: "a list to append to" }),
        }
    }

    fn set_items(&mut self, opcode: u8) -> Outcome<()> {
        let items = if opcode == b'u' {
            self.pop_to_mark()?
        } else {
            let value = self.pop()?;
            vec![self.pop()?, value]
        };
        if items.len() % 2 != 0 {
            return Err(PickleProblem::Type { expected: "pairs of key and value" });
        }
        let target = self.top()? as usize;
        let Node::Dict(entries) = &mut self.nodes[target] else {
            return Err(PickleProblem::Type { expected: "a dict to fill" });
        };
        entries.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        Ok(())
    }

    fn line(&mut self) -> Outcome<&'a str> {
        let rest = &self.bytes[self.at..];
        let window = &rest[..rest.len().min(MAX_GLOBAL_BYTES)];
        let Some(len) = window.iter().position(|&byte| byte == b'\n') else {
            let too_long = rest.len() > MAX_GLOBAL_BYTES;
            return Err(if too_long {
                PickleProblem::Type { expected: "a short name" }
            } else {
                PickleProblem::Truncated
            });
        };
        self.at += len + 1;
        std::str::from_utf8(&window[..len]).map_err(|_| PickleProblem::Text)
    }

    fn global(&mut self) -> Outcome<()> {
        let module = self.line()?;
        let name = self.line()?;
        let global = match (module, name) {
            ("collections", "OrderedDict") => Global::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2") => Global::RebuildTensor,
            ("torch._utils", "_rebuild_parameter") => Global::RebuildParameter,
            ("torch", class) => match storage_dtype(class) {
                Some(dtype) => Global::Storage(dtype),
                None => return Err(PickleProblem::Global(format!("{module}.{name}"))),
            },
            _ => return Err(PickleProblem::Global(format!("{module}.{name}"))),
        };
        self.push(Node::Global(global))
    }

    fn memo_put(&mut self, opcode: u8) -> Outcome<()> {
        let slot = self.take_u32(if opcode == b'q' { 1 } else { 4 })?;
        let top = self.top()?;
        self.memo.insert(slot, top);
        Ok(())
    }

    fn memo_get(&mut self, opcode: u8) -> Outcome<()> {
        let slot = self.take_u32(if opcode == b'h' { 1 } else { 4 })?;
        let id = *self.memo.get(&slot).ok_or(PickleProblem::Memo(slot))?;
        self.stack.push(id);
        Ok(())
    }

    /// `("storage", torch.XStorage, key, location, numel)` becomes a storage.
    fn persistent(&mut self) -> Outcome<()> {
        let wrong = PickleProblem::Type { expected: "a storage of five parts" };
        let id = self.pop()?;
        let Node::Tuple(parts) = self.node(id) else { return Err(wrong) };
        let &[kind, class, key, _location, numel] = parts.as_slice() else { return Err(wrong) };
        let (Node::Text(kind), Node::Global(Global::Storage(dtype)), Node::Text(key), Node::Int(numel)) =
            (self.node(kind), self.node(class), self.node(key), self.node(numel))
        else {
            return Err(wrong);
        };
        if self.str_at(kind) != "storage" || key.len() > MAX_KEY_BYTES {
            return Err(wrong);
        }
        let numel = u64::try_from(*numel).map_err(|_| PickleProblem::Number)?;
        let storage = Node::Storage { key: key.clone(), dtype: *dtype, numel };
        self.push(storage)
    }

    fn reduce(&mut self) -> Outcome<()> {
        let args = self.pop()?;
        let callable = self.pop()?;
        let Node::Tuple(args) = self.node(args) else {
            return Err(PickleProblem::Type { expected: "a tuple of arguments" });
        };
        match self.node(callable) {
            Node::Global(Global::OrderedDict) if args.is_empty() => self.push(Node::Dict(Vec::new())),
            Node::Global(Global::RebuildTensor) => {
                let tensor = self.rebuild_tensor(args)?;
                self.push(tensor)
            }
            Node::Global(Global::RebuildParameter) => match args.first() {
                Some(&tensor) if matches!(self.node(tensor), Node::Tensor(_)) => {
                    self.stack.push(tensor);
                    Ok(())
                }
                _ => Err(PickleProblem::Type { expected: "a parameter made of a tensor" }),
            },
            _ => Err(PickleProblem::Type { expected: "a call that builds a tensor or an empty dict" }),
        }
    }

    /// Arguments: storage, storage offset, size, stride, requires_grad, hooks and, rarely, metadata.
    fn rebuild_tensor(&self, args: &[Id]) -> Outcome<Node> {
        let wrong = PickleProblem::Type { expected: "a tensor of storage, offset, size and stride" };
        let (&[storage, offset, size, strides], 6..=7) = (args.get(..4).unwrap_or(&[]), args.len()) else {
            return Err(wrong);
        };
        let (Node::Storage { .. }, Node::Int(offset)) = (self.node(storage), self.node(offset)) else {
            return Err(wrong);
        };
        let offset = u64::try_from(*offset).map_err(|_| PickleProblem::Number)?;
        let (shape, strides) = (self.sizes(size)?, self.sizes(strides)?);
        if shape.len() != strides.len() {
            return Err(wrong);
        }
        Ok(Node::Tensor(Box::new(Tensor { storage, offset, shape, strides })))
    }

    fn sizes(&self, id: Id) -> Outcome<Vec<usize>> {
        let Node::Tuple(items) = self.node(id) else {
            return Err(PickleProblem::Type { expected: "a tuple of sizes" });
        };
        if items.len() > MAX_DIMS {
            return Err(PickleProblem::Number);
        }
        items
            .iter()
            .map(|&item| match self.node(item) {
                Node::Int(value) => usize::try_from(*value).map_err(|_| PickleProblem::Number),
                _ => Err(PickleProblem::Type { expected: "a whole number" }),
            })
            .collect()
    }

    /// `torch.save` attaches `_metadata` (module versions) to the dict; it is of no use here.
    fn build(&mut self) -> Outcome<()> {
        let state = self.pop()?;
        match (self.node(self.top()?), self.node(state)) {
            (Node::Dict(_), Node::Dict(_)) => Ok(()),
            _ => Err(PickleProblem::Type { expected: "attributes of a dict" }),
        }
    }

    /// The tensors of a table.
    pub(super) fn tensors(&self, top: Id) -> Outcome<Vec<TensorRecord>> {
        let Node::Dict(entries) = self.node(top) else {
            return Err(PickleProblem::Type { expected: "a table of tensors as the only object" });
        };
        let mut records = Vec::new();
        let mut seen = HashSet::new();
        for &(key, value) in entries {
            let (Node::Text(name), Node::Tensor(tensor)) = (self.node(key), self.node(value)) else {
                continue;
            };
            let name = self.str_at(name);
            if !seen.insert(name) {
                return Err(PickleProblem::Duplicate(name.to_owned()));
            }
            let Node::Storage { key, dtype, numel } = self.node(tensor.storage) else {
                unreachable!("a tensor is built only on a storage");
            };
            records.push(TensorRecord {
                name: name.to_owned(),
                storage: StorageRef { key: self.str_at(key).to_owned(), dtype: *dtype, numel: *numel },
                offset: tensor.offset,
                shape: tensor.shape.clone(),
                strides: tensor.strides.clone(),
            });
        }
        if records.is_empty() { Err(PickleProblem::NoTensors) } else { Ok(records) }
    }
}

fn storage_dtype(class: &str) -> Option<StoredDtype> {
    Some(match class {
        "FloatStorage" => StoredDtype::F32,
        "HalfStorage" => StoredDtype::F16,
        "BFloat16Storage" => StoredDtype::Bf16,
        "DoubleStorage" => StoredDtype::F64,
        "LongStorage" => StoredDtype::Other("i64", 8),
        "IntStorage" => StoredDtype::Other("i32", 4),
        "ShortStorage" => StoredDtype::Other("i16", 2),
        "CharStorage" => StoredDtype::Other("i8", 1),
        "ByteStorage" => StoredDtype::Other("u8", 1),
        "BoolStorage" => StoredDtype::Other("bool", 1),
        _ => return None,
    })
}
