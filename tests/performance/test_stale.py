from benchmarks import stale
from benchmarks.stale import Finding

from .made_up import kernels, step, steps

GLU, GEMM = "csrc/kernels/glu.cc", "csrc/gemm/gemm.cc"


def found(repository, file):
    [part] = stale.findings(file, repository.root)
    return part


def test_a_result_is_fresh_while_its_sources_are_as_they_were(repository):
    commit = repository.commit(**{GLU: "1", GEMM: "1", "README.md": "1"})
    repository.commit(**{"README.md": "2"})
    assert found(repository, kernels("glu", commit=commit)) == [Finding("glu", "")]


def test_a_result_is_stale_when_its_kernel_has_changed_since(repository):
    commit = repository.commit(**{GLU: "1", GEMM: "1"})
    repository.commit(**{GLU: "2"})
    repository.commit(**{GLU: "3"})
    assert found(repository, kernels("glu", commit=commit)) == [Finding("glu", f"stale: 2 commits since in {GLU}")]


def test_another_kernel_s_change_does_not_matter(repository):
    commit = repository.commit(**{GLU: "1", GEMM: "1", "src/fullstride/ops/linear.py": "1"})
    repository.commit(**{GEMM: "2"})
    expected = [Finding("glu", ""), Finding("linear", "stale: 1 commit since in csrc/gemm")]
    assert found(repository, kernels("glu", "linear", commit=commit)) == expected


def test_a_change_that_was_taken_back_leaves_a_result_fresh(repository):
    commit = repository.commit(**{GLU: "1"})
    repository.commit(**{GLU: "2"})
    repository.commit(**{GLU: "1"})
    assert found(repository, kernels("glu", commit=commit)) == [Finding("glu", "")]


def test_a_step_is_stale_when_anything_it_runs_through_has_changed(repository):
    commit = repository.commit(**{GEMM: "1", "src/fullstride/nn/linear.py": "1"})
    repository.commit(**{"src/fullstride/nn/linear.py": "2"})
    file = steps(step(), step(accumulate=8), commit=commit)
    expected = "stale: 1 commit since in src/fullstride/nn"
    assert found(repository, file) == [Finding("mlp", expected), Finding("mlp accumulate 8", expected)]


def test_a_commit_that_is_not_in_the_history_is_unknown(repository):
    repository.commit(**{GLU: "1"})
    assert found(repository, kernels("glu", commit="0123456789ab")) == [Finding("glu", stale.UNKNOWN)]


def test_a_commit_of_another_branch_is_unknown(repository):
    repository.commit(**{GLU: "1"})
    repository.git("checkout", "-q", "-b", "other")
    commit = repository.commit(**{GLU: "2"})
    repository.git("checkout", "-q", "main")
    assert found(repository, kernels("glu", commit=commit)) == [Finding("glu", stale.UNKNOWN)]


def test_a_folder_without_git_makes_everything_unknown(tmp_path):
    [[finding]] = stale.findings(kernels("glu"), tmp_path)
    assert finding.state == stale.UNKNOWN


def test_an_op_that_is_gone_is_named(repository):
    commit = repository.commit(**{GLU: "1", GEMM: "1"})
    repository.git("rm", "-q", GLU)
    repository.commit()
    [finding] = found(repository, kernels("glu", commit=commit))
    assert finding.state == "gone: there is no such op any more"
