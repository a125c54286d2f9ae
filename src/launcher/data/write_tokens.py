"""Write token files for `data=tokens`.

    python -m launcher.data.write_tokens OUT FILE... [--tokenizer FOLDER] [--val-fraction 0.05]
        [--end TEXT]

OUT/train.npy and OUT/val.npy are rows of uint16 (uint32 for more than 65536 different tokens). They
are written in chunks, so that neither the whole text nor all tokens are ever in memory.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from launcher.data.encoding import no_tokenizer
from launcher.data.file_patterns import find_files, hold_out
from launcher.errors import REJECTED, ConfigError, needing
from launcher.process.argument_parser import Parser, path_argument
from launcher.process.files import expand, replacing

# Bytes of text that are read at a time.
CHUNK = 2**22

FileRange = tuple[Path, int, int]
"""A file from one byte up to another."""
Encode = Callable[[FileRange], Iterator[np.ndarray]]
"""Maps a part of a file to arrays of its token ids."""


class TokenWriter:
    """Appends tokens to a .npy file, whose header gets the final length at the end.

    numpy pads the header so that a growing length fits in it (`GROWTH_AXIS_MAX_DIGITS`).
    """

    def __init__(self, path: Path, dtype: type[np.unsignedinteger[Any]]):
        self.path = path
        self.dtype = np.dtype(dtype)
        self.count = 0

    def __enter__(self) -> "TokenWriter":
        self._file = open(self.path, "wb")
        self._write_header()
        return self

    def append(self, tokens: np.ndarray) -> None:
        self._file.write(tokens.astype(self.dtype, copy=False).tobytes())
        self.count += len(tokens)

    def __exit__(self, *exception: object) -> None:
        end = self._file.tell()
        self._file.seek(0)
        self._write_header()
        assert end - self._file.tell() == self.count * self.dtype.itemsize
        self._file.close()

    def _write_header(self) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": (self.count,),
        }
        np.lib.format.write_array_header_1_0(self._file, header)


def encode_bytes(part: FileRange) -> Iterator[np.ndarray]:
    for chunk in chunks(part):
        yield np.frombuffer(chunk, dtype=np.uint8)


def tokenizer_encoder(folder: Path, end: str | None) -> tuple[Encode, int]:
    """Return an encoder by the folder's tokenizer.json, and the size of its vocabulary.

    The token `end`, such as `<|endoftext|>`, is written after each file.
    """
    with needing(
        "--tokenizer: needs the package tokenizers; pip install 'torch-launcher[huggingface]'."
    ):
        from tokenizers import Tokenizer
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise no_tokenizer(folder, "--tokenizer")
    tokenizer = Tokenizer.from_file(str(path))
    # A stored truncation or padding is meant for a model's batches.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    end_id = None if end is None else tokenizer.token_to_id(end)
    if end is not None and end_id is None:
        raise ConfigError(f"--end='{end}': is not a token of the tokenizer in {folder}.")

    def encode(part: FileRange) -> Iterator[np.ndarray]:
        for chunk in chunks(part):
            text = chunk.decode(errors="replace")
            yield np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.uint32)
        if end_id is not None:
            yield np.array([end_id], dtype=np.uint32)

    return encode, tokenizer.get_vocab_size(with_added_tokens=True)


def chunks(part: FileRange) -> Iterator[bytes]:
    """Yield the bytes in chunks of whole lines, so that no word is cut."""
    path, start, stop = part
    with open(path, "rb") as file:
        file.seek(start)
        while chunk := file.read(min(CHUNK, stop - file.tell())):
            yield chunk + file.readline(stop - file.tell())


def divide(files: list[Path], fraction: float) -> tuple[list[FileRange], list[FileRange]]:
    """Divide several files as wholes; cut a single file between two lines, the end held out."""
    if len(files) > 1 or not fraction:
        train, held_out = hold_out(files, fraction)
        return [_whole(path) for path in train], [_whole(path) for path in held_out]
    path, _, size = _whole(files[0])
    with open(path, "rb") as file:
        file.seek(int(size * (1 - fraction)))
        file.readline()
        cut = file.tell()
    if cut == size:
        raise ConfigError(
            f"--val-fraction={fraction}: no line of {path} begins in its last part; use more, or 0."
        )
    return [(path, 0, cut)], [(path, cut, size)]


def _whole(path: Path) -> FileRange:
    return path, 0, path.stat().st_size


def write(out: Path, name: str, parts: Iterable[FileRange], encode: Encode, vocab_size: int) -> int:
    """Write OUT/<name>.npy, which appears only when it is complete; return the number of tokens."""
    with (
        replacing(out / f"{name}.npy") as unfinished,
        TokenWriter(unfinished, np.uint16 if vocab_size <= 2**16 else np.uint32) as writer,
    ):
        for part in parts:
            for tokens in encode(part):
                writer.append(tokens)
    return writer.count


def parser() -> Parser:
    usage = Parser(
        prog="python -m launcher.data.write_tokens",
        description="Write OUT/train.npy and OUT/val.npy for data=tokens.",
    )
    add = usage.add_argument
    add("out", type=path_argument, metavar="OUT", help="folder to write to")
    add("files", nargs="+", metavar="FILE", help="text files: paths or globs ('corpus/**/*.txt')")
    tokenizer = "folder of a Hugging Face tokenizer (default: bytes, 256 tokens)"
    add("--tokenizer", type=path_argument, metavar="FOLDER", help=tokenizer)
    end = "with --tokenizer: token to write after each file, '<|endoftext|>'"
    add("--end", metavar="TEXT", help=end)
    share = "share of the files, or of a single file, to hold out (default: 0.05)"
    add("--val-fraction", type=float, default=0.05, metavar="X", help=share)
    return usage


def run(arguments: list[str]) -> None:
    options = parser().parse_args(arguments)
    if not 0 <= options.val_fraction < 1:
        raise ConfigError(f"--val-fraction={options.val_fraction}: should be from 0 to below 1.")
    if options.end is not None and options.tokenizer is None:
        raise ConfigError(f"--end='{options.end}': bytes have no such token; set --tokenizer too.")
    files = find_files("FILE", options.files)
    encode, vocab_size = (
        (encode_bytes, 256)
        if options.tokenizer is None
        else tokenizer_encoder(expand(options.tokenizer), options.end)
    )
    train, held_out = divide(files, options.val_fraction)
    options.out.mkdir(parents=True, exist_ok=True)
    counts = {"train": write(options.out, "train", train, encode, vocab_size)}
    if held_out:
        counts["val"] = write(options.out, "val", held_out, encode, vocab_size)
    for name, count in counts.items():
        print(f"{options.out / name}.npy: {count} tokens")
    val = f" data.val_files={options.out / 'val.npy'}" if held_out else ""
    print(
        f"python -m launcher data=tokens data.files={options.out / 'train.npy'}{val}"
        f" data.vocab_size={vocab_size}"
    )


def main() -> int:
    try:
        run(sys.argv[1:])
    except ConfigError as error:
        print(error, file=sys.stderr)
        return REJECTED
    except OSError as error:
        print(f"{error.filename or 'OUT'}: {error.strerror or error}.", file=sys.stderr)
        return REJECTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
