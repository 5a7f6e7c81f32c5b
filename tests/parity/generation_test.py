"""fedshard generate continues a prompt as transformers does, and fedshard eval finds the same loss, for model folders that
transformers saved."""
import json
import math
import os
import pathlib
import subprocess
import tempfile
import unittest
import zlib

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import torch  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedTokenizerFast  # noqa: E402
from transformers.utils import logging  # noqa: E402

logging.set_verbosity_error()
logging.disable_progress_bar()
torch.set_num_threads(1)

FEDSHARD = pathlib.Path(os.environ["FEDSHARD_BIN"]) / "fedshard"
# Large initial weights, so that the likeliest token is far ahead of the next one.
COMMON = dict(vocab_size=128, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
              max_position_embeddings=64, initializer_range=0.15, eos_token_id=None, bos_token_id=None)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
CONFIGS = {
    "gqa": LlamaConfig(**{**COMMON, "num_attention_heads": 8, "num_key_value_heads": 2}),
    "tied, llama3 scaling": LlamaConfig(**COMMON, num_key_value_heads=2, tie_word_embeddings=True,
                                        rope_parameters=LLAMA3),
    "mistral": MistralConfig(**COMMON, num_key_value_heads=1, sliding_window=None),
}


def fedshard(*arguments):
    done = subprocess.run([FEDSHARD, *map(str, arguments), "--threads", "1", "-o", "json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"fedshard {arguments[0]}: {done.stderr}")
    return json.loads(done.stdout)


def write_tokens(path, tokens, vocabulary):
    data = b"".join(token.to_bytes(2, "little") for token in tokens)
    path.with_suffix(".bin").write_bytes(data)
    path.with_suffix(".json").write_text(json.dumps(
        {"dtype": "uint16", "count": len(tokens), "vocabulary": vocabulary, "tokenizer": "words.json",
         "checksum": f"crc32:{zlib.crc32(data):08x}"}))


class GenerationTest(unittest.TestCase):
    def test_like_transformers(self):
        for seed, (name, config) in enumerate(CONFIGS.items()):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder, torch.no_grad():
                torch.manual_seed(seed)
                model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
                model.save_pretrained(f"{folder}/model")
                prompt = torch.randint(128, (1, 6))
                expected = model.generate(prompt, do_sample=False, max_new_tokens=40, pad_token_id=0)[0, 6:].tolist()
                tokens = ",".join(map(str, prompt[0].tolist()))
                for ranks in (1, 2):
                    result = fedshard("generate", f"{folder}/model", "--prompt-tokens", tokens, "--tokens", 40,
                                      "--temperature", 0, "--ranks", ranks)
                    self.assertEqual(result["samples"][0]["tokens"], expected)

                text = torch.randint(128, (5 * 32 + 1,))
                write_tokens(pathlib.Path(folder) / "text", text.tolist(), 128)
                losses = [torch.nn.functional.cross_entropy(model(text[None, i:i + 32]).logits[0], text[i + 1:i + 33])
                          for i in range(0, 160, 32)]
                result = fedshard("eval", f"{folder}/model", "--data", f"{folder}/text.bin", "--sequence-length", 32,
                                  "--ranks", 2)
                loss = sum(losses).item() / 5
                self.assertAlmostEqual(result["loss"], loss, delta=1e-5 * loss)
                self.assertAlmostEqual(result["perplexity"], math.exp(loss), delta=1e-4 * math.exp(loss))

    def test_text_with_the_folders_own_tokenizer(self):
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            torch.manual_seed(9)
            model = AutoModelForCausalLM.from_config(CONFIGS["gqa"], dtype=torch.float32).eval()
            words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(128)}, unk_token="w0"))
            words.pre_tokenizer = pre_tokenizers.Whitespace()
            tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0")
            model.save_pretrained(f"{folder}/model")
            tokenizer.save_pretrained(f"{folder}/model")
            inputs = tokenizer("w5 w77 w3", return_tensors="pt").input_ids
            output = model.generate(inputs, do_sample=False, max_new_tokens=20, pad_token_id=0)[0, 3:]
            result = fedshard("generate", f"{folder}/model", "--prompt", "w5 w77 w3", "--tokens", 20, "--temperature", 0)
            self.assertEqual(result["samples"][0]["text"], tokenizer.decode(output, skip_special_tokens=True))


if __name__ == "__main__":
    unittest.main()
