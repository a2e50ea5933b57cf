"""The pytest fixture in authors' projects and the samples of the docs, in separate pytest runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]


def samples_of(page: str) -> list[str]:
    text = (PROJECT / "docs" / "how-to" / page).read_text("utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


TOOL, *SAMPLES = samples_of("testing.md")
FIRST, _, _, _, _, IN_ANY_CLIENT, OWN_CLIENT, REFUSED, UNITTEST = SAMPLES
REFUNDS, SEATS = (
    sample
    for sample in [*samples_of("approvals.md"), *samples_of("payments.md")]
    if sample.startswith(("# refunds.py", "# seats.py"))
)
BOOKINGS = "\n\n".join(sample for sample in samples_of("writing-tools.md") if "Booking" in sample)
STRICT = FIRST.replace("async def", "@pytest.mark.asyncio\nasync def")
ANYIO = FIRST + "\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
MARKED = "import pytest\n\npytestmark = pytest.mark.anyio\n\n\n"
PLAIN = "def test_nothing():\n    pass\n"
PROJECTS = {
    "pytest-asyncio, auto": (FIRST + "\n\n" + IN_ANY_CLIENT + "\n\n" + OWN_CLIENT, "auto", []),
    "people, time and restarts": ("\n\n".join(SAMPLES[1:5]), "auto", []),
    "pytest-asyncio, strict": ("import pytest\n" + STRICT, "strict", []),
    "anyio": (MARKED + ANYIO, "", ["-p", "no:asyncio"]),
    "xdist": (FIRST, "auto", ["-n", "2"]),
    "refused answer": (REFUSED, "auto", []),
    "unittest": (UNITTEST, "strict", []),
}


def ran(folder: Path, test: str, mode: str, *options: str) -> subprocess.CompletedProcess[str]:
    own = f"asyncio_mode = {mode}\nasyncio_default_fixture_loop_scope = function\n" if mode else ""
    (folder / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\n{own}")
    (folder / "tea_room.py").write_text(TOOL)
    (folder / "refunds.py").write_text(REFUNDS)
    (folder / "seats.py").write_text(SEATS)
    (folder / "bookings.py").write_text(BOOKINGS)
    (folder / "kyc.py").write_text((PROJECT / "examples" / "kyc.py").read_text("utf-8"))
    (folder / "test_tea_room.py").write_text(test)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("project", PROJECTS)
def test_samples_pass_with_each_runner(tmp_path, project):
    done = ran(tmp_path, PROJECTS[project][0], PROJECTS[project][1], *PROJECTS[project][2])
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_failure_names_unanswered_question(tmp_path):
    done = ran(tmp_path, FIRST.replace("        person.pays()\n", ""), "auto")
    assert done.returncode == 1
    assert "1 failed" in done.stdout
    assert "question of kind payment, and the test planned no answer" in done.stdout
    assert "person.pays()" in done.stdout


def test_folder_named_webapp_of_author_breaks_no_other_test(tmp_path):
    (tmp_path / "webapp").mkdir()
    (tmp_path / "webapp" / "__init__.py").write_text("")
    assert ran(tmp_path, PLAIN, "auto").returncode == 0
    done = ran(tmp_path, FIRST, "auto")
    assert "Rename that one" in done.stdout, done.stdout


def test_plugin_imports_no_project_module_until_used(tmp_path):
    program = "import sys, elicit_url_pytest; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    loaded = set(done.stdout.split())
    assert "elicit_url_pytest" in loaded
    assert not {name.split(".")[0] for name in loaded} & {"flows", "webapp", "mcp", "litestar"}


def test_example_for_authors_passes():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "test_my_tools.py"],
        cwd=PROJECT / "examples",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
