"""Rules of style that `make lint` checks."""

import pytest
from docs.check_style import problems, problems_in

HIDDEN = "try: f()\nexcept Exception: x = None"
DENSE = {
    "a = b = 1": "a chained assignment",
    "self.a = other.b = c": "a chained assignment",
    "a, b, c = 1, 2, 3": "a tuple assignment",
    "self.a, self.b, self.c = a, b, c": "a tuple assignment",
    "f() if a else g()": "a conditional expression as a statement",
    "a and f()": "a conditional expression as a statement",
    "x = 1 if a else 2 if b else 3": "a conditional expression in another",
    "for x in xs if a else (): f(x)": "a loop over nothing",
    "y = [x for x in ([] if a else xs)]": "a loop over nothing",
    "x = names[a in b]": "a bool as an index",
    "x = names[not a]": "a bool as an index",
    "x = ('keep', 'delete')[a > b]": "a bool as an index",
    "x = 's'[: n != 1]": "a bool as an index",
    "x = names[is_first:]": "a bool as an index",
    "x = 'text' * (n > 1)": "a bool as a factor",
    "x = ['damaged'] * file.is_damaged": "a bool as a factor",
    "x = (a is None) * b": "a bool as a factor",
    "x = f'{f(f\"{a}\")}'": "an f-string in an f-string",
    HIDDEN: "a broad except that hides the error",
    HIDDEN.replace("Exception", "BaseException"): "a broad except that hides the error",
    HIDDEN.replace(" Exception", ""): "a broad except that hides the error",
    HIDDEN.replace("Exception", "Exception as error"): "a broad except that hides the error",
    "with suppress(Exception): f()": "a broad suppress",
    "# It may be missing.\nf()": "a comment begins with 'It'",
    "# That is why.\nf()": "a comment begins with 'That'",
}
CLEAR = (
    "a, b = 1, 2",
    "a, b, c = values",
    "a, b, c = (f(x) for x in values)",
    "x = 1 if a else 2",
    "for x in xs if a else ys: f(x)",
    "x = tensor[other > 0]",
    "x = tensor * (other > 0)",
    "x = tensor * is_spike",
    "x = names[1 if a in b else 0]",
    "x = names[n : n + 1]",
    "x = f'{a:{width}}'",
    HIDDEN.replace("Exception", "ValueError"),
    HIDDEN.replace("x = None", "raise"),
    HIDDEN.replace("x = None", "logger.debug('f', exc_info=True)"),
    HIDDEN.replace("Exception: x = None", "Exception as error: x = error"),
    "with suppress(OSError): f()",
    "# The file may be missing.\n# It is then made.\nf()",
    "f()  # It is made.",
    "# Items are sorted.\nf()",
)


@pytest.mark.parametrize(("code", "problem"), DENSE.items())
def test_a_dense_form_is_found(code, problem):
    (found,) = problems_in(code + "\n")
    assert found[1].startswith(problem)


@pytest.mark.parametrize("code", CLEAR)
def test_a_clear_form_passes(code):
    assert not list(problems_in(code + "\n"))


def test_the_code_has_no_dense_form():
    assert not list(problems())
