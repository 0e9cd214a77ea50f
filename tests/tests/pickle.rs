//! Hostile and damaged PyTorch files: always an error, never a panic, an unbounded allocation or an execution.
//! Case 46.

use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use muster_trainer::weights::pickle::{MAX_PICKLE_BYTES, PickleProblem, read_state_dict};
use muster_trainer::weights::{StoredDtype, WeightFiles, WeightsError};
use proptest::prelude::*;
use tempfile::TempDir;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

fn text(text: &str) -> Vec<u8> {
    let mut out = vec![b'X'];
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.bytes());
    out
}

fn int(value: i64) -> Vec<u8> {
    let mut out = vec![0x8a, 8];
    out.extend(value.to_le_bytes());
    out
}

fn tuple(items: &[i64]) -> Vec<u8> {
    let mut out = vec![b'('];
    out.extend(items.iter().flat_map(|&item| int(item)));
    out.push(b't');
    out
}

struct Tensor<'a> {
    name: &'a str,
    class: &'a str,
    key: &'a str,
    numel: i64,
    offset: i64,
    shape: &'a [i64],
    strides: &'a [i64],
}

const PLAIN: Tensor<'static> = Tensor {
    name: "w",
    class: "FloatStorage",
    key: "0",
    numel: 6,
    offset: 0,
    shape: &[2, 3],
    strides: &[3, 1],
};

impl Tensor<'_> {
    /// Key and value as `torch.save` writes them.
    fn pickle(&self) -> Vec<u8> {
        let mut out = text(self.name);
        out.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        out.extend(text("storage"));
        out.extend(format!("ctorch\n{}\n", self.class).bytes());
        out.extend([text(self.key), text("cpu"), int(self.numel)].concat());
        out.extend(b"tQ");
        out.extend([int(self.offset), tuple(self.shape), tuple(self.strides)].concat());
        out.extend(b"\x89ccollections\nOrderedDict\n)RtR");
        out
    }
}

fn dict(items: &[Vec<u8>]) -> Vec<u8> {
    [b"\x80\x02}(".to_vec(), items.concat(), b"u.".to_vec()].concat()
}

fn problem(pickle: &[u8]) -> PickleProblem {
    read_state_dict(pickle).unwrap_err().problem
}

struct Bin {
    dir: TempDir,
}

impl Bin {
    fn write(entries: &[(&str, &[u8])]) -> Self {
        let bin = Self { dir: TempDir::new().unwrap() };
        std::fs::write(bin.path(), archive(entries)).unwrap();
        bin
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("pytorch_model.bin")
    }

    fn open(&self) -> Result<WeightFiles, WeightsError> {
        WeightFiles::open(self.dir.path())
    }
}

fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, data) in entries {
        zip.start_file(*name, SimpleFileOptions::default().compression_method(CompressionMethod::Stored))
            .unwrap();
        zip.write_all(data).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn refused(pickle: Vec<u8>, storages: &[(&str, &[u8])]) -> String {
    let mut entries = vec![("archive/data.pkl", pickle.as_slice())];
    entries.extend(storages);
    let error = Bin::write(&entries).open().unwrap_err();
    assert!(matches!(error, WeightsError::Container { .. }), "{error}");
    error.to_string()
}

#[test]
fn a_plain_file_reads() {
    let data: Vec<u8> = (0..6).flat_map(|k| (k as f32).to_le_bytes()).collect();
    let bin = Bin::write(&[("archive/data.pkl", &dict(&[PLAIN.pickle()])), ("archive/data/0", &data)]);
    let files = bin.open().unwrap();
    let mut out = [0.0; 6];
    files.read_f32("w", &mut out).unwrap();
    assert_eq!(out, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
}

#[test]
fn nothing_but_tensors_can_be_called() {
    let call = |global: &str| {
        [b"\x80\x02c".to_vec(), global.as_bytes().to_vec(), b"(".to_vec(), text("id"), b"tR.".to_vec()]
            .concat()
    };
    for global in [
        "os\nsystem\n",
        "posix\nsystem\n",
        "builtins\neval\n",
        "__builtin__\nexec\n",
        "torch\nload\n",
        "torch.hub\nload\n",
        "collections\ndefaultdict\n",
        "torch._utils\n_rebuild_tensor\n",
        "torch\nFloatStorage.x\n",
    ] {
        let PickleProblem::Global(name) = problem(&call(global)) else { panic!("{global:?}") };
        assert_eq!(name, global.trim_end().replace('\n', "."));
    }
    // Allowed names with wrong arguments, and things that aren't functions.
    for global in [
        "torch\nFloatStorage\n",
        "collections\nOrderedDict\n",
        "torch._utils\n_rebuild_tensor_v2\n",
        "torch._utils\n_rebuild_parameter\n",
    ] {
        assert!(matches!(problem(&call(global)), PickleProblem::Type { .. }), "{global:?}");
    }
    // INST, OBJ, NEWOBJ, EXT1, STACK_GLOBAL: the other ways to make objects.
    for opcode in [b'i', b'o', 0x81, 0x82, 0x93, 0x92] {
        assert_eq!(problem(&[0x80, 2, b')', b')', opcode, b'.']), PickleProblem::Opcode(opcode));
    }
}

#[test]
fn nesting_of_any_depth_needs_no_stack() {
    // candle's reader recurses when such a value is dropped or cloned.
    for depth in [10, 100_000, 1_000_000] {
        let mut pickle = vec![0x80, 2, b')'];
        pickle.extend(vec![0x85; depth]);
        pickle.push(b'.');
        assert!(matches!(problem(&pickle), PickleProblem::Type { .. }));
        let lists = [vec![b']'; depth], vec![b'a'; depth - 1], vec![b'.']].concat();
        assert!(matches!(problem(&lists), PickleProblem::Type { .. }));
        let marks = [vec![b'('; depth], vec![b't'; depth], vec![b'.']].concat();
        assert!(matches!(problem(&marks), PickleProblem::Type { .. }));
    }
}

#[test]
fn memo_bombs_stay_linear() {
    // Each round doubles the value: t = (t, t). As a tree it would have 2^100,000 leaves.
    let mut pickle = vec![0x80, 2, b')', b'q', 0];
    for _ in 0..100_000 {
        pickle.extend([b'h', 0, 0x86, b'q', 0]);
    }
    pickle.push(b'.');
    assert!(matches!(problem(&pickle), PickleProblem::Type { .. }));
    // A dict that contains itself.
    let cycle = [b"\x80\x02}q\0".to_vec(), text("self"), b"h\0s.".to_vec()].concat();
    assert_eq!(problem(&cycle), PickleProblem::NoTensors);
    assert_eq!(problem(b"\x80\x02h\x07."), PickleProblem::Memo(7));
}

#[test]
fn sizes_are_never_believed() {
    assert_eq!(problem(b"\x80\x02X\xff\xff\xff\xffabc"), PickleProblem::Truncated);
    assert_eq!(problem(b"\x80\x02\x8a\xff"), PickleProblem::Truncated);
    assert_eq!(problem(&[vec![0x8a, 200], vec![1; 200], vec![b'.']].concat()), PickleProblem::Number);
    assert!(matches!(problem(&vec![b'N'; MAX_PICKLE_BYTES + 1]), PickleProblem::TooLarge { .. }));
    assert!(matches!(problem(&[vec![b'c'], vec![b'a'; 100_000]].concat()), PickleProblem::Type { .. }));
    for shape in [&[-1, 3][..], &[i64::MIN, 1]] {
        assert_eq!(problem(&dict(&[Tensor { shape, ..PLAIN }.pickle()])), PickleProblem::Number);
    }
    for tensor in [
        Tensor { offset: -1, ..PLAIN },
        Tensor { numel: -5, ..PLAIN },
        Tensor { shape: &[1; 9], strides: &[1; 9], ..PLAIN },
    ] {
        assert_eq!(problem(&dict(&[tensor.pickle()])), PickleProblem::Number);
    }
    let long_key = "0".repeat(1000);
    assert!(matches!(
        problem(&dict(&[Tensor { key: &long_key, ..PLAIN }.pickle()])),
        PickleProblem::Type { .. }
    ));
    assert_eq!(problem(&dict(&[PLAIN.pickle(), PLAIN.pickle()])), PickleProblem::Duplicate("w".into()));
}

#[test]
fn tensors_never_leave_their_storage() {
    let zeros = [0; 24];
    let storage: &[(&str, &[u8])] = &[("archive/data/0", &zeros)];
    for tensor in [
        Tensor { shape: &[3, 3], ..PLAIN },
        Tensor { offset: 1, ..PLAIN },
        Tensor { strides: &[4, 1], ..PLAIN },
        Tensor { strides: &[i64::MAX, 1], ..PLAIN },
        Tensor { shape: &[i64::MAX, i64::MAX], ..PLAIN },
        Tensor { shape: &[i64::MAX, i64::MAX, 0], strides: &[1, 1, 1], ..PLAIN },
        Tensor { shape: &[0, 3], offset: 7, ..PLAIN },
        Tensor { offset: i64::MAX, strides: &[i64::MAX, i64::MAX], ..PLAIN },
    ] {
        let error = refused(dict(&[tensor.pickle()]), storage);
        assert!(error.contains("leaves its storage") || error.contains("impossible shape"), "{error}");
    }
    for numel in [7, i64::MAX / 4, i64::MAX] {
        let error = refused(dict(&[Tensor { numel, ..PLAIN }.pickle()]), storage);
        assert!(error.contains("its entry holds 24 bytes"), "{error}");
    }
    let retyped = Tensor { name: "v", class: "HalfStorage", ..PLAIN };
    let error = refused(dict(&[PLAIN.pickle(), retyped.pickle()]), storage);
    assert!(error.contains("two types or sizes"), "{error}");
    // Endless repetition by stride 0 opens, because torch writes it, but can't make us allocate.
    let wide = Tensor { shape: &[1 << 40, 1], strides: &[0, 1], ..PLAIN };
    let bin = Bin::write(&[("archive/data.pkl", &dict(&[wide.pickle()])), ("archive/data/0", &zeros)]);
    let error = bin.open().unwrap().read_f32("w", &mut [0.0; 4]).unwrap_err();
    assert!(matches!(error, WeightsError::Length { .. }), "{error}");
}

#[test]
fn storage_names_are_never_paths() {
    let zeros = [0; 24];
    for key in ["../../../../etc/passwd", "/etc/passwd", "..", "0/../1", ""] {
        let error = refused(dict(&[Tensor { key, ..PLAIN }.pickle()]), &[("archive/data/0", &zeros)]);
        assert!(error.contains("which is missing"), "{error}");
    }
}

/// Offsets of `pattern` in `bytes`.
fn find(bytes: &[u8], pattern: &[u8]) -> Vec<usize> {
    bytes
        .windows(pattern.len())
        .enumerate()
        .filter(|(_, window)| *window == pattern)
        .map(|(at, _)| at)
        .collect()
}

#[test]
fn overlapping_compressed_and_repeated_entries_are_refused() {
    let pickle = dict(&[PLAIN.pickle()]);
    let entries: &[(&str, &[u8])] =
        &[("archive/data.pkl", &pickle), ("archive/data/0", &[1; 24]), ("archive/data/1", &[2; 24])];
    let bin = Bin::write(entries);
    let whole = archive(entries);
    // The directory entry of storage 1 is pointed at the bytes of storage 0.
    let heads = find(&whole, b"PK\x01\x02");
    let mut overlapping = whole.clone();
    let offset_of_0: Vec<u8> = whole[heads[1] + 42..heads[1] + 46].to_vec();
    overlapping[heads[2] + 42..heads[2] + 46].copy_from_slice(&offset_of_0);
    std::fs::write(bin.path(), &overlapping).unwrap();
    let error = bin.open().unwrap_err().to_string();
    assert!(error.contains("overlap"), "{error}");
    // An entry that claims four gigabytes.
    let mut giant = whole.clone();
    for field in [20, 24] {
        giant[heads[1] + field..heads[1] + field + 4].copy_from_slice(&0xffff_fff0_u32.to_le_bytes());
    }
    std::fs::write(bin.path(), &giant).unwrap();
    assert!(matches!(bin.open().unwrap_err(), WeightsError::Container { .. }));

    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file(
        "archive/data.pkl",
        SimpleFileOptions::default().compression_method(CompressionMethod::Deflated),
    )
    .unwrap();
    zip.write_all(&vec![b'N'; 1 << 20]).unwrap();
    std::fs::write(bin.path(), zip.finish().unwrap().into_inner()).unwrap();
    let error = bin.open().unwrap_err().to_string();
    assert!(error.contains("compressed"), "{error}");

    let two_roots = Bin::write(&[("a/data.pkl", &pickle), ("b/data.pkl", &pickle)]);
    assert!(two_roots.open().unwrap_err().to_string().contains("more than one data.pkl"));
    let none = Bin::write(&[("a/other", &[])]);
    assert!(none.open().unwrap_err().to_string().contains("no data.pkl"));
    let big_endian = Bin::write(&[("a/data.pkl", &pickle), ("a/data/0", &[0; 24]), ("a/byteorder", b"big")]);
    assert!(big_endian.open().unwrap_err().to_string().contains("little-endian"));
}

#[test]
fn every_truncation_is_an_error() {
    let pickle = dict(&[PLAIN.pickle()]);
    for len in 0..pickle.len() {
        assert!(read_state_dict(&pickle[..len]).is_err(), "{len}");
    }
    let whole = archive(&[("archive/data.pkl", &pickle), ("archive/data/0", &[0; 24])]);
    let bin = Bin::write(&[]);
    for len in 0..whole.len() {
        std::fs::write(bin.path(), &whole[..len]).unwrap();
        assert!(bin.open().is_err(), "{len}");
    }
}

/// Opens a file and reads all it offers, within bounds.
fn exercise(path: &Path) {
    let Ok(files) = WeightFiles::open_file(path) else { return };
    let infos: Vec<_> = files.tensors().cloned().collect();
    for info in infos {
        let elements: usize = info.shape.iter().product();
        if elements < 1 << 20 {
            let _ = files.read_f32(&info.name, &mut vec![0.0; elements]);
        }
        assert!(info.dtype != StoredDtype::Other("", 0));
    }
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/weights").join(name)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = read_state_dict(&bytes);
    }

    /// Only opcodes the reader knows, so that runs get far.
    #[test]
    fn random_opcodes_never_panic(ops in proptest::collection::vec((0_usize..33, any::<u8>()), 0..300)) {
        let known = b"\x80(NGKMJ\x8aX)t\x85\x86\x87]ae}suqhrjQRb\x88\x89.";
        let mut bytes = Vec::new();
        for (op, arg) in ops {
            match op {
                30 => bytes.extend(b"ctorch._utils\n_rebuild_tensor_v2\n"),
                31 => bytes.extend(b"ctorch\nHalfStorage\n"),
                32 => bytes.extend(PLAIN.pickle()),
                _ => {
                    bytes.push(known[op % known.len()]);
                    match known[op % known.len()] {
                        b'q' | b'h' => bytes.push(arg % 8),
                        b'K' => bytes.push(arg),
                        b'X' => bytes.extend([1, 0, 0, 0, b'a' + arg % 4]),
                        _ => {}
                    }
                }
            }
        }
        let _ = read_state_dict(&bytes);
    }

    #[test]
    fn mutated_torch_files_never_panic(
        which in 0_usize..2,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = fixture(["torch_views.bin", "torch_module.bin"][which]);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("pytorch_model.bin");
        std::fs::write(&path, bytes).unwrap();
        exercise(&path);
    }

    #[test]
    fn mutated_safetensors_never_panic(changes in proptest::collection::vec((0_usize..160, any::<u8>()), 1..6)) {
        let data = [0_u8; 48];
        let header = br#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"F16","shape":[12],"data_offsets":[24,48]}}"#;
        let mut bytes = [(header.len() as u64).to_le_bytes().to_vec(), header.to_vec(), data.to_vec()].concat();
        for (at, value) in changes {
            bytes[at] = value;
        }
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("model.safetensors");
        std::fs::write(&path, bytes).unwrap();
        exercise(&path);
    }
}
