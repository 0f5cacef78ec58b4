"""Log files of the ranks' output."""

import os

from labkit.notebook.output.logs import RUNS_KEPT, Logs


def test_every_rank_has_a_file_with_all_that_it_printed(tmp_path):
    logs = Logs(tmp_path / "logs")
    assert logs.folder is None and not (tmp_path / "logs").exists(), "nothing was printed"
    logs.write(0, "one\n\x1b[31mtwo")
    logs.write(3, "\ud800 odd\r")
    logs.write(0, "\nthree\n")
    logs.close()
    assert logs.folder == tmp_path / "logs" / "0001"
    assert (logs.folder / "rank0.log").read_text() == "one\n\x1b[31mtwo\nthree\n"
    assert (logs.folder / "rank3.log").read_bytes() == b"? odd\r"


def test_a_flood_keeps_its_end_and_stays_small(tmp_path):
    logs = Logs(tmp_path, most_bytes=1 << 20)
    for number in range(300):
        for rank in range(4):
            logs.write(rank, f"{number:08d}\n" * 1000)
    logs.close()
    assert logs.folder is not None
    files = list(logs.folder.iterdir())
    assert sum(file.stat().st_size for file in files) < 2 << 20
    for rank in range(4):
        text = (logs.folder / f"rank{rank}.earlier.log").read_text() + (logs.folder / f"rank{rank}.log").read_text()
        assert text.endswith("00000299\n") and len(text.splitlines()) > 10_000


def test_old_runs_are_removed_but_not_one_that_is_written(tmp_path):
    running = Logs(tmp_path)
    running.write(0, "begun\n")
    assert running.folder is not None
    for number in range(RUNS_KEPT + 5):
        later = Logs(tmp_path)
        later.write(0, "x\n")
        later.close()
        assert later.folder is not None
        for path in (later.folder / "rank0.log", later.folder):
            os.utime(path, (number, number))
        running.write(0, "still there\n")
    assert len(list(tmp_path.iterdir())) <= RUNS_KEPT + 1 and running.folder.exists()
    assert not (tmp_path / "0002").exists()
    running.close()


def test_a_folder_that_cannot_be_written_stops_no_run(tmp_path):
    (tmp_path / "file").write_text("")
    logs = Logs(tmp_path / "file" / "logs")
    logs.write(0, "hello\n")
    logs.write(0, "again\n")
    logs.close()
    assert logs.folder is None
