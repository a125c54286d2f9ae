from importlib.util import find_spec

import pytest

from launcher.data.encoding import Encoder, Fields
from launcher.errors import ConfigError
from support.tokenizer import write_tokenizer

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")

CHAT = [
    {"role": "user", "content": "What is it?"},
    {"role": "assistant", "content": "A parser."},
    {"role": "user", "content": "Of what?"},
    {"role": "assistant", "content": "Of options."},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def encode(folder, fields, record, num_classes=None):
    encoder = Encoder(folder, fields, num_classes)
    document = encoder(record, "a.jsonl, line 3")
    text = encoder.tokenizer.decode(document.ids.tolist())
    chosen = document.ids[... if document.is_target is None else document.is_target]
    return document, text, encoder.tokenizer.decode(chosen.tolist())


def test_text_ends_with_the_end_token(folder):
    document, text, targets = encode(folder, Fields(), {"text": "an option"})
    assert text == targets == "an option</s>" and document.label is None


def test_a_prompt_is_no_target(folder):
    record = {"question": "an option? ", "text": "yes"}
    _, text, targets = encode(folder, Fields(prompt="question"), record)
    assert (text, targets) == ("an option? yes</s>", "yes</s>")


def test_the_answers_of_a_chat_are_targets(folder):
    _, text, targets = encode(folder, Fields(messages="chat"), {"chat": CHAT})
    assert text.startswith("<s>user\nWhat is it?</s>\n<s>assistant\nA parser.</s>\n<s>user")
    assert targets == "A parser.</s>\nOf options.</s>\n"


@pytest.mark.parametrize(
    ("fields", "record", "sentence"),
    [
        (Fields(), {"body": "a"}, r"^data\.text_field=text: a\.jsonl, line 3: .*it has body"),
        (Fields(), {"text": 3}, r"^data\.text_field=text: .*be of type str"),
        (Fields(prompt="q"), {"text": "a"}, r"^data\.prompt_field=q: .*line 3: has no such field"),
        (Fields(label="k"), {"text": "a", "k": "good"}, r"^data\.label_field=k: "),
        (Fields(label="k"), {"text": "a", "k": 2}, r"^data\.num_classes=2: .*has the label 2;"),
        (Fields(messages="m"), {"m": "hello"}, r"^data\.messages_field=m: .*be of type list"),
        (Fields(messages="m"), {"m": [{"role": "user"}]}, r"^data\.messages_field: .*rejects it"),
    ],
)
def test_a_bad_record_is_named(folder, fields, record, sentence):
    with pytest.raises(ConfigError, match=sentence):
        encode(folder, fields, record, num_classes=2)


def test_a_template_that_changes_earlier_turns_is_rejected(folder):
    encoder = Encoder(folder, Fields(messages="m"), None)
    encoder.tokenizer.chat_template = (
        "{{ messages | length }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    )
    with pytest.raises(ConfigError, match=r"line 1: the chat template rewrites earlier turns when"):
        encoder({"m": CHAT}, "a, line 1")


def test_a_folder_without_a_tokenizer_or_chat_template(tmp_path):
    with pytest.raises(ConfigError, match=r"^data\.tokenizer=.*: has no tokenizer; AutoTokenizer"):
        Encoder(tmp_path, Fields(), None)
    write_tokenizer(tmp_path, chat=False)
    with pytest.raises(ConfigError, match=r"^data\.messages_field=m: .* no chat template"):
        Encoder(tmp_path, Fields(messages="m"), None)
