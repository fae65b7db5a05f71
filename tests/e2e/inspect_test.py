"""deepinfer inspect: what it reports of the bundled model, and what it says about folders that are no good."""
import hashlib
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "build/release/src/app/deepinfer"
TINY = pathlib.Path("models/tiny").resolve()


def inspect(*args):
    return subprocess.run([PROGRAM, "inspect", *map(str, args)], capture_output=True, text=True, timeout=240)


class InspectTest(unittest.TestCase):
    def setUp(self):
        self.temp = tempfile.TemporaryDirectory()
        self.dir = pathlib.Path(self.temp.name)
        for f in TINY.iterdir():
            (self.dir / f.name).symlink_to(f)

    def tearDown(self):
        self.temp.cleanup()

    def replace(self, name, content):
        (self.dir / name).unlink()
        (self.dir / name).write_bytes(content)

    def refused(self, says, directory=None):
        r = inspect(directory or self.dir)
        self.assertEqual(r.returncode, 2, r.stderr)
        self.assertEqual(r.stdout, "")
        self.assertTrue(r.stderr.startswith("deepinfer: "), r.stderr)
        self.assertIn(says, r.stderr)
        self.assertEqual(r.stderr.count("\n"), 1)

    def test_bundled_model_as_json(self):
        r = inspect("--json", TINY)
        self.assertEqual(r.returncode, 0, r.stderr)
        report = json.loads(r.stdout)
        self.assertEqual([l["role"] for l in report["layers"]],
                         ["window", "full", "reuse", "full", "full", "reuse", "reindex", "reuse"])
        self.assertEqual(report["kv_bytes_per_token"], 140)
        self.assertEqual(sum(g["bytes"] for g in report["groups"]), report["bytes"])
        for g in report["groups"]:
            self.assertEqual(sum(g["placement"].values()), g["bytes"])
        self.assertEqual(report["warnings"], [])
        self.assertEqual(len(report["digest"]), 64)
        self.assertEqual(json.loads(inspect(TINY, "--json").stdout)["digest"], report["digest"])

    def test_full_digest_gives_the_sums_of_the_files(self):
        report = json.loads(inspect("--json", "--digest", "full", TINY).stdout)
        for f in report["files"]:
            self.assertEqual(f["sha256"], hashlib.sha256((TINY / f["name"]).read_bytes()).hexdigest())

    def test_text(self):
        out = inspect(TINY).stdout
        for line in ("Layer schedule", "routed experts", "Engram tables", "This machine", "Digest"):
            self.assertIn(line, out)

    def test_placement_can_be_overridden(self):
        report = json.loads(
            inspect("--json", "--gpu-gb", "0.01", "--ram-gb", "0.012", "--place", "engram_tables=ssd", TINY).stdout)
        where = {g["group"]: g["placement"] for g in report["groups"]}
        self.assertEqual(where["attention"]["ram_bytes"], 0)
        self.assertEqual(where["engram_tables"]["ssd_bytes"], sum(where["engram_tables"].values()))
        self.assertLessEqual(sum(p["gpu_bytes"] for p in where.values()), 10_000_000)
        r = inspect("--place", "experts=gpu", TINY)
        self.assertEqual(r.returncode, 2)
        self.assertIn("routed_experts", r.stderr)

    def test_expected_speed(self):
        report = json.loads(inspect("--json", "--predict", "--ram", "22MB", TINY).stdout)["forecast"]
        self.assertEqual(report["experts"], 152)
        self.assertLess(report["expert_slots"], 60)
        self.assertAlmostEqual(report["expert_hit_rate"], report["expert_slots"] / 152)
        self.assertGreater(report["decode_tokens_per_s"], 0)
        self.assertGreater(report["measured_ssd_bytes_per_s"], 0)
        whole = json.loads(inspect("--json", "--predict", "--ram", "1GiB", TINY).stdout)["forecast"]
        self.assertEqual(whole["ssd_bytes_per_token"], 0)
        self.assertIn("tokens/s", inspect("--predict", "--ram", "22MB", TINY).stdout)
        planned = json.loads(inspect("--json", "--ram", "22MB", TINY).stdout)
        self.assertEqual(planned["machine"]["ram_budget_bytes"], 22_000_000)
        self.assertGreater(sum(group["placement"]["ssd_bytes"] for group in planned["groups"]), 0)
        for ram, says in (("1MB", "too few"), ("lots", "no size")):
            r = inspect("--predict", "--ram", ram, TINY)
            self.assertEqual(r.returncode, 2)
            self.assertIn(says, r.stderr)

    def test_warnings_cannot_steer_the_terminal(self):
        config = json.loads((TINY / "config.json").read_text())
        config["\x1b]0;title\x07"] = 1
        self.replace("config.json", json.dumps(config).encode())
        r = inspect(self.dir)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("]0;title", r.stdout)
        self.assertNotRegex(r.stdout, "[\x1b\x07]")

    def test_missing_folder(self):
        self.refused("there is no folder", self.dir / "none")

    def test_folder_without_config(self):
        (self.dir / "config.json").unlink()
        self.refused("holds no config.json")

    def test_other_architectures(self):
        config = json.loads((TINY / "config.json").read_text())
        for model_type, architecture in (("deepseek_v4", "DeepseekV4ForCausalLM"),
                                         ("deepseek_v3", "DeepseekV3ForCausalLM"), ("llama", "LlamaForCausalLM")):
            self.replace("config.json",
                         json.dumps({**config, "model_type": model_type, "architectures": [architecture]}).encode())
            self.refused(architecture)
            self.refused("DeepInfer runs DeepSeek-V4.1-Flash")

    def test_file_cut_in_half(self):
        name = "model-00001-of-00002.safetensors"
        data = (TINY / name).read_bytes()
        self.replace(name, data[:len(data) // 2])
        self.refused("the file is cut")

    def test_missing_shard(self):
        (self.dir / "model-00002-of-00002.safetensors").unlink()
        self.refused("1 of 2 shards missing")

    def test_header_of_two_to_the_63(self):
        name = "model-00002-of-00002.safetensors"
        self.replace(name, struct.pack("<Q", 1 << 63) + (TINY / name).read_bytes()[8:])
        self.refused("9223372036854775808")

    def test_wrong_shape(self):
        config = json.loads((TINY / "config.json").read_text())
        config["text_config"]["q_lora_rank"] = 96
        self.replace("config.json", json.dumps(config).encode())
        self.refused("layers.0.attn.wq_a.weight is F8_E4M3 [64, 256] instead of F8_E4M3 [96, 256]")

    def test_unknown_key_is_a_warning(self):
        config = json.loads((TINY / "config.json").read_text())
        self.replace("config.json", json.dumps({**config, "flavour": 1}).encode())
        self.assertIn("unknown key \"flavour\"", inspect(self.dir).stdout)


if __name__ == "__main__":
    unittest.main()
