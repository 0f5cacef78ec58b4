"""Moves each exercise's files into its three rooms, and rewrites imports and paths in all files that name them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path.cwd()
NAMES = {e["name"].split("/")[1]: e["name"] for e in tomllib.loads((ROOT / "labkit/catalogue.toml").read_text())["exercise"]}
OLD_PACKAGES = {"pipeline": "pipeline_parallel", "tensor": "tensor_parallel"}
SCENARIOS = {
    "failing_training": "fault_tolerance", "image_training": "image_classification", "llm_training": "llm_13b",
}
TUNING = ("planted_layouts", "tuning_on_ranks")
PARTS_TESTS = {
    "test_accumulation_arguments": "gradient_accumulation",
    "test_context_parallel_parts": "context_parallel",
    "test_ddp_parts": "ddp",
    "test_deepspeed_adapter": "zero",
    "test_device_copies": "data_loader",
    "test_expert_parallel_parts": "expert_parallel",
    "test_fsdp_trainer": "zero",
    "test_gradient_reduction": "mixed_precision",
    "test_image_deepspeed": "image_classification",
    "test_loader_arguments": "data_loader",
    "test_local_sgd_parts": "local_sgd",
    "test_mixed_precision_arguments": "mixed_precision",
    "test_monitoring_parts": "monitoring",
    "test_node_placements": "hierarchical_allreduce",
    "test_parallel_3d_parts": "parallel_3d",
    "test_pipeline_arguments": "pipeline_parallel",
    "test_pipeline_messages": "pipeline_parallel",
    "test_pipeline_schedules": "pipeline_parallel",
    "test_process_group_arguments": "process_group",
    "test_recomputation": "activation_checkpointing",
    "test_tensor_parallel_parts": "tensor_parallel",
    "test_trainer_arguments": "trainer",
    "test_tune_command": "autotune",
}
COMMON = ("collective_arguments", "number_arguments", "training_step")


def git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout


def tracked() -> list[str]:
    return git("ls-files").splitlines()


def place(path: str) -> str:
    """Where a file goes; the same where it stays."""
    parts = path.split("/")
    match parts:
        case ["labkit", "parallel", "__init__.py"]:
            return path
        case ["labkit", "parallel", file]:
            return f"labkit/course/{file}"
        case ["labkit", "parallel", package, *rest]:
            return "/".join(["labkit/course", NAMES[OLD_PACKAGES.get(package, package)], "given", *rest])
        case ["labkit", "checks", "visible", phase, file]:
            return f"labkit/course/{phase}/{file[:-3]}/checks.py"
        case ["labkit", "questions", phase, file] if phase.startswith("phase"):
            return f"labkit/course/{phase}/{file[:-3]}/questions.py"
        case ["labkit", "checks", file] if file[:-3] in SCENARIOS:
            return f"labkit/course/{NAMES[SCENARIOS[file[:-3]]]}/scenarios.py"
        case ["labkit", "checks", file] if file[:-3] in TUNING:
            return f"labkit/course/{NAMES['autotune']}/scenarios/{file}"
        case ["autograder", "rubrics", "README.md"]:
            return "autograder/course/README.md"
        case ["autograder", "rubrics", phase, file]:
            return f"autograder/course/{phase}/{file[:-3]}/rubric.py"
        case ["autograder", "rubrics", phase, "mutants", file]:
            return f"autograder/course/{phase}/{file[:-3]}/mutants.py"
        case ["autograder", "rubrics", phase, ("mutants" | "variants") as kind, name, file]:
            return f"autograder/course/{phase}/{name}/{kind}/{file}"
        case ["autograder", "course.py"]:
            return "autograder/course_folder.py"
        case ["autograder", "tests", "adversarial", "rubrics", name, file]:
            return f"tests/course/{NAMES[name]}/adversaries/{file}"
        case ["tests", "exercises" | "parallel", file]:
            stem = file[:-3]
            name = PARTS_TESTS.get(stem, stem.removeprefix("test_"))
            return f"tests/course/{NAMES[name]}/{file}" if name in NAMES else f"tests/course/{file}"
        case ["benchmarks", file] if file.startswith("solutions_"):
            return f"tests/course/{NAMES[file[10:-3]]}/benchmark.py"
    return path


def module_of(package: str) -> str:
    return "labkit.course." + NAMES[OLD_PACKAGES.get(package, package)].replace("/", ".") + ".given"


def rewritten(text: str, moves: dict[str, str]) -> str:
    packages = "|".join(sorted([*NAMES, *OLD_PACKAGES], key=len, reverse=True))

    def imported(match: re.Match[str]) -> str:
        package, alias = match[1], match[2]
        room = module_of(package).removesuffix(".given")
        return f"from {room} import given" if alias == " as given" else f"from {room} import given{alias or ''}"

    text = re.sub(rf"from labkit\.parallel import ({packages})( as \w+)?\b", imported, text)
    text = re.sub(rf"\blabkit\.parallel\.({packages})\b", lambda m: module_of(m[1]), text)
    text = re.sub(rf"\blabkit\.parallel\.({'|'.join(COMMON)})\b", r"labkit.course.\1", text)
    for old, name in SCENARIOS.items():
        text = text.replace(f"labkit.checks.{old}", f"labkit.course.{NAMES[name].replace('/', '.')}.scenarios")
    for old in TUNING:
        text = text.replace(f"labkit.checks.{old}", f"labkit.course.{NAMES['autotune'].replace('/', '.')}.scenarios.{old}")
    text = re.sub(r"\bautograder\.course\b(?!_folder)(?!\.)", "autograder.course_folder", text)
    for old, new in moves.items():
        text = text.replace(old, new)
    for name in ("{NAME}", "{RING}", "PHASE/NAME", "phase1_small/largest", "phase1_small/later", "phase4_production/mean_loss"):
        for folder, file in (("labkit/checks/visible", "checks"), ("labkit/questions", "questions")):
            text = text.replace(f"{folder}/{name}.py", f"labkit/course/{name}/{file}.py")
        text = text.replace(f"autograder/rubrics/{name}.py", f"autograder/course/{name}/rubric.py")
    text = text.replace("phase4_production/variants/mean_loss/gathers.py", "phase4_production/mean_loss/variants/gathers.py")
    text = text.replace("autograder/rubrics/phase4_production/mutants/mean_loss.py", "autograder/course/phase4_production/mean_loss/mutants.py")
    text = text.replace("autograder/rubrics/phase4_production/mean_loss/", "autograder/course/phase4_production/mean_loss/")
    text = text.replace("autograder/rubrics/{NAME.replace('/', '/mutants/')}.py", "autograder/course/{NAME}/mutants.py")
    text = text.replace("autograder/rubrics/*", "autograder/course/*")
    text = text.replace("from labkit.parallel import collective_arguments", "from labkit.course import collective_arguments")
    text = re.sub(
        rf"(?<![\w/])labkit/parallel/({packages})\b",
        lambda m: f"labkit/course/{NAMES[OLD_PACKAGES.get(m[1], m[1])]}/given",
        text,
    )
    return text


def main() -> None:
    moves = {old: new for old in tracked() if (new := place(old)) != old}
    assert len(set(moves.values())) == len(moves)
    for old, new in moves.items():
        (ROOT / new).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / old).rename(ROOT / new)
    # folders that are empty now
    for folder in ("labkit/parallel", "labkit/checks", "labkit/questions", "autograder/rubrics", "autograder/tests", "tests"):
        for path in sorted((ROOT / folder).rglob("*"), key=lambda p: -len(p.parts)):
            if path.is_dir() and (path.name == "__pycache__" or not any(path.iterdir())):
                subprocess.run(["rm", "-rf", path], check=True)
    git("add", "-A")
    ordered = dict(sorted(moves.items(), key=lambda item: -len(item[0])))
    for path in tracked():
        file = ROOT / path
        if path == "tests/last_pass.json" or file.suffix in (".png", ".webm", ".ico", ".lock", ".csv") or path.startswith(".ci/rooms"):
            continue
        try:
            text = file.read_text()
        except (UnicodeDecodeError, OSError):
            continue
        if (new := rewritten(text, ordered)) != text:
            file.write_text(new)
    rooms = {}
    for name in NAMES.values():
        number = next(e["number"] for e in tomllib.loads((ROOT / "labkit/catalogue.toml").read_text())["exercise"] if e["name"] == name)
        short = name.split("/")[1]
        rooms[f"labkit/course/{name}"] = f'"""What learners have for `{short}`: given parts, visible checks, questions."""\n'
        rooms[f"autograder/course/{name}"] = f'"""What learners do not have for `{short}`: hidden checks, wrong and other right solutions."""\n'
    for phase in sorted({name.split("/")[0] for name in NAMES.values()}):
        rooms[f"labkit/course/{phase}"] = f'"""The exercises of {phase}, a package each."""\n'
        rooms[f"autograder/course/{phase}"] = f'"""The exercises of {phase}, a package each."""\n'
    rooms["labkit/course"] = '"""What learners have for each exercise, besides its notebook and template; what several share is beside the phases."""\n'
    rooms["autograder/course"] = '"""What learners do not have for each exercise: its hidden checks, and the solutions that test them."""\n'
    rooms["labkit/course/phase4_production/autotune/scenarios"] = '"""Programs of the checks of `autotune`, and the landscapes that they search."""\n'
    for folder, text in rooms.items():
        (ROOT / folder / "__init__.py").write_text(text)
    git("add", "-A")
    print(len(moves), "files moved")


if __name__ == "__main__":
    sys.exit(main())
