"""One tree, two ways to run it: the finder that prefers sources, and the stand-in for librt."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import _librt

PROBE = "import penstock, penstock.model.batch as b; print(penstock.compiled(), b.__file__.endswith('.py'))"
WITHOUT_LIBRT = "import sys; sys.modules['librt'] = sys.modules['librt.strings'] = None; "
ROUND_TRIP = (
    "from penstock.model.batch import *; from penstock.model.record import Record; "
    "r = [Record(3, 4, b'k', b'v', (('h', None),))]; print(decode_batch(check_batch(e := encode_batch(r)) and e) == r)"
)


def run(code: str, pure: str) -> str:
    environment = {**os.environ, "PENSTOCK_PURE": pure}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_environment_forces_the_sources() -> None:
    assert run(PROBE, pure="1") == "False True"


def test_without_it_the_best_there_is_runs() -> None:
    assert run(PROBE, pure="0") in ("True False", "False True")


def test_this_process_tells_the_truth_about_itself() -> None:
    from penstock.model import batch

    assert batch.__file__ is not None
    assert penstock.compiled() == (not batch.__file__.endswith(".py"))


def test_pure_install_needs_no_librt() -> None:
    assert run(WITHOUT_LIBRT + ROUND_TRIP, pure="1") == "True"


NUMBERS = {"i16": 16, "i32": 32, "i64": 64}


@pytest.mark.skipif(importlib.util.find_spec("librt") is None, reason="nothing to compare with")
@pytest.mark.parametrize("name", NUMBERS)
@given(data=st.data())
def test_stand_in_does_what_librt_does(name: str, data: st.DataObject) -> None:
    from librt import strings

    number = data.draw(st.integers(-(2 ** (NUMBERS[name] - 1)), 2 ** (NUMBERS[name] - 1) - 1))
    written: list[bytes] = []
    modules: list[object] = [strings, _librt]
    for module in modules:
        make: Callable[[], _librt.BytesWriter] = module.BytesWriter  # type: ignore[attr-defined]
        writer = make()
        writer.append(200)
        writer.write(b"more")
        writer[1] = ord("M")
        getattr(module, f"write_{name}_be")(writer, number)
        assert (len(writer), writer[0]) == (5 + NUMBERS[name] // 8, 200)
        written.append(writer.getvalue())
        assert getattr(module, f"read_{name}_be")(writer.getvalue(), 5) == number
        writer.truncate(5)
        assert writer.getvalue() == b"\xc8More"
    assert written[0] == written[1]
