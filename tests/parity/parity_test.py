"""The engine computes what transformers and a PyTorch loop compute, and weights survive the way out and back.

For tiny random models of each supported kind: logits, the first step's gradients and their norm before clipping, the
losses of 20 AdamW steps and the weights after them are within 1e-4 (fp32); an exported folder loads in transformers
with equal bits, and what transformers saves is read with equal bits.
"""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from tokenizers import Tokenizer, models  # noqa: E402
from transformers import (AutoModelForCausalLM, AutoTokenizer, LlamaConfig, MistralConfig,  # noqa: E402
                          PreTrainedTokenizerFast)
from transformers.utils import logging  # noqa: E402

logging.set_verbosity_error()
logging.disable_progress_bar()
torch.set_num_threads(1)

TOOL = pathlib.Path(os.environ["FEDSHARD_BIN"]) / "parity_tool"
BOUND = 1e-4
STEPS = 20
ACCUMULATION, ROWS, LENGTH = 2, 2, 40
LEARNING_RATE = 1e-3
# Above the rounding of gradients (some 1e-8 here). With 1e-8 a gradient that is nothing but rounding moves its weight by
# whole steps: a few weights in a hundred thousand then differ by up to 7e-4, both sides being as far from a run in fp64.
EPS = 1e-6

# Large initial weights, so that logits are far from uniform and attention is far from a mean.
COMMON = dict(vocab_size=128, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
              max_position_embeddings=64, initializer_range=0.15)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
