"""Each test is a fresh interpreter: what has been imported cannot be taken back."""

import gc
import json
import subprocess
import sys
import textwrap

MODULES = 40
"""Loaded at most for a first step, beside those of `import torch`: raise it only for a reason."""
RUN_MODULES = 380
"""Loaded at most for a run of one step, beside those of Python, torch and numpy."""
STEPS = """
import sys
import torch
of_torch = len(sys.modules)
from launcher.train.startup import skip_dynamo_import
{call}
from launcher.models.gpt import GPT
from launcher.optim.optimizers import adamw, muon
from launcher.optim.schedulers import cosine

def train(steps, factory=adamw):
    torch.manual_seed(0)
    model = GPT(vocab_size=11, seq_len=8, dim=16, num_layers=1, num_heads=2)
    model.init_weights()
    optimizer = factory(model, lr=0.01)
    scheduler = cosine(optimizer, max_steps=steps)
    tokens = torch.arange(9)[None]
    for _ in range(steps):
        model((tokens[:, :-1], tokens[:, 1:]))[0].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
    return model, optimizer

def heavy():
    return sorted({{"torch._dynamo", "torch._inductor", "sympy"}} & set(sys.modules))
"""


def run(code, call="assert skip_dynamo_import()"):
    program = STEPS.format(call=call) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_plain_training_step_loads_no_compiler():
    show = "print(len(sys.modules) - of_torch, *heavy())"
    loaded = run(f"train(2); {show}; train(2, muon); {show}")
    assert len(loaded) == 2, loaded
    assert int(loaded[0]) <= int(loaded[1]) <= MODULES


def test_the_compiler_still_works_afterwards_and_no_number_changes():
    out = run(
        """
        assert skip_dynamo_import()  # twice does no harm
        model, optimizer = train(3)
        plain = [p.detach().clone() for p in model.parameters()]
        compiled = torch.compile(model, backend="eager")
        tokens = torch.arange(8)[None]
        compiled((tokens, tokens))[0].backward()
        optimizer.step()
        optimizer.zero_grad()
        assert heavy()

        @torch.compile(backend="eager")
        def whole_step():
            model((tokens, tokens))[0].backward()
            optimizer.step()
            optimizer.zero_grad()

        whole_step()
        again, _ = train(3)  # torch's own functions from here on
        print(all(torch.equal(a, b) for a, b in zip(plain, again.parameters(), strict=True)))
        """
    )
    assert out == ["True"]


def test_an_unknown_torch_is_left_alone():
    out = run(
        """
        print(skip_dynamo_import())
        train(1)
        print('torch._dynamo' in sys.modules)
        """,
        # what torch might do instead one day: methods and steps that are not wrapped as expected
        call="torch.optim.Optimizer.state_dict = lambda self: {'state': {}, 'param_groups': []}\n"
        "torch.optim.Optimizer.load_state_dict = lambda self, state: None",
    )
    assert out[0] == "False"


PROBE = """
import gc, json, sys
from launcher.hooks.base import BaseHook

def seen():
    collections = sum(each["collections"] for each in gc.get_stats())
    return {"threshold": gc.get_threshold(), "frozen": gc.get_freeze_count(), "collections": collections}

class Probe(BaseHook):
    def __init__(self):
        self.built = seen()

    def on_before_step(self, trainer):
        others = sys.stdlib_module_names | {"torch", "numpy"}
        modules = [name for name in sys.modules if name.partition(".")[0] not in others]
        print(json.dumps([self.built, seen(), modules]), flush=True)
"""


def test_a_run_starts_without_collecting_garbage_and_with_few_modules(tmp_path):
    (tmp_path / "probe.py").write_text(PROBE)
    words = ["model=mlp", "data=digits", "trainer.max_steps=1", "hooks=[]", "+hooks.p._target_=probe.Probe"]
    command = [sys.executable, "-m", "launcher", *words, "strategy=none", "device=cpu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    built, step, modules = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[{")))
    assert built["collections"] < 100, "they would be hundreds"
    assert built["frozen"] > 100_000, "what torch has imported"
    assert step["threshold"] == list(gc.get_threshold())
    assert len(modules) <= RUN_MODULES, sorted(modules)
