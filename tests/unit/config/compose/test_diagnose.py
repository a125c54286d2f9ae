"""Each mistake of a command line gives its own message and no message that follows from it."""

import pytest

from support.composition import mistakes

FILES = {
    "experiment/keys.yaml": "model:\n  dim: 64\n",
    "experiment/defaults.yaml": "defaults:\n  - override /model: mlp\n",
    "experiment/again.yaml": "# @package _global_\ndefaults: [/model: mlp]\n",
    "experiment/bare.yaml": "# @package _global_\ndefaults: [override model: mlp]\n",
    "experiment/text.yaml": "# @package _global_\nmodel: mlp\noptimizer.lr: 3\n",
    "hooks/flat.yaml": "_target_: launcher.hooks.memory.MemoryHook\n",
    "model/number.yaml": "3\n",
    "model/list.yaml": "[a]\n",
    "hooks/list.yaml": "[a]\n",
    "model/circle.yaml": "defaults: [circle]\n",
    "model/twice.yaml": "_target_: torch.nn.Linear\n_target_: torch.nn.ReLU\n",
}
MISTAKES = {
    "model=twice data=digits": ["model=twice: The configuration cannot be read as YAML"],
    **{
        f"{option} data=digits{more}": [f"{option}: its file should have keys, such as `_t"]
        for option, more in {
            "model=number": "",
            "model=list": "",
            "hooks=[list]": " model=mlp",
            "hooks=[default,list]": " model=mlp",
        }.items()
    },
    "model=circle data=digits": ["model=circle: its defaults lead back to itself."],
    "experiment=again": ["experiment=again: another model is chosen by `override /model: ...` in"],
    "experiment=bare": ["experiment=bare: another model is chosen by `override /model: ...` in"],
    "experiment=text": [
        "optimizer.lr=3: is one key with a dot; write optimizer: {lr: ...}.",
        "model='mlp': should be a part with a _target_, or null; `override /model: ...` in the",
    ],
    "hooks=[default,flat]": ["hooks._target_='launcher.hooks.memory.MemoryHook': its file should"],
    "model=bn optimizer.lrr=3": ["model=bn: no option bn", "optimizer.lrr=3: no key optimizer.lrr"],
    "experiment=keys": ["experiment={model:{dim:64}}: sets model below itself; its file should"],
    "experiment=defaults": ["experiment=defaults: experiment/defaults.yaml should begin with `# @"],
    "trainer.max_steps = 3": [
        f"{word}: should be KEY=" for word in ("trainer.max_steps", "=", "3")
    ],
    "data.batch_size=16, seed=1": ["data.batch_size=16,: ends with a comma"],
    "data={a: 3": ["data={a:: cannot be read", "3: should be KEY=VALUE"],
    "hpo.space={optimizer.lr:interval(1,2)}": [
        "hpo.space={optimizer.lr:interval(1,2)}: each range in it needs quotes; or set the keys"
    ],
    "model=[mlp,gpt] data=[digits]": ["model=[mlp,gpt]: a run has one model; choose one, or sweep"],
    "scheduler=off tracker=off hooks=[none] optimizer=off": [
        "scheduler=off: no option off; to remove the group, write ~scheduler.",
        "tracker=off: no option off; to remove the group, write ~tracker.",
        "hooks=[none]: no option none; to remove the group, write ~hooks.",
        "optimizer=off: no option off; optimizer has",
    ],
    "scheduler={step_size:3} model=mlp data=digits": [
        "scheduler={step_size:3}: scheduler has no key step_size; set it alone with +scheduler.st"
    ],
    "model=supervised data=parquet": [
        "data.files: needs a value; e.g. data.files=...; python -m launcher --help data=parquet",
        "data.tokenizer: needs a value; e.g. data.tokenizer=...; ",
        "model.module._target_: needs a value; e.g. model.module._target_=...; ",
    ],
    "hydra.sweeper.params=3 hydra.sweeper.max_batch_size=x": [
        "hydra.sweeper.params=3: should be a mapping of keys",
        "hydra.sweeper.max_batch_size=x: Value 'x' of type 'str' could not be converted to Int",
    ],
    # A key without a value.
    "hydra.job.num=x model=mlp data=digits": [
        "hydra.job.num=x: Value 'x' of type 'str' could not be converted to Integer."
    ],
    "model=mlp data=digits job=predict data.predict=x": [
        "data.predict=x: no key data.predict; data="
    ],
    "dispatch=slurm dispatch.runs_per_job=2 model=mlp data=digits": [
        "dispatch.runs_per_job=2: is left out; run the sweep inside one job, whose script has",
    ],
    "dispatch.mem=2 model=mlp data=digits data.target=x": [
        "dispatch.mem=2: no key dispatch.mem; dispatch=slurm has it.",
        "data.target=x: no key data.target; data=table has it.",
    ],
    "sweep.fail_fast=true": ["sweep.fail_fast=true: no key sweep; a run has job, data, "],
    "checkpointing.interval=3": [
        "checkpointing.interval=3: no key checkpointing; did you mean hooks.checkpointing.interval"
    ],
    "~seed model=mlp data=digits": [
        "seed: is missing, and a run needs it; add +seed=<a whole number"
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conf")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("command", MISTAKES)
def test_mistake_gives_its_own_message_alone(command, folder):
    messages = mistakes(command.split(), folder)
    assert len(messages) == len(MISTAKES[command]), messages
    for message, start in zip(messages, MISTAKES[command], strict=True):
        assert message.startswith(start)