CONFIGS = {
    "mha": LlamaConfig(**COMMON),
    "gqa": LlamaConfig(**{**COMMON, "num_attention_heads": 8, "num_key_value_heads": 2, "rms_norm_eps": 1e-5}),
    "tied": LlamaConfig(**COMMON, num_key_value_heads=2, tie_word_embeddings=True),
    # Wavelengths on both sides of the ramp and within it: 40 positions, 16 of them original.
    "llama3-rope": LlamaConfig(**COMMON, num_key_value_heads=2, tie_word_embeddings=True, rope_parameters=LLAMA3),
    "linear-rope": LlamaConfig(**COMMON, rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    "odd": LlamaConfig(**{**COMMON, "vocab_size": 101, "hidden_size": 42, "intermediate_size": 91, "head_dim": 10,
                          "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3}),
    "mistral": MistralConfig(**COMMON, num_key_value_heads=1, sliding_window=None, rms_norm_eps=1e-5),
}


def tool(*arguments):
    done = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise AssertionError(f"parity_tool {arguments[0]}: {done.stderr}")


def random_model(config, seed):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():  # Norm weights are ones; others show where each of them goes.
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def load(folder, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=dtype)


def logits_of(model, tokens):
    return model(input_ids=tokens, use_cache=False).logits


def backward(model, micro_batches):
    """Loss in nats per token, over all micro-batches; gradients are left in the parameters."""
    model.zero_grad()
    total = 0.0
    for tokens in micro_batches:
        logits = logits_of(model, tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / len(micro_batches)
        loss.backward()
        total += loss.item()
    return total


def reference(model, steps):
    """What parity_tool train writes, computed by transformers and torch.optim.AdamW."""
    parameters = dict(model.named_parameters())  # A tied head is in it once.
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in parameters.values() if p.dim() == 2], "weight_decay": 0.1},
         {"params": [p for p in parameters.values() if p.dim() == 1], "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=(0.9, 0.95), eps=EPS)
    with torch.no_grad():
        results = {"logits": logits_of(model, steps[0][0][:, :-1])}
    losses, norms = [], []
    for micro_batches in steps:
        losses.append(backward(model, micro_batches))
        if len(losses) == 1:
            results.update({"gradient." + name: p.grad.clone() for name, p in parameters.items()})
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0).item())
        optimizer.step()
    results["losses"], results["gradient_norms"] = torch.tensor(losses), torch.tensor(norms)
    results.update({"weight." + name: p.detach() for name, p in parameters.items()})
    return results


class Parity(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def assert_close(self, name, ours, theirs):
        self.assertEqual(ours.shape, theirs.shape, name)
        difference = (ours - theirs).abs().max().item()
        self.assertLess(difference, BOUND, name)
        return difference

    def assert_equal_bits(self, ours, theirs):
        self.assertEqual(ours.keys(), theirs.keys())
        for name, tensor in ours.items():
            self.assertTrue(torch.equal(tensor.view(torch.int32), theirs[name].view(torch.int32)), name)

    def train(self, config, **save):
        """parity_tool's results and the reference's, from the same folder."""
        random_model(config, seed=1).save_pretrained(self.folder / "model", **save)
        torch.manual_seed(2)
        tokens = torch.randint(config.vocab_size, (STEPS, ACCUMULATION, ROWS, LENGTH + 1))
        (self.folder / "tokens").write_bytes(tokens.numpy().tobytes())
        tool("train", "--model", self.folder / "model", "--tokens", self.folder / "tokens", "--rows", ROWS,
             "--length", LENGTH, "--accumulation", ACCUMULATION, "--learning-rate", LEARNING_RATE,
             "--eps", EPS, "--out", self.folder / "results", "--export", self.folder / "trained", "--max-file-bytes", 60000)
        return load_file(self.folder / "results"), reference(load(self.folder / "model"), tokens)

    def check_training(self, name, ours, theirs):
        self.assertEqual(ours.keys(), theirs.keys())
        self.assertGreater(theirs["gradient_norms"].min().item(), 1)  # Each step is clipped.
        worst = {}
        for key, tensor in theirs.items():
            kind = key.split(".")[0]
            difference = self.assert_close(key, ours[key], tensor)
            if kind == "gradient":  # Also in proportion, since gradients may be small.
                difference = difference / tensor.abs().max().item()
                self.assertLess(difference, BOUND, key)
            worst[kind] = max(worst.get(kind, 0), difference)
        print(f"{name}: " + ", ".join(f"{kind} {value:.1e}" for kind, value in worst.items()), flush=True)

    def test_training(self):
        for name, config in CONFIGS.items():
            with self.subTest(name), tempfile.TemporaryDirectory(dir=self.folder) as folder:
                outer, self.folder = self.folder, pathlib.Path(folder)
                try:
                    self.check_training(name, *self.train(config))
                    self.check_export()
                finally:
                    self.folder = outer

    def check_export(self):
        """Trained, exported in several files, loaded and saved by transformers, read again: equal bits."""
        results = load_file(self.folder / "results")
        trained = {key.removeprefix("weight."): value for key, value in results.items() if key.startswith("weight.")}
        self.assertTrue((self.folder / "trained" / "model.safetensors.index.json").exists())
        model = load(self.folder / "trained")
        self.assert_equal_bits(trained, {name: p.detach() for name, p in model.named_parameters()})
        model.save_pretrained(self.folder / "saved")
        tool("read", "--model", self.folder / "saved", "--out", self.folder / "read")
        self.assert_equal_bits(trained, load_file(self.folder / "read"))

    def test_reads_what_transformers_saves(self):
        """Each dtype, in one file and several: the values that transformers reads itself."""
        model = random_model(CONFIGS["gqa"], seed=3)
        for dtype in (torch.float16, torch.bfloat16):
            for size in ("5GB", "30KB"):
                with self.subTest(dtype=dtype, size=size):
                    folder = self.folder / f"{dtype}-{size}"
                    model.to(dtype).save_pretrained(folder, max_shard_size=size)
                    self.assertEqual((folder / "model.safetensors.index.json").exists(), size == "30KB")
                    tool("read", "--model", folder, "--out", self.folder / "read")
                    self.assert_equal_bits(load_file(self.folder / "read"),
                                           {name: p.detach() for name, p in load(folder).named_parameters()})

    def test_exports_every_dtype(self):
        """Rounded as PyTorch rounds, and loaded in the dtype that config.json says, under its older name too."""
        model = random_model(CONFIGS["tied"], seed=4)
        model.save_pretrained(self.folder / "model")
        self.check_dtypes(model, "newer")
        config = json.loads((self.folder / "model" / "config.json").read_text())
        del config["dtype"]
        (self.folder / "model" / "config.json").write_text(json.dumps(config))
        self.check_dtypes(model, "older")

    def check_dtypes(self, model, prefix):
        for name, dtype in (("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)):
            with self.subTest(name, prefix=prefix):
                out = self.folder / f"{prefix}-{name}"
                tool("export", "--model", self.folder / "model", "--export", out, "--dtype", name)
                loaded = load(out, dtype="auto")
                self.assertEqual(loaded.dtype, dtype)
                for key, parameter in model.named_parameters():
                    self.assertTrue(torch.equal(loaded.get_parameter(key), parameter.to(dtype)), key)

    def test_exports_the_tokenizer(self):
        random_model(CONFIGS["mha"], seed=5).save_pretrained(self.folder / "model")
        words = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "?": 2, "be": 3}, unk_token="?"))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="?")
        tokenizer.save_pretrained(self.folder / "tokenizer")
        tool("export", "--model", self.folder / "model", "--export", self.folder / "out",
             "--tokenizer", self.folder / "tokenizer")
        loaded = AutoTokenizer.from_pretrained(self.folder / "out")
        self.assertEqual(loaded("be").input_ids, [3])
        self.assertEqual(loaded.eos_token_id, 1)
        load(self.folder / "out").generate(**loaded("be", return_tensors="pt", return_token_type_ids=False),
                                           max_new_tokens=3)


if __name__ == "__main__":
    unittest.main()
