"""tools/tokenize gives the ids that tools/prepare writes, turns them back into the text, and adds special tokens unless told not to."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOKENIZE = pathlib.Path(__file__).resolve().parent / "tokenize"
TEXT = (TOKENIZE.parent.parent / "tests/data/tiny.txt").read_text()


class TokenizeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import tokenizers
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.file = cls.folder / "tokenizer.json"
        cls.bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
        cls.bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        cls.bpe.decoder = tokenizers.decoders.ByteLevel()
        cls.bpe.train_from_iterator([TEXT], tokenizers.trainers.BpeTrainer(
            vocab_size=400, special_tokens=["<begin>"], show_progress=False,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
        cls.bpe.post_processor = tokenizers.processors.TemplateProcessing(
            single="<begin> $A", special_tokens=[("<begin>", cls.bpe.token_to_id("<begin>"))])
        cls.bpe.save(str(cls.file))

    def run_tokenize(self, verb, data, *more, ok=True):
        path = self.folder / "input"
        path.write_bytes(data)
        result = subprocess.run([sys.executable, TOKENIZE, verb, "--tokenizer", self.file, "--input", path, *more],
                                capture_output=True, timeout=120)
        self.assertEqual(result.returncode == 0, ok, result.stderr)
        return result.stdout if ok else result.stderr.decode()

    def test_text_comes_back(self):
        for text in (TEXT[:500], "two  blanks, ümläute, 漢字\n", " x", "line\r\nend\n\n"):
            ids = self.run_tokenize("encode", text.encode(), "--raw")
            self.assertEqual([int(i) for i in ids.split()], self.bpe.encode(text, add_special_tokens=False).ids)
            self.assertEqual(self.run_tokenize("decode", ids).decode(), text)

    def test_special_tokens_are_added_and_not_shown(self):
        begin = self.bpe.token_to_id("<begin>")
        ids = self.run_tokenize("encode", b"to be")
        self.assertEqual(int(ids.split()[0]), begin)
        self.assertEqual(self.run_tokenize("decode", ids), b"to be")

    def test_half_a_character_is_no_error(self):
        ids = self.run_tokenize("encode", "漢".encode(), "--raw").split()
        self.assertEqual(self.run_tokenize("decode", b" ".join(ids[:-1])).decode(), "\ufffd")

    def test_errors_name_what_is_wrong(self):
        self.assertIn("prompt", self.run_tokenize("encode", b"\xff", ok=False))
        self.file, kept = self.folder / "none.json", self.file
        try:
            self.assertIn("none.json", self.run_tokenize("encode", b"a", ok=False))
        finally:
            self.file = kept


if __name__ == "__main__":
    unittest.main()
