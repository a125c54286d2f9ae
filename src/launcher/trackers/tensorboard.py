"""tracker=tensorboard, an event file in the run's folder, written without torch and TensorFlow."""

import json
import os
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from launcher.config.tree import get
from launcher.process.files import replace_file
from launcher.rundir.folder import place_of
from launcher.trackers.base import NOT_ENDED, Line, Names, Tracker, numbers

FILE = "events.out.tfevents.0000000000.launcher"
POSITION = ".position.json"


class TensorBoardTracker(Tracker):
    """One event file for the whole run.

    `open` truncates it to the part that is known to be complete. Otherwise it only grows, so a
    reader never sees a step twice.

    Args:
        path: the folder of the event file, relative to the run's folder. Outside it, the folder is
            `<path>/<name>/<id>`.
        namespace_separator: text between the parts of a metric's name.
        hparams: keys of the configuration for the HPARAMS tab. Default null: the keys that the
            command line set.
    """

    library = extra = "tensorboard"

    def __init__(
        self,
        path: str = "tensorboard",
        namespace_separator: str = "/",
        hparams: list[str] | None = None,
    ):
        self.path, self.namespace_separator, self.hparams = path, namespace_separator, hparams
        self._file: Any = None

    def open(self) -> int:
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self._file is not None:
            self._file.close()
        folder = self.folder
        folder.mkdir(parents=True, exist_ok=True)
        position: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            position = json.loads((folder / POSITION).read_bytes())
        self._file = open(folder / FILE, "ab")  # noqa: SIM115 - stays open
        # The position belongs to another file.
        if os.fstat(self._file.fileno()).st_size < position.get("size", 0):
            position = {}
        self._position = {"step": -1, "size": 0, "closed": None, "names": {}} | position
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

    def _media(self, item: dict[str, Any]) -> dict[str, Any]:
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

    @property
    def folder(self) -> Path:
        return place_of(self.run.folder.path, self.path)

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
        replace_file(self.folder / POSITION, json.dumps(self._position).encode())

    def _start_session(self) -> None:
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        info = plugin_data_pb2.SessionStartInfo(group_name=self.run.label)
        for key, value in self._hparams().items():
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

    def _hparams(self) -> dict[str, object]:
        if self.hparams is None:
            return self.run.swept
        return {key: get(self.run.config, key) for key in self.hparams}


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
