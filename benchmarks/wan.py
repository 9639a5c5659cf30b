"""Training speed of two sites with a thin link between them, and the codecs that they choose.

python benchmarks/wan.py [--turns 3] [--steps 200] [--torchft DIR] [--tiny]    as root; 40 minutes, two quiet
cores. DIR: where `pip install --no-deps --target DIR torchft==0.2.0` has put that library.

Each site is a network namespace with an agent and one rank bound to a core of its own. Between them is a veth
pair whose ends are capped by tc (tbf), both ways. Uncompressed, the model's weights take ten steps or more at
100 Mbit/s. Every 50 steps each weight is exchanged once, in five fragments, each of which has the ten steps
until the next one (`delay`); each site chooses its codec among all kinds. The ways alternate, each time in
another order.

speed: steps a second of the slower site, between step 50 and ten steps before the end, as a share of the
speed without a cap, by medians. of_own_pace, pace_share: the same for machines whose speed changes from run
to run, from the time of a run beyond all its steps at the pace of its quickest tenth. The last round, which
has all weights and is waited for, is left out and given as `last_s`. cpu_s: of both agents. wire: bytes
counted by the veth, and those of the contributions. codecs: of each round. changed: the cap goes from 100 to
10 to 1 Mbit/s in one run. `settled`: messages, from the step of the change on, that were sent with another
codec than the final one in the run with the new cap alone, without the last round (the cap may change ten
seconds after the step); null = always. data_parallel: seconds of a step's all-reduce of the gradients
(torch.distributed, gloo). torchft: its streaming DiLoCo (wan_torchft.py), as a share of its own speed without
a cap, 100 steps each; left out at 1 Mbit/s, where an exchange would take 100 s. Not measured: delay and lost
packets.
"""

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import keep, use_own_code

from atelier.engine.config.metric import FOLDER, merge
from atelier.engine.config.model.gpt import GPT
from atelier.engine.extensions.sites.round_log import FILE, read_log
from atelier.infra.sites.keys import AUDIT, Keys
from tests.engine.extensions.sites.test_outer import Sites
from tests.engine.trainings import VOCAB, role, tokens

SITES, PORT = {"a": "10.77.0.1", "b": "10.77.0.2"}, 7800
PEER_STEPS = 100  # of a training by torchft
CAPS = {"no cap": 0.0, "100": 100.0, "10": 10.0, "1": 1.0}  # Mbit/s
CHOOSE: list[dict[str, Any]] = [
    {}, {"kind": "bf16"}, {"kind": "int8"}, {"kind": "int4"}, {"kind": "int2"}, {"kind": "topk"},
]  # fmt: skip
LINK: dict[str, Any] = {
    "every": 50, "fragments": 5, "delay": 10, "choose": CHOOSE,
    "outer": {"kind": "nesterov", "lr": 0.7, "momentum": 0.9},
}  # fmt: skip
REDUCE = """
import sys, time, torch, torch.distributed as dist
rank, numbers, steps = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method="tcp://10.77.0.1:7900", rank=rank, world_size=2)
gradients = torch.ones(numbers)
dist.barrier()
began = time.perf_counter()
for _ in range(steps):
    dist.all_reduce(gradients)
print((time.perf_counter() - began) / steps)
"""


def shell(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def namespaces() -> Iterator[None]:
    """A namespace for each site, and a veth pair between them."""
    names = [f"wan-{site}" for site in SITES]
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
        shell("ip", "netns", "add", name)
    try:
        shell(
            "ip", "link", "add", "veth", "netns", names[0], "type", "veth", "peer", "veth", "netns", names[1]
        )
        for site, name in zip(SITES, names, strict=True):
            inside = ("ip", "netns", "exec", name)
            shell(*inside, "ip", "addr", "add", f"{SITES[site]}/24", "dev", "veth")
            for device in ("lo", "veth"):
                shell(*inside, "ip", "link", "set", device, "up")
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def cap(mbit: float) -> None:
    """Both ways; 0 = none."""
    for site in SITES:
        inside = ("ip", "netns", "exec", f"wan-{site}", "tc", "qdisc")
        subprocess.run([*inside, "del", "dev", "veth", "root"], capture_output=True)
        if mbit:
            burst = max(16_000, int(mbit * 1e6 / 8 / 100))  # bytes in 10 ms
            rate = ("rate", f"{mbit:g}mbit", "burst", str(burst), "latency", "200ms")
            shell(*inside, "add", "dev", "veth", "root", "tbf", *rate)


def started(site: str, core: int, words: list[str], log: Path, **env: str) -> subprocess.Popen[bytes]:
    command = ["ip", "netns", "exec", f"wan-{site}", "taskset", "-c", str(core), sys.executable, *words]
    paths = {"PYTHONPATH": f"{PROJECT / 'src'}:{PROJECT}", "OMP_NUM_THREADS": "1"}
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | paths | env)


