"""tracker=tensorboard, an event file in the run's folder, written without torch and TensorFlow."""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

from launcher.trackers.base import NOT_ENDED, Line, Names, Tracker, numbers

FILE = "events.out.tfevents.0000000000.launcher"


class TensorBoardTracker(Tracker):
    """One event file for the whole run.

    `open` truncates it to the part that is known to be complete. Otherwise it only grows, so a
    reader never sees a step twice. The HPARAMS tab has the keys that the command line set.

    Args:
        namespace_separator: text between the parts of a metric's name.
    """

    library = "tensorboard"
    extra = "tensorboard"

    def __init__(self, namespace_separator: str = "/"):
        self.namespace_separator = namespace_separator
        self._file: Any = None

    @property
    def path(self) -> Path:
        return self.run.folder.path / "tensorboard" / FILE

    def open(self) -> int:
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self._file is not None:
            self._file.close()
        self.path.parent.mkdir(exist_ok=True)
        self._file = open(self.path, "ab")  # noqa: SIM115 - stays open
        self._position: dict[str, Any] = {"step": -1, "size": 0, "closed": None, "names": {}}
        stored = self.run.stored("tensorboard")
        # The position of a shorter file belongs to another one.
        if os.fstat(self._file.fileno()).st_size >= stored.get("size", 0):
            self._position |= stored
        self._tag = Names(self._separate, self._position["names"])
        self._file.truncate(self._position["size"])
        self._file.seek(0, os.SEEK_END)
        self._writer = RecordWriter(self._file)
        if not self._position["size"]:
            self._put(wall_time=0.0, file_version="brain.Event:2")
            self._start_session()
            self._commit(-1)
        return int(self._position["step"])

    def write(self, lines: list[Line]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        for line in lines:
            values = [
                Summary.Value(tag=self._tag(key), simple_value=value)
                for key, value in numbers(line).items()
            ] + [
                Summary.Value(tag=self._tag(item["key"]), **self._media(item))
                for item in line.get("media", ())
            ]
            self._put(wall_time=line["time"], step=line["step"], summary=Summary(value=values))
        if lines:
            self._commit(lines[-1]["step"])

    def _media(self, item: Line) -> dict[str, Any]:
        """Return the fields of an image, a histogram or a text."""
        from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text.metadata import create_summary_metadata

        if item["kind"] == "histogram":
            return {"histo": HistogramProto(**_statistics(item["counts"], item["edges"]))}
        if item["kind"] == "text":
            tensor = TensorProto(dtype=DT_STRING, string_val=[item["text"].encode()])
            metadata = create_summary_metadata(display_name="", description="")
            return {"metadata": metadata, "tensor": tensor}
        from PIL import Image

        path = self.run.folder.path / item["path"]
        with Image.open(path) as image:
            width, height = image.size
        content = {"encoded_image_string": path.read_bytes(), "colorspace": 3}
        return {"image": Summary.Image(width=width, height=height, **content)}

    def close(self, state: str) -> None:
        if state not in (*NOT_ENDED, self._position["closed"]):
            self._end_session(state)
            self._commit(self._position["step"], closed=state)
        self._file.close()
        self._file = None

    def _separate(self, key: str) -> str:
        return key.replace("/", self.namespace_separator)

    def _put(self, **fields: object) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.write(Event(**fields).SerializeToString())

    def _commit(self, step: int, closed: str | None = None) -> None:
        """Make the written part durable and valid."""
        self._writer.flush()
        os.fsync(self._file.fileno())
        self._position |= {"step": step, "size": self._file.tell(), "closed": closed}
        self.run.store("tensorboard", **self._position)

    def _start_session(self) -> None:
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        info = plugin_data_pb2.SessionStartInfo(group_name=self.run.label)
        for key, value in self.run.swept.items():
            if isinstance(value, bool):
                info.hparams[key].bool_value = value
            elif isinstance(value, int | float):
                info.hparams[key].number_value = value
            else:
                info.hparams[key].string_value = str(value)
        self._put_session(metadata.SESSION_START_INFO_TAG, session_start_info=info)

    def _end_session(self, state: str) -> None:
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        status = api_pb2.STATUS_SUCCESS if state == "completed" else api_pb2.STATUS_FAILURE
        info = plugin_data_pb2.SessionEndInfo(status=status)
        self._put_session(metadata.SESSION_END_INFO_TAG, session_end_info=info)

    def _put_session(self, tag: str, **fields: object) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        data = plugin_data_pb2.HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **fields)
        described = metadata.create_summary_metadata(data)
        self._put(
            summary=Summary(
                value=[Summary.Value(tag=tag, metadata=described, tensor=metadata.NULL_TENSOR)]
            )
        )


def _statistics(counts: list[float], edges: list[float]) -> dict[str, object]:
    """Return the fields of a histogram's protocol buffer, summed by the buckets' middles."""
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    pairs = list(zip(counts, middles, strict=True))
    return {
        "min": edges[0],
        "max": edges[-1],
        "num": sum(counts),
        "sum": sum(count * middle for count, middle in pairs),
        "sum_squares": sum(count * middle**2 for count, middle in pairs),
        "bucket_limit": edges[1:],
        "bucket": counts,
    }
