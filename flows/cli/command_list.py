"""The commands: what each is, with help, arguments and options; flows/cli/commands/<name>.py runs each."""

from atelier.flows.cli.run_commands import JSON, RUN_COMMANDS, Command, Option, Word

TABLE = (
    Command(
        name="plan",
        about="show a flow's tasks before they run: reuse or run, reason, memory, time",
        example="atelier plan titan experiment=laptop train.steps=400",
        words=(
            Word("flow", "the flow to plan", "flow", required=True),
            Word("overrides", "group=option and key=value, as for the flow", "override", many=True),
        ),
        options=(
            JSON,
            Option("--search", "also list all layouts of the pool's devices, the fastest first"),
            Option("--config-dir", "also read settings from this folder, as conf/", "DIR", many=True),
            Option("--calibrate", "measure this machine first (a minute or two), also for later plans"),
            Option("--accept-code", "plan to continue trainings of other code with the present code"),
            Option("--fresh", "plan to restart the unfinished training of this task", "TASK", many=True),
        ),
    ),
    Command(
        name="new",
        about="write a small working example with its test: a project, or a part of the one at hand",
        example="atelier new project mine",
        words=(
            Word("what", "project, model, objective, flow or task", "new", required=True),
            Word("name", "its name: small letters, digits and _", "", required=True),
        ),
    ),
    Command(
        name="list",
        about="list configuration groups, a group's options, or the flows",
        example="atelier list model",
        words=(Word("group", "a group, or flows; empty = all groups", "group"),),
        options=(JSON,),
    ),
    *RUN_COMMANDS,
    Command(
        name="models",
        about="list the trained models of the store",
        example="atelier models --json",
        options=(JSON,),
    ),
    Command(
        name="lineage",
        about="show the ancestors and descendants of an artifact or a run",
        example="atelier lineage student_a --html lineage.html",
        words=(Word("what", "an artifact's name or fingerprint, or a run", "anything", required=True),),
        options=(
            JSON,
            Option("--html", "also write the picture as one HTML file", "FILE"),
            Option("--weights", "show from which ancestors a model's parameters come"),
        ),
    ),
    Command(
        name="diff",
        about="show how two runs or models differ: configuration, data, code, environment, layout, scores,"
        " and the first step at which their curves part",
        example="atelier diff 20261129-064500-1a2b3c student_a",
        words=(
            Word(
                "first", "a run's id, its first or last characters, or an artifact", "anything", required=True
            ),
            Word("second", "the other one", "anything", required=True),
        ),
        options=(JSON, Option("--store", "the second is in this store [the same]", "FOLDER")),
    ),
    Command(
        name="rerun",
        about="run a past run again with changed settings: what they change is made, the rest reused; or"
        " compute what it made again and compare",
        example="atelier rerun 20261129-064500-1a2b3c --from score score.max_tokens=4096",
        words=(
            Word("run", "a run's id, or its first or last characters", "anything", required=True),
            Word("overrides", "group=option and key=value, in place of the run's own", "override", many=True),
        ),
        options=(
            Option(
                "--from",
                "refuse settings that change a task before this one; --verify: this task alone",
                "TASK",
            ),
            Option("--verify", "compute finished tasks again into scratch and compare the files"),
            Option("--dry-run", "only print what would be made, and why"),
            Option("--accept-code", "continue trainings of other code with the present code"),
            Option("--fresh", "restart the unfinished training of this task", "TASK", many=True),
            Option("--json", "with --dry-run or --verify: print JSON instead of a table"),
        ),
    ),
    Command(
        name="explain",
        about="say why a document is, or is not, in a curated corpus (also: atelier corpus explain)",
        example="atelier explain stdlib-prose --sample 20 --reason repetition",
        words=(
            Word("corpus", "a curated corpus: its name or fingerprint", "anything", required=True),
            Word("document", "the document's id, or a piece of its text", "anything"),
        ),
        options=(
            JSON,
            Option("--sample", "show this many removed documents instead", "N"),
            Option("--reason", "of those, only documents removed for a reason that contains this", "TEXT"),
        ),
    ),
    Command(
        name="audit",
        about="tell which questions of evaluation sets a model, or what taught it, had read, and when; exit"
        " code 0 = none, 3 = some, 4 = it cannot be told",
        example="atelier audit student_a mytask.yaml",
        words=(
            Word("model", "a model's name, name@alias or fingerprint", "model", required=True),
            Word(
                "set",
                "evaluation sets: files, or names of conf/questions [those of its exams]; or key=value",
                "override",
                many=True,
            ),
        ),
        options=(JSON,),
    ),
    Command(
        name="generate",
        about="let a trained model continue a text",
        example="atelier generate student_a --prompt 'def main(' --max-tokens 80",
        words=(Word("model", "a model's name, name@alias or fingerprint", "model", required=True),),
        options=(
            Option("--prompt", "one or more texts to continue [a new document]", "TEXT", many=True),
            Option(
                "--chat",
                "a user's message to answer, or a JSON list of messages, in the model's chat template",
                "TEXT",
                many=True,
            ),
            Option("--max-tokens", "most tokens to generate [128]", "N"),
            Option("--temperature", "divides the logits; 0 = always the most probable token [0.8]", "T"),
            Option("--memory", "memory for weights; the others are read when they are needed [all]", "2GB"),
            Option("--split", "split the model over ranks of this machine [one rank]", "tensor=2"),
            Option("--top-p", "sample from the fewest tokens that reach this probability [1.0]", "P"),
            Option("--seed", "the same seed gives the same text [0]", "N"),
            Option("--genre", "a genre of the model, for example code, prose", "NAME"),
            Option("--topic", "topic of the text, for models trained with objective control", "TEXT"),
            Option("--keywords", "words that should occur, separated by commas", "WORDS"),
            Option("--sentiment", "positive, negative or neutral", "NAME"),
            Option("--length", "approximate number of tokens", "N"),
            Option("--best-of", "generate N texts, print the one that the model finds most natural [1]", "N"),
        ),
    ),
    Command(
        name="export",
        about="write a trained model for transformers: weights, config, tokenizer, model card",
        example="atelier export student_a exported/student_a --dtype bfloat16",
        words=(
            Word("model", "a model's name, name@alias or fingerprint", "model", required=True),
            Word("url", "a new folder: a path or an fsspec URL", "file", required=True),
        ),
        options=(
            Option("--format", "hf = a folder for transformers, the only format [hf]", "hf"),
            Option("--family", "the model_type to write [the first that can represent the model]", "NAME"),
            Option("--dtype", "type of the weights: float32, float16 or bfloat16 [as stored]", "TYPE"),
        ),
    ),
    Command(
        name="pick",
        about="find the best run of a sweep or of some runs, and name its model `<model>@best`",
        example="atelier pick 3f2a --by student_a.eval_loss",
        words=(Word("what", "a sweep's id, or runs; four digits do", "anything", required=True, many=True),),
        options=(
            Option("--by", "metric to compare by, <model>.<key of its summary> [the sweep's]", "METRIC"),
            Option("--highest", "higher is better [the sweep's direction, else the metric's]"),
            Option("--lowest", "lower is better"),
            Option("--alias", "alias of the best model [best]", "NAME"),
            JSON,
        ),
    ),
    Command(
        name="up",
        about="start Prefect, MLflow and workers on this machine, with every flow deployed",
        example="atelier up",
        options=(
            Option("--prefect-port", "port of Prefect's pages [4200]", "N"),
            Option("--mlflow-port", "port of MLflow's pages [5000]", "N"),
            Option("--host", "address to bind; only loopback is allowed [127.0.0.1]", "ADDRESS"),
        ),
    ),
    Command(name="down", about="stop the processes that `atelier up` started", example="atelier down"),
    Command(
        name="status",
        about="show the parts of the local stack and the runs in progress",
        example="atelier status",
        options=(
            JSON,
            Option("--env", "print the environment variables for clients, for eval in a shell"),
            Option("--password", "print user:password for Prefect's sign-in"),
            Option("--join", "print the lines that make a machine with GPUs serve the pool gpu"),
        ),
    ),
    Command(
        name="worker",
        about="serve a pool from this machine until it is stopped",
        example="atelier worker local",
        words=(Word("pool", "a pool of conf/pool, or light", "pool", required=True),),
        options=(
            Option("--name", "the worker's name [host-pool]", "NAME"),
            Option("--show", "print the batch job of a training on two nodes"),
        ),
    ),
    Command(
        name="site",
        about="manage this site's key, the trusted sites, and the agent that exchanges messages with them",
        example="atelier site serve --mailbox /data/mail",
        words=(
            Word(
                "act",
                "create: make a key; card: print the card for other sites; accept: trust another's card;"
                " peers: list trusted sites; allow: set what a site may do here; revoke: stop trusting one;"
                " rotate: make a new key; serve: run the agent; audit: verify the message log; orders: list"
                " runs that sites requested; cancel: cancel one",
                "anything",
                required=True,
            ),
            Word(
                "what",
                "create: a name; accept: a file with a card; allow, revoke: a site; audit: another's log;"
                " cancel: an order",
                "anything",
            ),
        ),
        options=(
            Option("--keys", "the folder of the key [$ATELIER_SITE, or ~/.config/atelier/site]", "FOLDER"),
            Option(
                "--address",
                "create, rotate: host:port where others reach the agent, or a folder or the URL of a bucket;"
                " empty = it connects to others",
                "ADDRESS",
            ),
            Option("--replace", "accept: replace the certificate of a trusted site"),
            Option(
                "--mailbox",
                "serve, orders, cancel: the folder of messages [mailbox, beside the key]",
                "FOLDER",
            ),
            Option(
                "--tasks",
                "allow: tasks that may run here for it, as a complete list; all, none",
                "TASK",
                many=True,
            ),
            Option(
                "--read",
                "allow: folders and URLs that its runs may read here, as a complete list; none",
                "PLACE",
                many=True,
            ),
            Option(
                "--use",
                "allow: artifacts here that its runs may use, as a complete list of names; all, none",
                "NAME",
                many=True,
            ),
            Option(
                "--send",
                "allow: kinds of artifacts whose files are sent to it, as a complete list; all, none",
                "KIND",
                many=True,
            ),
            Option("--pool", "allow: the pool of conf/pool on which its tasks run [here]", "POOL"),
            Option("--tracker", "allow: the tracker of conf/tracker for its tasks here [mlflow]", "TRACKER"),
            Option("--hourly", "allow: GB an hour to and from it, in all [any]", "GB"),
            Option("--mbps", "serve: Mbit/s that it sends at most, to all sites [any]", "MBPS"),
            Option("--with-parent", "serve: stop, with all its runs, when standard input ends"),
            Option("--listen", "serve: where to listen [127.0.0.1 and its address's port]", "HOST:PORT"),
        ),
    ),
    Command(
        name="doctor",
        about="check this machine: Python, torch and devices, 16-bit arithmetic, ports, disk, the store,"
        " batch systems, versions, limits; say what to do; exit code 1 if something is broken",
        example="atelier doctor",
        options=(JSON,),
    ),
    Command(
        name="versions",
        about="show Atelier's version, its commit and changes since, and the versions of its libraries",
        example="atelier versions",
        options=(JSON,),
    ),
    Command(
        name="files",
        about="write the compose file, Kubernetes manifests, backup scripts and the images' code into a"
        " folder; without one say where they are",
        example="atelier files cluster",
        words=(Word("folder", "a new or empty folder", "anything"),),
        options=(JSON,),
    ),
    Command(
        name="rm",
        about="remove a model with its training, scores and reports, after asking; refused if other models"
        " descend from it",
        example="atelier rm student_a --dry-run",
        words=(Word("model", "a model's name, name@alias or fingerprint", "model", required=True),),
        options=(
            Option("--dry-run", "only print what would be removed, and why"),
            Option("--yes", "do not ask"),
            JSON,
        ),
    ),
    Command(
        name="gc",
        about="remove artifacts and files that nothing needs, after asking",
        example="atelier gc --dry-run",
        options=(
            Option("--dry-run", "only print what would be removed, and why"),
            Option("--yes", "do not ask"),
            Option("--damaged", "read every file; also remove damaged files, which a run can make again"),
            Option("--forget", "treat this run as deleted: remove what only it needs", "RUN", many=True),
        ),
    ),
)
