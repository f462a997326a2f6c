"""What `check_job` finds, and where it says it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.core.errors import DataError
from bireme.data.check import CheckReport, check_job
from bireme.data.scan import KEPT_PER_FILE
from bireme.data.split import split_lines


@pytest.fixture
def job(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.txt").write_text("0\ta b\n1\tb\n0\tc\n1\td\n")
    (source / "test.txt").write_text("1\tx\n")
    (source / "dict.txt").write_text("unk\t-1\na\t2\nb\t1\n")
    (source / "labels.list").write_text("neg\t0\npos\t1\n")
    (source / "train.list").write_text("data/train.txt\n")
    (source / "test.list").write_text("data/test.txt\n")
    split_lines(source, tmp_path / "job", 2)
    return tmp_path / "job"


def _in_both(job: Path, name: str, content: bytes) -> CheckReport:
    """Give both shards this file and check, without a manifest that would notice."""
    (job / "shards.json").unlink(missing_ok=True)
    for shard in "01":
        (job / shard / "data" / name).write_bytes(content)
    return check_job(job)


def _said(report: CheckReport) -> list[str]:
    return [f"{p.severity} {p.file}:{p.line} {p.what}" for p in report.problems if p.file != "shards.json"]


def test_fresh_split_has_no_problems(job: Path) -> None:
    progress: list[tuple[int, int]] = []
    report = check_job(job, on_progress=lambda done, total: progress.append((done, total)))
    assert report.problems == ()
    assert [(shard.shard, shard.lines, shard.files) for shard in report.shards] == [(0, 2, 6), (1, 2, 6)]
    assert progress[-1][0] == progress[-1][1] == sum(shard.nbytes for shard in report.shards)


def test_missing_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a directory"):
        check_job(tmp_path / "nowhere")


def test_a_job_without_shards_is_refused_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="bireme data split SOURCE"):
        check_job(tmp_path)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"7\tx\n", "error 0/data/train.txt:2 label 7 is not in labels.list (0, 1)"),
        (b"-1\tx\n", "error 0/data/train.txt:2 label -1 is not in labels.list (0, 1)"),
        (b"good\tx\n", "error 0/data/train.txt:2 label 'good' is not an integer"),
        (b"0.5\tx\n", "error 0/data/train.txt:2 label '0.5' is not an integer"),
        (b"1 x\n", "error 0/data/train.txt:2 no tab between label and text"),
        (b"\n", "error 0/data/train.txt:2 the line is empty"),
        (b"1\t\n", "warning 0/data/train.txt:2 no text after the label"),
        (b"1\tab\xffc\n", "error 0/data/train.txt:2 byte 0xff at column 5 is not UTF-8"),
        (b"1\tx\r\n", "warning 0/data/train.txt:2 1 lines end in CR LF, as on Windows"),
    ],
)
def test_bad_sample_is_reported_with_its_line(job: Path, line: bytes, what: str) -> None:
    assert _said(_in_both(job, "train.txt", b"0\ta\n" + line)) == [what]


def test_a_bad_label_in_the_first_line_is_found(job: Path) -> None:
    report = _in_both(job, "test.txt", b"good\tx\n")
    assert _said(report) == ["error 0/data/test.txt:1 label 'good' is not an integer"]


def test_any_integer_is_a_label_without_labels_list(job: Path) -> None:
    for shard in "01":
        (job / shard / "data/labels.list").unlink()
    assert _said(_in_both(job, "train.txt", b"0\ta\n-7\tx\n")) == []


def test_files_in_another_form_are_only_counted_and_decoded(job: Path) -> None:
    report = _in_both(job, "train.txt", b"1::1193::5\n\n1::661::3\n")
    assert _said(report) == []
    assert report.shards[0].lines == 3


def test_binary_files_are_not_taken_for_text(job: Path) -> None:
    assert _said(_in_both(job, "meta.bin", b"\0\xff\xfe\n")) == []


def test_byte_order_mark_is_an_error(job: Path) -> None:
    report = _in_both(job, "train.txt", b"\xef\xbb\xbf0\ta\n9\tb\n")
    assert [p.line for p in report.problems if p.severity == "error"] == [1, 2]
    assert "byte-order mark" in _said(report)[0]


def test_many_problems_in_a_file_are_capped_and_counted(job: Path) -> None:
    report = _in_both(job, "train.txt", b"0\ta\n" + b"9\tx\n" * 100 + b"1\t\n")
    assert [p.severity for p in report.problems[:6]] == ["error"] * KEPT_PER_FILE + ["warning"]
    assert report.problems[KEPT_PER_FILE - 1].more == 95
    assert report.errors == 100


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"unk\t-1\na\t1\na\t1\n", "error 0/data/dict.txt:3 word 'a' was already on line 2"),
        (b"unk\t-1\na\tmany\n", "error 0/data/dict.txt:2 'a\\tmany' is not a word, a tab and a count"),
        (b"unk\t-1\n\n", "error 0/data/dict.txt:2 '' is not a word, a tab and a count"),
        (b"a\t1\n", "warning 0/data/dict.txt:1 the first word is 'a', not unk"),
    ],
)
def test_bad_dictionary_is_reported_with_its_line(job: Path, content: bytes, what: str) -> None:
    assert _said(_in_both(job, "dict.txt", content)) == [what]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"neg\t0\npos\t1\nodd\n", "error 0/data/labels.list:3 'odd' is not a name, a tab and an id"),
        (b"neg\t0\npos\t1\nodd\t1\n", "error 0/data/labels.list:3 id 1 is given to two labels"),
    ],
)
def test_bad_label_list_is_reported_with_its_line(job: Path, content: bytes, what: str) -> None:
    assert _said(_in_both(job, "labels.list", content)) == [what]


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("test.list", b"data/gone.txt\n", "error {}/data/test.list:1 data/gone.txt does not exist"),
        ("test.list", b"test.txt\n", "error {}/data/test.list:1 test.txt is not below data/"),
        ("pred.list", b"\ndata/p.txt\n", "warning {}/data/pred.list:2 data/p.txt does not exist"),
    ],
)
def test_bad_list_target_is_reported_for_each_shard(job: Path, name: str, content: bytes, what: str) -> None:
    assert _said(_in_both(job, name, content)) == [what.format(0), what.format(1)]


def test_dictionaries_that_differ_are_an_error(job: Path) -> None:
    (job / "1/data/dict.txt").write_text("unk\t-1\nb\t2\na\t1\n")
    what = "error 1/data/dict.txt:None differs from shard 0's: the same word would have different ids"
    assert what in _said(check_job(job))


def test_of_three_dictionaries_the_odd_one_is_named(tmp_path: Path, job: Path) -> None:
    split_lines(tmp_path / "source", tmp_path / "three", 3)
    (tmp_path / "three" / "0" / "data" / "dict.txt").write_text("unk\t-1\nz\t2\n")
    differing = [p for p in check_job(tmp_path / "three").problems if "differs" in p.what]
    assert [(p.file, p.what.split(":")[0]) for p in differing] == [("0/data/dict.txt", "differs from shard 1's")]
    assert differing[0].fix == "copy it from shard 1, or split the data again"


def test_file_that_one_shard_lacks_is_reported(job: Path) -> None:
    (job / "0/data/test.txt").unlink()
    assert "error 0/data/test.txt:None missing here, but shard 1 has it" in _said(check_job(job))


@pytest.mark.parametrize("name", ["train.txt", "test.txt"])
def test_a_listed_file_is_restored_and_not_copied(job: Path, name: str) -> None:
    (job / "0" / "data" / name).unlink()
    fixes = {p.fix for p in check_job(job).problems if p.line or "missing" in p.what}
    assert fixes <= {"restore the file, or correct this line", "restore it, or split the data again"}


def test_shard_that_changed_since_the_split_is_an_error(job: Path) -> None:
    (job / "1/data/train.txt").write_text("0\tc\n")
    report = check_job(job)
    assert _said(report) == ["error 1/data/train.txt:None changed since the split (2 lines then, 1 now)"]


def test_file_that_is_gone_or_new_since_the_split_is_reported(job: Path) -> None:
    for shard in "01":
        (job / shard / "data/test.list").rename(job / shard / "data/new.txt")
    found = _said(check_job(job))
    assert "error 0/data/test.list:None is gone since the split" in found
    assert "warning 1/data/new.txt:None was not there when the data was split" in found


def test_missing_manifest_is_a_warning(job: Path) -> None:
    (job / "shards.json").unlink()
    report = check_job(job)
    assert (report.errors, report.warnings) == (0, 1)
    assert "changes since the split cannot be noticed" in report.problems[0].what


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{", "is not a shard manifest"),
        ('{"version": 2, "shards": 2, "split": [], "contents": []}', "has format version 2"),
        ('{"version": 1, "shards": 3, "split": [], "contents": []}', "made 3 shards, but 2 are here"),
    ],
)
def test_bad_manifest_is_an_error(job: Path, content: str, what: str) -> None:
    (job / "shards.json").write_text(content)
    report = check_job(job)
    assert report.errors == 1
    assert what in report.problems[0].what


def test_missing_shard_number_is_an_error(job: Path) -> None:
    (job / "1").rename(job / "2")
    assert "error 1:None shard 1 is missing" in _said(check_job(job))


def test_shard_without_data_directory_is_an_error(job: Path) -> None:
    (job / "2").mkdir()
    assert "error 2/data:None there is no data directory" in _said(check_job(job))


def test_shard_without_training_data_is_an_error(job: Path) -> None:
    (job / "0/data/train.list").unlink()
    (job / "0/data/train.txt").unlink()
    assert "error 0/data/train.txt:None there is no training data" in _said(check_job(job))


def test_empty_shard_is_a_warning_but_all_empty_is_an_error(job: Path) -> None:
    (job / "shards.json").unlink()
    (job / "1/data/train.txt").write_text("")
    assert _said(check_job(job)) == ["warning 1:None the shard has no training lines, so its trainer has nothing to do"]
    (job / "0/data/train.txt").write_text("")
    assert _said(check_job(job)) == ["error :None no shard has a training line"]


def test_line_longer_than_the_limit_is_found_without_holding_it(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bireme.data.scan.LONGEST_LINE", 64)
    report = _in_both(job, "train.txt", b"0\ta\n1\t" + b"x" * 200 + b"\n0\tb\n")
    assert {p.line for p in report.problems if p.severity == "error"} == {2}
    assert report.shards[0].lines == 3