def sent_bytes(site: str) -> int:
    """That have left its namespace."""
    found = json.loads(shell("ip", "-n", f"wan-{site}", "-s", "-j", "link", "show", "veth"))
    return int(found[0]["stats64"]["tx"]["bytes"])


class Capped(Sites):
    """Two sites, each with its keys and its mailbox."""

    def __init__(self, folder: Path, text: dict[str, str], rows: int, link: dict[str, Any]) -> None:
        super().__init__(folder, text, rows=dict.fromkeys(SITES, rows), **link)
        self.keys = {
            site: Keys.create(folder / f"{site}-keys", site, f"{SITES[site]}:{PORT}") for site in SITES
        }
        for site, keys in self.keys.items():
            for other in SITES:
                if other != site:
                    keys.accept(self.keys[other].card.text, "card")

    def mailbox(self, site: str) -> str:
        return str(self.folder / f"{site}-mail")


def run(
    folder: Path, size: argparse.Namespace, caps: dict[int, float], link: dict[str, Any] = LINK
) -> dict[str, Any]:
    """One training; `caps`: Mbit/s from each step on, or up to ten seconds later, when its line is there."""
    text = {"tokens": tokens(folder / "text", num_tokens=200_000)}
    sites = Capped(folder, text, size.rows, link)
    how = {
        "micro_batch": size.rows,
        "sequence": size.sequence,
        "checkpoint_every": size.steps,
        "eval_sequences": 2,
    }
    spec = role(shape=size.model, lr=1e-3)
    paths = {site: sites.write(site, spec, steps=size.steps, **how) for site in SITES}
    cap(caps[0])
    agents, ranks = [], []
    before = sum(map(sent_bytes, SITES))
    try:
        for core, site in enumerate(SITES):
            words = ["-m", "atelier", "site", "serve", "--mailbox", sites.mailbox(site)]
            words += ["--listen", f"{SITES[site]}:{PORT}", "--keys", str(sites.keys[site].folder)]
            log = folder / f"{site}-agent.log"
            agents.append(started(site, core, words, log, ATELIER_ROOT=str(folder / f"{site}-store")))
            words = ["-m", "atelier.engine.train", paths[site]]
            ranks.append(started(site, core, words, folder / f"{site}.log"))
        left = dict(caps)
        left.pop(0)
        while any(rank.poll() is None for rank in ranks):
            step = max((line["step"] for line in lines_of(sites, "a")), default=0) if left else 0
            if left and step >= min(left):
                cap(left.pop(min(left)))
            time.sleep(0.5)
        if any(rank.returncode for rank in ranks):
            raise SystemExit("".join((folder / f"{site}.log").read_text()[-2000:] for site in SITES))
        wire = sum(map(sent_bytes, SITES)) - before
        cpu = sum(cpu_s(agent.pid) for agent in agents)
    finally:
        for process in (*ranks, *agents):
            process.terminate()
            process.wait()
    held = [
        json.loads(line)
        for site in SITES
        for line in (sites.keys[site].folder / AUDIT).read_text().splitlines()
    ]
    payload = sum(line.get("bytes", 0) for line in held if line["what"] == "sent")
    log = read_log(str(sites.setups["a"].output("m") / FILE)) if "choose" in link else {}
    return {
        "steps_per_s": min(speed(sites, site, size.steps) for site in SITES),
        "of_own_pace": min(of_own_pace(sites, site, size.steps) for site in SITES),
        "last_s": max(lines_of(sites, site)[-1]["timing"]["link_s"] for site in SITES),
        "waited_s": max(
            sum(line["timing"].get("link_s", 0.0) for line in lines_of(sites, site)[:-1]) for site in SITES
        ),
        "stall": max(stall(lines_of(sites, site)[LINK["every"] : -1]) for site in SITES),
        "cpu_s": cpu,
        "wire": wire / payload,
        "bytes": payload,
        "codecs": {site: [line.codecs[site].kind for line in log.values()] for site in SITES},
    }


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def lines_of(sites: Sites, site: str) -> list[Any]:
    folders = sites.setups[site].folder.rglob(FOLDER)
    return merge((str(path), path.read_text()) for folder in folders for path in folder.glob("*.jsonl"))


