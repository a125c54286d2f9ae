"""tracker=notify: each message once, to a real webhook."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.trackers.follower import Follower
from launcher.trackers.notify import NotifyTracker
from support.composition import composed, validate
from support.tracked import WrittenRun
from support.webhook import Webhook

pytest.importorskip("apprise")


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with Webhook() as server:
        yield server


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    made = WrittenRun(tmp_path / "mlp" / "1a2b")
    made.log(0, 10)
    return made


def follow(run: WrittenRun, webhook: Webhook, patience: float = 0.0, **options: Any) -> bool:
    """Follow an ended run; returns whether all was sent."""
    tracker = NotifyTracker(webhook.url, **options)
    tracker.check("tracker.notify")
    follower = Follower(
        run.tracked(tracker), {"notify": tracker}, interval=0.01, patience=patience, hangs=20.0
    )
    return follower.follow_run()


@pytest.mark.parametrize(
    ("outcome", "title", "text"),
    [
        ("completed", "completed", "At step 100 of 100, best val/loss 0.5."),
        ("failed", "failed", "At step 10 of 100: ValueError: bad"),
        ("killed", "stale", "is gone; the same command resumes the run."),
        ("preempted", "preempted", "It was preempted 1 time, now at step 10."),
    ],
)
def test_each_end_is_one_message(
    run: WrittenRun, webhook: Webhook, outcome: str, title: str, text: str
) -> None:
    run.record.progress(10, best={"metric": "val/loss", "value": 0.5, "step": 10}, force=True)
    if outcome == "killed":
        run.lock.release()
    else:
        step = 100 if outcome == "completed" else 10
        run.end(outcome, step=step, reason="ValueError: bad" if outcome == "failed" else None)
    for _ in range(2):  # the second time as `runs sync` does
        assert follow(run, webhook)
    assert webhook.titles == [title]
    assert webhook.messages[0]["title"].startswith("mlp/1a2b: ")
    assert text in webhook.messages[0]["message"]


def test_every_second_preemption_and_each_best_value(run: WrittenRun, webhook: Webhook) -> None:
    options: dict[str, Any] = {"events": ["preempted", "best"], "every_preemptions": 2}
    for number, value in enumerate([0.5, 0.5, 0.25, 0.25], 1):
        best = {"metric": "val/loss", "value": value, "step": 10 * number}
        run.record.progress(10 * number, best=best, force=True)
        run.end("preempted", step=10 * number)
        assert follow(run, webhook, **options)
        run.begin(10 * number)
    run.end("preempted", step=50, signal="SIGINT")
    assert follow(run, webhook, **options)
    assert webhook.titles == ["new best", "preempted", "new best", "preempted"]
    assert [message["message"] for message in webhook.messages] == [
        "val/loss is 0.5 at step 10.",
        "It was preempted 2 times, now at step 20.",
        "val/loss is 0.25 at step 30.",
        "It was preempted 4 times, now at step 40.",
    ]


def test_a_service_that_is_down_is_tried_again(
    run: WrittenRun, webhook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    run.end("failed", step=10)
    webhook.status = 500
    assert not follow(run, webhook)
    webhook.status = 200
    assert follow(run, webhook) and webhook.titles == ["failed"]
    assert "hunter2" not in caplog.text


def test_urls_are_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["model=mlp", "data=digits", "tracker=[notify]"]
    with pytest.raises(ConfigError) as rejected:
        validate(composed([*words, "tracker.notify.service_url='json://me:hunter2@host'"]))
    assert "hunter2" not in str(rejected.value) and "oc.env:SERVICE_URL" in str(rejected.value)
    for url, said in ((None, "is not set; export NOTIFY_URL"), ("hunter2://x", "does not know")):
        with pytest.raises(ConfigError, match=said) as rejected:
            NotifyTracker(url).check("tracker.notify")
        assert "hunter2" not in str(rejected.value)
