"""`job.tasks`: a task file of lm-eval, for a small llama of Hugging Face; nothing is downloaded."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.checkpoint.stored import StoredCheckpoint
from launcher.train.build import build_model
from support.composition import composed
from support.runner import ENVIRONMENT, launch, run_folder
from support.tokenizer import SIZE, write_tokenizer

pytestmark = pytest.mark.skipif(
    find_spec("lm_eval") is None, reason="needs lm_eval; torch-launcher[lm-eval] has it"
)

COLORS = {"grass": "green", "snow": "white", "coal": "black", "sky": "blue"}
TASK = """\
task: colors
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/questions.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


def test_a_task_file_is_evaluated_and_wrong_ones_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setitem(ENVIRONMENT, "HF_HUB_OFFLINE", "1")
    write_tokenizer(tmp_path / "tokenizer")
    texts = [{"text": f"The color of {name} is {color}."} for name, color in COLORS.items()]
    questions = [
        {"question": f"The color of {name} is", "choices": [*COLORS.values()], "answer": answer}
        for answer, name in enumerate(COLORS)
    ]
    for name, records in (("texts", texts * 4), ("questions", questions)):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    (tmp_path / "colors.yaml").write_text(TASK.replace("FOLDER", str(tmp_path)))
    (tmp_path / "empty.yaml").write_text("a: 1\n")
    run = (
        *("model=huggingface", "model.config.model_type=llama", "model.config.n_layer=1"),
        *("model.config.n_embd=16", "model.config.n_head=2", "+model.config.intermediate_size=32"),
        *("data=jsonl", f"data.files={tmp_path}/texts.jsonl", "data.pack=false", "device=cpu"),
        *(f"data.tokenizer={tmp_path}/tokenizer", f"data.vocab_size={SIZE}", "data.seq_len=24"),
        *(
            "data.batch_size=4",
            "trainer.max_steps=3",
            "data.val_fraction=0",
            "hooks.evaluation=null",
        ),
    )
    outputs = tmp_path / "outputs"
    trained = launch(outputs, *run, "hooks.checkpointing.best_metric=null")
    assert trained.returncode == 0, trained.output
    task = f"job.tasks=[{tmp_path}/colors.yaml]"
    done = launch(outputs, *run, "job=evaluate", task)
    assert done.returncode == 0, done.output
    folder = run_folder(outputs)
    (line,) = map(json.loads, (folder / "evaluations.jsonl").read_text().splitlines())
    assert line["step"] == 3 and line["tasks/colors/acc"] == accuracy(folder, run, questions)
    for words, message in (
        (["job.tasks=[nothing.yaml]"], "job.tasks=[nothing.yaml]: there is no such file."),
        ([f"job.tasks=[{tmp_path}/empty.yaml]"], "empty.yaml]: has no task of lm-eval"),
        ([task, "job.task_options={few: 1}"], "job.task_options.few: is not an option of"),
        ([task, "dispatch.nproc=2", "strategy=ddp"], "lm-eval runs on one rank here, not 2;"),
    ):
        rejected = launch(outputs, *run, "job=evaluate", *words)
        assert rejected.returncode == 2 and message in rejected.output, rejected.output


def accuracy(folder: Path, run: tuple[str, ...], questions: list[dict[str, Any]]) -> float:
    """The share of questions whose answer has the greatest probability."""
    from transformers import AutoTokenizer

    model: Any = build_model(composed(run).model)
    stored = StoredCheckpoint(folder / "checkpoints" / "latest")
    names = list(model.state_dict())
    model.load_state_dict({name: stored.read(f"model/{name}") for name in names})
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(folder.parents[2] / "tokenizer")
    right = 0
    for question in questions:
        scores = []
        for choice in question["choices"]:
            start = tokenizer(question["question"])["input_ids"]
            ids = torch.tensor([tokenizer(f"{question['question']} {choice}")["input_ids"]])
            with torch.no_grad():
                logits = model.logits(ids[:, :-1]).log_softmax(-1)[0]
            chosen = logits.gather(1, ids[0, 1:, None])[len(start) - 1 :]
            scores.append(float(chosen.sum()))
        right += scores.index(max(scores)) == question["answer"]
    return right / len(questions)