def stall(lines: list[Any]) -> float:
    """The share of the time in which others' contributions were waited for."""
    waited = sum(line["timing"].get("link_wait_s", 0.0) for line in lines)
    return waited / (lines[-1]["timing"]["time"] - lines[0]["timing"]["time"])


def speed(sites: Sites, site: str, steps: int) -> float:
    times = {line["step"]: line["timing"]["time"] for line in lines_of(sites, site)}
    first, last = LINK["every"], steps - 10
    return (last - first) / (times[last] - times[first])


def of_own_pace(sites: Sites, site: str, steps: int) -> float:
    """Over the same steps as `speed`: the time that all would have taken at the pace of the quickest tenth,
    as a share of what they took. Unlike speed it does not know how fast the machine was in this run.
    """
    times = {line["step"]: line["timing"]["time"] for line in lines_of(sites, site)}
    first, last = LINK["every"], steps - 10
    took = sorted(times[step + 1] - times[step] for step in range(first, last))
    return statistics.mean(took[: len(took) // 10]) * len(took) / sum(took)


def torchft_speed(folder: Path, size: argparse.Namespace, mbit: float) -> float:
    """Steps a second of the slower site by torchft, over the same steps as `speed`."""
    cap(mbit)
    steps = min(size.steps, PEER_STEPS)
    shape = json.dumps(size.model.model_dump(mode="json"))
    script, first = str(Path(__file__).with_name("wan_torchft.py")), SITES["a"]
    library = f"{PROJECT / 'src'}:{PROJECT}:{size.torchft}"
    ranks = []
    for core, (site, own) in enumerate(SITES.items()):
        words = [script, site, own, first, str(steps), shape, str(size.rows), str(size.sequence)]
        log = folder / f"torchft-{site}.log"
        ranks.append(started(site, core, words, log, PYTHONPATH=library, GLOO_SOCKET_IFNAME="veth"))
    if any([rank.wait() for rank in ranks]):
        raise SystemExit("".join((folder / f"torchft-{site}.log").read_text()[-2000:] for site in SITES))
    begin, end = LINK["every"], steps - 10
    said = "".join((folder / f"torchft-{site}.log").read_text() for site in SITES)  # beside its own lines
    times = [json.loads(found)["times"] for found in re.findall(r'{"times": .*?}', said)]
    assert len(times) == len(SITES), said[-1000:]
    return min((end - begin) / (each[end - 1] - each[begin - 1]) for each in times)


def reduced(folder: Path, numbers: int, mbit: float) -> float:
    """Seconds of an all-reduce of so many float32 numbers between both namespaces."""
    cap(mbit)
    (folder / "reduce.py").write_text(REDUCE)
    words = [str(folder / "reduce.py")]
    ranks = [
        started(
            site,
            core,
            [*words, str(core), str(numbers), "2"],
            folder / f"reduce-{site}.log",
            GLOO_SOCKET_IFNAME="veth",
        )
        for core, site in enumerate(SITES)
    ]
    for rank in ranks:
        rank.wait()
    return float((folder / "reduce-a.log").read_text().split()[-1])


def settled(codecs: list[str], ends: list[str], changes: list[int]) -> list[int | None]:
    """Messages from each change on until the codec is the one that the new cap's own run ends with; None = it
    never was. `changes`: how many messages were sent before. The last round, which has all weights, is left
    out.
    """
    found: list[int | None] = []
    ends_of = [*changes[1:], len(codecs) - 1]
    for end, begin, until in zip(ends, changes, ends_of, strict=True):
        found.append(next((n for n, codec in enumerate(codecs[begin:until]) if codec == end), None))
    return found


def give_sizes(size: argparse.Namespace) -> None:
    layers, hidden = (5, 64) if size.tiny else (5, 512)
    size.model = GPT(num_layers=layers, hidden=hidden, num_heads=4, vocab=VOCAB)
    size.rows, size.sequence, steps = (1, 32, 100) if size.tiny else (4, 64, 200)
    size.steps = size.steps or steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="of each training (200); a multiple of 50")
    parser.add_argument("--torchft", type=Path, help="a folder with this library: it is measured beside")
    parser.add_argument("--tiny", action="store_true", help="a small model and few steps: does it run?")
    size = parser.parse_args()
    use_own_code()
    give_sizes(size)
    numbers = size.model.num_params()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CAPS}
    peers: dict[str, list[float]] = {name: [] for name in ("no cap", "100", "10")} if size.torchft else {}
    with namespaces():
        for turn in range(size.turns):
            names = [*CAPS][turn % len(CAPS) :] + [*CAPS][: turn % len(CAPS)]
            for name in names:
                with tempfile.TemporaryDirectory() as folder:
                    runs[name].append(run(Path(folder), size, {0: CAPS[name]}))
                print(
                    name, {key: value for key, value in runs[name][-1].items() if key != "codecs"}, flush=True
                )
                if name in peers:
                    with tempfile.TemporaryDirectory() as folder:
                        peers[name].append(torchft_speed(Path(folder), size, CAPS[name]))
                    print(name, "torchft", peers[name][-1], flush=True)
        with tempfile.TemporaryDirectory() as folder:
            third = size.steps // 3
            changed = run(Path(folder), size, {0: 100.0, third: 10.0, 2 * third: 1.0})
        beside = {}
        for name in ("100", "10"):
            with tempfile.TemporaryDirectory() as folder:
                beside[name] = reduced(Path(folder), numbers, CAPS[name])
    plain = statistics.median(one["steps_per_s"] for one in runs["no cap"])
    pace = statistics.median(one["of_own_pace"] for one in runs["no cap"])
    found: dict[str, Any] = {}
    for name, each in runs.items():
        speeds = [one["steps_per_s"] for one in each]
        found[name] = {
            "steps_per_s": [round(one, 3) for one in speeds],
            "share": round(statistics.median(speeds) / plain, 4),
            "of_own_pace": [round(one["of_own_pace"], 3) for one in each],
            "pace_share": round(statistics.median(one["of_own_pace"] for one in each) / pace, 4),
            **{
                key: round(statistics.median(one[key] for one in each), 3)
                for key in ("last_s", "waited_s", "cpu_s", "wire")
            },
            "bytes": int(statistics.median(one["bytes"] for one in each)),
            "codecs": each[-1]["codecs"]["a"],
        }
    interval = LINK["every"] // LINK["fragments"]
    changes = [third // interval, 2 * third // interval]
    ends = [found[name]["codecs"][-2] for name in ("10", "1")]
    numbers_of = {
        "params": numbers,
        "plain_steps_at_100": round(4 * numbers / 12.5e6 * plain, 2),
        "steps": size.steps,
        "caps_mbit": found,
        "changed": {
            "codecs": changed["codecs"]["a"],
            "settled": settled(changed["codecs"]["a"], ends, changes),
        },
        "data_parallel": {
            name: {"reduce_s": round(took, 2), "share": round(1 / plain / (1 / plain + took), 4)}
            for name, took in beside.items()
        },
    }
    if peers:
        own = statistics.median(peers["no cap"])
        numbers_of["torchft"] = {
            name: {
                "steps_per_s": [round(one, 3) for one in each],
                "share": round(statistics.median(each) / own, 4),
            }
            for name, each in peers.items()
        }
    keep("wan", numbers_of)


if __name__ == "__main__":
    main()
