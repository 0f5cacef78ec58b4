"""Questions of parameter_server. Times of steps are those of the notebook's runs; the rest follows from the rules."""

from __future__ import annotations

import math

from labkit.questions import Number

QUESTIONS = [
    Number(
        name="incast_ms",
        text="**Predict**: how many milliseconds does a step take with one server and 56 workers, for 1 MB of weights? "
        "Part 7 measures it with your own module.",
        answer=lambda step_times: step_times[1, 56],
        solution="2 * 56 / 1.25",
        unit="ms",
        tolerance=0.15,
        near={
            "56 / 1.25": "that is one direction: weights go out, and gradients come in.",
            "2 / 1.25": "that is for one worker.",
        },
        otherwise="How many megabytes pass the server's port for one worker, and how many for all of them?",
        why="56 times 1 MB out and 56 times 1 MB in, at 1.25 MB in a millisecond: 2 * 44.8 ms. {answer:.0f} ms in the "
        "run: the first workers push while the last ones still pull.",
        shown_by="part 7",
    ),
    Number(
        name="ssp_begin",
        text="**Predict**: a fast worker takes 1 s for a step, a slow one 3 s, and messages take no time. With "
        "`ssp(2)`, when does the fast one begin clock 4, in seconds after the start? Clocks are numbered from 0.",
        answer=lambda begins: begins(2, 5)[4],
        solution="2 * 3",
        unit="s",
        near={
            "4": "that is async: nobody waits.",
            "3 * 4": "that is sync: all four clocks before it take 3 s.",
            "9": "clocks 0 to 2 of the slow worker: one more than the bound asks for.",
            "3": "clock 0 of the slow worker: with it the fast one may begin clock 3.",
        },
        otherwise="Clock c + 2 + 1 = 4: which clock must the slow worker have finished?",
        why="All must have finished clock 1, and the slow worker has at {answer:.0f} s.",
        shown_by="the picture below",
    ),
    Number(
        name="eight_servers",
        text="**Predict**: how many times faster is a step of 56 workers with eight servers than with one? A server "
        "posts a receive for each push that is announced.",
        answer=lambda step_times: step_times[1, 56] / step_times[8, 56],
        solution="8",
        tolerance=0.1,
        near={
            "2 / (1 + 1 / 8)": "so it would be with one receive at a time: pulls are divided, pushes are not.",
            "1": "so it would be if all servers worked for the same worker at the same time.",
        },
        otherwise="By Rule 14, how long do pulls take with one server and with eight? And pushes?",
        why="In the run {answer:.1f} times: an eighth of the bytes goes through each port, for pulls and for pushes.",
        shown_by="the picture below",
    ),
    Number(
        name="servers_needed",
        text="**a** 64 workers pull 2 GB of weights from servers with ports of 25 GB/s each. A pull must not take more "
        "than half a second. By Rule 14, how many servers does it take at least?",
        answer=lambda: math.ceil(64 * 2 / (25 * 0.5)),
        solution="11",
        unit="servers",
        near={
            "64 * 2 / (25 * 0.5)": "so many, but servers are whole: round up.",
            "10": "with 10 servers a pull takes 64 / 10 * 2 / 25 = 0.512 s.",
            "6": "that is for one second.",
            "21": "a pull goes in one direction only: no factor of 2.",
        },
        otherwise="t = W / S * n / B: what must S be for t = 0.5 s?",
        why="S is at least W * n / (t * B) = 64 * 2 / (0.5 * 25) = 10.24: 11 servers.",
    ),
    Number(
        name="server_state",
        text="**b** A model of 1,000,000,000 float32 parameters is trained with Adam on 16 servers and 48 workers. How "
        "many bytes of optimizer state does each server hold?",
        answer=lambda: 2 * 4 * 1e9 / 16,
        solution="2 * 4 * 1_000_000_000 / 16",
        unit="bytes",
        near={
            "4 * 1_000_000_000 / 16": "Adam has two numbers for each parameter.",
            "2 * 4 * 1_000_000_000": "that is on all servers together.",
            "2 * 4 * 1_000_000_000 / 64": "workers hold none of it.",
        },
        otherwise="How many numbers does Adam keep for a parameter, and who keeps them?",
        why="Two numbers of 4 bytes for each parameter, divided among the servers.",
    ),
    Number(
        name="sync_pushes",
        text="**c** Six workers take 10 ms for a step, a seventh takes 50 ms. How many pushes a second does a server "
        "get with `sync`, if messages take no time?",
        answer=lambda: 7 / 0.05,
        solution="7 / 0.05",
        near={
            "700": "as if all took 10 ms: but each step ends when the slowest has pushed.",
            "6 / 0.01 + 1 / 0.05": "that is async.",
            "1 / 0.05": "so many steps; in each, seven workers push.",
        },
        otherwise="How long does one step of all of them take, and how many pushes are in it?",
        why="Every 50 ms, seven pushes.",
    ),
    Number(
        name="async_pushes",
        text="**d** And with `async`?",
        answer=lambda: 6 / 0.01 + 1 / 0.05,
        solution="6 / 0.01 + 1 / 0.05",
        near={
            "700": "the seventh is slower.",
            "600": "the seventh pushes, too.",
            "140": "that is sync.",
        },
        otherwise="Add up what each worker pushes in a second.",
        why="100 from each of six, and 20 from the seventh.",
    ),
    Number(
        name="rows_bytes",
        text="**e** A table has 100,000,000 rows of 64 float32 numbers. A batch touches 50,000 different rows. "
        "How many bytes of weights does its worker pull, if rows have owners?",
        answer=lambda: 50_000 * 64 * 4,
        solution="50_000 * 64 * 4",
        unit="bytes",
        near={
            "100_000_000 * 64 * 4": "that is the whole table.",
            "50_000 * 64": "those are numbers, of 4 bytes each.",
            "2 * 50_000 * 64 * 4": "that is pull and push.",
        },
        otherwise="How many rows does it pull, and how many bytes has a row?",
        why="50,000 rows of 256 bytes: 12.8 MB instead of 25.6 GB, one part in 2,000.",
    ),
]
