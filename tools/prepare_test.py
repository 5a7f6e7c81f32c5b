"""tools/prepare writes what token_file.h describes, splits without loss, and refuses what is not text."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zlib

import numpy

PREPARE = pathlib.Path(__file__).resolve().parent / "prepare"
TEXT = (PREPARE.parent.parent / "tests/data/tiny.txt").read_text()


class PrepareTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = self.folder / "out"

    def run_prepare(self, *args, ok=True):
        result = subprocess.run([sys.executable, PREPARE, *map(str, args), "--out", self.out],
                                capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode == 0, ok, result.stderr)
        return result.stderr if not ok else result.stdout

    def tokens(self, name):
        sidecar = json.loads((self.out / f"{name}.json").read_text())
        data = (self.out / f"{name}.bin").read_bytes()
        self.assertEqual(sidecar["checksum"], f"crc32:{zlib.crc32(data):08x}")
        tokens = numpy.frombuffer(data, dtype={"uint16": "<u2", "uint32": "<u4"}[sidecar["dtype"]])
        self.assertEqual(len(tokens), sidecar["count"])
        self.assertLess(tokens.max(), sidecar["vocabulary"])
        return sidecar, tokens

    def test_bytes_round_trip_and_nothing_is_lost(self):
        (self.folder / "a.txt").write_text(TEXT)
        self.run_prepare(self.folder / "a.txt")
        sidecar, train = self.tokens("train")
        _, validation = self.tokens("validation")
        self.assertEqual(sidecar["tokenizer"], "bytes")
        self.assertEqual(sidecar["vocabulary"], 256)
        self.assertEqual(bytes(train.astype("u1")) + bytes(validation.astype("u1")), TEXT.encode())
        self.assertAlmostEqual(len(validation) / len(TEXT), 0.1, delta=0.001)

    def test_folders_are_taken_in_order_and_split_per_document(self):
        for name, letter in (("b/2.txt", "b"), ("a.txt", "a"), (".hidden", "h")):
            path = self.folder / "docs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(letter * 99 + "\n")
        self.run_prepare(self.folder / "docs")
        _, train = self.tokens("train")
        _, validation = self.tokens("validation")
        self.assertEqual(bytes(train.astype("u1")), b"a" * 90 + b"b" * 90)
        self.assertEqual(bytes(validation.astype("u1")), b"a" * 9 + b"\n" + b"b" * 9 + b"\n")

    def test_tokenizer_file_with_document_end(self):
        import tokenizers
        bpe = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="?"))
        bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=["?", "<end>"],
                                                 initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
        bpe.train_from_iterator([TEXT], trainer)
        bpe.save(str(self.folder / "tokenizer.json"))
        (self.folder / "a.txt").write_text(TEXT)
        self.run_prepare(self.folder / "a.txt", "--tokenizer", self.folder / "tokenizer.json",
                         "--document-end", "<end>")
        sidecar, train = self.tokens("train")
        _, validation = self.tokens("validation")
        self.assertEqual(sidecar["vocabulary"], bpe.get_vocab_size())
        self.assertEqual(train[-1], bpe.token_to_id("<end>"))
        self.assertLess(len(train), len(TEXT) * 0.8)
        self.assertEqual(bpe.decode(list(train)[:-1]) + bpe.decode(list(validation)[:-1]), TEXT)
        error = self.run_prepare(self.folder / "a.txt", "--tokenizer", self.folder / "tokenizer.json",
                                 "--document-end", "<none>", ok=False)
        self.assertIn("<none>", error)

    def test_ids_with_gaps_are_kept_whole(self):
        import tokenizers
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "to": 1, "be": 70000}, unk_token="?"))
        words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        words.save(str(self.folder / "tokenizer.json"))
        (self.folder / "a.txt").write_text("to be " * 100)
        self.run_prepare(self.folder / "a.txt", "--tokenizer", self.folder / "tokenizer.json")
        sidecar, train = self.tokens("train")
        self.assertEqual((sidecar["vocabulary"], sidecar["dtype"]), (70001, "uint32"))
        self.assertEqual(list(train[:2]), [1, 70000])

    def test_refusals_name_the_file_and_leave_old_output_alone(self):
        (self.folder / "a.txt").write_text(TEXT)
        self.run_prepare(self.folder / "a.txt")
        before = (self.out / "train.bin").read_bytes()
        (self.folder / "binary").write_bytes(b"\x00\x01\x02")
        (self.folder / "latin").write_bytes("caf\xe9".encode("latin-1"))
        (self.folder / "empty").write_text("")
        (self.folder / "none").mkdir()
        for name in ("binary", "latin", "missing", "none"):
            self.assertIn(name, self.run_prepare(self.folder / name, ok=False))
        self.assertIn("empty", self.run_prepare(self.folder / "empty", ok=False))
        self.assertIn("validation-fraction", self.run_prepare(self.folder / "a.txt", "--validation-fraction", "1", ok=False))
        self.assertIn("tokenizer", self.run_prepare(self.folder / "a.txt", "--tokenizer", self.folder / "a.txt", ok=False))
        self.assertEqual((self.out / "train.bin").read_bytes(), before)
        self.assertEqual(sorted(p.name for p in self.out.iterdir()),
                         ["train.bin", "train.json", "validation.bin", "validation.json"])


if __name__ == "__main__":
    unittest.main()
