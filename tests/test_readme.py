"""Documents show what the files of results hold, and nothing else."""

import re

import pytest
from benchmarks import figures, render, result_files
from benchmarks.result_files import ROOT

FILES = result_files.load_all()
# Each with the figures of its prose that are rules: nobody measured them.
MEASURED: dict[str, list[str]] = {
    "README.md": [], "docs/performance.md": [], "src/fullstride/rewriting/README.md": ["2 %"],
    "docs/distributed.md": [
        "110 seconds", "120 seconds", "30 seconds", "16 MiB", "1.15 times", "1 %", "23%", "94 %", "50 %",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", MEASURED)
def test_every_measured_figure_is_in_a_file_of_results(name):
    assert figures.problems((ROOT / name).read_text(), FILES, MEASURED[name]) == []


def test_readme_has_no_part_that_is_left_out_of_the_check():
    assert "by hand" not in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", render.DOCUMENTS, ids=str)
def test_rendering_would_change_nothing(path):
    text = (ROOT / path).read_text()
    assert render.BLOCK.search(text)
    assert render.rendered(text, FILES) == text, f"{path} is out of date: run make performance and commit it"


def test_the_index_lists_every_file_of_results():
    def without_last_column(text):  # what is stale depends on the commit that asks
        return [line.rpartition(" | ")[0] or line for line in text.splitlines()]

    none: render.Findings = {(file.machine, file.suite): [[] for _ in file.parts] for file in FILES}
    written = (ROOT / render.INDEX).read_text()
    message = f"{render.INDEX} is out of date: run make performance and commit it"
    assert without_last_column(written) == without_last_column(render.index(FILES, none)), message


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("name", [*MEASURED, "CONTRIBUTING.md"])
def test_links_lead_to_files(name):
    path = ROOT / name
    links = re.findall(r"\]\(([^)#:]+)\)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.machine}/{file.suite}")
def test_a_file_of_results_is_of_a_commit(file):
    """Not of a tree with changes, which nobody can have again."""
    commits = [part["conditions"]["commit"] for part in file.parts]
    assert [commit for commit in commits if not re.fullmatch("[0-9a-f]{12}", commit)] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.machine}/{file.suite}")
def test_a_file_of_results_records_its_conditions_and_no_path_of_a_machine(file):
    assert file.parts == [result_files.without_paths(part) for part in file.parts]
    for part in file.parts:
        assert list(part["conditions"]) == list(result_files.CONDITIONS)
        assert all(part["conditions"][name] is not None for name in ("commit", "date", "torch", "threads", "load"))
        assert result_files.machine_of(part["conditions"]) == file.machine
